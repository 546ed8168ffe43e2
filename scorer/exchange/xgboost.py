"""XGBoost's model file: the learner as JSON, written and read.

XGBoost compares float32 ``x < split_condition``, left if so, so its threshold is the float32 after our cut.
``default_left`` says where missing values go.  The right child of a node is next to its left one (its predictor adds
the outcome of the comparison to the left child).  Leaves are float32, in ``split_conditions``, and so are the sums.

Categories are whole numbers.  Those in the set of a node (``categories``) go right, all others left, negative and
unknown ones too, so children change places on the way.  Since version 3.1 ``cats`` has the names of categories: columns
of pandas with other numbers for the same names are then read correctly.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import ConversionRefused, InputError, ModelFormatError
from rankmill.scorer.exchange.categories import CategoryNumbers, category_numbers, have_numbers, text_notes, with_codes
from rankmill.scorer.exchange.conversion import (
    ConvertedModel,
    ForeignForest,
    PlainTree,
    float32_exactness,
    float32_sums,
    forest_of,
    need_names_without,
    need_one_output,
    plain_trees,
    provenance,
    shortest32,
    text_of,
)
from rankmill.scorer.forest.forest import COUNT, COVER, CUT, NODE, Forest
from rankmill.scorer.models.model_file import MAX_DEPTH, MAX_FEATURES, shortened

TARGET = "XGBoost"
NO_PARENT = 2**31 - 1
FORBIDDEN_IN_NAMES = "[]<"  # XGBoost refuses them in the names of a DMatrix

IDENTITY = ("reg:squarederror", "reg:squaredlogerror", "reg:pseudohubererror", "reg:absoluteerror", "reg:quantileerror")
LOGIT = ("binary:logistic", "reg:logistic")  # base_score is a probability
LOGIT_ONCE = "binary:logitraw"  # a probability before version 2; since then a raw score, as in IDENTITY
LOG = ("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox")  # base_score is a mean
MOST_CATEGORIES = 1 << 24
FRACTIONS = "XGBoost cuts off the fraction of a category: 1.5 is 1 there, and no known category here"
COVER_BITS = 30  # of the root's cover if cover is not a count, so that nodes fit 32 bits


def write(forest: Forest, name: str) -> ConvertedModel:  # noqa: ARG001 (every format is written by the same call)
    """Return ``forest`` as the JSON that ``Booster.load_model`` reads.

    Raises
    ------
    ConversionRefused
        It has several outputs, scores that float32 cannot hold, or a feature whose name XGBoost does not accept.
    """
    need_one_output(forest, TARGET)
    exactness = float32_exactness(forest, TARGET)
    need_names_without(forest, TARGET, FORBIDDEN_IN_NAMES)
    unit = 2.0**-COVER_BITS if COVER in forest.info else 1.0  # read back, these are no counts
    known = category_numbers(forest)
    trees = [
        _tree_json(number, tree, forest.n_features, unit, known) for number, tree in enumerate(plain_trees(forest))
    ]
    model = {
        **({"cats": _names_of(known, forest.n_features)} if known else {}),
        "gbtree_model_param": {"num_parallel_tree": str(forest.trees_a_round), "num_trees": str(len(trees))},
        "iteration_indptr": list(range(0, len(trees) + 1, forest.trees_a_round)),
        "tree_info": [0] * len(trees),
        "trees": trees,
    }
    base = str(np.float32(forest.base_score)).upper()
    learner = {
        "attributes": {},
        "feature_names": list(forest.feature_names),
        "feature_types": ["c" if f in known else "float" for f in range(forest.n_features)],
        "gradient_booster": {"model": model, "name": "gbtree"},
        "learner_model_param": {
            "base_score": base, "boost_from_average": "0", "num_class": "0", "num_feature": str(forest.n_features),
            "num_target": "1",
        },
        "objective": {"lambdarank_param": {"lambdarank_pair_method": "topk"}, "name": "rank:ndcg"},
    }  # fmt: skip
    text = json.dumps({"learner": learner, "version": [2, 1, 0]}, ensure_ascii=False, separators=(",", ":"))
    return ConvertedModel(
        data=text.encode(), exactness=exactness, bound=float32_sums(forest), notes=tuple(_notes(forest))
    )


def _notes(forest: Forest) -> Iterator[str]:
    if np.any(np.isposinf(forest.cuts)):
        yield (
            "XGBoost takes no infinite values: a split that asks for +inf sends all values left there, and missing "
            "ones as here"
        )
    if have_numbers(forest):
        yield FRACTIONS
    yield from text_notes(forest)


def _names_of(known: Mapping[int, CategoryNumbers], n_features: int) -> dict[str, object]:
    """Return the names of the categories of each feature, and their order by bytes.

    XGBoost compares bytes as signed numbers.
    """
    encoded, order, starts = [], [], [0]
    for f in range(n_features):
        texts = [text.encode("utf-8", "surrogatepass") for text in known[f].texts] if f in known else []
        values = [np.frombuffer(text, dtype=np.int8).tolist() for text in texts]
        offsets = np.cumsum([0, *map(len, texts)]).tolist() if texts else []
        encoded.append({"offsets": offsets, "values": [byte for text in values for byte in text]})
        order += sorted(range(len(texts)), key=values.__getitem__)
        starts.append(starts[-1] + len(texts))
    return {"enc": encoded, "feature_segments": starts, "sorted_idx": order}


def _tree_json(
    number: int, tree: PlainTree, n_features: int, unit: float, known: Mapping[int, CategoryNumbers]
) -> dict[str, object]:
    tree = _sides_changed(tree).breadth_first()
    sets = {node: known[int(tree.feature[node])].of(codes) for node, codes in sorted(tree.sets.items())}
    sizes = [len(numbers) for numbers in sets.values()]
    inner, n = tree.inner, len(tree.feature)
    parents = np.full(n, NO_PARENT, dtype=np.int64)
    for child in (tree.left, tree.right):
        parents[child[inner]] = np.flatnonzero(inner)
    with np.errstate(over="ignore"):  # the float after the largest is infinite: all finite values are below it
        above = np.nextafter(tree.cut, CUT(np.inf))
        conditions = np.where(inner, above, tree.value.astype(np.float32))
    conditions[list(sets)] = 0.0
    split_type = np.zeros(n, dtype=np.int64)
    split_type[list(sets)] = 1
    return {
        "base_weights": shortest32(tree.value),
        "categories": [category for numbers in sets.values() for category in numbers],
        "categories_nodes": list(sets),
        "categories_segments": np.cumsum([0, *sizes])[:-1].tolist(),
        "categories_sizes": sizes,
        "default_left": tree.missing_left.astype(int).tolist(),
        "id": number,
        "left_children": tree.left.tolist(),
        "loss_changes": shortest32(tree.gain),
        "parents": parents.tolist(),
        "right_children": tree.right.tolist(),
        "split_conditions": shortest32(conditions),
        "split_indices": np.where(inner, tree.feature, 0).tolist(),
        "split_type": split_type.tolist(),
        "sum_hessian": shortest32(tree.rows * unit),
        "tree_param": {
            "num_deleted": "0", "num_feature": str(n_features), "num_nodes": str(n), "size_leaf_vector": "1",
        },
    }  # fmt: skip


def _sides_changed(tree: PlainTree) -> PlainTree:
    """Return the tree with the children of each split by a set in each other's place."""
    by_set = np.zeros(len(tree.feature), dtype=np.bool_)
    by_set[list(tree.sets)] = True
    left, right = np.where(by_set, tree.right, tree.left), np.where(by_set, tree.left, tree.right)
    return replace(tree, left=left, right=right, missing_left=tree.missing_left != by_set)


