r"""Make judgments from clicks.

A document d was shown n times, at ranks k_i, with the clicks c_i (0 or 1).  Examination is alpha_k, and the trust in a
rank is beta_k.  The strength and the mean of a prior are a and m: it is worth a impressions of an average document.
The estimates are

    dctr    (sum c_i + a m) / (n + a): the click-through rate of the document
    pbm     (sum (c_i - beta_i) + a m_d) / (sum alpha_i + a): the mean of relevance given the clicks.  m_d is the mean
            relevance of documents at the ranks of d, so a document that was hardly examined is judged by where it was
            shown
    ips     (1 / n) sum (c_i - beta_i) / max(alpha_i, tau): inverse propensity, clipped at tau
    snips   ips, divided by the mean weight of a click of the query, so that it does not depend on the scale of alpha

Each has a variance, from that of the clicks given the estimate.  The weight of a judgment is ``v / (v + variance)``, v
being the variance that the prior gives to relevance.  It is the share of the variance of estimates that is not noise.
For pbm it is ``sum alpha_i / (sum alpha_i + a)``, the share that clicks have in the estimate.  It is below 1, the
weight of a person's judgment.

The strength a of pbm follows from the log (empirical Bayes, by moments).  Relevance varies around m_d by what sums of
clicks vary beyond their own variance: ``v = sum ((y_d - e_d m_d)^2 - noise_d) / w_d / sum e_d^2 / w_d`` with
``e_d = sum alpha_i`` and ``w_d = max(e_d, 1)``.  As many impressions know as much as that: ``a = spread(m) / v - 1``.

Sources: Joachims et al. 2017 (ips), Swaminathan and Joachims 2015 (snips), Vardasbi et al. 2020 (beta).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rankmill.clicks.options import DEFAULT_SHRINKAGE, ClickEstimate, JudgeOptions
from rankmill.clicks.result_lists import ClickLog, LogBlock
from rankmill.clicks.weighted_clicks import (
    ClickTotals,
    Counts,
    Floats,
    WeightedClicks,
    log_totals,
    summed_by,
    weighted_clicks,
)
from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled
from rankmill.pipeline.judgments.propensities import Propensities


class JudgedDocuments(NamedTuple):
    """Estimates for the documents of a block, in its order; NaN for documents that were never shown."""

    label: Floats
    """(documents,)"""
    variance: Floats
    """(documents,)"""
    weight: Floats
    """(documents,) from 0 to below 1."""
    impressions: Counts
    """(documents,)"""
    clicks: Counts
    """(documents,)"""


def estimate_of(options: JudgeOptions, propensities: Propensities | None) -> ClickEstimate:
    """Return the estimate that ``options`` choose; InputError if it does not go with the propensities."""
    estimate = options.estimate or ("dctr" if propensities is None else "pbm")
    if estimate == "dctr" and propensities is not None:
        raise InputError(
            f"{spelled('estimate')} dctr does not use {spelled('propensities')}; leave it out, or estimate pbm"
        )
    if estimate != "dctr" and propensities is None:
        raise InputError(
            f"{spelled('estimate')} {estimate} needs the file that `clicks fit` writes; give it with "
            f"{spelled('propensities')}"
        )
    return estimate


def judge_documents(
    log: ClickLog, options: JudgeOptions | None = None, propensities: Propensities | None = None
) -> Iterator[tuple[LogBlock, JudgedDocuments]]:
    """Yield each block of ``log`` with the estimates for its documents; the log is read twice or three times.

    Raises
    ------
    InputError
        Options do not go together, or with the log.
    DataRejected
        No click of the log counts.
    """
    options = options or JudgeOptions()
    estimate = estimate_of(options, propensities)
    totals = log_totals(log, options.clip, propensities)
    strength = options.shrinkage
    if strength is None:
        strength = _strength(log, options, propensities, totals) if estimate == "pbm" else DEFAULT_SHRINKAGE
    for block in log.blocks():
        yield block, _judged(block, options, propensities, estimate, totals, strength)


class _Examined(NamedTuple):
    """Sums over the impressions of each document of a block, all (documents,)."""

    relevant: Floats
    """Of clicks without trust."""
    examined: Floats
    """Of alpha."""
    usual: Floats
    """Of alpha times the mean relevance at the rank: what ``relevant`` is for a document like others at its ranks."""


def _examined(block: LogBlock, weighted: WeightedClicks, totals: ClickTotals) -> _Examined:
    columns = (weighted.clicked - weighted.beta, weighted.alpha, _usual(block, weighted, totals))
    return _Examined(*(summed_by(block.lists.document, column, len(block.documents)) for column in columns))


def _usual(block: LogBlock, weighted: WeightedClicks, totals: ClickTotals) -> Floats:
    return weighted.alpha * totals.relevance_at[block.lists.rank - 1]


def _strength(log: ClickLog, options: JudgeOptions, propensities: Propensities | None, totals: ClickTotals) -> float:
    """Return the impressions that know as much of a document as its ranks do, from 0.1 to 10,000."""
    found = np.zeros(2)
    for block in log.blocks():
        weighted = weighted_clicks(block, options.clip, propensities)
        relevant, examined, usual = _examined(block, weighted, totals)
        spread = totals.spreads(_usual(block, weighted, totals) + weighted.beta)
        noise = summed_by(block.lists.document, spread, len(block.documents))  # of a document like others at its ranks
        size = np.maximum(examined, 1.0)
        for k, values in enumerate((((relevant - usual) ** 2 - noise) / size, examined**2 / size)):
            found[k] = np.cumsum(np.append(found[k], values))[-1]  # one after the other, so that blocks do not matter
    variance = max(found[0] / found[1], 1e-9)
    return float(np.clip(_spread(totals) / variance - 1.0, 0.1, 1e4))


def _spread(totals: ClickTotals) -> float:
    """Return the variance of a click on an examined average document."""
    return float(totals.spreads(np.array(totals.relevance)))


def _judged(
    block: LogBlock,
    options: JudgeOptions,
    propensities: Propensities | None,
    estimate: ClickEstimate,
    totals: ClickTotals,
    a: float,
) -> JudgedDocuments:
    document, n = block.lists.document, len(block.documents)
    weighted = weighted_clicks(block, options.clip, propensities)
    impressions = np.bincount(document, minlength=n)
    clicks = np.bincount(document[block.lists.clicked > 0], minlength=n)
    shown = impressions.astype(np.float64)
    noisy = max(a, 1.0)  # a document without clicks is not certainly irrelevant
    weight: Floats | None = None
    with np.errstate(divide="ignore", invalid="ignore"):
        prior: Floats | float = _spread(totals) / (a + 1.0)
        if estimate == "dctr":
            m, clicked = totals.relevance, clicks.astype(np.float64)
            label = (clicked + a * m) / (shown + a)
            variance = totals.spreads((clicked + noisy * m) / (shown + noisy)) / (shown + a + 1.0)
        else:
            relevant, examined, usual = _examined(block, weighted, totals)
            y = np.maximum((relevant + a * usual / examined) / (examined + a), 0.0)
            likely = np.maximum((relevant + noisy * usual / examined) / (examined + noisy), 0.0)
            chance = np.clip(weighted.alpha * likely[document] + weighted.beta, 0.0, 1.0)
            spread = totals.spreads(chance)
            if estimate == "pbm":
                label = y
                variance = (summed_by(document, spread, n) + a * a * prior) / (examined + a) ** 2
                weight = examined / (examined + noisy)
            else:
                variance = summed_by(document, spread / weighted.divisor**2, n) / (shown * shown)
                label = summed_by(document, weighted.corrected, n) / shown
                if estimate == "snips":
                    scale = _mean_weight(block, weighted.clicked - weighted.beta, weighted.corrected, totals)
                    label, variance, prior = label / scale, variance / scale**2, prior / scale**2
        weight = prior / (prior + variance) if weight is None else weight
    label = np.where(impressions > 0, label, np.nan)
    return JudgedDocuments(label, variance, weight, impressions, clicks)


def _mean_weight(block: LogBlock, value: Floats, corrected: Floats, totals: ClickTotals) -> Floats:
    """Return for each document the mean weight of a click of its query; of the log for queries without clicks."""
    sizes = np.diff(block.document_start)
    query = np.repeat(np.arange(len(sizes)), sizes)
    sums = [summed_by(query[block.lists.document], column, len(sizes)) for column in (corrected, value)]
    usable = (sums[0] > 0.0) & (sums[1] > 0.0)
    whole = max(totals.corrected, 1e-9) / max(totals.clicks - totals.trusted, 1e-9)
    scale: Floats = np.where(usable, sums[0] / np.where(usable, sums[1], 1.0), whole)
    return scale[query]
