"""Expectation maximisation over counts, and predictions over result lists.

A cell is what one examination probability is for: a rank (position-based model), a rank and the rank of the last click
(user browsing model), or "went on after a click at this rank" (dependent click model).  A row is a document in a cell.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.arrays import copy_to
from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.elementary import log_positive
from rankmill.foundation.kernels.randoms import random_bits, uniform

LEAST = 1e-6  # predicted probabilities are kept in [LEAST, 1 - LEAST]


@kernel
def poisson_weights(session, replicate, thresholds, out):
    """Set out[i] to a Poisson(1) number that depends on the session and the replicate.

    It is the number of thresholds that its draw reaches.
    """
    for i in range(session.shape[0]):
        draw = uniform(random_bits(session[i], replicate))
        n = 0
        while n < thresholds.shape[0] and draw >= thresholds[n]:
            n += 1
        out[i] = n


@kernel
def connect(document, cell, clicks_of, parent):
    """Join cells in which the same clicked document was shown; ``parent`` (cells,) is a forest, IN as arange."""
    first, of = -1, -1
    for i in range(document.shape[0]):  # rows ascend by document
        if clicks_of[document[i]] <= 0.0:
            continue
        if document[i] != of:
            of, first = document[i], cell[i]
            continue
        a, b = _root(parent, first), _root(parent, cell[i])
        parent[max(a, b)] = min(a, b)


@kernel
def _root(parent, cell):
    while parent[cell] != cell:
        parent[cell] = parent[parent[cell]]
        cell = parent[cell]
    return cell


@kernel
def _step(rows, free, parameters, sums, out):
    """Write parameters after one step of EM to ``out``; return the log-likelihood of ``parameters``.

    A user examines the document for its relevance (theta), clicks without reason (trust), or does neither.
    """
    document, cell, shown, clicks = rows
    cells = free.shape[0] // 2
    first = 2 * cells
    relevant, n_of = sums[0], sums[1]
    relevant[:], n_of[:] = 0.0, 0.0
    total = 0.0
    for i in range(document.shape[0]):
        d, c, n, k = document[i] + first, cell[i], shown[i], clicks[i]
        if n <= 0.0:
            continue
        t, b, g = parameters[c], parameters[cells + c], parameters[d]
        chance = t * g + b
        skipped = max(1.0 - chance, 1e-300)
        total += k * log_positive(max(chance, 1e-300)) if k > 0.0 else 0.0
        total += (n - k) * log_positive(skipped) if n > k else 0.0
        unseen = (n - k) / skipped
        found = k if b == 0.0 else k * t * g / max(chance, 1e-300)
        examined = found + unseen * t * (1.0 - g)
        relevant[c] += examined
        n_of[c] += n
        relevant[cells + c] += k - found
        n_of[cells + c] += n
        relevant[d] += found
        n_of[d] += examined
        if b == 0.0:  # documents of unexamined skips may be relevant, too: the same maximum in fewer steps
            relevant[d] += unseen * g * (1.0 - t)
            n_of[d] += n - examined
    for j in range(parameters.shape[0]):
        fixed = n_of[j] <= 0.0 or (j < first and not free[j])
        out[j] = parameters[j] if fixed else relevant[j] / n_of[j]
    return total


@kernel
def maximise(rows, free, tolerance, parameters, scratch, trace):
    """Run EM for ``P(click) = theta[cell] gamma[document] + trust[cell]`` until it converges.

    Return the length of ``trace``.

    The length is negative if it did not converge.  EM is slow where most impressions are unexamined, so that each pair
    of steps is extrapolated (SQUAREM, Varadhan and Roland 2008, step length S3); an extrapolation that lowers the
    likelihood is dropped.

    rows        document, cell, shown, clicks (rows,); shown and clicks are real numbers
    free        (2 cells,) 1 where theta, then trust, is estimated, 0 where it stays
    tolerance   stop when no theta, relative to the first, and no trust changes by this share in a step, or the
                log-likelihood by a hundred times this number
    parameters  (2 cells + documents,) theta, trust and gamma, IN the start, OUT the estimates
    scratch     (6, 2 cells + documents)
    trace       (most steps,) OUT the log-likelihood before each step that was kept and after the last, ascending
    """
    cells, x1, x2, ahead, after = free.shape[0] // 2, scratch[2], scratch[3], scratch[4], scratch[5]
    sums = scratch[:2]
    steps = kept = 0
    likelihood = _step(rows, free, parameters, sums, x1)
    while steps + 3 <= trace.shape[0]:
        trace[kept] = likelihood
        kept += 1
        if kept > 1 and likelihood - trace[kept - 2] < 100.0 * tolerance:
            return kept
        between = _step(rows, free, x1, sums, x2)
        steps += 2
        change = 0.0
        for c in range(cells):
            if free[c] and parameters[c] > 0.0 and x1[0] > 0.0:
                change = max(change, abs(x1[c] / x1[0] * parameters[0] / parameters[c] - 1.0))
            if free[cells + c]:
                change = max(change, abs(x1[cells + c] - parameters[cells + c]) / max(parameters[cells + c], 1e-3))
        if change < tolerance:
            copy_to(parameters, x2)
            trace[kept] = _step(rows, free, parameters, sums, x1)
            return kept + 1
        square_r = square_v = 0.0
        for j in range(parameters.shape[0]):
            r = x1[j] - parameters[j]
            v = x2[j] - x1[j] - r
            square_r += r * r
            square_v += v * v
        length = np.sqrt(square_r / square_v) if square_v > 0.0 else 1.0
        if length <= 1.0:
            copy_to(parameters, x2)
            likelihood = _step(rows, free, parameters, sums, x1)
            continue
        for j in range(parameters.shape[0]):
            r = x1[j] - parameters[j]
            v = x2[j] - x1[j] - r
            ahead[j] = min(max(parameters[j] + 2.0 * length * r + length * length * v, 1e-9), 1.0)
            if x2[j] == 0.0 or (j < 2 * cells and not free[j]):
                ahead[j] = x2[j]
        for c in range(cells):
            if ahead[c] + ahead[cells + c] > 1.0:  # a user does one of the two
                ahead[c], ahead[cells + c] = x2[c], x2[cells + c]
        there = _step(rows, free, ahead, sums, after)
        steps += 1
        if there >= between:
            copy_to(parameters, ahead)
            copy_to(x1, after)
            likelihood = there
        else:
            copy_to(parameters, x2)
            likelihood = _step(rows, free, parameters, sums, x1)
    return -kept


@kernel
def relevance_given(document, theta, trust, shown, clicks, prior, out):
    """Set out[d] to the gamma that maximises the likelihood of the rows of d, by bisection.

    (rows,) are in ascending order of document.

    The derivative of clicks log(theta gamma + trust) + skips log(1 - theta gamma - trust), and of the prior, falls.
    """
    i = 0
    while i < document.shape[0]:
        first, d = i, document[i]
        high = 1.0
        while i < document.shape[0] and document[i] == d:
            high = min(high, (1.0 - trust[i]) / theta[i])
            i += 1
        low = 0.0
        for _ in range(50):
            gamma = 0.5 * (low + high)
            slope = prior[0] / gamma - prior[1] / (1.0 - gamma)
            for j in range(first, i):
                chance = theta[j] * gamma + trust[j]
                slope += theta[j] * (clicks[j] / chance - (shown[j] - clicks[j]) / (1.0 - chance))
            if slope > 0.0:
                low = gamma
            else:
                high = gamma
        out[d] = 0.5 * (low + high)


@kernel(allocates=True)
def add_pairs(document, rank, shown, clicks, ranks, weighted, unclicked):
    """Add click-through rates of documents shown at two ranks to ``weighted[k, l]``.

    The rest goes to ``unclicked`` (ranks, ranks).

    ``[k, l]`` is the rate at k of documents that were also shown at l (Agarwal et al. 2019, equations 5 and 6).
    """
    n, c = np.zeros(ranks), np.zeros(ranks)
    i = 0
    while i < document.shape[0]:
        d = document[i]
        n[:], c[:] = 0.0, 0.0
        while i < document.shape[0] and document[i] == d:
            n[rank[i] - 1] += shown[i]
            c[rank[i] - 1] += clicks[i]
            i += 1
        for k in range(ranks):
            if n[k] > 0.0:
                for other in range(ranks):
                    if other != k and n[other] > 0.0:
                        weighted[k, other] += c[k] / n[k]
                        unclicked[k, other] += 1.0 - c[k] / n[k]


@kernel
def follow_lists(start, document, rank, clicked, keep, gamma, examination, continuation, trust, out):
    """Predict each click from the clicks above it, for lists with ``keep``; sums by rank.

    The user continues with probability ``going``, which is updated by Bayes' rule after a skip and is ``continuation``
    after a click.
    ``out`` (4, ranks): impressions, log-likelihood, probabilities of examination, clicks.
    """
    ranks = continuation.shape[0]
    for q in range(start.shape[0] - 1):
        if not keep[q]:
            continue
        going, last = 1.0, 0
        for i in range(start[q], start[q + 1]):
            if rank[i] > ranks:
                break
            k = rank[i] - 1
            examined = going * examination[k, last]
            relevance = gamma[document[i]]
            chance = min(max(examined * relevance + going * trust[k], LEAST), 1.0 - LEAST)
            out[0, k] += 1.0
            out[1, k] += log_positive(chance if clicked[i] else 1.0 - chance)
            out[2, k] += examined
            out[3, k] += clicked[i]
            if clicked[i]:
                going, last = continuation[k], rank[i]
            else:
                here = examination[k, last] * relevance + trust[k]
                going = going * (1.0 - here) / max(1.0 - going * here, LEAST)
