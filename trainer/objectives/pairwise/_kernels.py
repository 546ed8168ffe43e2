"""Gradients of pairs of documents.  The objectives check the arguments.

``row`` numbers documents as stored; ``rank`` is the position by score, 0 first; ``order[rank]`` is the row at that
rank. ``high``/``low`` compare grades, never scores.  ``exp`` and ``log`` are polynomials from + - * / alone, so that
the bits are the same on every CPU.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.elementary import LOG2_E, exp_negative, log2_positive
from rankmill.foundation.kernels.inner import inner_kernel
from rankmill.foundation.kernels.randoms import random_bits, uniform
from rankmill.scorer.metrics._kernels import err_swaps, map_swaps, mrr_swaps

LANES = 8  # cells of one vector read; arrays are longer than a list by as many
_WIDEST = 600.0  # exp(-600) is far from the smallest double, and so are its products with gains
_STEEPEST = 30.0  # beyond it exp(s_j - s_i) continues along its tangent, so that no pair dominates all others
_STEEPEST_SLOPE = 10686474581524.463  # exp(30)
_UNIT = 2.0**-53
_DRAW = 0x7061697273  # key of the draws of pairs, besides the round
BY_RANK, BY_PLACE, BY_STEP, TABLE, EVEN = 0, 1, 2, 3, 4  # layouts of pair weights
LOGISTIC, EXPONENTIAL = 0, 1
DECAYS, OF_RANKS, OF_ERR, OF_MAP, OF_MRR = 0, 1, 2, 3, 4  # what neighbours in an order weigh
GRADIENTS, LOSSES, HESSIANS, SHARES = 0, 1, 2, 3
NO_ROWS, NONE = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.float64)

Floats = npt.NDArray[np.float64]


class PairWeights(NamedTuple):
    """The weight of a pair: ``scale |x_i - x_j| (upper_i - lower_j)``.

    The weights of its documents and of its query multiply it.

    ``shape`` is the layout of ``upper`` and ``lower``: ``BY_RANK`` by rank; ``BY_PLACE`` by place, times ``lift`` at
    the place of i; ``BY_STEP`` ``upper[i]`` and ``lower[longest + j - i]``; ``EVEN`` by rank, with the sign of x_i -
    x_j for the difference.
    ``TABLE``: weights are in a table instead, see :func:`pair_terms`.  Arrays by rank or step are ``LANES`` cells
    longer than the longest query.
    """

    shape: int
    values: Floats  # (n_rows,) x of each document
    scales: Floats  # (n_queries,) 0: the query is skipped
    upper: Floats
    lower: Floats
    lift: Floats
    documents: Floats  # (n_rows,) weights of documents; empty: all are 1
    queries: Floats  # (n_queries,) factors of the results; empty: all are 1


class PairRules(NamedTuple):
    """Which pairs count, and how a query's sums are scaled."""

    loss: int = LOGISTIC  # or EXPONENTIAL
    sigma: float = 1.0
    truncation: int = 2**31  # pairs need a document in the top ``truncation`` by score
    normalise: bool = False  # whether LightGBM's two rules apply
    per_pair: bool = False  # whether a query's loss is divided by its number of pairs (gbm's v_i)
    ties: bool = False  # documents of equal grade are pairs with the target probability 1/2
    fraction: float = 1.0  # probability by which a pair is kept; it then counts 1 / fraction
    seed: int = 0


class Shuffles(NamedTuple):
    """The orders by sigma s + noise of :func:`neighbours`, and what a pair of neighbours weighs."""

    permutations: int
    sigma: float
    gumbel: bool  # the noise; else logistic
    rule: int  # DECAYS, or the metric: OF_RANKS, OF_ERR, OF_MAP or OF_MRR
    decay: float
    cut: int  # of the metric


class GivenPairs(NamedTuple):
    """Given pairs, every two documents at most once; ``above`` is the lower row, whichever is preferred."""

    starts: npt.NDArray[np.int64]  # (n_queries + 1,), empty: there are none
    above: npt.NDArray[np.int32]  # (p,) rows
    below: npt.NDArray[np.int32]  # (p,) rows of the same queries
    weight: Floats  # (p,)
    target: Floats  # (p,) probability that ``above`` belongs above ``below``


class SortedRows(NamedTuple):
    """The order of each query's rows, and scratch of one worker."""

    key: np.uint64  # of the jitter by which equal scores are ranked
    order: npt.NDArray[np.uint32]  # (n_rows,) each query's rows in any order, sorted in place
    spare: npt.NDArray[np.uint32]  # as long as the longest query
    work: Floats  # (8, longest + LANES)


