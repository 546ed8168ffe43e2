"""Find the weights of a blend of models on queries that none of them was trained on.

With two models the best weight comes from an exact sweep (Burges 2010, section 7.1; `rankmill.scorer.inspect.combine`).
With more, the best of them alone is mixed with each of the others in turn, as long as that improves the metric.

Scores of different models have different scales.  Weights are therefore shares of scores that are divided by their
spread, the standard deviation around the mean of the query.  This changes the units, not the mixtures that can be
found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import CandidatesRejected, InputError, InvalidParameter
from rankmill.foundation.options import spelled
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.goals import check_goal
from rankmill.scorer.evaluate.train_test_overlap import TrainedModel, scope_of, splits_of_blends
from rankmill.scorer.inspect.combine import combine
from rankmill.scorer.metrics import Metric, Policy, parse_metric
from rankmill.scorer.metrics.conventions import OURS, named_convention
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.scorer.models.loading import Blend, predictor_of
from rankmill.scorer.models.model import Model, check_kinds
from rankmill.scorer.scaling import without_exponent
from rankmill.trainer.candidates.combined_forests import check_read_alike, facts_alike
from rankmill.trainer.options import BlendOptions

MOST_PASSES = 10  # over all models
MOST_PAIRS = 1 << 23  # of documents, in the queries on which a weight is searched
_EQUAL = 1e-12  # share of the largest score; a smaller spread is rounding
_GAIN = 1e-12  # of the metric; less is rounding

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWeights:
    """The weights of the models of a blend, and what the metric says of them.

    ``shares`` (n,) are the weights of the scores after each was divided by its ``spreads``, and sum to 1
    if they were found.
    """

    shares: tuple[float, ...]
    spreads: tuple[float, ...]
    alone: tuple[float, ...]
    """The metric of each model alone."""
    together: float

    @property
    def weights(self) -> list[float]:
        """What the scores of each model are multiplied by."""
        return [share / spread for share, spread in zip(self.shares, self.spreads, strict=True)]


def blended(
    models: Sequence[tuple[Model, TrainedModel]], dataset: Dataset, options: BlendOptions, n_threads: int = 1
) -> tuple[Blend, PartWeights]:
    """Return the blend of ``models``, and how it does on the split that ``options`` name.

    A model that is itself a blend counts as one, with one share.  The blend holds its parts.

    Raises
    ------
    InputError
        The split does not exist or is empty, or a model was trained on it.
    InvalidParameter
        There are fewer than two models, or other weights than models, or the models read data differently.
    rankmill.foundation.errors.CandidatesRejected
        The dataset lacks a feature.
    """
    if len(models) < 2:
        raise InvalidParameter(f"expected two models or more to blend, found {len(models)}")
    if options.weights and len(options.weights) != len(models):
        raise InvalidParameter(
            f"{spelled('weights')}: expected {len(models)}, one for each model, found {len(options.weights)}"
        )
    total = sum(map(abs, options.weights))
    if options.weights and not 0.0 < total < inf:  # NaN, too
        raise InvalidParameter(
            f"{spelled('weights')} must be finite numbers, not all 0, got "
            f"{', '.join(f'{w:g}' for w in options.weights)}"
        )
    parts = [model for model, _ in models]
    check_read_alike(parts)
    check_unseen([known for _, known in models], dataset, options.split)
    metric = parse_metric(options.metric)
    check_goal(metric, metric.goal, dataset.goals, str(dataset.path))
    highest = dataset.goals[metric.goal] if metric.goal else dataset.max_grade
    policy = named_convention(OURS).but(max_grade=max(1, highest)).policy_for(metric)
    grades = dataset.rows(options.split, (metric.goal or "grade",)).column(0).to_numpy().astype(np.int32)
    scores = scores_on(dataset, options.split, parts, n_threads)
    starts = dataset.queries(options.split).starts
    shares = [w / total for w in options.weights]
    found = weights_of(scores, grades, starts, metric, policy, shares)
    try:
        blend = Blend(
            parts=tuple(parts),
            weights=np.array(found.weights),
            parameters={"metric": str(metric), "split": options.split},
            info={**facts_alike(parts), **splits_of_blends(parts)},
        )
    except ValueError as error:
        raise InvalidParameter(f"the models do not go together: {error}") from error
    return blend, found


def check_unseen(models: Sequence[TrainedModel], dataset: Dataset, split: str) -> None:
    """Raise InputError if the split does not exist, is empty, or one of ``models`` was trained on it."""
    if seen := scope_of(dataset, split, models).seen_in_training:
        raise InputError(
            f"{' and '.join(seen)} learnt from the {split} split, so scores there look better than they are; "
            f"blend on another split or dataset, or train with {spelled('refit')} none"
        )


def weights_of(
    scores: Sequence[Scores],
    grades: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    metric: Metric,
    policy: Policy,
    shares: Sequence[float] = (),
) -> PartWeights:
    """Find the weights of models with the best ``metric``, or measure the weights ``shares``.

    Each model has ``scores`` (n,).

    The metric on these queries is at least that of the best model alone.  Errors are those of
    `rankmill.scorer.inspect.combine.combine`.
    """
    spreads = [spread_of(each, starts) for each in scores]
    scaled = [each / spread for each, spread in zip(scores, spreads, strict=True)]
    queries = PreparedQueries(grades, starts, policy)

    def measured(weights: npt.NDArray[np.float64]) -> float:
        return queries.means([metric], _mixed(scaled, weights))[metric]

    alone = [measured(each) for each in np.eye(len(scores))]
    if shares:
        weights = np.asarray(shares, dtype=np.float64)
        together = measured(weights)
    else:
        weights, together = _swept(scaled, grades, starts, metric, policy, alone, measured)
    return PartWeights(shares=tuple(weights.tolist()), spreads=tuple(spreads), alone=tuple(alone), together=together)


def _swept(
    scaled: Sequence[Scores],
    grades: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    metric: Metric,
    policy: Policy,
    alone: Sequence[float],
    measured: Callable[[npt.NDArray[np.float64]], float],
) -> tuple[npt.NDArray[np.float64], float]:
    """Mix the best model with each of the others in turn, as long as that helps; return the weights and the metric."""
    rows, few = _some_queries(starts)
    alone_of = np.eye(len(scaled))
    best = int(np.argmax(alone))
    weights, together = alone_of[best], alone[best]
    others = sorted(set(range(len(scaled))) - {best}, key=lambda k: -alone[k])
    for number in range(MOST_PASSES if len(others) > 1 else 1):
        before = together
        for k in [*others, best] if number else others:
            step = combine(_mixed(scaled, weights)[rows], scaled[k][rows], grades[rows], few, metric, policy)
            tried = (1.0 - step.weight) * weights + step.weight * alone_of[k]
            value = measured(tried)
            if value > together + _GAIN:
                weights, together = tried, value
        if together <= before:
            break
    return weights, together


def _some_queries(starts: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the rows of evenly chosen queries, and their offsets.

    They have at most about ``MOST_PAIRS`` pairs of documents.

    Queries are in the order of the hashes of their ids, so every m-th is a sample that says nothing about them.
    """
    sizes = np.diff(starts)
    pairs = int((sizes * (sizes - 1) // 2).sum())
    chosen = np.arange(0, len(sizes), max(1, -(-pairs // MOST_PAIRS)))
    rows = np.concatenate([np.arange(starts[q], starts[q + 1]) for q in chosen.tolist()] or [np.empty(0, np.int64)])
    return rows, np.concatenate([[0], np.cumsum(sizes[chosen])])


def scores_on(dataset: Dataset, split: str, models: Sequence[Model], n_threads: int = 1) -> list[Scores]:
    """Return the scores (n,) of each of ``models`` on ``split``, in one pass over the features that they use.

    Raises
    ------
    CandidatesRejected
        The dataset lacks a feature, or has it as a number where a model has it as categorical, or the reverse.
    """
    predictors = [predictor_of(model) for model in models]
    used = {name for predictor in predictors for name in predictor.feature_names}
    names = [name for name in dataset.feature_names if name in used] or [*dataset.feature_names[:1]]
    if lacking := sorted(used - set(names)):
        raise CandidatesRejected(f"{dataset.path}: the models use {', '.join(lacking[:5])}, which the dataset lacks")
    for model in models:
        check_kinds(model, dataset.feature_names, dataset.manifest.categorical, CandidatesRejected)
    columns = [[names.index(name) for name in predictor.feature_names] for predictor in predictors]
    found: list[list[Scores]] = [[] for _ in models]
    for batch in dataset.feature_batches(split, names):
        for predictor, where, scores in zip(predictors, columns, found, strict=True):
            scores.append(predictor.scores(batch, columns=where, n_threads=n_threads))
    return [np.concatenate(scores) for scores in found]


def _mixed(scaled: Sequence[Scores], weights: npt.NDArray[np.float64]) -> Scores:
    total = np.zeros(len(scaled[0]))
    for weight, scores in zip(weights.tolist(), scaled, strict=True):
        total += weight * scores
    return total


def spread_of(scores: Scores, starts: npt.NDArray[np.int64]) -> float:
    """Return the standard deviation of scores around the mean of their query; 1 if they are all equal there."""
    sizes = np.diff(starts)
    filled = sizes > 0
    small, exponent = without_exponent(scores)
    means = np.add.reduceat(small, starts[:-1][filled]) / sizes[filled] if filled.any() else np.empty(0)
    spread = float(np.sqrt(np.mean((small - np.repeat(means, sizes[filled])) ** 2))) if len(scores) else 0.0
    return float(np.ldexp(spread, exponent)) if spread > _EQUAL * float(np.abs(small).max(initial=0.0)) else 1.0
