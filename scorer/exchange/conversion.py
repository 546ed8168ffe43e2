"""Code that all formats share: single trees with weights folded into leaves, and forests of them.

The product of a tree's weight and a leaf is rounded once, as in prediction, so folding changes no score.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import ConversionRefused, InputError, ModelFormatError
from rankmill.foundation.options import spelled
from rankmill.foundation.records import JSON
from rankmill.scorer.forest.forest import COUNT, CUT, NODE, VALUE, Forest, NodeSets, compact_splits, used_names
from rankmill.scorer.models import model_file

CONVERTED_FROM = "converted_from"  # keys of a forest's info
SOURCE_SHA256 = "source_sha256"

FLOAT32_ROUNDING = 2.0**-24  # maximum relative error of a sum or a conversion
FLOAT32_TINY = 2.0**-150  # maximum absolute error near 0
FLOAT32_MAX = float(np.finfo(np.float32).max)

_NODES: Mapping[str, Any] = {
    "feature": NODE, "cut": CUT, "missing_left": np.bool_, "left": NODE, "right": NODE, "value": VALUE, "gain": VALUE,
    "rows": COUNT,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTree:
    """One tree; every array has an entry for each of its n nodes, the root first, children anywhere after it."""

    feature: npt.NDArray[np.int32]  # -1 at a leaf
    cut: npt.NDArray[np.float32]  # x <= cut goes left; of no meaning at a leaf
    missing_left: npt.NDArray[np.bool_]
    left: npt.NDArray[np.int32]  # -1 at a leaf
    right: npt.NDArray[np.int32]
    value: npt.NDArray[np.float64]  # of a leaf; of an inner node, its value as a leaf
    gain: npt.NDArray[np.float64]
    rows: npt.NDArray[np.int64]
    sets: Mapping[int, npt.NDArray[Any]] = field(default_factory=dict)
    """The codes of the categories that a node sends left instead of values up to its cut, by node."""

    @property
    def inner(self) -> npt.NDArray[np.bool_]:
        """Mask of the inner nodes."""
        return self.feature >= 0

    @classmethod
    def stump(cls, value: float) -> PlainTree:
        """Return the tree that adds ``value`` to every score."""
        none = np.full(1, -1, dtype=NODE)
        return cls(
            feature=none, cut=np.full(1, np.nan, dtype=CUT), missing_left=np.zeros(1, dtype=np.bool_), left=none,
            right=none,
            value=np.array([value], dtype=VALUE), gain=np.zeros(1, dtype=VALUE), rows=np.zeros(1, dtype=COUNT),
        )  # fmt: skip

    def breadth_first(self) -> PlainTree:
        """Return the tree level by level, the two children of a node side by side, the left one first.

        Raises
        ------
        ValueError
            A child does not exist, has two parents or is its own ancestor, a node has no parent, or the tree is too
            deep.
        """
        n = len(self.feature)
        order, level = [np.zeros(1, dtype=NODE)], np.zeros(1, dtype=NODE)
        seen = 1
        while len(level := level[self.inner[level]]):
            level = np.stack([self.left[level], self.right[level]], axis=1).ravel()
            if np.any((level < 0) | (level >= n)):
                raise ValueError(f"a node has the child {level[(level < 0) | (level >= n)][0]} of {n} nodes")
            order.append(level)
            seen += len(level)
            if seen > n:
                raise ValueError("a node has two parents, or is its own ancestor")
            if len(order) > model_file.MAX_DEPTH + 1:
                raise ValueError(f"it is deeper than {model_file.MAX_DEPTH} levels")
        found = np.concatenate(order)
        place = np.full(n, -1, dtype=NODE)
        place[found] = np.arange(len(found), dtype=NODE)
        if np.any(place < 0):
            raise ValueError("a node has no parent, or two")
        inner = self.inner[found]
        children = {side: np.where(inner, place[getattr(self, side)[found]], NODE(-1)) for side in ("left", "right")}
        kept = {
            name: getattr(self, name)[found] for name in ("feature", "cut", "missing_left", "value", "gain", "rows")
        }
        return PlainTree(**kept, **children, sets={int(place[node]): codes for node, codes in self.sets.items()})


def plain_trees(forest: Forest) -> Iterator[PlainTree]:
    """Yield the trees in the order in which they are added."""
    thresholds, sets, by_set = forest.thresholds, forest.node_sets, forest.splits_by_set
    for t, weight in enumerate(forest.tree_weights):
        at = slice(int(forest.tree_starts[t]), int(forest.tree_starts[t + 1]))
        yield PlainTree(
            feature=forest.node_feature[at], cut=thresholds[at], missing_left=forest.node_missing_left[at] != 0,
            left=forest.node_left[at], right=forest.node_right[at], value=weight * forest.node_value[at],
            gain=forest.node_gain[at], rows=forest.node_rows[at],
            sets={node: sets.of_node(at.start + node) for node in np.flatnonzero(by_set[at]).tolist()},
        )  # fmt: skip


def with_base(forest: Forest) -> Iterator[PlainTree]:
    """Yield the trees, preceded by the base score as a tree of one leaf, for formats without a base score.

    0 + base is base, so float64 sums keep their bits.  It is left out if it is 0 and there are other trees.
    """
    if forest.base_score != 0.0 or forest.n_trees == 0:
        yield PlainTree.stump(forest.base_score)
    yield from plain_trees(forest)


def forest_of(
    trees: Sequence[PlainTree],
    feature_names: Sequence[str],
    where: str,
    *,
    objective: str,
    info: Mapping[str, JSON],
    base_score: float = 0.0,
    weights: npt.NDArray[np.float64] | None = None,
    trees_a_round: int = 1,
    categories: Mapping[str, Sequence[str]] | None = None,
) -> Forest:
    """Build the forest of ``trees``, whose weights are 1 by default.

    ``categories`` has the known texts of each categorical feature.

    Raises
    ------
    ModelFormatError
        The trees are malformed, or the forest is invalid; the message begins with ``where``.
    ConversionRefused
        A feature has more thresholds than a forest can have.
    """
    parts = []
    for number, tree in enumerate(trees):
        try:
            parts.append(tree.breadth_first())
        except ValueError as error:
            raise ModelFormatError(f"{where}: tree {number} is invalid: {error}") from error
    joined: dict[str, npt.NDArray[Any]] = {
        name: np.concatenate([getattr(part, name) for part in parts] or [np.empty(0, dtype=dtype)]).astype(
            dtype, copy=False
        )
        for name, dtype in _NODES.items()
    }
    inner = joined["feature"] >= 0
    if np.any(joined["feature"] >= len(feature_names)):
        raise ModelFormatError(
            f"{where}: a node uses feature {joined['feature'].max()}, but there are only {len(feature_names)} "
            "(counted from 0)"
        )
    starts = np.cumsum([0, *(len(part.feature) for part in parts)])
    of_node = {
        start + node: codes
        for start, part in zip(starts.tolist(), parts, strict=False)
        for node, codes in part.sets.items()
    }
    by_set = np.zeros(len(inner), dtype=np.bool_)
    by_set[list(of_node)] = True
    if np.any(np.isnan(joined["cut"][inner & ~by_set])):
        raise ModelFormatError(f"{where}: a threshold is not a number")
    if any(len(codes) == 0 for codes in of_node.values()):
        raise ModelFormatError(f"{where}: a split by a set of categories has none")
    known = {feature_names[f]: () for f in np.unique(joined["feature"][by_set]).tolist()} | dict(categories or {})
    of_sets = np.isin(joined["feature"], [f for f, name in enumerate(feature_names) if name in known])
    if np.any(inner & of_sets & ~by_set):
        name = feature_names[joined["feature"][np.argmax(inner & of_sets & ~by_set)]]
        raise ModelFormatError(
            f"{where}: {name!r} has splits by thresholds and by sets of categories, expected one kind"
        )
    sets = NodeSets(
        np.concatenate([[0], np.cumsum([len(of_node.get(node, ())) for node in range(len(inner))])]).astype(np.int64),
        np.concatenate([np.empty(0, dtype=CUT), *(np.sort(codes) for _, codes in sorted(of_node.items()))]),
    )
    splits = compact_splits(joined["feature"], joined["cut"], len(feature_names), sets)
    counts = np.diff(splits["cut_starts"])
    if counts.max(initial=0) > model_file.MAX_CUTS_OF_A_FEATURE:
        raise ConversionRefused(
            f"{where}: its splits on {feature_names[int(counts.argmax())]!r} have {counts.max():,} different "
            "thresholds, the maximum is "
            f"{model_file.MAX_CUTS_OF_A_FEATURE:,} per feature; use fewer rounds, or train with fewer bins"
        )
    gain = np.where(inner & np.isfinite(joined["gain"]), joined["gain"], 0.0)
    try:
        return Forest(
            feature_names=tuple(feature_names), **splits,
            tree_starts=starts.astype(NODE), categories=used_names(known, feature_names, splits),
            node_feature=joined["feature"], node_missing_left=(inner & joined["missing_left"]).astype(np.uint8),
            node_left=joined["left"], node_right=joined["right"], node_value=joined["value"], node_gain=gain,
            node_rows=np.maximum(joined["rows"], 0),
            tree_weights=np.ones(len(parts)) if weights is None else weights,
            base_score=base_score, objective=objective, trees_a_round=trees_a_round, info=info,
        )  # fmt: skip
    except ValueError as error:
        raise ModelFormatError(f"{where}: the model is invalid: {error}") from error


def missing_as_zero(forest: Forest) -> Forest:
    """Return the forest with missing values sent where 0 goes."""
    return replace(forest, node_missing_left=_zero_goes_left(forest).astype(np.uint8))


def takes_missing_as_zero(forest: Forest) -> bool:
    """Return whether every node sends missing values where it sends 0."""
    return bool(np.array_equal(forest.node_missing_left != 0, _zero_goes_left(forest)))


def _zero_goes_left(forest: Forest) -> npt.NDArray[np.bool_]:
    sets = forest.node_sets
    of_set = np.repeat(np.arange(len(forest.node_feature)), np.diff(sets.starts))
    with np.errstate(invalid="ignore"):
        left: npt.NDArray[np.bool_] = forest.thresholds >= 0.0  # NaN at leaves and sets: no
    left[of_set[sets.codes == 0.0]] = True
    return left


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignForest:
    """A forest read from the file of another tool."""

    forest: Forest
    notes: tuple[str, ...] = ()
    """Remarks for the user, one line each."""
    best_rounds: int | None = None
    """Best number of rounds by early stopping, if the model has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedModel:
    """A model in the format of another tool."""

    data: bytes
    exactness: str
    """How its scores compare with ours, in words."""
    bound: float = 0.0
    """Maximum difference between them."""
    notes: tuple[str, ...] = ()
    """Further remarks for the user, one line each."""


