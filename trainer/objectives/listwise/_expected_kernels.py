"""Expected DCG of random orders, and its gradient.  The objectives check the arguments.

Rows of query q are ``starts[q]`` to ``starts[q + 1]``; documents and places of a list are numbered from 0.
"""

from __future__ import annotations

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.elementary import exp_negative, log2_positive, normal
from rankmill.foundation.kernels.randoms import random_bits, uniform


@kernel
def _smallest_first(keys, items, n, places, placed):
    """Write into ``placed`` the ``places`` items with the smallest keys, in order.

    Cells 0 .. n - places of ``items`` keep the others.

    A heap: O(n + places log n).  ``keys`` and ``items`` (n,) are overwritten; equal keys may come in any order.
    """
    for start in range(n // 2 - 1, -1, -1):
        _sift(keys, items, start, n)
    for place in range(places):
        placed[place] = items[0]
        n -= 1
        keys[0], items[0] = keys[n], items[n]
        _sift(keys, items, 0, n)


@kernel
def _sift(keys, items, at, n):
    """Move the entry ``at`` down to where no child is smaller."""
    key, item = keys[at], items[at]
    while 2 * at + 1 < n:
        child = 2 * at + 1
        if child + 1 < n and keys[child + 1] < keys[child]:
            child += 1
        if not keys[child] < key:
            break
        keys[at], items[at] = keys[child], items[child]
        at = child
    keys[at], items[at] = key, item


# ---- expected DCG under Plackett-Luce ------------------------------------------------------------------------------


@kernel
def _strengths(scores, first, n, e):
    """e[i] = exp(s - the highest s) of the n rows from ``first`` on."""
    top = scores[first]
    for i in range(1, n):
        top = max(top, scores[first + i])
    for i in range(n):
        e[i] = exp_negative(scores[first + i] - top)


@kernel
def _values(e, n, gains, discounts, places, value):
    """value[set] = expected DCG of the remaining places after the documents of ``set`` (bits)."""
    for placed in range((1 << n) - 1, -1, -1):
        total, count = 0.0, n
        for i in range(n):
            if not placed >> i & 1:
                total += e[i]
                count -= 1
        expected = 0.0
        if count < places:
            for i in range(n):
                if not placed >> i & 1:
                    expected += e[i] / total * (gains[i] * discounts[count] + value[placed | 1 << i])
        value[placed] = expected


@kernel
def _exact_gradient(e, n, gains, discounts, places, value, reach, spread, g, h):
    """Add dE/ds to g and the surrogate hessian to h, summed over the sets of documents that can come first.

    The rest of an order depends only on the set before it, so 2^n sets replace n! orders: with Q_i the value of placing
    i next and V the mean of Q, dE/ds_i = sum over sets of P(set) p_i (Q_i - V).  h: see :func:`_spreads`.
    """
    _values(e, n, gains, discounts, places, value)
    _spreads(n, discounts, places, spread)
    for placed in range(1 << n):
        reach[placed] = 0.0
    reach[0] = 1.0
    for placed in range((1 << n) - 1):
        top, count = -1, n
        for i in range(n):
            if not placed >> i & 1:
                count -= 1
                if top < 0 or e[i] > e[top]:
                    top = i
        if count >= places or reach[placed] == 0.0:
            continue
        others, gain = 0.0, e[top] * gains[top]
        for i in range(n):
            if not placed >> i & 1 and i != top:
                others += e[i]
                gain += e[i] * gains[i]
        total = e[top] + others
        gain /= total
        of_top = gains[top] * discounts[count] + value[placed | 1 << top]
        mean = 0.0  # of Q_i - Q_top: V itself would lose the digits of Q_top - V
        for i in range(n):
            if not placed >> i & 1 and i != top:
                mean += e[i] / total * ((gains[i] * discounts[count] + value[placed | 1 << i]) - of_top)
        for i in range(n):
            if not placed >> i & 1:
                after = placed | 1 << i
                p, rest = e[i] / total, (others if i == top else total - e[i]) / total
                better = ((gains[i] * discounts[count] + value[after]) - of_top) - mean
                g[i] += reach[placed] * p * better
                h[i] += reach[placed] * (p * rest) * (gains[i] + gain) * spread[count]
                reach[after] += reach[placed] * p


@kernel
def _spreads(n, discounts, places, spread):
    """Write spread[p] = half of (the discount of place p minus the mean discount of the places after it).

    The surrogate hessian is h_i = E[sum over p up to the place of i of p_i (1 - p_i) (gain_i + mean gain) spread_p],
    the mean taken over the documents left at p, weighted by strength.  In the gradient, the sum of p_i (Q_i - V),
    Q_i - V is about (gain_i - mean gain) 2 spread_p: steps g / h of single documents are at most about 2, as in
    LambdaMART.
    """
    later = 0.0
    for place in range(places - 1, -1, -1):
        spread[place] = 0.5 * (discounts[place] - later / max(n - place - 1, 1))
        later += discounts[place]


@kernel
def _draw_order(e, n, places, key, keys, items, placed):
    """Draw the first ``places`` documents of an order: a race of exponential clocks, the strongest the fastest."""
    for i in range(n):
        keys[i] = -log2_positive(uniform(random_bits(key, i))) / e[i]
        items[i] = i
    _smallest_first(keys, items, n, places, placed)


@kernel
def _sampled_gradient(
    e, n, gains, discounts, places, samples, key, keys, items, orders, left_over, to_go, means, chosen, left, mean_gain,
    spread, seen, g, h,
):  # fmt: skip
    """Add to g the mean over samples of sum_p (G_p - b_p) d log p_p / ds, and to h the surrogate of :func:`_spreads`.

    G_p is the DCG from place p on of the order drawn, b_p its mean over the other samples, which are independent of
    this one, so that the estimate is unbiased.  d log p_p / ds_i = [i at p] - p_i over the documents left at p.  One
    pass per sample by sums relative to the remaining strength S: t = e / S, r = (S - e) / S.
    """
    for place in range(places):
        means[place] = 0.0
    for sample in range(samples):
        placed = orders[sample]
        _draw_order(e, n, places, random_bits(key, sample), keys, items, placed)
        left_over[sample] = 0.0
        for i in range(n - places):
            left_over[sample] += e[items[i]]
        value = 0.0
        for place in range(places - 1, -1, -1):
            value += gains[placed[place]] * discounts[place]
            means[place] += value / samples
    _spreads(n, discounts, places, spread)
    bessel = 1.0 / (samples - 1.0)  # G - mean of the others = samples / (samples - 1) (G - mean of all)
    for sample in range(samples):
        placed, total, value, gain = orders[sample], left_over[sample], 0.0, 0.0
        for i in range(n):
            seen[i] = 0
        for place in range(places):
            seen[placed[place]] = 1
        if places < n:
            for i in range(n):
                if not seen[i]:
                    gain += e[i] * gains[i]
        for place in range(places - 1, -1, -1):
            i = placed[place]
            value += gains[i] * discounts[place]
            gain += e[i] * gains[i]
            to_go[place] = value
            after = total
            total = after + e[i]
            chosen[place] = e[i] / total
            left[place] = after / total
            mean_gain[place] = gain / total
        a, b, c, b_mean, c_mean = 0.0, 0.0, 0.0, 0.0, 0.0
        for place in range(places):
            i, t, r = placed[place], chosen[place], left[place]
            advantage = (to_go[place] - means[place]) * bessel
            b += spread[place]
            b_mean += spread[place] * mean_gain[place]
            g[i] += advantage * r - t * a
            h[i] += t * ((gains[i] * c + c_mean) + r * (gains[i] * b + b_mean)) / samples
            a = r * (advantage + a)
            c, b = r * (c + t * b), r * r * b
            c_mean, b_mean = r * (c_mean + t * b_mean), r * r * b_mean
        if places < n:
            total = left_over[sample]
            for i in range(n):
                if not seen[i]:
                    t = e[i] / total
                    r = max(1.0 - t, 0.0)
                    g[i] -= t * a
                    h[i] += t * ((gains[i] * c + c_mean) + r * (gains[i] * b + b_mean)) / samples


@kernel
def expected_dcg_gradients(
    scores, starts, first_query, last_query, gains, discounts, cutoff, scales, exact_up_to, samples, key,
    floats, whole, orders, gradients, hessians,
):  # fmt: skip
    """Gradient of -scale E[DCG@cutoff] and the surrogate hessian, exact for lists of at most ``exact_up_to``.

    ``floats`` (9, longest list or samples or 2 ** exact_up_to), ``whole`` (2, longest list) and ``orders`` (samples,
    places) are scratch.
    """
    for q in range(first_query, last_query):
        first, n, scale = starts[q], starts[q + 1] - starts[q], scales[q]
        g, h = gradients[first : first + n], hessians[first : first + n]
        for i in range(n):
            g[i] = 0.0
            h[i] = 0.0
        if n < 2 or scale == 0.0:
            continue
        e, places, gain = floats[0], min(n, cutoff), gains[first : first + n]
        _strengths(scores, first, n, e)
        if n <= exact_up_to:
            _exact_gradient(e, n, gain, discounts, places, floats[1], floats[2], floats[3], g, h)
        else:
            _sampled_gradient(
                e, n, gain, discounts, places, samples, random_bits(key, q), floats[1], whole[0], orders, floats[2],
                floats[3], floats[4], floats[5], floats[6], floats[7], floats[8], whole[1], g, h,
            )  # fmt: skip
        for i in range(n):
            g[i] *= -scale
            h[i] *= scale


@kernel
def expected_dcg_losses(
    scores, starts, gains, discounts, cutoff, scales, ideal, exact_up_to, samples, key, floats, whole, out
):
    """Write out[q] = scale (ideal - E[DCG@cutoff]), E exact for short lists, else the mean over samples."""
    for q in range(out.shape[0]):
        first, n = starts[q], starts[q + 1] - starts[q]
        out[q] = 0.0
        if n < 2 or scales[q] == 0.0:
            continue
        e, places, gain = floats[0], min(n, cutoff), gains[first : first + n]
        _strengths(scores, first, n, e)
        if n <= exact_up_to:
            _values(e, n, gain, discounts, places, floats[1])
            expected = floats[1][0]
        else:
            expected, of_query = 0.0, random_bits(key, q)
            for sample in range(samples):
                _draw_order(e, n, places, random_bits(of_query, sample), floats[1], whole[0], whole[1])
                for place in range(places):
                    expected += gain[whole[1][place]] * discounts[place] / samples
        out[q] = scales[q] * (ideal[q] - expected)


# ---- DCG, ERR and MRR of scores with Gaussian noise ------------------------------------------------------------------


@kernel
def _noisy_order(scores, first, n, noise, key, places, x, keys, items, placed):
    """Set x[i] to s / noise + z of the n rows from ``first`` on, relative to the first.

    ``placed``: the ``places`` highest, in order.
    """
    for i in range(n):
        x[i] = (scores[first + i] - scores[first]) / noise + normal(uniform(random_bits(key, i)))
        keys[i] = -x[i]
        items[i] = i
    _smallest_first(keys, items, n, places, placed)


@kernel
def best_cascades(starts, chances, discounts, cutoff, out):
    """Write out[q] = ERR@cutoff of the list as it stands: each document stops the reader with its chance (n_rows,)."""
    for q in range(out.shape[0]):
        out[q], passed = 0.0, 1.0
        for place in range(min(starts[q + 1] - starts[q], cutoff)):
            chance = chances[starts[q] + place]
            out[q] += passed * chance * discounts[place]
            passed *= 1.0 - chance


@kernel
def smoothed_gradients(
    scores, starts, first_query, last_query, gains, discounts, cutoff, cascade, scales, noise, samples, key, floats,
    whole, gradients, hessians,
):  # fmt: skip
    """Gradient of -scale E[DCG@cutoff of s + noise z], a sample of z at a time, each document's own z integrated out.

    With the others fixed at x_j = s_j + noise z_j, DCG is a step function of the position of i: when i passes j, at
    rank r among the others, DCG gains (gain_i - gain_j) (discount_r - discount_{r+1}), and the density of i there is
    phi((x_j - s_i) / noise) / noise.  The sum over j is d/ds_i of the mean over z_i.  The mean over the list, 0 for the
    true gradient, is subtracted.  h = sum of |jump| phi / noise^2.

    With ``cascade`` the gains are chances to stop the reader, and a jump counts with the chance to pass all others
    above j:
    with i above j the two ranks have R_i d_r + (1 - R_i) R_j d_{r+1}, and with j above i the same with i and j
    exchanged; the products R_i R_j cancel in the difference.
    """
    for q in range(first_query, last_query):
        first, n, scale = starts[q], starts[q + 1] - starts[q], scales[q]
        for row in range(first, first + n):
            gradients[row] = 0.0
            hessians[row] = 0.0
        if n < 2 or scale == 0.0:
            continue
        x, of_query = floats[0], random_bits(key, q)
        places = min(n, cutoff + 1)
        rank, placed = whole[1], whole[2]
        for sample in range(samples):
            _noisy_order(scores, first, n, noise, random_bits(of_query, sample), places, x, floats[1], whole[0], placed)
            for i in range(n):
                rank[i] = n
            for place in range(places):
                rank[placed[place]] = place
            for i in range(n):
                centre, gain = (scores[first + i] - scores[first]) / noise, gains[first + i]
                slope, size, passed = 0.0, 0.0, 1.0
                for place in range(places):
                    j = placed[place]
                    among_others = place - 1 if rank[i] < place else place
                    if j == i or among_others >= cutoff:
                        continue
                    reached = passed
                    if cascade:
                        passed *= 1.0 - gains[first + j]
                    if gains[first + j] == gain:
                        continue
                    below = discounts[among_others + 1] if among_others + 1 < cutoff else 0.0
                    distance = x[j] - centre
                    density = exp_negative(-0.5 * distance * distance)
                    jump = (gain - gains[first + j]) * (discounts[among_others] - below) * density * reached
                    slope += jump
                    size += abs(jump)
                gradients[first + i] += slope
                hessians[first + i] += size
        mean = 0.0
        for row in range(first, first + n):
            mean += gradients[row] / n
        factor = scale * 0.3989422804014327 / (samples * noise)  # 1 / sqrt(2 pi)
        for row in range(first, first + n):
            gradients[row] = -factor * (gradients[row] - mean)
            hessians[row] = factor / noise * hessians[row]


@kernel
def smoothed_losses(
    scores, starts, gains, discounts, cutoff, cascade, scales, ideal, noise, samples, key, floats, whole, out
):
    """Write out[q] = scale (ideal - the mean over samples of DCG@cutoff, or ERR@cutoff, of s + noise z)."""
    for q in range(out.shape[0]):
        first, n = starts[q], starts[q + 1] - starts[q]
        out[q] = 0.0
        if n < 2 or scales[q] == 0.0:
            continue
        places, expected, of_query = min(n, cutoff), 0.0, random_bits(key, q)
        for sample in range(samples):
            _noisy_order(
                scores, first, n, noise, random_bits(of_query, sample), places, floats[0], floats[1], whole[0], whole[2]
            )
            passed = 1.0
            for place in range(places):
                gain = gains[first + whole[2][place]]
                expected += passed * gain * discounts[place] / samples
                if cascade:
                    passed *= 1.0 - gain
        out[q] = scales[q] * (ideal[q] - expected)
