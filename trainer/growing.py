"""One tree from gradients: best-first growth over packed histograms."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from trainer import _kernels
from trainer.dtypes import BINS_A_FEATURE, PACKED, ROW, SCORE
from trainer.histogram import HistogramPool
from trainer.layout import BlockedBins
from trainer.packing import Scale, pack, scales_of
from trainer.parameters import TrainParameters
from trainer.splitting import Split, best_of
from trainer.workers import Team

_ALONE_BELOW = 50_000  # (row, block) visits under which sharing costs more than it saves: some 100 us a step
_LEAST_ROWS = 131_072  # rows a worker, for passes of about a nanosecond a row


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes in the order they were made, the root first; every array has shape (n_nodes,).

    ``feature`` is -1 at a leaf.  Elsewhere a row goes ``left`` if its bin is in 1 .. ``threshold``, or if it is 0
    (missing) and ``missing_left``.  ``value`` is what the node adds to a score, shrinkage included.
    """

    feature: npt.NDArray[np.int32]
    threshold: npt.NDArray[np.int32]
    missing_left: npt.NDArray[np.uint8]
    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    value: npt.NDArray[np.float64]
    gain: npt.NDArray[np.float64]
    rows: npt.NDArray[np.int64]

    @property
    def n_leaves(self) -> int:
        """Leaves of the tree; 1 where nothing was worth a split."""
        return int((self.feature < 0).sum())


@dataclass(slots=True)
class _Node:
    first: int  # the node's rows are rows[first:last]
    last: int
    depth: int
    total: int  # packed sum of its rows
    split: Split | None = None
    slot: int = -1  # its histogram in the pool; -1: none
    left: int = -1
    right: int = -1
    chosen: Split | None = None  # set once the node has been split
    sums: list[int] = field(default_factory=lambda: [0, 0])
    counts: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict)  # rows by bin, where an estimate was wrong

    @property
    def size(self) -> int:
        return self.last - self.first


class _Waiting:
    """Nodes that may be split, by gain; equal gains go to the node made first."""

    def __init__(self, nodes: list[_Node]) -> None:
        self._nodes, self._heap = nodes, list[tuple[float, int]]()

    def add(self, index: int) -> None:
        """Take node ``index`` in, if it has a split."""
        split = self._nodes[index].split
        if split is not None:
            heapq.heappush(self._heap, (-split.gain, index))

    def best(self) -> int | None:
        """Take out the node of the greatest gain; None if nobody waits."""
        return heapq.heappop(self._heap)[1] if self._heap else None


