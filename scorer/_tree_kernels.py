"""Kernels that add trees to scores, from the codes of `rankmill.scorer._kernels.bin_rows`.  Flat loops without checks.

A split that sends missing values left tests ``b > bound``.  One that sends them right tests ``b - 1 > bound``, where b
- 1 of a missing value wraps round to the greatest code: `wrap_codes` writes these codes to slots of their own.  A split
by a set of categories is turned into one by a cut: `_look_up_sets` writes, for all sets of a tree, whether each
document goes right (1) or left (0) to slots that the next tree uses again, and the split tests ``b > 0`` there.

``codes`` is (slots, documents), so the codes of a feature are contiguous, and a split is evaluated for many documents
of a tile with one instruction.  Two algorithms give the same sums:

- `sweep_trees` evaluates every split of a tree, parents first.  Each document has the leftmost leaf below the node that
  it has reached; a split moves the documents at its ``first_leaf`` that go right to its ``right_leaf``, the leftmost
  leaf below its right child.  It does not branch on documents, and takes a fraction of a cycle for each split and
  document. Of oblivious trees it evaluates one split a level, and each is a bit of the leaf's number.
- `walk_trees` descends node by node, ``LANES`` documents together: for trees of very many leaves, and for very few
  documents.

A sweep holds the leaves of a strip of documents in registers while it goes through the splits of a tree::

            strip of 8 x 64 documents          next strip
    split 0 [leaves ................] in       [leaves ....
    split 1 [       ................] regis-
    ..      [       ................] ters
            at[0:512]  -> leaf values -> scores
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.dense import WIDE
from rankmill.foundation.kernels.vectors import INDEX, first_of, gathered, same, vector_at

LANES = 8
BLOCK = 64  # documents of a vector
BLOCKS = 8 if WIDE else 2  # of a strip: as many as leave registers for a split
PAIR = 2  # blocks of the strips of a small batch: one alone waits for its own results


def _to_right_leaf(builder, right, leaves, first_leaf, right_leaf):
    """Move the documents at the split's first leaf that go right to its right leaf."""
    return builder.select(builder.and_(right, builder.icmp_unsigned("==", leaves, first_leaf)), right_leaf, leaves)


def _with_bit(builder, right, leaves):
    """Append a bit to the leaf's number: 1 for documents that go right."""
    return builder.add(builder.add(leaves, leaves), builder.zext(right, leaves.type))


def _strip_of(blocks):
    """Return an intrinsic that takes ``blocks`` x BLOCK documents through splits ``start`` to ``stop``.

    It writes ``at[first : first + blocks * BLOCK]``, from ``codes`` (slots, documents).  ``split`` holds arrays of the
    splits:
    their bounds, first leaves and right leaves or, of levels of oblivious trees, their bounds alone.
    """

    @intrinsic
    def strip(typingctx, codes, first, start, stop, slot, split, at):
        signature = types.void(codes, first, start, stop, slot, split, at)

        def codegen(context, builder, signature, arguments):
            vector = ir.VectorType(ir.IntType(signature.args[0].dtype.bitwidth), BLOCK)
            none = ir.Constant(vector, None)
            after_split = _with_bit if len(signature.args[5]) == 1 else _to_right_leaf
            width = cgutils.unpack_tuple(
                builder, context.make_array(signature.args[0])(context, builder, value=arguments[0]).shape, 2
            )[1]
            codes, slot, at = (first_of(context, builder, signature.args[i], arguments[i]) for i in (0, 4, 6))
            split = [
                first_of(context, builder, signature.args[5].dtype, each)
                for each in cgutils.unpack_tuple(builder, arguments[5], len(signature.args[5]))
            ]
            first, start, stop = (context.cast(builder, arguments[i], signature.args[i], types.intp) for i in (1, 2, 3))

            def block_of(data, place, number):
                return vector_at(builder, data, builder.add(place, ir.Constant(INDEX, number * BLOCK)), vector)

            before, loop = builder.block, builder.append_basic_block("split")
            done = builder.append_basic_block("swept")
            builder.cbranch(builder.icmp_signed("<", start, stop), loop, done)
            builder.position_at_end(loop)
            k = builder.phi(INDEX)
            leaves = [builder.phi(vector) for _ in range(blocks)]
            bound, *parts = (same(builder, builder.load(builder.gep(each, [k])), vector) for each in split)
            row = builder.sext(builder.load(builder.gep(slot, [k])), INDEX)
            place = builder.add(builder.mul(row, width), first)
            following = []
            for number, leaf in enumerate(leaves):
                code = builder.load(block_of(codes, place, number), align=1)
                following.append(after_split(builder, builder.icmp_unsigned(">", code, bound), leaf, *parts))
            k_next = builder.add(k, ir.Constant(INDEX, 1))
            k.add_incoming(start, before)
            k.add_incoming(k_next, loop)
            for leaf, moved in zip(leaves, following, strict=True):
                leaf.add_incoming(none, before)
                leaf.add_incoming(moved, loop)
            builder.cbranch(builder.icmp_signed("<", k_next, stop), loop, done)
            builder.position_at_end(done)
            reached = [builder.phi(vector) for _ in range(blocks)]
            for leaf, moved in zip(reached, following, strict=True):
                leaf.add_incoming(none, before)
                leaf.add_incoming(moved, loop)
            for number, leaf in enumerate(reached):
                builder.store(leaf, block_of(at, first, number), align=1)
            return context.get_dummy_value()

        return signature, codegen

    return strip


