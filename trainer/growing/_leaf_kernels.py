"""The leaves of a grown tree, the values of its nodes, and the arrays that are kept of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankmill.foundation.kernels.arrays import copy_to
from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.inner import inner_kernel


class Steps(NamedTuple):
    """What the values of nodes depend on besides their sums."""

    unit_g: float  # steps of a sum of gradients
    unit_h: float  # .. of hessians
    lambda_l2: float
    lambda_l1: float
    most: float  # absolute value of a node, 0: any
    smooth: float  # rows of the node above that a value is averaged with, 0: none
    min_rows: int
    min_hessian: float
    rate: float  # by which values are multiplied in the end
    oblivious: bool
    by_h: bool  # splits were searched by hessians, so that ranges hold values


@kernel
def leaves_in_order(table, n_nodes, n_rows, waiting, leaves, starts):
    """Write the leaves in the order of their rows, and where those of each start; returns how many there are.

    ``starts`` ends with ``n_rows``; ``waiting`` (n_nodes,) is scratch.
    """
    n_leaves, n_waiting = 0, 1
    waiting[0] = 0
    while n_waiting > 0:
        n_waiting -= 1
        node = waiting[n_waiting]
        left = table[node].left
        if left < 0:
            leaves[n_leaves] = node
            starts[n_leaves] = table[node].first
            n_leaves += 1
        else:
            waiting[n_waiting] = left + 1
            waiting[n_waiting + 1] = left
            n_waiting += 2
    starts[n_leaves] = n_rows
    return n_leaves


@kernel
def add_children(table, sums):
    """Add the sums (n_nodes, 2) of their children to nodes that are split; children come after parents."""
    for node in range(sums.shape[0] - 1, -1, -1):
        left = table[node].left
        if left >= 0:
            for k in range(2):
                sums[node, k] = sums[left, k] + sums[left + 1, k]


@inner_kernel
def _between(value, low, high):
    """Return the value, or the bound that it passes or equals: a bound of 0 replaces -0."""
    return min(high, max(low, value))


@inner_kernel
def _step(sum_g, h, steps):
    """Return -g / h of a sum of gradients, drawn towards 0 by lambda_l1."""
    g = sum_g / steps.unit_g
    if steps.lambda_l1 != 0.0:
        g = np.sign(g) * max(abs(g) - steps.lambda_l1, 0.0)
    return -g / h


@inner_kernel
def _average_over_children(table, values):
    """Set the value of every node that is split to the mean over its rows."""
    for node in range(values.shape[0] - 1, -1, -1):
        a = table[node].left
        if a >= 0:
            rows = table[node].rows
            total = table[a].rows * values[a] + table[a + 1].rows * values[a + 1]
            values[node] = total / rows if rows != 0 else 0.0


@inner_kernel
def _smooth(table, ranges, steps, values):
    """Average the value of each node with that of its parent, as if that had ``steps.smooth`` rows."""
    for node in range(values.shape[0]):
        a = table[node].left
        for child in range(a, a + 2 if a >= 0 else a):
            rows = table[child].rows
            value = (values[child] * rows + values[node] * steps.smooth) / (rows + steps.smooth)
            if steps.by_h and not steps.oblivious:
                value = _between(value, ranges[child, 0], ranges[child, 1])
            values[child] = value


@inner_kernel
def _keep_directions(table, monotone, limits, values):
    """Enforce monotone constraints in oblivious trees, and if splits were searched by weights.

    Steps of weights have another scale.  As in the growth kernels, the midpoint of the two values bounds the children
    of a constrained split.  ``limits`` (n_nodes, 2) is scratch.
    """
    limits[0, 0], limits[0, 1] = -np.inf, np.inf
    for node in range(values.shape[0]):
        a, low, high = table[node].left, limits[node, 0], limits[node, 1]
        if a >= 0:
            limits[a, 0], limits[a, 1] = low, high
            limits[a + 1, 0], limits[a + 1, 1] = low, high
            direction = monotone[table[node].feature]
            if direction != 0:
                middle = 0.5 * (_between(values[a], low, high) + _between(values[a + 1], low, high))
                limits[a if direction > 0 else a + 1, 1] = middle
                limits[a + 1 if direction > 0 else a, 0] = middle
        values[node] = _between(values[node], low, high)


@kernel
def node_values(table, ranges, leaves, sums, steps, inside, own, monotone, limits, values):
    """Write what each node adds to scores, the learning rate included, to ``values`` (n_nodes,).

    ``sums`` (n_nodes, 2) are those of gradients and hessians in steps.  None if there are none: ``inside`` (n_leaves,),
    the hessians of the pairs inside each of ``leaves`` for exact steps; ``own`` (n_leaves,), steps that the loss
    computes itself; ``monotone`` (n_features,) directions.
    """
    least_h = steps.min_hessian * steps.unit_h
    for node in range(values.shape[0]):
        h = sums[node, 1] / steps.unit_h + steps.lambda_l2
        # may be false in a tree of one leaf, or in oblivious trees
        enough = sums[node, 1] >= least_h and h > 0.0
        values[node] = _step(sums[node, 0], h, steps) if enough else 0.0
    if inside is not None:
        for i in range(leaves.shape[0]):
            node = leaves[i]
            whole = sums[node, 1] / steps.unit_h
            exact = whole - 2.0 * inside[i]
            # both are 0 in a leaf of whole queries, except for the rounding of rows and pairs
            sound = exact > 1e-9 * sums[node, 1] / steps.unit_h and exact >= steps.min_hessian
            values[node] = _step(sums[node, 0], exact + steps.lambda_l2, steps) if sound else 0.0
        _average_over_children(table, values)
    if own is not None:
        for i in range(leaves.shape[0]):
            values[leaves[i]] = own[i]
        _average_over_children(table, values)
    if steps.most > 0.0:
        for node in range(values.shape[0]):
            values[node] = min(max(values[node], -steps.most), steps.most)
    if steps.smooth > 0.0:
        _smooth(table, ranges, steps, values)
    if steps.oblivious:  # a node too small for a value of its own has that of its parent
        for node in range(1, values.shape[0]):
            if table[node].rows < steps.min_rows or not (sums[node, 1] >= least_h and sums[node, 1] > 0):
                values[node] = values[(node - 1) // 2]
    if monotone is not None:
        if steps.by_h and not steps.oblivious:
            for node in range(values.shape[0]):
                values[node] = _between(values[node], ranges[node, 0], ranges[node, 1])
        else:
            _keep_directions(table, monotone, limits, values)
    for node in range(values.shape[0]):
        values[node] *= steps.rate


@kernel
def write_tree(table, gains, feature, threshold, missing_left, left, right, gain, rows, sets):
    """Write the arrays of a `Tree` besides its values; ``sets`` (n_nodes, 4) int64, which holds zeros, are its bits."""
    for node in range(feature.shape[0]):
        a, divided = table[node].left, table[node].left >= 0
        feature[node] = table[node].feature if divided else -1
        threshold[node] = table[node].threshold if divided else -1
        missing_left[node] = divided and table[node].missing_left > 0
        left[node] = a
        right[node] = a + 1 if divided else a  # it follows the first child; -1 at a leaf
        gain[node] = gains[node] if divided else 0.0
        rows[node] = table[node].rows
        if divided and table[node].threshold == 0:
            copy_to(sets[node], table[node].set)