class PairTerms(NamedTuple):
    """What :func:`pair_terms` writes: gradients, losses, or a list of pairs; the arrays of the others are empty."""

    what: int  # GRADIENTS, LOSSES, HESSIANS or SHARES
    gradients: Floats = NONE  # (n_rows,) of SHARES: the loss of each document's pairs
    hessians: Floats = NONE  # (n_rows,)
    losses: Floats = NONE  # (n_queries,)
    least: float = 0.0  # pairs below it are kept with probability hessian / least, with the hessian ``least``
    first_rows: npt.NDArray[np.int32] = NO_ROWS
    second_rows: npt.NDArray[np.int32] = NO_ROWS
    pair_hessian: Floats = NONE


@inner_kernel
def _stands_before(scores, key, a, b):
    """Whether row a ranks before row b: the higher score, then the smaller random number, then the lower row."""
    if scores[a] != scores[b]:
        return scores[a] > scores[b]
    ja, jb = random_bits(key, a), random_bits(key, b)
    if ja != jb:
        return ja < jb
    return a < b


@kernel
def order_by_score(scores, key, first, last, order, spare):
    """Sort ``order[first:last]``, which holds the rows first .. last in any order, best row first.

    The order is strict, so the result does not depend on the initial ``order``; it is fast if that is nearly sorted, as
    it is from one round to the next.  Merge sort from runs of eight; ``spare`` is scratch for last - first rows.
    """
    first, last = np.uint64(first), np.uint64(last)  # unsigned: no index is counted from the end, which takes time
    one, run = np.uint64(1), np.uint64(8)
    for start in range(first, last, run):
        for i in range(start + one, min(last, start + run)):
            row = order[i]
            j = i
            while j > start and _stands_before(scores, key, row, order[j - one]):
                order[j] = order[j - one]
                j -= one
            order[j] = row
    while run < last - first:
        for start in range(first, last, run + run):
            middle, end = min(last, start + run), min(last, start + run + run)
            if middle >= end or not _stands_before(scores, key, order[middle], order[middle - one]):
                continue
            for i in range(start, middle):
                spare[i - start] = order[i]
            i, held, j, k = np.uint64(0), middle - start, middle, start
            while i < held:
                if j < end and _stands_before(scores, key, order[j], spare[i]):
                    order[k] = order[j]
                    j += one
                else:
                    order[k] = spare[i]
                    i += one
                k += one
        run += run


