"""Kernels around the trees: raw values to codes before them, a link after them.  Flat loops without checks.

``exp`` of a link is a polynomial from + - * / alone, so that the bits are the same on every CPU.
"""

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.elementary import exp_precise

STRIP = 64  # rows whose values stay in the first-level cache while they are coded feature by feature


@kernel
def bin_rows(values, first, n_rows, columns, absent, cuts, starts, steps, buckets, origin, scale, codes):
    """Write ``codes[k, i]``: 0 if ``values[first + i, columns[k]]`` is NaN, else 1 + the number of cuts below it.

    Slot ``k`` has its cuts from ``cuts[starts[k]]`` on, ascending, and then NaN, which is above nothing; where
    ``columns[k]`` is negative every document has the value ``absent``.  A value x falls into the bucket ``(x - origin[k]) *
    scale[k]`` of equal width, and ``buckets[k]`` tells how many cuts lie in the buckets before: of the next ``2 **
    steps[k] - 1`` cuts a search finds how many are below x.  ``scale`` 0 makes one bucket of all.

    A strip of documents takes each step together, without a branch, so that their reads overlap.
    """
    value = np.zeros(STRIP, np.float32)  # the last strip need not fill it
    below = np.empty(STRIP, np.int32)
    last = np.float32(buckets.shape[1] - 1)
    for strip in range(0, n_rows, STRIP):
        n = min(STRIP, n_rows - strip)
        for k in range(columns.shape[0]):
            column = columns[k]
            for i in range(n):
                value[i] = values[first + strip + i, column] if column >= 0 else absent
            table = cuts[starts[k] :]
            if scale[k] > 0:
                before = buckets[k]
                begin = origin[k]
                factor = scale[k]
                for i in range(STRIP):
                    place = (value[i] - begin) * factor
                    place = place if place > 0 else np.float32(0)  # NaN, too
                    below[i] = before[np.int32(place if place < last else last)]
            else:
                for i in range(STRIP):
                    below[i] = 0
            for step in range(steps[k] - 1, -1, -1):
                middle = (1 << step) - 1
                for i in range(STRIP):
                    below[i] += np.int32(table[below[i] + middle] < value[i]) << step
            for i in range(n):
                codes[k, strip + i] = 0 if value[i] != value[i] else below[i] + 1


@kernel
def bin_column(values, first, k, cuts, starts, steps, buckets, origin, scale, codes):
    """Do what `bin_rows` does, for slot ``k`` alone: ``values`` (m,) are those of its column, from row ``first`` on.

    ``codes[tile, k, i]`` is that of row ``tile * width + i``, where a tile is ``width`` documents.
    """
    width = codes.shape[2]
    below = np.empty(width, np.int32)
    last = np.float32(buckets.shape[1] - 1)
    table = cuts[starts[k] :]
    before = buckets[k]
    begin = origin[k]
    factor = scale[k]
    done = 0
    while done < values.shape[0]:
        at = (first + done) % width
        n = min(width - at, values.shape[0] - done)
        value = values[done : done + n]
        out = codes[(first + done) // width, k, at : at + n]
        for i in range(n):
            place = (value[i] - begin) * factor
            place = place if place > 0 else np.float32(0)  # NaN, too; and where all cuts are in the first bucket
            below[i] = before[np.int32(place if place < last else last)]
        for step in range(steps[k] - 1, 0, -1):
            middle = (1 << step) - 1
            for i in range(n):
                below[i] += np.int32(table[below[i] + middle] < value[i]) << step
        for i in range(n):
            # the last step; where there is none, there is NaN, which is above nothing
            out[i] = 0 if value[i] != value[i] else below[i] + np.int32(table[below[i]] < value[i]) + 1
        done += n


@kernel
def _push(heap, size, score):
    """Put ``score`` into ``heap``, whose first ``size`` are the greatest so far, the least of them first; returns the size then."""
    at = size
    if size < heap.shape[0]:
        while at > 0:
            up = (at - 1) >> 1
            if heap[up] <= score:
                break
            heap[at] = heap[up]
            at = up
        heap[at] = score
        return size + 1
    if score > heap[0]:
        at = 0
        down = 1
        while down < size:
            if down + 1 < size and heap[down + 1] < heap[down]:
                down += 1
            if heap[down] >= score:
                break
            heap[at] = heap[down]
            at = down
            down = 2 * at + 1
        heap[at] = score
    return size


@kernel
def mark_kept(starts, scores, heap, keep):
    """Set ``keep[i]`` to whether fewer than k = ``len(heap)`` of row i's run are above it, for runs longer than k.

    Run r is rows ``starts[r]`` to ``starts[r + 1]``.
    """
    for r in range(starts.shape[0] - 1):
        if starts[r + 1] - starts[r] > heap.shape[0]:
            size = 0
            for i in range(starts[r], starts[r + 1]):
                size = _push(heap, size, scores[i])
            for i in range(starts[r], starts[r + 1]):
                keep[i] = scores[i] >= heap[0]


@kernel
def raise_bars(query, scores, heaps, sizes, keep):
    """Put the scores of the rows to ``keep`` into the heaps of their queries, and keep none that has k above it there.

    ``heaps`` (queries, k) holds the greatest scores of each query so far, ``sizes`` (queries,) how many they are.
    """
    for i in range(query.shape[0]):
        if keep[i]:
            sizes[query[i]] = _push(heaps[query[i]], sizes[query[i]], scores[i])
    for i in range(query.shape[0]):
        if keep[i] and sizes[query[i]] == heaps.shape[1]:
            keep[i] = scores[i] >= heaps[query[i], 0]


@kernel
def _softmax_score(values, outputs, i):
    """Sum of values[k] * softmax(outputs[:, i])[k], from the first k to the last."""
    greatest = outputs[0, i]
    for k in range(1, outputs.shape[0]):
        greatest = max(greatest, outputs[k, i])
    total = 0.0
    score = 0.0
    for k in range(outputs.shape[0]):
        mass = exp_precise(outputs[k, i] - greatest)
        total += mass
        score += values[k] * mass
    return score / total


@kernel
def _ordinal_score(values, outputs, i):
    """Sum of values[k] * P(y = k), from the first k to the last, where outputs[k, i] is the logit of P(y <= k).

    It takes differences of P(y > k), which are those of P(y <= k) and keep their precision where nearly all documents
    are: near 0.  The unclipped differences add up to 1, so the clipped ones to 1 or more: no division by 0.
    """
    n_outputs = outputs.shape[0]
    total = 0.0
    score = 0.0
    before = 1.0
    for k in range(n_outputs + 1):
        above = 0.0
        if k < n_outputs:
            f = outputs[k, i]
            e = exp_precise(-abs(f))
            above = (e if f > 0.0 else 1.0) / (1.0 + e)
        mass = before - above
        if mass < 0.0:
            mass = 0.0
        total += mass
        score += values[k] * mass
        before = above
    return score / total


@kernel
def apply_link(ordinal, values, outputs, first, last, scores):
    """scores[i] = expected value of document i for first <= i < last; ``rankmill.scorer.links`` says how.

    ``outputs`` is (K, n); ``values`` holds what each grade is worth: K of them, or K + 1 where ``ordinal``.
    """
    if ordinal:
        for i in range(first, last):
            scores[i] = _ordinal_score(values, outputs, i)
    else:
        for i in range(first, last):
            scores[i] = _softmax_score(values, outputs, i)
