"""LightGBM's text model, version 4, written and read.

LightGBM compares float64 ``x <= threshold``, left if so, and adds leaves in float64 tree by tree from 0, so that its
scores have the bits of ours.  In ``decision_type`` bit 0 is a categorical split, and bit 1 sends missing values left.
Bits 2 and 3 say what is missing: nothing (0; NaN counts as 0), zeros and NaN (1), or NaN (2).  A categorical split has
the number of its set instead of a threshold: bits ``cat_boundaries[set]`` and on of ``cat_threshold``, 32 in each
number.  The categories in the set go left, all other values and NaN right; fractions are cut off first.  Its
``predict`` treats every value within 1e-35 of 0 as 0 before it walks a tree (``kZeroThreshold``); reading reproduces
that, writing cannot.  Children >= 0 are inner nodes, a child c < 0 is leaf ~c.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import ConversionRefused, InputError, ModelFormatError
from rankmill.scorer.exchange.categories import CategoryNumbers, category_numbers, have_numbers, text_notes, with_codes
from rankmill.scorer.exchange.conversion import (
    ConvertedModel,
    ForeignForest,
    PlainTree,
    forest_of,
    need_names_without,
    need_one_output,
    provenance,
    text_of,
    with_base,
)
from rankmill.scorer.forest.forest import CUT, NODE, Forest, split_counts
from rankmill.scorer.models.model_file import shortened

TARGET = "LightGBM"
ZERO = np.float32(1e-35)  # LightGBM's kZeroThreshold
CATEGORICAL, DEFAULT_LEFT, MISSING_SHIFT = 1, 2, 2
MISSING_NONE, MISSING_ZERO, MISSING_NAN = 0, 1, 2
FORBIDDEN_IN_NAMES = '",:[]{}'  # and blanks: LightGBM refuses these in the names of a Dataset

IDENTITY = frozenset(
    ("lambdarank", "rank_xendcg", "regression", "regression_l1", "huber", "fair", "quantile", "mape", "custom", "none")
)
MONOTONE = frozenset(("binary", "cross_entropy", "cross_entropy_lambda", "poisson", "gamma", "tweedie"))
VERSIONS = ("v2", "v3", "v4")
MOST_WAYS = 10_000  # of assigning lists of categories to features
FRACTIONS = "LightGBM cuts off the fraction of a category: 1.5 is 1 there, and no known category here"


def write(forest: Forest, name: str) -> ConvertedModel:  # noqa: ARG001 (every format is written by the same call)
    """Return ``forest`` as a text model.

    Raises
    ------
    ConversionRefused
        It has several outputs, sends missing categories to others, or a feature has a name that LightGBM cannot hold.
    """
    need_one_output(forest, TARGET)
    need_names_without(forest, TARGET, FORBIDDEN_IN_NAMES, blanks=True)
    if np.any(forest.node_missing_left[forest.splits_by_set]):
        raise ConversionRefused(
            f"{TARGET} sends missing categories right, but this model sends them left at some nodes; convert it --to "
            "xgboost or onnx"
        )
    known = category_numbers(forest)
    of_pandas = [f for f, own in known.items() if own.texts or not own.numbers]
    trees = [_tree_text(number, tree, known) for number, tree in enumerate(with_base(forest))]
    used = set(forest.used_features)
    splits = split_counts(forest)
    most_first = sorted(used, key=lambda f: (-int(splits[f]), f))
    head = [
        "tree",
        "version=v4",
        "num_class=1",
        "num_tree_per_iteration=1",
        "label_index=0",
        f"max_feature_idx={forest.n_features - 1}",
        "objective=lambdarank",
        "feature_names=" + " ".join(forest.feature_names),
        "feature_infos=" + " ".join(_info(known.get(f)) if f in used else "none" for f in range(forest.n_features)),
        "tree_sizes=" + " ".join(str(len(tree)) for tree in trees),
        "",
        "",
    ]
    tail = [
        "end of trees",
        "",
        "feature_importances:",
        *(f"{forest.feature_names[f]}={splits[f]}" for f in most_first),
        "",
        "parameters:",
        "[boosting: gbdt]",
        "[objective: lambdarank]",
        *([f"[categorical_feature: {','.join(map(str, of_pandas or known))}]"] if known else []),
        "end of parameters",
        "",
        "pandas_categorical:" + (json.dumps([known[f].texts for f in of_pandas]) if known else "null"),
        "",
    ]
    return ConvertedModel(
        data=("\n".join(head) + "".join(trees) + "\n".join(tail)).encode(),
        exactness="the same float64 bits as here: sums in float64, in the order of the trees",
        notes=tuple(_notes(forest)),
    )


def _notes(forest: Forest) -> Iterator[str]:
    if forest.base_score != 0.0 and forest.n_trees:
        yield "the base score is tree 0, so predict(num_iteration=n) there takes n - 1 trees of this model"
    with np.errstate(invalid="ignore"):
        near_zero = (forest.thresholds >= -ZERO) & (forest.thresholds < ZERO)
    if np.any(near_zero):
        yield "LightGBM takes values within 1e-35 of 0 for 0: such a value, other than 0, may go elsewhere than here"
    if have_numbers(forest):
        yield FRACTIONS
    yield from text_notes(forest)


def _info(known: CategoryNumbers | None) -> str:
    """Return what LightGBM says of a feature: its range, or its categories."""
    return "[-inf:inf]" if known is None else ":".join(map(str, sorted(known.numbers.values())))


def _tree_text(number: int, tree: PlainTree, known: Mapping[int, CategoryNumbers]) -> str:
    inner = np.flatnonzero(tree.inner)
    leaves = np.flatnonzero(~tree.inner)
    place = np.empty(len(tree.feature), dtype=np.int64)
    place[inner] = np.arange(len(inner))
    place[leaves] = ~np.arange(len(leaves))
    decisions = MISSING_NAN << MISSING_SHIFT | np.where(tree.missing_left[inner], DEFAULT_LEFT, 0)
    thresholds = _joined(_thresholds(tree.cut[inner]))
    sets: list[str] = []
    if tree.sets:
        nodes = sorted(tree.sets)
        decisions[place[nodes]] |= CATEGORICAL
        words = thresholds.split()
        for number_of_set, node in enumerate(nodes):
            words[place[node]] = str(number_of_set)
        thresholds = " ".join(words)
        bits = [bits_of(known[int(tree.feature[node])].of(tree.sets[node])) for node in nodes]
        boundaries = np.cumsum([0, *map(len, bits)])
        sets = ["cat_boundaries=" + _joined(boundaries), "cat_threshold=" + _joined(np.concatenate(bits))]
    lines = [
        f"Tree={number}",
        f"num_leaves={len(leaves)}",
        f"num_cat={len(tree.sets)}",
        "split_feature=" + _joined(tree.feature[inner]),
        "split_gain=" + _joined(tree.gain[inner]),
        "threshold=" + thresholds,
        "decision_type=" + _joined(decisions),
        "left_child=" + _joined(place[tree.left[inner]]),
        "right_child=" + _joined(place[tree.right[inner]]),
        "leaf_value=" + _joined(tree.value[leaves]),
        "leaf_weight=" + _joined(tree.rows[leaves]),
        "leaf_count=" + _joined(tree.rows[leaves]),
        "internal_value=" + _joined(tree.value[inner]),
        "internal_weight=" + _joined(tree.rows[inner]),
        "internal_count=" + _joined(tree.rows[inner]),
        *sets,
        "is_linear=0",
        "shrinkage=1",
        "",
        "",
        "",
    ]
    return "\n".join(lines)


def _thresholds(cuts: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the thresholds to write for ``cuts``: the same numbers, but LightGBM's own for a cut at 0.

    Both are the same to LightGBM, and lleaves cannot read a threshold of 0.
    """
    return np.where((cuts >= 0.0) & (cuts < ZERO), ZERO, cuts).astype(np.float64)


