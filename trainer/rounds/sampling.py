"""Draw the rows, features, weights and noise of a tree: identical for any number of threads and after a resume."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.foundation.kernels.elementary import exp_negative
from rankmill.foundation.kernels.randoms import random_bits, random_keys
from rankmill.trainer import _kernels
from rankmill.trainer.data.layout import ROW
from rankmill.trainer.growing.grower import SplitNoise
from rankmill.trainer.growing.histogram import total_of
from rankmill.trainer.objectives.protocol import QUERIES, Objective
from rankmill.trainer.parameters import BAYESIAN, DOCUMENT, GOSS, MVS, NONE, QUERY, TrainParameters
from rankmill.trainer.team import Team

_QUERIES, _ROWS, _FEATURES, _HELD_OUT, _FOLDS, _BOOTSTRAP, _NOISE, DROPPED, PERMUTED, _ORDER, _CONTROLS, GOALS = range(
    1, 13
)  # disjoint random streams of one seed


@dataclass(frozen=True, slots=True)
class RoundSample:
    """The sample of one tree; None: everything."""

    rows: npt.NDArray[np.int32] | None  # ascending
    features: npt.NDArray[np.uint8] | None  # (n_features,), 1 where drawn
    weights: npt.NDArray[np.float64] | None = None  # (n_rows,) of gradients and hessians; None: all 1


class Sampler:
    """Draws samples of the queries, their documents, and the features.

    The shares are ``query_fraction``, ``row_fraction`` and ``feature_fraction``.

    Draws are without replacement (Friedman 2002), at least one of each.  Queries, documents and features have random
    keys that depend only on seed, round and number; those with the smallest keys are drawn.
    """

    def __init__(self, starts: npt.NDArray[np.int64], n_features: int, parameters: TrainParameters) -> None:
        self._starts, self._n_features, self._parameters = starts, n_features, parameters

    def draw(self, round_number: int) -> RoundSample:
        """Return the sample of round 1, 2, ..; without documents or queries that `BootstrapWeights` draws."""
        p = self._parameters
        rows: npt.NDArray[np.int32] | None = None
        by_mvs = p.bootstrap_by if p.bootstrap == MVS else ""  # drawn by `BootstrapWeights`, which needs gradients
        if p.query_fraction < 1.0 and by_mvs != QUERY:
            queries = self._smallest(_QUERIES, round_number, np.arange(len(self._starts) - 1), p.query_fraction)
            sizes = np.diff(self._starts)
            rows = np.flatnonzero(np.repeat(np.isin(np.arange(len(sizes)), queries), sizes)).astype(ROW)
        if p.row_fraction < 1.0 and by_mvs != DOCUMENT:
            of = np.arange(self._starts[-1], dtype=ROW) if rows is None else rows
            rows = self._smallest(_ROWS, round_number, of, p.row_fraction).astype(ROW)
        features: npt.NDArray[np.uint8] | None = None
        if p.feature_fraction < 1.0:
            features = np.zeros(self._n_features, dtype=np.uint8)
            features[self._smallest(_FEATURES, round_number, np.arange(self._n_features), p.feature_fraction)] = 1
        return RoundSample(rows, features)

    def left_out(self, sample: RoundSample, by_query: bool) -> npt.NDArray[np.bool_]:  # noqa: FBT001 - two kinds of units
        """Return the documents (n_rows,) outside the sample, or the queries (n_queries,) without a document in it."""
        drawn = np.zeros(self._starts[-1], dtype=np.bool_)
        drawn[slice(None) if sample.rows is None else sample.rows] = True
        if not by_query:
            return ~drawn
        before = np.concatenate(([0], np.cumsum(drawn)))
        none: npt.NDArray[np.bool_] = before[self._starts[1:]] == before[self._starts[:-1]]
        return none

    def _smallest(
        self, stream: int, round_number: int, items: npt.NDArray[np.signedinteger], fraction: float
    ) -> npt.NDArray[np.int64]:
        """Return the items with the smallest keys, ascending: ``fraction`` of them, rounded, at least one."""
        many = max(1, round(fraction * len(items)))
        if many >= len(items):
            return items.astype(np.int64)
        keys = random_keys(self._parameters.seed, stream, round_number, items)
        drawn: npt.NDArray[np.int64] = items[places_of_smallest(keys, many)].astype(np.int64)
        return drawn


class BootstrapWeights:
    """Draws weights of queries or documents for each tree, from seed, step and number, and for some from gradients.

    ``bayesian`` (Prokhorenkova et al. 2018, CatBoost): weights ``(-ln u) ** bagging_temperature``, u uniform.

    ``mvs`` (Ibragimov & Gusev 2019): each query or document is drawn with probability ``p = min(1, v / mu)`` and gets
    the weight ``1 / p``, so that sums are unbiased.  mu is such that the p add up to the fraction.  v is ``sqrt(g^2 +
    lambda h^2)``, with squares summed over all outputs and documents.  In the paper lambda is the square of a typical
    leaf value; here it is ``(sum |g| / sum h)^2``, so that the scale of the loss does not matter.

    ``goss`` (Ke et al. 2017, LightGBM): the ``top_rate`` n largest ``|g|`` of n queries or documents have weight 1, and
    of the m others k are drawn, ``other_rate`` n, each with weight ``m / k``.  ``|g|`` is the root of the sum of
    squares over all outputs and documents. LightGBM takes ``|g h|``, draws documents only, and begins after 1 /
    learning_rate rounds.
    """

    def __init__(self, starts: npt.NDArray[np.int64], parameters: TrainParameters, team: Team) -> None:
        self._parameters, self._team = parameters, team
        self._sizes = np.diff(starts) if parameters.bootstrap_by == QUERY else None
        n = len(starts) - 1 if self._sizes is not None else int(starts[-1])
        self._starts = starts if self._sizes is not None else np.arange(n + 1, dtype=np.int64)
        self._units = np.arange(n)

    def drawn(
        self, sample: RoundSample, step: int, g: npt.NDArray[np.float64], h: npt.NDArray[np.float64]
    ) -> RoundSample:
        """Return ``sample`` with the weights of this step, which has the gradients ``g`` and hessians ``h``."""
        p = self._parameters
        if p.bootstrap == NONE or (p.bootstrap == MVS and min(p.query_fraction, p.row_fraction) == 1.0):
            return sample
        keys = random_keys(p.seed, _BOOTSTRAP, step, self._units)
        if p.bootstrap == BAYESIAN:
            weights = np.empty(len(keys), dtype=np.float64)
            _kernels.powers_of_exponentials(keys, p.bagging_temperature, weights)
            return RoundSample(sample.rows, sample.features, self._of_rows(weights))
        if p.bootstrap == GOSS:
            sizes = np.zeros(len(keys), dtype=np.float64)
            for output in np.atleast_2d(g):
                _kernels.add_squares(output, self._starts, 1.0, sizes)
            weights = one_sided_weights(sizes, keys, p.top_rate, p.other_rate)
        else:
            chances = self._chances(np.atleast_2d(g), np.atleast_2d(h))
            drawn = uniforms_of(keys) < chances
            if not drawn.any():
                drawn[np.argmax(chances)] = True
            weights = np.where(drawn, 1.0 / np.where(drawn, chances, 1.0), 0.0)
        of_rows = self._of_rows(weights)
        return replace(sample, rows=np.flatnonzero(of_rows).astype(ROW), weights=of_rows)

    def _of_rows(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values if self._sizes is None else np.repeat(values, self._sizes)

    def _chances(self, g: npt.NDArray[np.float64], h: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the probability of each query or document, from ``g`` and ``h`` (n_outputs, n_rows)."""
        slope, curvature = (sum(total_of(output, self._team) for output in values) for values in (g, h))
        squares = np.zeros(len(self._units), dtype=np.float64)
        for gradients, hessians in zip(g, h, strict=True):
            _kernels.add_squares(gradients, self._starts, 1.0, squares)
            _kernels.add_squares(hessians, self._starts, slope / curvature if curvature > 0.0 else 0.0, squares)
        fraction = self._parameters.row_fraction if self._sizes is None else self._parameters.query_fraction
        return chances_of(np.sqrt(squares), fraction)


