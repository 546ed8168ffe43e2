"""Kernels over the paths of a forest, from each root to each leaf: flat loops without checks.

A path has one *element* for each feature of its nodes: the codes ``low .. high`` that follow the path, whether a
missing value does (the ``conditions``, see `rankmill.scorer.inspect.paths.Conditions`), and the ``share`` of the
training rows that do, multiplied over the nodes of that feature.  A code is 0 if the value is missing, else 1 plus the
number of the feature's cuts below it.  A document *meets* an element if it follows the path at all nodes of that
feature; it ends in the leaf whose elements it all meets.  ``slot`` numbers the features that the forest uses.

A categorical feature has codes as in `rankmill.scorer._kernels`, and its elements hold any of them: ``allowed[table +
code]`` is 1 for a code that follows the path.  ``table`` is -1 for the elements of other features.
"""

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.randoms import GOLDEN

HIGHEST = 65_535  # no code is greater
TILE = 1024  # rows at a time, so that tables and sums stay in the cache
_FOLDED = np.uint64(53)  # leaves 11 bits: a place in a table of 2 * TILE
_ONE = np.uint64(1)
_BITS = 64


@kernel
def find_parents(tree_starts, node_left, node_right, n_codes, parent, depth, above):
    """Write the ``parent`` of every node, -1 for a root, and its ``depth``.

    ``above`` gets the sum of ``n_codes`` of the nodes above it.
    """
    for t in range(tree_starts.shape[0] - 1):
        start = tree_starts[t]
        parent[start] = -1
        depth[start] = 0
        above[start] = 0
        for node in range(start, tree_starts[t + 1]):
            if node_left[node] >= 0:
                for child in (start + node_left[node], start + node_right[node]):
                    parent[child] = node
                    depth[child] = depth[node] + 1
                    above[child] = above[node] + n_codes[node]


@kernel
def gather_paths(
    leaves, roots, parent, slot_of, node_feature, node_cut, node_missing_left, node_left, node_right, node_rows,
    n_codes,
    set_starts, set_members, starts, slot, low, high, missing, table, allowed, share,
):  # fmt: skip
    """Write the elements of the path to each of ``leaves``, the lowest node's first.

    Return their number, and the size of ``allowed``.

    ``n_codes`` of a node that splits by a set is the number of codes of its feature, 0 of other nodes.
    """
    filled = 0
    used = 0
    for p in range(leaves.shape[0]):
        starts[p] = filled
        root = roots[p]
        child = leaves[p]
        node = parent[child]
        while node >= 0:
            goes_left = root + node_left[node] == child
            rows = node_rows[child]
            total = rows + node_rows[root + (node_right[node] if goes_left else node_left[node])]
            s = slot_of[node_feature[node]]
            e = starts[p]
            while e < filled and slot[e] != s:
                e += 1
            if e == filled:
                filled += 1
                slot[e] = s
                low[e] = 1
                high[e] = HIGHEST
                missing[e] = 1
                share[e] = 1.0
                table[e] = -1
                if n_codes[node] > 0:
                    table[e] = used
                    for code in range(n_codes[node]):
                        allowed[used + code] = 1
                    used += n_codes[node]
            if n_codes[node] > 0:
                members = set_members[set_starts[node_cut[node]] : set_starts[node_cut[node] + 1]]
                _narrow(allowed[table[e] : table[e] + n_codes[node]], members, node_missing_left[node] == 1, goes_left)
            elif goes_left:
                high[e] = min(high[e], node_cut[node] + 1)
                missing[e] &= node_missing_left[node]
            else:
                low[e] = max(low[e], node_cut[node] + 2)
                missing[e] &= 1 - node_missing_left[node]
            share[e] *= rows / total if total > 0 else 0.5
            child = node
            node = parent[node]
    starts[leaves.shape[0]] = filled
    return filled, used


@kernel
def _narrow(allowed, members, missing_left, goes_left):
    """Clear ``allowed`` for the codes that do not go to the given side of a split by the set ``members``."""
    going_left = np.uint8(2)
    for member in members:
        allowed[member + 1] |= going_left
    if missing_left:
        allowed[0] |= going_left
    for code in range(allowed.shape[0]):
        allowed[code] = (allowed[code] & 1) & ((allowed[code] >= going_left) == goes_left)


