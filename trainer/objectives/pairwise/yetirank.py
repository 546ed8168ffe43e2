"""YetiRank and YetiLoss: neighbours in orders that are shuffled by noise.

Source: Gulin, Kuralenok & Pavlov, JMLR W&CP 14, 2011.
"""

from __future__ import annotations

from dataclasses import replace
from math import fsum
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.foundation.kernels.randoms import all_random_bits, random_bits
from rankmill.foundation.options import option, option_like, options
from rankmill.scorer.metrics.arrangement import count_pairs, grade_levels
from rankmill.scorer.metrics.discount import gains
from rankmill.scorer.metrics.metric import parse_metric
from rankmill.scorer.metrics.swaps import BY_RANK, SWAPPABLE, SwapDeltas, swap_deltas
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.pairwise import _kernels
from rankmill.trainer.objectives.pairwise._kernels import NONE, PairTerms, PairWeights, Shuffles, SortedRows
from rankmill.trainer.objectives.pairwise.lambdamart import LambdaMartOptions, policy_of
from rankmill.trainer.objectives.protocol import ALL_CRITERIA, ONE_GRADE, QUERIES, Objective, PairHessians, Splits
from rankmill.trainer.objectives.query_shares import QueryShares
from rankmill.trainer.objectives.weights import relative_weights
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.team import Team

Floats = npt.NDArray[np.float64]
_LEAST_WORK = 5_000  # minimum documents times permutations per worker: some 300 us
_OF_METRIC = "metric"
_METRICS = tuple(name for name in SWAPPABLE if not name.startswith("concordance"))
_RULES = {"err": _kernels.OF_ERR, "map": _kernels.OF_MAP, "mrr": _kernels.OF_MRR}


@options
class YetiRankOptions:
    """Options of ``yetirank``."""

    permutations: int = option(
        default=10, least=1, most=10_000, help="Number of random orders to sample per query and round."
    )
    decay: float = option(default=0.85, above=0, most=1, help="Weight of each rank relative to the rank above it.")
    noise: str = option(
        default="logistic",
        choices=("logistic", "gumbel"),
        help="Noise added to sigma s: logistic, log(u / (1 - u)), as published; or gumbel, -log(-log"
        " u), which samples from the Plackett-Luce model.",
    )
    mode: str = option(
        default="classic",
        choices=("classic", _OF_METRIC),
        help="Weight of a pair of neighbours in a random order: classic, by decay and gains; or metric, the"
        " change of the training metric if the two swap.",
    )
    max_grade: int = option_like(LambdaMartOptions, "max_grade", default=0)


