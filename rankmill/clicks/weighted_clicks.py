"""What a click is divided by, and sums over a log: shared by judgments from clicks and by off-policy evaluation.

The model is ``P(click on an impression at rank k) = alpha_k gamma + beta_k`` (Vardasbi et al.  2020, "When inverse
propensity scoring does not work").  The examination probability is alpha, the relevance gamma; beta are the clicks that
come from trust in the rank alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankmill.clicks.result_lists import ClickLog, LogBlock
from rankmill.foundation.errors import DataRejected
from rankmill.pipeline.judgments.propensities import Propensities

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

STEPS = 2.0**20  # a unit: sums of whole steps are exact, so that they do not depend on the size of blocks


@dataclass(frozen=True, slots=True)
class WeightedClicks:
    """The impressions of a block."""

    clicked: Floats
    """(impressions,) 0 or 1."""
    alpha: Floats
    """(impressions,) the probability of examination; 1 without propensities."""
    beta: Floats
    """(impressions,) the probability of a click on an irrelevant document."""
    clip: float

    @property
    def divisor(self) -> Floats:
        """(impressions,) what a click is divided by: alpha, or the clip if it is larger."""
        return np.maximum(self.alpha, self.clip)

    @property
    def corrected(self) -> Floats:
        """(impressions,) the click without trust, by inverse propensity; its mean is gamma where nothing is clipped."""
        found: Floats = (self.clicked - self.beta) / self.divisor
        return found


def weighted_clicks(block: LogBlock, clip: float, propensities: Propensities | None) -> WeightedClicks:
    """Return what the impressions of ``block`` count; without ``propensities`` nothing is corrected."""
    rank, clicked = block.lists.rank, block.lists.clicked.astype(np.float64)
    if propensities is None:
        return WeightedClicks(clicked, np.ones(len(rank)), np.zeros(len(rank)), clip)
    return WeightedClicks(clicked, propensities.at(rank), propensities.trust_at(rank), clip)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClickTotals:
    """Sums over a whole log."""

    clicks: int
    examined: float
    """Sum of alpha."""
    trusted: float
    """Sum of beta."""
    corrected: float
    """Sum of the corrected clicks."""
    relevance_at: Floats
    """(ranks,) mean of gamma over examined impressions of each rank: what documents shown there are usually like."""

    @property
    def relevance(self) -> float:
        """The mean of gamma over examined impressions."""
        return max((self.clicks - self.trusted) / self.examined, 1e-9)

    def spreads(self, mean: Floats) -> Floats:
        """Return the variance of a click with the probability ``mean`` (n,), which is not taken for 0."""
        rounded = mean * self.clicks / self.clicks  # as files were written when clicks had weights: their bytes stay
        found: Floats = np.maximum(rounded - mean * mean, 0.01 * mean)
        return found


def log_totals(log: ClickLog, clip: float, propensities: Propensities | None) -> ClickTotals:
    """Return the sums over ``log``, which do not depend on its blocks; DataRejected if it has no click."""
    by_rank = np.zeros((3, 1), np.int64)  # clicks, alpha, beta
    corrected = 0
    for block in log.blocks():
        weighted, rank = weighted_clicks(block, clip, propensities), block.lists.rank
        by_rank = np.pad(by_rank, ((0, 0), (0, max(int(rank.max(initial=0)) + 1 - by_rank.shape[1], 0))))
        for row, column in zip(by_rank, (weighted.clicked, weighted.alpha, weighted.beta), strict=True):
            np.add.at(row, rank, in_steps(column))
        corrected += int(in_steps(weighted.corrected).sum())
    clicked, alpha, beta = by_rank
    if not clicked.any():
        raise DataRejected("the log has no click, so there is nothing to judge by")
    return ClickTotals(
        clicks=int(clicked.sum()) >> 20,
        examined=int(alpha.sum()) / STEPS,
        trusted=int(beta.sum()) / STEPS,
        corrected=corrected / STEPS,
        relevance_at=np.maximum(clicked - beta, 0)[1:] / np.maximum(alpha, 1)[1:],
    )


def in_steps(values: Floats | Counts) -> Counts:
    """Return ``values`` in whole ``STEPS``, of which sums are exact in any order."""
    return np.rint(values * STEPS).astype(np.int64)


def summed_by(number: Counts, values: Floats, n: int) -> Floats:
    """Return the sums of ``values`` (impressions,) by ``number`` (impressions,), (n,)."""
    sums: Floats = np.bincount(number, weights=values, minlength=n).astype(np.float64, copy=False)
    return sums
