"""Select features by the loss of metric.

Train, measure what the metric loses without each feature, drop the least useful, and train again.

The loss of a feature is how much worse the stop metric of the valid split gets if the values of the feature are
permuted among the documents of each query.  (Breiman 2001; within queries, as only those are compared.)  It is the mean
over ``repeats`` permutations, drawn from the seed, the feature and the row alone.  It is 0 for a feature that no tree
uses.  CatBoost's ``select_features`` with ``RecursiveByLossFunctionChange`` works alike, but estimates the loss by SHAP
values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.foundation.kernels.randoms import random_keys
from rankmill.foundation.records import JSON, as_json, not_in_json
from rankmill.foundation.terminal import text_table
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.scorer.forest.forest import Forest, feature_importance
from rankmill.scorer.forest.links import apply_link
from rankmill.trainer import _kernels
from rankmill.trainer.candidates.train_on_dataset import data_of
from rankmill.trainer.data.measured_queries import MeasuredQueries, check_decides
from rankmill.trainer.data.rows import RankedRows, TrainingData
from rankmill.trainer.data.target_encoding import with_encoded_columns
from rankmill.trainer.data.training_rows import rows_learnt_from
from rankmill.trainer.growing.tree import Tree
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.options import SelectOptions
from rankmill.trainer.parameters import NONE, TrainParameters
from rankmill.trainer.presets import choices_line, shape_of_dataset, shape_of_rows, with_preset
from rankmill.trainer.rounds.boosting import boost
from rankmill.trainer.rounds.checkpoints import Checkpoints, training_key
from rankmill.trainer.rounds.early_stopping import DEVIANCE, Measure, stop_measure
from rankmill.trainer.rounds.resuming import trees_of
from rankmill.trainer.rounds.sampling import PERMUTED
from rankmill.trainer.team import workers_for
from rankmill.trainer.training_options import DEFAULT_OPTIONS, TrainingOptions

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionStep:
    """A training on some features: its metric on the valid split, and what the metric loses without each of them."""

    features: tuple[str, ...]  # in the order of the dataset
    metric: float
    rounds: int
    losses: Mapping[str, float]  # by feature; empty in the last step
    dropped: tuple[str, ...]  # before the next step, the least useful first
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSelection:
    """The steps of a selection, and the recommended one.

    It has the fewest features with a metric within ``tolerance`` of the best.
    """

    measure: str
    higher_is_better: bool
    tolerance: float
    steps: tuple[SelectionStep, ...]
    recommended: int  # number of the step, from 0
    features: tuple[str, ...]  # of the recommended step
    forests: tuple[Forest, ...] = not_in_json()

    @property
    def forest(self) -> Forest:
        """The model of the recommended step."""
        return self.forests[self.recommended]

    def to_dict(self) -> dict[str, JSON]:
        """Return plain values."""
        found: dict[str, JSON] = as_json(self)
        return found

    def render(self) -> str:
        """Return a table for people, and the recommended features."""
        rows = [
            [
                str(len(step.features)),
                f"{step.metric:.4f}",
                f"{step.rounds:,}",
                _some(step.dropped),
                "recommended" if number == self.recommended else "",
            ]
            for number, step in enumerate(self.steps)
        ]
        table = text_table(["features", f"valid {self.measure}", "rounds", "dropped next", ""], rows)
        return f"{table}\n{len(self.features)} features: {', '.join(self.features)}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def select_features(
    dataset: Dataset,
    parameters: TrainParameters | None = None,
    rules: SelectOptions | None = None,
    options: TrainingOptions = DEFAULT_OPTIONS,
) -> FeatureSelection:
    """Select features of a binned dataset, by trainings on its train split and metrics on its valid split.

    The same for any threads.  With ``options.checkpoint`` a killed selection resumes from there.  The valid split
    chooses rounds and features, so its metrics look better than they are: judge on another one. For errors see
    :func:`select_features_of_rows`.

    Raises
    ------
    TrainingDataRejected
        The train or the valid split is empty.
    """
    given = parameters or TrainParameters()
    parameters = _without_refit(with_preset(given, shape_of_dataset(dataset)))
    if options.resume is not None or options.base_model is not None:
        raise InvalidParameter("features are selected by trainings from the start; leave resume and base_model out")
    data = data_of(dataset, parameters, options)
    if not data.eval_sets:
        raise TrainingDataRejected(f"{dataset.path}: selecting features needs a valid split; ingest one")
    if options.on_message is not None and (choices := choices_line(given, parameters)):
        options.on_message(choices)
    if options.checkpoint is None:
        return select_features_of_rows(data, parameters, rules, options)
    key = training_key(dataset, parameters, (), None)
    checkpoints = Checkpoints(options.checkpoint, key, options.checkpoint_every, options.on_message)
    found = select_features_of_rows(data, parameters, rules, options, checkpoints)
    checkpoints.clear()
    return found


def select_features_of_rows(
    data: TrainingData,
    parameters: TrainParameters,
    rules: SelectOptions | None = None,
    options: TrainingOptions = DEFAULT_OPTIONS,
    checkpoints: Checkpoints | None = None,
) -> FeatureSelection:
    """Select features of rows in memory; the first eval set measures.

    Parameters
    ----------
    data
        With an eval set.
    parameters
        Of every training; ``refit`` and ``rounds_by`` are not used.
    rules
        How many features each step drops, and the tolerance.
    options
        ``on_message`` gets a line after every step.
    checkpoints
        Where to write the training of each step, and where a killed one resumes.

    Raises
    ------
    InvalidParameter
        There is no eval set, or ``boost`` refuses the parameters.
    TrainingDataRejected
        ``boost`` rejects the rows.
    """
    rules = rules or SelectOptions()
    parameters = _without_refit(with_preset(parameters, shape_of_rows(data)))
    if not data.eval_sets:
        raise InvalidParameter("selecting features needs an eval set to measure on")
    data = _read(data)
    measure = stop_measure(parameters, graded=data.train.graded)
    check_decides(data.eval_sets[0][1], measure, parameters, data.scale, data.eval_sets[0][0])
    steps: list[SelectionStep] = []
    forests: list[Forest] = []
    kept, n_threads = np.arange(len(data.feature_names)), workers_for(options.n_threads)
    while True:
        part = data if len(kept) == len(data.feature_names) else with_features(data, kept)
        own = parameters.for_features(part.feature_names)
        names = list(part.feature_names)
        checkpoint = None if checkpoints is None else checkpoints.of(f"{len(names)}-features")
        result = boost(part, own, replace(options, on_round=None), checkpoint=checkpoint)
        losses = None
        if len(kept) > rules.least_features:
            losses = permutation_losses(result.forest, part, own, kept, rules.repeats, n_threads)
        away = [] if losses is None else least_useful(losses, feature_importance(result.forest), rules)
        steps.append(
            SelectionStep(
                features=tuple(names),
                metric=result.history[result.best_round - 1].metrics[data.eval_sets[0][0]][str(measure)],
                rounds=result.best_round,
                losses={} if losses is None else dict(zip(names, losses.tolist(), strict=True)),
                dropped=tuple(names[f] for f in away),
                sha256=result.forest.sha256,
            )
        )
        forests.append(result.forest)
        if options.on_message is not None:
            options.on_message(f"{len(names)} features: {measure} {steps[-1].metric:.4f}; dropping {len(away)}")
        if not away:
            break
        kept = np.delete(kept, away)
    recommended = smallest_within(steps, rules.tolerance, higher_is_better=measure.higher_is_better)
    return FeatureSelection(
        measure=str(measure), higher_is_better=measure.higher_is_better, tolerance=rules.tolerance, steps=tuple(steps),
        recommended=recommended, features=steps[recommended].features, forests=tuple(forests),
    )  # fmt: skip


def _without_refit(parameters: TrainParameters) -> TrainParameters:
    return replace(parameters, refit=NONE, rounds_by="valid", keep_rounds="")


def least_useful(losses: Floats, importance: Floats, rules: SelectOptions) -> list[int]:
    """Return the features to drop.

    These are all that no tree uses, then those with the lowest losses; among equal ones, the lowest importance.

    They are ``drop_fraction`` of all, rounded down but at least one, and more if more are unused; ``least_features``
    stay.

    >>> least_useful(np.array([0.1, 0.0, -0.2, 0.0]), np.array([0.5, 0.3, 0.2, 0.0]), SelectOptions(drop_fraction=0.5))
    [3, 2]
    """
    n = len(losses)
    order = sorted(range(n), key=lambda f: (importance[f] > 0.0, losses[f], importance[f], -f))
    many = max(1, int(rules.drop_fraction * n), int((importance == 0.0).sum()))
    return order[: min(many, n - rules.least_features)]


def smallest_within(steps: Sequence[SelectionStep], tolerance: float, *, higher_is_better: bool) -> int:
    """Return the last step whose metric is at most ``tolerance`` worse than the best.

    Later steps have fewer features.  NaN is worst.
    """
    sign = 1.0 if higher_is_better else -1.0
    values = [sign * step.metric for step in steps]
    best = max((value for value in values if value == value), default=float("nan"))  # noqa: PLR0124 - not NaN
    within = [number for number, value in enumerate(values) if value >= best - tolerance]
    return within[-1] if within else 0


def _read(data: TrainingData) -> TrainingData:
    """Return the same with bins that can be read again and again."""
    eval_sets = [(name, replace(rows, bins=[rows.row_major(data.n_bins)])) for name, rows in data.eval_sets]
    return replace(data.blocked(), eval_sets=eval_sets)


def with_features(data: TrainingData, kept: npt.NDArray[np.int64]) -> TrainingData:
    """Return ``data``, whose bins can be read again, with the features ``kept`` alone: their numbers, ascending."""
    n_bins = data.n_bins
    names = tuple(data.feature_names[f] for f in kept.tolist())
    every = np.arange(data.train.n_rows)
    train = replace(data.train, bins=[batch[:, kept] for batch in data.train.blocked(n_bins).batches(every)])
    cut = replace(
        data,
        train=train,
        eval_sets=[
            (name, replace(rows, bins=[np.ascontiguousarray(rows.row_major(n_bins)[:, kept])]))
            for name, rows in data.eval_sets
        ],
        edges=[data.edges[f] for f in kept.tolist()],
        feature_names=names,
        categories={name: texts for name, texts in data.categories.items() if name in names},
    )
    return cut.blocked()


def permutation_losses(
    forest: Forest,
    data: TrainingData,
    parameters: TrainParameters,
    numbers: npt.NDArray[np.int64],
    repeats: int,
    n_threads: int = 1,
) -> Floats:
    """Return how much worse the stop metric of the first eval set gets per permuted feature, (n_features,).

    Features are permuted within queries.

    ``forest`` was trained on ``data``, whose eval set can be read again.  ``numbers`` (n_features,) stand for the
    features in the random draws. Each thread has a copy of the bins.  Trees are added in their order, as in prediction,
    so that documents of one score tie here, too.
    """
    coded, encoded = with_encoded_columns(data, parameters)
    rows = coded.eval_sets[0][1]
    bins = rows.by_feature(coded.n_bins)
    grown = trees_of(forest, coded.edges, encoded)
    trees = [tree.times(weight) for tree, weight in zip(grown, forest.tree_weights, strict=True)]
    n_features = len(data.feature_names)
    columns = [
        [f, *(n_features + i for i, column in enumerate(encoded) if column.source == f)] for f in range(n_features)
    ]
    measure = stop_measure(parameters, graded=data.train.graded)
    value_of = _measured_by(measure, rows, parameters, data.scale, forest.link)
    of_query = np.repeat(np.arange(rows.n_queries), np.diff(rows.starts))

    def outputs_of(binned: npt.NDArray[np.uint8]) -> Floats:
        outputs = np.full((forest.n_outputs, rows.n_rows), forest.base_score)
        if rows.offsets is not None:
            outputs += rows.offsets
        for number, tree in enumerate(trees):
            _add(tree, binned, outputs[number % forest.n_outputs])
        return outputs

    def permuted(f: int) -> list[Floats]:
        binned, found = bins.copy(), []
        for repeat in range(repeats):
            keys = random_keys(parameters.seed, PERMUTED, int(numbers[f]) * repeats + repeat, np.arange(rows.n_rows))
            order = np.lexsort((keys, of_query))
            for column in columns[f]:
                binned[column] = bins[column, order]
            found.append(outputs_of(binned))
        return found

    used, losses = sorted(forest.used_features), np.zeros(n_features)
    base, sign = value_of(outputs_of(bins)), 1.0 if measure.higher_is_better else -1.0
    with ThreadPoolExecutor(n_threads) as pool:
        for first in range(0, len(used), n_threads):  # a few at a time: each holds scores of its own
            some = used[first : first + n_threads]
            for f, found in zip(some, pool.map(permuted, some), strict=True):
                losses[f] = sign * (base - sum(map(value_of, found)) / repeats)
    return losses


def _measured_by(
    measure: Measure, rows: RankedRows, parameters: TrainParameters, scale: Mapping[str, int], link: str
) -> Callable[[Floats], float]:
    """Return a function from outputs (n_outputs, n_rows) to the mean of the measure."""
    if measure == DEVIANCE:
        loss = objective_of(rows_learnt_from(rows, parameters), parameters, learns=False)
        return lambda outputs: loss.deviance(outputs[0] if len(outputs) == 1 else outputs)
    queries = MeasuredQueries(rows, [measure], parameters, scale)
    return lambda outputs: queries.means(queries.evaluate(apply_link(link, outputs)))[str(measure)]


def _add(tree: Tree, bins: npt.NDArray[np.uint8], scores: Floats) -> None:
    _kernels.add_tree(
        bins, tree.feature, tree.threshold, tree.missing_left, tree.sets, tree.left, tree.right, tree.value, 0,
        len(scores), scores,
    )  # fmt: skip
