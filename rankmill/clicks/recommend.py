"""Whether to correct for position bias, and by which click model.

The limits are from simulated logs (docs/benchmarks/clicks.md): a correction takes out the bias towards the ranker
that made the lists, and adds noise.  It is not worth that with few clicks, nor if that ranker is good.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankmill.clicks.models.counts import ClickCounts, count_clicks, summed
from rankmill.clicks.models.fit_log import ClickModelComparison
from rankmill.clicks.options import ClickModelName
from rankmill.clicks.result_lists import ClickLog
from rankmill.pipeline.judgments.propensities import Propensities

ENOUGH_CLICKS = 3.0
"""Clicks for each document that was shown, from which on a correction is recommended."""
RANKED_WELL = 0.4
"""Correlation of relevance and position within queries, from which on no correction is recommended."""
CORRECTING = ("pbm", "ubm", "trust", "allpairs", "randomised")  # models that separate position from relevance by swaps


@dataclass(frozen=True, slots=True)
class ClickRecommendation:
    """What to do about position bias; other commands use it, too."""

    model: ClickModelName | None
    """The click model to fit; None: do not correct."""
    reason: str

    def render(self) -> str:
        """Return the recommendation as a sentence."""
        return f"do not correct: {self.reason}" if self.model is None else f"{self.model}: {self.reason}"


def recommend(log: ClickLog, compared: ClickModelComparison, clicks_a_document: float) -> ClickRecommendation:
    """Return the click model to use, by held-out sessions.

    None if the log does not separate position from relevance, or shows no bias. None also if it has fewer than
    ``ENOUGH_CLICKS`` for each document that was shown, or if its lists were ranked well already: then a correction adds
    mostly noise.
    """
    if not compared.fitted:
        return ClickRecommendation(None, next(iter(compared.refused.values())))
    best = compared.recommended
    if best == "dctr":
        identified = [name for name in CORRECTING if name in compared.fitted]
        if identified:
            doubts = [compared.doubted[name] for name in identified if name in compared.doubted]
            reason = "no click model predicts held-out clicks better than none, so no position bias is visible"
            return ClickRecommendation(None, doubts[0] if len(doubts) == len(identified) else reason)
    if not any(name in compared.fitted for name in CORRECTING):
        reason = (
            "no documents were shown at positions that differ enough, so that position cannot be distinguished "
            "from relevance"
        )
        return ClickRecommendation(None, f"{reason}; show some lists with swapped neighbours, or in random order")
    if clicks_a_document < ENOUGH_CLICKS:
        return ClickRecommendation(
            None,
            f"{clicks_a_document:.1f} clicks for each document that was shown, and {ENOUGH_CLICKS:g} or more are "
            "needed, as corrected labels are noisier than naive ones; collect more sessions",
        )
    correlation = order_by_relevance(log, compared.fitted[best].propensities, compared.counts)
    if correlation >= RANKED_WELL:
        return ClickRecommendation(
            None,
            f"the lists were in a good order already (relevance and position have a correlation of {correlation:.2f}, "
            f"and {RANKED_WELL:g} is much), so that a correction adds more noise than it takes out bias",
        )
    return ClickRecommendation(best, "predicts the clicks of held-out sessions best")


def order_by_relevance(log: ClickLog, propensities: Propensities, counts: ClickCounts | None = None) -> float:
    """Return the correlation of relevance and position (the first is highest) within queries; 0 if it is unknown.

    ``counts`` are those of ``log`` down to the last rank of ``propensities``; without them the log is counted.

    Over documents, weighted by their examinations; what clicks vary by chance is taken out of the variance of
    relevance.
    """
    if counts is None:
        (counts,) = count_clicks(log, len(propensities.examination))
    theta, trust = propensities.at(counts.rank), propensities.trust_at(counts.rank)
    seen, clicked = theta * counts.shown, counts.clicked - trust * counts.shown
    examined, clicks, depth = (counts.by_document(column) for column in (seen, clicked, seen * counts.rank))
    sizes = np.concatenate([np.diff(block.document_start) for block in log.blocks()])
    query = np.repeat(np.arange(len(sizes)), sizes)
    of_query = [summed(query, column, len(sizes)) for column in (examined, clicks, depth)]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean, middle = of_query[1] / of_query[0], of_query[2] / of_query[0]
        chance = np.clip(theta * mean[query[counts.document]] + trust, 0.0, 1.0)
        noise = counts.by_document(counts.shown * chance * (1.0 - chance))
        far, low = clicks / examined - mean[query], depth / examined - middle[query]
        products = (-examined * far * low, examined * low**2, examined * far**2 - noise / examined)
    both, position, relevance = (float(values[examined > 0.0].sum()) for values in products)
    return float(both / np.sqrt(position * relevance)) if position > 0.0 < relevance else 0.0
