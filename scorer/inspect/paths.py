"""A forest as the set of its paths from root to leaf, for sums over leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.threads import results_in_order
from rankmill.pipeline.bins.categories import category_code, code_name
from rankmill.scorer.forest.forest import COVER, Forest
from rankmill.scorer.forest.predict import ForestPredictor
from rankmill.scorer.inspect import _kernels
from rankmill.scorer.rerank.memory import check_table

TILE = _kernels.TILE
ELEMENT_BYTES = 33  # of an element of a path: see Conditions, and its share
OTHER = "other"  # stands for the categories that no split knows

Codes = npt.NDArray[np.uint16]


class Conditions(NamedTuple):
    """The elements of all paths, for the kernels.

    Those from ``starts[p]`` to ``starts[p + 1] - 1`` belong to path p.
    """

    starts: npt.NDArray[np.int32]  # (n_paths + 1,)
    slot: npt.NDArray[np.int32]  # (n_elements,) the feature, as an index into Paths.features
    low: npt.NDArray[np.int32]  # (n_elements,) lowest code that follows the path
    high: npt.NDArray[np.int32]  # (n_elements,) highest code that follows the path
    missing: npt.NDArray[np.uint8]  # (n_elements,) 1 if a missing value follows the path
    table: npt.NDArray[np.int64]  # (n_elements,) start in allowed if the feature is categorical, else -1
    allowed: npt.NDArray[np.uint8]  # 1 for each code that follows the path


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Every path from a root to a leaf, its conditions gathered by feature; see `rankmill.scorer.inspect._kernels`."""

    forest: Forest
    features: tuple[int, ...]  # positions in forest.feature_names of the used features, ascending
    conditions: Conditions
    share: npt.NDArray[np.float64]  # (n_elements,) share of the feature's training rows on the path
    value: npt.NDArray[np.float64]  # (n_paths,) contribution of the leaf: the tree's weight times the leaf's value
    output: npt.NDArray[np.int32]  # (n_paths,) the output it is added to
    tree: npt.NDArray[np.int32]  # (n_paths,) the tree, from 0
    leaf: npt.NDArray[np.int32]  # (n_paths,) the leaf, as a node of the forest

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the used features, by slot."""
        return tuple(self.forest.feature_names[f] for f in self.features)

    @property
    def n_paths(self) -> int:
        """Number of paths, one for each leaf."""
        return len(self.value)

    def cuts(self, slot: int) -> npt.NDArray[np.float32]:
        """Return the thresholds of a feature, ascending: code c >= 1 holds ``cuts[c - 2] < x <= cuts[c - 1]``.

        Of a categorical one, its categories: code c >= 1 holds ``x == cuts[c - 1]``, and the last code all others.
        """
        feature = self.features[slot]
        first, last = self.forest.cut_starts[feature : feature + 2]
        return self.forest.cuts[first:last]

    def category_names(self, slot: int) -> dict[float, str] | None:
        """Return the text of each category in the splits of a feature by its code.

        Texts are sorted, numbers first.

        None if the feature is not categorical.
        """
        name = self.feature_names[slot]
        if name not in self.forest.categories:
            return None
        texts = {category_code(text): text for text in self.forest.categories[name]}
        codes = sorted(self.cuts(slot).tolist(), key=lambda code: (code in texts, texts.get(code, ""), code))
        return {code: code_name(code, texts) for code in codes}

    def value_names(self, slot: int, x: npt.NDArray[np.floating]) -> list[str] | None:
        """Return the text of each category in ``x``, "missing" or "other"; None if the feature is not categorical."""
        names = self.category_names(slot)
        return (
            None if names is None else ["missing" if np.isnan(code) else names.get(code, OTHER) for code in x.tolist()]
        )

    def slot_of(self, name: str) -> int | None:
        """Return the slot of the feature ``name``, None if the forest has it but never uses it.

        Raises
        ------
        InputError
            The forest has no such feature.
        """
        if name not in self.forest.feature_names:
            raise InputError.unknown("feature", name, self.forest.feature_names)
        feature = self.forest.feature_names.index(name)
        return self.features.index(feature) if feature in self.features else None

    def asked_for(self, values: npt.ArrayLike) -> npt.NDArray[np.floating]:
        """Return the features that the forest uses, (n, n_slots).

        ``values`` is (n, n_features), all features of the forest in its order, or these features already; NaN is
        missing.

        Raises
        ------
        ValueError
            ``values`` is not a table of floats, or has another width.
        """
        table = np.asarray(values)
        if table.ndim != 2 or table.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise ValueError(f"values is a {table.dtype} array of shape {table.shape}, expected a table of floats")
        if table.shape[1] == self.forest.n_features:
            return table[:, list(self.features)]
        if table.shape[1] == len(self.features):
            return table
        raise ValueError(f"values has {table.shape[1]} columns, the model has {self.forest.n_features} features")

    def codes(self, values: npt.ArrayLike) -> Codes:
        """Find the code of every value, (n, n_slots) uint16, row-major; takes and raises what `asked_for` does.

        float64 is rounded to float32.
        """
        table = self.asked_for(values)
        out = np.empty((len(table), max(len(self.features), 1)), dtype=np.uint16)
        for slot, column in enumerate(table.T):
            with np.errstate(over="ignore"):  # a value beyond float32 becomes infinite, which has a code
                out[:, slot] = self.codes_of(slot, np.ascontiguousarray(column, dtype=np.float32))
        return out

    def scores(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the scores (n,) of documents; takes and raises what `asked_for` does."""
        return ForestPredictor(self.forest).scores(self.asked_for(values), columns=np.arange(len(self.features)))

    def codes_of(self, slot: int, x: npt.NDArray[np.float32]) -> Codes:
        """Return the codes of values of one feature, as `codes` does."""
        cuts = self.cuts(slot)
        below = np.searchsorted(cuts, x, side="left")
        if self.features[slot] in self.forest.categorical_features:
            below = np.where(cuts[np.minimum(below, len(cuts) - 1)] == x, below, len(cuts))
        codes: Codes = np.where(np.isnan(x), 0, below + 1).astype(np.uint16)
        return codes

    def leaf_finder(self) -> Callable[[npt.ArrayLike], npt.NDArray[np.int32]]:
        """Return a function that gives the path of each document in each tree, (n, n_trees).

        It takes what `asked_for` does.
        """
        predictor, columns = ForestPredictor(self.forest), np.arange(len(self.features))
        path_of = np.zeros(len(self.forest.node_feature), dtype=np.int32)
        path_of[self.leaf] = np.arange(self.n_paths)
        roots = self.forest.tree_starts[:-1]
        return lambda values: path_of[roots + predictor.leaves(self.asked_for(values), columns=columns)]

    def holding(self, slot: int) -> npt.NDArray[np.bool_]:
        """Return a mask (n_paths,) of the paths that use a feature."""
        found = np.zeros(self.n_paths, dtype=np.bool_)
        elements = np.flatnonzero(self.conditions.slot == slot)
        found[np.searchsorted(self.conditions.starts, elements, side="right") - 1] = True
        return found

    def reach(self, *known: int) -> npt.NDArray[np.float64]:
        """Return (n_paths,) the share of the training rows that follow each path.

        The features of the slots ``known`` are ignored.
        """
        of_path = np.repeat(np.arange(self.n_paths), np.diff(self.conditions.starts))
        out = np.ones(self.n_paths)
        np.multiply.at(out, of_path, np.where(np.isin(self.conditions.slot, known), 1.0, self.share))
        return out


