"""Metric kernels: one sort per query, then one pass over its tie groups per metric.

``rank`` counts positions from 0; ``row`` numbers documents as the caller stores them; ``slot`` those of one query in
tie order.  Tie group g holds the ranks [bounds[g], bounds[g + 1]); if ties are broken, each document is a group.
"""

import numpy as np

from rankmill.foundation.kernels.arrays import copy_to
from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.inner import inner_kernel

SHARE, SUM, ERR, HITS, PRECISIONS, FIRST, PAIRS, ERRORS = range(8)  # kinds of metrics
FEW = 4  # lists longer than this many times the deepest cutoff are not sorted completely
DEEPEST_SELECTED = 64  # the deepest cutoff for which this is so: selection costs the cutoff for every document
COUNTED = 500  # lists up to this length are sorted by counting; for this length merge sort takes as long
RUN = 16  # merge sort starts from insertion-sorted runs of this many


@inner_kernel
def _n_above(keys, key):
    """Return how many of ``keys`` (n,) are higher than ``key``."""
    above = np.int64(0)
    for i in range(keys.shape[0]):
        above += np.int64(keys[i] > key)
    return above


@kernel
def sort_descending(keys, slots, spare_keys, spare_slots, n):
    """Sort keys[:n] in descending order and slots[:n], which holds 0 .. n-1, with them; equal keys keep their order.

    Short lists by counting the keys above each: n * n comparisons, but eight at a time and without branches that depend
    on keys.
    """
    if n <= COUNTED:
        n_at = spare_slots  # how many keys equal to the one at this place have been put there and behind it
        copy_to(spare_keys[:n], keys)
        n_at[:n] = 0
        for i in range(n):
            place = _n_above(spare_keys[:n], spare_keys[i])
            keys[place + n_at[place]] = spare_keys[i]
            slots[place + n_at[place]] = i
            n_at[place] += 1
        return
    for lo in range(0, n, RUN):
        for i in range(lo + 1, min(lo + RUN, n)):
            key = keys[i]
            slot = slots[i]
            j = i
            while j > lo and keys[j - 1] < key:
                keys[j] = keys[j - 1]
                slots[j] = slots[j - 1]
                j -= 1
            keys[j] = key
            slots[j] = slot
    width = RUN
    while width < n:
        for lo in range(0, n, 2 * width):
            mid = min(lo + width, n)
            hi = min(lo + 2 * width, n)
            if mid >= hi or keys[mid - 1] >= keys[mid]:
                continue
            left = mid - lo
            for i in range(left):
                spare_keys[i] = keys[lo + i]
                spare_slots[i] = slots[lo + i]
            i = 0
            j = mid
            out = lo
            while i < left:
                if j < hi and keys[j] > spare_keys[i]:
                    keys[out] = keys[j]
                    slots[out] = slots[j]
                    j += 1
                else:
                    keys[out] = spare_keys[i]
                    slots[out] = spare_slots[i]
                    i += 1
                out += 1
        width *= 2


@kernel
def best_descending(keys, slots, spare_keys, spare_slots, n, cut):
    """Move the ``cut`` highest keys, and all that equal the last of them, to the front in descending order.

    ``slots[:n]`` holds 0 .. n-1 and moves with the keys; equal keys keep their order.  Returns the number of those
    moved, at least min(cut, n); the cells behind them are undefined.
    """
    held = 0
    for i in range(n):
        key = keys[i]
        if held == cut and not key > spare_keys[cut - 1]:
            continue
        j = held if held < cut else cut - 1
        held = min(held + 1, cut)
        while j > 0 and spare_keys[j - 1] < key:
            spare_keys[j] = spare_keys[j - 1]
            spare_slots[j] = spare_slots[j - 1]
            j -= 1
        spare_keys[j] = key
        spare_slots[j] = i
    least = spare_keys[held - 1]
    above = held
    while above > 0 and spare_keys[above - 1] == least:
        above -= 1
    found = above
    for i in range(n):
        if keys[i] == least:
            spare_slots[found] = i
            found += 1
    for rank in range(found):
        slots[rank] = spare_slots[rank]
        keys[rank] = spare_keys[rank] if rank < above else least
    return found


