"""Train models of several kinds on the same rows, and blend them.

They are two kinds of trees and a small net (docs/presets.md has the evidence).

Each kind is judged on queries that it did not learn from; `rankmill.trainer.candidates.steady_weights` finds the
weights from the scores there; then each is trained on all rows.  No kind is best everywhere: trees of ``query_rmse``
are on few queries and noisy grades, those of ``lambdamart`` where few documents are relevant, a net where the signal
is smooth.

few queries    Three folds of train and valid rows together.  They choose the rounds, and every query is judged.  Their
               trees learn twice as fast as those of the model, which then has twice the rounds
many           Stopped early by the valid rows, which are what is judged; trained again on both where the preset does
               that

Each training reports its rounds with the stage that it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum, isfinite, nan

import numpy as np
import numpy.typing as npt

from rankmill.foundation.records import JSON, as_json
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.forest.predict import predict
from rankmill.scorer.metrics import parse_metric
from rankmill.scorer.models.loading import Blend
from rankmill.scorer.models.model import Model
from rankmill.scorer.nets.net import Net
from rankmill.trainer.candidates.blending import spread_of
from rankmill.trainer.candidates.combined_forests import facts_alike
from rankmill.trainer.candidates.steady_weights import steady_shares, sum_of
from rankmill.trainer.data.measured_queries import MeasuredQueries
from rankmill.trainer.data.rows import RankedRows, TrainingData
from rankmill.trainer.nets.cross_validating import cross_validate_net
from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.nets.train_on_dataset import train_and_keep
from rankmill.trainer.nets.training import NetData, NetResult, NetRows
from rankmill.trainer.parameters import ALL, BLENDING, NONE, OF_EVERY_KIND, TrainParameters
from rankmill.trainer.presets import DataShape, shape_of_rows, with_preset
from rankmill.trainer.rounds.boosting import boost
from rankmill.trainer.rounds.checkpoints import Checkpoints
from rankmill.trainer.rounds.cross_validation import Fold, cross_validated, folds_of
from rankmill.trainer.rounds.early_stopping import DEVIANCE, EarlyStopping, Measure, measures_of, stop_measure
from rankmill.trainer.rounds.train_on_rows import fit, train_fold, with_first_eval_set
from rankmill.trainer.rounds.training_result import (
    HOLDOUT,
    REFIT,
    CrossValidation,
    QueryValues,
    RoundRecord,
    TrainingResult,
    TrainingStage,
)
from rankmill.trainer.training_facts import BlendFacts, KindFacts
from rankmill.trainer.training_options import DEFAULT_OPTIONS, OnRound, TrainingOptions

FOLDS, MOST_FOLDED = 3, 300  # queries of the train split that are judged by folds
FASTER = 2  # trees of folds learn so many times as fast as those of the model, in as many times fewer rounds
MEMBERS = 2  # of trees on few queries, where the preset has more: several kinds are averaged already
TREES, RANKING, NET = "trees", "ranking trees", "net"
OBJECTIVE = "lambdamart"  # of ranking trees, which are grown like the others: one growth kernel is compiled for both
LAYERS = (64, 32)
_USUAL = TrainParameters()

Floats = npt.NDArray[np.float64]
Values = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendOfKinds:
    """The blend, its parts, and how the rounds of its first part were chosen: of trees if it has any."""

    model: Blend
    facts: BlendFacts
    best_round: int
    """Rounds of the first part, or epochs of a net."""
    history: tuple[RoundRecord, ...]
    """Its rounds before the last training on all rows.  In folds: means over them, of the held-out queries and of those
    of the eval set among them.  A round of trees of folds stands for two of the model."""
    cross_validation: CrossValidation | None
    by_query: Mapping[str, QueryValues] = field(repr=False)  # metrics of the blend on the queries that were judged


@dataclass(frozen=True, slots=True)
class _Judged:
    """A kind of model after it was judged."""

    kind: str
    rounds: int
    scores: Floats  # of the judged rows
    train: Callable[[], Model]  # on all rows
    history: tuple[RoundRecord, ...] = ()
    cross_validation: CrossValidation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """Rows with their values, and how kinds are judged."""

    data: TrainingData
    values: Values  # of the train rows
    valid: Values | None
    pooled: TrainingData  # what the parts are trained on in the end
    pooled_values: Values
    folds: list[Fold]  # none: judged on the first eval set
    measure: Measure
    options: TrainingOptions
    checkpoints: Checkpoints | None

    def reporting(self, kind: str, n_rounds: int, where: str = "", unit: str = "round") -> OnRound | None:
        """Return what reports the rounds of a training of a ``kind``: ``n_rounds`` at most."""
        report = self.options.on_round

        def named(record: RoundRecord) -> None:
            assert report is not None  # noqa: S101 - else it is not called
            at = f", fold {record.fold} of {len(self.folds)}" if record.fold else where
            report(replace(record, stage=TrainingStage(kind + at, n_rounds, unit)))

        return None if report is None else named

    @property
    def of_eval_set(self) -> dict[str, npt.NDArray[np.bool_]]:
        """The queries of the eval set among those of the folds, by its name."""
        names = [name for name, _ in self.data.eval_sets if self.folds and self.pooled is not self.data]
        later = np.arange(self.pooled.train.n_queries) >= self.data.train.n_queries
        return {name: later for name in names[:1] if name != HOLDOUT}

    @property
    def judged(self) -> RankedRows:
        return self.pooled.train if self.folds else self.data.eval_sets[0][1]

    def checkpoints_of(self, kind: str) -> Checkpoints | None:
        return None if self.checkpoints is None else self.checkpoints.within(kind.replace(" ", "-"))


def blend_of_kinds(
    data: TrainingData,
    values: Values,
    valid: Values | None,
    given: TrainParameters,
    options: TrainingOptions = DEFAULT_OPTIONS,
    checkpoints: Checkpoints | None = None,
    shape: DataShape | None = None,
) -> BlendOfKinds:
    """Train all kinds and return their blend: the same bytes for any number of threads.

    Parameters
    ----------
    data
        As :func:`rankmill.trainer.rounds.train_on_rows.fit` takes it; only the first eval set is used.
    values, valid
        (n_rows, n_features) values of the train rows and of the first eval set, None without one; codes of categories.
    given
        Options that all kinds have; the preset chooses the others (:func:`rankmill.trainer.presets.why_trees_alone`).
    checkpoints
        Where each part is kept, so that a killed training resumes; the caller clears them.
    shape
        What the preset may know of the data; by default that of rows in memory.

    Raises
    ------
    rankmill.foundation.errors.TrainingDataRejected, rankmill.foundation.errors.InvalidParameter
        As training of trees and of nets.
    """
    shape = shape or shape_of_rows(data)
    task, trees = _task_of(data, values, valid, given, shape, options, checkpoints)
    ranking, _ = first_trees(replace(given, objective=OBJECTIVE), shape)
    found = [_judged_trees(TREES, task, trees), _judged_trees(RANKING, task, ranking), _judged_net(task, trees)]
    rows = task.judged
    queries = MeasuredQueries(rows, [task.measure], trees, data.scale)

    def measured(scores: Floats) -> Floats:
        return queries.by_query(queries.evaluate(scores))[str(task.measure)].values

    def mean(scores: Floats) -> float | None:
        found = queries.means(queries.evaluate(scores))[str(task.measure)]
        return found if isfinite(found) else None

    spreads = [spread_of(each.scores, rows.starts) for each in found]
    scaled = [each.scores / spread for each, spread in zip(found, spreads, strict=True)]
    shares = steady_shares(scaled, measured, higher_is_better=task.measure.higher_is_better)
    together = sum_of(scaled, shares)
    where = f"in {len(task.folds)} folds" if task.folds else f"of {data.eval_sets[0][0]}"
    facts = BlendFacts(
        kinds=tuple(
            KindFacts(kind=each.kind, share=share, rounds=each.rounds, alone=mean(scores))
            for each, share, scores in zip(found, shares, scaled, strict=True)
        ),
        measured=str(task.measure), together=mean(together), judged=f"{rows.n_queries:,} queries {where}",
    )  # fmt: skip
    every = MeasuredQueries(
        rows, measures_of(trees, options.eval_metrics, graded=rows.graded) or [task.measure], trees, data.scale
    )
    weights = [
        (each.train(), share / spread) for each, share, spread in zip(found, shares, spreads, strict=True) if share
    ]
    first = next(each for each, share in zip(found, shares, strict=True) if share)
    return BlendOfKinds(
        model=_blended(weights, facts, given, _refit_facts(task, first.rounds)),
        facts=facts,
        best_round=first.rounds,
        history=first.history,
        cross_validation=first.cross_validation,
        by_query=every.by_query(every.evaluate(together)),
    )


def _blended(
    found: Sequence[tuple[Model, float]], facts: BlendFacts, given: TrainParameters, refit: Mapping[str, JSON]
) -> Blend:
    models = [model for model, _ in found]
    own = {name: getattr(given, name) for name in OF_EVERY_KIND if getattr(given, name) != getattr(_USUAL, name)}
    found_by: dict[str, JSON] = as_json(facts)
    return Blend(
        parts=tuple(models),
        weights=np.array([weight for _, weight in found]),
        parameters={**found_by, "metric": given.metric, **own, "preset": BLENDING},
        info={**facts_alike(models), **refit},
    )


def first_trees(given: TrainParameters, shape: DataShape) -> tuple[TrainParameters, bool]:
    """Return the parameters of the first trees, and whether folds judge the kinds."""
    trees = with_preset(given, shape)
    folded = not shape.has_valid or (trees.refit == ALL and shape.queries <= MOST_FOLDED)
    chosen = with_preset(given, shape.in_folds()) if folded else trees
    return replace(chosen, members=min(MEMBERS, chosen.members)), folded


def net_options(trees: TrainParameters) -> NetOptions:
    """Return the options of the net beside ``trees``."""
    return NetOptions(
        layers=LAYERS,
        metric=trees.metric,
        stop_metric=trees.stop_metric,
        gain=trees.gain,
        sigma=trees.sigma,
        seed=trees.seed,
    )


def _task_of(
    data: TrainingData,
    values: Values,
    valid: Values | None,
    given: TrainParameters,
    shape: DataShape,
    options: TrainingOptions,
    checkpoints: Checkpoints | None,
) -> tuple[_Task, TrainParameters]:
    """Return what all kinds have in common, and the parameters of the first."""
    data = data.blocked()
    if data.eval_sets:
        name, rows = data.eval_sets[0]
        rows = replace(rows, bins=[rows.row_major(data.n_bins)])  # read several times
        data = replace(data, eval_sets=[(name, rows)])
    trees, folded = first_trees(given, shape)
    pooled, pooled_values = data, values
    if data.eval_sets and trees.refit == ALL:
        assert valid is not None  # noqa: S101 - there is an eval set
        pooled, pooled_values = with_first_eval_set(data), np.concatenate([values, valid])
    measure = stop_measure(trees, graded=data.train.graded)
    return _Task(
        data=data,
        values=values,
        valid=valid,
        pooled=pooled,
        pooled_values=pooled_values,
        folds=folds_of(pooled.train.query_names, FOLDS, trees.seed) if folded else [],
        measure=parse_metric(trees.metric) if measure == DEVIANCE else measure,
        options=replace(options, resume=None),
        checkpoints=checkpoints,
    ), trees


def _judged_trees(kind: str, task: _Task, parameters: TrainParameters) -> _Judged:
    alone, checkpoints = replace(parameters, refit=NONE), task.checkpoints_of(kind)
    first: Forest | None = None
    if task.folds:
        folded, history, scores = _folded_trees(kind, task, _faster(alone), checkpoints)
        rounds = FASTER * folded.best_round
    else:
        assert task.valid is not None  # noqa: S101 - it is what is judged
        reporting = replace(task.options, on_round=task.reporting(kind, alone.n_rounds))
        result, folded = fit(task.data, alone, reporting, checkpoints), None
        rounds, history, first = result.best_round, result.history, result.forest
        scores = predict(first, task.valid, n_threads=task.options.n_threads)

    def train() -> Model:
        if first is not None and task.pooled is task.data:
            return first
        kept = None if checkpoints is None else checkpoints.of("final")
        options = replace(task.options, on_round=task.reporting(kind, rounds, ", all rows"))
        return boost(task.pooled, alone, options, checkpoint=kept, rounds=rounds).forest

    return _Judged(kind, rounds, scores, train, history, folded)


def _faster(parameters: TrainParameters) -> TrainParameters:
    """Return the parameters of the trees of folds: one member, a faster rate, and fewer rounds of everything."""
    p = parameters
    return replace(
        p,
        members=1,
        learning_rate=min(1.0, FASTER * p.learning_rate),
        n_rounds=-(-p.n_rounds // FASTER),
        stop_window=-(-p.stop_window // FASTER),
        early_stopping_rounds=-(-p.early_stopping_rounds // FASTER),
    )


def _folded_trees(
    kind: str, task: _Task, parameters: TrainParameters, checkpoints: Checkpoints | None
) -> tuple[CrossValidation, tuple[RoundRecord, ...], Floats]:
    """Return the cross-validation, its history, and the scores of each query by the fold that it was held out from."""
    results: dict[int, TrainingResult] = {}
    options = replace(task.options, on_round=task.reporting(kind, parameters.n_rounds))
    of_eval_set = task.of_eval_set

    def train(fold: Fold, rounds: int | None, before: TrainingResult | None) -> TrainingResult:
        start = None if before is None else before.forest
        result = train_fold(task.pooled, parameters, options, fold, rounds, start, checkpoints, of_eval_set)
        results[fold.number] = result
        return result

    measure = stop_measure(parameters, graded=task.pooled.train.graded)
    stopping = EarlyStopping.of(parameters, higher_is_better=measure.higher_is_better, patience=0)
    found = cross_validated(task.folds, measure, stopping, train)
    scores = np.empty(task.pooled.train.n_rows)
    for fold in task.folds:
        rows = _rows_of(fold, task)
        scores[rows] = predict(results[fold.number].forest, task.pooled_values[rows], n_rounds=found.best_round,
                               n_threads=task.options.n_threads)  # fmt: skip
    history = _means_of(found, FASTER, [(name, [*results.values()]) for name in of_eval_set])
    return found, history, scores


def _means_of(
    found: CrossValidation, times: int = 1, also: Sequence[tuple[str, Sequence[TrainingResult]]] = ()
) -> tuple[RoundRecord, ...]:
    """Return the history of a cross-validation: means over the folds, each round so many ``times``.

    ``also`` are sets that only some folds have measured: their means are over queries.
    """
    history: list[RoundRecord] = []
    for i in range(len(found.histories[0])):
        metrics = {HOLDOUT: {measure: found.mean(measure, i + 1) for measure in found.measures}}
        for name, results in also:
            metrics[name] = {measure: _mean_of(name, measure, results, i) for measure in found.measures}
        history += [RoundRecord(len(history) + 1 + more, metrics) for more in range(times)]
    return tuple(history)


def _mean_of(name: str, measure: str, results: Sequence[TrainingResult], i: int) -> float:
    """Return the mean of a measure of the set ``name`` in record ``i``, over queries that count; a loss: over folds."""
    found = []
    for each in results:
        if name in each.by_query:
            queries = each.by_query[name].get(measure)
            n = 1 if queries is None else int(np.count_nonzero(~np.isnan(queries.values)))
            found += [(each.history[i].metrics[name][measure], n)] * bool(n)
    return fsum(value * n for value, n in found) / sum(n for _, n in found) if found else nan


def _judged_net(task: _Task, trees: TrainParameters) -> _Judged:
    options = net_options(trees)
    n_threads, metrics, checkpoints = task.options.n_threads, task.options.eval_metrics, task.checkpoints_of(NET)
    pooled = _net_data(task.pooled, task.pooled_values)

    def trained(data: NetData, stage: str, own: NetOptions, where: str = "") -> NetResult:
        return train_and_keep(
            data, own, None if checkpoints is None else checkpoints.of(stage), eval_metrics=metrics,
            n_threads=n_threads, on_round=task.reporting(NET, own.epochs, where, "epoch"),
            on_message=task.options.on_message,
        )  # fmt: skip

    def again(epochs: int) -> Net:
        return trained(pooled, "final", replace(options, epochs=epochs, early_stopping_epochs=0), ", all rows").net

    if not task.folds:
        assert task.valid is not None  # noqa: S101 - it is what is judged
        data = replace(_net_data(task.data, task.values), valid=_net_rows(task.judged, task.valid),
                       valid_name=task.data.eval_sets[0][0])  # fmt: skip
        result = trained(data, "whole", options)
        same = task.pooled is task.data
        return _Judged(
            NET, result.best_epoch, result.net.predict(task.valid),
            lambda: result.net if same else again(result.best_epoch), result.history,
        )  # fmt: skip
    report = task.reporting(NET, options.epochs, unit="epoch")
    found = cross_validate_net(
        pooled, options, FOLDS, eval_metrics=metrics, n_threads=n_threads, on_round=report, keep_nets=True
    )
    scores = np.empty(task.pooled.train.n_rows)
    for fold in task.folds:
        rows = _rows_of(fold, task)
        scores[rows] = found.nets[fold.number][found.best_round - 1].predict(task.pooled_values[rows])
    epochs = found.best_round
    return _Judged(NET, epochs, scores, lambda: again(epochs), _means_of(found), replace(found, nets={}))


def _rows_of(fold: Fold, task: _Task) -> npt.NDArray[np.bool_]:
    return np.repeat(fold.held_out, np.diff(task.pooled.train.starts))


def _refit_facts(task: _Task, rounds: int) -> dict[str, JSON]:
    """Return what says, in the model, that it was trained on the first eval set, too."""
    if len(task.pooled_values) == len(task.values):
        return {}
    rows = task.pooled.train
    return {REFIT: {"rows": rows.n_rows, "queries": rows.n_queries, "rounds": rounds}}


def _net_rows(rows: RankedRows, values: Values) -> NetRows:
    return NetRows(values, replace(rows, bins=()))


def _net_data(data: TrainingData, values: Values) -> NetData:
    return NetData(
        train=_net_rows(data.train, values),
        feature_names=data.feature_names,
        max_grade=data.max_grade,
        categories=data.categories,
        goals={name: highest for name, highest in data.scale.items() if name},
        info=data.info,
    )