class Grower:
    """Grows trees over one training set; buffers are made once and used for every tree.

    Memory beside the bins: ``BYTES_A_ROW`` for each row, and the histogram pool.
    """

    BYTES_A_ROW: ClassVar[int] = 24  # packed values and row numbers, each twice

    def __init__(self, bins: BlockedBins, parameters: TrainParameters, team: Team) -> None:
        self._bins, self._parameters, self._team = bins, parameters, team
        n, n_features = bins.n_rows, len(bins.n_bins)
        self._packed = np.empty(n, dtype=PACKED)
        self._rows = np.zeros(n + _kernels.LOOK_AHEAD, dtype=ROW)
        self._spare_rows = np.empty(n, dtype=ROW)
        self._spare_packed = np.empty(n, dtype=PACKED)
        self._pool = HistogramPool(n_features)
        n_blocks = bins.words.shape[0]
        self._blocks = np.arange(n_blocks, dtype=np.int64)
        self._enabled = np.ones(n_features, dtype=np.uint8)
        self._gains = np.zeros((2, n_blocks), dtype=np.float64)
        self._splits = np.zeros((2, n_blocks, 4), dtype=np.int64)
        self._edges = np.zeros((team.size, bins.width, BINS_A_FEATURE), dtype=PACKED)
        self._work = np.empty((team.size, 3, BINS_A_FEATURE), dtype=np.float64)

    def grow(
        self, gradients: npt.NDArray[np.float64], curvatures: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]
    ) -> Tree:
        """Grow one tree from g and h, both (n_rows,), and add its leaves to ``scores`` (n_rows,) in place.

        Leaves are Newton steps, ``-G / (H + lambda) * learning_rate``.  With no split that gains, the tree is a
        single leaf.
        """
        histogram_scale, leaf_scale = scales_of(gradients, curvatures, self._team)
        self._start(gradients, curvatures, histogram_scale)
        nodes = [self._root()]
        self._search(nodes[0], None, parent_slot=-1)
        waiting = _Waiting(nodes)
        waiting.add(0)
        n_leaves = 1
        while n_leaves < self._parameters.max_leaves and (index := waiting.best()) is not None:
            known = len(nodes)
            if self._divide(nodes, index, last=n_leaves + 1 == self._parameters.max_leaves):
                n_leaves += 1
            for changed in (index, *range(known, len(nodes))):
                waiting.add(changed)
        for node in nodes:
            self._pool.give_back(node.slot)
        return self._finish(nodes, gradients, curvatures, leaf_scale, scores)

    def _start(self, gradients: npt.NDArray[np.float64], curvatures: npt.NDArray[np.float64], scale: Scale) -> None:
        def begin(first: int, last: int, _: int) -> None:
            self._rows[first:last] = np.arange(first, last, dtype=ROW)
            pack(gradients, curvatures, scale, first, last, self._packed)

        self._team.share(self._bins.n_rows, _LEAST_ROWS, begin)
        p = self._parameters
        self._bounds = np.array(
            [
                1.0 / scale.gradient,
                1.0 / scale.curvature,
                p.lambda_l2,
                p.min_gain,
                p.min_hessian_in_leaf,
                p.min_rows_in_leaf,
            ],
            dtype=np.float64,
        )

    def _root(self) -> _Node:
        return _Node(first=0, last=self._bins.n_rows, depth=0, total=int(self._packed.sum()))

    def _divide(self, nodes: list[_Node], index: int, *, last: bool) -> bool:
        """Split ``nodes[index]`` and look for the best splits of both children, unless this is the last split.

        The search only estimates how many rows go to a side.  Where the partition finds too few, the node gets
        another split and waits for its turn again: False.
        """
        node = nodes[index]
        split = node.split
        assert split is not None  # noqa: S101 - only nodes with a split are divided
        n_left = self._partition(node, split)
        middle = node.first + n_left
        if min(n_left, node.size - n_left) < self._parameters.min_rows_in_leaf:
            self._search_counted(node, split.feature)
            return False
        left = _Node(node.first, middle, node.depth + 1, split.left_sum)
        right = _Node(middle, node.last, node.depth + 1, node.total - split.left_sum)
        node.left, node.right = len(nodes), len(nodes) + 1
        node.chosen, node.split = split, None
        nodes += [left, right]
        parent_slot, node.slot = node.slot, -1
        if last:
            self._pool.give_back(parent_slot)
        else:
            small, large = (left, right) if left.size <= right.size else (right, left)
            self._search(small, large, parent_slot)
        return True

    def _partition(self, node: _Node, split: Split) -> int:
        """Bring the node's rows that go left to its front, in their order; return how many they are."""
        column, stride = self._bins.column(split.feature)
        spare = self._spare_rows, self._spare_packed
        rule = column, stride, split.threshold, split.missing_left
        if self._team.size == 1 or node.size < _ALONE_BELOW:
            return int(_kernels.partition(*rule, self._rows, self._packed, node.first, node.last, *spare))
        size, n_left = self._team.size, np.zeros(self._team.size, dtype=np.int64)
        cuts = [node.first + worker * node.size // size for worker in range(size + 1)]

        def deal_out(worker: int) -> None:
            n_left[worker] = _kernels.deal_out(*rule, self._rows, self._packed, cuts[worker], cuts[worker + 1], *spare)

        def collect(worker: int) -> None:
            before = int(n_left[:worker].sum())
            right_to = cuts[worker] + int(n_left.sum()) - before
            _kernels.collect(
                *spare, cuts[worker], cuts[worker + 1], n_left[worker], node.first + before, right_to,
                self._rows, self._packed,
            )  # fmt: skip

        self._team.each(deal_out)
        self._team.each(collect)
        return int(n_left.sum())

    def _search_counted(self, node: _Node, feature: int) -> None:
        """Find the node's best split anew, with the rows of ``feature`` (and of those before it) really counted."""
        counts = np.empty(BINS_A_FEATURE, dtype=np.int64)
        column, stride = self._bins.column(feature)
        _kernels.count_bins(column, stride, self._rows, node.first, node.last, counts)
        node.counts[feature] = counts
        n = len(node.counts)
        gains, splits = np.zeros(n + 1, dtype=np.float64), np.zeros((n + 1, 4), dtype=np.int64)
        estimated = self._enabled.copy()
        estimated[list(node.counts)] = 0
        searches = [(f, f + 1, self._enabled, node.counts[f]) for f in node.counts]
        searches.append((0, len(estimated), estimated, np.empty(0, dtype=np.int64)))
        for i, (first, last, enabled, rows_of_bin) in enumerate(searches):
            _kernels.best_split(
                self._pool[node.slot], rows_of_bin, self._bins.n_bins, enabled, first, last, node.total, node.size,
                self._bounds, self._work[0], gains[i:], splits[i],
            )  # fmt: skip
        by_feature = np.argsort(splits[:, 0], kind="stable")  # so that equal gains go to the lowest feature
        node.split = best_of(gains[by_feature], splits[by_feature])
        if node.split is None:
            self._pool.give_back(node.slot)
            node.slot = -1

    def _search(self, small: _Node, large: _Node | None, parent_slot: int) -> None:
        """Fill the histograms of ``small`` (by counting) and ``large`` (by subtraction) and find their best splits."""
        pair = [small] if large is None else [small, large]
        if not any(self._may_split(node) for node in pair):
            self._pool.give_back(parent_slot)
            return
        small.slot = self._pool.take()
        small_histogram = self._pool[small.slot]
        large_histogram = small_histogram
        if large is not None:
            large.slot, large_histogram = parent_slot, self._pool[parent_slot]
        totals = np.array([node.total for node in pair] + [0] * (2 - len(pair)), dtype=PACKED)
        n_rows = np.array([node.size for node in pair] + [0] * (2 - len(pair)), dtype=np.int64)

        alone = self._team.size == 1 or small.size * len(self._blocks) < _ALONE_BELOW
        self._count(small, small_histogram, alone=alone)

        def search(first: int, last: int, worker: int) -> None:
            _kernels.search_blocks(
                self._bins.width, self._bins.n_bins, self._enabled, self._blocks[first:last], small_histogram,
                large_histogram, totals, n_rows, self._bounds, self._work[worker], self._gains, self._splits,
            )  # fmt: skip

        if alone:
            search(0, len(self._blocks), 0)
        else:
            self._team.share(len(self._blocks), 1, search)
        for child, node in enumerate(pair):
            if self._may_split(node):
                node.split = best_of(self._gains[child], self._splits[child])
            if node.split is None:
                self._pool.give_back(node.slot)
                node.slot = -1

    def _count(self, node: _Node, histogram: npt.NDArray[np.int64], *, alone: bool) -> None:
        """Fill the histogram of a node from its rows; workers share blocks and rows alike."""
        bins, size = self._bins, 1 if alone else self._team.size
        partial = np.full(size, -1, dtype=np.int64)

        def count(worker: int) -> None:
            partial[worker] = _kernels.count_share(
                bins.words, self._rows, self._packed, node.first, node.last, bins.n_bins, worker, size, histogram,
                self._edges[worker],
            )  # fmt: skip

        if alone:
            count(0)
            return
        self._team.each(count)
        for worker, block in enumerate(partial.tolist()):
            if block >= 0:
                _kernels.add_edge(self._edges[worker], bins.n_bins, block, histogram)

    def _may_split(self, node: _Node) -> bool:
        p = self._parameters
        return node.size >= 2 * p.min_rows_in_leaf and (p.max_depth == 0 or node.depth < p.max_depth)

    def _finish(
        self,
        nodes: list[_Node],
        gradients: npt.NDArray[np.float64],
        curvatures: npt.NDArray[np.float64],
        scale: Scale,
        scores: npt.NDArray[np.float64],
    ) -> Tree:
        p = self._parameters
        leaves = sorted((node for node in nodes if node.chosen is None), key=lambda node: node.first)
        starts = np.array([leaf.first for leaf in leaves] + [self._bins.n_rows], dtype=np.int64)
        sums = np.zeros((self._team.size, len(leaves), 2), dtype=np.int64)
        self._team.share(
            self._bins.n_rows,
            _LEAST_ROWS,
            lambda first, last, worker: _kernels.leaf_sums(
                gradients, curvatures, scale.gradient, scale.curvature, self._rows, starts, first, last, sums[worker]
            ),
        )
        for leaf, (g, h) in zip(leaves, sums.sum(axis=0).tolist(), strict=True):
            leaf.sums = [g, h]
        for node in reversed(nodes):  # children come after their parent
            if node.chosen is not None:
                one, other = nodes[node.left], nodes[node.right]
                node.sums = [one.sums[0] + other.sums[0], one.sums[1] + other.sums[1]]
        values = []
        for node in nodes:
            curvature = node.sums[1] / scale.curvature + p.lambda_l2
            step = -(node.sums[0] / scale.gradient) / curvature if curvature > 0.0 else 0.0
            values.append(step * p.learning_rate)
        value_of = {id(node): value for node, value in zip(nodes, values, strict=True)}
        leaf_values = np.array([value_of[id(leaf)] for leaf in leaves], dtype=SCORE)
        self._team.share(
            self._bins.n_rows,
            _LEAST_ROWS,
            lambda first, last, _: _kernels.add_leaves(self._rows, starts, leaf_values, first, last, scores),
        )
        return Tree(
            feature=np.array([-1 if node.chosen is None else node.chosen.feature for node in nodes], dtype=np.int32),
            threshold=np.array(
                [-1 if node.chosen is None else node.chosen.threshold for node in nodes], dtype=np.int32
            ),
            missing_left=np.array(
                [node.chosen is not None and node.chosen.missing_left for node in nodes], dtype=np.uint8
            ),
            left=np.array([node.left for node in nodes], dtype=np.int32),
            right=np.array([node.right for node in nodes], dtype=np.int32),
            value=np.array(values, dtype=SCORE),
            gain=np.array([0.0 if node.chosen is None else node.chosen.gain for node in nodes], dtype=np.float64),
            rows=np.array([node.size for node in nodes], dtype=np.int64),
        )