@inner_kernel
def tie_bounds(keys, n, expected, bounds):
    """Write the limits of the tie groups of sorted keys[:n]; every document is a group if ties are broken."""
    groups = 0
    for rank in range(n):
        if rank == 0 or not expected or keys[rank] != keys[rank - 1]:
            bounds[groups] = rank
            groups += 1
    bounds[groups] = n
    return groups


@inner_kernel
def expected_dcg(slots, base, gain, discount, bounds, groups, cut):
    """Sum over tie groups of (mean gain) * (sum of the group's discounts above the cut): expectation is linear."""
    total = 0.0
    for g in range(groups):
        lo = bounds[g]
        hi = bounds[g + 1]
        if lo >= cut:
            break
        if hi - lo == 1:
            total += gain[base + slots[lo]] * discount[lo]
            continue
        mass = 0.0
        for rank in range(lo, hi):
            mass += gain[base + slots[rank]]
        if mass == 0.0:
            continue
        weight = 0.0
        for rank in range(lo, min(hi, cut)):
            weight += discount[rank]
        total += mass / (hi - lo) * weight
    return total


@inner_kernel
def expected_hits(slots, base, relevant, bounds, groups, cut):
    """Count the relevant documents above the cut, in expectation."""
    total = 0.0
    for g in range(groups):
        lo = bounds[g]
        hi = bounds[g + 1]
        if lo >= cut:
            break
        hits = 0
        for rank in range(lo, hi):
            hits += relevant[base + slots[rank]]
        total += hits * (min(hi, cut) - lo) / (hi - lo)
    return total


@inner_kernel
def expected_precision_sum(slots, base, relevant, bounds, groups, cut):
    """Sum the precisions at relevant documents above the cut, in expectation (McSherry & Najork, ECIR 2008).

    In a group of m with r relevant, position i (from 1) is relevant with probability r/m, and then
    (i - 1)(r - 1)/(m - 1) relevant ones of the group are expected before it.
    """
    total = 0.0
    before = 0
    for g in range(groups):
        lo = bounds[g]
        hi = bounds[g + 1]
        if lo >= cut:
            break
        m = hi - lo
        if m == 1:
            hit = relevant[base + slots[lo]]
            before += hit
            total += hit * (before / (lo + 1))  # adds 0 if there is none, without a branch
            continue
        r = 0
        for rank in range(lo, hi):
            r += relevant[base + slots[rank]]
        if r > 0:
            slope = (r - 1) / (m - 1)
            part = 0.0
            for rank in range(lo, min(hi, cut)):
                part += (before + 1 + (rank - lo) * slope) / (rank + 1)
            total += part * r / m
            before += r
    return total


@inner_kernel
def expected_reciprocal_first(slots, base, relevant, bounds, groups, cut):
    """Return the expected 1/rank of the first relevant document, 0 below the cut.

    It is in the first group that has any, at position i with the hypergeometric probability
    prod_{u < i} (m - r - u)/(m - u) * r/(m - i).
    """
    for g in range(groups):
        lo = bounds[g]
        hi = bounds[g + 1]
        if lo >= cut:
            break
        m = hi - lo
        r = 0
        for rank in range(lo, hi):
            r += relevant[base + slots[rank]]
        if r > 0:
            total = 0.0
            none_yet = 1.0
            for i in range(min(m - r + 1, cut - lo)):
                total += none_yet * r / (m - i) / (lo + i + 1)
                none_yet *= (m - r - i) / (m - i)
            return total
    return 0.0


@inner_kernel
def expected_err(slots, base, stop, bounds, groups, cut, mean_product):
    """Return ERR (Chapelle et al. 2009), cut at a rank and averaged over all orders of each tie group.

    With q = 1 - R, the reader passes t given documents of a group of m with mean probability
    a_t = e_t(q) / C(m, t) over their choice; adding one document to the group gives
    a'_t = ((m + 1 - t) a_t + t q a_{t-1}) / (m + 1), a convex mix, hence stable; place t stops it with a_{t-1} - a_t.
    """
    total = 0.0
    reach = 1.0
    for g in range(groups):
        lo = bounds[g]
        hi = bounds[g + 1]
        if lo >= cut or reach == 0.0:
            break
        m = hi - lo
        if m == 1:
            chance = stop[base + slots[lo]]
            total += reach * chance / (lo + 1)
            reach *= 1.0 - chance
            continue
        depth = min(m, cut - lo)
        mean_product[0] = 1.0
        for t in range(1, depth + 1):
            mean_product[t] = 0.0
        passed = 1.0
        for size in range(m):
            q = 1.0 - stop[base + slots[lo + size]]
            passed *= q
            for t in range(min(size + 1, depth), 0, -1):
                mean_product[t] = ((size + 1 - t) * mean_product[t] + t * q * mean_product[t - 1]) / (size + 1)
        for t in range(1, depth + 1):
            total += reach * (mean_product[t - 1] - mean_product[t]) / (lo + t)
        reach *= passed
    return total


