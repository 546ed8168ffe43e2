"""Shared by the kernels of tree growth: their arguments, the table of nodes, and the barrier between workers.

    nodes (n_nodes,) NODE                             state (1,) STATE, one tree
    node 0   first last depth total slot left ..      n_nodes n_leaves n_waiting ..
    node 1   first last ...  left = 3 ------.
    node 2   left = -1: a leaf              |         heap: nodes waiting to be split, the best on top
    node 3   <------------------------------'         free: unused slots of the histogram pool

All workers of a team run the same growth kernel concurrently.  Each does its share of a step and calls :func:`meet`, a
barrier, before the next.  Only worker 0 writes nodes and state; the others read them after a barrier.

If the rows are divided among processes, each grows the same tree from its own: worker 0 of each adds up histograms and
counts with those of the others (:func:`add_up`), so that all take the same decisions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types

from rankmill.foundation.kernels.inner import inner_kernel
from rankmill.foundation.kernels.instructions import call_back, load_acquire, store_release

LOW = np.int64(0xFFFFFFFF)  # the hessian's half of a packed value; a gradient is in the upper one
LINE = 8  # int64 per cache line: each flag has its own line
LOOK_AHEAD = 96  # rows between prefetch and use; this many are read past the end of a node's rows
NEXT = 24  # rows between prefetch from the second-level cache and use
EPSILON = 2.0**-52

SET_WORDS = 4
_OF_NODE = (
    "first last rows",  # its rows are rows[first:last], and ``rows`` of them are in all processes
    "depth total slot",  # the packed sum of its rows; its histogram in the pool, -1: none
    "left",  # its first child, the other one follows it; -1: none.  The rest is its best split
    "feature threshold missing_left left_sum",  # threshold 0: the bins whose bits are in ``set`` go left
    "pairs_first pairs_last inside",  # of ole: pairs of which both rows are in the node, and the sum of their hessians
    # prepared: rows that go left here and in all processes, histogram of the smaller child
    "own_left all_left next_slot",
)
_OF_STATE = (
    "n_nodes n_leaves n_waiting n_free",  # nodes, leaves, waiting nodes, free slots
    "node",  # to split, -1: the tree is done
    "small large count_both counted",  # children to count and search, -1: none; whether both must be counted, or none
    "refused sum_hessians search_anew",  # a node to search with counted sides, -1: none; with hessians, and gains anew
    "n_batch",  # nodes to prepare
)
NODE = np.dtype([(name, np.int64) for line in _OF_NODE for name in line.split()] + [("set", np.int64, (SET_WORDS,))])
"""A row of the table of nodes."""
STATE = np.dtype([(name, np.int64) for line in _OF_STATE for name in line.split()])
"""What one tree and all workers share."""
BEST_FIRST, BREADTH_FIRST, DEPTH_FIRST = range(3)  # as in ``GROWTHS`` of the parameters
# Numba compiles a kernel again for every literal argument, but only once for a NumPy scalar.
NO, YES = np.bool_(False), np.bool_(True)
# what processes add up: histograms, those of the slots in ``Crew.sums``, or cells of ``Crew.sums``
HISTOGRAMS, SUMS = np.int64(0), np.int64(1)
SIDES = 512  # cells of ``Crew.sums`` for both counts of the bins of a feature

_sched_yield = types.ExternalFunction("sched_yield", types.int32())


class Rules(NamedTuple):
    """Constraints of a tree, and the scales of its sums.

    Steps are units of packed sums, fine steps those of exact sums.
    """

    max_leaves: int = 31
    max_depth: int = 0  # 0: any
    min_rows: int = 1  # of a leaf
    policy: int = BEST_FIRST
    constrained: bool = (
        False  # values of nodes are not always Newton steps: a feature is monotone, or one of the next three
    )
    lambda_l1: float = 0.0
    max_step: float = 0.0  # of a leaf, 0: any
    smooth: float = 0.0  # rows of the node above that a value is averaged with, 0: none
    shared_rows: int = 2**31  # all workers partition nodes with at least this many rows
    paired: bool = False  # splits are searched again by the loss itself (criterion ole)
    screened: int = 0  # .. over this many features, the best of the first search; 0: all
    by_h: bool = True  # splits are searched by hessians, not by weights (criterion se)
    unit_g: float = 1.0  # of a packed gradient
    unit_h: float = 1.0  # of a packed hessian
    lambda_l2: float = 0.0
    min_gain: float = 0.0
    category_l2: float = 0.0  # added to lambda_l2 where categories are ordered
    category_smoothing: float = 0.0  # added to the hessian of a category, by whose mean gradient they are ordered
    category_rows: float = 0.0  # minimum of a category
    most_categories: int = 32  # in a set
    group_rows: float = 100.0  # minimum rows between two sets that are tried
    one_vs_rest: int = 4  # up to so many categories, each is tried alone
    least_h: float = 1.0  # minimum steps of hessian of a side
    least_side: float = 1.0  # .. also due to min_rows
    fine_g: float = 1.0  # fine steps a unit of gradient
    fine_w: float = 1.0  # .. of the weights of the split search
    fine_h: float = 1.0  # .. of hessian
    fine_least_h: float = 0.0  # minimum sum of hessians of a side in fine steps
    noise: float = 0.0  # standard deviation of the noise on square roots of scores, 0: none
    noise_key: Any = np.uint64(0)  # of the tree, uint64
    restricted: bool = False  # not every enabled feature is usable at every node
    by_level: float = 1.0  # share of the features that are usable at a depth
    by_node: float = 1.0  # .. of these at a node
    random_splits: bool = False  # one random threshold a feature and node is tried
    tree_key: Any = np.uint64(0)  # of these draws, uint64
    weighed: bool = False  # gains are compared after weights


class Barrier(NamedTuple):
    """Where the workers of a team wait for each other."""

    worker: int
    size: int
    flags: Any  # ((size + 1) * LINE,) int64: the line of worker w has its flag and its number of barriers
    looks: int  # spin iterations before yielding to other threads


class Crew(NamedTuple):
    """One worker, its barrier, and the way to other processes.

    What most kernels call takes a part of it: every scalar of a call takes time to compile.
    """

    worker: int
    size: int
    barrier: Barrier
    peers: int  # address of a C function, see ``add_up``; 0: this process has all rows
    sums: Any  # (SIDES or more,) int64: what it adds up


class Bins(NamedTuple):
    """``words[block, row, w]`` holds the lanes ``8 w .. 8 w + 7`` of a block.

    The first is in the lowest byte; see ``layout``.

    Counting needs no others than those without a default.
    """

    words: Any  # (n_blocks, n_rows, width / 8) uint64
    used_words: Any  # (n_blocks,) int64: words that hold lanes
    blocks: Any  # numbers of the blocks with an enabled feature
    n_bins: Any  # (n_features,) int32
    lanes: Any  # (n_features, 3) int32: lane, place value, codes of the lane
    digits: Any  # (n_features, 256) uint8: the bin that a code of the lane stands for
    by_lane: Any  # (n_features,) int32: the features in the order of their lanes
    block_starts: Any  # (n_blocks + 1,) int32: where those of each block begin
    enabled: Any = None  # (n_features,) uint8: 1 if the feature may be used
    monotone: Any = None  # (n_features,) int8: direction of the scores, 0: any
    categorical: Any = None  # (n_features,) uint8: 1 if its bins are categories, the last one all others
    sources: Any = None  # (n_features,) int32: the feature that a column is made from, itself if none
    groups: Any = None  # (n_features, n_words) uint64: bits of the groups that have the feature; no words: no groups
    weights: Any = None  # (n_features,) float64: factors of gains


class Rows(NamedTuple):
    """Rows in the order of the nodes, with packed gradients and hessians; each with a scratch buffer."""

    rows: Any  # (n + LOOK_AHEAD,) int32
    packed: Any  # (n,) int64
    spare_rows: Any
    spare_packed: Any
    lefts: Any  # a cache line per worker: number of its rows that go left
    sides: Any  # (size, 256) uint8, of each worker: 1 for the codes that go left


class Derivatives(NamedTuple):
    """By row, float64: gradients, weights of the split search (hessians, unless criterion se), and hessians."""

    gradients: Any
    weights: Any
    hessians: Any


class Nodes(NamedTuple):
    """The tree as it grows."""

    table: Any  # (most_nodes,) NODE
    ranges: Any  # (most_nodes, 4): lowest and highest value that monotone constraints allow, own value, number of rows
    gains: Any  # (most_nodes,)
    priority: Any  # (most_nodes,)
    heap: Any  # (most_nodes,) int64
    free: Any  # (n_slots,) int64
    state: Any  # (1,) STATE
    groups: Any  # (most_nodes, n_words) uint64: bits of the groups that have all features of the path
    batch: Any  # (most_nodes,) int64: nodes whose splits are prepared together


class Histograms(NamedTuple):
    """``pool[slot, feature, bin]`` int64, and counts of a block, by lane and code, of each worker."""

    pool: Any
    tables: Any  # (size, width + 1, 256): a block that is being counted, and scratch
    edges: Any  # (size, width, 256): a block of which others count the first rows
    edge_blocks: Any  # a cache line per worker


class Search(NamedTuple):
    """Best splits of the workers, and their scratch buffers."""

    gains: Any  # (2, size)
    keys: Any  # (2, size): by which splits are compared if there is noise
    splits: Any  # (2, size, 4 + SET_WORDS) int64: feature, bin, missing left, packed sum of the left side, set of bins
    uppers: Any  # (n_slots, n_features): the key of each feature's best split: its gain, or that with noise
    work: Any  # (size, 12, 256), see `_split_kernels` and `_category_kernels`
    counts: Any  # (size, 2, 256) int64; (size, n_leaves, 2, 256) for levels
    usable: Any  # (size, n_features) uint8
    drawn: Any  # (size, n_features) uint64


class PairLists(NamedTuple):
    """Pairs of rows for criterion ole, and scratch buffers."""

    pairs: Any  # (n_pairs, 2) int64: first row << 32 | second row, hessian in fine steps
    spare: Any
    chosen: Any  # (size, n_features) int64
    keyed: Any  # (size, 4, KEYS) int64


# -- barrier ---------------------------------------------------------------------------------------------------------


@inner_kernel
def _wait(flags, index, number, stop, looks):
    """Wait until flags[index] reaches ``number``; False if flags[stop] is set before."""
    while True:
        for _ in range(looks):
            if load_acquire(flags, index) >= number:
                return True
        if load_acquire(flags, stop) != 0:
            return False
        _sched_yield()


@inner_kernel
def meet(barrier):
    """Wait at a barrier until all workers have reached it; False: one has failed, and all must stop.

    flags[w * LINE] belongs to worker w; a worker that fails sets flags[size * LINE].  After the barrier each worker
    sees what the others wrote before it.
    """
    if barrier.size == 1:
        return True
    flags, stop = barrier.flags, barrier.size * LINE
    number = flags[barrier.worker * LINE + 1] + 1  # no other worker reads this cell
    flags[barrier.worker * LINE + 1] = number
    if barrier.worker != 0:
        store_release(flags, barrier.worker * LINE, number)
        return _wait(flags, np.int64(0), number, stop, barrier.looks)
    for other in range(1, barrier.size):
        if not _wait(flags, other * LINE, number, stop, barrier.looks):
            return False
    store_release(flags, 0, number)
    return True


@inner_kernel
def own_features(crew, n_features):
    """Return the range of features that this worker searches."""
    return crew.worker * n_features // crew.size, (crew.worker + 1) * n_features // crew.size


@inner_kernel
def counted_features(crew, n_features):
    """Return the range of features whose sides this worker counts.

    With other processes worker 0 has all, as it adds up.
    """
    if crew.peers == 0:
        return own_features(crew, n_features)
    return np.int64(0), np.int64(n_features) if crew.worker == 0 else np.int64(0)


# -- processes -------------------------------------------------------------------------------------------------------


@inner_kernel
def add_up(crew, what, count):
    """Add up ``count`` histograms or sums over all processes, in place.  By worker 0.  False: stop.

    After a failure nothing is added up any more; the wrapper raises it when the tree is given up.
    """
    return crew.peers == 0 or call_back(crew.peers, what, count) != 0


@inner_kernel
def everywhere(crew, value):
    """Return the sum of ``value`` over all processes.  By worker 0."""
    if crew.peers == 0:
        return value
    crew.sums[0] = value
    add_up(crew, SUMS, np.int64(1))
    return crew.sums[0]


@inner_kernel
def add_up_histograms(crew, first_slot, n_slots):
    """Add up the histograms of these slots, which all workers have counted.  False: stop."""
    if crew.peers == 0:
        return True
    if not meet(crew.barrier):
        return False
    if crew.worker == 0:
        for i in range(n_slots):
            crew.sums[i] = first_slot + i
        if not add_up(crew, HISTOGRAMS, np.int64(n_slots)):
            return False
    return meet(crew.barrier)


# -- nodes -----------------------------------------------------------------------------------------------------------


@inner_kernel
def may_split(table, node, min_rows, max_depth):
    """Return whether a node has enough rows for two leaves and is above the maximum depth."""
    enough = table[node].rows >= 2 * min_rows
    return enough and (max_depth == 0 or table[node].depth < max_depth)


@inner_kernel
def _make_node(table, node, first, last, rows, depth, total):
    table[node].slot = table[node].left = table[node].own_left = table[node].all_left = table[node].next_slot = -1
    table[node].first = first
    table[node].last = last
    table[node].rows = rows
    table[node].depth = depth
    table[node].total = total


@inner_kernel
def make_children(table, node, left, own_left, n_left):
    """Create ``left`` and the node after it from the rows of ``node``.

    The first ``own_left`` rows go left here, ``n_left`` in all processes.
    """
    middle, depth = table[node].first + own_left, table[node].depth + 1
    total, left_sum = table[node].total, table[node].left_sum
    _make_node(table, left, table[node].first, middle, n_left, depth, left_sum)
    _make_node(table, left + 1, middle, table[node].last, table[node].rows - n_left, depth, total - left_sum)


@inner_kernel
def comes_before(priority, a, b):
    return priority[a] > priority[b] or (priority[a] == priority[b] and a < b)


@inner_kernel
def push(nodes, node):
    """Push ``node``: the highest priority (on ties the node created first) is on top of the heap."""
    heap, priority, i = nodes.heap, nodes.priority, nodes.state[0].n_waiting
    nodes.state[0].n_waiting += 1
    while i > 0:
        above = (i - 1) // 2
        if not comes_before(priority, node, heap[above]):
            break
        heap[i] = heap[above]
        i = above
    heap[i] = node


@inner_kernel
def pop(nodes):
    """Pop the node on top of the heap."""
    heap, priority = nodes.heap, nodes.priority
    n = nodes.state[0].n_waiting - 1
    nodes.state[0].n_waiting = n
    top, node = heap[0], heap[n]
    i = 0
    while 2 * i + 1 < n:
        below = 2 * i + 1
        if below + 1 < n and comes_before(priority, heap[below + 1], heap[below]):
            below += 1
        if not comes_before(priority, heap[below], node):
            break
        heap[i] = heap[below]
        i = below
    heap[i] = node
    return top


@inner_kernel
def release_slot(nodes, node):
    """Return the histogram of the node to the pool."""
    table, state = nodes.table, nodes.state[0]
    if table[node].slot >= 0:
        nodes.free[state.n_free] = table[node].slot
        state.n_free += 1
        table[node].slot = -1


@inner_kernel
def release_next_slot(nodes, node):
    """Return the histogram of the smaller child of a prepared node to the pool, and forget what was prepared."""
    table, state = nodes.table, nodes.state[0]
    if table[node].next_slot >= 0:
        nodes.free[state.n_free] = table[node].next_slot
        state.n_free += 1
    table[node].own_left = table[node].all_left = table[node].next_slot = -1


@inner_kernel
def _release_prepared(nodes):
    """Release what is prepared for the waiting node with the lowest priority."""
    victim = np.int64(-1)
    for i in range(nodes.state[0].n_waiting):
        node = nodes.heap[i]
        if nodes.table[node].next_slot >= 0 and (victim < 0 or comes_before(nodes.priority, victim, node)):
            victim = node
    release_next_slot(nodes, victim)


@inner_kernel
def take_slot(nodes):
    """Take a slot of the pool; if none is free, evict the histogram of the waiting node with the lowest priority."""
    state = nodes.state[0]
    if state.n_free == 0:
        victim = np.int64(-1)
        for i in range(state.n_waiting):
            node = nodes.heap[i]
            if nodes.table[node].slot >= 0 and (victim < 0 or comes_before(nodes.priority, victim, node)):
                victim = node
        if victim >= 0:
            release_slot(nodes, victim)
        else:
            _release_prepared(nodes)
    state.n_free -= 1
    return nodes.free[state.n_free]
