"""A forest as an ONNX model: TreeEnsembleRegressor of the operator set ai.onnx.ml 3, for onnxruntime and its like.

``BRANCH_LEQ`` goes to the true child if ``x <= value``; ``nodes_missing_value_tracks_true`` says where NaN goes.  A split by a set
of categories is a chain of ``BRANCH_EQ``, one for each category, whose true children are the same node; runtimes know such chains.  The input is
float32 and is cast to double, thresholds, leaves and base are doubles (``*_as_tensor``), so that runtimes add in double;
the operator gives its sums as float32, rounded once.  Several outputs go through their link in double, and the score is
float32 again.

The numbers of fields and types are those of onnx.proto (github.com/onnx/onnx), version 8 of the representation.  A protobuf message
is the bytes of its fields, one after the other: a key (number and kind of the field) and a varint, or a length and so many bytes
(protobuf.dev, Encoding).  Repeated numbers are packed into one field.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rankmill.scorer.exchange.categories import CategoryNumbers, category_numbers, text_notes
from rankmill.scorer.exchange.conversion import (
    FLOAT32_ROUNDING,
    FLOAT32_TINY,
    FLOAT64_ROUNDING,
    ConvertedModel,
    PlainTree,
    float32_exactness,
    plain_trees,
)
from rankmill.scorer.forest import Forest
from rankmill.scorer.links import class_values

TARGET = "ONNX"
REPRESENTATION, OPERATORS, TREE_OPERATORS = 8, 13, 3
FLOAT, INT64, DOUBLE = 1, 7, 11  # TensorProto.DataType
OF_INT, OF_STRING, OF_TENSOR, OF_INTS, OF_STRINGS = 2, 3, 4, 7, 8  # AttributeProto.AttributeType
TREES = "ai.onnx.ml"
_VARINT, _BYTES = 0, 2


def write(forest: Forest, name: str) -> ConvertedModel:
    """Return ``forest`` as a model: input ``features`` (n, features) float32, output ``score`` (n, 1) float32.

    Raises
    ------
    ConversionRefused
        Scores exceed the range of float32.
    """
    float32_exactness(forest, TARGET)
    linked = forest.link != "identity"
    known = category_numbers(forest)
    nodes = [
        _operator("Cast", ["features"], "exact", _int("to", DOUBLE)),
        _operator(
            "TreeEnsembleRegressor",
            ["exact"],
            "outputs" if linked else "score",
            *_ensemble(forest, known),
            domain=TREES,
        ),
    ]
    constants: list[bytes] = []
    if linked:
        more, constants = _link(forest)
        nodes += more
    graph = (
        chunks(1, nodes)
        + chunk(2, name)
        + chunks(5, constants)
        + chunk(11, _value("features", ["documents", forest.n_features]))
        + chunk(12, _value("score", ["documents", 1]))
    )
    names = json.dumps(list(forest.feature_names), ensure_ascii=False)
    texts = {forest.feature_names[f]: own.texts for f, own in known.items() if own.texts}
    categories = json.dumps(texts, ensure_ascii=False)
    model = (
        integer(1, REPRESENTATION)
        + chunk(2, "rankmill")
        + chunk(7, graph)
        + chunks(8, [chunk(1, "") + integer(2, OPERATORS), chunk(1, TREES) + integer(2, TREE_OPERATORS)])
        + chunk(14, chunk(1, "feature_names") + chunk(2, names))
        + (chunk(14, chunk(1, "categories") + chunk(2, categories)) if texts else b"")
    )
    bound = _bound(forest)
    return ConvertedModel(
        data=model,
        exactness=f"sums in double, given as float32: within {bound:.2g} of the scores here, half a step of float32",
        bound=bound,
        notes=(
            "features are columns in the model's order, which its metadata feature_names lists",
            *text_notes(forest),
        ),
    )


def _bound(forest: Forest) -> float:
    """Return a bound of the difference to our scores: one rounding to float32, and double sums in another order.

    Through a link, outputs that are off by d change the score by at most 2 d (grades) times the value V of the highest grade:
    the slopes of a softmax, weighted by values in 0 .. V, sum to at most V; slopes of the logistic function are at most 1/4,
    each enters two probabilities, and these are divided by their sum, at least 1.
    """
    terms = forest.n_trees + 2
    outputs = forest.score_bound * (FLOAT32_ROUNDING + 2.0 * terms * FLOAT64_ROUNDING) + FLOAT32_TINY
    if forest.link == "identity":
        return outputs
    worth = class_values(forest.link, forest.n_outputs)
    return float(worth.max()) * (2.0 * len(worth) * outputs + FLOAT32_ROUNDING + 1e-12)


def _ensemble(forest: Forest, known: Mapping[int, CategoryNumbers]) -> list[bytes]:
    """Return the attributes of the TreeEnsembleRegressor."""
    trees = [tree.breadth_first() for tree in plain_trees(forest)]
    equal = [np.zeros(len(tree.feature), dtype=np.bool_) for tree in trees]
    for t, tree in enumerate(trees):
        if tree.sets:
            trees[t], equal[t] = _chained(tree, known)
    n_outputs = forest.n_outputs
    # Not every runtime reads an ensemble without trees: add a leaf of 0 per output.
    sizes = [len(tree.feature) for tree in trees] or [1] * n_outputs
    tree_of = np.repeat(np.arange(len(sizes)), sizes)
    within = np.concatenate([np.arange(size) for size in sizes])

    def joined(column: str, empty: float) -> npt.NDArray[np.float64]:
        return np.concatenate([getattr(tree, column) for tree in trees] or [np.full(n_outputs, empty)])

    feature = joined("feature", -1)
    inner = feature >= 0
    leaves = np.flatnonzero(~inner)
    modes = np.where(inner, "BRANCH_LEQ", "LEAF")
    modes[np.concatenate([np.zeros(0, dtype=np.bool_), *equal]).nonzero()] = "BRANCH_EQ"
    return [
        _strings("nodes_modes", modes.tolist()),
        _ints("nodes_treeids", tree_of),
        _ints("nodes_nodeids", within),
        _ints("nodes_featureids", np.where(inner, feature, 0)),
        _tensor("nodes_values_as_tensor", np.where(inner, joined("cut", 0.0), 0.0)),
        _ints("nodes_truenodeids", np.where(inner, joined("left", 0), 0)),
        _ints("nodes_falsenodeids", np.where(inner, joined("right", 0), 0)),
        _ints("nodes_missing_value_tracks_true", inner & (joined("missing_left", 0) != 0)),
        _ints("target_treeids", tree_of[leaves]),
        _ints("target_nodeids", within[leaves]),
        _ints("target_ids", tree_of[leaves] % n_outputs),
        _tensor("target_weights_as_tensor", joined("value", 0.0)[leaves]),
        _tensor("base_values_as_tensor", np.full(n_outputs, forest.base_score)),
        _int("n_targets", n_outputs),
        _string("aggregate_function", "SUM"),
        _string("post_transform", "NONE"),
    ]


def _chained(tree: PlainTree, known: Mapping[int, CategoryNumbers]) -> tuple[PlainTree, npt.NDArray[np.bool_]]:
    """Return the tree with a chain of nodes for each split by a set, and a mask of the nodes that test for equality.

    The other nodes of a chain come after all nodes; a missing value follows the first.
    """
    columns = {name: getattr(tree, name).tolist() for name in ("feature", "cut", "missing_left", "left", "right")}
    equal = [False] * len(tree.feature)
    for node, codes in sorted(tree.sets.items()):
        at, last = node, columns["right"][node]
        for number in known[int(tree.feature[node])].of(codes):
            if equal[at]:  # a further one
                columns["right"][at] = len(equal)
                at = len(equal)
                equal.append(False)
                for name, value in (
                    ("feature", int(tree.feature[node])),
                    ("cut", 0.0),
                    ("left", columns["left"][node]),
                ):
                    columns[name].append(value)
                columns["missing_left"].append(False)
                columns["right"].append(last)
            columns["cut"][at], equal[at] = float(number), True
    more = np.zeros(len(equal) - len(tree.feature))
    arrays = {name: np.array(values, dtype=getattr(tree, name).dtype) for name, values in columns.items()}
    return replace(tree, **arrays, value=np.concatenate([tree.value, more]), sets={}), np.array(equal)


def _link(forest: Forest) -> tuple[list[bytes], list[bytes]]:
    """Return the operators that compute ``score`` from ``outputs``, and their constants (see rankmill.scorer.links)."""
    worth = class_values(forest.link, forest.n_outputs)
    constants = [_array("worth", worth[:, None])]
    nodes = [_operator("Cast", ["outputs"], "f", _int("to", DOUBLE))]
    if forest.link.startswith("softmax"):
        nodes.append(_operator("Softmax", ["f"], "masses", _int("axis", 1)))
    else:
        # P(y > k) = 1 / (1 + exp f_k); with 1 prepended and 0 appended, the differences are the probabilities
        constants += [_array("zero", np.array(0.0)), _array("one", np.array(1.0)), _array("axis", np.array([1]))]
        constants += [_array("in_front", np.array([0, 1, 0, 0])), _array("behind", np.array([0, 0, 0, 1]))]
        nodes += [
            _operator("Exp", ["f"], "odds"),  # may be infinite: 1 / (1 + inf) is 0
            _operator("Add", ["odds", "one"], "parts"),
            _operator("Div", ["one", "parts"], "above"),
            _operator("Pad", ["above", "in_front", "one"], "from_one"),
            _operator("Pad", ["above", "behind", "zero"], "to_zero"),
            _operator("Sub", ["from_one", "to_zero"], "differences"),
            _operator("Max", ["differences", "zero"], "clipped"),
            _operator("ReduceSum", ["clipped", "axis"], "mass"),
            _operator("Div", ["clipped", "mass"], "masses"),
        ]
    nodes += [
        _operator("MatMul", ["masses", "worth"], "expected"),
        _operator("Cast", ["expected"], "score", _int("to", FLOAT)),
    ]
    return nodes, constants


def _operator(kind: str, inputs: list[str], output: str, *attributes: bytes, domain: str = "") -> bytes:
    return (
        chunks(1, inputs)
        + chunk(2, output)
        + chunk(4, kind)
        + chunks(5, attributes)
        + (chunk(7, domain) if domain else b"")
    )


def _int(name: str, value: int) -> bytes:
    return chunk(1, name) + integer(3, value) + integer(20, OF_INT)


def _string(name: str, value: str) -> bytes:
    return chunk(1, name) + chunk(4, value) + integer(20, OF_STRING)


def _ints(name: str, values: npt.NDArray[np.generic]) -> bytes:
    return chunk(1, name) + integers(8, values.astype(np.int64).tolist()) + integer(20, OF_INTS)


def _strings(name: str, values: list[str]) -> bytes:
    return chunk(1, name) + chunks(9, values) + integer(20, OF_STRINGS)


def _tensor(name: str, values: npt.NDArray[np.float64]) -> bytes:
    return chunk(1, name) + chunk(5, _array(name, values)) + integer(20, OF_TENSOR)


def _array(name: str, values: npt.NDArray[np.generic]) -> bytes:
    """Return a tensor of doubles or of whole numbers."""
    kind, dtype = (INT64, "<i8") if values.dtype.kind == "i" else (DOUBLE, "<f8")
    shape = integers(1, values.shape) if values.ndim else b""
    return shape + integer(2, kind) + chunk(8, name) + chunk(9, values.astype(dtype).tobytes())


def _value(name: str, shape: list[str | int]) -> bytes:
    """Return the description of an input or output of float32."""
    sizes = [chunk(2, size) if isinstance(size, str) else integer(1, size) for size in shape]
    return chunk(1, name) + chunk(2, chunk(1, integer(1, FLOAT) + chunk(2, chunks(1, sizes))))


def varint(value: int) -> bytes:
    """Encode seven bits per byte, the lowest first, the high bit set if more follow; negative numbers as 64-bit two's complement.

    >>> varint(300).hex(), len(varint(-1))
    ('ac02', 10)
    """
    left = value & (1 << 64) - 1
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def integer(field: int, value: int) -> bytes:
    """Return the field ``field`` that holds a whole number."""
    return varint(field << 3 | _VARINT) + varint(value)


def chunk(field: int, value: bytes | str) -> bytes:
    """Return the field ``field`` that holds bytes, text or a message."""
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | _BYTES) + varint(len(data)) + data


def chunks(field: int, values: Iterable[bytes | str]) -> bytes:
    """Return the repeated field ``field``, each value on its own."""
    return b"".join(chunk(field, value) for value in values)


def integers(field: int, values: Iterable[int]) -> bytes:
    """Return the repeated field ``field`` of whole numbers, packed."""
    return chunk(field, b"".join(map(varint, values)))