@inner_kernel
def ordered_pairs(slots, base, level, bounds, groups, n, tree):
    """Count the pairs of different grades with the better one above; a tied pair counts half.

    ``level`` numbers the grades of a query from its best, 0; a group's documents are sorted by grade.  A Fenwick tree
    counts the documents above by level.
    """
    for i in range(n + 1):
        tree[i] = 0
    right = 0
    tied = 0
    for g in range(groups):
        lo = bounds[g]
        hi = bounds[g + 1]
        start = lo
        for rank in range(lo, hi):
            mine = level[base + slots[rank]]
            i = mine
            while i > 0:
                right += tree[i]
                i &= i - 1
            if level[base + slots[start]] != mine:
                start = rank
            tied += start - lo
        for rank in range(lo, hi):
            i = level[base + slots[rank]] + 1
            while i <= n:
                tree[i] += 1
                i += i & -i
    return right + 0.5 * tied


@inner_kernel
def balanced_errors(scores, rows, base, n, relevant, p):
    """Sum the costs of relevant documents below the threshold p[0] and of others above it.

    p[1] and p[2] are the costs of one error of either kind, p[3] and p[4] its share for a score on the threshold.
    """
    missed = 0.0
    alarms = 0.0
    for slot in range(base, base + n):
        score = scores[rows[slot]]
        if relevant[slot]:
            if score < p[0]:
                missed += 1.0
            elif score == p[0]:
                missed += p[3]
        elif score > p[0]:
            alarms += 1.0
        elif score == p[0]:
            alarms += p[4]
    return missed * p[1] + alarms * p[2]


@kernel(allocates=True)
def evaluate(
    scores, rows, starts, gains, relevant, stop, level, discounts, expected,
    kinds, cuts, sources, parameters, divisors, fills, first, last, out,
):  # fmt: skip
    """out[metric, query] for queries first..last-1: the metric's sum over its divisor, or its fill if that is 0.

    ``sources[metric]`` are the rows of ``gains`` and of ``discounts`` that sums of gains use.  ``relevant``, ``stop``
    and ``level`` are None where no metric needs them: Numba then compiles no metric that does.
    """
    longest = 0
    for query in range(first, last):
        longest = max(longest, starts[query + 1] - starts[query])
    deepest = np.int64(1)  # no metric needs a rank below this
    for cut in cuts:
        deepest = max(deepest, cut)
    keys = np.empty(longest, np.float64)
    spare_keys = np.empty(longest, np.float64)
    slots = np.empty(longest, np.int64)
    spare_slots = np.empty(longest, np.int64)
    bounds = np.empty(longest + 1, np.int64)
    mean_product = np.empty(longest + 1, np.float64)
    tree = np.empty(longest + 1, np.int64)
    for query in range(first, last):
        base = starts[query]
        n = starts[query + 1] - base
        for slot in range(n):
            keys[slot] = scores[rows[base + slot]]
            slots[slot] = slot
        if deepest <= DEEPEST_SELECTED and deepest < n // FEW:
            groups = tie_bounds(
                keys, best_descending(keys, slots, spare_keys, spare_slots, n, deepest), expected, bounds
            )
        else:
            sort_descending(keys, slots, spare_keys, spare_slots, n)
            groups = tie_bounds(keys, n, expected, bounds)
        for m in range(kinds.shape[0]):
            divisor = divisors[m, query]
            if divisor == 0.0:
                out[m, query] = fills[m]
                continue
            kind, value = kinds[m], 0.0
            cut = min(cuts[m], n)
            if kind == SHARE or kind == SUM:
                gain = gains[sources[m, 0]]
                value = expected_dcg(slots, base, gain, discounts[sources[m, 1]], bounds, groups, cut)
            if relevant is not None:
                if kind == HITS:
                    value = expected_hits(slots, base, relevant, bounds, groups, cut)
                elif kind == PRECISIONS:
                    value = expected_precision_sum(slots, base, relevant, bounds, groups, cut)
                elif kind == FIRST:
                    value = expected_reciprocal_first(slots, base, relevant, bounds, groups, cut)
                elif kind == ERRORS:
                    value = balanced_errors(scores, rows, base, n, relevant, parameters[m])
            if stop is not None:
                if kind == ERR:
                    value = expected_err(slots, base, stop, bounds, groups, cut, mean_product)
            if level is not None:
                if kind == PAIRS:
                    value = ordered_pairs(slots, base, level, bounds, groups, n, tree)
            value /= divisor
            # a perfect order with ties may round to one unit above
            out[m, query] = min(value, 1.0) if kind == SHARE else value


