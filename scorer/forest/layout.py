"""Memory layouts of forests for prediction: cuts for fast search, trees by the number of documents."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rankmill.scorer import _tree_kernels
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.rerank.memory import check_table

WIDTH = _tree_kernels.BLOCK  # batches are padded to it
LANES = _tree_kernels.LANES
SPLITS_A_STEP = 6  # splits of a sweep of few documents that take as long as a step of a walk of LANES documents
MAX_SWEPT_LEAVES = 1024  # of a tree that is swept; larger trees are walked
MAX_LEVELS = 8  # of an oblivious tree whose leaf numbers fit 8 bits
BUCKETS = 512  # per feature: 2 kB, so that those of a few hundred features stay in the second-level cache
SETS_OF_A_GROUP = 8  # sets of one feature whose answers are one byte of a table
MIN_SAVED_STEPS = 2  # buckets that save fewer steps are left out
FLOAT32_MAX = float(np.finfo(np.float32).max)

Codes = npt.NDArray[Any]
Indices = npt.NDArray[np.int32]


class SetTables(NamedTuple):
    """The sets of categories of each tree as `rankmill.scorer._tree_kernels` looks them up.

    They are groups of sets of one feature.

    A group writes the answers of its ``size`` sets to the slots from ``slot`` on.  In
    ``tables[table_starts[g] + code]`` each set has one bit: 0 if the category of ``code`` goes left, and 1 if it goes
    right.
    """

    starts: Indices  # (n_trees + 1,) the groups of each tree
    source: Indices  # (groups,) slot of the feature's codes
    slot: Indices  # (groups,)
    size: Indices  # (groups,) 1 to SETS_OF_A_GROUP
    table_starts: npt.NDArray[np.int64]  # (groups,)
    tables: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class TreeLayout:
    """The first trees of a forest as `rankmill.scorer._tree_kernels` takes them.

    ``wrapped`` (m,) holds the slots whose wrapped codes are also needed; these follow the slots of the features, and
    after them come those for the answers of ``sets``. ``walked`` are the arrays for `walk_trees`, ``swept`` those for
    `sweep_trees`, of levels if ``oblivious``; None if trees are too large.  ``code`` is the dtype of codes and of leaf
    numbers.
    """

    n_slots: int
    wrapped: Indices
    sets: SetTables
    depth: Indices
    code: np.dtype[Any]
    oblivious: bool
    walked: tuple[Any, ...]
    swept: tuple[Any, ...] | None

    @cached_property
    def most_walked(self) -> int:
        """Maximum number of documents that are walked: a sweep costs the same for 1 and for 64."""
        if self.swept is None:
            return sys.maxsize
        splits, steps = int(self.swept[0][-1]), SPLITS_A_STEP * int(self.depth.sum())
        return LANES * ((splits - 1) // steps) if steps else 0

    def add_trees(
        self, codes: Codes, n_rows: int, trees: Indices, at: Codes, scores: npt.NDArray[np.float64], first: int
    ) -> None:
        """Add the values of ``trees``, in order, to ``scores[first:]``.

        They are for the first ``n_rows`` documents of ``codes``.
        """
        if self.swept is None or n_rows <= self.most_walked:
            walk: Any = _tree_kernels.walk_trees
            walk(codes, n_rows, trees, self.sets, *self.walked, scores, first)
            return
        width = -(-n_rows // WIDTH) * WIDTH
        sweep: Any = _tree_kernels.sweep_trees
        sweep(codes, width, n_rows, trees, self.sets, *self.swept, at, scores, first)


def choose_layout(forest: Forest, n_trees: int, used: npt.NDArray[Any]) -> TreeLayout:
    """Lay out the first ``n_trees`` of ``forest``, whose splits use the features ``used``."""
    sizes = np.diff(forest.tree_starts[: n_trees + 1])
    leaves = (sizes + 1) // 2
    swept = int(leaves.max(initial=1)) <= MAX_SWEPT_LEAVES
    # Codes run from 0 (missing) to the number of cuts plus 1, and the wrapped code needs one more.
    most = int(np.diff(forest.cut_starts)[used].max(initial=0)) + 2
    narrow = max(most, int(leaves.max(initial=1)) if swept else 0) <= 256
    return build_layout(forest, n_trees, used, np.dtype(np.uint8 if narrow else np.uint16), swept=swept)


def build_layout(
    forest: Forest, n_trees: int, used: npt.NDArray[Any], code: np.dtype[Any], *, swept: bool
) -> TreeLayout:
    """Do what `choose_layout` does, with codes of dtype ``code``.

    The dtype must be wide enough. ``swept``: the layout is for sweeps.
    """
    n_nodes = int(forest.tree_starts[n_trees])
    sizes = np.diff(forest.tree_starts[: n_trees + 1])
    feature, missing_left = forest.node_feature[:n_nodes], forest.node_missing_left[:n_nodes]
    by_set = forest.splits_by_set[:n_nodes]
    slot_of = np.full((forest.n_features, 2), -1, dtype=np.int32)  # of splits that send missing values right, and left
    slot_of[used, 1] = np.arange(len(used), dtype=np.int32)
    right = np.unique(feature[(feature >= 0) & (missing_left == 0) & ~by_set])
    slot_of[right, 0] = len(used) + np.arange(len(right), dtype=np.int32)
    node_slot = np.where(feature < 0, np.int32(-1), slot_of[feature, missing_left])
    node_bound = np.where(by_set, np.int32(0), forest.node_cut[:n_nodes] + missing_left)
    sets, node_slot[by_set] = _set_tables(
        forest, n_trees, np.flatnonzero(by_set), slot_of[:, 1], len(used) + len(right)
    )
    n_slots = max([len(used) + len(right), int(node_slot.max(initial=-1)) + 1])
    largest = int(sizes.max(initial=1))
    arrays = (
        n_trees, forest.tree_starts, node_slot, node_bound, forest.node_left, forest.node_right, forest.node_value,
        forest.tree_weights,
    )  # fmt: skip
    slot, left = np.empty(n_nodes, dtype=np.int32), np.empty(n_nodes, dtype=np.int32)
    bound, value = np.empty(n_nodes, dtype=code), np.empty(n_nodes, dtype=np.float64)
    depth, buffer = np.empty(n_trees, dtype=np.int32), np.empty(largest, dtype=np.int32)
    _tree_kernels.pack_trees(*arrays, int(np.iinfo(code).max), slot, bound, left, value, depth, buffer)
    walked = (forest.tree_starts, slot, bound, left, value, depth)

    leaves = (sizes + 1) // 2
    split_starts = np.concatenate([[0], np.cumsum(leaves - 1)]).astype(np.int32)
    leaf_starts = np.concatenate([[0], np.cumsum(leaves)]).astype(np.int32)
    wrapped = slot_of[right, 1].copy()
    common = {"n_slots": n_slots, "wrapped": wrapped, "sets": sets, "depth": depth, "code": code, "walked": walked}
    if not swept:
        return TreeLayout(**common, oblivious=False, swept=None)
    n_splits = int(split_starts[-1])
    split_slot, split_bound = np.empty(n_splits, dtype=np.int32), np.empty(n_splits, dtype=code)
    first_leaf, right_leaf = np.empty(n_splits, dtype=code), np.empty(n_splits, dtype=code)
    leaf_value = np.empty(leaf_starts[-1], dtype=np.float64)
    _tree_kernels.number_leaves(
        *arrays, split_starts, leaf_starts, split_slot, split_bound, first_leaf, right_leaf, leaf_value, buffer,
        np.empty_like(buffer),
    )  # fmt: skip
    levels = _levels(split_starts[:-1], leaves, depth, split_slot, split_bound, first_leaf, right_leaf)
    if levels is not None:
        level_starts, chosen = levels
        of_levels = (level_starts, leaf_starts, split_slot[chosen], (split_bound[chosen],), leaf_value)
        return TreeLayout(**common, oblivious=True, swept=of_levels)
    of_splits = (split_starts, leaf_starts, split_slot, (split_bound, first_leaf, right_leaf), leaf_value)
    return TreeLayout(**common, oblivious=False, swept=of_splits)


def _set_tables(
    forest: Forest, n_trees: int, nodes: npt.NDArray[np.int64], source_of: Indices, first_slot: int
) -> tuple[SetTables, Indices]:
    """Lay out the sets by which ``nodes`` of the first ``n_trees`` split; also return the slot of each node's answers.

    ``source_of[f]`` is the slot of the codes of feature f.  Equal sets of a tree share a slot, so the levels of an
    oblivious tree stay recognisable, and all trees use the slots from ``first_slot`` on.
    """
    tree = np.searchsorted(forest.tree_starts, nodes, side="right") - 1
    questions = np.stack([array[nodes] for array in (forest.node_feature, forest.node_cut, forest.node_missing_left)])
    questions = np.concatenate([tree[None], questions]).T
    asked, of_node = np.unique(questions, axis=0, return_inverse=True)
    tree, feature, chosen, missing_left = asked.T
    place = np.arange(len(asked))
    among = place - np.searchsorted(tree, tree)  # within its tree
    of_feature = tree * np.int64(forest.n_features) + feature
    bit = (place - np.searchsorted(of_feature, of_feature)) % SETS_OF_A_GROUP
    firsts = np.flatnonzero(bit == 0)
    entries = np.diff(forest.cut_starts).astype(np.int64)[feature[firsts]] + 2
    check_table(int(entries.sum()), f"the sets of categories of {n_trees:,} trees", "use fewer rounds")
    table_starts = np.cumsum(entries) - entries
    tables = np.full(int(entries.sum()), 255, dtype=np.uint8)
    group = np.cumsum(bit == 0) - 1
    for one in place.tolist():
        members = forest.set_members[forest.set_starts[chosen[one]] : forest.set_starts[chosen[one] + 1]]
        going_left = np.concatenate([np.zeros(missing_left[one], dtype=np.int64), 1 + members.astype(np.int64)])
        tables[table_starts[group[one]] + going_left] &= np.uint8(255 - (1 << bit[one]))
    sets = SetTables(
        np.searchsorted(tree[firsts], np.arange(n_trees + 1)).astype(np.int32),
        source_of[feature[firsts]],
        (first_slot + among[firsts]).astype(np.int32),
        np.bincount(group, minlength=len(firsts)).astype(np.int32),
        table_starts,
        tables,
    )
    return sets, (first_slot + among[of_node.ravel()]).astype(np.int32)


def _levels(
    split_starts: Indices,
    leaves: Indices,
    depth: Indices,
    slot: Indices,
    bound: Codes,
    first_leaf: Codes,
    right_leaf: Codes,
) -> tuple[Indices, npt.NDArray[np.int64]] | None:
    """Return where the levels of each tree start, and one split of each level; None unless every tree is oblivious.

    A tree is oblivious if it is full and all splits of a level are the same.  Splits are stored parents first, so split
    l of a full tree is on level l, on the way to the leftmost leaf.  The distance to ``right_leaf`` gives the level of
    any split.
    """
    if len(leaves) == 0 or depth.max() > MAX_LEVELS or np.any(leaves != 2.0**depth):
        return None
    tree = np.repeat(np.arange(len(leaves)), leaves - 1)
    split = split_starts[tree] + np.arange(len(tree)) - (np.cumsum(leaves - 1) - (leaves - 1))[tree]
    below = (
        right_leaf[split].astype(np.int64) - first_leaf[split]
    )  # leaves on one side of the split: 2 ** (depth - 1 - level)
    level = depth[tree] - 1 - np.round(np.log2(np.maximum(below, 1))).astype(np.int64)
    first = split_starts[tree] + level
    if np.any(slot[split] != slot[first]) or np.any(bound[split] != bound[first]):
        return None
    level_starts = np.concatenate([[0], np.cumsum(depth)]).astype(np.int32)
    of_tree = np.repeat(np.arange(len(depth)), depth)
    chosen = split_starts[of_tree] + np.arange(level_starts[-1]) - level_starts[of_tree]
    return level_starts, chosen.astype(np.int64)


class CutSearch(NamedTuple):
    """Arguments of `rankmill.scorer._kernels.bin_rows`, in its order, for each of the used features."""

    cuts: npt.NDArray[np.float32]
    starts: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]
    buckets: npt.NDArray[np.int32]
    origin: npt.NDArray[np.float32]
    scale: npt.NDArray[np.float32]
    other: npt.NDArray[np.int32]


def search_of(forest: Forest, used: npt.ArrayLike) -> CutSearch:
    """Lay out the cuts of the features ``used`` of ``forest``.

    The bucket of a value is rounded, but is monotone in the value.  So cuts in earlier buckets than that of x are below
    x, and cuts in later ones above, whatever the rounding.  Buckets are left out if they save no steps, for example if
    nearly all cuts are close together.
    """
    features = np.asarray(used, dtype=np.int64)
    n = len(features)
    starts, steps = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    buckets = np.zeros((n, BUCKETS), dtype=np.int32)
    origin, scale = np.zeros(n, dtype=np.float32), np.zeros(n, dtype=np.float32)
    categorical = np.isin(features, forest.categorical_features)
    other = np.where(categorical, np.diff(forest.cut_starts)[features] + 1, 0).astype(np.int32)
    pieces, length = [], 0
    for k, feature in enumerate(features):
        cuts = forest.cuts[forest.cut_starts[feature] : forest.cut_starts[feature + 1]]
        whole = len(cuts).bit_length()
        starts[k], steps[k] = length, whole
        finite = cuts[np.isfinite(cuts)]
        width = float(finite[-1]) - float(finite[0]) if len(finite) > 1 else 0.0
        if 0.0 < width < FLOAT32_MAX and (BUCKETS - 1) / width < FLOAT32_MAX:
            begin, factor = finite[0], np.float32((BUCKETS - 1) / width)
            place = _buckets_of(cuts, begin, factor)
            within = int(np.bincount(place).max()).bit_length()
            if within + MIN_SAVED_STEPS <= whole:
                steps[k], origin[k], scale[k] = within, begin, factor
                buckets[k] = np.searchsorted(place, np.arange(BUCKETS))
        # a search may read as far beyond the last cut as it is long
        pieces.append(np.concatenate([cuts, np.full(2**whole, np.nan, dtype=np.float32)]))
        length += len(pieces[-1])
    all_cuts = np.concatenate([np.empty(0, dtype=np.float32), *pieces])
    return CutSearch(all_cuts, starts, steps, buckets, origin, scale, other)


def _buckets_of(cuts: npt.NDArray[np.float32], origin: np.float32, scale: np.float32) -> npt.NDArray[np.int64]:
    """Return the bucket of each cut, as the kernel finds that of a value."""
    with np.errstate(over="ignore", invalid="ignore"):
        place = (cuts - origin) * scale
    bucket: npt.NDArray[np.int64] = np.clip(place, np.float32(0), np.float32(BUCKETS - 1)).astype(np.int64)
    return bucket
