"""Scores and metrics of the rows that are learnt from and of those that are only watched, after every round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from scorer.metrics import Metric, Policy, parse_metric
from scorer.metrics.queries import PreparedQueries, mean_of
from trainer import _kernels
from trainer.errors import InvalidParameter, TrainingDataRejected
from trainer.growing.tree import Tree
from trainer.history import TRAIN
from trainer.parameters import TrainParameters
from trainer.rows import RankedRows
from trainer.workers import Team

_LEAST_WALKED = 2048  # rows a worker that walk down a tree
_LEAST_RANKED = 4096  # rows a worker that are ranked for a metric


class Watch:
    """What is measured after every round.

    Parameters
    ----------
    train
        The rows that are learnt from.
    eval_sets
        (name, rows) of what is only watched; early stopping watches the stop metric on the first.
    parameters
        ``metric``, ``stop_metric`` and ``gain`` are used.
    eval_metrics
        What is measured besides the stop metric.
    max_grade
        Highest grade of the scale, for ERR.
    start
        The score that every row starts from.
    n_bins
        Bins of each feature, the missing one included, (n_features,).

    Raises
    ------
    InvalidParameter
        Two sets have the same name, or one has that of the train split.
    TrainingDataRejected
        An eval set holds no rows, or the bins of other rows or features, or nothing is relevant in the first.
    scorer.errors.InputError
        A metric is unknown.
    """

    def __init__(
        self,
        train: RankedRows,
        eval_sets: Sequence[tuple[str, RankedRows]],
        parameters: TrainParameters,
        eval_metrics: Sequence[str],
        *,
        max_grade: int,
        start: float,
        n_bins: npt.NDArray[np.int32],
    ) -> None:
        self.stop_metric = parse_metric(parameters.stop_metric or parameters.metric)
        self._metrics = list(dict.fromkeys([self.stop_metric, *map(parse_metric, eval_metrics)]))
        policy = Policy(
            gain="exp" if parameters.gain == "exp" else "linear",
            max_grade=max(max_grade, 1) if any(metric.name == "err" for metric in self._metrics) else None,
        )
        names = [TRAIN, *(name for name, _ in eval_sets)]
        again = [name for i, name in enumerate(names) if name in names[:i]]
        if again:
            raise InvalidParameter(f"eval sets need names of their own, none of them {TRAIN!r}; got {again[0]!r} again")
        self._train = PreparedQueries(train.grades, train.starts, policy)
        self._sets = {name: _EvalSet(name, rows, policy, start, n_bins) for name, rows in eval_sets}
        self.first = names[1] if eval_sets else None
        if self.first is not None and self._sets[self.first].queries.nothing_relevant(self.stop_metric).all():
            raise TrainingDataRejected(
                f"no query of the {self.first} split has a relevant document, so {self.stop_metric} cannot tell when"
                " to stop; put other queries into it, or leave it out"
            )

    def add(self, tree: Tree, team: Team) -> None:
        """Add ``tree`` to the scores of every eval set."""
        for watched in self._sets.values():
            watched.add(tree, team)

    def means(self, train_scores: npt.NDArray[np.float64], team: Team) -> dict[str, Mapping[str, float]]:
        """Return the mean of every metric on every set, the train split first."""
        found: dict[str, Mapping[str, float]] = {TRAIN: _means(self._train, self._metrics, train_scores, team)}
        for name, watched in self._sets.items():
            found[name] = _means(watched.queries, self._metrics, watched.scores, team)
        return found


class _EvalSet:
    """One set that is watched: its bins, its scores so far, its metrics."""

    def __init__(
        self, name: str, rows: RankedRows, policy: Policy, start: float, n_bins: npt.NDArray[np.int32]
    ) -> None:
        if rows.n_rows == 0:
            raise TrainingDataRejected(f"the eval set {name!r} holds no rows; leave it out")
        try:
            self.bins = rows.row_major(n_bins)
        except TrainingDataRejected as error:
            raise TrainingDataRejected(f"eval set {name!r}: {error}") from None
        self.scores = np.full(rows.n_rows, start, dtype=np.float64)
        self.queries = PreparedQueries(rows.grades, rows.starts, policy)

    def add(self, tree: Tree, team: Team) -> None:
        """Add ``tree`` to the scores, rows shared out among the workers."""

        def share(first: int, last: int, _: int) -> None:
            _kernels.add_tree(
                self.bins, tree.feature, tree.threshold, tree.missing_left, tree.left, tree.right, tree.value,
                first, last, self.scores,
            )  # fmt: skip

        team.share(len(self.scores), _LEAST_WALKED, share)


def _means(
    queries: PreparedQueries, metrics: Sequence[Metric], scores: npt.NDArray[np.float64], team: Team
) -> dict[str, float]:
    values = np.empty((len(metrics), queries.n_queries), dtype=np.float64)
    least = max(1, _LEAST_RANKED * queries.n_queries // max(1, queries.n_rows))
    team.share(
        queries.n_queries, least, lambda first, last, _: queries.evaluate_into(metrics, scores, first, last, values)
    )
    return {str(metric): mean_of(of_metric) for metric, of_metric in zip(metrics, values, strict=True)}