def one_sided_weights(
    sizes: npt.NDArray[np.float64], keys: npt.NDArray[np.uint64], top_rate: float, other_rate: float
) -> npt.NDArray[np.float64]:
    """Return weights (n,): 1 for the largest ``sizes``, others / drawn for a sample of the rest, else 0.

    The sample has the smallest ``keys`` (n,).

    At least one is drawn of either kind, as far as there are as many.  Of equal sizes the first are the largest.

    >>> one_sided_weights(np.array([5.0, 0, 0, 9, 1, 0, 0, 0]), np.arange(8, dtype=np.uint64), 0.25, 0.25)
    array([1., 3., 3., 1., 0., 0., 0., 0.])
    """
    n = len(sizes)
    weights = np.zeros(n, dtype=np.float64)
    top = min(n, max(1, round(top_rate * n)))
    weights[places_of_smallest(-sizes, top)] = 1.0
    others = np.flatnonzero(weights == 0.0)
    if len(others):
        many = min(len(others), max(1, round(other_rate * n)))
        weights[others[places_of_smallest(keys[others], many)]] = len(others) / many
    return weights


def places_of_smallest(keys: npt.NDArray[Any], many: int) -> npt.NDArray[np.intp]:
    """Return the places of the ``many`` smallest ``keys``, ascending; of equal keys the first are the smallest."""
    bound = np.partition(keys, many - 1)[many - 1]
    below = np.flatnonzero(keys < bound)
    equal = np.flatnonzero(keys == bound)[: many - len(below)]
    return np.sort(np.concatenate([below, equal]))