def bits_of(numbers: Sequence[int]) -> npt.NDArray[np.uint32]:
    """Return the set of ``numbers`` as bits, 32 in each entry, the lowest first.

    >>> bits_of([0, 3, 33]).tolist()
    [9, 2]
    """
    words = np.zeros(max(numbers) // 32 + 1, dtype=np.uint32)
    for number in numbers:
        words[number // 32] |= np.uint32(1 << number % 32)
    return words


def _joined(values: npt.NDArray[Any]) -> str:
    return " ".join(map(repr, values.tolist()))


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of ``key=value`` lines, and its place in the file."""

    where: str
    values: Mapping[str, str]

    def text(self, key: str) -> str:
        if key not in self.values:
            raise ModelFormatError(f"{self.where}: expected a line {key}=, found none")
        return self.values[key]

    def integer(self, key: str, default: int | None = None) -> int:
        if default is not None and key not in self.values:
            return default
        try:
            return int(self.text(key))
        except ValueError as error:
            raise ModelFormatError(
                f"{self.where}: expected {key}=INTEGER, found {shortened(repr(self.text(key)))}"
            ) from error

    def array(self, key: str, length: int, dtype: Any, *, optional: bool = False) -> npt.NDArray[Any]:
        if optional and not self.values.get(key):
            return np.zeros(length, dtype=dtype)
        words = self.text(key).split()
        if len(words) != length:
            raise ModelFormatError(f"{self.where}: expected {length} values of {key}, found {len(words)}")
        try:
            kind = float if dtype is np.float64 else int
            return np.array([kind(word) for word in words], dtype=dtype)
        except (ValueError, OverflowError) as error:
            raise ModelFormatError(f"{self.where}: a value of {key} is no number: {shortened(error)}") from error


@np.errstate(over="ignore")  # values beyond float32 become infinite, and are checked as such
def read(data: bytes, where: str) -> ForeignForest:
    """Read a text model, as ``Booster.save_model`` writes it; ``where`` names the file in messages.

    Raises
    ------
    InputError
        It is another file than a text model.
    ModelFormatError
        It is truncated or damaged.
    ConversionRefused
        It has linear leaves, several classes, treats zeros as no threshold can, or lacks the texts of its categories.
    """
    text = text_of(data, where, "a LightGBM text model (Booster.save_model)")
    header, blocks = _blocks(text, where)
    if header.text("version") not in VERSIONS:
        raise ModelFormatError(
            f"{where}: a model of version {shortened(header.text('version'))}, expected one of {', '.join(VERSIONS)}"
        )
    if header.integer("num_class") != 1 or header.integer("num_tree_per_iteration", 1) != 1:
        raise ConversionRefused(
            f"{where}: a model of {header.text('num_class')} classes: there is no one score to rank by"
        )
    names = header.text("feature_names").split()
    if len(names) != header.integer("max_feature_idx") + 1:
        raise ModelFormatError(
            f"{where}: {len(names)} feature names, expected max_feature_idx + 1 = "
            f"{header.integer('max_feature_idx') + 1}"
        )
    if "tree_sizes" in header.values and len(header.text("tree_sizes").split()) != len(blocks):
        raise ModelFormatError(
            f"{where}: {len(blocks)} trees, expected {len(header.text('tree_sizes').split())} as tree_sizes has it"
        )
    objective = header.values.get("objective", "").split()
    notes = list(_objective_notes(objective, where))
    trees = [_read_tree(block) for block in blocks]
    texts = _texts_of(text, header, names, where)
    trees, categories = with_codes(trees, names, texts, where)
    if categories.keys() - {names[f] for f in texts if f < len(names)}:
        notes.append(FRACTIONS)
    weights = None
    if "average_output" in header.values and trees:
        weights = np.full(len(trees), 1.0 / len(trees))
        notes.append(
            "LightGBM divides the sum by the number of trees, here each leaf is: scores differ in the last bits"
        )
    forest = forest_of(
        trees, names, where, objective=f"lightgbm {' '.join(objective) or 'custom'}", info=provenance("lightgbm", data),
        weights=weights, categories=categories,
    )  # fmt: skip
    return ForeignForest(forest=forest, notes=tuple(notes))


def _blocks(text: str, where: str) -> tuple[_Block, list[_Block]]:
    """Split the text into its header and the block of each tree."""
    lines = text.split("\n")
    if lines[0].rstrip("\r") != "tree":
        hint = "; dump_model's JSON is not read, save_model's text is" if text.lstrip().startswith("{") else ""
        raise InputError(
            f"{where}:1: expected a LightGBM text model, whose first line is 'tree', found "
            f"{shortened(repr(lines[0][:40]))}{hint}"
        )
    blocks: list[tuple[int, dict[str, str]]] = [(1, {})]
    for number, raw in enumerate(lines[1:], start=2):
        line = raw.strip()
        if line == "end of trees":
            break
        key, _, value = line.partition("=")
        if key == "Tree":
            if value != str(len(blocks) - 1):
                raise ModelFormatError(f"{where}:{number}: expected Tree={len(blocks) - 1}, found {shortened(line)}")
            blocks.append((number, {}))
        elif line:
            blocks[-1][1][key] = value
    else:
        raise ModelFormatError(f"{where}: the model is truncated: there is no line 'end of trees'")
    made = [_Block(f"{where}:{number}", values) for number, values in blocks]
    return made[0], made[1:]


def _objective_notes(objective: Sequence[str], where: str) -> Iterator[str]:
    name = objective[0] if objective else "custom"
    if name in MONOTONE or "sqrt" in objective:
        yield (
            f"scores are raw, as LightGBM's predict(raw_score=True): the objective {name} transforms them, in the "
            "same order"
        )
    elif name not in IDENTITY:
        raise ConversionRefused(
            f"{where}: the objective {name} transforms the sum of the trees in a way that is not supported; supported:"
            f" {', '.join(sorted((IDENTITY | MONOTONE) - {'custom', 'none'}))}"
        )


def _read_tree(block: _Block) -> PlainTree:
    n_leaves = block.integer("num_leaves")
    if n_leaves < 1:
        raise ModelFormatError(f"{block.where}: expected 1 leaf or more, found {n_leaves}")
    n_inner = n_leaves - 1
    if block.integer("is_linear", 0):
        raise ConversionRefused(f"{block.where}: the leaves are linear functions; train with linear_tree=false")
    leaf_value = block.array("leaf_value", n_leaves, np.float64)
    if n_inner == 0:
        return PlainTree.stump(float(leaf_value[0]))
    decision = block.array("decision_type", n_inner, np.int64)
    threshold = block.array("threshold", n_inner, np.float64)
    by_set = decision & CATEGORICAL != 0
    sets = _read_sets(block, np.flatnonzero(by_set), threshold)
    cut = cuts_of(np.where(by_set, 0.0, threshold))
    children = {side: block.array(f"{side}_child", n_inner, np.int64) for side in ("left", "right")}
    for side, child in children.items():
        if np.any((child >= n_inner) | (child < -n_leaves)):
            raise ModelFormatError(f"{block.where}: a {side}_child is no node of this tree")
    rows = [
        block.array(key, n, np.int64, optional=True)
        for key, n in (("internal_count", n_inner), ("leaf_count", n_leaves))
    ]
    none = np.full(n_leaves, -1, dtype=NODE)
    feature = block.array("split_feature", n_inner, np.int64)
    if np.any((feature < 0) | (feature > np.iinfo(NODE).max)):
        raise ModelFormatError(f"{block.where}: a split_feature is no feature")
    return PlainTree(
        feature=np.concatenate([feature.astype(NODE), none]),
        cut=np.concatenate([cut, np.full(n_leaves, np.nan, dtype=CUT)]),
        missing_left=np.concatenate([_missing_left(block, decision, cut) & ~by_set, np.zeros(n_leaves, np.bool_)]),
        **{
            side: np.concatenate([np.where(numbers < 0, n_inner + ~numbers, numbers), none]).astype(NODE)
            for side, numbers in children.items()
        },
        value=np.concatenate([block.array("internal_value", n_inner, np.float64, optional=True), leaf_value]),
        gain=np.concatenate([block.array("split_gain", n_inner, np.float64, optional=True), np.zeros(n_leaves)]),
        rows=np.concatenate(rows), sets=sets,
    )  # fmt: skip


def _read_sets(
    block: _Block, nodes: npt.NDArray[np.int64], thresholds: npt.NDArray[np.float64]
) -> dict[int, npt.NDArray[np.int64]]:
    """Return the numbers of the categories that each of ``nodes`` sends left."""
    n_sets = block.integer("num_cat", 0)
    if not len(nodes):
        return {}
    starts = block.array("cat_boundaries", n_sets + 1, np.int64)
    if starts[0] != 0 or np.any(np.diff(starts) < 1):
        raise ModelFormatError(f"{block.where}: cat_boundaries do not ascend from 0")
    words = block.array("cat_threshold", int(starts[-1]), np.int64)
    if np.any((words < 0) | (words >= 1 << 32)):
        raise ModelFormatError(f"{block.where}: a value of cat_threshold does not fit 32 bits")
    bits = np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")
    sets = {}
    for node in nodes.tolist():
        chosen = thresholds[node]
        if not 0 <= chosen < n_sets or chosen != int(chosen):
            raise ModelFormatError(f"{block.where}: a categorical split has the set {chosen:g} of {n_sets}")
        own = slice(32 * int(starts[int(chosen)]), 32 * int(starts[int(chosen) + 1]))
        sets[node] = np.flatnonzero(bits[own])
    return sets


def _texts_of(text: str, header: _Block, names: Sequence[str], where: str) -> dict[int, list[str]]:
    """Return the texts of the categories 0, 1, .. of each feature that was a categorical column of pandas.

    The file lists them in the order of these columns without naming them.  If categorical_feature has more columns, the
    largest number of each, which is in feature_infos, must leave one way to assign them.
    """
    line = text[text.rfind("pandas_categorical:") :].partition(":")[2] if "pandas_categorical:" in text else "null"
    try:
        lists = json.loads(line) or []
        texts = [[value if isinstance(value, str) else json.dumps(value) for value in own] for own in lists]
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelFormatError(f"{where}: pandas_categorical is not a list of lists: {shortened(error)}") from error
    if not texts:
        return {}
    infos = header.values.get("feature_infos", "").split()
    categorical = [f for f, info in enumerate(infos[: len(names)]) if info != "none" and not info.startswith("[")]
    parameter = re.search(r"^\[categorical_feature: ([0-9,]+)\]$", text, flags=re.MULTILINE)
    if parameter is not None:
        listed = sorted({f for f in map(int, re.findall(r"[0-9]{1,9}", parameter[1])) if f < len(names)})
        categorical = listed if len(listed) == len(texts) else sorted({*listed, *categorical})
    largest = [
        max([int(n) for n in re.findall(r"(?<![0-9-])[0-9]{1,9}(?![0-9])", infos[f])], default=-1)
        if f < len(infos)
        else -1
        for f in categorical
    ]
    ways = [
        way
        for way in islice(combinations(range(len(categorical)), len(texts)), MOST_WAYS)
        if all(largest[k] < len(own) for k, own in zip(way, texts, strict=True))
    ]
    if len(ways) != 1:
        raise ConversionRefused(
            f"{where}: {len(texts)} of its {len(categorical)} categorical features were columns of pandas with "
            "categories, and the model does not say which; train again with all of them as such columns, or none"
        )
    return {categorical[k]: own for k, own in zip(ways[0], texts, strict=True)}


def cuts_of(thresholds: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Return the float32 cuts that divide all float32 values as LightGBM's predict does with float64 ``thresholds``.

    A float32 x is ``<= threshold`` if it is at most the greatest float32 that is not above the threshold.  Values
    within 1e-35 of 0 count as 0, so they all go left if the threshold is at least 0, else right.

    >>> cuts_of(np.array([0.1, 0.0, -1e-35, 1e300])).tolist()
    [0.09999999403953552, 1.0000000180025095e-35, -1.0000000897489909e-35, 3.4028234663852886e+38]
    """
    with np.errstate(over="ignore"):
        cuts = thresholds.astype(np.float32)
    above = cuts.astype(np.float64) > thresholds
    cuts[above] = np.nextafter(cuts[above], np.float32(-np.inf))
    edge = np.float64(ZERO)
    cuts[(thresholds >= 0.0) & (thresholds <= edge)] = ZERO
    cuts[(thresholds < 0.0) & (thresholds >= -edge)] = np.nextafter(-ZERO, np.float32(-np.inf))
    return cuts


def _missing_left(
    block: _Block, decision: npt.NDArray[np.int64], cut: npt.NDArray[np.float32]
) -> npt.NDArray[np.bool_]:
    """Return a mask of the nodes that send NaN left.

    Refuse nodes that send zeros to another side than their threshold does.
    """
    kind = decision >> MISSING_SHIFT & 3
    if np.any((decision < 0) | (decision >= 1 << 4) | (kind > MISSING_NAN)):
        raise ModelFormatError(f"{block.where}: a decision_type is none of LightGBM's")
    default_left, zero_left = decision & DEFAULT_LEFT != 0, cut >= 0.0
    if np.any((kind == MISSING_ZERO) & (default_left != zero_left)):
        raise ConversionRefused(
            f"{block.where}: zeros are missing values here (zero_as_missing) and go elsewhere than their value says;"
            " train with zero_as_missing=false"
        )
    return np.where(kind == MISSING_NAN, default_left, zero_left)
