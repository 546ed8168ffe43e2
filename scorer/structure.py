"""What must hold for the arrays of a forest: the kernels do not check bounds, so everything is checked here.

The checks are vectorised over all nodes of all trees.  Each returns the first fault in words, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

MAX_FEATURES = 1 << 20
MAX_TREES = 1 << 20
MAX_NODES = 1 << 28
MAX_CUTS_OF_A_FEATURE = 65_534  # a bin code, missing included, must fit 16 bits
MAX_SCORE = 1e300  # of what the leaves of any path can add up to, so that no score overflows into infinity or NaN

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""The arrays of `rankmill.scorer.forest.Forest` by name, each of its dtype."""


def rounds_fault(n_trees: int, n_outputs: int, trees_a_round: int) -> str | None:
    """Return in one line why so many trees are not whole rounds of whole sets of outputs, or None if they are."""
    if not 1 <= trees_a_round <= MAX_TREES or trees_a_round % n_outputs:
        return f"{trees_a_round} trees a round, expected a multiple of the outputs, of which there are {n_outputs}"
    if n_trees % trees_a_round:
        return f"{n_trees} trees, expected whole rounds of {trees_a_round}"
    return None


def fault(arrays: Arrays, n_features: int) -> str | None:
    """Return what is wrong with the ``arrays`` of a forest over ``n_features`` in one line, or None if all is sound."""
    return (
        _sizes(arrays, n_features) or _cuts(arrays) or _trees(arrays) or _nodes(arrays, n_features) or _numbers(arrays)
    )


def _sizes(arrays: Arrays, n_features: int) -> str | None:
    size = {name: len(array) for name, array in arrays.items()}
    n_nodes, n_trees = size["node_feature"], size["tree_weights"]
    for name in ("node_cut", "node_missing_left", "node_left", "node_right", "node_value", "node_gain", "node_rows"):
        if size[name] != n_nodes:
            return f"{name} has {size[name]} entries, node_feature has {n_nodes}"
    if size["cut_starts"] != n_features + 1:
        return f"cut_starts has {size['cut_starts']} entries for {n_features} features"
    if size["tree_starts"] != n_trees + 1:
        return f"tree_starts has {size['tree_starts']} entries for {n_trees} trees"
    if n_features > MAX_FEATURES:
        return f"{n_features} features, at most {MAX_FEATURES} are allowed"
    if n_trees > MAX_TREES:
        return f"{n_trees} trees, at most {MAX_TREES} are allowed"
    if n_nodes > MAX_NODES:
        return f"{n_nodes} nodes, at most {MAX_NODES} are allowed"
    return None


def _starts(name: str, starts: npt.NDArray[np.int32], total: int, least: int) -> str | None:
    """Check that ``starts`` runs from 0 to ``total`` with steps of ``least`` or more."""
    if starts[0] != 0 or starts[-1] != total:
        return f"{name} runs from {starts[0]} to {starts[-1]}, expected 0 to {total}"
    if np.any(np.diff(starts.astype(np.int64)) < least):
        return f"{name} is not ascending"
    return None


def _cuts(arrays: Arrays) -> str | None:
    cuts, starts = arrays["cuts"], arrays["cut_starts"]
    found = _starts("cut_starts", starts, len(cuts), 0)
    if found is not None:
        return found
    counts = np.diff(starts)
    if np.any(counts > MAX_CUTS_OF_A_FEATURE):
        return f"a feature has {counts.max()} cuts, at most {MAX_CUTS_OF_A_FEATURE} are allowed"
    if np.any(np.isnan(cuts)):
        return "a cut is not a number"
    # Between two cuts of one feature the values must ascend; pairs that straddle two features are left out.
    ascending = cuts[1:] > cuts[:-1]
    inner = np.ones(max(len(cuts) - 1, 0), dtype=np.bool_)
    borders = starts[1:-1]
    inner[borders[(borders > 0) & (borders < len(cuts))] - 1] = False
    if not np.all(ascending[inner]):
        return "the cuts of a feature are not ascending"
    return None


def _trees(arrays: Arrays) -> str | None:
    return _starts("tree_starts", arrays["tree_starts"], len(arrays["node_feature"]), 1)


def _nodes(arrays: Arrays, n_features: int) -> str | None:
    feature, node_cut, missing_left = arrays["node_feature"], arrays["node_cut"], arrays["node_missing_left"]
    left, right = arrays["node_left"], arrays["node_right"]
    n_nodes = len(feature)
    starts = arrays["tree_starts"].astype(np.int64)
    sizes = np.diff(starts)
    start = np.repeat(starts[:-1], sizes)
    size = np.repeat(sizes, sizes)
    local = np.arange(n_nodes) - start
    if np.any((feature < -1) | (feature >= n_features)):
        return "a node's feature is out of range"
    leaf = feature == -1
    absent = (node_cut == -1) & (left == -1) & (right == -1)
    if not np.all(absent[leaf]) or np.any(missing_left[leaf]) or np.any(arrays["node_gain"][leaf]):
        return "a leaf has a cut, children or a gain"
    inner = ~leaf
    if np.any(missing_left > 1):
        return "a node's missing_left is neither 0 nor 1"
    counts = np.diff(arrays["cut_starts"])[feature[inner]]
    cut = node_cut[inner]
    if np.any((cut < 0) | (cut >= counts)):
        return "a node's cut is out of range"
    parents = np.zeros(n_nodes, dtype=np.int64)
    for child in (left[inner], right[inner]):
        if np.any((child <= local[inner]) | (child >= size[inner])):
            return "a node's child does not come after it in the same tree"
        parents += np.bincount(start[inner] + child, minlength=n_nodes)
    if not np.array_equal(parents, (local > 0).astype(np.int64)):
        return "a node has no parent or more than one"
    return None


def _numbers(arrays: Arrays) -> str | None:
    for name in ("node_value", "node_gain", "tree_weights"):
        if not np.all(np.isfinite(arrays[name])):
            return f"{name} has a value that is not finite"
    if np.any(arrays["node_rows"] < 0):
        return "node_rows has a negative count"
    return None


def scores_fault(arrays: Arrays, base_score: float) -> str | None:
    """Return in one line by how much the scores of sound ``arrays`` can leave ``MAX_SCORE`` behind, or None."""
    leaves = np.where(arrays["node_feature"] < 0, np.abs(arrays["node_value"]), 0.0)
    starts = arrays["tree_starts"][:-1]
    with np.errstate(over="ignore"):
        reach = np.abs(arrays["tree_weights"]) * (np.maximum.reduceat(leaves, starts) if len(starts) else 0.0)
        total = abs(base_score) + float(np.sum(reach))
    return None if total <= MAX_SCORE else f"a score can reach {total:g}, at most {MAX_SCORE:g} is allowed"