_strip, _pair, _block = (_strip_of(blocks) for blocks in (BLOCKS, PAIR, 1))


@intrinsic
def _add_leaves(typingctx, leaves, at, i, scores, place):
    """``scores[place + l] += leaves[at[i + l]]`` for ``LANES`` documents."""
    signature = types.void(leaves, at, i, scores, place)

    def codegen(context, builder, signature, arguments):
        leaves, at, scores = (first_of(context, builder, signature.args[n], arguments[n]) for n in (0, 1, 3))
        i, place = (context.cast(builder, arguments[n], signature.args[n], types.intp) for n in (2, 4))
        numbers = ir.VectorType(ir.IntType(signature.args[1].dtype.bitwidth), LANES)
        reached = builder.load(vector_at(builder, at, i, numbers), align=1)
        vector = ir.VectorType(ir.DoubleType(), LANES)
        values = gathered(builder, leaves, builder.zext(reached, ir.VectorType(INDEX, LANES)), vector)
        sums = vector_at(builder, scores, place, vector)
        builder.store(builder.fadd(builder.load(sums, align=8), values), sums, align=8)
        return context.get_dummy_value()

    return signature, codegen


@kernel
def pack_trees(
    n_trees, tree_starts, node_slot, node_bound, node_left, node_right, node_value, tree_weights,
    greatest, slot, bound, left, value, depth, queue,
):  # fmt: skip
    """Lay out the first ``n_trees`` for `walk_trees`: breadth first, siblings adjacent.

    OUT: slot, bound, left, value, depth.

    ``value`` is the node's value times the tree's weight, ``depth`` the greatest depth of each tree.  ``left`` counts
    from the start of the tree, and right children follow their left siblings, so that the next node is ``left +
    went_right``.  A leaf has itself as ``left`` and the ``greatest`` code as bound, so that documents stay there.  A
    document goes right at a node if its code in ``node_slot`` exceeds ``node_bound``; the slot of a leaf is -1.
    ``queue`` is scratch for the nodes of the largest tree.
    """
    for t in range(n_trees):
        start = tree_starts[t]
        queue[0] = 0
        filled = 1
        level_end = 1
        levels = 0
        i = 0
        while i < filled:
            if i == level_end:
                levels += 1
                level_end = filled
            node = start + queue[i]
            out = start + i
            value[out] = tree_weights[t] * node_value[node]
            if node_slot[node] < 0:
                slot[out] = 0
                bound[out] = greatest
                left[out] = i
            else:
                slot[out] = node_slot[node]
                bound[out] = node_bound[node]
                left[out] = filled
                queue[filled] = node_left[node]
                queue[filled + 1] = node_right[node]
                filled += 2
            i += 1
        depth[t] = levels


@kernel
def number_leaves(
    n_trees, tree_starts, node_slot, node_bound, node_left, node_right, node_value, tree_weights,
    split_starts, leaf_starts, slot, bound, first_leaf, right_leaf, value, stack, place,
):  # fmt: skip
    """Lay out the first ``n_trees`` for `sweep_trees`.

    OUT: slot, bound, first_leaf, right_leaf of each split, value of each leaf.

    Splits are stored parents first, left before right; leaves from left to right, with the leaf's value times the
    tree's weight.  ``stack`` and ``place`` are scratch for the nodes of the largest tree.
    """
    for t in range(n_trees):
        start = tree_starts[t]
        split = split_starts[t]
        leaf = 0
        top = 0
        stack[0] = 0
        place[0] = -1
        while top >= 0:
            node = start + stack[top]
            parent = place[top]
            top -= 1
            if parent >= 0:
                right_leaf[parent] = leaf  # a right child: the leaves to its left have been numbered
            if node_slot[node] < 0:
                value[leaf_starts[t] + leaf] = tree_weights[t] * node_value[node]
                leaf += 1
                continue
            slot[split] = node_slot[node]
            bound[split] = node_bound[node]
            first_leaf[split] = leaf
            top += 1
            stack[top] = node_right[node]
            place[top] = split
            top += 1
            stack[top] = node_left[node]
            place[top] = -1
            split += 1