def chances_of(sizes: npt.NDArray[np.float64], fraction: float) -> npt.NDArray[np.float64]:
    """Return ``min(1, sizes / mu)``, with mu such that they add up to ``fraction`` of the number of positive sizes.

    >>> chances_of(np.array([0.0, 1.0, 1.0, 2.0, 100.0]), 0.5)
    array([0.  , 0.25, 0.25, 0.5 , 1.  ])
    """
    ascending = np.sort(sizes[sizes > 0.0])
    n = len(ascending)
    if n == 0:
        return np.zeros(len(sizes), dtype=np.float64)
    below = np.cumsum(ascending)  # sum of the j + 1 smallest, if only these have chances below 1
    left = fraction * n - np.arange(n - 1, -1, -1)  # sum of their chances
    j = np.flatnonzero((ascending * left <= below) & (left > 0.0))[-1]
    chances: npt.NDArray[np.float64] = np.minimum(1.0, sizes * left[j] / below[j])
    return chances


def noise_of(parameters: TrainParameters, round_number: int, tree: int, n_rows: int) -> SplitNoise:
    """Return the noise on the splits of tree ``tree`` of this round, and its keys.

    Trees count 1, 2, .. over all rounds.

    It fades as in CatBoost, by ``n / (n + exp(L))`` with n documents and L = completed rounds * learning rate.
    """
    key, tree_key = (
        np.uint64(random_bits(np.uint64(random_bits(np.uint64(parameters.seed), stream)), tree))
        for stream in (_NOISE, _CONTROLS)
    )
    left = n_rows * exp_negative(-(round_number - 1) * parameters.learning_rate)
    return SplitNoise(parameters.random_strength * left / (1.0 + left), key, tree_key)


def held_out_queries(
    names: npt.NDArray[np.int64],
    fraction: float,
    seed: int,
) -> npt.NDArray[np.bool_]:
    """Return which queries (n_queries,) to hold out: ``fraction`` of them, rounded; at least one, but not all.

    ``names`` (n_queries,) are numbers that represent the ids of the queries; only they and the seed matter.
    """
    many = min(max(1, round(fraction * len(names))), max(0, len(names) - 1))
    held_out = np.zeros(len(names), dtype=np.bool_)
    held_out[_by_key(names, seed, _HELD_OUT)[:many]] = True
    return held_out


