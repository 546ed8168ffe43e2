"""A forest as ONNX, for onnxruntime and its like: TreeEnsembleRegressor of the operator set ai.onnx.ml 3.

``BRANCH_LEQ`` goes to the true child if ``x <= value``; ``nodes_missing_value_tracks_true`` says where NaN goes.  A
split by a set of categories is a chain of ``BRANCH_EQ``, one for each category, whose true children are the same node;
runtimes know such chains.  The input is float32 and is cast to double.  Thresholds, leaves and base are doubles
(``*_as_tensor``), so that runtimes add in double.  The operator gives its sums as float32, rounded once.  Several
outputs go through their link in double, and the score is float32 again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import ConversionRefused
from rankmill.scorer.exchange.categories import CategoryNumbers, category_numbers, text_notes
from rankmill.scorer.exchange.conversion import (
    FLOAT32_ROUNDING,
    FLOAT32_TINY,
    ConvertedModel,
    PlainTree,
    float32_exactness,
    plain_trees,
)
from rankmill.scorer.exchange.onnx_format import (
    DOUBLE,
    FLOAT,
    MACHINE_LEARNING,
    Graph,
    int_attribute,
    ints_attribute,
    string_attribute,
    strings_attribute,
    tensor_attribute,
)
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.forest.links import class_values

TARGET = "ONNX"
MOST_BYTES = (1 << 31) - 1  # of a protobuf message
FLOAT64_ROUNDING = 2.0**-53


def write(forest: Forest, name: str) -> ConvertedModel:
    """Return ``forest`` as ONNX: input ``features`` (n, features) float32, output ``score`` (n, 1) float32.

    Raises
    ------
    ConversionRefused
        Scores exceed the range of float32, or the file would be too large.
    """
    float32_exactness(forest, TARGET)
    graph, linked = Graph(), forest.link != "identity"
    known = category_numbers(forest)
    exact = graph.node("Cast", ["features"], "exact", int_attribute("to", DOUBLE))
    outputs = graph.node(
        "TreeEnsembleRegressor",
        [exact],
        "outputs" if linked else "score",
        *_ensemble(forest, known),
        domain=MACHINE_LEARNING,
    )
    if linked:
        _add_link(graph, forest, outputs)
    texts = {forest.feature_names[f]: own.texts for f, own in known.items() if own.texts}
    metadata = {"feature_names": json.dumps(list(forest.feature_names), ensure_ascii=False)}
    if texts:
        metadata["categories"] = json.dumps(texts, ensure_ascii=False)
    data = graph.model(name, forest.n_features, metadata)
    if len(data) > MOST_BYTES:
        raise ConversionRefused(
            f"{TARGET} files have at most {MOST_BYTES:,} bytes, and this one would have {len(data):,}"
        )
    bound = _bound(forest)
    return ConvertedModel(
        data=data,
        exactness=f"sums in double, given as float32: within {bound:.2g} of the scores here, half a step of float32",
        bound=bound,
        notes=(
            "features are columns in the model's order, which its metadata feature_names lists",
            *text_notes(forest),
        ),
    )


def _bound(forest: Forest) -> float:
    """Return a bound of the difference to our scores: one rounding to float32, and double sums in another order.

    Through a link, outputs that are off by d change the score by at most ``2 d (grades) V``, V being the value of the
    highest grade.  The slopes of a softmax, weighted by values in 0 .. V, sum to at most V.  Slopes of the logistic
    function are at most 1/4, each enters two probabilities, and these are divided by their sum, at least 1.
    """
    terms = forest.n_trees + 2
    outputs = forest.output_bound * (FLOAT32_ROUNDING + 2.0 * terms * FLOAT64_ROUNDING) + FLOAT32_TINY
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
        strings_attribute("nodes_modes", modes.tolist()),
        ints_attribute("nodes_treeids", tree_of),
        ints_attribute("nodes_nodeids", within),
        ints_attribute("nodes_featureids", np.where(inner, feature, 0)),
        tensor_attribute("nodes_values_as_tensor", np.where(inner, joined("cut", 0.0), 0.0)),
        ints_attribute("nodes_truenodeids", np.where(inner, joined("left", 0), 0)),
        ints_attribute("nodes_falsenodeids", np.where(inner, joined("right", 0), 0)),
        ints_attribute("nodes_missing_value_tracks_true", inner & (joined("missing_left", 0) != 0)),
        ints_attribute("target_treeids", tree_of[leaves]),
        ints_attribute("target_nodeids", within[leaves]),
        ints_attribute("target_ids", tree_of[leaves] % n_outputs),
        tensor_attribute("target_weights_as_tensor", joined("value", 0.0)[leaves]),
        tensor_attribute("base_values_as_tensor", np.full(n_outputs, forest.base_score)),
        int_attribute("n_targets", n_outputs),
        string_attribute("aggregate_function", "SUM"),
        string_attribute("post_transform", "NONE"),
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


def _add_link(graph: Graph, forest: Forest, outputs: str) -> None:
    """Add the operators that compute the output ``score`` from ``outputs`` (see rankmill.scorer.forest.links)."""
    values = class_values(forest.link, forest.n_outputs)
    worth = graph.constant("worth", values[:, None])
    f = graph.node("Cast", [outputs], "f", int_attribute("to", DOUBLE))
    if forest.link.startswith("softmax"):
        masses = graph.node("Softmax", [f], "masses", int_attribute("axis", 1))
    else:
        # P(y > k) = 1 / (1 + exp f_k); with 1 prepended and 0 appended, the differences are the probabilities
        zero, one = graph.constant("zero", 0.0), graph.constant("one", 1.0)
        axis = graph.constant("axis", np.array([1]))
        in_front, behind = (
            graph.constant("in_front", np.array([0, 1, 0, 0])),
            graph.constant("behind", np.array([0, 0, 0, 1])),
        )
        odds = graph.node("Exp", [f], "odds")  # may be infinite: 1 / (1 + inf) is 0
        parts = graph.node("Add", [odds, one], "parts")
        above = graph.node("Div", [one, parts], "above")
        from_one = graph.node("Pad", [above, in_front, one], "from_one")
        to_zero = graph.node("Pad", [above, behind, zero], "to_zero")
        differences = graph.node("Sub", [from_one, to_zero], "differences")
        clipped = graph.node("Max", [differences, zero], "clipped")
        mass = graph.node("ReduceSum", [clipped, axis], "mass")
        masses = graph.node("Div", [clipped, mass], "masses")
    expected = graph.node("MatMul", [masses, worth], "expected")
    graph.node("Cast", [expected], "score", int_attribute("to", FLOAT))
