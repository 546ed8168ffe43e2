"""Prepare the splits of several nodes for one exchange with other processes.

Nodes are partitioned, and their smaller children counted.

    waiting, by priority     9.1  8.7  5.0  4.2  3.9 ..
    prepared together        '------------'               as many as will most likely be split: half of the leaves that
                             are left

What is prepared for a node does not depend on when it is split, so that trees are those of one process, which splits
one node after another.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.trainer.growing._growth_kernels import judge, take_node
from rankmill.trainer.growing._histogram_kernels import add_edges, count_rows
from rankmill.trainer.growing._partition_kernels import partition_alone, partition_node, rows_left
from rankmill.trainer.growing._state_kernels import (
    HISTOGRAMS,
    SUMS,
    YES,
    add_up,
    comes_before,
    meet,
    take_slot,
)


@kernel(inline="always")
def _choose_batch(node, rules, nodes):
    """Choose the nodes to prepare with ``node``, which is no longer waiting, those with the highest priority.

    By worker 0.

    Half as many as the tree may still have leaves are chosen: what is prepared and never split costs a count.  Each
    takes a free slot of the pool.
    """
    table, state, batch = nodes.table, nodes.state[0], nodes.batch
    batch[0] = node
    n, most = 1, min((rules.max_leaves - state.n_leaves + 1) // 2, state.n_free)
    while n < most:
        best = np.int64(-1)
        for i in range(state.n_waiting):
            other = nodes.heap[i]
            if table[other].own_left >= 0 or table[other].slot < 0:
                continue
            chosen = False
            for k in range(n):
                chosen |= batch[k] == other
            if not chosen and (best < 0 or comes_before(nodes.priority, other, best)):
                best = other
        if best < 0:
            break
        batch[n] = best
        n += 1
    state.n_batch = n


@kernel(inline="always")
def _prepare_batch(crew, bins, rows, rules, nodes, histograms):
    """Partition the nodes of the batch, and count the smaller child of each, together with the other processes.

    False: stop.

    One exchange then has the rows that go left, and another the histograms.  Nothing depends on the order in which
    nodes are split, so what is prepared for a node is the same whenever it is split.
    """
    table, state, batch, sums = nodes.table, nodes.state[0], nodes.batch, crew.sums
    for i in range(state.n_batch):
        node = batch[i]
        if crew.size > 1 and table[node].last - table[node].first >= rules.shared_rows:
            if not (partition_node(crew, node, bins, rows, table) and meet(crew.barrier)):
                return False
            if crew.worker == 0:
                table[node].own_left = rows_left(crew, rows)
        elif crew.worker == 0:
            table[node].own_left = partition_alone(crew, node, bins, rows, table)
        if not meet(crew.barrier):
            return False
    if crew.worker == 0:
        for i in range(state.n_batch):
            sums[i] = table[batch[i]].own_left
        add_up(crew, SUMS, np.int64(state.n_batch))
        for i in range(state.n_batch):
            node = batch[i]
            n_left, n_rows = sums[i], table[node].rows
            table[node].all_left = n_left
            searched = (
                max(n_left, n_rows - n_left) >= 2 * rules.min_rows and min(n_left, n_rows - n_left) >= rules.min_rows
            )
            deeper = rules.max_depth == 0 or table[node].depth + 1 < rules.max_depth
            table[node].next_slot = take_slot(nodes) if searched and deeper else np.int64(-1)
    if not meet(crew.barrier):
        return False
    for i in range(state.n_batch):
        node = batch[i]
        slot, middle = table[node].next_slot, table[node].first + table[node].own_left
        if slot < 0:
            continue
        first, last = (
            (table[node].first, middle) if 2 * table[node].all_left <= table[node].rows else (middle, table[node].last)
        )
        if not count_rows(crew, first, last, slot, bins, rows, histograms):
            return False
        add_edges(crew, slot, bins, histograms)
        if not meet(crew.barrier):  # the next count uses the same buffers for edges
            return False
    if crew.worker == 0:
        n = np.int64(0)
        for i in range(state.n_batch):
            if table[batch[i]].next_slot >= 0:
                sums[n] = table[batch[i]].next_slot
                n += 1
        if n > 0 and not add_up(crew, HISTOGRAMS, n):
            return False
    return meet(crew.barrier)


@kernel
def grow_in_batches(crew, bins, rows, derivatives, rules, nodes, histograms, search):
    """As :func:`grow_by_node`, together with other processes, which have other rows."""
    table, state = nodes.table, nodes.state[0]
    while take_node(crew, bins, rows, derivatives, rules, nodes, histograms, search, None, YES):
        node = state.node
        if crew.worker == 0:
            state.n_batch = 0
            if table[node].own_left < 0:
                _choose_batch(node, rules, nodes)
        if not meet(crew.barrier):
            return
        if state.n_batch > 0 and not _prepare_batch(crew, bins, rows, rules, nodes, histograms):
            return
        if crew.worker == 0:
            own_left, n_left = table[node].own_left, table[node].all_left
            judge(crew, node, own_left, n_left, bins, rows, derivatives, rules, nodes, None, search, YES)
        if not meet(crew.barrier):
            return
