"""Base class of listwise losses: weights of lists, sums over queries, sampling keyed by seed and step."""

from __future__ import annotations

from collections.abc import Callable
from math import fsum
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.foundation.kernels.randoms import random_bits
from rankmill.scorer.metrics.discount import gains
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.listwise import _kernels
from rankmill.trainer.objectives.protocol import (
    ALL_CRITERIA,
    ONE_GRADE,
    QUERIES,
    Floats,
    Objective,
    PairHessians,
    Splits,
)
from rankmill.trainer.objectives.query_shares import QueryShares
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.team import Team

DRAWS, PAIRS = 1, 2  # purposes of keys, so that the draws of one do not repeat those of the other
AT_REST = 0  # the step for the draws of a deviance: the same after every round


def mixed_lists(rows: RankedRows) -> npt.NDArray[np.bool_]:
    """Return a mask (n_queries,) of the queries with two grades; TrainingDataRejected if there is none."""
    filled = np.diff(rows.starts) > 0
    first, mixed = rows.starts[:-1][filled], np.zeros(rows.n_queries, dtype=np.bool_)
    mixed[filled] = np.maximum.reduceat(rows.grades, first) != np.minimum.reduceat(rows.grades, first)
    if not mixed.any():
        raise TrainingDataRejected(ONE_GRADE)
    return mixed


def gains_of(rows: RankedRows, parameters: TrainParameters) -> Floats:
    """Return the gain of every document, (n_rows,), as ``parameters.gain`` says."""
    return gains(rows.grades, parameters.gain)


class ListLoss(Objective):
    """A loss that is a sum over queries and depends only on differences of scores: it starts from 0.

    The weight of a list is the mean of the weights of its documents times the weight of its query.  It is relative to
    the mean over all lists, so scaling either changes nothing.
    """

    sums_over: ClassVar[str] = QUERIES
    splits: ClassVar[Splits] = ALL_CRITERIA
    _starts: npt.NDArray[np.int64]  # (n_queries + 1,)
    _seed: int
    _shares: QueryShares
    weights: Floats  # (n_queries,) of the lists, 0 if a list does not count

    def start(self) -> float:
        """Return 0: only differences of scores matter to this loss."""
        return 0.0

    def deviance(self, scores: Floats) -> float:
        """Return the weighted mean of the losses of the lists that count."""
        return fsum(self.losses_at_rest(scores).tolist()) / fsum(self.weights.tolist())

    @property
    def most_pairs(self) -> int:
        """The number of all pairs of all lists."""
        sizes = np.diff(self._starts)
        return int((sizes * (sizes - 1) // 2).sum())

    def _product_pairs(self, step: int, masses: Floats, scales: Floats, least: float, team: Team) -> PairHessians:
        """Return ``scales[q] masses[i] masses[j]`` of all pairs of the lists; those below ``least`` are sampled."""
        key = key_of(self._seed, step, PAIRS)
        return self._shares.pairs(
            team,
            lambda first, last, *out: _kernels.product_pairs(
                self._starts, first, last, masses, scales, least, key, *out
            ),
        )

    def _each(self, team: Team, kernel: Callable[..., object], scores: Floats, *more: object) -> None:
        """Call ``kernel(scores, starts, first query, last query, *more)`` so that the workers share the queries."""
        self._shares.each(team, lambda first, last, _: kernel(scores, self._starts, first, last, *more))

    def _of_lists(self, kernel: Callable[..., object], scores: Floats, *more: object) -> Floats:
        """Return what ``kernel(scores, starts, *more, out)`` writes for each list, (n_queries,)."""
        out = np.empty(len(self.weights))
        kernel(scores, self._starts, *more, out)
        return out

    def losses_at_rest(self, scores: Floats) -> Floats:
        """Return the losses (n_queries,) with draws, if any, that are the same for all steps."""
        return self.losses(scores)


def key_of(seed: int, step: int, purpose: int) -> np.uint64:
    """Return the key of the draws of a step for a purpose."""
    of_step = random_bits(np.uint64(random_bits(np.uint64(seed), step)), purpose)
    return np.uint64(of_step)
