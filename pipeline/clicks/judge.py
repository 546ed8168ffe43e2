r"""Make judgments from clicks: how relevant each document of a log is, how sure that is, and which documents are preferred.

A document d was shown n times, at ranks k_i, with the value c_i of its click (0: none).  Examination is alpha_k, the trust in a rank is
beta_k, and a and m are the strength and the mean of a prior: a impressions of an average document.  The estimates are

    dctr    (sum c_i + a m) / (n + a): the click-through rate of the document
    coec    (sum c_i + a m) / (sum r_i + a m): clicks over expected clicks, r_k the click-through rate of all documents at rank k
    pbm     the gamma with the greatest posterior probability under P(c_i = 1) = alpha_i gamma, prior Beta(a m + 1, a (1 - m) + 1)
    ips     (1 / n) sum (c_i - beta_i) / max(alpha_i, tau): inverse propensity, clipped at tau
    snips   ips, divided by the mean weight of a click of the query, so that it does not depend on the scale of alpha
    dr      y + (1 / n) sum (c_i - beta_i - alpha_i y) / max(alpha_i, tau), with the shrunken estimate
            y = (sum (c_i - beta_i) + a m) / (sum alpha_i + a): what clipping takes from ips is filled in by y (Oosterhuis 2022)

Each has a variance, from that of the clicks given the estimate.  The weight of a judgment is v / (v + variance), v being the variance that
the prior gives to relevance: the share of the variance of estimates that is not noise.  It is below 1, the weight of a person's judgment.

Sources: Zhang and Jones 2007 (coec), Joachims et al. 2017 (ips), Swaminathan and Joachims 2015 (snips), Vardasbi et al. 2020 (beta).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled
from rankmill.pipeline.clicks.judge_options import WITHOUT_PROPENSITIES, ClickEstimate, JudgeOptions
from rankmill.pipeline.clicks.models import _kernels as kernels
from rankmill.pipeline.clicks.propensities import Propensities
from rankmill.pipeline.clicks.result_lists import ClickLog, LogBlock
from rankmill.pipeline.clicks.weighted_clicks import ClickTotals, Counts, Floats, log_totals, summed_by, weighted_clicks


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
    """(documents,) also those that count nothing."""


def estimate_of(options: JudgeOptions, propensities: Propensities | None) -> ClickEstimate:
    """Return the estimate that ``options`` choose; InputError if it does not go with the propensities."""
    estimate = options.estimate or ("dctr" if propensities is None else "ips")
    if estimate in WITHOUT_PROPENSITIES and propensities is not None:
        raise InputError(
            f"{spelled('estimate')} {estimate} does not use {spelled('propensities')}; leave it out, or estimate ips"
        )
    if estimate == "pbm" and options.weighting.conversion_weight > 0.0:
        raise InputError(
            f"{spelled('estimate')} pbm models clicks, which happen or not; {spelled('conversion_weight')} goes with ips, snips or dr"
        )
    if estimate == "pbm" and propensities is not None and propensities.trust is not None:
        raise InputError(
            f"{spelled('estimate')} pbm has no trust in ranks, which these propensities have; use ips, snips or dr"
        )
    return estimate


def judge_documents(
    log: ClickLog, options: JudgeOptions | None = None, propensities: Propensities | None = None
) -> Iterator[tuple[LogBlock, JudgedDocuments]]:
    """Yield each block of ``log`` with the estimates for its documents; the log is read twice.

    Raises
    ------
    InputError
        Options do not go together, or with the log.
    DataRejected
        No click of the log counts.
    """
    options = options or JudgeOptions()
    estimate = estimate_of(options, propensities)
    corrected = estimate not in WITHOUT_PROPENSITIES
    totals = log_totals(log, options.weighting, propensities, corrected=corrected)
    for block in log.blocks():
        yield block, _judged(block, options, propensities, estimate, totals)


def _judged(
    block: LogBlock,
    options: JudgeOptions,
    propensities: Propensities | None,
    estimate: ClickEstimate,
    totals: ClickTotals,
) -> JudgedDocuments:
    document, n = block.lists.document, len(block.documents)
    weighted = weighted_clicks(block, options.weighting, propensities, corrected=estimate not in WITHOUT_PROPENSITIES)
    impressions = np.bincount(document, minlength=n)
    clicks = np.bincount(document[block.lists.clicked > 0], minlength=n)
    shown = impressions.astype(np.float64)
    value, a = summed_by(document, weighted.value, n), options.shrinkage
    prior: Floats | float
    noisy = max(a, 1.0)  # a document without clicks is not certainly irrelevant
    with np.errstate(divide="ignore", invalid="ignore"):
        if estimate in WITHOUT_PROPENSITIES:
            m = totals.mean
            label = (value + a * m) / (shown + a)
            variance = totals.spreads((value + noisy * m) / (shown + noisy)) / (shown + a + 1.0)
            prior = totals.spread(m) / (a + 1.0)
            if estimate == "coec":
                rate = np.append(totals.rate, 0.0)[np.minimum(block.lists.rank, len(totals.rate)) - 1]
                expected = summed_by(document, rate, n) + a * m
                variance *= ((shown + a) / expected) ** 2
                label = (value + a * m) / expected
                prior /= m * m
        else:
            m = totals.relevance
            examined = summed_by(document, weighted.alpha, n)
            trusted = summed_by(document, weighted.beta, n)
            y = np.maximum((value - trusted + a * m) / (examined + a), 0.0)
            prior = totals.spread(m) / (a + 1.0)
            if estimate == "pbm":
                label, variance = _position_based(document, weighted.alpha, weighted.value, (a * m, a * (1.0 - m)), n)
            else:
                likely = np.maximum((value - trusted + noisy * m) / (examined + noisy), 0.0)
                chance = np.clip(weighted.alpha * likely[document] + weighted.beta, 0.0, 1.0)
                noise = totals.spreads(chance) / weighted.divisor**2
                variance = summed_by(document, noise, n) / (shown * shown)
                label = summed_by(document, weighted.corrected, n) / shown
                if estimate == "dr":
                    label += y * (1.0 - summed_by(document, weighted.alpha / weighted.divisor, n) / shown)
                if estimate == "snips":
                    scale = _mean_weight(block, weighted.value - weighted.beta, weighted.corrected, totals)
                    label, variance, prior = label / scale, variance / scale**2, prior / scale**2
    label = np.where(impressions > 0, label, np.nan)
    return JudgedDocuments(label, variance, prior / (prior + variance), impressions, clicks)


def _position_based(
    document: Counts, alpha: Floats, clicked: Floats, prior: tuple[float, float], n: int
) -> tuple[Floats, Floats]:
    """Return the mode of each document's posterior and its variance, the inverse of the curvature there, (n,)."""
    order = np.lexsort((alpha, document))
    of, theta, clicks = document[order], alpha[order], (clicked[order] > 0.0).astype(np.float64)
    first = np.flatnonzero(np.concatenate([[True], (np.diff(of) != 0) | (np.diff(theta) != 0)])) if len(of) else order
    shown = np.diff(np.append(first, len(of))).astype(np.float64)
    of, theta, clicks = of[first], theta[first], np.add.reduceat(clicks, first) if len(first) else clicks
    gamma = np.full(n, np.nan)
    kernels.relevance_given(of, theta, np.zeros(len(of)), shown, clicks, np.array(prior), gamma)
    skipped = (shown - clicks) * (theta / (1.0 - theta * gamma[of])) ** 2
    curvature = (summed_by(of, clicks, n) + prior[0]) / gamma**2 + summed_by(of, skipped, n)
    return gamma, 1.0 / (curvature + prior[1] / (1.0 - gamma) ** 2)


def _mean_weight(block: LogBlock, value: Floats, corrected: Floats, totals: ClickTotals) -> Floats:
    """Return for each document the mean weight of a click of its query; of the log for queries without clicks."""
    sizes = np.diff(block.document_start)
    query = np.repeat(np.arange(len(sizes)), sizes)
    sums = [summed_by(query[block.lists.document], column, len(sizes)) for column in (corrected, value)]
    usable = (sums[0] > 0.0) & (sums[1] > 0.0)
    whole = max(totals.corrected, 1e-9) / max(totals.value - totals.trusted, 1e-9)
    scale: Floats = np.where(usable, sums[0] / np.where(usable, sums[1], 1.0), whole)
    return scale[query]
