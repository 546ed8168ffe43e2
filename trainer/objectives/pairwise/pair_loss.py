"""Losses that are sums over pairs of documents of one query: what RankNet, RankBoost and LambdaMART share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import frexp, fsum
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.foundation.kernels.randoms import random_bits
from rankmill.foundation.options import option, options
from rankmill.scorer.metrics import swaps
from rankmill.scorer.metrics.arrangement import count_pairs, grade_levels, queries_of
from rankmill.scorer.metrics.swaps import SwapDeltas
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.pairwise import _kernels
from rankmill.trainer.objectives.pairwise._kernels import NONE, PairRules, PairTerms, PairWeights, SortedRows
from rankmill.trainer.objectives.pairwise.preferences import merged_pairs
from rankmill.trainer.objectives.protocol import (
    ALL_CRITERIA,
    ONE_GRADE,
    QUERIES,
    Learns,
    Objective,
    PairHessians,
    Splits,
)
from rankmill.trainer.objectives.query_shares import QueryShares
from rankmill.trainer.objectives.weights import relative_weights
from rankmill.trainer.team import Team

Floats = npt.NDArray[np.float64]
Order = npt.NDArray[np.uint32]
Cells = npt.NDArray[np.int64]
Prepare = Callable[[Order, int, int], None]
Fill = Callable[[Order, int, int, int, Cells, Floats], None]

_LEAST_WORK = 60_000  # minimum pairs per worker: some 200 us
_MOST_CELLS = 1 << 20  # of a table of weights, 8 MB per worker; several queries at a time only if they fit
_SHAPES = {swaps.BY_RANK: _kernels.BY_RANK, swaps.BY_PLACE: _kernels.BY_PLACE, swaps.TABLE: _kernels.TABLE}


PER_PAIR = "query"


@options
class PairOptions:
    """Options of losses over pairs."""

    normalise: str = option(
        default="none",
        choices=("none", PER_PAIR),
        help="query: divide the loss of each query by its number of pairs (v_i in gbm).",
    )
    truncation: int = option(
        default=0,
        least=0,
        most=2**31,
        help="Use a pair only if one of its documents is in the top k by score; this is k. 0: use all pairs.",
    )
    pair_fraction: float = option(default=1.0, above=0, most=1, help="Share of the pairs to sample in each round.")


def _nothing(*_: object) -> None:
    """Prepare nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighing:
    """The weights of the pairs of a query besides the user's weights; see ``_kernels.PairWeights`` for the shapes."""

    shape: int
    values: Floats  # (n_rows,)
    scales: Floats  # (n_queries,)
    depth: int = 2**31  # pairs need a document above this rank
    upper: Floats = field(default_factory=lambda: np.empty(0))
    lower: Floats = field(default_factory=lambda: np.empty(0))
    lift: Floats = field(default_factory=lambda: np.empty(0))
    prepare: Prepare = _nothing  # called with the order of some queries before they are weighed
    fill: Fill = _nothing  # writes a table of weights

    @classmethod
    def of_swaps(cls, deltas: SwapDeltas) -> Weighing:
        """Weight pairs by the change of a metric when they swap."""
        return cls(
            shape=_SHAPES[deltas.shape],
            values=deltas.values,
            scales=deltas.scales,
            depth=deltas.depth,
            upper=deltas.upper,
            lower=deltas.lower,
            lift=deltas.lift,
            prepare=deltas.prepare,
            fill=deltas.fill,
        )

    @classmethod
    def even(cls, rows: RankedRows) -> Weighing:
        """Give all pairs the weight 1."""
        longest = int(np.diff(rows.starts).max(initial=0)) + _kernels.LANES
        return cls(
            shape=_kernels.EVEN,
            values=rows.grades.astype(np.float64),
            scales=np.ones(rows.n_queries),
            upper=np.ones(longest),
            lower=np.zeros(longest),
        )