@np.errstate(over="ignore")  # values beyond float32 become infinite, and are checked as such
def read(data: bytes, where: str) -> ForeignForest:
    """Read the learner, as ``Booster.save_model`` writes it; ``where`` names the file in messages.

    Raises
    ------
    InputError
        It is another file than a model of XGBoost.
    ModelFormatError
        It is truncated or damaged.
    ConversionRefused
        It has several classes or targets, is linear, or has an objective that is not known here.
    """
    model_file = _Object(where, "", _decoded(data, where))
    learner = model_file.at("learner")
    booster = learner.at("gradient_booster")
    kind, weights = booster.text("name"), None
    if kind == "dart":
        weights = booster.array("weight_drop", np.float64).astype(np.float32).astype(np.float64)
        booster = booster.at("gbtree")
    elif kind != "gbtree":
        raise ConversionRefused(f"{where}: the booster {shortened(kind)} has no trees; expected gbtree or dart")
    model, shape = booster.at("model"), learner.at("learner_model_param")
    found = [_read_tree(tree) for tree in model.items("trees")]
    trees, covers = [tree for tree, _ in found], [cover for _, cover in found]
    counts = all(map(_are_counts, covers))
    trees = [replace(tree, rows=_rows(cover, counts=counts)) for tree, cover in zip(trees, covers, strict=True)]
    if (
        shape.integer("num_class", 0) > 1
        or shape.integer("num_target", 1) > 1
        or np.any(model.array("tree_info", np.int64))
    ):
        raise ConversionRefused(f"{where}: a model of several classes or targets: there is no single score to rank by")
    if weights is not None and len(weights) != len(trees):
        raise ModelFormatError(f"{where}: {len(weights)} weights of trees (weight_drop), expected {len(trees)}")
    n_features = shape.integer("num_feature")
    names = learner.names("feature_names") or [f"f{i}" for i in range(min(n_features, MAX_FEATURES))]
    if len(names) != n_features:
        raise ModelFormatError(f"{where}: {len(names)} feature names, expected num_feature = {n_features}")
    trees, categories = with_codes(trees, names, _texts_of(model), where)
    objective = learner.at("objective").text("name")
    major = model_file.array("version", np.int64, 3, optional=True)[0]
    base, notes = _base_score(shape, objective, int(major))
    side_by_side = model.at("gbtree_model_param").integer("num_parallel_tree", 1)
    whole_rounds = side_by_side >= 1 and len(trees) % side_by_side == 0
    info = dict(provenance("xgboost", data)) | ({} if counts else {COVER: "sum_hessian"})
    forest = forest_of(
        trees, names, where, objective=f"xgboost {objective}", info=info, base_score=base,
        weights=weights, trees_a_round=side_by_side if whole_rounds else 1, categories=categories,
    )  # fmt: skip
    best = learner.at("attributes").found.get("best_iteration") if "attributes" in learner.found else None
    kept = int(best) + 1 if isinstance(best, str) and re.fullmatch(r"[0-9]{1,9}", best) else forest.n_rounds
    if not counts:
        notes.append(
            "XGBoost keeps sums of hessians (cover), no counts of training rows: inspect shap and why go by these, as "
            "pred_contribs does; inspect dependence and interaction need documents (--on)"
        )
    if have_numbers(forest):
        notes.append(FRACTIONS)
    notes.append(f"XGBoost adds in float32: its scores are within {float32_sums(forest):.2g} of these")
    return ForeignForest(forest=forest, notes=tuple(notes), best_rounds=kept if kept < forest.n_rounds else None)