@kernel
def ideal_dcg(gain, starts, discount, cut, out):
    """Set out[query] to the sum of gain * discount over the first ``cut`` of the query's gains.

    The gains are in descending order.
    """
    for query in range(starts.shape[0] - 1):
        base = starts[query]
        total = 0.0
        for rank in range(min(cut, starts[query + 1] - base)):
            total += gain[base + rank] * discount[rank]
        out[query] = total


@kernel(allocates=True)
def count_tied(scores, starts):
    """Count documents that share their score with another one of their query."""
    tied = 0
    for query in range(starts.shape[0] - 1):
        ordered = np.sort(scores[starts[query] : starts[query + 1]])
        n = ordered.shape[0]
        for i in range(n):
            if (i > 0 and ordered[i - 1] == ordered[i]) or (i + 1 < n and ordered[i + 1] == ordered[i]):
                tied += 1
    return tied


@kernel
def resampled_mean(values, raw):
    """Mean of values drawn with replacement: the high half of each raw 64-bit number picks one; summed in order."""
    n = np.uint64(values.shape[0])
    total = 0.0
    for i in range(raw.shape[0]):
        total += values[((raw[i] >> np.uint64(32)) * n) >> np.uint64(32)]
    return total / raw.shape[0]


# ---- change of a metric when two documents swap, as flat arrays by place ---------------------------------------------
#
# ``order[first + rank]`` is the row at ``rank`` (0 first) of the query whose rows begin at ``first``; place means
# ``first + rank``.  ``r`` in the formulas counts ranks from 1 and is cut at k.


@kernel
def err_swaps(order, starts, first_query, last_query, scales, stop, cut, upper, lower, lift):
    """ERR (Burges 2010, section 3, terms collected): dZ = |R_i - R_j| / T_i (upper_i - lower_j) for i above j.

    With T = 1 - R, pi_i the product of T_1 .. T_i and A_i the ERR of the first i: upper_i = pi_i / r_i + A_i and
    lower_j = A_{j-1} + pi_{j-1} / r_j.  For ERR@k the sum A stops at k and the last term is dropped if r_j > k.
    """
    for q in range(first_query, last_query):
        if scales[q] == 0.0:
            continue
        first, last = starts[q], starts[q + 1]
        passed = 1.0
        summed = 0.0
        for place in range(first, last):
            rank = place - first + 1
            chance = stop[order[place]]
            inside = rank <= cut
            lower[place] = summed + (passed / rank if inside else 0.0)
            if inside:
                summed += passed * chance / rank
            passed *= 1.0 - chance
            upper[place] = summed + passed / rank
            lift[place] = 1.0 / (1.0 - chance) if inside else 0.0


@kernel
def map_swaps(order, starts, first_query, last_query, scales, relevant, cut, upper, lower, lift):
    """Average precision: dZ = (upper_i - lower_j) / R for i above j of which one is relevant.

    With c_i the relevant ones among the first i and S_i the sum of 1/m over relevant ranks m <= i: upper_i =
    (c_{i-1} + 1) / r_i - S_i and lower_j = c_j / r_j - S_{j-1}.  For MAP@k the sum S stops at k and c_j / r_j is
    dropped if r_j > k.
    """
    for q in range(first_query, last_query):
        if scales[q] == 0.0:
            continue
        first, last = starts[q], starts[q + 1]
        hits = 0.0
        summed = 0.0
        for place in range(first, last):
            rank = place - first + 1
            hit = relevant[order[place]]
            inside = rank <= cut
            before = summed
            if inside:
                summed += hit / rank
            upper[place] = (hits + 1.0) / rank - summed
            hits += hit
            lower[place] = (hits / rank if inside else 0.0) - before
            lift[place] = 1.0 if inside else 0.0


