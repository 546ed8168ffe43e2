"""Measure the training rows and the eval sets after every round, and a forest on a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rankmill.foundation.cures import spelled_with
from rankmill.foundation.errors import TrainingDataRejected
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.forest.links import apply_link
from rankmill.scorer.forest.predict import ForestPredictor
from rankmill.trainer import _kernels
from rankmill.trainer.data.measured_queries import MeasuredQueries
from rankmill.trainer.data.rows import RankedRows, TrainingData
from rankmill.trainer.data.shard import RowShard, Span, span_of
from rankmill.trainer.data.training_rows import LEARNT_FROM, read_columns, rows_learnt_from
from rankmill.trainer.growing.tree import Tree
from rankmill.trainer.objectives.protocol import Objective
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.parameters import RF, TrainParameters
from rankmill.trainer.rounds.early_stopping import DEVIANCE, measures_of
from rankmill.trainer.rounds.training_result import TRAIN, QueryValues
from rankmill.trainer.rounds.tree_weights import Change
from rankmill.trainer.team import Team

_LEAST_SWEPT = 16_384  # rows a worker to which a tree is added
_LEAST_LINKED = 4096  # rows a worker whose outputs become scores
_LEAST_RANKED = 4096  # rows a worker that are ranked for a metric


class RoundMetrics:
    """Metrics of every set after every round.

    Parameters
    ----------
    data
        The training rows and the eval sets. Early stopping watches the stop metric on the first eval set.
    objective
        The loss that is minimised on the train split.
    parameters
        ``metric``, ``stop_metric`` and ``gain`` are used.
    eval_metrics
        More metrics to measure; ``deviance`` is the loss.
    decides
        Whether the stop metric on the first eval set chooses the best round.  It must then differ between rankings of
        that set.
    in_fold
        Of a cross-validation, whose other folds decide, too: it then only needs a value.

    Raises
    ------
    TrainingDataRejected
        An eval set has no rows, its bins do not fit its rows or features, or all rankings of the first set are as good.
    rankmill.foundation.errors.InputError
        A metric is unknown.
    """

    def __init__(
        self,
        data: TrainingData,
        objective: Objective,
        parameters: TrainParameters,
        eval_metrics: Sequence[str],
        *,
        decides: bool = True,
        in_fold: bool = False,
        shard: RowShard | None = None,
    ) -> None:
        train, eval_sets = data.train, data.eval_sets
        measures = measures_of(parameters, eval_metrics, graded=train.graded)
        self.stop_metric = measures[0]
        _ = objective.starting_score  # raise its errors before those of eval sets: they are about the train split
        self._order = [str(measure) for measure in measures]
        with_loss = DEVIANCE in measures
        queries = MeasuredQueries(train, measures, parameters, data.scale)
        own = span_of(train.starts, shard)
        self._sets = {TRAIN: _MeasuredSet(train, objective, queries, objective if with_loss else None, own)}
        for name, rows in eval_sets:
            if rows.n_rows == 0:
                raise TrainingDataRejected(f"the eval set {name!r} has no rows; leave it out")
            try:
                learnt = rows_learnt_from(rows, parameters)
                loss = objective_of(learnt, parameters, learns=False) if with_loss else None
                queries = MeasuredQueries(rows, measures, parameters, data.scale)
                own = span_of(rows.starts, shard)
                self._sets[name] = _MeasuredSet(rows, objective, queries, loss, own)
                self._sets[name].take_bins(rows, objective, data.n_bins, averaged=parameters.boosting == RF)
            except TrainingDataRejected as error:
                raise TrainingDataRejected(f"eval set {name!r}: {error}") from None
        self.first = eval_sets[0][0] if eval_sets else None
        if decides and self.first is not None:
            self._sets[self.first].queries.check_decides(
                self.stop_metric,
                self.first,
                f"cannot decide when to stop; use a split with such queries or none, or keep all rounds"
                f" ({spelled_with('keep_rounds', 'all')}, {spelled_with('early_stopping_rounds', 0)})",
                constant=in_fold,
            )

    def add(self, change: Change, team: Team) -> None:
        """Change the scores of every eval set by a round."""
        for name, measured in self._sets.items():
            if name != TRAIN:
                measured.shrink(change.factor)
                for number, tree in enumerate(change.trees):
                    measured.add(number, tree, team)

    def means(self, train_scores: npt.NDArray[np.float64], team: Team) -> dict[str, Mapping[str, float]]:
        """Return the mean of every metric on every set, the train split first."""
        self._sets[TRAIN].scores = train_scores
        found = {name: measured.means(team) for name, measured in self._sets.items()}
        return {name: {measure: of_set[measure] for measure in self._order} for name, of_set in found.items()}

    def keep(self) -> None:
        """Keep the last metrics of each query; they replace those kept before."""
        for measured in self._sets.values():
            measured.kept = measured.last

    def by_query(self) -> dict[str, dict[str, QueryValues]]:
        """Return the kept metrics of each query, by set."""
        return {name: measured.by_query() for name, measured in self._sets.items()}


class _MeasuredSet:
    """One set of rows: its scores so far, its metrics, and its bins if it is an eval set."""

    bins: npt.NDArray[np.uint8]
    scores: npt.NDArray[np.float64]
    _start: npt.NDArray[np.float64] | None = None

    def __init__(
        self,
        rows: RankedRows,
        objective: Objective,
        queries: MeasuredQueries,
        loss: Objective | None,
        span: Span,
    ) -> None:
        self.queries, self._span = queries, span
        self._link, self._loss = objective.link, loss
        # scores to rank by, if they differ from the sums of the trees
        self._ranked = None if objective.link == "identity" else np.empty(rows.n_rows, dtype=np.float64)
        self.last = self.kept = np.empty((0, 0), dtype=np.float64)  # (n_metrics, n_queries)

    def take_bins(
        self, rows: RankedRows, objective: Objective, n_bins: npt.NDArray[np.int32], *, averaged: bool
    ) -> None:
        """Read the bins of an eval set, and start its scores; ``averaged``: they will be a mean of trees."""
        self.bins, self.scores = rows.by_feature(n_bins, self._span), starting_scores(rows, objective, self._span)
        self._start = self.scores.copy() if averaged else None

    def shrink(self, factor: float) -> None:
        """Multiply what trees have added so far by ``factor``."""
        if self._start is not None:
            self.scores = self._start + (self.scores - self._start) * factor

    def add(self, number: int, tree: Tree, team: Team) -> None:
        """Add tree ``number`` of a round to the scores of its output; the workers share the rows."""
        scores = self.scores if self.scores.ndim == 1 else self.scores[number % len(self.scores)]

        before = self._span.first

        def share(first: int, last: int, _: int) -> None:
            first, last = before + first, before + last
            _kernels.add_tree(
                self.bins, tree.feature, tree.threshold, tree.missing_left, tree.sets, tree.left, tree.right,
                tree.value, first, last, scores,
            )  # fmt: skip

        team.share(self._span.size, _LEAST_SWEPT, share)

    def means(self, team: Team) -> dict[str, float]:
        """Return the mean of every metric, and the deviance if requested."""
        queries, scores = self.queries, self.scores
        found = {} if self._loss is None else {str(DEVIANCE): self._loss.deviance(scores)}
        if not queries.metrics:
            return found
        ranked = scores if self._ranked is None else self._ranked
        span = self._span
        if self._ranked is not None:
            team.share(
                span.size,
                _LEAST_LINKED,
                lambda first, last, _: apply_link(
                    self._link, np.atleast_2d(scores), ranked, first=span.first + first, last=span.first + last
                ),
            )
        values = np.empty((len(queries.metrics), queries.n_queries), dtype=np.float64)
        least = max(1, _LEAST_RANKED * queries.n_queries // max(1, queries.n_rows))
        begin = span.first_query
        team.share(
            span.last_query - begin,
            least,
            lambda first, last, _: queries.evaluate_into(ranked, begin + first, begin + last, values),
        )
        self.last = values = span.of_all_queries(values)
        return found | queries.means(values)

    def by_query(self) -> dict[str, QueryValues]:
        """Return the kept metrics of each query."""
        return self.queries.by_query(self.kept)


def starting_scores(rows: RankedRows, objective: Objective, span: Span) -> npt.NDArray[np.float64]:
    """Return the scores of the rows of ``span`` before the first tree, offsets included.

    The shape is (n_rows,), or (n_outputs, n_rows).
    """
    shape = (rows.n_rows,) if objective.n_outputs == 1 else (objective.n_outputs, rows.n_rows)
    scores, own = np.zeros(shape, dtype=np.float64), slice(span.first, span.last)
    scores[..., own] = objective.starting_score
    if rows.offsets is not None:
        scores[..., own] += rows.offsets[own]
    return scores


def measure(
    forest: Forest,
    dataset: Dataset,
    split: str,
    parameters: TrainParameters,
    eval_metrics: Sequence[str] = (),
    n_threads: int = 1,
) -> tuple[dict[str, float], dict[str, QueryValues]]:
    """Return the stop metric and ``eval_metrics`` of ``forest`` on ``split``.

    These are their means, and their values for each query.

    Features are read and scored in batches, so only a few numbers per document stay in memory.  Offsets of the dataset
    are added to the scores, as in training.  The deviance is omitted for models whose score combines several sums of
    trees.
    """
    own = replace(parameters, learn_from=str(forest.info.get(LEARNT_FROM, "")))
    rows = rows_learnt_from(read_columns(dataset, split, parameters), own)
    if rows.n_rows == 0:
        return {}, {}
    predictor = ForestPredictor(forest)
    names = predictor.feature_names or forest.feature_names[:1]  # rows without a column would have no number
    columns = np.arange(len(predictor.features))
    scores = np.concatenate(
        [
            predictor.scores(batch, columns=columns, n_threads=n_threads)
            for batch in dataset.feature_batches(split, names)
        ]
    )
    if rows.offsets is not None:
        scores += rows.offsets
    measures = [
        each
        for each in measures_of(parameters, eval_metrics, graded=rows.graded)
        if each != DEVIANCE or forest.link == "identity"
    ]
    queries = MeasuredQueries(rows, measures, parameters, {"": dataset.max_grade, **dataset.goals})
    values = queries.evaluate(scores)
    found = queries.means(values)
    if DEVIANCE in measures:
        found[str(DEVIANCE)] = objective_of(rows, own, learns=False).deviance(scores)
    of_queries, order = queries.by_query(values), [str(each) for each in measures]
    return {name: found[name] for name in order}, {name: of_queries[name] for name in order if name in of_queries}
