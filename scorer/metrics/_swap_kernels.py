"""What swapping two documents does to a metric, as flat arrays by place; one small pass a metric and query.

``order[first + rank]`` is the row that stands at ``rank`` (0 first) of the query whose rows begin at ``first``; place
means ``first + rank``.  ``r`` in the formulas counts ranks from 1 and is cut at k.
"""

import numpy as np

from rankmill.foundation.kernels.compiling import kernel


@kernel
def err_swaps(order, starts, first_query, last_query, scales, stop, cut, upper, lower, lift):
    """ERR (Burges 2010, section 3, terms collected): dZ = |R_i - R_j| / T_i (upper_i - lower_j) for i above j.

    With T = 1 - R, pi_i the product of T_1 .. T_i and A_i the ERR of the first i: upper_i = pi_i / r_i + A_i and
    lower_j = A_{j-1} + pi_{j-1} / r_j.  For ERR@k the sum A stops at k and the last term is dropped where r_j > k.
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
    dropped where r_j > k.
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
    """Reciprocal rank: dZ = upper_i - lower_j for i above j of which one is relevant, 0 below the first relevant rank f.

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
    grades of a query from its best, 0; ``balance[grade]`` sums sign(y_m - grade) over the ranks passed; ``own`` is as long as a query.
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