class YetiRank(Objective):
    r"""Minimise the sum of ``w_ij log(1 + exp(-sigma (s_i - s_j)))`` over pairs with y_i > y_j.

    w_ij is the mean over permutations of ``decay^(r - 1) |G_i - G_j|`` if i and j are at the ranks r and r + 1 of the
    permutation, else 0; G is the gain.  Permutations are drawn from the scores of the round, keyed by (seed, step,
    row), and fixed within it: h is the derivative of g at fixed w.  The paper weights a pair by the certainty of its
    grades, which is not known here, and by 1/r.  CatBoost weights it by ``|y_i - y_j|`` and powers of a decay, as
    linear gain does.

    In the mode ``metric`` (YetiLoss, Lyzhin et al., ICML 2023) w_ij is the mean over permutations of \|dZ_ij\|, the
    change of ``metric`` if i and j swap in the permutation, else 0; pairs beyond a cutoff change nothing, and ``decay``
    is not used.  See :mod:`rankmill.scorer.metrics.swaps`; ``concordance`` has no such mode.

    A pair counts with the product of the weights of its documents, relative to their mean, and with that of its query.
    Of the parameters ``gain``, ``sigma``, ``seed`` and, in the mode ``metric``, ``metric`` count; given pairs do not.

    Raises
    ------
    InvalidParameter
        The mode is ``metric`` and the metric has no swap deltas of neighbours.
    TrainingDataRejected
        No query holds two grades, or no swap changes the metric.
    """

    name: ClassVar[str] = "yetirank"
    sums_over: ClassVar[str] = QUERIES
    # a listed pair: neighbours of all permutations, sorted and summed
    splits: ClassVar[Splits] = replace(ALL_CRITERIA, bytes_a_pair=48)
    Options: ClassVar[type[YetiRankOptions]] = YetiRankOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: YetiRankOptions) -> None:
        self._starts, self._seed = rows.starts, parameters.seed
        self._mixed = count_pairs(grade_levels(rows.grades, rows.starts), rows.starts) > 0
        if not self._mixed.any():
            raise TrainingDataRejected(ONE_GRADE)
        rule, cut = _kernels.DECAYS, 0
        values, scales = gains(rows.grades, parameters.gain), self._mixed.astype(np.float64)
        upper, lower, lift = NONE, NONE, NONE
        if options.mode == _OF_METRIC:
            rule, deltas = self._weigh_by_metric(rows, parameters, options.max_grade)
            cut, values, scales = deltas.depth, deltas.values, np.where(self._mixed, deltas.scales, 0.0)
            upper, lower, lift = deltas.upper, deltas.lower, deltas.lift
        documents = relative_weights(rows.weights, rows.n_rows)
        queries = relative_weights(rows.query_weights, rows.n_queries)
        self._weights = PairWeights(_kernels.BY_RANK, values, scales, upper, lower, lift, documents, queries)
        gumbel = options.noise == "gumbel"
        self._shuffles = Shuffles(options.permutations, parameters.sigma, gumbel, rule, options.decay, cut)
        sizes = np.diff(rows.starts)
        self._shares = QueryShares(sizes * options.permutations, _LEAST_WORK)
        # a query of n documents has n - 1 pairs of neighbours in every permutation
        self._room = np.concatenate(([0], np.cumsum(np.maximum(sizes - 1, 0) * options.permutations)))
        self._order = np.arange(rows.n_rows, dtype=np.uint32)
        self._noisy = np.empty(rows.n_rows)
        self._longest = int(sizes.max(initial=0))

    def _weigh_by_metric(self, rows: RankedRows, parameters: TrainParameters, max_grade: int) -> tuple[int, SwapDeltas]:
        metric = parse_metric(parameters.metric)
        if metric.name not in _METRICS:
            raise InvalidParameter(
                f"metric {parameters.metric!r} cannot be optimised by yetirank(mode=metric); expected one of"
                f" {', '.join(_METRICS)} (any metric can be the stop metric)"
            )
        deltas = swap_deltas(metric, rows.grades, rows.starts, policy_of(metric, rows, parameters, max_grade))
        numbers = np.unique(deltas.values, return_inverse=True)[1].astype(np.int32)  # of the values, from the least
        self._mixed &= (count_pairs(grade_levels(numbers, rows.starts), rows.starts) > 0) & (deltas.scales > 0.0)
        if not self._mixed.any():
            raise TrainingDataRejected(
                f"no swap of documents changes the metric {parameters.metric}, so there is nothing to learn; check"
                " the grades, or choose another metric"
            )
        return _kernels.OF_RANKS if deltas.shape == BY_RANK else _RULES[metric.name], deltas

    def start(self) -> float:
        """Return 0: only differences of scores matter to this loss."""
        return 0.0

    def gradients(self, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> None:
        """Write g and h, both (n_rows,)."""
        out = PairTerms(_kernels.GRADIENTS, g, h)
        self._shares.each(team, lambda first, last, _: self._run(out, step, scores, first, last))

    def losses(self, scores: Floats) -> Floats:
        """Return the loss of each query, (n_queries,), in the permutations of step 0 of these scores."""
        losses = np.zeros(len(self._mixed))
        self._run(PairTerms(_kernels.LOSSES, losses=losses), 0, scores, 0, len(losses))
        return losses

    def deviance(self, scores: Floats) -> float:
        """Return the weighted mean loss of the queries that hold two grades."""
        weights = self._weights.queries if len(self._weights.queries) else np.ones(len(self._mixed))
        total = fsum(weights[self._mixed].tolist())
        return fsum(self.losses(scores).tolist()) / total if total > 0.0 else 0.0

    def pair_hessians(self, step: int, scores: Floats, least: float, team: Team) -> PairHessians:
        """Return the pairs of the gradients of this step, sorted by row; see :class:`Objective`."""
        room = int(self._room[-1])
        above, below, hessian = np.empty(room, np.int32), np.empty(room, np.int32), np.zeros(room)
        out = PairTerms(_kernels.HESSIANS, first_rows=above, second_rows=below, pair_hessian=hessian)
        self._shares.each(team, lambda first, last, _: self._run(out, step, scores, first, last))
        kept = hessian > 0.0
        keys, number = np.unique(above[kept].astype(np.int64) << 32 | below[kept], return_inverse=True)
        # one by one in the order of the permutations: the same bits on every machine
        summed = np.bincount(number, weights=hessian[kept], minlength=len(keys)).astype(np.float64)
        if least > 0.0:
            draws = np.empty(len(keys), dtype=np.uint64)
            all_random_bits(np.uint64(random_bits(self._key(step), _DRAWS)), keys, draws)
            chosen = (draws >> np.uint64(11)).astype(np.float64) * (2.0**-53 * least) < summed
            keys, summed = keys[chosen], np.maximum(summed[chosen], least)
        return PairHessians((keys >> 32).astype(np.int32), (keys & 0xFFFFFFFF).astype(np.int32), summed)

    @property
    def most_pairs(self) -> int:
        """Neighbours of all permutations."""
        return int(self._room[-1])

    def _key(self, step: int) -> np.uint64:
        return np.uint64(random_bits(np.uint64(self._seed), step))

    def _run(self, out: PairTerms, step: int, scores: Floats, first: int, last: int) -> None:
        order, noisy = self._order, self._noisy
        if out.what == _kernels.LOSSES:
            order, noisy = np.arange(len(scores), dtype=np.uint32), np.empty(len(scores))
        ranking = SortedRows(self._key(step), order, np.empty(self._longest, dtype=np.uint32), np.empty((8, 0)))
        _kernels.neighbours(
            out, scores, self._starts, first, last, self._weights, self._shuffles, ranking, noisy, self._room
        )


_DRAWS = 0x6E656967
