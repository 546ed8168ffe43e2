"""Losses of single documents, and leaf values other than Newton's.  The objectives check the arguments.

Every loss has a kernel for its derivatives, which writes g and h of the rows first .. last, and one for its parts.
If ``weights`` is empty, all weights are 1.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.elementary import (
    exp_clipped,
    exp_negative,
    log_positive,
    sigmoid,
    softplus,
)

_STEEPEST = 300.0  # exponents of adaboost are clamped to this: products and sums of exp(300) are finite
_RUN = 16  # values sorted by insertion before runs are merged
_EQUAL = 1e-10  # relative mass within which a quantile is reached exactly


@kernel
def weighted_mean(values, weights):
    """Sum of w v / sum of w, added up row by row."""
    weighted = weights.shape[0] > 0
    total, mass = 0.0, 0.0
    for row in range(values.shape[0]):
        w = weights[row] if weighted else 1.0
        total += w * values[row]
        mass += w
    return total / mass


# ---- squared, absolute and Huber's error -------------------------------------------------------------------------


@kernel
def squared_error(scores, targets, weights, first, last, gradients, hessians):
    """Loss w (y - s)^2 / 2:  g = w (s - y), h = w."""
    weighted = weights.shape[0] > 0
    for row in range(first, last):
        w = weights[row] if weighted else 1.0
        gradients[row] = w * (scores[row] - targets[row])
        hessians[row] = w


@kernel
def check_function(scores, targets, weights, above, below, first, last, gradients, hessians):
    """Loss w (above max(y - s, 0) + below max(s - y, 0)):  g = -w above where y > s, w below where y < s, else 0.

    The hessian is 0 almost everywhere; w is written.
    """
    weighted = weights.shape[0] > 0
    for row in range(first, last):
        w = weights[row] if weighted else 1.0
        residual = targets[row] - scores[row]
        if residual > 0.0:
            gradients[row] = -w * above
        elif residual < 0.0:
            gradients[row] = w * below
        else:
            gradients[row] = 0.0
        hessians[row] = w


@kernel
def huber(scores, targets, weights, delta, first, last, gradients, hessians):
    """Loss w r^2 / 2 where |r| <= delta, w delta (|r| - delta / 2) beyond, r = y - s.  The hessian written is w."""
    weighted = weights.shape[0] > 0
    for row in range(first, last):
        w = weights[row] if weighted else 1.0
        gradients[row] = w * min(max(scores[row] - targets[row], -delta), delta)
        hessians[row] = w


# ---- weighted quantiles ------------------------------------------------------------------------------------------


@kernel
def sort_by_value(values, mass, first, last, spare_values, spare_mass):
    """Sort ``values[first:last]`` ascending, ``mass`` along with them and ascending among equals.

    Sums in this order therefore do not depend on the initial order.  Merge sort from runs of 16; the spare arrays are
    scratch for the same range.
    """
    for start in range(first, last, _RUN):
        for i in range(start + 1, min(last, start + _RUN)):
            value, m = values[i], mass[i]
            j = i
            while j > start and (values[j - 1] > value or (values[j - 1] == value and mass[j - 1] > m)):
                values[j], mass[j] = values[j - 1], mass[j - 1]
                j -= 1
            values[j], mass[j] = value, m
    run = _RUN
    while run < last - first:
        for start in range(first, last, 2 * run):
            middle, end = min(last, start + run), min(last, start + 2 * run)
            if middle >= end or values[middle - 1] < values[middle]:
                continue
            for i in range(start, middle):
                spare_values[i], spare_mass[i] = values[i], mass[i]
            i, j, k = start, middle, start
            while i < middle:
                later = j < end and (
                    values[j] < spare_values[i] or (values[j] == spare_values[i] and mass[j] < spare_mass[i])
                )
                if later:
                    values[k], mass[k] = values[j], mass[j]
                    j += 1
                else:
                    values[k], mass[k] = spare_values[i], spare_mass[i]
                    i += 1
                k += 1
        run *= 2


@kernel
def quantile_of_sorted(values, mass, first, last, alpha):
    """Weighted quantile of ascending values: the least v for which the values up to v hold alpha of the mass.

    If they hold exactly alpha (to 1e-10), the midpoint of v and the next value with mass: then the quantile alpha of -v
    is minus the quantile 1 - alpha of v, and the median of 1, 2 is 1.5.  0 if there is no mass.
    """
    total = 0.0
    for i in range(first, last):
        total += mass[i]
    if not total > 0.0:
        return 0.0
    below, tolerance = 0.0, _EQUAL * total
    for i in range(first, last):
        below += mass[i]
        if mass[i] > 0.0 and below >= alpha * total - tolerance:
            if below <= alpha * total + tolerance:
                for j in range(i + 1, last):
                    if mass[j] > 0.0:
                        return values[i] + 0.5 * (values[j] - values[i])
            return values[i]
    return 0.0


@kernel
def leaf_quantiles(
    scores, targets, weights, alpha, rows, starts, first_leaf, last_leaf, values, mass, spare_values, spare_mass, out
):
    """out[l] = weighted alpha-quantile of the residuals y - s of ``rows[starts[l]:starts[l + 1]]``.

    The four buffers are as long as ``rows``; ``values`` and ``mass`` then hold each leaf's sorted residuals.
    """
    weighted = weights.shape[0] > 0
    for leaf in range(first_leaf, last_leaf):
        first, last = starts[leaf], starts[leaf + 1]
        for i in range(first, last):
            row = rows[i]
            values[i] = targets[row] - scores[row]
            mass[i] = weights[row] if weighted else 1.0
        sort_by_value(values, mass, first, last, spare_values, spare_mass)
        out[leaf] = quantile_of_sorted(values, mass, first, last, alpha)


@kernel
def leaf_clipped_means(starts, first_leaf, last_leaf, values, mass, delta, out):
    """Add to out[l], the median of a leaf, the mean of (residual - median), clipped to +-delta."""
    for leaf in range(first_leaf, last_leaf):
        total, clipped = 0.0, 0.0
        for i in range(starts[leaf], starts[leaf + 1]):
            total += mass[i]
            clipped += mass[i] * min(max(values[i] - out[leaf], -delta), delta)
        if total > 0.0:
            out[leaf] += clipped / total


@kernel
def quantile_of_sizes(scores, targets, weights, alpha, values, mass, spare_values, spare_mass):
    """Weighted alpha-quantile of |y - s|; the four buffers are as long as ``scores``."""
    weighted = weights.shape[0] > 0
    n = scores.shape[0]
    for row in range(n):
        values[row] = abs(targets[row] - scores[row])
        mass[row] = weights[row] if weighted else 1.0
    sort_by_value(values, mass, 0, n, spare_values, spare_mass)
    return quantile_of_sorted(values, mass, 0, n, alpha)


# ---- two classes -------------------------------------------------------------------------------------------------


@kernel
def logistic(scores, targets, weights, slope, first, last, gradients, hessians):
    """Loss w (log(1 + e^(slope s)) - y slope s), y in {0, 1}:  g = w slope (p - y), h = w slope^2 p (1 - p)."""
    weighted = weights.shape[0] > 0
    for row in range(first, last):
        w = weights[row] if weighted else 1.0
        e = exp_negative(-abs(slope * scores[row]))
        rare = e / (1.0 + e)  # the probability of the less likely class
        likely = 1.0 / (1.0 + e)
        p_is_likely = scores[row] >= 0.0
        if targets[row] > 0.5:
            gradients[row] = -w * slope * (rare if p_is_likely else likely)
        else:
            gradients[row] = w * slope * (likely if p_is_likely else rare)
        hessians[row] = w * slope * slope * rare * likely


@kernel
def logistic_losses(scores, targets, weights, slope, out):
    """out[row] = w log(1 + exp(-slope s)) where y is 1, w log(1 + exp(slope s)) where it is 0."""
    weighted = weights.shape[0] > 0
    for row in range(out.shape[0]):
        x = -slope * scores[row] if targets[row] > 0.5 else slope * scores[row]
        out[row] = (weights[row] if weighted else 1.0) * softplus(x)


@kernel
def logistic_start(offsets, targets, weights, slope):
    """Return the f that minimises the logistic loss of scores o + f; both classes have weight.

    Newton's steps from 0, as gbm takes them, kept inside a bracket that always holds the solution: with b the log odds
    of the classes, b - max(o) <= f <= b - min(o) in units of the logit.  The sum is monotone in f, so a step that
    leaves the bracket is replaced by its middle.
    """
    weighted = weights.shape[0] > 0
    n = targets.shape[0]
    ones, zeros, least, most = 0.0, 0.0, np.inf, -np.inf
    for row in range(n):
        w = weights[row] if weighted else 1.0
        o = slope * offsets[row] if offsets.shape[0] > 0 else 0.0
        if w > 0.0:
            least, most = min(least, o), max(most, o)
            if targets[row] > 0.5:
                ones += w
            else:
                zeros += w
    odds = log_positive(ones / zeros)
    if least == most:
        return (odds - least) / slope
    low, high = odds - most, odds - least
    f = min(max(0.0, low), high)
    for _ in range(200):
        force, hessian = 0.0, 0.0
        for row in range(n):
            w = weights[row] if weighted else 1.0
            p = sigmoid(slope * offsets[row] + f)
            force += w * ((1.0 if targets[row] > 0.5 else 0.0) - p)
            hessian += w * p * (1.0 - p)
        if force > 0.0:
            low = f
        else:
            high = f
        following = f + force / hessian if hessian > 0.0 else np.inf
        if not (low <= following <= high):
            following = low + 0.5 * (high - low)
        if abs(following - f) <= 1e-14 * (1.0 + abs(f)):
            f = following
            break
        f = following
    return f / slope


@kernel
def exponential_loss(scores, targets, weights, first, last, gradients, hessians):
    """Loss w exp(-(2y - 1) s), y in {0, 1}:  g = -(2y - 1) loss, h = loss."""
    weighted = weights.shape[0] > 0
    for row in range(first, last):
        w = weights[row] if weighted else 1.0
        sign = 1.0 if targets[row] > 0.5 else -1.0
        loss = w * exp_clipped(min(max(-sign * scores[row], -_STEEPEST), _STEEPEST))
        gradients[row] = -sign * loss
        hessians[row] = loss


@kernel
def exponential_losses(scores, targets, weights, out):
    """out[row] = w exp(-(2y - 1) s)."""
    weighted = weights.shape[0] > 0
    for row in range(out.shape[0]):
        x = -scores[row] if targets[row] > 0.5 else scores[row]
        out[row] = (weights[row] if weighted else 1.0) * exp_clipped(min(max(x, -_STEEPEST), _STEEPEST))


@kernel
def exponential_start(offsets, targets, weights):
    """Half the logarithm of sum y w e^-o / sum (1 - y) w e^o; both classes have weight."""
    weighted = weights.shape[0] > 0
    ones, zeros = 0.0, 0.0
    for row in range(targets.shape[0]):
        w = weights[row] if weighted else 1.0
        o = offsets[row] if offsets.shape[0] > 0 else 0.0
        if targets[row] > 0.5:
            ones += w * exp_clipped(min(max(-o, -_STEEPEST), _STEEPEST))
        else:
            zeros += w * exp_clipped(min(max(o, -_STEEPEST), _STEEPEST))
    return 0.5 * (log_positive(ones) - log_positive(zeros))


@kernel
def paper_steps(scores, targets, scales, weights, rows, starts, first_leaf, last_leaf, out):
    """out[l] = sum w yt / sum w |yt (2 - |yt|)|, yt = scale (y - p) (the notes on LogistRank, step 3).

    The denominator is Newton's, sum w scale p (1 - p), if that is greater: terms vanish at |yt| = 2.
    """
    weighted = weights.shape[0] > 0
    for leaf in range(first_leaf, last_leaf):
        force, printed, newton = 0.0, 0.0, 0.0
        for i in range(starts[leaf], starts[leaf + 1]):
            row = rows[i]
            w = weights[row] if weighted else 1.0
            up = targets[row] > 0.5
            size = sigmoid(-scores[row] if up else scores[row])  # |y - p|
            response = scales[row] * size
            force += w * (response if up else -response)
            printed += w * abs(response * (2.0 - response))
            newton += w * response * (1.0 - size)
        below = max(printed, newton)
        out[leaf] = force / below if below > 0.0 else 0.0


# ---- counts ------------------------------------------------------------------------------------------------------


@kernel
def counts(scores, targets, weights, limit, first, last, gradients, hessians):
    """Loss w (e^c + (s - c) e^c - y s), c = s clamped to +-limit:  g = w (e^c - y), h = w e^c."""
    weighted = weights.shape[0] > 0
    for row in range(first, last):
        w = weights[row] if weighted else 1.0
        mean = exp_clipped(min(max(scores[row], -limit), limit))
        gradients[row] = w * (mean - targets[row])
        hessians[row] = w * mean


@kernel
def counts_losses(scores, targets, weights, limit, out):
    """out[row] = w (e^c + (s - c) e^c - y s), c = s clamped to +-limit: continued as a straight line."""
    weighted = weights.shape[0] > 0
    for row in range(out.shape[0]):
        c = min(max(scores[row], -limit), limit)
        part = exp_clipped(c) * (1.0 + (scores[row] - c)) - targets[row] * scores[row]
        out[row] = (weights[row] if weighted else 1.0) * part


@kernel
def counts_steps(scores, targets, weights, limit, rows, starts, first_leaf, last_leaf, out):
    """out[l] = log(sum w y / sum w e^s) of a leaf, limited so that no score of the leaf passes +-limit.

    A leaf in which all y are 0 moves its lowest score to the limit.  0 if there is no weight.
    """
    weighted = weights.shape[0] > 0
    for leaf in range(first_leaf, last_leaf):
        seen, expected, least, most = 0.0, 0.0, np.inf, -np.inf
        for i in range(starts[leaf], starts[leaf + 1]):
            row = rows[i]
            w = weights[row] if weighted else 1.0
            if w > 0.0:
                s = min(max(scores[row], -limit), limit)
                seen += w * targets[row]
                expected += w * exp_clipped(s)
                least, most = min(least, s), max(most, s)
        step = 0.0
        if expected > 0.0:
            step = log_positive(seen / expected) if seen > 0.0 else -limit - least
            step = max(min(step, limit - most), -limit - least)
        out[leaf] = step


# ---- grades as classes -------------------------------------------------------------------------------------------


@kernel
def softmax(scores, grades, weights, factor, first, last, gradients, hessians):
    """Loss -w log p_y with p = softmax of the outputs:  g_k = w (p_k - [y = k]), h_k = factor w p_k (1 - p_k).

    Arrays are (n_outputs, n_rows); a grade beyond the outputs counts as the highest.
    """
    weighted = weights.shape[0] > 0
    n_outputs = scores.shape[0]
    for row in range(first, last):
        w = weights[row] if weighted else 1.0
        top = scores[0, row]
        for k in range(1, n_outputs):
            top = max(top, scores[k, row])
        total = 0.0
        for k in range(n_outputs):
            e = exp_negative(scores[k, row] - top)
            gradients[k, row] = e
            total += e
        label = min(grades[row], n_outputs - 1)
        for k in range(n_outputs):
            p = gradients[k, row] / total
            gradients[k, row] = w * (p - 1.0 if k == label else p)
            hessians[k, row] = factor * w * p * (1.0 - p)


@kernel
def softmax_losses(scores, grades, weights, out):
    """out[row] = -w log p_y with p = softmax of the outputs; a grade beyond the outputs counts as the highest."""
    weighted = weights.shape[0] > 0
    n_outputs = scores.shape[0]
    for row in range(out.shape[0]):
        top = scores[0, row]
        for k in range(1, n_outputs):
            top = max(top, scores[k, row])
        total = 0.0
        for k in range(n_outputs):
            total += exp_negative(scores[k, row] - top)
        label = min(grades[row], n_outputs - 1)
        out[row] = (weights[row] if weighted else 1.0) * (log_positive(total) - (scores[label, row] - top))


# ---- whole lists -------------------------------------------------------------------------------------------------


@kernel
def cosine(scores, targets, starts, weights, first_query, last_query, gradients, hessians):
    """Loss W (|t| - <a, t>) of a query, a = s / |s|:  g_i = -W (t_i - <a, t> a_i) / |s|, hessian written W |t| / |s|^2.

    If all scores are 0, |s| counts as 1.  A query whose targets are all 0 has no loss.
    """
    for q in range(first_query, last_query):
        first, last = starts[q], starts[q + 1]
        ss, st, tt = 0.0, 0.0, 0.0
        for row in range(first, last):
            ss += scores[row] * scores[row]
            st += scores[row] * targets[row]
            tt += targets[row] * targets[row]
        weight, size = weights[q], np.sqrt(ss) if ss > 0.0 else 1.0
        projection, hessian = st / size, weight * np.sqrt(tt) / (size * size)
        for row in range(first, last):
            gradients[row] = -weight * (targets[row] - projection * (scores[row] / size)) / size
            hessians[row] = hessian


@kernel
def cosine_losses(scores, targets, starts, weights, out):
    """out[q] = W (|t| - <s, t> / |s|); W |t| if all scores are 0."""
    for q in range(out.shape[0]):
        ss, st, tt = 0.0, 0.0, 0.0
        for row in range(starts[q], starts[q + 1]):
            ss += scores[row] * scores[row]
            st += scores[row] * targets[row]
            tt += targets[row] * targets[row]
        out[q] = weights[q] * (np.sqrt(tt) - st / (np.sqrt(ss) if ss > 0.0 else 1.0))


# ---- times until an event ----------------------------------------------------------------------------------------


@kernel
def risks(scores, times, events, weights, order, hazards, risk, slopes, bends):
    """Add up over the risk sets of the rows in ``order``, which go from the latest time to the earliest; O(rows).

    By the place of a row in ``order``, with e_j = w_j exp(s_j - top) (hazards), top the highest score among them::

        risk   = R_i = sum of e_j over t_j >= t_i
        slopes = sum of w_j / R_j, bends = sum of w_j / R_j^2, over the events j with t_j <= t_i

    Ties in time share one risk set (Breslow).  Scores 300 or more below the top count as 300 below.  Returns top.
    """
    n = order.shape[0]
    weighted = weights.shape[0] > 0
    top = -np.inf
    for i in range(n):
        if not weighted or weights[order[i]] > 0.0:
            top = max(top, scores[order[i]])
    total, first = 0.0, 0
    while first < n:
        last, seen = first, 0.0
        while last < n and times[order[last]] == times[order[first]]:
            row = order[last]
            w = weights[row] if weighted else 1.0
            hazards[last] = w * exp_negative(max(scores[row] - top, -_STEEPEST)) if w > 0.0 else 0.0
            total += hazards[last]
            if events[row] != 0:
                seen += w
            last += 1
        for i in range(first, last):
            risk[i] = total
            slopes[i] = seen  # of the whole group, until the second pass
        first = last
    slope, bend, last = 0.0, 0.0, n
    while last > 0:
        first = last - 1
        seen = slopes[first]
        if seen > 0.0:
            slope += seen / risk[first]
            bend += seen / risk[first] / risk[first]
        while first > 0 and times[order[first - 1]] == times[order[last - 1]]:
            first -= 1
        for i in range(first, last):
            slopes[i], bends[i] = slope, bend
        last = first
    return top


@kernel
def hazard(events, weights, order, hazards, slopes, bends, gradients, hessians):
    """Loss w d (log R - s), d = 1 for an event:  g = e slope - w d, h = e slope - e^2 bend, as :func:`risks` says."""
    weighted = weights.shape[0] > 0
    for i in range(order.shape[0]):
        row = order[i]
        expected = hazards[i] * slopes[i]
        seen = (weights[row] if weighted else 1.0) if events[row] != 0 else 0.0
        gradients[row] = expected - seen
        hessians[row] = max(0.0, expected - hazards[i] * (hazards[i] * bends[i]))


@kernel
def hazard_losses(scores, events, weights, order, risk, top, out):
    """out[row] = w (log R + top - s) for an event of any weight, else 0."""
    weighted = weights.shape[0] > 0
    for i in range(order.shape[0]):
        row = order[i]
        w = weights[row] if weighted else 1.0
        out[row] = w * (log_positive(risk[i]) + top - scores[row]) if events[row] != 0 and w > 0.0 else 0.0


@kernel
def event_entropy(events, weights):
    """Sum of w log w over events."""
    total = 0.0
    for row in range(weights.shape[0]):
        if events[row] != 0 and weights[row] > 0.0:
            total += weights[row] * log_positive(weights[row])
    return total


@kernel
def hazard_steps(events, weights, order, leaf_of, hazards, slopes, bends, ridge, least_ridge, matrix, mass, step):
    """One Newton step for all leaves together: ``step`` (K,) solves H step = G; ``matrix`` (K, K), ``mass`` (K,).

    With p_j(k) the share of leaf k in the risk set of event j, G_k = sum w_j (I(leaf of j = k) - p_j(k)) and H = sum
    w_j (diag p_j - p_j p_j').  Two rows a, b share the risk sets of the events up to the earlier of their times, so
    row by row from the latest, b adds e_b bend_b times the mass of every leaf so far to the sum of p p'.
    H is singular, since a constant changes nothing: ``ridge``, and the largest diagonal element times ``least_ridge``,
    are added to it.
    """
    n_leaves = step.shape[0]
    weighted = weights.shape[0] > 0
    for k in range(n_leaves):
        mass[k], step[k] = 0.0, 0.0
        for m in range(n_leaves):
            matrix[k, m] = 0.0
    for i in range(order.shape[0]):
        row = order[i]
        leaf, e = leaf_of[row], hazards[i]
        step[leaf] -= e * slopes[i]
        if events[row] != 0:
            step[leaf] += weights[row] if weighted else 1.0
        matrix[leaf, leaf] += e * slopes[i] - e * (e * bends[i])
        for k in range(n_leaves):
            shared = e * (mass[k] * bends[i])
            matrix[leaf, k] -= shared
            matrix[k, leaf] -= shared
        mass[leaf] += e
    most = 0.0
    for k in range(n_leaves):
        most = max(most, matrix[k, k])
    ridge += least_ridge * most
    for k in range(n_leaves):  # Cholesky, in the lower half
        for m in range(k + 1):
            total = matrix[k, m]
            if k == m:
                total += ridge
            for j in range(m):
                total -= matrix[k, j] * matrix[m, j]
            if k == m:
                matrix[k, k] = np.sqrt(total) if total > 0.0 else np.inf  # nothing known: no step
            else:
                matrix[k, m] = total / matrix[m, m]
    for k in range(n_leaves):
        for j in range(k):
            step[k] -= matrix[k, j] * step[j]
        step[k] /= matrix[k, k]
    for k in range(n_leaves - 1, -1, -1):
        for j in range(k + 1, n_leaves):
            step[k] -= matrix[j, k] * step[j]
        step[k] /= matrix[k, k]
