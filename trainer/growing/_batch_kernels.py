"""Prepare the splits of several nodes for one exchange with other processes: partition them, and count their smaller children.

    waiting, by priority     9.1  8.7  5.0  4.2  3.9 ..
    prepared together        '------------'               as many as will most likely be split: half of the leaves that are left

What is prepared for a node does not depend on when it is split, so that trees are those of one process, which splits one
node after another.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.trainer.growing._growth_kernels import judge, take_node
from rankmill.trainer.growing._histogram_kernels import add_edges, count_rows
from rankmill.trainer.growing._partition_kernels import partition_alone, partition_node, rows_left
from rankmill.trainer.growing._state_kernels import (
    ALL_LEFT,
    COUNTING,
    DECIDING,
    DEPTH,
    FIRST,
    HISTOGRAMS,
    LAST,
    N_BATCH,
    N_FREE,
    N_LEAVES,
    N_WAITING,
    NEXT_SLOT,
    NODE,
    OWN_LEFT,
    PARTING,
    ROWS,
    SLOT,
    SUMS,
    YES,
    add_up,
    comes_before,
    meet,
    take_slot,
    tick,
)


@kernel(inline="always")
def _choose_batch(node, rules, nodes):
    """Choose the nodes to prepare with ``node``, which is no longer waiting, those with the highest priority. By worker 0.

    Half as many as the tree may still have leaves are chosen: what is prepared and never split costs a count.  Each takes a free
    slot of the pool.
    """
    table, state, batch = nodes.table, nodes.state, nodes.batch
    batch[0] = node
    n, most = 1, min((rules.max_leaves - state[N_LEAVES] + 1) // 2, state[N_FREE])
    while n < most:
        best = np.int64(-1)
        for i in range(state[N_WAITING]):
            other = nodes.heap[i]
            if table[other, OWN_LEFT] >= 0 or table[other, SLOT] < 0:
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
    state[N_BATCH] = n


@kernel(inline="always")
def _prepare_batch(crew, bins, rows, rules, nodes, histograms):
    """Partition the nodes of the batch, and count the smaller child of each, together with the other processes.  False: stop.

    One exchange then has the rows that go left, and another the histograms.  Nothing depends on the order in which nodes are
    split, so what is prepared for a node is the same whenever it is split.
    """
    table, state, batch, sums = nodes.table, nodes.state, nodes.batch, crew.sums
    for i in range(state[N_BATCH]):
        node = batch[i]
        if crew.size > 1 and table[node, LAST] - table[node, FIRST] >= rules.shared_rows:
            if not (partition_node(crew, node, bins, rows, table) and meet(crew.barrier)):
                return False
            if crew.worker == 0:
                table[node, OWN_LEFT] = rows_left(crew, rows)
        elif crew.worker == 0:
            table[node, OWN_LEFT] = partition_alone(crew, node, bins, rows, table)
        if not meet(crew.barrier):
            return False
    if crew.worker == 0:
        tick(crew.clock, PARTING)
        for i in range(state[N_BATCH]):
            sums[i] = table[batch[i], OWN_LEFT]
        add_up(crew, SUMS, np.int64(state[N_BATCH]))
        for i in range(state[N_BATCH]):
            node = batch[i]
            n_left, n_rows = sums[i], table[node, ROWS]
            table[node, ALL_LEFT] = n_left
            searched = (
                max(n_left, n_rows - n_left) >= 2 * rules.min_rows and min(n_left, n_rows - n_left) >= rules.min_rows
            )
            deeper = rules.max_depth == 0 or table[node, DEPTH] + 1 < rules.max_depth
            table[node, NEXT_SLOT] = take_slot(nodes) if searched and deeper else np.int64(-1)
        tick(crew.clock, DECIDING)
    if not meet(crew.barrier):
        return False
    for i in range(state[N_BATCH]):
        node = batch[i]
        slot, middle = table[node, NEXT_SLOT], table[node, FIRST] + table[node, OWN_LEFT]
        if slot < 0:
            continue
        first, last = (
            (table[node, FIRST], middle)
            if 2 * table[node, ALL_LEFT] <= table[node, ROWS]
            else (middle, table[node, LAST])
        )
        if not count_rows(crew, first, last, slot, bins, rows, histograms):
            return False
        add_edges(crew, slot, bins, histograms)
        if not meet(crew.barrier):  # the next count uses the same buffers for edges
            return False
    if crew.worker == 0:
        n = np.int64(0)
        for i in range(state[N_BATCH]):
            if table[batch[i], NEXT_SLOT] >= 0:
                sums[n] = table[batch[i], NEXT_SLOT]
                n += 1
        if n > 0 and not add_up(crew, HISTOGRAMS, n):
            return False
        tick(crew.clock, COUNTING)
    return meet(crew.barrier)


@kernel
def grow_in_batches(crew, bins, rows, derivatives, rules, nodes, histograms, search):
    """As :func:`grow_by_node`, together with other processes, which have other rows."""
    table, state = nodes.table, nodes.state
    tick(crew.clock, COUNTING)
    while take_node(crew, bins, rows, derivatives, rules, nodes, histograms, search, None, YES):
        node = state[NODE]
        if crew.worker == 0:
            state[N_BATCH] = 0
            if table[node, OWN_LEFT] < 0:
                _choose_batch(node, rules, nodes)
        if not meet(crew.barrier):
            return
        if state[N_BATCH] > 0 and not _prepare_batch(crew, bins, rows, rules, nodes, histograms):
            return
        if crew.worker == 0:
            own_left, n_left = table[node, OWN_LEFT], table[node, ALL_LEFT]
            judge(crew, node, own_left, n_left, bins, rows, derivatives, rules, nodes, None, search, YES)
            tick(crew.clock, DECIDING)
        if not meet(crew.barrier):
            return