@kernel
def mrr_swaps(order, starts, first_query, last_query, scales, relevant, cut, upper, lower, lift):
    """Reciprocal rank: dZ = upper_i - lower_j for i above j of which one is relevant.

    dZ is 0 below the first relevant rank f.

    A relevant j that rises to i above f: 1/i - 1/f.  The first relevant one that falls from f to j: 1/f - 1/min(j, s)
    with s the rank of the second.
    """
    for q in range(first_query, last_query):
        if scales[q] == 0.0:
            continue
        first, last = starts[q], starts[q + 1]
        head, second = last, last
        for place in range(first, last):
            if relevant[order[place]] > 0.0:
                if head == last:
                    head = place
                else:
                    second = place
                    break
        of_head = 1.0 / (head - first + 1) if head < last and head - first < cut else 0.0
        for place in range(first, last):
            upper[place] = 1.0 / (place - first + 1)
            lift[place] = 1.0 if place <= head and place - first < cut else 0.0
            if relevant[order[place]] > 0.0:
                lower[place] = of_head
            else:
                after = min(place, second) - first
                lower[place] = 1.0 / (after + 1) if after < cut else 0.0


@kernel
def concordance_swaps(
    order, starts, first_query, last_query, scales, level, n_levels, depth, cells, balance, own, table
):
    """Fill the rows of ``table`` with the pairs that come into or out of order when i and j swap; no scale.

    ``table[cells[q] - cells[first_query] + i n + j]`` for i among the first ``depth`` and j below it.  Every m between
    counts: dZ = |sign(y_i - y_j) + sum over m of sign(y_i - y_m) + sign(y_m - y_j)|.  ``level`` (n_rows,) numbers the
    grades of a query from its best, 0; ``balance[grade]`` sums sign(y_m - grade) over the ranks passed; ``own`` is
    scratch as long as a query.
    """
    for q in range(first_query, last_query):
        if scales[q] == 0.0:
            continue
        first, n = starts[q], starts[q + 1] - starts[q]
        for grade in range(n_levels):
            balance[grade] = 0
        for j in range(n):
            here = level[order[first + j]]
            own[j] = balance[here]
            for grade in range(n_levels):
                balance[grade] += np.sign(here - grade)
        for grade in range(n_levels):
            balance[grade] = 0
        row = cells[q] - cells[first_query]
        for i in range(min(depth, n - 1)):
            of_i = level[order[first + i]]
            for grade in range(n_levels):
                balance[grade] += np.sign(of_i - grade)
            between = 0
            for j in range(i + 1, n):
                of_j = level[order[first + j]]
                gained = np.sign(of_i - of_j) + between + own[j] - balance[of_j]
                table[row + j] = abs(gained)
                between += np.sign(of_i - of_j)
            row += n


# ---- sums of whole numbers under random signs: exact, so that neither order nor threads change them ----------------


@kernel
def add_flipped(values, raw, table, sums):
    """Add to sums[b] all 64 ``values``, negated where the bit of raw[b] is set.

    ``table`` (8, 256) is scratch for 8 at a time.
    """
    for byte in range(8):
        first = 8 * byte
        table[byte, 0] = values[first : first + 8].sum()
        for pattern in range(1, 256):
            lowest = 0
            while not (pattern >> lowest) & 1:
                lowest += 1
            table[byte, pattern] = table[byte, pattern & (pattern - 1)] - 2 * values[first + lowest]
    for b in range(raw.shape[0]):
        bits = np.int64(raw[b])
        total = np.int64(0)
        for byte in range(8):
            total += table[byte, (bits >> (8 * byte)) & 255]
        sums[b] += total


@kernel
def count_all_signs(values, least):
    """Count the choices of signs of ``values`` (m,) whose sum is ``least`` or more on either side.

    There are 2^m choices.

    In Gray's order, where one sign changes at a time.  ``values`` is restored at the end.
    """
    m = values.shape[0]
    total = values.sum()
    found = 0
    for step in range(1, (1 << m) + 1):
        if abs(total) >= least:
            found += 1
        turned = 0
        while turned < m and not (step >> turned) & 1:
            turned += 1
        if turned < m:
            total -= 2 * values[turned]
            values[turned] = -values[turned]
    for i in range(m):
        values[i] = abs(values[i])
    return found
