"""Grow one tree, the part of one worker: node by node, or level by level (oblivious).

    by node:   count the smaller child -> subtract it from the parent -> search both -> enqueue
               ^                                                                        |
               '-- partition its rows, check whether the split is valid <---- best node '

    by level:  the same for all leaves of a depth at once, with one split for all of them

No checks: the wrapper `grower` has done them.  Functions with one caller are inlined: compiling them separately would
optimise them twice and delay the first training.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.arrays import copy_to
from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.inner import inner_kernel
from rankmill.trainer.growing._category_kernels import sum_of_set
from rankmill.trainer.growing._control_kernels import narrow_groups, worth_of
from rankmill.trainer.growing._gain_kernels import bounded_gain_of, value_of
from rankmill.trainer.growing._histogram_kernels import add_edges, count_node, subtract
from rankmill.trainer.growing._pair_search_kernels import search_node_by_pairs
from rankmill.trainer.growing._partition_kernels import divide_pairs, partition_alone, partition_node, rows_left
from rankmill.trainer.growing._split_kernels import (
    gains_something,
    search_counted,
    search_level,
    search_level_counted,
    search_node,
    sides_have_hessian,
)
from rankmill.trainer.growing._state_kernels import (
    BEST_FIRST,
    BREADTH_FIRST,
    LOW,
    SUMS,
    add_up,
    add_up_histograms,
    counted_features,
    make_children,
    may_split,
    meet,
    own_features,
    pop,
    push,
    release_next_slot,
    release_slot,
    take_slot,
)

# -- node by node ----------------------------------------------------------------------------------------------------


@kernel(inline="always")
def _count(crew, node, bins, rows, table, histograms):
    """Count the histogram of a node for the features that this worker searches.  False: stop."""
    if not count_node(crew, node, table[node].slot, bins, rows, table, histograms):
        return False
    add_edges(crew, table[node].slot, bins, histograms)
    return add_up_histograms(crew, table[node].slot, 1)


@inner_kernel
def _enqueue(child, node, crew, bins, rules, nodes, search):
    """Enqueue the node with the best split of all workers (on ties the lowest feature), or make it a leaf."""
    splits, table, best = search.splits, nodes.table, 0
    keys = search.keys if rules.noise != 0.0 or rules.weighed else search.gains
    for worker in range(1, crew.size):
        key, best_key = keys[child, worker], keys[child, best]
        if key > best_key or (key == best_key and splits[child, worker, 0] < splits[child, best, 0]):
            best = worker
    gain, split = search.gains[child, best], splits[child, best]
    if not (may_split(table, node, rules.min_rows, rules.max_depth) and gain > 0.0):
        release_slot(nodes, node)
        return
    table[node].feature = split[0]
    table[node].threshold = split[1]
    table[node].missing_left = split[2]
    table[node].left_sum = split[3]
    copy_to(table[node].set, split[4:])
    nodes.gains[node] = gain + rules.min_gain  # the search returns the gain above min_gain
    if rules.policy == BEST_FIRST:
        nodes.priority[node] = worth_of(gain, split[0], bins, rules)
    elif rules.policy == BREADTH_FIRST:
        nodes.priority[node] = -table[node].depth
    else:
        nodes.priority[node] = table[node].depth
    push(nodes, node)


@kernel(inline="always")
def _search_waiting(crew, bins, rows, derivatives, rules, nodes, histograms, search, pairs, extras):
    """Count and search the children of the last split, or again the node whose split left a side too small.

    False: stop.

    Of children only the smaller one is counted, and the larger one is the rest of their parent.  A node is searched
    again with the rows of each side counted.  Each kernel is called at one place, as every call takes long to compile.
    """
    table, pool, state = nodes.table, histograms.pool, nodes.state[0]
    again, both = state.refused >= 0, state.count_both != 0
    one, other = state.refused if again else state.small, np.int64(-1) if again else state.large
    for step in range(2):
        node = one if step == 1 else other
        if node >= 0 and (both if again or step == 0 else state.counted == 0):
            if not _count(crew, node, bins, rows, table, histograms):
                return False
            if step == 0 and not meet(crew.barrier):  # the next count uses the same buffers for edges
                return False
    first_feature, last_feature = own_features(crew, bins.n_bins.shape[0])
    if again:
        first_feature, last_feature = counted_features(crew, bins.n_bins.shape[0])
    for child in range(2):
        node = one if child == 0 else other
        if node >= 0 and may_split(table, node, rules.min_rows, rules.max_depth) and (not again or state.search_anew):
            if child == 1 and not both:
                subtract(pool[table[node].slot], pool[table[one].slot], bins.n_bins, first_feature, last_feature)
            search_node(crew, child, node, first_feature, last_feature, bins, rules, nodes, histograms, search, extras)
    if again:
        search_counted(
            crew, one, state.sum_hessians != 0, first_feature, last_feature, bins, rows.rows, derivatives.hessians,
            rules, nodes, histograms, search, extras,
        )  # fmt: skip
    if not meet(crew.barrier):
        return False
    if pairs is not None:
        for child in range(2):
            node = one if child == 0 else other
            if node >= 0 and may_split(table, node, rules.min_rows, rules.max_depth):
                search_node_by_pairs(crew, child, node, bins, rows, rules, nodes, histograms, pairs, search)
        if not meet(crew.barrier):
            return False
    if crew.worker == 0:
        for child in range(2):
            node = one if child == 0 else other
            if node >= 0:
                _enqueue(child, node, crew, bins, rules, nodes, search)
    return True


@inner_kernel
def _bound_children(node, bins, rules, nodes, extras):
    """Write value, rows and bounds of the children.

    After a monotone split the bound is the midpoint of the two values, else that of the node.
    """
    if extras is None or not rules.constrained:
        copy_to(nodes.ranges[nodes.table[node].left], nodes.ranges[node])
        copy_to(nodes.ranges[nodes.table[node].left + 1], nodes.ranges[node])
        return
    table, ranges, direction = nodes.table, nodes.ranges, bins.monotone[nodes.table[node].feature]
    left, right = table[node].left, table[node].left + 1
    copy_to(ranges[left], ranges[node])
    copy_to(ranges[right], ranges[node])
    low, high, own = ranges[node, 0], ranges[node, 1], ranges[node, 2]
    for child in range(left, left + 2):
        n_rows = np.float64(table[child].rows)
        ranges[child, 3] = n_rows
        # of an oblivious tree: a side that is too small keeps the value of the node
        if n_rows >= rules.min_rows and np.float64(table[child].total & LOW) >= rules.least_side:
            ranges[child, 2] = value_of(table[child].total, n_rows, own, rules, low, high)
    if direction == 0:
        return
    middle = 0.5 * (ranges[left, 2] + ranges[right, 2])
    if direction > 0:
        ranges[left, 1], ranges[right, 0] = middle, middle
    else:
        ranges[left, 0], ranges[right, 1] = middle, middle


@kernel(inline="always")
def _split(node, own_left, n_left, bins, rules, nodes, extras):
    """Create the children of a partitioned node, and select those to count and search."""
    table, state = nodes.table, nodes.state[0]
    left = state.n_nodes
    state.n_nodes += 2
    state.n_leaves += 1
    state.small = -1
    state.large = -1
    state.counted = table[node].next_slot >= 0
    table[node].left = left
    make_children(table, node, left, own_left, n_left)
    _bound_children(node, bins, rules, nodes, extras)
    if extras is not None:
        for child in range(left, left + 2):
            narrow_groups(node, child, table[node].feature, bins, nodes)
    splits_on = may_split(table, left, rules.min_rows, rules.max_depth)
    splits_on |= may_split(table, left + 1, rules.min_rows, rules.max_depth)
    if state.n_leaves == rules.max_leaves or not splits_on:
        release_slot(nodes, node)
        release_next_slot(nodes, node)
        return
    small, large = (left, left + 1) if 2 * n_left <= table[node].rows else (left + 1, left)
    state.small, state.large = small, large
    state.count_both = table[node].slot < 0
    table[large].slot = table[node].slot
    table[node].slot = -1
    if state.count_both:
        table[large].slot = take_slot(nodes)
    table[small].slot = table[node].next_slot if state.counted else take_slot(nodes)


@kernel(inline="always")
def judge(crew, node, own_left, n_left, bins, rows, derivatives, rules, nodes, pairs, search, extras):
    """Accept the split of a partitioned node, reject it, or make the node a leaf.  By worker 0."""
    table, state = nodes.table, nodes.state[0]
    n_right = table[node].rows - n_left
    few = min(n_left, n_right) < rules.min_rows
    light = not few and not sides_have_hessian(
        crew, node, table[node].first + own_left, n_left, rows.rows, derivatives.hessians, rules, table
    )
    worth_it = True
    if pairs is None:
        worth_it = gains_something(crew, node, n_left, n_right, bins, rows, derivatives, rules, table)
    state.small = -1
    state.refused = -1
    if few or light or not worth_it:
        release_next_slot(nodes, node)
    if pairs is None and (few or light):
        state.refused = node
        state.sum_hessians = light or not rules.by_h
        state.count_both = table[node].slot < 0
        # if only rounding made the hessian too small, it may have been searched by rows before
        state.search_anew = state.count_both or (light and rules.by_h)
        if state.count_both:
            table[node].slot = take_slot(nodes)
    elif few or light or not worth_it:
        release_slot(nodes, node)
    else:
        _split(node, own_left, n_left, bins, rules, nodes, extras)
        if pairs is not None and state.small >= 0:
            divide_pairs(node, bins, rows, table, pairs, search.splits[0, 0])


@kernel(inline="always")
def take_node(crew, bins, rows, derivatives, rules, nodes, histograms, search, pairs, extras):
    """Search the nodes that wait for it, and take the best one that may be split; False: there is none, or stop."""
    state = nodes.state[0]
    if state.refused >= 0 or state.small >= 0:
        if not _search_waiting(crew, bins, rows, derivatives, rules, nodes, histograms, search, pairs, extras):
            return False
    if crew.worker == 0:
        state.node = -1
        if state.n_waiting > 0 and state.n_leaves < rules.max_leaves:
            state.node = pop(nodes)
    return meet(crew.barrier) and state.node >= 0


@kernel
def grow_by_node(crew, bins, rows, derivatives, rules, nodes, histograms, search, pairs, extras):
    """Split one node after another, the part of one worker; the root is node 0 and holds a slot of the pool.

    The first search uses packed sums and ignores the number of rows.  After partitioning, worker 0 checks the split.
    If a side has too few rows or too little hessian, the node is searched again with counted sides; its first gain was
    an upper bound, so the order of nodes stays correct.  If rounding can explain the gain, the node becomes a leaf.

    ``pairs`` is None unless splits are searched again by the loss itself.  ``extras`` is None if no feature is
    categorical or monotone and nothing is drawn, weighed or held back: Numba then drops these branches before it
    compiles what they call.

    ``state`` begins with one node, one leaf, ``small`` 0, ``large`` and ``refused`` -1.  Afterwards
    table[:state.n_nodes] is the tree.
    """
    table = nodes.table
    while take_node(crew, bins, rows, derivatives, rules, nodes, histograms, search, pairs, extras):
        node = nodes.state[0].node
        if crew.size > 1 and table[node].last - table[node].first >= rules.shared_rows:
            if not (partition_node(crew, node, bins, rows, table) and meet(crew.barrier)):
                return
        elif crew.worker == 0:
            rows.lefts[:] = 0
            rows.lefts[0] = partition_alone(crew, node, bins, rows, table)
        if crew.worker == 0:
            n_left = rows_left(crew, rows)
            judge(crew, node, n_left, n_left, bins, rows, derivatives, rules, nodes, pairs, search, extras)
        if not meet(crew.barrier):
            return


# -- level by level --------------------------------------------------------------------------------------------------


@kernel(inline="always")
def _count_level(crew, level, bins, rows, table, histograms):
    """Count the smaller child of every pair of siblings, and subtract it from their parent.  False: stop."""
    first_node, last_node = level
    first_feature, last_feature = own_features(crew, bins.n_bins.shape[0])
    pool, n_nodes = histograms.pool, last_node - first_node
    n_pairs = max(1, n_nodes // 2)
    first_slot = n_nodes // 2
    for pair in range(n_pairs):
        node, other = first_node + 2 * pair, first_node + 2 * pair + 1
        small = other if first_node > 0 and table[other].rows < table[node].rows else node
        if not count_node(crew, small, first_slot + pair, bins, rows, table, histograms):
            return False
        add_edges(crew, first_slot + pair, bins, histograms)
        if not meet(crew.barrier):  # the next count uses the same buffers for edges
            return False
    if not add_up_histograms(crew, first_slot, n_pairs):
        return False
    if first_node == 0:
        table[0].slot = 0
        return True
    for pair in range(n_pairs):
        node, other = first_node + 2 * pair, first_node + 2 * pair + 1
        above = table[(node - 1) // 2].slot
        subtract(pool[above], pool[first_slot + pair], bins.n_bins, first_feature, last_feature)
        if crew.worker == 0:
            small, large = (other, node) if table[other].rows < table[node].rows else (node, other)
            table[small].slot = first_slot + pair
            table[large].slot = above
    return meet(crew.barrier)


@kernel(inline="always")
def _write_level_split(split, level, n_bins, table, pool, extras):
    """Write the split, and the sum of its left side, to every leaf of the level.

    If missing values have no weight in the whole level, they go to the heavier side.
    """
    f, threshold, missing_left = split[0], split[1], split[2]
    any_missing, left_h, whole_h = threshold == 0, 0.0, 0.0
    for node in range(level[0], level[1]):
        histogram = pool[table[node].slot]
        present = np.int64(0)
        for b in range(1, threshold + 1):
            present += histogram[f, b]
        if extras is not None and threshold == 0:
            present = sum_of_set(histogram[f], n_bins[f], split[4:])
        any_missing |= histogram[f, 0] != 0
        left = present + (histogram[f, 0] if missing_left else np.int64(0))
        table[node].feature = f
        copy_to(table[node].set, split[4:])
        table[node].threshold = threshold
        table[node].left_sum = left
        left_h += np.float64(left & LOW)
        whole_h += np.float64(table[node].total & LOW)
    side = missing_left if any_missing else np.int64(2.0 * left_h >= whole_h)
    for node in range(level[0], level[1]):
        table[node].missing_left = side


@kernel(inline="always")
def _choose_level_split(crew, level, bins, rules, nodes, histograms, search, extras):
    """Take the best split of all workers, on ties the lowest feature; ``state.node`` -1: there is none."""
    best = 0
    keys = search.keys if rules.noise != 0.0 or rules.weighed else search.gains
    for worker in range(1, crew.size):
        if keys[0, worker] > keys[0, best]:
            best = worker
    nodes.state[0].node = -1
    if search.gains[0, best] > 0.0:
        nodes.state[0].node = level[0]
        _write_level_split(search.splits[0, best], level, bins.n_bins, nodes.table, histograms.pool, extras)


@kernel(inline="always")
def _partition_level(crew, level, bins, rows, rules, table):
    """Partition all leaves of a level, large ones with all workers, and create their children.  False: stop."""
    for node in range(level[0], level[1]):
        if crew.size > 1 and table[node].last - table[node].first >= rules.shared_rows:
            if not partition_node(crew, node, bins, rows, table):
                return False
            if crew.worker == 0:
                table[2 * node + 1].rows = rows_left(crew, rows)
            if not meet(crew.barrier):
                return False
        elif node % crew.size == crew.worker:
            table[2 * node + 1].rows = partition_alone(crew, node, bins, rows, table)
    if not meet(crew.barrier):
        return False
    if crew.worker == 0:
        sums, n_nodes = crew.sums, level[1] - level[0]
        for i in range(n_nodes):
            sums[i] = table[2 * (level[0] + i) + 1].rows
        add_up(crew, SUMS, np.int64(n_nodes))
        for i in range(n_nodes):
            left = 2 * (level[0] + i) + 1
            make_children(table, level[0] + i, left, table[left].rows, sums[i])
    return meet(crew.barrier)


@kernel(inline="always")
def _write_level_gains(crew, level, rows, hessians, bins, rules, nodes, extras):
    """Write the gain of each leaf of a partitioned level, 0 where a side is too small.

    Returns whether these are the gains that the search assumed without counting rows.
    """
    table, seen = nodes.table, True
    for node in range(level[0], level[1]):
        total, left = table[node].total, table[node].left_sum
        g, h = np.float64(total >> np.int64(32)) * rules.unit_g, np.float64(total & LOW) * rules.unit_h
        g_left, h_left = np.float64(left >> np.int64(32)) * rules.unit_g, np.float64(left & LOW) * rules.unit_h
        nodes.gains[node] = 0.0
        if min(left & LOW, (total - left) & LOW) < rules.least_side:
            continue
        gain = (
            g_left * g_left / (h_left + rules.lambda_l2)
            + (g - g_left) * (g - g_left) / (h - h_left + rules.lambda_l2)
            - g * g / (h + rules.lambda_l2)
        )
        if extras is not None and rules.constrained:
            gain = bounded_gain_of(left, total, bins.monotone[table[node].feature], nodes.ranges[node], rules)
            if gain == -np.inf:  # against a constraint: the two sides get about the same value
                continue
        middle, n_left, n_right = table[2 * node + 1].last, table[2 * node + 1].rows, table[2 * node + 2].rows
        enough = min(n_left, n_right) >= rules.min_rows
        if enough and sides_have_hessian(crew, node, middle, n_left, rows, hessians, rules, table):
            nodes.gains[node] = gain
            seen &= gain >= 0.0
        else:
            seen = False
    return seen


@kernel(inline="always")
def _level_gains_something(crew, level, bins, rows, derivatives, rules, nodes):
    """Return whether the split of a partitioned level gains more than rounding in at least one leaf."""
    table = nodes.table
    for node in range(level[0], level[1]):
        n_left, n_right = table[2 * node + 1].rows, table[2 * node + 2].rows
        if nodes.gains[node] > 0.0:
            if gains_something(crew, node, n_left, n_right, bins, rows, derivatives, rules, table):
                return True
    return False


@kernel
def grow_by_level(crew, bins, rows, derivatives, rules, nodes, histograms, search, extras):
    """Grow an oblivious tree, the part of one worker: one split for all leaves of a depth, ``rules.max_depth`` times.

    Node k has the children 2k + 1 and 2k + 2, and every two leaves share a slot of the pool.  As in
    :func:`grow_by_node`, the first search ignores the number of rows, and if a side is too small the level is searched
    again with counted sides.  Afterwards ``state.n_nodes`` is the number of nodes.
    """
    table, state = nodes.table, nodes.state[0]
    first_feature, last_feature = own_features(crew, bins.n_bins.shape[0])
    first_counted, last_counted = counted_features(crew, bins.n_bins.shape[0])
    for depth in range(rules.max_depth):
        first_node, n_nodes = (1 << depth) - 1, 1 << depth
        level = (first_node, first_node + n_nodes)
        if not _count_level(crew, level, bins, rows, table, histograms):
            return
        search_level(crew, level, first_feature, last_feature, bins, rules, nodes, histograms, search, extras)
        counted = False
        while True:
            if not meet(crew.barrier):
                return
            if crew.worker == 0:
                _choose_level_split(crew, level, bins, rules, nodes, histograms, search, extras)
            if not meet(crew.barrier):
                return
            if state.node < 0:
                return
            if not _partition_level(crew, level, bins, rows, rules, table):
                return
            if crew.worker == 0:
                seen = _write_level_gains(crew, level, rows.rows, derivatives.hessians, bins, rules, nodes, extras)
                state.refused = first_node if not (seen or counted) else -1
                if state.refused < 0 and not _level_gains_something(crew, level, bins, rows, derivatives, rules, nodes):
                    state.node = -1
            if not meet(crew.barrier):
                return
            if state.node < 0:
                return
            if state.refused < 0:
                break
            counted = True
            search_level_counted(
                crew, level, first_counted, last_counted, bins, rows.rows, derivatives.hessians, rules, nodes,
                histograms, search, extras,
            )  # fmt: skip
        if crew.worker == 0:
            for node in range(first_node, first_node + n_nodes):
                table[node].left = 2 * node + 1
                _bound_children(node, bins, rules, nodes, extras)
            if extras is not None:
                narrow_groups(first_node, 2 * first_node + 1, table[first_node].feature, bins, nodes)
            state.n_nodes = 4 * n_nodes - 1
