"""Losses of whole lists in closed form.  The objectives check the arguments.

Rows of query q are ``starts[q]`` to ``starts[q + 1]``; a list that does not count has weight 0.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.elementary import LN2, exp_negative, log2_positive
from rankmill.foundation.kernels.randoms import random_bits, uniform


@kernel
def exponentials_of_lists(values, starts, out):
    """Write out[row] = exp(value - the highest value of its list)."""
    for q in range(starts.shape[0] - 1):
        top = -np.inf
        for row in range(starts[q], starts[q + 1]):
            top = max(top, values[row])
        for row in range(starts[q], starts[q + 1]):
            out[row] = exp_negative(values[row] - top)


# ---- cross entropy of softmax --------------------------------------------------------------------------------------


@kernel
def _softmax(scores, first, last, p, rest):
    """Write p of rows first .. last (2 or more) and rest = 1 - p, both without cancellation.

    Return (top row, e of it / sum of e).

    Only the top document can have p near 1, and its rest is the sum of the others.
    """
    top = first
    for row in range(first + 1, last):
        if scores[row] > scores[top]:
            top = row
    others = 0.0
    for row in range(first, last):
        p[row] = exp_negative(scores[row] - scores[top])
        if row != top:
            others += p[row]
    total = 1.0 + others
    for row in range(first, last):
        rest[row] = (others if row == top else total - p[row]) / total
        p[row] = p[row] / total
    return top, others


@kernel
def softmax_gradients(scores, starts, first_query, last_query, targets, list_weights, gradients, hessians):
    """Write g = w (p - t) and h = w p (1 - p), p the softmax of the scores of a list, t its targets, which sum to 1."""
    for q in range(first_query, last_query):
        first, last, weight = starts[q], starts[q + 1], list_weights[q]
        if last - first < 2 or weight == 0.0:
            for row in range(first, last):
                gradients[row] = 0.0
                hessians[row] = 0.0
            continue
        _softmax(scores, first, last, gradients, hessians)
        for row in range(first, last):
            p, rest, target = gradients[row], hessians[row], targets[row]
            gradients[row] = weight * (p * (1.0 - target) - target * rest)  # p - t loses all digits if both are near 1
            hessians[row] = weight * (p * rest)


@kernel
def softmax_losses(scores, starts, targets, list_weights, out):
    """Write out[q] = w sum of t (log sum of exp(s) - s_i)."""
    for q in range(out.shape[0]):
        first, last = starts[q], starts[q + 1]
        out[q] = 0.0
        if last - first < 2 or list_weights[q] == 0.0:
            continue
        top = scores[first]
        for row in range(first + 1, last):
            top = max(top, scores[row])
        total = 0.0
        for row in range(first, last):
            total += exp_negative(scores[row] - top)
        log_total = log2_positive(total) * LN2
        loss = 0.0
        for row in range(first, last):
            loss += targets[row] * (log_total + (top - scores[row]))
        out[q] = list_weights[q] * loss


@kernel
def softmax_masses(scores, starts, first_query, last_query, list_weights, spare, masses):
    """Write masses[row] = softmax, 0 in a list that does not count; ``spare`` (n_rows,) is scratch."""
    for q in range(first_query, last_query):
        first, last = starts[q], starts[q + 1]
        if last - first < 2 or list_weights[q] == 0.0:
            for row in range(first, last):
                masses[row] = 0.0
        else:
            _softmax(scores, first, last, masses, spare)


@kernel
def _kept(hessian, least, key, first, second):
    """Return the hessian with which a pair counts.

    If its own is below ``least``, it is ``least`` with probability hessian / least, else 0.
    """
    if hessian >= least:
        return hessian
    return least if uniform(random_bits(random_bits(key, first), second)) * least < hessian else 0.0


@kernel
def product_pairs(
    starts, first_query, last_query, factors, scales, least, key, ends, fill, first_rows, second_rows, hessians
):
    """Pairs of a list with hessian scale f_i f_j: count them, or write those of query q from ``ends[q]`` on.

    ``ends`` (n_queries + 1,): when counting, the number of pairs of query q is written to ``ends[q + 1]``.
    """
    for q in range(first_query, last_query):
        count = 0
        for i in range(starts[q], starts[q + 1]):
            factor = scales[q] * factors[i]
            if factor == 0.0:
                continue
            for j in range(i + 1, starts[q + 1]):
                hessian = _kept(factor * factors[j], least, key, i, j)
                if hessian > 0.0:
                    if fill:
                        first_rows[ends[q] + count] = i
                        second_rows[ends[q] + count] = j
                        hessians[ends[q] + count] = hessian
                    count += 1
        if not fill:
            ends[q + 1] = count


# ---- likelihood of an order under Plackett-Luce --------------------------------------------------------------------


@kernel
def shuffle_ties(sorted_rows, grades, starts, first_query, last_query, key, order):
    """Write ``sorted_rows`` into ``order``, the rows of one grade of a list in random order.

    ``sorted_rows`` (n_rows,) holds the rows of each query by grade, the best first.  Fisher-Yates from the inside out,
    keyed by (key, query, place).
    """
    for q in range(first_query, last_query):
        of_query = random_bits(key, q)
        run = starts[q]
        for place in range(starts[q], starts[q + 1]):
            row = sorted_rows[place]
            if grades[row] != grades[sorted_rows[run]]:
                run = place
            bits = random_bits(of_query, place - starts[q]) >> np.uint64(32)
            other = run + np.int64((bits * np.uint64(place - run + 1)) >> np.uint64(32))
            order[place] = order[other]
            order[other] = row


@kernel
def plackett_luce_steps(scores, first, last, order, chosen, left):
    """Write for the document at each place its share of the remaining strength, and the share that is left after it.

    With e = exp(s) and S_p = sum of e from place p on: chosen = e_p / S_p, left = S_{p+1} / S_p = 1 - chosen; both at
    cells ``first`` .. ``last`` by place.  Sums are kept relative to their highest score, so nothing underflows.
    """
    highest, total = scores[order[last - 1]], 1.0
    chosen[last - 1] = 1.0
    left[last - 1] = 0.0
    for place in range(last - 2, first - 1, -1):
        s = scores[order[place]]
        if s > highest:
            after = total * exp_negative(highest - s)
            highest, e = s, 1.0
        else:
            after, e = total, exp_negative(s - highest)
        total = after + e
        chosen[place] = e / total
        left[place] = after / total


@kernel
def likelihood_gradients(
    scores, starts, first_query, last_query, order, list_weights, chosen, left, gradients, hessians
):
    """Gradient and hessian of -w times the log likelihood of ``order``, in O(n) per list.

    With x_p = e_i / S_p the probability of i at place p: g_i = (sum of x_p over places up to that of i) - 1 and
    h_i = sum of x_p (1 - x_p).  At the place of i, x_p = chosen S / S_p; carried from place to place are
    a = sum of S / S_p over the places before, b = sum of (S / S_p)^2 over those and this one,
    c = sum of S (S_p - S) / S_p^2: sums of positive terms, so no digits are lost: h_i = chosen (c + left b).
    ``chosen`` and ``left`` (n_rows,) are written as by :func:`plackett_luce_steps`.
    """
    for q in range(first_query, last_query):
        first, last, weight = starts[q], starts[q + 1], list_weights[q]
        if weight == 0.0:
            for row in range(first, last):
                gradients[row] = 0.0
                hessians[row] = 0.0
            continue
        plackett_luce_steps(scores, first, last, order, chosen, left)
        a, b, c = 0.0, 1.0, 0.0
        for place in range(first, last):
            row, t, r = order[place], chosen[place], left[place]
            gradients[row] = weight * (t * a - r)
            hessians[row] = weight * (t * (c + r * b))
            c = r * (c + t * b)
            b = 1.0 + r * r * b
            a = r * (1.0 + a)


@kernel
def likelihood_losses(scores, starts, order, list_weights, out):
    """Write out[q] = -w log P(order), the sum over places p of log S_p - s_p."""
    for q in range(out.shape[0]):
        out[q] = 0.0
        if list_weights[q] == 0.0:
            continue
        highest, total, loss = scores[order[starts[q + 1] - 1]], 0.0, 0.0
        for place in range(starts[q + 1] - 1, starts[q] - 1, -1):
            s = scores[order[place]]
            if s > highest:
                total = total * exp_negative(highest - s) + 1.0
                highest = s
            else:
                total += exp_negative(s - highest)
            loss += log2_positive(total) * LN2 + (highest - s)
        out[q] = list_weights[q] * loss


@kernel
def likelihood_pairs(
    starts, first_query, last_query, order, chosen, left, list_weights, least, key, ends, fill, first_rows, second_rows,
    hessians
):  # fmt: skip
    """Pairs of a list with hessian w (sum of the product of their x_p over the places up to the earlier of the two).

    ``chosen`` and ``left`` as :func:`likelihood_gradients` wrote them; ``ends`` and ``fill`` as for
    :func:`product_pairs`.
    """
    for q in range(first_query, last_query):
        count, b = 0, 1.0
        if list_weights[q] > 0.0:
            for place in range(starts[q], starts[q + 1]):
                one = order[place]
                factor = list_weights[q] * (chosen[place] * b)
                for after in range(place + 1, starts[q + 1]):
                    factor *= left[after - 1]
                    if factor == 0.0:
                        break
                    i, j = min(one, order[after]), max(one, order[after])
                    hessian = _kept(factor * chosen[after], least, key, i, j)
                    if hessian > 0.0:
                        if fill:
                            first_rows[ends[q] + count] = i
                            second_rows[ends[q] + count] = j
                            hessians[ends[q] + count] = hessian
                        count += 1
                b = 1.0 + left[place] * left[place] * b
        if not fill:
            ends[q + 1] = count


# ---- squared error minus its mean by query --------------------------------------------------------------------------


@kernel
def centred_gradients(scores, starts, first_query, last_query, targets, weights, gradients, hessians):
    """Write g = w (r - mean of r), r = s - y, the mean weighted over the list; h = w (1 - w / sum of w)."""
    for q in range(first_query, last_query):
        first, last = starts[q], starts[q + 1]
        total, sums = 0.0, 0.0
        for row in range(first, last):
            total += weights[row]
            sums += weights[row] * (scores[row] - targets[row])
        mean = sums / total if total > 0.0 else 0.0
        for row in range(first, last):
            w = weights[row]
            rest = (total - w) / total if w < total else 0.0
            gradients[row] = w * ((scores[row] - targets[row]) - mean) if rest > 0.0 else 0.0
            hessians[row] = w * rest


@kernel
def centred_losses(scores, starts, targets, weights, out):
    """Write out[q] = sum of w (r - mean of r)^2 / 2."""
    for q in range(out.shape[0]):
        total, sums = 0.0, 0.0
        for row in range(starts[q], starts[q + 1]):
            total += weights[row]
            sums += weights[row] * (scores[row] - targets[row])
        mean = sums / total if total > 0.0 else 0.0
        loss = 0.0
        for row in range(starts[q], starts[q + 1]):
            residual = (scores[row] - targets[row]) - mean
            loss += 0.5 * weights[row] * residual * residual
        out[q] = loss


# ---- cross entropy with drawn targets, as LightGBM minimises it ----------------------------------------------------


@kernel
def draw_targets(gains, starts, first_query, last_query, key, targets):
    """Set targets[row] to (gain + 1 - u) / its sum over the list, u uniform.

    u is keyed by (key, query, place in the list).
    """
    for q in range(first_query, last_query):
        of_query = random_bits(key, q)
        total = 0.0
        for row in range(starts[q], starts[q + 1]):
            targets[row] = gains[row] + (1.0 - uniform(random_bits(of_query, row - starts[q])))
            total += targets[row]
        for row in range(starts[q], starts[q + 1]):
            targets[row] /= total


@kernel
def preconditioned_gradients(
    scores, starts, first_query, last_query, targets, list_weights, terms, work, gradients, hessians
):
    """Write ``terms`` terms of diag(H) H^-1 g; h = w p (1 - p).

    g and H are gradient and Hessian of softmax's cross entropy.

    H = D - O with D its diagonal: D H^-1 g = g + O D^-1 g + (O D^-1)^2 g + .., and (O D^-1 x)_i = p_i (sum over j other
    than i of x_j / (1 - p_j)): each term sums to 0 over the list as g does.  Only the top document can have 1 - p
    near 0, so its quotient is computed separately, times p_i / (1 - p_top) = e_i / (sum of the other e).
    ``work`` is scratch, three times as long as the longest list.
    """
    room = work.shape[0] // 3
    p, rest, x = work[:room], work[room : 2 * room], work[2 * room :]
    for q in range(first_query, last_query):
        first, last, weight = starts[q], starts[q + 1], list_weights[q]
        n = last - first
        if n < 2 or weight == 0.0:
            for row in range(first, last):
                gradients[row] = 0.0
                hessians[row] = 0.0
            continue
        top, others = _softmax(scores[first:last], 0, n, p, rest)
        for i in range(n):
            x[i] = p[i] * (1.0 - targets[first + i]) - targets[first + i] * rest[i]
            gradients[first + i] = x[i]
            hessians[first + i] = weight * (p[i] * rest[i])
        for _ in range(1, terms):
            total = 0.0
            for i in range(n):
                if i != top:
                    total += x[i] / rest[i]
            of_top = x[top] * (1.0 + others) / others
            for i in range(n):
                if i == top:
                    x[i] = p[i] * total
                else:
                    x[i] = p[i] * (total - x[i] / rest[i]) + p[i] * of_top
                gradients[first + i] += x[i]
        for row in range(first, last):
            gradients[row] *= weight