def leaf_paths(forest: Forest | Paths, *, n_rounds: int | None = None) -> Paths:
    """Lay out the paths of ``forest``, or of its first ``n_rounds`` rounds.

    They are in the order of trees, then of nodes.

    A split that no training row reached divides them evenly.  A `Paths` is returned unchanged.

    Raises
    ------
    InputError
        ``n_rounds`` is more than the forest has, or the paths need more than
        `rankmill.scorer.rerank.memory.MOST_AT_ONCE` bytes.
    """
    if isinstance(forest, Paths):
        return forest
    forest = forest if n_rounds is None else forest.truncated(n_rounds)
    n_nodes = len(forest.node_feature)
    features = forest.used_features
    slot_of = np.full(forest.n_features, -1, dtype=np.int32)
    slot_of[list(features)] = np.arange(len(features), dtype=np.int32)
    n_codes = np.where(forest.splits_by_set, np.diff(forest.cut_starts)[forest.node_feature] + 2, 0).astype(np.int64)
    parent, depth = np.empty(n_nodes, dtype=np.int32), np.empty(n_nodes, dtype=np.int32)
    above = np.empty(n_nodes, dtype=np.int64)
    _kernels.find_parents(forest.tree_starts, forest.node_left, forest.node_right, n_codes, parent, depth, above)
    leaves = np.flatnonzero(forest.node_feature < 0).astype(np.int32)
    tree = np.searchsorted(forest.tree_starts, leaves, side="right") - 1
    most, most_codes = _most_elements(forest, tree, depth[leaves], above[leaves])
    check_table(
        ELEMENT_BYTES * most + most_codes,
        f"the paths to the {len(leaves):,} leaves of this model",
        f"use fewer rounds ({spelled('n_rounds')}), or train with {spelled('max_depth')}",
    )
    starts = np.zeros(len(leaves) + 1, dtype=np.int32)
    slot, low, high = (np.empty(most, dtype=np.int32) for _ in range(3))
    missing, share = np.empty(most, dtype=np.uint8), np.empty(most, dtype=np.float64)
    table, allowed = np.empty(most, dtype=np.int64), np.empty(most_codes, dtype=np.uint8)
    filled, used = _kernels.gather_paths(
        leaves, forest.tree_starts[tree], parent, slot_of, forest.node_feature, forest.node_cut,
        forest.node_missing_left, forest.node_left, forest.node_right, forest.node_rows, n_codes, forest.set_starts,
        forest.set_members, starts, slot, low, high, missing, table, allowed, share,
    )  # fmt: skip
    return Paths(
        forest=forest,
        features=features,
        conditions=Conditions(
            starts,
            slot[:filled].copy(),
            low[:filled].copy(),
            high[:filled].copy(),
            missing[:filled].copy(),
            table[:filled].copy(),
            allowed[:used].copy(),
        ),
        share=share[:filled].copy(),
        value=forest.tree_weights[tree] * forest.node_value[leaves],
        output=(tree % forest.n_outputs).astype(np.int32),
        tree=tree.astype(np.int32),
        leaf=leaves,
    )


