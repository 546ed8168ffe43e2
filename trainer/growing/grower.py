"""Grow trees on one training set: the buffers, scales and leaf values around the kernels."""

from __future__ import annotations

from ctypes import CFUNCTYPE, c_int64, c_void_p, cast
from dataclasses import dataclass
from math import copysign, sqrt
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from rankmill.pipeline.bins.layout import BIN, BINS_A_FEATURE
from rankmill.trainer import _kernels as row_kernels
from rankmill.trainer.data.layout import PACKED, ROW, SCORE, BlockedBins, aligned_empty
from rankmill.trainer.data.shard import Span
from rankmill.trainer.growing import _batch_kernels, _growth_kernels, _leaf_kernels
from rankmill.trainer.growing import _state_kernels as table
from rankmill.trainer.growing._pair_search_kernels import KEYS, PAIR_STEPS, pack_pairs
from rankmill.trainer.growing.controls import Controls
from rankmill.trainer.growing.histogram import DEFAULT_POOL_BYTES, HistogramPool, PackingScale, scales_of, total_of
from rankmill.trainer.growing.leaves import LeafRules
from rankmill.trainer.growing.tree import Tree, add_tree
from rankmill.trainer.objectives.protocol import Leaves, PairHessians
from rankmill.trainer.parameters import GROWTHS, NONE, TrainParameters
from rankmill.trainer.team import Team

_LEAST_ROWS = 131_072  # minimum rows per worker, for passes of about a nanosecond per row
_LEAST_VISITS = 5_000  # minimum (row, block) visits of a tree per worker
_SHARED_ROWS = 2_000  # minimum rows of a node to partition with several workers: two barriers cost about a microsecond
_AddUp = CFUNCTYPE(c_int64, c_int64, c_int64)
_LOOKS = 20_000  # spin iterations before yielding to other threads


@dataclass(frozen=True, slots=True)
class SplitNoise:
    """Noise on the scores by which the split search compares features, for one tree.

    Its standard deviation is ``strength * sqrt(sum g^2 / sum h)``, on the scale of ``sqrt(sum of G^2 / H)``.  That is
    the expected score of rows whose gradients are independent with mean 0.  ``key`` identifies the tree, and so does
    ``tree_key``, from which samples of features and thresholds are drawn.
    """

    strength: float
    key: np.uint64
    tree_key: int | np.uint64 = 0


_NEWTON, _SILENCE = LeafRules(), SplitNoise(0.0, np.uint64(0))


