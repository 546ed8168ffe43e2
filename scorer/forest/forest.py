"""The trained model: sums of weighted regression trees as flat, immutable arrays.

``score(x) = base_score + w_1 * tree_1(x) + w_2 * tree_2(x) + ...``, added in this order in float64.  A forest of K
outputs has K such sums, all from ``base_score``: tree t (the first is 0) adds to output ``t % K``.  Its ``link`` makes
one score of them (``rankmill.scorer.forest.links``).  A boosting round is ``trees_a_round`` trees, a multiple of K.

Nodes of one tree are contiguous, the root first, each child after its parent.  At an inner node with feature ``f`` and
cut ``c`` a value goes left if ``x <= cuts[cut_starts[f] + c]``, and right if it is greater; NaN goes left if
``missing_left`` is 1.  A cut may be infinite: ``x <= +inf`` separates present values from missing ones.

The cuts of a categorical feature are its categories (``rankmill.pipeline.bins.categories``), and ``c`` is the number of
a set::

    set_members = [0 2 5 | 1 2 | 0 ..]       set 1 holds the categories cuts[cut_starts[f] + 1] and
    set_starts  = [0       3     5 ..]       cuts[cut_starts[f] + 2]

A value goes left if it is in the set, and right if not; NaN goes left if ``missing_left`` is 1, which training never
makes.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InputError, ModelFormatError
from rankmill.foundation.notebook_html import HtmlTable, ShareCell, card
from rankmill.foundation.options import spelled
from rankmill.foundation.records import JSON, canonical_json
from rankmill.pipeline.bins.categories import category_code, is_number
from rankmill.scorer.forest.links import class_values, link_fault
from rankmill.scorer.models import model_file
from rankmill.scorer.models.model import Model, check_bound
from rankmill.scorer.models.model_file import shortened

NODE = np.int32  # node, cut and tree indices: 2^28 nodes at most
CUT = np.float32  # thresholds: features are float32, so that a comparison is exact
MEMBER = np.uint16  # position of a category among those of its feature
VALUE = np.float64  # leaf values, weights, gains: the bits of a score depend on the order of sums only
COUNT = np.int64  # training rows

ARRAYS: tuple[tuple[str, np.dtype[Any]], ...] = (
    ("cuts", np.dtype("<f4")),
    ("cut_starts", np.dtype("<i4")),
    ("tree_starts", np.dtype("<i4")),
    ("node_feature", np.dtype("<i4")),
    ("node_cut", np.dtype("<i4")),
    ("node_missing_left", np.dtype("u1")),
    ("node_left", np.dtype("<i4")),
    ("node_right", np.dtype("<i4")),
    ("node_value", np.dtype("<f8")),
    ("node_gain", np.dtype("<f8")),
    ("node_rows", np.dtype("<i8")),
    ("tree_weights", np.dtype("<f8")),
)
SETS: tuple[tuple[str, np.dtype[Any]], ...] = (("set_starts", np.dtype("<i4")), ("set_members", np.dtype("<u2")))
"""Arrays that format 3 adds."""

FIRST_ROUND = "first_round"  # key of a forest's info: the rounds of a whole forest that are missing before it
COVER = "cover"
"""Key of a forest's ``info``: what ``node_rows`` holds if not counts of training rows.

