"""What must hold for the arrays of a forest: the kernels do not check bounds, so everything is checked here.

The checks are vectorised over all nodes of all trees.  Each returns the first fault in words, or None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from scorer.forest import Forest

MAX_FEATURES = 1 << 20
MAX_TREES = 1 << 20
MAX_NODES = 1 << 28
MAX_CUTS_OF_A_FEATURE = 65_534  # a bin code, missing included, must fit 16 bits


def fault(forest: Forest) -> str | None:
    """Return what is wrong with ``forest`` in one line, or None if every index and every value is sound."""
    for check in (_sizes, _header, _cuts, _trees, _nodes, _numbers):
        found = check(forest)
        if found is not None:
            return found
    return None


def _sizes(forest: Forest) -> str | None:
    n_nodes = len(forest.node_feature)
    for name in ("node_cut", "node_missing_left", "node_left", "node_right", "node_value", "node_gain", "node_rows"):
        if len(getattr(forest, name)) != n_nodes:
            return f"{name} has {len(getattr(forest, name))} entries, node_feature has {n_nodes}"
    if len(forest.cut_starts) != len(forest.feature_names) + 1:
        return f"cut_starts has {len(forest.cut_starts)} entries for {len(forest.feature_names)} features"
    if len(forest.tree_starts) != len(forest.tree_weights) + 1:
        return f"tree_starts has {len(forest.tree_starts)} entries for {len(forest.tree_weights)} trees"
    if len(forest.feature_names) > MAX_FEATURES:
        return f"{len(forest.feature_names)} features, at most {MAX_FEATURES} are allowed"
    if len(forest.tree_weights) > MAX_TREES:
        return f"{len(forest.tree_weights)} trees, at most {MAX_TREES} are allowed"
    if n_nodes > MAX_NODES:
        return f"{n_nodes} nodes, at most {MAX_NODES} are allowed"
    return None


def _header(forest: Forest) -> str | None:
    names: Sequence[object] = forest.feature_names
    if not names:
        return "there are no features"
    if not all(isinstance(name, str) and name for name in names):
        return "a feature has no name"
    if len(set(names)) != len(names):
        return "two features have the same name"
    if forest.link != "identity":
        return f"unknown link {forest.link!r}, known: identity"
    if forest.n_outputs != 1:
        return f"{forest.n_outputs} outputs, this version scores models of one output"
    return None


def _starts(name: str, starts: npt.NDArray[np.int32], total: int, least: int) -> str | None:
    """Check that ``starts`` runs from 0 to ``total`` with steps of ``least`` or more."""
    if starts[0] != 0 or starts[-1] != total:
        return f"{name} runs from {starts[0]} to {starts[-1]}, expected 0 to {total}"
    if np.any(np.diff(starts.astype(np.int64)) < least):
        return f"{name} is not ascending"
    return None


def _cuts(forest: Forest) -> str | None:
    found = _starts("cut_starts", forest.cut_starts, len(forest.cuts), 0)
    if found is not None:
        return found
    counts = np.diff(forest.cut_starts)
    if np.any(counts > MAX_CUTS_OF_A_FEATURE):
        return f"a feature has {counts.max()} cuts, at most {MAX_CUTS_OF_A_FEATURE} are allowed"
    if np.any(np.isnan(forest.cuts)):
        return "a cut is not a number"
    # Between two cuts of one feature the values must ascend; pairs that straddle two features are left out.
    ascending = forest.cuts[1:] > forest.cuts[:-1]
    inner = np.ones(max(len(forest.cuts) - 1, 0), dtype=np.bool_)
    borders = forest.cut_starts[1:-1]
    inner[borders[(borders > 0) & (borders < len(forest.cuts))] - 1] = False
    if not np.all(ascending[inner]):
        return "the cuts of a feature are not ascending"
    return None


def _trees(forest: Forest) -> str | None:
    return _starts("tree_starts", forest.tree_starts, len(forest.node_feature), 1)


def _nodes(forest: Forest) -> str | None:
    n_nodes = len(forest.node_feature)
    starts = forest.tree_starts.astype(np.int64)
    sizes = np.diff(starts)
    start = np.repeat(starts[:-1], sizes)
    size = np.repeat(sizes, sizes)
    local = np.arange(n_nodes) - start
    feature = forest.node_feature
    if np.any((feature < -1) | (feature >= len(forest.feature_names))):
        return "a node's feature is out of range"
    leaf = feature == -1
    absent = (forest.node_cut == -1) & (forest.node_left == -1) & (forest.node_right == -1)
    if not np.all(absent[leaf]) or np.any(forest.node_missing_left[leaf]) or np.any(forest.node_gain[leaf]):
        return "a leaf has a cut, children or a gain"
    inner = ~leaf
    if np.any(forest.node_missing_left > 1):
        return "a node's missing_left is neither 0 nor 1"
    counts = np.diff(forest.cut_starts)[feature[inner]]
    cut = forest.node_cut[inner]
    if np.any((cut < 0) | (cut >= counts)):
        return "a node's cut is out of range"
    parents = np.zeros(n_nodes, dtype=np.int64)
    for child in (forest.node_left[inner], forest.node_right[inner]):
        if np.any((child <= local[inner]) | (child >= size[inner])):
            return "a node's child does not come after it in the same tree"
        parents += np.bincount(start[inner] + child, minlength=n_nodes)
    if not np.array_equal(parents, (local > 0).astype(np.int64)):
        return "a node has no parent or more than one"
    return None


def _numbers(forest: Forest) -> str | None:
    if not np.isfinite(forest.base_score):
        return f"the base score is {forest.base_score}"
    for name in ("node_value", "node_gain", "tree_weights"):
        if not np.all(np.isfinite(getattr(forest, name))):
            return f"{name} has a value that is not finite"
    if np.any(forest.node_rows < 0):
        return "node_rows has a negative count"
    return None