@kernel
def _follows(code, e, conditions):
    """Return whether a code meets element ``e``."""
    if conditions.table[e] >= 0:
        return conditions.allowed[conditions.table[e] + code] == 1
    return (conditions.low[e] <= code <= conditions.high[e]) or (code == 0 and conditions.missing[e] == 1)


@kernel(allocates=True)
def find_contributions(
    codes, first, last, conditions, share, value, output, points, weights, out
):  # fmt: skip
    """Write the Shapley values of the rows ``first`` .. ``last`` - 1 of ``codes`` to ``out`` (n, outputs, slots).

    On a path of d elements a coalition S has the value ``value * prod over S of met * prod over the others of share``.
    With
    |S|! (d - 1 - |S|)! / d! = integral over t in [0, 1] of t^|S| (1 - t)^(d - 1 - |S|),
    the Shapley value of a met element e is

        value * prod over unmet of share * (1 - share_e) * integral of (1 - t)^unmet * prod over met j != e of (t + (1 -
        t) share_j)

    and that of an unmet one ``- value * prod over unmet of share * integral of (1 - t)^(unmet - 1) * prod over met of
    (..)``. The integrands are polynomials of degree d - 1 with no negative term: Gauss and Legendre's rule of (d + 1)
    // 2 ``points`` (those of the rule of n begin at n (n - 1) / 2) is exact, and nothing cancels.

    The result depends only on the set of met elements, which many documents share: sets are looked up in a hash table
    of ``2 * TILE`` places, so at most ``TILE`` rows are processed at a time.
    """
    starts, slot, low, high, missing, table_of, allowed = conditions
    n = last - first
    n_slots = out.shape[2]
    widest = 0
    for p in range(value.shape[0]):
        widest = max(widest, starts[p + 1] - starts[p])
    most = (widest + 1) // 2
    factor = np.empty((widest, most))
    inverse = np.empty((widest, most))
    power = np.empty((widest + 1, most))
    base = np.empty(most)
    parts = np.empty((TILE, widest))  # contributions of each set, in the order of their first occurrence
    masks = np.empty((TILE, (widest + _BITS - 1) // _BITS + 1), np.uint64)
    set_of = np.empty(n, np.int64)
    table = np.empty(2 * TILE, np.int64)
    stamp = np.full(2 * TILE, -1, np.int64)
    mask_of = np.empty((masks.shape[1], n), np.uint64)
    columns = np.empty((n_slots, n), codes.dtype)  # by slot, so that the rows of one element lie together
    sums = np.zeros((out.shape[1], n_slots, n))
    for i in range(n):
        for s in range(n_slots):
            columns[s, i] = codes[first + i, s]
    for p in range(value.shape[0]):
        begin = starts[p]
        d = starts[p + 1] - begin
        n_words = (d + _BITS - 1) // _BITS
        n_points = (d + 1) // 2
        at = n_points * (n_points - 1) // 2
        for q in range(n_points):
            t = points[at + q]
            power[0, q] = weights[at + q]
            for m in range(d):
                power[m + 1, q] = power[m, q] * (1.0 - t)
            for e in range(d):
                factor[e, q] = t + (1.0 - t) * share[begin + e]
                inverse[e, q] = 1.0 / factor[e, q]
        for w in range(n_words):
            words = mask_of[w]
            words[:] = 0
            for e in range(w * _BITS, min(d, (w + 1) * _BITS)):
                column = columns[slot[begin + e]]
                least = low[begin + e]
                greatest = high[begin + e]
                goes = missing[begin + e] == 1
                if table_of[begin + e] >= 0:
                    of_code = allowed[table_of[begin + e] :]
                    for i in range(n):
                        words[i] = (words[i] << _ONE) | np.uint64(of_code[column[i]])
                    continue
                for i in range(n):
                    code = column[i]
                    along = ((least <= code) & (code <= greatest)) | (goes & (code == 0))
                    words[i] = (words[i] << _ONE) | np.uint64(along)
        n_sets = 0
        for i in range(n):
            key = np.uint64(0)
            for w in range(n_words):
                key = (key ^ mask_of[w, i]) * GOLDEN
            place = np.int64(key >> _FOLDED)
            while stamp[place] == p:
                same = True
                for w in range(n_words):
                    same = same and masks[table[place], w] == mask_of[w, i]
                if same:
                    break
                place = (place + 1) % (2 * TILE)
            if stamp[place] != p:
                stamp[place] = p
                table[place] = n_sets
                for w in range(n_words):
                    masks[n_sets, w] = mask_of[w, i]
                _contributions_of_set(
                    masks[n_sets], d, begin, share, value[p], points, at, n_points, power, factor, inverse, base,
                    parts[n_sets],
                )  # fmt: skip
                n_sets += 1
            set_of[i] = table[place]
        for e in range(d):
            sums_here = sums[output[p], slot[begin + e]]
            for i in range(n):
                sums_here[i] += parts[set_of[i], e]
    for i in range(n):
        for k in range(out.shape[1]):
            for s in range(n_slots):
                out[first + i, k, s] = sums[k, s, i]


@kernel
def _contributions_of_set(
    mask, d, begin, share, value, points, at, n_points, power, factor, inverse, base, parts
):  # fmt: skip
    """Write the contributions of the ``d`` elements of a path, of which the bits of ``mask`` are met, to ``parts``."""
    product = value
    unmet = 0
    for e in range(d):
        if not _is_met(mask, e, d):
            product *= share[begin + e]
            unmet += 1
    for q in range(n_points):
        base[q] = power[max(unmet - 1, 0), q]
    for e in range(d):
        if _is_met(mask, e, d):
            for q in range(n_points):
                base[q] *= factor[e, q]
    lost = 0.0
    if unmet > 0:
        for q in range(n_points):
            lost -= base[q]
            base[q] *= 1.0 - points[at + q]
        lost *= product
    for e in range(d):
        if _is_met(mask, e, d):
            won = 0.0
            for q in range(n_points):
                won += base[q] * inverse[e, q]
            parts[e] = product * (1.0 - share[begin + e]) * won
        else:
            parts[e] = lost


@kernel
def _is_met(mask, e, d):
    """Return the bit of element ``e``; the last element of a word is its lowest bit."""
    w = e // _BITS
    last = min(d, (w + 1) * _BITS) - 1
    return (mask[w] >> np.uint64(last - e)) & _ONE == _ONE


@kernel(allocates=True)
def find_interactions(codes, first, last, conditions, share, value, output, points, weights, out):
    """Add SHAP interaction values of rows ``first`` .. ``last`` - 1 of ``codes`` to ``out`` (n, outputs, slots, slots).

    With a_k = 1 for a met element and 0 for others, two elements i and j of a path interact by

        value * (a_i - share_i) * (a_j - share_j) * integral of prod over k != i, j of (t a_k + (1 - t) share_k),

    half of which is the value of (i, j), and half that of (j, i).  That of (i, i) is the Shapley value of i less those
    of its pairs.  Each (a_k - share_k) is divided by its own factor of the product over all k: met, this is (1 - share)
    / (t + (1 - t) share); not met, -1 / (1 - t), so that nothing is divided by a share.
    """
    starts, slot = conditions.starts, conditions.slot
    widest = 0
    for p in range(value.shape[0]):
        widest = max(widest, starts[p + 1] - starts[p])
    most = (widest + 1) // 2
    factor = np.empty((widest, most))
    effect = np.empty((widest, most))
    base = np.empty(most)
    for p in range(value.shape[0]):
        begin = starts[p]
        d = starts[p + 1] - begin
        n_points = (d + 1) // 2
        at = n_points * (n_points - 1) // 2
        for e in range(d):
            for q in range(n_points):
                factor[e, q] = points[at + q] + (1.0 - points[at + q]) * share[begin + e]
        for i in range(first, last):
            product = value[p]
            for q in range(n_points):
                base[q] = weights[at + q]
            for e in range(d):
                if _follows(codes[i, slot[begin + e]], begin + e, conditions):
                    for q in range(n_points):
                        base[q] *= factor[e, q]
                        effect[e, q] = (1.0 - share[begin + e]) / factor[e, q]
                else:
                    product *= share[begin + e]
                    for q in range(n_points):
                        base[q] *= 1.0 - points[at + q]
                        effect[e, q] = -1.0 / (1.0 - points[at + q])
            if product == 0.0:
                continue
            table = out[i, output[p]]
            for e in range(d):
                s = slot[begin + e]
                single = 0.0
                for q in range(n_points):
                    single += base[q] * effect[e, q]
                table[s, s] += product * single
                for f in range(e):
                    pair = 0.0
                    for q in range(n_points):
                        pair += base[q] * effect[e, q] * effect[f, q]
                    pair *= 0.5 * product
                    other = slot[begin + f]
                    table[s, other] += pair
                    table[other, s] += pair
                    table[s, s] -= pair
                    table[other, other] -= pair


@kernel
def count_met(codes, first, last, chosen, conditions, a, b, counts):
    """Add to ``counts`` (n_paths,) the rows that meet every element of a path.

    Elements of the slots ``a`` and ``b`` are ignored.

    Only the ``chosen`` paths are processed.
    """
    starts, slot = conditions.starts, conditions.slot
    for p in chosen:
        found = 0
        for i in range(first, last):
            along = True
            for e in range(starts[p], starts[p + 1]):
                if slot[e] != a and slot[e] != b and not _follows(codes[i, slot[e]], e, conditions):
                    along = False
                    break
            found += along
        counts[p] += found


@kernel
def count_elements(codes, first, last, conditions, counts):
    """Add to ``counts`` (n_elements,) the rows that meet each element."""
    slot = conditions.slot
    for e in range(slot.shape[0]):
        found = 0
        for i in range(first, last):
            found += _follows(codes[i, slot[e]], e, conditions)
        counts[e] += found


@kernel
def sum_cells(chosen, conditions, weight, output, a, b, codes_a, codes_b, out):
    """Add the ``weight`` of each of the paths ``chosen`` to ``out`` (outputs, cells).

    Only paths whose elements of two slots are met count.

    Cell c has the code ``codes_a[c]`` in slot ``a`` and ``codes_b[c]`` in slot ``b``; a slot of -1 is none.
    """
    starts, slot = conditions.starts, conditions.slot
    for p in chosen:
        of_a = -1
        of_b = -1
        for e in range(starts[p], starts[p + 1]):
            if slot[e] == a:
                of_a = e
            elif slot[e] == b:
                of_b = e
        for c in range(codes_a.shape[0]):
            along = of_a < 0 or _follows(codes_a[c], of_a, conditions)
            if along and (of_b < 0 or _follows(codes_b[c], of_b, conditions)):
                out[output[p], c] += weight[p]


@kernel
def add_without_one(codes, first, last, conditions, share, value, output, out):
    """Add to ``out`` (n, outputs, slots) the change of an output if one feature becomes unknown.

    A path then contributes ``value * share`` of that feature if all others are met, instead of ``value`` if all are.
    """
    starts, slot = conditions.starts, conditions.slot
    for p in range(value.shape[0]):
        for i in range(first, last):
            unmet = 0
            lacking = -1
            for e in range(starts[p], starts[p + 1]):
                if not _follows(codes[i, slot[e]], e, conditions):
                    unmet += 1
                    lacking = e
                    if unmet > 1:
                        break
            if unmet == 0:
                for e in range(starts[p], starts[p + 1]):
                    out[i, output[p], slot[e]] += value[p] * (share[e] - 1.0)
            elif unmet == 1:
                out[i, output[p], slot[lacking]] += value[p] * share[lacking]


@kernel
def move_outputs(leaves, steps, n_outputs, out):
    """Write the sum of ``steps`` (n_paths,) over the leaves of each row to ``out`` (outputs, n)."""
    for i in range(leaves.shape[0]):
        for k in range(n_outputs):
            out[k, i] = 0.0
        for t in range(leaves.shape[1]):
            out[t % n_outputs, i] += steps[leaves[i, t]]


@kernel
def change_points(first_scores, second_scores, grades, low, high, out):
    """Write the weights in (low, high) at which two documents of different grade of one query tie; return their number.

    ``(1 - a) s + a t`` of documents i and j are equal at ``a = d / (d - e)``, d and e their differences in s and in t.
    It stops when ``out`` is full.
    """
    n = first_scores.shape[0]
    found = 0
    for i in range(n):
        for j in range(i):
            if grades[i] != grades[j]:
                d = first_scores[i] - first_scores[j]
                e = second_scores[i] - second_scores[j]
                if d != e:
                    a = d / (d - e)
                    if low < a < high:
                        if found == out.shape[0]:
                            return found
                        out[found] = a
                        found += 1
    return found