def _decoded(data: bytes, where: str) -> object:
    if len(data) > 1 and data[:1] == b"{" and data[1:2] in b"iUIlL#$":  # in JSON a key or a blank follows the brace
        raise InputError(
            f"{where}: a model in UBJSON, XGBoost's binary form, and only JSON is read; write it with XGBoost: "
            f"xgboost.Booster(model_file={where!r}).save_model('model.json')"
        )
    text = text_of(data, where, "an XGBoost model in JSON (Booster.save_model to a name in .json)")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        kind = ModelFormatError if text.lstrip().startswith("{") else InputError
        raise kind(
            f"{where}: expected an XGBoost model in JSON (Booster.save_model), found no JSON: {shortened(error)}"
        ) from error
    if isinstance(found, list):
        raise InputError(f"{where}: expected what Booster.save_model writes, found a list of trees, as of dump_model")
    if isinstance(found, dict) and "learner" not in found:
        raise InputError(f"{where}: expected an XGBoost model (Booster.save_model), found JSON without 'learner'")
    return found


def _base_score(shape: _Object, objective: str, version: int) -> tuple[float, list[str]]:
    """Return the base score in the units of the trees, and remarks about the objective.

    ``version`` is that of the XGBoost that wrote the file, 0 if unknown.
    """
    written = shape.text("base_score").strip("[]")  # a list of one since XGBoost 3.1
    try:
        base = float(np.float32(written))
    except ValueError as error:
        raise ModelFormatError(
            f"{shape.where}: expected one number as base_score, found {shortened(repr(written))}"
        ) from error
    if objective.startswith("rank:") or objective in IDENTITY or (objective == LOGIT_ONCE and version >= 2):
        return base, []
    raw = f"scores are raw, as XGBoost's predict(output_margin=True): {objective} transforms them, in the same order"
    if objective in (*LOGIT, LOGIT_ONCE) and 0.0 < base < 1.0:
        return math.log(base / (1.0 - base)), [raw] if objective in LOGIT else []
    if objective in LOG and base > 0.0:
        return math.log(base), [raw]
    known = ", ".join(("rank:*", *IDENTITY, *LOGIT, LOGIT_ONCE, *LOG))
    raise ConversionRefused(
        f"{shape.where}: the objective {shortened(objective)} with base_score {base:g} is not known; known: {known}"
    )