class PairObjective(Objective):
    """A loss over pairs: those of documents of different grades, or ``rows.pairs`` if given.

    The weight of a pair is the product of the weights of its documents and of its query, and of its own weight if it is
    given.  Each of the three is relative to its mean, so that only ratios matter, and gradients of a query still sum to
    0.  Equal scores are ranked by a jitter keyed by (seed, step, row), in :meth:`losses` by (seed, 0, row).  A given
       pair has its own target probability. Pairs of the same two documents, even contradicting ones, are merged into
       one with the sum of the weights and the mean of the targets. That is the same loss up to a constant.
    """

    sums_over: ClassVar[str] = QUERIES
    splits: ClassVar[Splits] = ALL_CRITERIA
    learns: ClassVar[Learns] = Learns(pairs=True)

    def start(self) -> float:
        """Return 0: only differences of scores matter to this loss."""
        return 0.0

    def _set_up(self, rows: RankedRows, weighing: Weighing, rules: PairRules) -> None:
        """Prepare the rows; called by the constructors.  TrainingDataRejected if no pair has a weight above 0."""
        grades, starts = rows.grades, rows.starts
        sizes = np.diff(starts)
        self._grades, self._starts = grades, starts
        documents = relative_weights(rows.weights, rows.n_rows)
        queries = relative_weights(rows.query_weights, rows.n_queries)
        self._pairs = merged_pairs(rows.pairs, starts)
        if rows.pairs is not None:
            n_pairs = np.diff(self._pairs.starts)
        else:
            n_pairs = sizes * (sizes - 1) // 2 if rules.ties else count_pairs(grade_levels(grades, starts), starts)
        if not n_pairs.any():
            raise TrainingDataRejected(
                ONE_GRADE if rows.pairs is None else "there is no pair, so there is nothing to learn"
            )
        # a query without pairs of positive weight gets scale 0, so the kernel skips it without sorting
        scales = np.where((n_pairs > 0) & self._weighed(weighing), weighing.scales, 0.0)
        if not scales.any():
            raise TrainingDataRejected(
                "swapping the documents of a pair never changes the metric, so there is nothing to learn; check the "
                "grades, use another metric, or for pairs without grades objective ranknet"
            )
        if rules.per_pair:
            scales /= np.maximum(n_pairs, 1)
        self._weighing = weighing
        self._weights = PairWeights(
            weighing.shape, weighing.values, scales, weighing.upper, weighing.lower, weighing.lift, documents, queries
        )
        self._longest = int(sizes.max(initial=0))
        self._rules = rules._replace(truncation=min(rules.truncation, weighing.depth))
        top = np.minimum(self._rules.truncation, sizes)
        seen = top * sizes - top * (top + 1) // 2  # pairs with a document above the truncation
        self._room = np.concatenate(([0], np.cumsum(np.minimum(n_pairs, seen))))
        work = np.where(scales != 0.0, (n_pairs if rows.pairs is not None else sizes * top) + 8 * sizes, sizes)
        self._shares = QueryShares(work, _LEAST_WORK)
        self._cells = np.concatenate(([0], np.cumsum(np.where(scales != 0.0, top * sizes, 0))))
        self._quick = (
            rows.pairs is None
            and rules.loss == _kernels.LOGISTIC
            and not rules.ties
            and rules.fraction >= 1.0
            and weighing.shape != _kernels.TABLE
        )
        # kept from round to round: it is nearly sorted for the next one
        self._order = np.arange(rows.n_rows, dtype=np.uint32)
        self._factors = np.zeros(rows.n_queries)
        self._workspaces: dict[int, tuple[Order, Floats]] = {}
        self._found: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], Floats] | None = None

    def _weighed(self, weighing: Weighing) -> npt.NDArray[np.bool_]:
        """Return a mask (n_queries,) of the queries with pairs of positive weight: documents with different values."""
        n_queries = len(self._starts) - 1
        if weighing.shape == _kernels.EVEN:
            return np.ones(n_queries, dtype=np.bool_)
        if len(self._pairs.starts):
            of_query = np.repeat(np.arange(n_queries), np.diff(self._pairs.starts))
            differ = weighing.values[self._pairs.above] != weighing.values[self._pairs.below]
        else:
            of_query = queries_of(self._starts)
            differ = weighing.values != weighing.values[self._starts[of_query]]
        return np.bincount(of_query[differ], minlength=n_queries) > 0

    def gradients(self, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> None:
        """Write g and h, both (n_rows,).

        Queries are divided so that every worker has about the same number of pairs.
        """
        key = self._key(step)

        def quick(first: int, last: int, worker: int) -> None:
            ranking = self._ranked(key, scores, first, last, worker)
            _kernels.lambdas(
                scores, self._starts, first, last, self._weights, self._rules, ranking, g, h, self._factors
            )

        def one_by_one(first: int, last: int, worker: int) -> None:
            self._terms(PairTerms(_kernels.GRADIENTS, g, h), key, scores, first, last, worker)

        self._shares.each(team, quick if self._quick else one_by_one)

    def losses(self, scores: Floats) -> Floats:
        """Return the loss of each query, (n_queries,), all weights included; the order is that of these scores."""
        losses = np.zeros(len(self._starts) - 1)
        self._terms(PairTerms(_kernels.LOSSES, losses=losses), self._key(0), scores, 0, len(losses), 0)
        return losses

    def shares(self, step: int, scores: Floats, shares: Floats, team: Team) -> None:
        """Write the loss of each document's pairs, (n_rows,).

        Pairs and order are those of the gradients of this step.

        Each pair counts for both of its documents.
        """
        key, terms = self._key(step), PairTerms(_kernels.SHARES, shares)
        self._shares.each(team, lambda first, last, worker: self._terms(terms, key, scores, first, last, worker))

    def weigh(self, documents: Floats) -> None:
        """Replace the weights of the documents by these, (n_rows,), as they are."""
        self._weights = self._weights._replace(documents=documents)

    def deviance(self, scores: Floats) -> float:
        """Return the weighted mean loss of the queries that have pairs."""
        counted, weights = self._weights.scales != 0.0, self._weights.queries
        total = fsum(weights[counted].tolist()) if len(weights) else float(counted.sum())
        return fsum(self.losses(scores).tolist()) / total if total > 0.0 else 0.0

    def pair_hessians(self, step: int, scores: Floats, least: float, team: Team) -> PairHessians:
        """Return the pairs of the gradients of this step, query by query; the next call overwrites their arrays.

        Pairs whose hessian is below ``least`` are sampled, see :class:`Objective`.
        """
        room = int(self._room[-1]) + team.size  # each worker may write one cell more than it has pairs
        if self._found is None or len(self._found[0]) < room:
            self._found = np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room)
        key, out = self._key(step), self._found
        terms = PairTerms(_kernels.HESSIANS, NONE, NONE, NONE, least, *out)
        ends: dict[int, tuple[int, int]] = {}

        def listed(first: int, last: int, worker: int) -> None:
            begin = int(self._room[first]) + worker
            if self._quick:
                ranking = self._ranked(key, scores, first, last, worker)
                end = _kernels.lambda_hessians(
                    terms, scores, self._starts, first, last, self._weights, self._rules, ranking, self._factors, begin
                )
            else:
                end = self._terms(terms, key, scores, first, last, worker, begin)
            ends[worker] = (begin, end)

        self._shares.each(team, listed)
        filled = 0
        for begin, end in sorted(ends.values()):
            if begin != filled:
                for array in out:
                    array[filled : filled + end - begin] = array[begin:end]
            filled += end - begin
        return PairHessians(out[0][:filled], out[1][:filled], out[2][:filled])

    def hessian_inside(
        self, step: int, scores: Floats, leaf_of_row: npt.NDArray[np.int32], n_leaves: int, whole: float, team: Team
    ) -> Floats:
        """Return the hessian (n_leaves,) of the pairs inside each leaf; no pair is listed if weights are by place.

        Sums are of integers, 2^61 for all pairs, so that they do not depend on the split of work.
        """
        if not self._quick:
            return super().hessian_inside(step, scores, leaf_of_row, n_leaves, whole, team)
        if whole <= 0.0:
            return np.zeros(n_leaves)
        scale = float(2.0 ** (61 - max(-900, frexp(whole)[1])))
        key, sums = self._key(step), np.zeros((team.size, n_leaves), dtype=np.int64)

        def share(first: int, last: int, worker: int) -> None:
            ranking = self._ranked(key, scores, first, last, worker)
            _kernels.lambda_hessians_inside(
                scores, self._starts, first, last, self._weights, self._rules, ranking, self._factors, leaf_of_row,
                scale, sums[worker],
            )  # fmt: skip

        self._shares.each(team, share)
        inside: Floats = sums.sum(axis=0) / scale
        return inside

    @property
    def most_pairs(self) -> int:
        """The number of pairs of different grades above the truncation, or of given ones."""
        return int(self._room[-1])

    @property
    def most_leaf_pairs(self) -> int:
        """0 if weights are by place."""
        return 0 if self._quick else self.most_pairs

    def _ranked(self, key: np.uint64, scores: Floats, first: int, last: int, worker: int) -> SortedRows:
        """Return the sort arrays of the worker.

        If weights depend on the order, sort these queries and prepare the weights.
        """
        if worker not in self._workspaces:
            spare, work = np.empty(self._longest, np.uint32), np.zeros((8, self._longest + _kernels.LANES))
            self._workspaces[worker] = spare, work
        spare, work = self._workspaces[worker]
        if self._weighing.shape in {_kernels.TABLE, _kernels.BY_PLACE}:
            _kernels.sort_queries(scores, self._starts, first, last, self._weights.scales, key, self._order, spare)
            self._weighing.prepare(self._order, first, last)
        return SortedRows(key, self._order, spare, work)

    def _key(self, step: int) -> np.uint64:
        return np.uint64(random_bits(np.uint64(self._rules.seed), step))

    def _terms(
        self, out: PairTerms, key: np.uint64, scores: Floats, first: int, last: int, worker: int, begin: int = 0
    ) -> int:
        """Process the pairs of these queries one by one.

        Return the end of the list of hessians, which starts at ``begin``.
        """
        w, depth = self._weighing, self._rules.truncation
        while first < last:
            until, table = last, NONE
            if w.shape == _kernels.TABLE:
                until = int(np.searchsorted(self._cells, self._cells[first] + _MOST_CELLS, side="right")) - 1
                until = min(max(until, first + 1), last)
                table = np.empty(int(self._cells[until] - self._cells[first]))
            ranking = self._ranked(key, scores, first, until, worker)
            if w.shape == _kernels.TABLE:
                w.fill(self._order, first, until, depth, self._cells, table)
            begin = _kernels.pair_terms(
                out, scores, self._starts, first, until, self._grades, self._weights, self._cells, table, self._rules,
                self._pairs, ranking, self._factors, begin,
            )  # fmt: skip
            first = until
        return begin