def provenance(tool: str, data: bytes) -> Mapping[str, str]:
    """Return the entries of the forest's ``info`` about the file that it was read from."""
    return {CONVERTED_FROM: tool, SOURCE_SHA256: hashlib.sha256(data).hexdigest()}


def text_of(data: bytes, where: str, what: str) -> str:
    """Decode ``data``; InputError if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: expected {what}, found bytes that are not UTF-8 at position {error.start}"
        ) from error


def float32_sums(forest: Forest) -> float:
    """Return a bound of the difference between ours and float32 sums of float32 leaves, in any order.

    The n terms are rounded, then added; each passes at most n roundings of relative error u = 2^-24.  So the sum is off
    by at most ``n u / (1 - n u)`` times the sum of the absolute terms (Higham, Accuracy and Stability of Numerical
    Algorithms, section 4.2).  The terms are the trees, the base score, and one more for a sum that starts at 0.
    """
    n = forest.n_trees + 2
    share = n * FLOAT32_ROUNDING
    return share / (1.0 - share) * forest.output_bound + n * FLOAT32_TINY


def float32_exactness(forest: Forest, target: str) -> str:
    """Return in words how float32 sums compare with ours; ConversionRefused if they could overflow."""
    if forest.output_bound > FLOAT32_MAX / 2.0:
        raise ConversionRefused(
            f"{target} adds in float32, and scores of this model reach {forest.output_bound:g}; convert it --to "
            "lightgbm"
        )
    return f"sums in float32: within {float32_sums(forest):.2g} of the scores here, so near ties may swap"


def need_one_output(forest: Forest, target: str) -> None:
    """Refuse a forest of several outputs."""
    if forest.link != "identity":
        raise ConversionRefused(
            f"{target} cannot combine {forest.n_outputs} outputs into one score (the link {forest.link} of "
            f"{forest.objective}); convert it --to onnx, or train an objective of one output"
        )


def need_names_without(forest: Forest, target: str, forbidden: str, *, blanks: bool = False) -> None:
    """Refuse names of features that contain one of the ``forbidden`` characters, or ``blanks``."""
    for name in forest.feature_names:
        if any(sign in forbidden or (blanks and sign.isspace()) for sign in name):
            raise ConversionRefused(
                f"{target} takes {'no blanks and ' if blanks else ''}none of {forbidden} in feature names, found"
                f" {name!r}; rename them with {spelled('features')}"
            )


def shortest32(values: npt.NDArray[np.floating]) -> list[float]:
    """Return ``values`` rounded to float32, as floats whose repr is the shortest decimal of that float32.

    Readers of float32 get the same bits back from at most nine digits.

    >>> shortest32(np.array([0.1, 1 / 3]))
    [0.1, 0.33333334]
    """
    with np.errstate(over="ignore"):
        return [float(str(value)) for value in np.asarray(values).astype(np.float32)]


def java(value: float) -> str:
    """Return ``value`` in Java's notation."""
    return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, str(value))