def fold_of_queries(names: npt.NDArray[np.int64], folds: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the fold 0 .. ``folds`` - 1 of each query (n_queries,): assigned in turn in the order of their keys.

    Fold sizes differ by at most one query.  ``names`` as for :func:`held_out_queries`.
    """
    fold = np.empty(len(names), dtype=np.int64)
    fold[_by_key(names, seed, _FOLDS)] = np.arange(len(names)) % folds
    return fold


def order_of_queries(n_queries: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the queries 0 .. ``n_queries`` - 1 in a random order."""
    return _by_key(np.arange(n_queries), seed, _ORDER).astype(np.int64)


def _by_key(names: npt.NDArray[np.int64], seed: int, stream: int) -> npt.NDArray[np.intp]:
    return np.argsort(random_keys(seed, stream, 0, names), kind="stable")


Floats = npt.NDArray[np.float64]


def uniforms_of(keys: npt.NDArray[np.uint64]) -> Floats:
    """Return a number in (0, 1) for each of the random bits ``keys`` (n,).

    It is :func:`rankmill.foundation.kernels.randoms.uniform`.
    """
    return ((keys >> np.uint64(12)).astype(np.int64).astype(np.float64) + 0.5) * 2.0**-52


def sum_in_order(values: Floats) -> float:
    """Return the sum of ``values`` (n,), added up one by one: np.sum adds in an order that depends on the machine."""
    return float(np.cumsum(values)[-1]) if len(values) else 0.0


class OutOfBag:
    """The out-of-bag improvement: the fall of the loss of documents, or queries, outside the sample of a round.

    The trees of a round have not seen them, but earlier rounds have.  So the estimate is conservative and stops too
    early, as gbm's guide says of its own.

    Raises
    ------
    InvalidParameter
        Every sample holds everything.
    """

    def __init__(
        self, objective: Objective, sampler: Sampler, parameters: TrainParameters, offsets: Floats | None
    ) -> None:
        self._objective, self._sampler, self._offsets = objective, sampler, offsets
        self._by_query = objective.sums_over == QUERIES
        if parameters.query_fraction == 1.0 and (self._by_query or parameters.row_fraction == 1.0):
            needed = "query_fraction" if self._by_query else "row_fraction or query_fraction"
            raise InvalidParameter(
                f"rounds_by oob needs {self._objective.sums_over} outside the sample of a tree; set"
                f" {needed} below 1, such as 0.5"
            )

    def left_out(self, round_number: int) -> npt.NDArray[np.bool_]:
        """Return the documents (n_rows,) or queries (n_queries,) that the trees of this round do not see.

        Raises
        ------
        TrainingDataRejected
            There are so few that the sample holds all of them.
        """
        outside = self._sampler.left_out(self._sampler.draw(round_number), self._by_query)
        if not outside.any():
            raise TrainingDataRejected(
                f"rounds_by oob: the sample holds all {len(outside)} {self._objective.sums_over}; lower its fraction"
            )
        return outside

    def improvement(self, round_number: int, before: Floats, after: Floats) -> float:
        """Return the fall of the mean out-of-bag loss from the scores ``before`` to those ``after``.

        Both losses use the state of the objective after the gradients of the round, with the same draws.
        """
        outside, losses = self.left_out(round_number), self._objective.losses
        fall = losses(self._final(before, round_number - 1)) - losses(self._final(after, round_number))
        return sum_in_order(fall[outside]) / int(np.count_nonzero(outside))

    def _final(self, scores: Floats, n_rounds: int) -> Floats:
        """Return the scores of the forest after ``n_rounds``, with the objective's weights of trees."""
        of_tree, of_start = self._objective.final_weights(n_rounds)
        if of_tree == of_start == 1.0:
            return scores
        fixed = 0.0 if self._offsets is None else self._offsets
        start = self._objective.starting_score
        found: Floats = fixed + of_start * start + of_tree * (scores - fixed - start)
        return found


class OutOfBagMean(OutOfBag):
    """The out-of-bag estimate of a random forest.

    Every document, or query, has the mean of the trees that did not see it.

    The improvement of a round is the fall of the mean loss of all, so that the improvements add up to the fall from the
    start.  What every tree has seen so far has the starting score.
    """

    def __init__(
        self, objective: Objective, sampler: Sampler, parameters: TrainParameters, starts: npt.NDArray[np.int64]
    ) -> None:
        super().__init__(objective, sampler, parameters, None)
        self._sizes = np.diff(starts)
        self._sums: Floats = np.zeros(0)
        self._trees = np.zeros(int(starts[-1]), dtype=np.int64)  # that did not see the document
        self._loss = 0.0

    def improvement(self, round_number: int, before: Floats, after: Floats) -> float:
        """Return the decrease of the loss.

        ``before`` are the starting scores, ``after`` those with the trees of this round.
        """
        if round_number == 1:
            self._sums, self._loss = np.zeros(before.shape), self._mean_loss(before)
        outside = self.left_out(round_number)
        rows = np.repeat(outside, self._sizes) if self._by_query else outside
        self._sums += np.where(rows, after - before, 0.0)
        self._trees += rows
        last, self._loss = self._loss, self._mean_loss(before + self._sums / np.maximum(1, self._trees))
        return last - self._loss

    def _mean_loss(self, scores: Floats) -> float:
        losses = self._objective.losses(scores)
        return sum_in_order(losses) / max(1, len(losses))
