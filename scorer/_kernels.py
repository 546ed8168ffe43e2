"""Kernels of prediction: map raw values to codes, keep the best scores of a query, apply a link.

Flat loops without checks.

``rankmill.scorer.models.model_file`` has checked every index that they follow.  ``_tree_kernels.py`` adds trees to
scores.

The code ``b`` of a value is 0 if it is missing, else 1 plus the number of the feature's cuts below it.  The code of a
category is 1 plus its position among the feature's cuts, and 1 plus their number if it is none of them.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.elementary import exp_precise
from rankmill.foundation.kernels.vectors import INDEX, WORD, first_of, gathered, same, vector_at

STRIP = 64  # rows whose values stay in the first-level cache while they are coded feature by feature
_LANES = 16
_GROUPS = STRIP // _LANES  # vectors of a strip, whose reads overlap
_FLOATS, _WORDS = ir.VectorType(ir.FloatType(), _LANES), ir.VectorType(WORD, _LANES)
_PLACES = ir.VectorType(INDEX, _LANES)


@intrinsic
def _count_below(typingctx, value, before, begin, factor, table, steps, below):
    """``below[i]`` = the number of cuts below ``value[i]``, for the rows of a strip: see `bin_rows`.

    ``before`` is a row of ``buckets``, and ``table`` begins with the feature's first cut.
    """
    signature = types.void(value, before, types.float32, types.float32, table, steps, below)

    def codegen(context, builder, signature, arguments):
        value, before, table, below = (
            first_of(context, builder, signature.args[n], arguments[n]) for n in (0, 1, 4, 6)
        )
        begin, factor = (same(builder, arguments[n], _FLOATS) for n in (2, 3))
        size = context.make_array(signature.args[1])(context, builder, value=arguments[1]).nitems
        last = builder.sitofp(builder.sub(size, ir.Constant(INDEX, 1)), ir.FloatType())
        last, zero = same(builder, last, _FLOATS), ir.Constant(_FLOATS, [0.0] * _LANES)
        steps = context.cast(builder, arguments[5], signature.args[5], types.int32)
        groups = [ir.Constant(INDEX, group * _LANES) for group in range(_GROUPS)]
        numbers, found = [], []
        for at in groups:
            number = builder.load(vector_at(builder, value, at, _FLOATS), align=4)
            place = builder.fmul(builder.fsub(number, begin), factor)
            place = builder.select(builder.fcmp_ordered(">", place, zero), place, zero)  # NaN, too
            place = builder.select(builder.fcmp_ordered("<", place, last), place, last)
            numbers.append(number)
            found.append(gathered(builder, before, builder.fptosi(place, _PLACES), _WORDS))
        entry, loop, done = builder.block, builder.append_basic_block("step"), builder.append_basic_block("found")
        builder.cbranch(builder.icmp_signed(">", steps, ir.Constant(WORD, 0)), loop, done)
        builder.position_at_end(loop)
        step = builder.phi(WORD)
        counts = [builder.phi(_WORDS) for _ in groups]
        less = builder.sub(step, ir.Constant(WORD, 1))
        half = builder.shl(ir.Constant(WORD, 1), less)
        middle = same(builder, builder.sub(half, ir.Constant(WORD, 1)), _WORDS)
        halves, none = same(builder, half, _WORDS), ir.Constant(_WORDS, [0] * _LANES)
        following = []
        for number, count in zip(numbers, counts, strict=True):
            cuts = gathered(builder, table, builder.sext(builder.add(count, middle), _PLACES), _FLOATS)
            more = builder.select(builder.fcmp_ordered("<", cuts, number), halves, none)
            following.append(builder.add(count, more))
        step.add_incoming(steps, entry)
        step.add_incoming(less, loop)
        for count, first, then in zip(counts, found, following, strict=True):
            count.add_incoming(first, entry)
            count.add_incoming(then, loop)
        builder.cbranch(builder.icmp_signed(">", less, ir.Constant(WORD, 0)), loop, done)
        builder.position_at_end(done)
        results = [builder.phi(_WORDS) for _ in groups]
        for result, first, then in zip(results, found, following, strict=True):
            result.add_incoming(first, entry)
            result.add_incoming(then, loop)
        for at, result in zip(groups, results, strict=True):
            builder.store(result, vector_at(builder, below, at, _WORDS), align=4)
        return context.get_dummy_value()

    return signature, codegen


@kernel
def _code_strip(value, k, cuts, starts, steps, buckets, origin, scale, other, below, out):
    """Write the codes of ``value`` (STRIP,), of slot ``k``, to ``out`` (n,), up to its end.

    ``below`` (STRIP,) is scratch.
    """
    table = cuts[starts[k] :]
    _count_below(value, buckets[k], origin[k], scale[k], table, steps[k], below)
    if other[k] > 0:
        for i in range(STRIP):
            below[i] = below[i] if table[below[i]] == value[i] else other[k] - 1
    for i in range(out.shape[0]):
        out[i] = 0 if value[i] != value[i] else below[i] + 1


@kernel(allocates=True)
def bin_rows(values, first, n_rows, columns, absent, cuts, starts, steps, buckets, origin, scale, other, codes):
    """Write ``codes[k, i]``: 0 if ``values[first + i, columns[k]]`` is NaN, else 1 + the number of cuts below it.

    If ``other[k]`` is positive, the feature is categorical, and this is the code of a value that equals no cut.

    The cuts of slot ``k`` are ascending from ``cuts[starts[k]]`` on, followed by NaN, which no value exceeds; if
    ``columns[k]`` is negative, every document has the value ``absent``.  A value x is in the bucket ``(x - origin[k]) *
    scale[k]`` of equal width, and ``buckets[k]`` has the number of cuts in the buckets before: a search counts the cuts
    below x among the next ``2 ** steps[k] - 1``.  ``scale`` 0 puts all values into the first bucket, before which there
    are no cuts.

    The documents of a strip take each step together, without a branch, so that their reads overlap.
    """
    value = np.zeros(STRIP, np.float32)
    below = np.empty(STRIP, np.int32)
    for strip in range(0, n_rows, STRIP):
        n = min(STRIP, n_rows - strip)
        for k in range(columns.shape[0]):
            if columns[k] >= 0:
                for i in range(n):
                    value[i] = values[first + strip + i, columns[k]]  # what is behind is of the strip before
            else:
                for i in range(STRIP):
                    value[i] = absent
            out = codes[k, strip : strip + n]
            _code_strip(value, k, cuts, starts, steps, buckets, origin, scale, other, below, out)


@kernel(allocates=True)
def bin_column(values, first, k, cuts, starts, steps, buckets, origin, scale, other, codes):
    """Do what `bin_rows` does, for slot ``k`` alone: ``values`` (m,) are those of its column, from row ``first`` on.

    ``codes[tile, k, i]`` is the code of row ``tile * width + i``, with ``width`` documents per tile.
    """
    width = codes.shape[2]
    value = np.zeros(STRIP, np.float32)
    below = np.empty(STRIP, np.int32)
    done = 0
    while done < values.shape[0]:
        at = (first + done) % width
        n = min(STRIP, width - at, values.shape[0] - done)
        for i in range(n):
            value[i] = values[done + i]
        out = codes[(first + done) // width, k, at : at + n]
        _code_strip(value, k, cuts, starts, steps, buckets, origin, scale, other, below, out)
        done += n


@kernel
def _push(heap, size, score):
    """Push ``score`` to the min-heap ``heap`` of the ``size`` greatest scores so far; return the new size."""
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
def raise_bars(query, scores, heaps, sizes, bars, keep):
    """Add the scores of the rows to ``keep`` to the heaps of their queries.

    Clear ``keep`` for rows with k greater scores there.

    ``heaps`` (queries, k) holds the greatest scores of each query so far, ``sizes`` (queries,) their number.  ``bars``
    (queries,) has the least of k, -inf for fewer: side by side they stay in a cache, where most rows need no more.
    """
    for i in range(query.shape[0]):
        q = np.uint64(query[i])
        if keep[i] and scores[i] > bars[q]:
            sizes[q] = _push(heaps[q], sizes[q], scores[i])
            if sizes[q] == heaps.shape[1]:
                bars[q] = heaps[q, 0]
    for i in range(query.shape[0]):
        keep[i] &= scores[i] >= bars[np.uint64(query[i])]


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

    Differences of P(y > k) equal those of P(y <= k), and keep their precision near 0, where nearly all documents are.
    The unclipped differences sum to 1, so the clipped ones to 1 or more: no division by 0.
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
    """scores[i] = expected value of document i for first <= i < last; ``rankmill.scorer.forest.links`` says how.

    ``outputs`` is (K, n); ``values`` holds the value of each grade: K of them, or K + 1 if ``ordinal``.
    """
    if ordinal:
        for i in range(first, last):
            scores[i] = _ordinal_score(values, outputs, i)
    else:
        for i in range(first, last):
            scores[i] = _softmax_score(values, outputs, i)