def _are_counts(cover: npt.NDArray[np.float64]) -> bool:
    """Return whether these sums of hessians can be row counts, as with an unweighted squared error."""
    return bool(np.all((cover >= 0.0) & (cover <= 2.0**53) & (cover == np.rint(cover))))


def _rows(cover: npt.NDArray[np.float64], *, counts: bool) -> npt.NDArray[np.int64]:
    """Return the ``cover`` of a tree's nodes as integers: counts unchanged, other covers scaled.

    Only the shares of the children of a node matter, so each tree may have its own unit, a power of two.  All 0, which
    means unknown, if it is no valid cover: not finite, below 0, or 0 at the root.
    """
    if not counts and not (np.all(np.isfinite(cover) & (cover >= 0.0)) and cover[0] > 0.0):
        return np.zeros(len(cover), dtype=COUNT)
    unit = 1.0 if counts else math.ldexp(1.0, math.frexp(float(cover.max()))[1] - COVER_BITS)
    return np.rint(cover / unit).astype(COUNT)


def _read_tree(tree: _Object) -> tuple[PlainTree, npt.NDArray[np.float64]]:
    """Return a tree, and the cover of its nodes: XGBoost keeps sums of hessians, not row counts."""
    left = tree.array("left_children", np.int64)
    n = len(left)
    right = tree.array("right_children", np.int64, n)
    if n == 0:
        raise ModelFormatError(f"{tree.where}: {tree.path} has no nodes")
    if tree.at("tree_param").integer("size_leaf_vector", 1) > 1:
        raise ConversionRefused(
            f"{tree.where}: {tree.path} has leaves of several values: there is no single score to rank by"
        )
    inner = left >= 0
    by_set = (tree.array("split_type", np.int64, n, optional=True) != 0) & inner
    feature = tree.array("split_indices", np.int64, n)
    condition = tree.array("split_conditions", np.float64, n).astype(CUT)
    weight = tree.array("base_weights", np.float64, n, optional=True).astype(CUT)
    gain = tree.array("loss_changes", np.float64, n, optional=True).astype(CUT)
    if np.any((feature < 0) | (feature > np.iinfo(NODE).max)):
        raise ModelFormatError(f"{tree.where}: {tree.path} uses a feature that does not exist")
    condition[by_set] = 0.0
    if np.any(np.isneginf(condition[inner])):
        raise ConversionRefused(f"{tree.where}: {tree.path} has a threshold of -inf, below which there are no values")
    for side in (left, right):
        if np.any((side[inner] < 0) | (side[inner] >= n)):
            raise ModelFormatError(f"{tree.where}: {tree.path} has a child that is not one of its nodes")
    reached = _reached(left, right, inner)  # pruning leaves unreachable nodes behind
    if reached is None:
        raise ModelFormatError(f"{tree.where}: {tree.path} is deeper than {MAX_DEPTH} levels")
    sets = _read_sets(tree, np.flatnonzero(by_set & reached))
    place = np.cumsum(reached) - 1
    cover = tree.array("sum_hessian", np.float64, n, optional=True).astype(CUT)[reached].astype(np.float64)
    found = PlainTree(
        feature=np.where(inner, feature, -1).astype(NODE)[reached],
        cut=np.where(inner, np.nextafter(condition, CUT(-np.inf)), CUT(np.nan)).astype(CUT)[reached],
        missing_left=(tree.array("default_left", np.int64, n) != 0)[reached],
        left=np.where(inner, place[np.where(inner, left, 0)], -1).astype(NODE)[reached],
        right=np.where(inner, place[np.where(inner, right, 0)], -1).astype(NODE)[reached],
        value=np.where(inner, weight, condition)[reached].astype(np.float64),
        gain=gain[reached].astype(np.float64),
        rows=np.zeros(len(cover), dtype=COUNT),
        sets={int(place[node]): numbers for node, numbers in sets.items()},
    )  # fmt: skip
    return _sides_changed(found), cover


