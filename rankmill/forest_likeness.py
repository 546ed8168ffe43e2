"""Compare two forests bit by bit, and measure their sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.scorer.forest import Forest, NodeSets


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestShape:
    """Numbers of trees, leaves and levels."""

    trees: int
    rounds: int
    leaves: int
    most_leaves: int
    depth: int
    objective: str
    outputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreLikeness:
    """Whether all scores are equal, and how many trees from the first on are equal.

    ``same_start``: scores have the same start value and are computed in the same way.
    """

    same: bool
    same_start: bool
    same_first_trees: int


def shape_of(forest: Forest) -> ForestShape:
    """Return the numbers of trees, leaves and levels."""
    leaves = np.add.reduceat(forest.node_feature < 0, forest.tree_starts[:-1]) if forest.n_trees else np.zeros(0)
    return ForestShape(
        trees=forest.n_trees,
        rounds=forest.n_rounds,
        leaves=int(leaves.sum()),
        most_leaves=int(leaves.max(initial=0)),
        depth=int(depths_of(forest).max(initial=0)),
        objective=forest.objective,
        outputs=forest.n_outputs,
    )


def depths_of(forest: Forest) -> npt.NDArray[np.int64]:
    """Return the depth of each node (n_nodes,)."""
    depth = np.zeros(len(forest.node_feature), dtype=np.int64)
    start = np.repeat(forest.tree_starts[:-1].astype(np.int64), np.diff(forest.tree_starts))
    level = forest.tree_starts[:-1].astype(np.int64)  # all nodes of a level in all trees
    below = 0
    while len(level := level[forest.node_feature[level] >= 0]):
        level = np.concatenate([start[level] + forest.node_left[level], start[level] + forest.node_right[level]])
        below += 1
        depth[level] = below
    return depth


def likeness_of(old: Forest, new: Forest) -> ScoreLikeness:
    """Compare bit by bit.  Different trees that give the same scores are not recognised."""
    start = (old.base_score, old.link, old.n_outputs) == (new.base_score, new.link, new.n_outputs)
    first = same_trees(old, new)
    return ScoreLikeness(same=start and old.n_trees == new.n_trees == first, same_start=start, same_first_trees=first)


def same_trees(old: Forest, new: Forest) -> int:
    """Count the equal trees from the first on: shapes, names of features, thresholds, leaf values and weights, bit by bit.

    Gains, training rows and the order of the features are ignored.
    """
    n_trees = min(old.n_trees, new.n_trees)
    sizes = old.tree_starts[1 : n_trees + 1], new.tree_starts[1 : n_trees + 1]
    n_trees = _leading_true(sizes[0] == sizes[1])
    n_nodes = int(old.tree_starts[n_trees])
    weights = _bits(old.tree_weights[:n_trees]) == _bits(new.tree_weights[:n_trees])
    alike = np.ones(n_nodes, dtype=np.bool_)
    numbers = {name: i for i, name in enumerate(dict.fromkeys((*old.feature_names, *new.feature_names)))}
    for one, other in zip(_parts(old, n_nodes, numbers), _parts(new, n_nodes, numbers), strict=True):
        alike &= one == other
    first_bad = _leading_true(alike)
    of_nodes = int(np.searchsorted(old.tree_starts[: n_trees + 1], first_bad, side="right")) - 1
    return min(of_nodes, _leading_true(weights))


def _parts(forest: Forest, n_nodes: int, numbers: Mapping[str, int]) -> list[npt.NDArray[Any]]:
    feature = forest.node_feature[:n_nodes]
    leaf = feature < 0
    return [
        np.array([*(numbers[name] for name in forest.feature_names), -1])[
            feature
        ],  # -1, for leaves, indexes the last one
        np.where(leaf, 0, forest.thresholds[:n_nodes].view(np.uint32)),
        _digests(forest.node_sets.of_first(n_nodes)),
        forest.node_missing_left[:n_nodes],
        forest.node_left[:n_nodes],
        forest.node_right[:n_nodes],
        np.where(leaf, _bits(forest.node_value[:n_nodes]), 0),
    ]


def _digests(sets: NodeSets) -> npt.NDArray[np.uint64]:
    """Return a number for the set of each node, equal for equal sets; 0 for none."""
    digests = np.zeros(len(sets.starts) - 1, dtype=np.uint64)
    for node in np.flatnonzero(np.diff(sets.starts)).tolist():
        digests[node] = np.frombuffer(sha256(sets.of_node(node).tobytes()).digest()[:8], dtype=np.uint64)[0]
    return digests


def _bits(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(values).view(np.uint64)


def _leading_true(true: npt.NDArray[np.bool_]) -> int:
    return len(true) if true.all() else int(np.argmin(true))