def _vector_of(builder, value):
    """Return a vector with ``value`` in every lane."""
    kind = ir.VectorType(value.type, LANES)
    undefined, zero = ir.Constant(kind, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    first = builder.insert_element(undefined, value, zero)
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


@intrinsic
def pairs_of_one(typingctx, s, e, gain, discount, weight, g, h, first, last, one, rules):
    """Pair document ``one`` with the documents first .. last, which rank below it.

    Return sums of forces, hessians and |forces|.

    ``one`` is (s, e, gain, discount) of the document, ``rules`` is (scale, sigma, floor, slope).  For every j::

        dZ   = scale weight_j |gain_i - gain_j| (discount_i - discount_j) / (floor + slope (s_i - s_j))
        rho  = e_j / (e_i + e_j) if gain_i > gain_j else e_i / (e_i + e_j)        with e = exp(sigma (s - s_top))
        g[j] += sign(gain_i - gain_j) dZ rho          h[j] += sigma dZ rho (1 - rho)

    One exponential a document and one division a pair.  Written as vector instructions because the compiler gives
    up on loops over this many arrays: it cannot know that they do not overlap.  Eight lanes on every CPU, added up in
    one order, without fused multiply-adds: the same bits everywhere.  Arrays have ``LANES`` cells past ``last``.
    """
    signature = types.UniTuple(types.float64, 3)(s, e, gain, discount, weight, g, h, first, last, one, rules)

    def codegen(context, builder, signature, arguments):
        index, vector = ir.IntType(64), ir.VectorType(ir.DoubleType(), LANES)
        arrays = zip(signature.args[:7], arguments[:7], strict=True)
        data = [context.make_array(kind)(context, builder, value=value).data for kind, value in arrays]
        limits = zip(arguments[7:9], signature.args[7:9], strict=True)
        first, last = (context.cast(builder, value, kind, types.intp) for value, kind in limits)
        s_i, e_i, gain_i, discount_i = (_vector_of(builder, v) for v in cgutils.unpack_tuple(builder, arguments[9], 4))
        scale, sigma, floor, slope = (_vector_of(builder, v) for v in cgutils.unpack_tuple(builder, arguments[10], 4))
        zero, unit = (ir.Constant(vector, [x] * LANES) for x in (0.0, 1.0))
        lanes = ir.Constant(ir.VectorType(index, LANES), list(range(LANES)))
        end = _vector_of(builder, last)
        signed = ir.FunctionType(vector, [vector])
        absolute = cgutils.get_or_insert_function(builder.module, signed, f"llvm.fabs.v{LANES}f64")
        add, sub, mul, div = builder.fadd, builder.fsub, builder.fmul, builder.fdiv
        sums = [cgutils.alloca_once_value(builder, zero) for _ in range(3)]
        with cgutils.for_range_slice(builder, first, last, ir.Constant(index, LANES), intp=index) as (j, _):
            cells = [builder.bitcast(builder.gep(cell, [j]), vector.as_pointer()) for cell in data]
            s_j, e_j, gain_j, discount_j, weight_j, g_j, h_j = (builder.load(cell, align=8) for cell in cells)
            damp = add(floor, mul(slope, sub(s_i, s_j)))
            inverse = div(unit, mul(add(e_i, e_j), damp))
            gains = mul(sub(gain_i, gain_j), mul(scale, weight_j))
            delta = mul(mul(gains, sub(discount_i, discount_j)), inverse)
            better = builder.fcmp_ordered(">", gain_i, gain_j)
            force = mul(delta, builder.select(better, e_j, e_i))
            size = builder.call(absolute, [force])
            hessian = mul(size, mul(mul(mul(inverse, damp), sigma), builder.select(better, e_i, e_j)))
            real = builder.icmp_signed("<", builder.add(_vector_of(builder, j), lanes), end)
            force, size, hessian = (builder.select(real, v, zero) for v in (force, size, hessian))
            builder.store(add(g_j, force), cells[5], align=8)
            builder.store(add(h_j, hessian), cells[6], align=8)
            for total, value in zip(sums, (force, hessian, size), strict=True):
                builder.store(add(builder.load(total), value), total)
        results = []
        for total in sums:
            parts = [builder.extract_element(builder.load(total), ir.Constant(ir.IntType(32), k)) for k in range(LANES)]
            while len(parts) > 1:
                parts = [add(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
            results.append(parts[0])
        return context.make_tuple(builder, signature.return_type, results)

    return signature, codegen


@kernel
def sort_queries(scores, starts, first_query, last_query, scales, key, order, spare):
    """Sort the rows of each query that counts (its scale is not 0), best first: see :func:`order_by_score`."""
    for q in range(first_query, last_query):
        if scales[q] != 0.0:
            order_by_score(scores, key, starts[q], starts[q + 1], order, spare)


@inner_kernel
def _lay_out(q, scores, starts, w, rules, ranking):
    """Sort query q and write its scores, values, exponentials and weights by rank into the first four rows of ``work``.

    Returns whether exponentials relative to the top of the list underflow, and floor and slope of ``normalise``: dZ is
    divided by 0.01 + |s_i - s_j| unless all scores of the query are equal.
    """
    s, x, e, weight = ranking.work[0], ranking.work[1], ranking.work[2], ranking.work[3]
    first, last = starts[q], starts[q + 1]
    n = last - first
    weighted = w.documents.shape[0] > 0
    order_by_score(scores, ranking.key, first, last, ranking.order, ranking.spare)
    for rank in range(n):
        row = ranking.order[np.uint64(first) + np.uint64(rank)]
        s[rank] = scores[row]
        x[rank] = w.values[row]
        weight[rank] = w.documents[row] if weighted else 1.0
    for rank in range(n, n + LANES):
        s[rank] = s[n - 1]
    for rank in range(n + LANES):
        e[rank] = exp_negative(rules.sigma * (s[rank] - s[0]))
    damp = rules.normalise and s[0] != s[n - 1]
    floor, slope = (0.01, 1.0) if damp else (1.0, 0.0)
    return rules.sigma * (s[0] - s[n - 1]) > _WIDEST, floor, slope


@kernel(inline="always")
def _pairs_at(i, first, n, scale, laid_out, w, rules, ranking):
    """Add the pairs of the document at rank i with those below it to g and h by rank.

    Return the sums of :func:`pairs_of_one`.

    ``laid_out`` is the result of :func:`_lay_out`, ``scale`` the factor of all pairs of the query.
    """
    far_apart, floor, slope = laid_out
    s, x, e, weight = ranking.work[0], ranking.work[1], ranking.work[2], ranking.work[3]
    g, h, sign, sigma = ranking.work[4], ranking.work[5], ranking.work[6], rules.sigma
    scale = scale * sigma * weight[i]
    place, offset = i, 0
    if w.shape == BY_PLACE:
        place, offset = first + i, first
        scale *= w.lift[place]
    elif w.shape == BY_STEP:
        offset = ranking.spare.shape[0] - i
    if far_apart:  # exponentials relative to the top of the list have underflowed: use those relative to i
        for j in range(i, n + LANES):
            e[j] = exp_negative(sigma * (s[j] - s[i]))
    x_i = x[i]
    if w.shape == EVEN:
        for j in range(i + 1, n):
            sign[j] = np.float64(x[j] > x[i]) - np.float64(x[j] < x[i])
        x_i = 0.0
    return pairs_of_one(
        s, e, sign if w.shape == EVEN else x, w.lower[offset:], weight, g, h, i + 1, n,
        (s[i], e[i], x_i, w.upper[place]), (scale, sigma, floor, slope),
    )  # fmt: skip


@kernel
def lambdas(scores, starts, first_query, last_query, w, rules, ranking, gradients, hessians, factors):
    """Gradients and hessians of pairs whose weight is a product of a difference of documents and one of places.

    For each pair with different values x and at least one document among the first ``truncation`` ranks, i above j,
    dZ = scale |x_i - x_j| (upper_i - lower_j) (see :class:`PairWeights` and ``rankmill.scorer.metrics.swaps``; for nDCG
    gain and discount, Burges 2010, section 6), rho = 1/(1+exp(sigma (s_high - s_low))):  g_high -= sigma dZ rho,  g_low
    += sigma dZ rho,  both hessians += sigma^2 dZ rho (1 - rho).
    ``normalise``: dZ is damped, see :func:`_lay_out`, and the query's sums are scaled by log2(1 + S) / S with S = the
    sum over both members of sigma dZ rho (LightGBM's two rules).  ``factors`` (n_queries,) gets the factor of each
    query's sums.
    """
    g, h = ranking.work[4], ranking.work[5]
    for q in range(first_query, last_query):
        first, last = starts[q], starts[q + 1]
        n = last - first
        factors[q] = 0.0
        for row in range(np.uint64(first), np.uint64(last)):
            gradients[row] = 0.0
            hessians[row] = 0.0
        if n < 2 or w.scales[q] == 0.0:
            continue
        laid_out = _lay_out(q, scores, starts, w, rules, ranking)
        for rank in range(n + LANES):
            g[rank] = 0.0
            h[rank] = 0.0
        total = 0.0
        for i in range(min(rules.truncation, n - 1)):
            if w.shape == BY_PLACE and w.lift[first + i] == 0.0:
                continue
            force, hessian, size = _pairs_at(i, first, n, w.scales[q], laid_out, w, rules, ranking)
            g[i] -= force
            h[i] += hessian
            total += 2.0 * size
        factor = log2_positive(1.0 + total) / total if rules.normalise and total > 0.0 else 1.0
        if w.queries.shape[0] > 0:
            factor *= w.queries[q]
        factors[q] = factor
        for rank in range(n):
            row = ranking.order[np.uint64(first) + np.uint64(rank)]
            gradients[row] = g[rank] * factor
            hessians[row] = h[rank] * factor


@kernel
def lambda_hessians(out, scores, starts, first_query, last_query, w, rules, ranking, factors, begin):
    """List the pairs of :func:`lambdas` from cell ``begin`` on; return the end of the list.

    A pair has both rows and -d2L / ds_i ds_j.

    ``factors`` are those that :func:`lambdas` wrote.  Pairs below ``out.least`` are kept with probability hessian /
    least and then have the hessian ``least``, by systematic sampling: of their hessians, laid end to end from a random
    start, those that contain a multiple of ``least``.  It takes one pass of sums, and has less noise than single draws.
    The lists need one cell more than there are pairs.
    """
    order, c, least = ranking.order, ranking.work[5], out.least
    first_rows, second_rows, pair_hessian = out.first_rows, out.second_rows, out.pair_hessian
    drawing = random_bits(ranking.key, _DRAW)
    end = begin
    for q in range(first_query, last_query):
        if factors[q] == 0.0:
            continue
        first, last = starts[q], starts[q + 1]
        n = last - first
        laid_out = _lay_out(q, scores, starts, w, rules, ranking)
        passed = np.float64(random_bits(drawing, first) >> np.uint64(11)) * _UNIT * least
        for i in range(min(rules.truncation, n - 1)):
            if w.shape == BY_PLACE and w.lift[first + i] == 0.0:
                continue
            for j in range(i + 1, n + LANES):
                c[j] = 0.0
            _pairs_at(i, first, n, factors[q] * w.scales[q], laid_out, w, rules, ranking)
            row_i = order[first + i]
            if least == 0.0:
                for j in range(i + 1, n):
                    row = order[first + j]
                    first_rows[end] = min(row, row_i)
                    second_rows[end] = max(row, row_i)
                    pair_hessian[end] = c[j]
                    end += np.int64(c[j] > 0.0)
                continue
            for block in range(i + 1, n, LANES):
                low = (c[block] + c[block + 1]) + (c[block + 2] + c[block + 3])
                high = (c[block + 4] + c[block + 5]) + (c[block + 6] + c[block + 7])
                if passed + (low + high) < least:
                    passed += low + high
                    continue
                for j in range(block, block + LANES):
                    kept = c[j]
                    if kept < least:
                        passed += kept
                        if passed < least:
                            continue
                        passed -= least
                        kept = least
                    row = order[first + j]
                    first_rows[end] = min(row, row_i)
                    second_rows[end] = max(row, row_i)
                    pair_hessian[end] = kept
                    end += 1
    return end


@kernel
def lambda_hessians_inside(
    scores, starts, first_query, last_query, w, rules, ranking, factors, leaf_of_row, steps, inside
):
    """Add to ``inside[leaf]`` the hessians, times ``steps``, of pairs with both rows in the leaf.

    The pairs are those of :func:`lambdas`.

    ``factors`` are those that :func:`lambdas` wrote; leaf -1 means no leaf.  Hessians are added up for each upper
    document in one order and rounded.
    """
    c, leaf = ranking.work[5], ranking.work[7]
    for q in range(first_query, last_query):
        if factors[q] == 0.0:
            continue
        first, last = starts[q], starts[q + 1]
        n = last - first
        laid_out = _lay_out(q, scores, starts, w, rules, ranking)
        for rank in range(n):
            leaf[rank] = np.float64(leaf_of_row[ranking.order[first + rank]])
        for i in range(min(rules.truncation, n - 1)):
            leaf_i = leaf[i]
            if leaf_i < 0.0 or (w.shape == BY_PLACE and w.lift[first + i] == 0.0):
                continue
            for j in range(i + 1, n + LANES):
                c[j] = 0.0
            _pairs_at(i, first, n, factors[q] * w.scales[q], laid_out, w, rules, ranking)
            s0 = s1 = s2 = s3 = 0.0
            for j in range(i + 1, n, 4):  # c is 0 beyond the list
                s0 += c[j] if leaf[j] == leaf_i else 0.0
                s1 += c[j + 1] if leaf[j + 1] == leaf_i else 0.0
                s2 += c[j + 2] if leaf[j + 2] == leaf_i else 0.0
                s3 += c[j + 3] if leaf[j + 3] == leaf_i else 0.0
            inside[np.int64(leaf_i)] += np.int64(np.rint(((s0 + s1) + (s2 + s3)) * steps))


@kernel
def _log_one_plus(z):
    """log(1 + z) for 0 <= z <= 1; relative error about 1e-12."""
    if z < 1e-3:
        return z * (1.0 - z * (0.5 - z * (1.0 / 3.0 - z * (0.25 - z * 0.2))))
    return log2_positive(1.0 + z) * (1.0 / LOG2_E)


@kernel
def pair_terms(
    out, scores, starts, first_query, last_query, grades, w, cells, table, rules, given, ranking, factors, begin
):
    """Process pairs one by one: as :func:`lambdas`, but for every kind of pair, loss and output.

    ``out.what``: ``GRADIENTS`` writes gradients, hessians and factors; ``LOSSES`` each query's loss; ``SHARES`` the
    loss of the pairs of each document, so that each pair counts for both of its documents; ``HESSIANS`` lists, from
    cell ``begin`` on, both rows and the hessian of every pair of the last gradients, with their ``factors``; those
    below ``least`` with probability hessian / least, and then with ``least``.  Returns the end of the list.

    The pairs are those of different grades (``ties``: those of equal grades too, with target 1/2), or ``given`` ones if
    there are some: of query q ``given.starts[q]`` to ``given.starts[q + 1]``.  ``fraction`` below 1 keeps each pair
    with that probability, by a draw keyed by ``key`` and both rows, with weight 1 / fraction.

    ``loss``: ``LOGISTIC`` with target t, d = s_i - s_j: w ((1 - t) sigma d + log(1 + exp(-sigma d))); ``EXPONENTIAL``:
    w (t exp(-d) + (1 - t) exp(d)), continued beyond d = 30 along its tangent with a constant hessian. w is dZ as in
    :func:`lambdas` (``TABLE``: ``table[cells[q] - cells[first_query] + i n + j]``) times all weights.
    """
    what, least, sigma, order, spare, work = (
        out.what,
        out.least,
        rules.sigma,
        ranking.order,
        ranking.spare,
        ranking.work,
    )
    s, x, e, weight, g, h, grade = work[0], work[1], work[2], work[3], work[4], work[5], work[6]
    pairs = given.starts.shape[0] > 0
    longest = spare.shape[0]
    end = begin
    drawing = random_bits(ranking.key, _DRAW)
    for q in range(first_query, last_query):
        first, last = starts[q], starts[q + 1]
        n = last - first
        if what == GRADIENTS:
            factors[q] = 0.0
            for row in range(first, last):
                out.gradients[row] = 0.0
                out.hessians[row] = 0.0
        elif what == LOSSES:
            out.losses[q] = 0.0
        elif what == SHARES:
            for row in range(first, last):
                out.gradients[row] = 0.0
        if n < 2 or w.scales[q] == 0.0 or (what == HESSIANS and factors[q] == 0.0):
            continue
        far_apart, _, damp = _lay_out(q, scores, starts, w, rules, ranking)
        for rank in range(n):
            row = order[first + rank]
            grade[rank] = grades[row]
            g[rank] = 0.0
            h[rank] = 0.0
            spare[row - first] = rank
        total = 0.0
        summed = 0.0
        # given pairs are processed once; pairs of grades by their upper rank
        lead, tails = (0, 1) if pairs else (0, min(rules.truncation, n - 1))
        for i in range(lead, tails):
            low, high = (given.starts[q], given.starts[q + 1]) if pairs else (i + 1, n)
            for p in range(low, high):
                a, b, target, size = i, p, 1.0, w.scales[q]
                if pairs:
                    a, b, target = spare[given.above[p] - first], spare[given.below[p] - first], given.target[p]
                    size *= given.weight[p]
                    if a > b:
                        a, b, target = b, a, 1.0 - target
                    if a >= rules.truncation:
                        continue
                elif grade[a] < grade[b]:
                    target = 0.0
                elif grade[a] == grade[b]:
                    if not rules.ties:
                        continue
                    target = 0.5
                size *= weight[a] * weight[b]
                loss = 0.0
                if w.shape == BY_RANK:
                    size *= abs(x[a] - x[b]) * (w.upper[a] - w.lower[b])
                elif w.shape == BY_PLACE:
                    size *= abs(x[a] - x[b]) * w.lift[first + a] * (w.upper[first + a] - w.lower[first + b])
                elif w.shape == BY_STEP:
                    size *= abs(x[a] - x[b]) * (w.upper[a] - w.lower[longest + b - a])
                elif w.shape == TABLE:
                    size *= table[cells[q] - cells[first_query] + np.int64(a) * n + b]
                if size <= 0.0:
                    continue
                row_a, row_b = order[first + a], order[first + b]
                if rules.fraction < 1.0:
                    drawn = random_bits(random_bits(ranking.key, min(row_a, row_b)), max(row_a, row_b))
                    if np.float64(drawn >> np.uint64(11)) * _UNIT >= rules.fraction:
                        continue
                    size /= rules.fraction
                d = s[a] - s[b]
                z = exp_negative(-sigma * d) if far_apart else e[b] / e[a]
                if rules.loss == LOGISTIC:
                    if damp > 0.0:
                        size /= 0.01 + d
                    rho = z / (1.0 + z)
                    slope = sigma * size * ((1.0 - target) - rho)
                    bend = sigma * sigma * size * rho / (1.0 + z)
                    if what == LOSSES or what == SHARES:
                        loss = size * ((1.0 - target) * sigma * d + _log_one_plus(z))
                else:
                    inside = min(d, _STEEPEST)
                    steep = 1.0 / z if d <= _STEEPEST else _STEEPEST_SLOPE
                    slope = size * ((1.0 - target) * steep - target * z)
                    bend = size * ((1.0 - target) * steep + target * z)
                    if what == LOSSES or what == SHARES:
                        loss = size * ((1.0 - target) * steep * (1.0 + (d - inside)) + target * z)
                total += 2.0 * abs(slope)
                if what == GRADIENTS:
                    g[a] += slope
                    g[b] -= slope
                    h[a] += bend
                    h[b] += bend
                elif what == LOSSES:
                    summed += loss
                elif what == SHARES:
                    g[a] += loss
                    g[b] += loss
                elif what == HESSIANS:
                    bend *= factors[q]
                    if bend < least:
                        drawn = random_bits(random_bits(drawing, min(row_a, row_b)), max(row_a, row_b))
                        if np.float64(drawn >> np.uint64(11)) * _UNIT * least >= bend:
                            continue
                        bend = least
                    if bend > 0.0:
                        out.first_rows[end] = min(row_a, row_b)
                        out.second_rows[end] = max(row_a, row_b)
                        out.pair_hessian[end] = bend
                        end += 1
        if what == HESSIANS:
            continue
        factor = log2_positive(1.0 + total) / total if rules.normalise and total > 0.0 else 1.0
        if w.queries.shape[0] > 0:
            factor *= w.queries[q]
        if what == LOSSES:
            out.losses[q] = summed * factor
            continue
        if what == SHARES:
            for rank in range(n):
                out.gradients[order[first + rank]] = g[rank] * factor
            continue
        factors[q] = factor
        for rank in range(n):
            row = order[first + rank]
            out.gradients[row] = g[rank] * factor
            out.hessians[row] = h[rank] * factor
    return end


@kernel
def user_swaps(function, order, starts, first_query, last_query, grades, depth, cells, ranked, table):
    """Fill a table of weights, as :func:`pair_terms` reads it, by ``|function(ranked grades, i, j)|``.

    Returns a query with a weight that is not finite, or -1; queries without cells are skipped.
    """
    bad = np.int64(-1)
    for q in range(first_query, last_query):
        first, n = starts[q], starts[q + 1] - starts[q]
        if cells[q + 1] == cells[q]:
            continue
        for rank in range(n):
            ranked[rank] = grades[order[first + rank]]
        own = ranked[:n]
        row = cells[q] - cells[first_query]
        for i in range(min(depth, n - 1)):
            for j in range(i + 1, n):
                if own[i] != own[j]:
                    weight = abs(function(own, i, j))
                    if not weight < np.inf:
                        bad = q
                    table[row + j] = weight
                else:
                    table[row + j] = 0.0
            row += n
    return bad


@kernel
def neighbours(out, scores, starts, first_query, last_query, w, shuffles, ranking, noisy, room):
    """YetiRank: logistic losses of neighbours in ``permutations`` orders by sigma s + noise, ``noisy`` (n_rows,).

    A pair at the ranks r, r + 1 (from 0) has the weight decay^r |x_i - x_j| / permutations times all weights.  If the
    rule is not ``DECAYS``, dZ of the metric replaces decay^r |x_i - x_j|; the arrays of ``w`` are those of
    `SwapDeltas`, by rank for ``OF_RANKS`` and else by place, which the passes of the metric write.  Of ``out.what``,
    ``HESSIANS`` writes every pair of every permutation, from cell ``room[q]`` on.
    """
    what, gradients, hessians = out.what, out.gradients, out.hessians
    values, weights, scales, upper, lower, lift = w.values, w.documents, w.scales, w.upper, w.lower, w.lift
    rule, sigma, cut, order = shuffles.rule, shuffles.sigma, shuffles.cut, ranking.order
    weighted = weights.shape[0] > 0
    for q in range(first_query, last_query):
        first, last = starts[q], starts[q + 1]
        if what == GRADIENTS:
            for row in range(first, last):
                gradients[row] = 0.0
                hessians[row] = 0.0
        if scales[q] == 0.0:
            continue
        scale = 1.0 / shuffles.permutations
        if w.queries.shape[0] > 0:
            scale *= w.queries[q]
        summed = 0.0
        cell = room[q]
        for t in range(shuffles.permutations):
            shuffle = random_bits(ranking.key, t + 1)
            for row in range(first, last):
                u = uniform(random_bits(shuffle, row))
                noise = log2_positive(u)
                if shuffles.gumbel:
                    noise = -log2_positive(-noise / LOG2_E)
                else:
                    noise -= log2_positive(1.0 - u)
                noisy[row] = sigma * scores[row] + noise / LOG2_E
            order_by_score(noisy, shuffle, first, last, order, ranking.spare)
            if rule == OF_ERR:
                err_swaps(order, starts, q, q + 1, scales, values, cut, upper, lower, lift)
            elif rule == OF_MAP:
                map_swaps(order, starts, q, q + 1, scales, values, cut, upper, lower, lift)
            elif rule == OF_MRR:
                mrr_swaps(order, starts, q, q + 1, scales, values, cut, upper, lower, lift)
            weight = scale
            for place in range(first, last - 1):
                high, low = order[place], order[place + 1]
                if values[high] < values[low]:
                    high, low = low, high
                size = weight * (values[high] - values[low])
                if rule == DECAYS:
                    weight *= shuffles.decay
                elif rule == OF_RANKS:
                    size *= scales[q] * (upper[place - first] - lower[place - first + 1])
                else:
                    size *= scales[q] * lift[place] * (upper[place] - lower[place + 1])
                if weighted:
                    size *= weights[high] * weights[low]
                if size == 0.0:
                    continue
                d = sigma * (scores[high] - scores[low])
                z = exp_negative(-abs(d))
                rho = (z if d > 0.0 else 1.0) / (1.0 + z)
                bend = sigma * sigma * size * z / ((1.0 + z) * (1.0 + z))
                if what == GRADIENTS:
                    gradients[high] -= sigma * size * rho
                    gradients[low] += sigma * size * rho
                    hessians[high] += bend
                    hessians[low] += bend
                elif what == LOSSES:
                    summed += size * (max(-d, 0.0) + _log_one_plus(z))
                else:
                    out.first_rows[cell] = min(high, low)
                    out.second_rows[cell] = max(high, low)
                    out.pair_hessian[cell] = bend
                    cell += 1
        if what == LOSSES:
            out.losses[q] = summed


@kernel
def misranked(
    scores, starts, first_query, last_query, grades, weights, query_weights,
    given, tau, cells, kept, targets, total, losses,
):  # fmt: skip
    """GBRank: sum the targets that pairs with ``s_high < s_low + tau`` give both documents, and their weights.

    ``targets`` (n_rows,) gets the sums of weight times target, ``total`` those of the weights.  If ``losses``
    (n_queries,) is not empty, it gets weight max(0, s_low - s_high + tau)^2 / 2 instead.  If ``kept`` is not
    empty, cell ``cells[q]`` + the number of the pair marks a pair misranked before, which counts, too.
    """
    weighted = weights.shape[0] > 0
    pairs = given.starts.shape[0] > 0
    losing = losses.shape[0] > 0
    keeping = kept.shape[0] > 0 and not losing
    for q in range(first_query, last_query):
        first, last = starts[q], starts[q + 1]
        of_query = query_weights[q] if query_weights.shape[0] > 0 else 1.0
        summed = 0.0
        if not losing:
            for row in range(first, last):
                targets[row] = 0.0
                total[row] = 0.0
        cell = cells[q]
        lead, tails = (first, first + 1) if pairs else (first, last)
        for i in range(lead, tails):
            begin, end = (given.starts[q], given.starts[q + 1]) if pairs else (i + 1, last)
            for p in range(begin, end):
                high, low, w = i, p, of_query
                if pairs:
                    high, low = np.int64(given.above[p]), np.int64(given.below[p])
                    w *= given.weight[p] * abs(2.0 * given.target[p] - 1.0)
                    if given.target[p] < 0.5:
                        high, low = low, high
                elif grades[high] < grades[low]:
                    high, low = low, high
                elif grades[high] == grades[low]:
                    w = 0.0
                if weighted:
                    w *= weights[high] * weights[low]
                gap = scores[low] + tau - scores[high]
                if w > 0.0:
                    if losing:
                        summed += 0.5 * w * max(gap, 0.0) ** 2
                    else:
                        counts = gap > 0.0
                        if keeping:
                            counts = counts or kept[cell]
                            kept[cell] = counts
                        if counts:
                            targets[high] += w * (scores[low] + tau)
                            targets[low] += w * (scores[high] - tau)
                            total[high] += w
                            total[low] += w
                cell += 1
        if losing:
            losses[q] = summed
