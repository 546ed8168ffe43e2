"""What a click counts, and what it is divided by: shared by judgments from clicks and by off-policy evaluation.

The model is ``E[value of an impression at rank k] = alpha_k gamma + beta_k`` (Vardasbi et al. 2020, "When inverse
propensity scoring does not work"): alpha is the examination probability, beta the clicks that come from trust in the
rank alone, gamma the relevance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankmill.clicks.options import ClickWeighting
from rankmill.clicks.result_lists import ClickLog, LogBlock
from rankmill.foundation.errors import DataRejected, InputError
from rankmill.foundation.options import spelled
from rankmill.pipeline.judgments.propensities import Propensities

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

STEPS = 2.0**20  # a unit: sums of whole steps are exact, so that they do not depend on the size of blocks


@dataclass(frozen=True, slots=True)
class WeightedClicks:
    """The impressions of a block, with what they count."""

    value: Floats
    """(impressions,) 0 without a click that counts, else 1 or more."""
    alpha: Floats
    """(impressions,) the probability of examination; 1 without propensities."""
    beta: Floats
    """(impressions,) expected value of an irrelevant document."""
    clip: float

    @property
    def divisor(self) -> Floats:
        """(impressions,) what the value is divided by: alpha, or the clip if it is larger."""
        return np.maximum(self.alpha, self.clip)

    @property
    def corrected(self) -> Floats:
        """(impressions,) the value without trust, by inverse propensity; its mean is gamma where nothing is clipped."""
        found: Floats = (self.value - self.beta) / self.divisor
        return found


def weighted_clicks(
    block: LogBlock, weighting: ClickWeighting, propensities: Propensities | None, *, corrected: bool = True
) -> WeightedClicks:
    """Return what the impressions of ``block`` count.

    ``corrected``: divide by ``propensities`` or, if there are none, by the log's own column ``propensity``.

    Raises
    ------
    InputError
        There are no propensities, or the log lacks the column that an option is about.
    DataRejected
        The log's own propensities are missing in some rows.
    """
    rank = block.lists.rank
    value = _values(block, weighting)
    if not corrected:
        return WeightedClicks(value, np.ones(len(rank)), np.zeros(len(rank)), weighting.clip)
    if propensities is not None:
        return WeightedClicks(value, propensities.at(rank), propensities.trust_at(rank), weighting.clip)
    alpha = block.numbers.get("propensity")
    if alpha is None:
        raise InputError(
            f"the log has no column propensity; give the file that `clicks fit` writes with {spelled('propensities')}"
        )
    if not (alpha > 0.0).all():
        raise DataRejected(
            f"the log has rows without a propensity above 0; give {spelled('propensities')}, or remove these rows"
        )
    return WeightedClicks(value, alpha, np.zeros(len(rank)), weighting.clip)


def _values(block: LogBlock, weighting: ClickWeighting) -> Floats:
    value = block.lists.clicked.astype(np.float64)
    for name, column, given in (
        ("min_dwell", "dwell", weighting.min_dwell),
        ("conversion_weight", "converted", weighting.conversion_weight),
    ):
        if given > 0.0 and column not in block.numbers:
            raise InputError(f"{spelled(name)} needs a column {column} in the log, which has none; leave it out")
    if weighting.conversion_weight > 0.0:
        value *= 1.0 + weighting.conversion_weight * np.nan_to_num(block.numbers["converted"], nan=0.0)
    if weighting.min_dwell > 0.0:
        value[block.numbers["dwell"] < weighting.min_dwell] = 0.0  # an unknown dwell time is NaN, and the click counts
    return in_steps(value) / STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class ClickTotals:
    """Sums over a whole log."""

    impressions: int
    clicks: int
    lists: int
    value: float
    squared: float
    """Sum of squared values."""
    examined: float
    """Sum of alpha."""
    trusted: float
    """Sum of beta."""
    corrected: float
    """Sum of the corrected values."""
    rate: Floats
    """(ranks,) mean value at each rank, of rank 1 first."""
    relevance_at: Floats
    """(ranks,) mean of gamma over examined impressions of each rank: what documents shown there are usually like."""

    @property
    def mean(self) -> float:
        """The mean value of an impression."""
        return self.value / self.impressions

    @property
    def relevance(self) -> float:
        """The mean of gamma over examined impressions."""
        return max((self.value - self.trusted) / self.examined, 1e-9)

    def spread(self, mean: float) -> float:
        """Return the variance of a single examined value with the mean ``mean``.

        It is the same formula for a click and for weighted clicks.
        """
        return float(self.spreads(np.array(mean)))

    def spreads(self, mean: Floats) -> Floats:
        """Return :meth:`spread` of each ``mean`` (n,)."""
        found: Floats = np.maximum(mean * self.squared / self.value - mean * mean, 0.01 * mean)
        return found


def log_totals(
    log: ClickLog, weighting: ClickWeighting, propensities: Propensities | None, *, corrected: bool = True
) -> ClickTotals:
    """Return the sums over ``log``; they do not depend on how it is cut into blocks.

    Raises
    ------
    InputError, DataRejected
        As :func:`weighted_clicks`; or no click of the log counts.
    """
    by_rank = np.zeros((4, 1), np.int64)  # impressions, value, alpha, beta
    sums, lists, clicks = np.zeros(2, dtype=object), 0, 0
    for block in log.blocks():
        weighted = weighted_clicks(block, weighting, propensities, corrected=corrected)
        rank = block.lists.rank
        by_rank = np.pad(by_rank, ((0, 0), (0, max(int(rank.max(initial=0)) + 1 - by_rank.shape[1], 0))))
        by_rank[0] += np.bincount(rank, minlength=by_rank.shape[1])
        for row, column in zip(by_rank[1:], (weighted.value, weighted.alpha, weighted.beta), strict=True):
            np.add.at(row, rank, in_steps(column))
        columns = (weighted.value * weighted.value, weighted.corrected)
        sums += [int(in_steps(column).sum()) for column in columns]
        lists += len(block.lists.query)
        clicks += int(block.lists.clicked.sum())
    shown, value, alpha, beta = by_rank
    if not value.any():
        what = (
            "no click" if clicks == 0 else f"no click that counts: all {clicks:,} have a dwell time below the minimum"
        )
        raise DataRejected(f"the log has {what}, so there is nothing to judge by")
    squared, by_propensity = (int(each) / STEPS for each in sums)
    return ClickTotals(
        impressions=int(shown.sum()),
        clicks=clicks,
        lists=lists,
        value=int(value.sum()) / STEPS,
        squared=squared,
        examined=int(alpha.sum()) / STEPS,
        trusted=int(beta.sum()) / STEPS,
        corrected=by_propensity,
        rate=(value / np.maximum(shown, 1))[1:] / STEPS,
        relevance_at=np.maximum(value - beta, 0)[1:] / np.maximum(alpha, 1)[1:],
    )


def in_steps(values: Floats | Counts) -> Counts:
    """Return ``values`` in whole ``STEPS``, of which sums are exact in any order."""
    return np.rint(values * STEPS).astype(np.int64)


def summed_by(number: Counts, values: Floats, n: int) -> Floats:
    """Return the sums of ``values`` (impressions,) by ``number`` (impressions,), (n,)."""
    sums: Floats = np.bincount(number, weights=values, minlength=n).astype(np.float64, copy=False)
    return sums