"sum_hessian": XGBoost's sums of hessians, in a unit of each tree.
"""

HEADER: dict[str, type] = {
    "base_score": float,
    "feature_names": list,
    "info": dict,
    "link": str,
    "n_outputs": int,
    "objective": str,
    "parameters": dict,
}
"""Keys of the header of format 1; that of 2 also has ``trees_a_round``, and that of 3 ``categories`` as well."""
HEADER_2 = HEADER | {"trees_a_round": int}
HEADERS: dict[int, dict[str, type]] = {1: HEADER, 2: HEADER_2, 3: HEADER_2 | {"categories": dict}}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forest(Model):
    """A trained forest.  Arrays are copied, checked and made read-only; two forests are equal if their bytes are.

    Raises
    ------
    ValueError
        An array has another shape or dtype than stated here, or breaks one of the rules of
        ``rankmill.scorer.models.model_file``.
    """

    feature_names: tuple[str, ...]  # all features of the dataset it was trained on, in order
    cuts: npt.NDArray[
        np.float32
    ]  # (n_cuts,) thresholds or categories, ascending within a feature, feature after feature
    cut_starts: npt.NDArray[np.int32]  # (n_features + 1,)
    tree_starts: npt.NDArray[np.int32]  # (n_trees + 1,)
    node_feature: npt.NDArray[np.int32]  # (n_nodes,) -1 at a leaf
    node_cut: npt.NDArray[np.int32]  # (n_nodes,) index within the feature's cuts, or of a set; -1 at a leaf
    node_missing_left: npt.NDArray[np.uint8]  # (n_nodes,) 1: a missing value goes left; 0 at a leaf
    node_left: npt.NDArray[np.int32]  # (n_nodes,) relative to the tree's start; -1 at a leaf
    node_right: npt.NDArray[np.int32]  # (n_nodes,) relative to the tree's start; -1 at a leaf
    node_value: npt.NDArray[np.float64]  # (n_nodes,) value of a leaf; of an inner node, its value as a leaf
    node_gain: npt.NDArray[np.float64]  # (n_nodes,) split gain; 0 at a leaf
    node_rows: npt.NDArray[np.int64]  # (n_nodes,) training rows that reached the node, or what info[COVER] says
    tree_weights: npt.NDArray[np.float64]  # (n_trees,)
    base_score: float
    objective: str
    link: str = "identity"  # one of rankmill.scorer.forest.links.LINKS
    n_outputs: int = 1
    trees_a_round: int = 0  # 0 stands for n_outputs, and is replaced by it
    set_starts: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(1, NODE))  # (n_sets + 1,)
    set_members: npt.NDArray[np.uint16] = field(default_factory=lambda: np.zeros(0, MEMBER))  # ascending within a set
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The categorical features, with the texts of the categories that are not numbers, in any order."""
    parameters: Mapping[str, JSON] = field(default_factory=dict)
    info: Mapping[str, JSON] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, dtype in ARRAYS + SETS:
            object.__setattr__(self, name, _frozen_copy(name, getattr(self, name), dtype))
        object.__setattr__(self, "feature_names", tuple(self.feature_names))
        object.__setattr__(self, "base_score", float(self.base_score))
        object.__setattr__(self, "n_outputs", operator.index(self.n_outputs))
        object.__setattr__(self, "trees_a_round", operator.index(self.trees_a_round) or self.n_outputs)
        for name in ("parameters", "info", "categories"):
            # Through JSON and back: a private copy, exactly as the file will hold it.
            object.__setattr__(self, name, json.loads(canonical_json(dict(getattr(self, name)))))
        arrays = {name: getattr(self, name) for name, _ in ARRAYS + SETS}
        fault = self._fault() or model_file.array_fault(arrays, len(self.feature_names), self.categorical_features)
        if fault is not None:
            raise ValueError(fault)
        check_bound(self._reach(np.abs(self.node_value)))  # of inner nodes, too, which other formats write as float32

    def _fault(self) -> str | None:
        """Return a fault outside of the arrays, or None."""
        names: Sequence[object] = self.feature_names
        if not names:
            return "there are no features"
        if not all(isinstance(name, str) and name for name in names):
            return "a feature has no name"
        if len(set(names)) != len(names):
            return "two features have the same name"
        for name, texts in self.categories.items():
            if name not in names:
                return f"the categorical feature {name!r} is none of the features"
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                return f"the categories of {name!r} are not a list of texts"
        if not np.isfinite(self.base_score):
            return f"the base score is {self.base_score}"
        for name in ("parameters", "info"):
            if model_file.nesting(getattr(self, name)) > model_file.MAX_NESTING:
                return f"{name} nest deeper than {model_file.MAX_NESTING} levels"
        return link_fault(self.link, self.n_outputs) or model_file.rounds_fault(
            self.n_trees, self.n_outputs, self.trees_a_round
        )

    @property
    def categorical_features(self) -> tuple[int, ...]:
        """Positions in ``feature_names`` of the categorical features, ascending."""
        return tuple(f for f, name in enumerate(self.feature_names) if name in self.categories)

    @property
    def n_trees(self) -> int:
        """Trees in the forest."""
        return len(self.tree_weights)

    @property
    def n_rounds(self) -> int:
        """Boosting rounds, of ``trees_a_round`` trees each."""
        return self.n_trees // self.trees_a_round

    @property
    def is_mean_of_rounds(self) -> bool:
        """Whether it is a random forest, whose trees all weigh 1 / n of n rounds."""
        equal = np.allclose(self.tree_weights, 1.0 / max(1, self.n_rounds), rtol=1e-12, atol=0.0)
        return self.parameters.get("boosting") == "rf" and FIRST_ROUND not in self.info and equal

    @property
    def score_bound(self) -> float:
        """Upper bound of the absolute score of any document: that of its outputs, or the value of the highest grade."""
        highest = 0.0 if self.link == "identity" else float(class_values(self.link, self.n_outputs)[-1])
        return max(self.output_bound, highest)

    @property
    def output_bound(self) -> float:
        """Upper bound of any output: absolute base score plus the greatest absolute leaf value of each tree."""
        return self._reach(np.where(self.node_feature < 0, np.abs(self.node_value), 0.0))

    def _reach(self, sizes: npt.NDArray[np.float64]) -> float:
        """Return the absolute base score plus the greatest of the nodes' ``sizes`` in each tree times its weight."""
        starts = self.tree_starts[:-1]
        with np.errstate(over="ignore"):
            reach = np.abs(self.tree_weights) * (np.maximum.reduceat(sizes, starts) if len(starts) else 0.0)
            return abs(self.base_score) + float(np.sum(reach))

    @property
    def used_features(self) -> tuple[int, ...]:
        """Positions in ``feature_names`` of the features that splits use, ascending."""
        return tuple(int(f) for f in np.unique(self.node_feature[self.node_feature >= 0]))

    @property
    def splits_by_set(self) -> npt.NDArray[np.bool_]:
        """Whether each node (n_nodes,) splits by a set of categories."""
        return np.isin(self.node_feature, self.categorical_features)

    @property
    def thresholds(self) -> npt.NDArray[np.float32]:
        """Threshold of every node (n_nodes,); NaN at a leaf and where a set decides."""
        out = np.full(len(self.node_feature), np.nan, dtype=CUT)
        inner = (self.node_feature >= 0) & ~self.splits_by_set
        out[inner] = self.cuts[self.cut_starts[self.node_feature[inner]] + self.node_cut[inner]]
        return out

    @property
    def node_sets(self) -> NodeSets:
        """The categories that each node sends left; empty where a threshold decides."""
        by_set = np.flatnonzero(self.splits_by_set)
        chosen = self.node_cut[by_set]
        sizes = np.zeros(len(self.node_feature), dtype=np.int64)
        sizes[by_set] = np.diff(self.set_starts)[chosen]
        starts = np.concatenate(([0], np.cumsum(sizes)))
        of_node = np.repeat(np.arange(len(sizes)), sizes)
        first = np.zeros(len(sizes), dtype=np.int64)
        first[by_set] = self.set_starts[chosen]
        at = first[of_node] + np.arange(starts[-1]) - starts[of_node]
        return NodeSets(starts, self.cuts[self.cut_starts[self.node_feature[of_node]] + self.set_members[at]])

    def __repr__(self) -> str:
        return f"<Forest of {self.n_trees:,} trees, {self.objective}, sha256 {self.sha256[:12]}>"

    def _repr_html_(self) -> str:
        """Return a summary and the most important features for a notebook."""
        used = f"{len(self.used_features):,} of {self.n_features:,}"
        facts = {"objective": self.objective, "rounds": f"{self.n_rounds:,}", "trees": f"{self.n_trees:,}"}
        facts |= {"features used": used, "sha256": self.sha256[:12]}
        return card("Forest", facts, [importance_table(self.feature_names, feature_importance(self))])

    def truncated(self, n_rounds: int | None, start_round: int = 0) -> Forest:
        """Return ``n_rounds`` rounds (None: all) from ``start_round`` on as a separate forest.

        It has only the cuts that they use.

        The base score belongs to round 0: with a later ``start_round`` it is 0, so that outputs of the parts of a
        forest add up. The first k rounds of a random forest are their mean, of trees of weight 1 / k, and its parts do
        not add up.

        Raises
        ------
        InputError
            ``start_round`` or ``n_rounds`` is negative, or the forest has fewer rounds.
        """
        first, last = checked_rounds(self, n_rounds, start_round)
        if (first, last) == (0, self.n_trees):
            return self
        nodes = slice(int(self.tree_starts[first]), int(self.tree_starts[last]))
        kept = {name: getattr(self, name)[nodes] for name, _ in ARRAYS if name.startswith("node_")}
        sets = self.node_sets.of_first(nodes.stop).from_node(nodes.start)
        splits = compact_splits(kept["node_feature"], self.thresholds[nodes], self.n_features, sets)
        other = {f.name: getattr(self, f.name) for f in fields(self)}
        arrays = kept | splits | {"categories": used_names(self.categories, self.feature_names, splits)}
        weights, info = self.tree_weights[first:last], dict(self.info)
        if start_round:
            info.pop("encoded_splits", None)  # numbers of nodes, for resuming, which is refused
            info[FIRST_ROUND] = int(str(info.get(FIRST_ROUND, 0))) + start_round
        elif self.is_mean_of_rounds:
            weights = np.full(last, 1.0 / max(1, last // self.trees_a_round))
        arrays |= {
            "tree_starts": self.tree_starts[first : last + 1] - nodes.start,
            "tree_weights": weights,
            "base_score": 0.0 if start_round else self.base_score,
            "info": info,
        }
        return Forest(**(other | arrays))

    def to_bytes(self) -> bytes:
        """Return the bytes of the model file: the same for equal forests, on every machine."""
        number = self._format
        header = {name: getattr(self, name) for name in HEADERS[number]} | {"feature_names": list(self.feature_names)}
        return model_file.encode(number, header, {name: getattr(self, name) for name, _ in _arrays_of(number)})

    @property
    def _format(self) -> int:
        """The lowest format that can express it: 1 has one output and one tree per round, 2 no categories."""
        if self.categories:
            return 3
        return 1 if (self.link, self.n_outputs, self.trees_a_round) == ("identity", 1, 1) else 2

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "model") -> Forest:
        """Read a forest from ``data``; ``where`` names the source in messages.

        Raises
        ------
        ModelFormatError
            Another format number, damaged bytes, or an index or value that no sound model has.
        """
        formats = {number: (types, _arrays_of(number)) for number, types in HEADERS.items()}
        number, header, arrays = model_file.decode(data, where, "a forest", formats)
        try:
            forest = cls(**{**header, **arrays, "feature_names": tuple(header["feature_names"])})
        except (ValueError, TypeError, RecursionError) as error:
            raise ModelFormatError(f"{where}: the model is not valid: {shortened(error)}") from error
        trees_a_round = header.get("trees_a_round", 1)
        if forest._format != number or forest.trees_a_round != trees_a_round:
            raise ModelFormatError(
                f"{where}: {forest.n_outputs} outputs by the link {forest.link} with {trees_a_round} trees a round and"
                f" {len(forest.categories)} categorical features are not written in model format {number}"
            )
        return forest


def checked_rounds(forest: Forest, n_rounds: int | None, start_round: int = 0) -> tuple[int, int]:
    """Return the first and last + 1 tree of ``n_rounds`` rounds from ``start_round`` on.

    ``n_rounds`` None: all. InputError if there are fewer.
    """
    if not 0 <= start_round <= forest.n_rounds:
        raise InputError(
            f"{spelled('start_round')} must be in 0..{forest.n_rounds}, the rounds of this model, got {start_round}"
        )
    most = forest.n_rounds - start_round
    n_rounds = most if n_rounds is None else n_rounds
    if not 0 <= n_rounds <= most:
        after = f" after round {start_round}" if start_round else ""
        raise InputError(f"{spelled('n_rounds')} must be in 0..{most}, the rounds of this model{after}, got {n_rounds}")
    return start_round * forest.trees_a_round, (start_round + n_rounds) * forest.trees_a_round


@dataclass(frozen=True, slots=True)
class NodeSets:
    """The categories that each of some nodes sends left: those of node i are ``codes[starts[i] : starts[i + 1]]``."""

    starts: npt.NDArray[np.int64]  # (n_nodes + 1,)
    codes: npt.NDArray[np.float32]  # ascending within a node

    @classmethod
    def none(cls, n_nodes: int) -> NodeSets:
        """Return the sets of ``n_nodes`` nodes without any."""
        return cls(np.zeros(n_nodes + 1, dtype=np.int64), np.empty(0, dtype=CUT))

    @classmethod
    def joined(cls, parts: Sequence[NodeSets]) -> NodeSets:
        """Return the sets of the nodes of all ``parts``, one after the other."""
        sizes = [np.diff(part.starts) for part in parts]
        starts = np.concatenate(([0], np.cumsum(np.concatenate([np.empty(0, dtype=np.int64), *sizes]))))
        return cls(starts.astype(np.int64), np.concatenate([np.empty(0, dtype=CUT), *(part.codes for part in parts)]))

    def with_sets(self, nodes: npt.NDArray[np.intp], codes: Sequence[npt.NDArray[np.float32]]) -> NodeSets:
        """Return the same with ``codes`` for the ``nodes``, ascending, that have no set yet."""
        sizes = np.diff(self.starts)
        sizes[nodes] = [len(each) for each in codes]
        parts = np.split(self.codes, self.starts[nodes])
        joined = [parts[0], *(part for pair in zip(codes, parts[1:], strict=True) for part in pair)]
        return NodeSets(np.concatenate(([0], np.cumsum(sizes))), np.concatenate(joined))

    def of_first(self, n_nodes: int) -> NodeSets:
        """Return the sets of the first ``n_nodes`` nodes."""
        return NodeSets(self.starts[: n_nodes + 1], self.codes[: self.starts[n_nodes]])

    def from_node(self, node: int) -> NodeSets:
        """Return the sets of the nodes from ``node`` on."""
        return NodeSets(self.starts[node:] - self.starts[node], self.codes[self.starts[node] :])

    def of_node(self, node: int) -> npt.NDArray[np.float32]:
        """Return the categories that ``node`` sends left, ascending."""
        return self.codes[self.starts[node] : self.starts[node + 1]]


def compact_splits(
    node_feature: npt.NDArray[np.int32],
    thresholds: npt.NDArray[np.float32],
    n_features: int,
    sets: NodeSets | None = None,
) -> dict[str, Any]:
    """Collect the thresholds and sets that nodes use into the arrays of a ``Forest`` by name.

    They are cuts, cut_starts, node_cut, set_starts and set_members; equal sets of a feature are stored once, in the
    order of the nodes.

    Parameters
    ----------
    node_feature
        (n_nodes,) feature of each node, -1 at a leaf.
    thresholds
        (n_nodes,) float32 threshold of each node; ignored at leaves, and where there is a set.  -0.0 counts as 0.0.
    n_features
        All features, used or not.
    sets
        The categories that each node sends left; default: none.

    >>> found = compact_splits(np.int32([1, -1, 1, -1, -1]), np.float32([5, 0, 2, 0, 0]), 3)
    >>> found["cuts"].tolist(), found["cut_starts"].tolist(), found["node_cut"].tolist()
    ([2.0, 5.0], [0, 0, 2, 2], [1, -1, 0, -1, -1])
    >>> sets = NodeSets(np.array([0, 2, 2, 2]), np.float32([7, 9]))
    >>> found = compact_splits(np.int32([0, -1, -1]), np.zeros(3, np.float32), 1, sets)
    >>> {name: values.tolist() for name, values in found.items()}
    {'cuts': [7.0, 9.0], 'cut_starts': [0, 2], 'node_cut': [0, -1, -1], 'set_starts': [0, 2], 'set_members': [0, 1]}
    """
    sets = NodeSets.none(len(node_feature)) if sets is None else sets
    sizes = np.diff(sets.starts)
    inner = np.flatnonzero((node_feature >= 0) & (sizes == 0))
    feature = np.concatenate([node_feature[inner], np.repeat(node_feature, sizes)])
    value = np.concatenate([thresholds[inner], sets.codes]).astype(CUT) + CUT(0.0)
    order = np.lexsort((value, feature))
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = (np.diff(feature[order]) != 0) | (value[order][1:] != value[order][:-1])
    cuts = value[order][first]
    cut_starts = np.zeros(n_features + 1, dtype=NODE)
    np.cumsum(np.bincount(feature[order][first], minlength=n_features), out=cut_starts[1:])
    place = np.empty(len(order), dtype=NODE)
    place[order] = np.cumsum(first) - 1
    place -= cut_starts[feature]
    node_cut = np.full(len(node_feature), -1, dtype=NODE)
    node_cut[inner] = place[: len(inner)]
    members = place[len(inner) :].astype(MEMBER)
    numbers: dict[bytes, int] = {}
    for node in np.flatnonzero(sizes).tolist():
        own = members[sets.starts[node] : sets.starts[node + 1]].tobytes()
        node_cut[node] = numbers.setdefault(own, len(numbers))
    stored = [np.frombuffer(own, dtype=MEMBER) for own in numbers]
    return {
        "cuts": cuts,
        "cut_starts": cut_starts,
        "node_cut": node_cut,
        "set_starts": np.cumsum([0, *map(len, stored)]).astype(NODE),
        "set_members": np.concatenate([np.empty(0, dtype=MEMBER), *stored]),
    }


def used_names(
    categories: Mapping[str, Iterable[str]], feature_names: Sequence[str], splits: Mapping[str, Any]
) -> dict[str, list[str]]:
    """Return the names of the categories in the sets of ``splits`` (see `compact_splits`), by categorical feature.

    ``categories`` has the known names of each categorical feature.  Numbers, which are their own names, are left out.
    """
    used = {}
    for f, feature in enumerate(feature_names):
        if feature in categories:
            codes = set(splits["cuts"][splits["cut_starts"][f] : splits["cut_starts"][f + 1]].tolist())
            by_code = {category_code(text): text for text in sorted(categories[feature])}
            used[feature] = [by_code[code] for code in sorted(codes & by_code.keys()) if not is_number(by_code[code])]
    return used


def feature_importance(forest: Forest) -> npt.NDArray[np.float64]:
    """Return the share of each feature (n_features,) in the gains of all splits; all 0 without a split.

    This is Friedman's relative influence (2001, section 8.1; gbm's guide 2.4).  In a forest without gains, splits are
    weighted by the training rows that they divide, and where these are not known either, equally.
    """
    inner = forest.node_feature >= 0
    features = forest.node_feature[inner]
    rows = forest.node_rows[inner].astype(np.float64) * (COVER not in forest.info)  # covers: a unit per tree
    for weights in (forest.node_gain[inner], rows, np.ones(len(features))):
        greatest = weights.max(initial=0.0)
        if greatest > 0.0:  # negative gains, which training never makes, count as 0; scaled so that no sum overflows
            shares = np.ldexp(np.maximum(weights, 0.0), -int(np.frexp(greatest)[1]))
            summed = np.bincount(features, weights=shares, minlength=forest.n_features).astype(np.float64)
            importance: npt.NDArray[np.float64] = summed / summed.sum()
            return importance
    return np.zeros(forest.n_features)


def split_counts(forest: Forest) -> npt.NDArray[np.int64]:
    """Return how many splits each feature (n_features,) has."""
    return np.bincount(forest.node_feature[forest.node_feature >= 0], minlength=forest.n_features)


def split_shares(forest: Forest) -> npt.NDArray[np.float64]:
    """Return the share of each feature (n_features,) in the number of splits; all 0 without a split."""
    shares = split_counts(forest).astype(np.float64)
    shares /= max(1.0, shares.sum())
    return shares


def importance_table(names: Sequence[str], importance: npt.NDArray[np.float64]) -> HtmlTable:
    """Return the features with an ``importance`` (n_features,) above 0, greatest first, for a notebook."""
    order = [f for f in np.argsort(-importance, kind="stable").tolist() if importance[f] > 0.0]
    rows = [(names[f], ShareCell(float(importance[f]))) for f in order]
    return HtmlTable(["feature", "importance (share of gain)"], rows)


def _arrays_of(number: int) -> tuple[tuple[str, np.dtype[Any]], ...]:
    """Return the arrays of a format, in their order."""
    return ARRAYS if number < 3 else ARRAYS + SETS


def _frozen_copy(name: str, given: npt.ArrayLike, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Copy ``given`` as a read-only (n,) array of ``dtype``; ValueError if that would change a value."""
    array = np.asarray(given)
    if array.ndim != 1:
        raise ValueError(f"{name} has {array.ndim} dimensions, expected 1")
    if array.dtype == dtype:
        copy = array.astype(dtype, order="C", copy=True)
    else:
        with np.errstate(all="ignore"):
            copy = array.astype(dtype, order="C")
        if not np.array_equal(copy, array):
            raise ValueError(f"{name} of dtype {array.dtype} does not fit {dtype}")
    copy.setflags(write=False)
    return copy