def _read_sets(tree: _Object, nodes: npt.NDArray[np.int64]) -> dict[int, npt.NDArray[np.int64]]:
    """Return the numbers of the categories that each of ``nodes`` sends right."""
    if not len(nodes):
        return {}
    of, starts, sizes = (tree.array(f"categories_{key}", np.int64) for key in ("nodes", "segments", "sizes"))
    numbers = tree.array("categories", np.int64)
    if not len(of) == len(starts) == len(sizes) or np.any((starts < 0) | (sizes < 0) | (starts > len(numbers) - sizes)):
        raise ModelFormatError(f"{tree.where}: {tree.path} has sets of categories that do not fit its categories")
    if np.any(numbers < 0) or np.any(numbers > MOST_CATEGORIES):
        raise ModelFormatError(f"{tree.where}: {tree.path} has a category below 0 or above {MOST_CATEGORIES}")
    if not np.all(np.isin(nodes, of)):
        raise ModelFormatError(f"{tree.where}: {tree.path} has a split by categories without any")
    place = {node: i for i, node in enumerate(of.tolist())}
    chosen = {node: place[node] for node in nodes.tolist()}
    return {node: np.unique(numbers[starts[i] : starts[i] + sizes[i]]) for node, i in chosen.items()}


def _texts_of(model: _Object) -> dict[int, list[str]]:
    """Return the texts of the categories 0, 1, .. of each feature whose names XGBoost keeps."""
    if "cats" not in model.found:
        return {}
    texts = {}
    for f, names in enumerate(model.at("cats").items("enc") if model.at("cats").found.get("enc") else []):
        values = names.array("values", np.int64)
        if "offsets" not in names.found:
            texts[f] = list(map(str, values.tolist()))
            continue
        ends = names.array("offsets", np.int64)
        if np.any(np.diff(ends) < 0) or np.any((ends < 0) | (ends > len(values))):
            raise ModelFormatError(f"{names.where}: {names.path} has offsets that do not fit its values")
        if len(ends):
            data = (values & 255).astype(np.uint8).tobytes()
            try:
                texts[f] = [data[start:end].decode() for start, end in pairwise(ends.tolist())]
            except UnicodeDecodeError as error:
                raise ConversionRefused(
                    f"{names.where}: the names of categories in {names.path} are not UTF-8 (XGBoost cuts off names "
                    "that are not ASCII); train it on categories of other names"
                ) from error
    return texts


