"""GBRank (Zheng, Zha, Chen & Sun 2007): regression on targets that misranked pairs set each other."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.foundation.options import option, options
from rankmill.scorer.metrics.arrangement import count_pairs, grade_levels
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.pairwise import _kernels
from rankmill.trainer.objectives.pairwise.preferences import merged_pairs
from rankmill.trainer.objectives.protocol import QUERIES, Learns, Limits, Objective, Splits
from rankmill.trainer.objectives.query_shares import QueryShares
from rankmill.trainer.objectives.weights import relative_weights
from rankmill.trainer.parameters import BOTH, TrainParameters
from rankmill.trainer.team import Team

Floats = npt.NDArray[np.float64]
_LEAST_WORK = 100_000  # minimum pairs per worker: some 300 us


@options
class GbRankOptions:
    """Options of ``gbrank``."""

    tau: float = option(default=0.1, above=0, help="Margin by which the better document must outscore the other.")
    trees: int = option(default=20, least=1, most=10_000, help="Number of trees that each round fits to the targets.")
    eta: float = option(
        default=1.0,
        above=0,
        help="Factor for the forest of a round when it is added. It does not change how the forest is fitted.",
    )
    keep: bool = option(
        default=False,
        help="Keep a pair in all later rounds once it was misranked, with targets from its current scores.",
    )


class GbRank(Objective):
    r"""Fit, in every round, a small forest g_k to absolute targets, and average.

    The model is ``h_k = (k h_{k-1} + eta g_k) / (k + 1)``.

    Every pair, i better than j, with ``h(x_i) < h(x_j) + tau`` gives x_i the target ``h(x_j) + tau`` and x_j the target
    ``h(x_i) - tau``, h = h_{k-1} (Zheng et al. 2007).  The targets of a row are fitted by least squares: g = W (g_k -
    mean target), h = W, with W the sum of their weights; both are 0 for rows without targets.  The weight of a target
    is that of its pair, see :class:`PairObjective`; a given pair has ``|2 P - 1|`` times its own weight.

    g_k consists of ``trees`` trees, each shrunk by ``learning_rate`` as usual.  Training adds up S = g_1 + ..
    + g_k.  As h_0 is 0, ``h_k = eta S / (k + 1)``, so eta is part of the weights of the final forest.  S alone has no
    loss, so there is no deviance; :meth:`losses` are ``w max(0, h_j - h_i + tau)^2 / 2`` of the given scores.  During
    training, metrics see S plus the offset, which gives the order of the final forest if there are no offsets.
    ``rwse`` and ``ole`` are the least squares of the fit; ``se`` would treat rows without targets as perfectly fitted.

    Raises
    ------
    InvalidParameter
        Training with ``keep`` is resumed: the model does not hold the pairs misranked in earlier rounds.
    TrainingDataRejected
        There is no pair.
    """

    name: ClassVar[str] = "gbrank"
    sums_over: ClassVar[str] = QUERIES
    splits: ClassVar[Splits] = Splits(("rwse", "ole"), additive=True)
    learns: ClassVar[Learns] = Learns(pairs=True)
    limits: Limits = Limits(
        nets="it averages the trees of all rounds", averages="its score is already an average over rounds"
    )
    Options: ClassVar[type[GbRankOptions]] = GbRankOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: GbRankOptions) -> None:
        if parameters.learn_from == BOTH:
            raise InvalidParameter(
                "gbrank cannot learn from both grades and pairs; set learn_from to one of them, or"
                " use ranknet or lambdamart"
            )
        if options.keep:
            self.limits = replace(self.limits, cluster="the pairs misranked in earlier rounds are lost with a worker")
        self._grades, self._starts, self._options = rows.grades, rows.starts, options
        self.steps_a_round = options.trees
        self._weights = relative_weights(rows.weights, rows.n_rows)
        self._query_weights = relative_weights(rows.query_weights, rows.n_queries)
        self._offsets = np.zeros(rows.n_rows) if rows.offsets is None else np.asarray(rows.offsets, np.float64)
        self._pairs = merged_pairs(rows.pairs, rows.starts)
        sizes = np.diff(rows.starts)
        if rows.pairs is None:
            n_pairs, cells = count_pairs(grade_levels(rows.grades, rows.starts), rows.starts), sizes * (sizes - 1) // 2
        else:
            n_pairs = cells = np.diff(self._pairs.starts)
        if not n_pairs.any():
            raise TrainingDataRejected("no query has documents of two different grades or a given pair")
        self._cells = np.concatenate(([0], np.cumsum(cells)))
        self._kept = np.zeros(int(self._cells[-1]) if options.keep else 0, dtype=np.bool_)
        self._shares = QueryShares(cells, _LEAST_WORK)
        self._round = 0
        self._anchor, self._targets, self._total = (np.zeros(rows.n_rows) for _ in range(3))

    def start(self) -> float:
        """Return h_0 = 0."""
        return 0.0

    def gradients(self, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> None:
        """Write g and h of the least squares fit of this round, both (n_rows,); its first step sets the targets."""
        number = (step - 1) // self.steps_a_round + 1
        if number != self._round:
            if len(self._kept) and number != self._round + 1:
                raise InvalidParameter(
                    "gbrank(keep=true) cannot be resumed, because the model file does not"
                    " store misranked pairs; train again without resume"
                )
            self._round = number
            self._anchor[:] = scores
            averaged = self._offsets + self._options.eta * (scores - self._offsets) / number
            self._shares.each(team, lambda first, last, _: self._run(averaged, first, last, np.empty(0)))
        fitted = self._offsets + (scores - self._anchor)
        g[:] = self._total * fitted - self._targets
        h[:] = self._total

    def losses(self, scores: Floats) -> Floats:
        """Return the loss of each query, (n_queries,), of averaged scores."""
        losses = np.zeros(len(self._starts) - 1)
        self._run(scores, 0, len(losses), losses)
        return losses

    def deviance(self, scores: Floats) -> float:
        """Refuse: training scores are sums, and only averages have a loss."""
        raise InvalidParameter("gbrank has no deviance, because it averages rounds; use a metric")

    def final_weights(self, n_rounds: int) -> tuple[float, float]:
        """Return eta / (n + 1) for every tree, and 1 / (n + 1) for the start."""
        return self._options.eta / (n_rounds + 1), 1.0 / (n_rounds + 1)

    def _run(self, averaged: Floats, first: int, last: int, losses: Floats) -> None:
        _kernels.misranked(
            averaged, self._starts, first, last, self._grades, self._weights, self._query_weights, self._pairs,
            self._options.tau, self._cells, self._kept, self._targets, self._total, losses,
        )  # fmt: skip
