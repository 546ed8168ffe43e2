"""Log-loss of two classes with a shift of the scores for each query.  The objective checks the arguments."""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.elementary import LN2, log2_positive, sigmoid, softplus

_MOST_STEPS = 200
_NOTHING = 1e-15  # share of the sum of weights that counts as 0


@kernel
def best_shift(scores, classes, weights, first, last):
    """Return (c, sum of w, whether there is one) for the rows first .. last.

    c solves: sum of w / (1 + exp(-(s + c))) = sum of w y.

    There is none if only one class has weight.  The sum increases with c, and c is between the log odds minus the
    highest score and minus the lowest: Newton's steps, or bisection if one leaves that range.
    """
    ones, zeros, highest, lowest = 0.0, 0.0, -np.inf, np.inf
    for row in range(first, last):
        if classes[row] > 0.5:
            ones += weights[row]
        else:
            zeros += weights[row]
        highest, lowest = max(highest, scores[row]), min(lowest, scores[row])
    total = ones + zeros
    if ones == 0.0 or zeros == 0.0:
        return 0.0, total, False
    odds = (log2_positive(ones) - log2_positive(zeros)) * LN2
    low, high = odds - highest, odds - lowest
    shift = 0.5 * (low + high)
    for _ in range(_MOST_STEPS):
        excess, slope = -ones, 0.0
        for row in range(first, last):
            p = sigmoid(scores[row] + shift)
            excess += weights[row] * p
            slope += weights[row] * p * (1.0 - p)
        if abs(excess) <= _NOTHING * total:
            break
        if excess > 0.0:
            high = shift
        else:
            low = shift
        shift = shift - excess / slope if slope > 0.0 else low
        if not low < shift < high:
            shift = 0.5 * (low + high)
            if shift in (low, high):
                break
    return shift, total, True


@kernel
def query_logit_gradients(
    scores, starts, first_query, last_query, classes, weights, alpha, of_row, of_query, gradients, hessians
):
    """(1 - alpha) of the log-loss of s and alpha of that of s + c, c the best of the list: g, and h without its pairs.

    At the best c the derivative by c is 0, so g = w (p - y) for both, and the Hessian of the second is
    diag(d) - d d' / sum of d with d = w p (1 - p).  ``of_row``: d; ``of_query``: alpha / sum of d, 0 if there is no c.
    """
    for q in range(first_query, last_query):
        first, last = starts[q], starts[q + 1]
        shift, _, found = best_shift(scores, classes, weights, first, last)
        for row in range(first, last):
            w, p, miss = weights[row], sigmoid(scores[row]), sigmoid(-scores[row])
            gradients[row] = (1.0 - alpha) * w * (-miss if classes[row] > 0.5 else p)
            hessians[row] = (1.0 - alpha) * w * p * miss
            of_row[row] = 0.0
        of_query[q] = 0.0
        if not found:
            continue
        total = 0.0
        for row in range(first, last):
            x = scores[row] + shift
            of_row[row] = weights[row] * sigmoid(x) * sigmoid(-x)
            total += of_row[row]
        if total == 0.0:
            continue
        of_query[q] = alpha / total
        for row in range(first, last):
            x, w, d = scores[row] + shift, weights[row], of_row[row]
            gradients[row] += alpha * w * (-sigmoid(-x) if classes[row] > 0.5 else sigmoid(x))
            hessians[row] += alpha * d * ((total - d) / total)


@kernel
def query_logit_losses(scores, starts, classes, weights, alpha, out):
    """Write out[q] = the sum of w ((1 - alpha) log-loss of s + alpha log-loss of s + c)."""
    for q in range(out.shape[0]):
        shift, _, found = best_shift(scores, classes, weights, starts[q], starts[q + 1])
        loss = 0.0
        for row in range(starts[q], starts[q + 1]):
            s = -scores[row] if classes[row] > 0.5 else scores[row]
            loss += (1.0 - alpha) * weights[row] * softplus(s)
            if found:
                c = -shift if classes[row] > 0.5 else shift
                loss += alpha * weights[row] * softplus(s + c)
        out[q] = loss