def _reached(
    left: npt.NDArray[np.int64], right: npt.NDArray[np.int64], inner: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the nodes that are reachable from the root; None if the tree is too deep."""
    reached = np.zeros(len(left), dtype=np.bool_)
    level, depth = np.zeros(1, dtype=np.int64), 0
    while len(level):
        if depth > MAX_DEPTH:
            return None
        depth += 1
        reached[level] = True
        level = level[inner[level]]
        level = np.unique(np.concatenate([left[level], right[level]]))
        level = level[~reached[level]]
    return reached


class _Object:
    """An object of the file, with errors that name its place."""

    def __init__(self, where: str, path: str, found: object) -> None:
        if not isinstance(found, Mapping):
            raise ModelFormatError(
                f"{where}: expected an object at {path or 'the top'}, found {shortened(repr(found))}"
            )
        self.where, self.path, self.found = where, path, found

    def _get(self, key: str) -> object:
        if key not in self.found:
            raise ModelFormatError(
                f"{self.where}: expected {self._name(key)}, found none; is this Booster.save_model's file?"
            )
        return self.found[key]

    def _name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def at(self, key: str) -> _Object:
        return _Object(self.where, self._name(key), self._get(key))

    def items(self, key: str) -> list[_Object]:
        found = self._get(key)
        if not isinstance(found, list):
            raise ModelFormatError(f"{self.where}: expected a list at {self._name(key)}")
        return [_Object(self.where, f"{self._name(key)}[{i}]", item) for i, item in enumerate(found)]

    def text(self, key: str) -> str:
        found = self._get(key)
        if not isinstance(found, str):
            raise ModelFormatError(f"{self.where}: expected text at {self._name(key)}, found {shortened(repr(found))}")
        return found

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number, which XGBoost writes as text."""
        if default is not None and key not in self.found:
            return default
        try:
            return int(str(self._get(key)))
        except ValueError as error:
            raise ModelFormatError(
                f"{self.where}: expected a whole number at {self._name(key)}, found {shortened(repr(self._get(key)))}"
            ) from error

    def names(self, key: str) -> list[str]:
        found = self.found.get(key, [])
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise ModelFormatError(f"{self.where}: expected a list of names at {self._name(key)}")
        return found

    def array(self, key: str, dtype: Any, length: int | None = None, *, optional: bool = False) -> npt.NDArray[Any]:
        found = self.found.get(key) if optional else self._get(key)
        if optional and found is None and length is not None:
            return np.zeros(length, dtype=dtype)
        cast = _as_numbers(found, np.dtype(dtype))
        if cast is None:
            raise ModelFormatError(f"{self.where}: expected a list of {np.dtype(dtype).name} at {self._name(key)}")
        if length is not None and len(cast) != length:
            raise ModelFormatError(f"{self.where}: expected {length} values at {self._name(key)}, found {len(cast)}")
        return cast


def _as_numbers(found: object, dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """Return a list of numbers as an array of ``dtype`` with equal values; None if that is impossible."""
    if not isinstance(found, list):
        return None
    try:
        array = np.asarray(found)
    except ValueError:  # lists of several lengths
        return None
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iufb"):  # booleans: XGBoost before 1.6
        return None
    with np.errstate(invalid="ignore"):
        cast = array.astype(dtype)
    return cast if np.array_equal(cast, array, equal_nan=dtype.kind == "f") else None