def _most_elements(
    forest: Forest,
    tree: npt.NDArray[np.int64],
    depth: npt.NDArray[np.int32],
    above: npt.NDArray[np.int64],
) -> tuple[int, int]:
    """Return upper bounds of the elements of all paths and of the codes of their categories.

    ``tree``, ``depth`` and ``above`` (sizes of the categorical features at the nodes above) are those of each leaf.  A
    path has one element for each feature, at most as many as its tree uses.
    """
    inner = np.flatnonzero(forest.node_feature >= 0)
    of_node = np.searchsorted(forest.tree_starts, inner, side="right") - 1
    used = np.unique(of_node * np.int64(forest.n_features) + forest.node_feature[inner])
    trees, features = np.divmod(used, forest.n_features)
    n_codes = np.zeros(forest.n_features)
    n_codes[list(forest.categorical_features)] = np.diff(forest.cut_starts)[list(forest.categorical_features)] + 2
    n_used = np.bincount(trees, minlength=forest.n_trees)
    codes = np.bincount(trees, n_codes[features], minlength=forest.n_trees).astype(np.int64)
    elements = np.minimum(depth, n_used[tree]).sum(dtype=np.int64)
    return int(elements), int(np.minimum(above, codes[tree]).sum(dtype=np.int64))


def require_rows(paths: Paths, cure: str, *, or_cover: bool = False) -> None:
    """Raise InputError unless the forest has counts of training rows in every tree with a split.

    ``cure`` ends the message; ``or_cover`` also accepts sums of hessians.
    """
    forest = paths.forest
    if COVER in forest.info and not or_cover:
        raise InputError(
            f"the model, read from XGBoost, has sums of hessians ({forest.info[COVER]}), but this needs counts of "
            f"training rows; {cure}"
        )
    roots = forest.tree_starts[:-1]
    bare = np.flatnonzero((forest.node_feature[roots] >= 0) & (forest.node_rows[roots] == 0))
    if len(bare):
        raise InputError(
            f"tree {bare[0] + 1} of the model does not record how many training rows reached its nodes, which are the "
            f"weights here; {cure}"
        )


def in_spans(n_rows: int, n_threads: int, work: Callable[[int, int, int], None]) -> None:
    """Run ``work(thread, first, last)`` over tiles of ``TILE`` rows, divided among ``n_threads``."""
    n_tiles = -(-n_rows // TILE)
    parts = max(1, min(n_threads, n_tiles))

    def span(part: int) -> None:
        for tile in range(n_tiles * part // parts, n_tiles * (part + 1) // parts):
            work(part, tile * TILE, min(n_rows, (tile + 1) * TILE))

    for _ in results_in_order(range(parts), span, parts, parts):
        pass