class Grower:
    """Grows trees on one training set, with the same buffers for every tree.

    Memory besides the bins: ``BYTES_A_ROW`` per row, and the histogram pool.  Of a ``span`` only its rows are read and
    written; trees are those of all rows.
    """

    BYTES_A_ROW: ClassVar[int] = 24  # packed values and row numbers, each twice

    def __init__(
        self,
        bins: BlockedBins,
        parameters: TrainParameters,
        team: Team,
        *,
        monotone: npt.NDArray[np.int8] | None = None,
        categorical: npt.NDArray[np.bool_] | None = None,
        controls: Controls | None = None,
        pool_bytes: int = DEFAULT_POOL_BYTES,
        span: Span | None = None,
    ) -> None:
        self._bins, self._parameters, self._team = bins, parameters, team
        self._span = span or Span(0, bins.n_rows, 0, 0, bins.n_rows)
        n, n_features, size, p = self._span.size, bins.n_features, team.size, parameters
        self._oblivious = p.grow == "oblivious"
        pool = HistogramPool(n_features, p, pool_bytes)
        self._enabled = np.ones(n_features, dtype=np.uint8)
        self._monotone = np.zeros(n_features, dtype=np.int8)
        if monotone is not None:
            self._monotone[: len(monotone)] = monotone
        self._categorical = np.zeros(n_features, dtype=np.uint8)
        if categorical is not None:
            self._categorical[: len(categorical)] = categorical
        self._controls = controls or Controls.none(n_features)
        self._nodes = _nodes_for(p.leaves, pool.n_slots, self._controls)
        self._free = np.arange(pool.n_slots - 1, 0, -1)  # slots of the histogram pool beside the root's
        root, state = np.zeros(1, table.NODE), np.zeros(1, table.STATE)
        for name in ("left", "own_left", "all_left", "next_slot"):
            root[name] = -1
        for name, value in {"n_nodes": 1, "n_leaves": 1, "n_free": len(self._free), "large": -1, "refused": -1}.items():
            state[name] = value
        self._root, self._first_state = root.view(BIN), state.view(BIN)  # bytes are copied fastest
        self._rows = table.Rows(
            rows=np.zeros(n + table.LOOK_AHEAD, dtype=ROW),
            packed=aligned_empty((n,), PACKED),
            spare_rows=aligned_empty((n,), ROW),
            spare_packed=aligned_empty((n,), PACKED),
            lefts=aligned_empty((size * table.LINE,), np.int64),
            sides=aligned_empty((size, BINS_A_FEATURE), np.uint8),
        )
        self._histograms = table.Histograms(
            pool=pool.cells,
            tables=aligned_empty((size, bins.width + 1, BINS_A_FEATURE), PACKED),
            edges=aligned_empty((size, bins.width, BINS_A_FEATURE), PACKED),
            edge_blocks=aligned_empty((size * table.LINE,), np.int64),
        )
        counted_leaves = (p.leaves // 2,) if self._oblivious else ()
        self._search = table.Search(
            gains=np.zeros((2, size)),
            keys=np.zeros((2, size)),
            splits=np.zeros((2, size, 4 + table.SET_WORDS), dtype=np.int64),
            uppers=np.zeros((pool.n_slots, n_features)),
            work=aligned_empty((size, 12, BINS_A_FEATURE), np.float64),
            counts=aligned_empty((size, *counted_leaves, 2, BINS_A_FEATURE), np.int64),
            usable=np.zeros((size, n_features), dtype=np.uint8),
            drawn=np.zeros((size, n_features), dtype=np.uint64),
        )
        no_pairs = np.empty((2, 0, 2), dtype=np.int64)
        self._pairs = table.PairLists(
            pairs=no_pairs[0],
            spare=no_pairs[1],
            chosen=np.zeros((size, n_features), dtype=np.int64),
            keyed=aligned_empty((size, 4, KEYS), np.int64),
        )
        of_values = max(p.lambda_l1, p.max_delta_step, p.path_smooth) > 0.0
        self._directed = bool(self._monotone.any())
        self._constrained = self._directed or of_values
        self._restricted = (
            self._controls.groups.shape[1] > 0 or min(p.feature_fraction_by_level, p.feature_fraction_by_node) < 1.0
        )
        self._has_categories = bool(self._categorical.any())
        self._has_extras = (self._constrained or self._restricted or p.extra_trees or p.random_strength > 0.0) or (
            self._controls.weighed or self._has_categories
        )
        self._usual_rules = table.Rules(
            max_leaves=p.leaves,
            max_depth=p.depth,
            min_rows=p.min_rows_in_leaf,
            policy=GROWTHS.index(p.grow),
            constrained=self._constrained,
            lambda_l1=p.lambda_l1,
            smooth=p.path_smooth,
            shared_rows=_SHARED_ROWS,
            screened=p.ole_features,
            min_gain=float(p.min_gain),
            category_rows=float(p.category_smoothing),
            most_categories=p.categories_in_set,
            group_rows=float(p.min_rows_in_group),
            one_vs_rest=p.one_vs_rest,
            restricted=self._restricted,
            by_level=p.feature_fraction_by_level,
            by_node=p.feature_fraction_by_node,
            random_splits=p.extra_trees,
            weighed=self._controls.weighed,
        )
        # lambda of sums in the split search and of the leaves, and what is added to sums of categories
        self._lambdas = 0.0, 0.0
        self._of_categories = 0.0, 0.0
        self._every_block = np.arange(len(bins.words), dtype=np.int64)
        n_bins = bins.n_bins.astype(np.int64)  # as kernels count: each is compiled for one width only
        self._of_bins = table.Bins(
            bins.words, bins.used_words, self._every_block, n_bins, bins.lanes, bins.digits,
            bins.by_lane, bins.block_starts, self._enabled, self._monotone, self._categorical, self._controls.sources,
            self._controls.groups, self._controls.weights,
        )  # fmt: skip
        self._flags = aligned_empty(((size + 1) * table.LINE,), np.int64)
        self._looks = _LOOKS if team.may_spin else 1
        self._sums = np.zeros(max(table.SIDES, p.leaves), dtype=np.int64)
        self._sent = np.zeros(0, dtype=np.intp)  # cells of a histogram that processes add up
        self._add_up = _AddUp(self._add_up_cells) if self._span.peers is not None else None
        self._peers = 0 if self._add_up is None else cast(self._add_up, c_void_p).value or 0
        self._failure: BaseException | None = None

    def grow(
        self,
        gradients: npt.NDArray[np.float64],
        hessians: npt.NDArray[np.float64],
        scores: npt.NDArray[np.float64],
        *,
        rows: npt.NDArray[np.int32] | None = None,
        features: npt.NDArray[np.uint8] | None = None,
        weights: npt.NDArray[np.float64] | None = None,
        pairs: PairHessians | None = None,
        leaves: LeafRules = _NEWTON,
        noise: SplitNoise = _SILENCE,
    ) -> Tree:
        """Grow one tree from g and h, both (n_rows,), and add its leaves to ``scores`` (n_rows,) in place.

        Leaf values are Newton steps, ``-G / (H + lambda) * learning_rate``.  Without a split that gains, the tree is a
        single leaf.

        Parameters
        ----------
        rows
            Rows that the tree is grown from, ascending; None: all.  The others only get the value of their leaf.
        features
            (n_features,), 1 where a feature may be used; None: all may.
        weights
            (n_rows,) document weights for criterion ``se``, which replace h in the split search.
        pairs
            For criterion ``ole``: pairs of rows, which count only if a leaf separates them.
        leaves
            How leaf values differ from Newton steps over ``rows``.
        noise
            Added to the score by which features are compared; the tree keeps the true gains.  Its ``tree_key`` decides
            all other draws of the tree.
        """
        histogram_scale, leaf_scale = scales_of(gradients, hessians, self._team, self._span)
        searched, fine_scale = hessians, leaf_scale
        if weights is not None:
            searched = weights
            histogram_scale, fine_scale = scales_of(gradients, weights, self._team, self._span)
        p = self._parameters
        self._lambdas = (
            self._scaled(p.lambda_l2, searched),
            self._scaled(p.lambda_l2, hessians if leaves.of_all is None else leaves.of_all[1]),
        )
        self._of_categories = self._scaled(p.category_l2, searched), self._scaled(p.category_smoothing, searched)
        deviation = noise.strength and noise.strength * self._chance(gradients, searched)
        self._choose(features)
        all_rows = self._span.n_rows if rows is None else len(rows)
        rows = None if rows is None else self._span.of_rows(rows)
        n, least = self._start(gradients, searched, histogram_scale, rows, all_rows)
        rules = self._rules(
            least,
            histogram_scale,
            fine_scale,
            leaf_scale,
            noise,
            deviation,
            by_h=weights is None,
            paired=pairs is not None,
        )
        if pairs is not None:
            self._start_pairs(pairs, histogram_scale, rows)
        self._grow_nodes(n, table.Derivatives(gradients, searched, hessians), rules)
        if leaves.of_all is not None:
            gradients, hessians = leaves.of_all
            _, leaf_scale = scales_of(gradients, hessians, self._team, self._span)
        return self._finish(gradients, hessians, leaf_scale, n, rows, scores, leaves, by_h=weights is None)

    def _grow_nodes(self, n: int, derivatives: table.Derivatives, rules: table.Rules) -> None:
        """Split nodes from the root down, with several workers if the tree is large enough."""
        size = self._team.busy(n * len(self._of_bins.blocks), _LEAST_VISITS)

        def work(worker: int) -> None:
            try:
                self._grow_share(worker, size, derivatives, rules)
            except BaseException:
                self._give_up(size)
                raise

        try:
            self._team.each(work, size)
        except BaseException:  # an interrupt can arrive before the first worker starts
            self._give_up(size)
            raise

    def _add_up_cells(self, what: int, count: int) -> int:
        """Add up cells of the pool or of the sums over all processes; kernels call it.

        Return 0 if it failed, now or before.
        """
        if self._failure is not None:
            return 0
        try:
            if what == table.SUMS:
                self._span.add_up(self._sums[:count])
            else:
                histograms = [self._histograms.pool[slot].reshape(-1) for slot in self._sums[:count].tolist()]
                cells = np.concatenate([histogram[self._sent] for histogram in histograms])
                self._span.add_up(cells)
                for histogram, summed in zip(histograms, np.split(cells, count), strict=True):
                    histogram[self._sent] = summed
        except BaseException as error:
            self._failure = error
            return 0
        return 1

    def _give_up(self, size: int) -> None:
        """Release the workers that wait at a barrier."""
        row_kernels.post(self._flags, size * table.LINE, 1)

    def _choose(self, features: npt.NDArray[np.uint8] | None) -> None:
        self._enabled[:] = 1 if features is None else features
        blocks = self._every_block
        if features is not None:
            used = np.unique(self._bins.lanes[self._enabled != 0, row_kernels.LANE] // self._bins.width)
            blocks = used.astype(np.int64)
        if blocks is not self._of_bins.blocks:
            self._of_bins = self._of_bins._replace(blocks=blocks)
        if self._peers:
            of_feature = np.where(self._enabled, self._bins.n_bins, 0)
            self._sent = np.flatnonzero(np.arange(BINS_A_FEATURE) < of_feature[:, None])

    def _start(
        self,
        gradients: npt.NDArray[np.float64],
        hessians: npt.NDArray[np.float64],
        scale: PackingScale,
        rows: npt.NDArray[np.int32] | None,
        all_rows: int,
    ) -> tuple[int, int]:
        """Pack the rows of the tree and create its root.

        Return how many rows are here, and the smallest packed hessian of all.
        """
        order, packed, span = self._rows.rows, self._rows.packed, self._span
        chosen = order[:0] if rows is None else rows

        def begin(first: int, last: int, worker: int) -> None:
            sums[worker] = row_kernels.pack(
                gradients, hessians, scale.gradient, scale.hessian, chosen, span.first, first, last, order, packed
            )

        n = span.size if rows is None else len(rows)
        sums = [(0, int(table.LOW))] * self._team.size
        self._team.share(n, _LEAST_ROWS, begin)
        nodes = self._nodes
        nodes.table.view(BIN)[: len(self._root)] = self._root
        nodes.state.view(BIN)[:] = self._first_state
        root = nodes.table[0]
        root["last"], root["rows"] = n, all_rows
        nodes.ranges[0] = -np.inf, np.inf, 0.0, all_rows
        nodes.groups[0] = ~np.uint64(0)
        nodes.free[: len(self._free)] = self._free
        self._flags[:] = 0
        total, least = span.total_and_least(sum(own for own, _ in sums), min(own for _, own in sums))
        root["total"] = total
        return n, least

    def _rules(
        self, least: int, scale: PackingScale, fine: PackingScale, leaf: PackingScale, noise: SplitNoise,
        deviation: float, *, by_h: bool, paired: bool,
    ) -> table.Rules:  # fmt: skip
        """Return the constraints of the tree; ``by_h``: the split search checks the minimum hessian in packed sums.

        A side of m rows has at least m times ``least``, the smallest packed hessian of a row, so a side with less has
        fewer rows.
        """
        p, total = self._parameters, int(self._nodes.table["total"][0])
        g, h = (total >> 32) / scale.gradient, (total & 0xFFFFFFFF) / scale.hessian + self._lambdas[0]
        step = copysign(max(abs(g) - p.lambda_l1, 0.0), g) / -h if h > 0.0 else 0.0
        most = p.max_delta_step if by_h and p.max_delta_step else np.inf
        self._nodes.ranges[0, 2] = min(max(step, -most), most)  # the root has none above it
        least_h = max(1.0, p.min_hessian_in_leaf * scale.hessian) if by_h else 1.0
        return self._usual_rules._replace(
            max_step=p.max_delta_step if by_h else 0.0,  # sums of weights have another scale than leaf values
            paired=paired,
            by_h=by_h,
            unit_g=1.0 / scale.gradient,
            unit_h=1.0 / scale.hessian,
            lambda_l2=self._lambdas[0],
            category_l2=self._of_categories[0],
            category_smoothing=self._of_categories[1],
            least_h=float(least_h),
            least_side=max(float(least_h), float(p.min_rows_in_leaf * least)),
            fine_g=fine.gradient,
            fine_w=fine.hessian,
            fine_h=leaf.hessian,
            fine_least_h=float(p.min_hessian_in_leaf * leaf.hessian),
            noise=deviation,
            noise_key=noise.key,
            tree_key=np.uint64(noise.tree_key),
        )

    def _scaled(self, added: float, hessians: npt.NDArray[np.float64]) -> float:
        """Return what is ``added`` to sums of these ``hessians`` (n_rows,), or of weights, in the unit of l2_scale."""
        if self._parameters.l2_scale == NONE or not added:
            return float(added)
        return float(added) * total_of(hessians, self._team, self._span) / len(hessians)

    def _chance(self, gradients: npt.NDArray[np.float64], hessians: npt.NDArray[np.float64]) -> float:
        """Return sqrt(sum g^2 / sum h), 0 where there is no h."""
        total = total_of(hessians, self._team, self._span)
        return sqrt(total_of(gradients * gradients, self._team, self._span) / total) if total > 0.0 else 0.0

    def _start_pairs(self, pairs: PairHessians, scale: PackingScale, rows: npt.NDArray[np.int32] | None) -> None:
        """Assign to the root the pairs with both rows in the tree."""
        if len(self._pairs.pairs) < len(pairs.first):
            listed, spare = np.empty((2, len(pairs.first), 2), dtype=np.int64)
            self._pairs = self._pairs._replace(pairs=listed, spare=spare)
        listed = self._pairs.pairs
        n_pairs = pack_pairs(
            pairs.first, pairs.second, pairs.hessian, scale.hessian * PAIR_STEPS, self._drawn(rows), listed
        )
        root = self._nodes.table[0]
        root["pairs_first"], root["pairs_last"], root["inside"] = 0, n_pairs, listed[:n_pairs, 1].sum()

    def _drawn(self, rows: npt.NDArray[np.int32] | None) -> npt.NDArray[np.bool_]:
        """Return which rows belong to the tree, (n_rows,); empty: all."""
        drawn = np.zeros(0 if rows is None else self._bins.n_rows, dtype=np.bool_)
        if rows is not None:
            drawn[rows] = True
        return drawn

    def _grow_share(self, worker: int, size: int, derivatives: table.Derivatives, rules: table.Rules) -> None:
        barrier = table.Barrier(worker, size, self._flags, self._looks)
        crew = table.Crew(worker, size, barrier, self._peers, self._sums)
        shared = crew, self._of_bins, self._rows, derivatives, rules, self._nodes, self._histograms, self._search
        extras = table.YES if self._has_extras or rules.noise or rules.paired else None
        if self._oblivious:
            _growth_kernels.grow_by_level(*shared, extras)
        elif self._peers:
            _batch_kernels.grow_in_batches(*shared)
        else:
            _growth_kernels.grow_by_node(*shared, self._pairs if rules.paired else None, extras)
        if worker == 0 and self._failure is not None:
            raise self._failure

    def _finish(
        self,
        gradients: npt.NDArray[np.float64],
        hessians: npt.NDArray[np.float64],
        scale: PackingScale,
        n: int,
        rows: npt.NDArray[np.int32] | None,
        scores: npt.NDArray[np.float64],
        rules: LeafRules,
        *,
        by_h: bool,
    ) -> Tree:
        """Compute leaf values from exact sums, and add them to the scores."""
        p, order, nodes = self._parameters, self._rows.rows, self._nodes
        n_nodes, n_leaves = int(nodes.state["n_nodes"][0]), 0
        leaves, starts = np.empty(n_nodes, dtype=np.int64), np.empty(n_nodes + 1, dtype=np.int64)
        n_leaves = _leaf_kernels.leaves_in_order(nodes.table, n_nodes, n, nodes.heap, leaves, starts)
        leaves, starts = leaves[:n_leaves], starts[: n_leaves + 1]
        if rules.of_all is not None and rows is not None:
            order, starts = self._by_leaf(leaves)
        sums = self._node_sums(gradients, hessians, scale, order, starts, leaves, n_nodes)
        values = np.empty(n_nodes, dtype=SCORE)
        steps = _leaf_kernels.Steps(
            scale.gradient, scale.hessian, self._lambdas[1], float(p.lambda_l1), float(p.max_delta_step),
            float(p.path_smooth), p.min_rows_in_leaf, float(p.min_hessian_in_leaf), float(p.learning_rate),
            self._oblivious, by_h,
        )  # fmt: skip
        inside = None if rules.inside is None else rules.inside(self._leaf_of_row(order, starts), n_leaves)
        own = None if rules.steps is None else rules.steps(Leaves(order[: starts[-1]], starts, self._team))
        held = (self._monotone, np.empty((n_nodes, 2))) if self._directed else (None, None)
        _leaf_kernels.node_values(nodes.table, nodes.ranges, leaves, sums, steps, inside, own, *held, values)
        leaf_values = values[leaves]
        self._team.share(
            int(starts[-1]),
            _LEAST_ROWS,
            lambda first, last, _: row_kernels.add_leaves(order, starts, leaf_values, first, last, scores),
        )
        tree = self._tree_of(values)
        if rows is not None and rules.of_all is None:
            self._add_to_others(tree, rows, scores)
        return tree

    def _tree_of(self, values: npt.NDArray[np.float64]) -> Tree:
        """Return the tree that has been grown, with these values of its nodes."""
        n = len(values)
        feature, threshold, left, right = np.empty((4, n), dtype=np.int32)
        missing_left, gain, rows = np.empty(n, dtype=BIN), np.empty(n), np.empty(n, dtype=np.int64)
        sets = np.zeros((n, table.SET_WORDS), dtype=np.int64)
        _leaf_kernels.write_tree(
            self._nodes.table, self._nodes.gains, feature, threshold, missing_left, left, right, gain, rows, sets
        )
        return Tree(feature, threshold, missing_left, left, right, values, gain, rows, sets.view(np.uint64))

    def _by_leaf(self, leaves: npt.NDArray[np.intp]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Return all rows that are here in the order of their ``leaves``, and the start of each leaf among them."""
        places = np.zeros(self._nodes.state["n_nodes"][0], dtype=SCORE)
        places[leaves] = np.arange(len(leaves))
        reached = np.zeros(self._bins.n_rows, dtype=SCORE)
        first, last = self._span.first, self._span.last
        add_tree(self._tree_of(places), self._bins, np.arange(first, last, dtype=ROW), reached, self._team)
        # trees have at most 65,536 leaves; 16 bits are sorted in linear time
        leaf_of_row = reached[first:last].astype(np.uint16)
        sizes = np.bincount(leaf_of_row, minlength=len(leaves))
        order = first + np.argsort(leaf_of_row, kind="stable")
        return order.astype(ROW), np.concatenate(([0], np.cumsum(sizes)))

    def _node_sums(
        self,
        gradients: npt.NDArray[np.float64],
        hessians: npt.NDArray[np.float64],
        scale: PackingScale,
        order: npt.NDArray[np.int32],
        starts: npt.NDArray[np.int64],
        leaves: npt.NDArray[np.int64],
        n_nodes: int,
    ) -> npt.NDArray[np.int64]:
        """Return the sums (n_nodes, 2) of gradients and hessians of each node, in units of ``scale``."""
        shares = np.zeros((self._team.size, n_nodes, 2), dtype=np.int64)
        self._team.share(
            int(starts[-1]),
            _LEAST_ROWS,
            lambda first, last, worker: row_kernels.leaf_sums(
                gradients, hessians, scale.gradient, scale.hessian, order, starts, leaves, first, last, shares[worker]
            ),
        )
        sums: npt.NDArray[np.int64] = shares.sum(axis=0) if len(shares) > 1 else shares[0]
        self._span.add_up(sums.reshape(-1))  # in the order of nodes, which all processes share
        _leaf_kernels.add_children(self._nodes.table, sums)
        return sums

    def _leaf_of_row(self, order: npt.NDArray[np.int32], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Return the leaf of every row (n_rows,), -1 for rows that are not in ``order``."""
        leaf_of_row = np.full(self._bins.n_rows, -1, dtype=np.int32)
        leaf_of_row[order[: starts[-1]]] = np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))
        return leaf_of_row

    def _add_to_others(self, tree: Tree, rows: npt.NDArray[np.int32], scores: npt.NDArray[np.float64]) -> None:
        """Add the tree to the scores of all rows that are here except ``rows``."""
        outside = np.ones(self._span.size, dtype=np.bool_)
        outside[rows - self._span.first] = False
        others = self._span.first + np.flatnonzero(outside)
        add_tree(tree, self._bins, others.astype(ROW), scores, self._team)


def _nodes_for(leaves: int, n_slots: int, controls: Controls) -> table.Nodes:
    """Return the table of nodes for trees with ``leaves`` leaves and a pool of ``n_slots`` histograms."""
    most = 2 * leaves - 1
    return table.Nodes(
        table=np.zeros(most, dtype=table.NODE),
        ranges=np.zeros((most, 4)),
        gains=np.zeros(most),
        priority=np.zeros(most),
        heap=np.zeros(most, dtype=np.int64),
        free=np.zeros(n_slots, dtype=np.int64),
        state=np.zeros(1, dtype=table.STATE),
        groups=np.zeros((most, controls.groups.shape[1]), dtype=np.uint64),
        batch=np.zeros(most, dtype=np.int64),
    )