@kernel
def wrap_codes(codes, width, sources, first_slot):
    """``codes[first_slot + k] = codes[sources[k]] - 1``, where 0 becomes the greatest code, for ``width`` documents."""
    for k in range(sources.shape[0]):
        code = codes[sources[k]]
        wrapped = codes[first_slot + k]
        for i in range(width):
            wrapped[i] = code[i] - 1


@kernel
def _look_up_sets(codes, width, n_rows, t, sets):
    """Write for the sets of tree ``t`` whether each document goes right.

    Only the first ``n_rows`` of ``width`` documents count.

    ``sets`` is a `rankmill.scorer.forest.layout.SetTables`.  A group is up to 8 sets of one feature: bit j of its
    table's entry for a code is the answer of set j.  So a group takes one read for each document, which cannot be done
    for several documents at once, and its bits are then spread with whole instructions.
    """
    for group in range(sets.starts[t], sets.starts[t + 1]):
        code = codes[sets.source[group]]
        table = sets.tables[sets.table_starts[group] :]
        slot = sets.slot[group]
        bits = codes[slot]
        for i in range(n_rows):  # the documents after them may have any code
            bits[i] = table[code[i]]
        for j in range(sets.size[group] - 1, -1, -1):  # the first slot, which holds all bits, last
            out = codes[slot + j]
            for i in range(width):
                out[i] = (bits[i] >> j) & 1


@kernel
def _add_values(leaves, at, n_rows, scores, first):
    """``scores[first + i] += leaves[at[i]]`` for the first ``n_rows`` documents."""
    whole = n_rows // LANES * LANES
    for i in range(0, whole, LANES):
        _add_leaves(leaves, at, i, scores, first + i)
    for i in range(whole, n_rows):
        scores[first + i] += leaves[at[i]]


@kernel
def sweep_trees(
    codes, width, n_rows, trees, sets, split_starts, leaf_starts, slot, split, value, at, scores, first
):  # fmt: skip
    """Do ``scores[first + i] += value of the leaf of document i`` for each of ``trees``, in order.

    Only the first ``n_rows`` documents count.

    ``width``, from ``n_rows`` to the size of ``at`` and ``codes``, is the number of documents evaluated: whole blocks.
    ``slot`` and the arrays of ``split`` (see `_strip_of`) hold the splits of trees, or the levels of oblivious ones.
    """
    for t in trees:
        _look_up_sets(codes, width, n_rows, t, sets)
        start, stop = split_starts[t], split_starts[t + 1]
        i = 0
        while i + BLOCKS * BLOCK <= width:
            _strip(codes, i, start, stop, slot, split, at)
            i += BLOCKS * BLOCK
        while i + PAIR * BLOCK <= width:
            _pair(codes, i, start, stop, slot, split, at)
            i += PAIR * BLOCK
        if i < width:
            _block(codes, i, start, stop, slot, split, at)
        _add_values(value[leaf_starts[t] :], at, n_rows, scores, first)


@kernel(allocates=True)
def walk_trees(
    codes, n_rows, trees, sets, tree_starts, slot, bound, left, value, depth, scores, first
):  # fmt: skip
    """Do what `sweep_trees` does, node by node.

    ``codes`` has space for whole ``LANES`` of documents; the last may hold anything.
    """
    n_lanes = (n_rows + LANES - 1) // LANES * LANES
    at = np.zeros(LANES, np.int32)
    for t in trees:
        _look_up_sets(codes, n_rows, n_rows, t, sets)
        root = tree_starts[t]
        for i in range(0, n_lanes, LANES):
            for lane in range(LANES):
                at[lane] = 0
            for _ in range(depth[t]):
                for lane in range(LANES):
                    node = root + at[lane]
                    code = codes[slot[node], i + lane]
                    at[lane] = left[node] + (code > bound[node])
            for lane in range(min(LANES, n_rows - i)):
                scores[first + i + lane] += value[root + at[lane]]
