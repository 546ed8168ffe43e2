"""Slow, obvious readers of what is written for tools that tests cannot run: each from the description of its format."""

import json
import math
import struct

import numpy as np

# ---- Solr: MultipleAdditiveTreesModel.scoreNode
# ---------------------------------------------------------------------------


def solr_scores(text, rows, names):
    """Score rows by a model in JSON: 1e-6 is added to thresholds; NaN takes the branch ``missing``, or counts as 0."""
    model = json.loads(text)
    assert model["class"] == "org.apache.solr.ltr.model.MultipleAdditiveTreesModel"
    given = {feature["name"] for feature in model["features"]}
    null_is_zero = model["params"].get("isNullSameAsZero", "true") == "true"
    scores = []
    for row in rows:
        total = np.float32(0.0)
        for tree in model["params"]["trees"]:
            node = tree["root"]
            while "feature" in node:
                assert node["feature"] in given
                value = np.float32(row[names.index(node["feature"])])
                if math.isnan(value) and not null_is_zero:
                    node = node[node["missing"]]
                    continue
                value = np.float32(0.0) if math.isnan(value) else value
                threshold = np.float32(node["threshold"]) + np.float32(1e-6)
                node = node["left"] if value <= threshold else node["right"]
            total = total + np.float32(tree["weight"]) * np.float32(node["value"])
        scores.append(float(total))
    return scores


# ---- ONNX: the protobuf wire format, onnx.proto, and the operators that are used
# ----------------------------------------------


def fields(data):
    """The fields of a protobuf message: number to the list of values, whole numbers or bytes."""
    found, position = {}, 0

    def varint():
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(data):
        key = varint()
        if key & 7 == 0:
            value = varint()
        else:
            assert key & 7 == 2
            size = varint()
            value = data[position : position + size]
            assert len(value) == size
            position += size
        found.setdefault(key >> 3, []).append(value)
    return found


def packed(data):
    """The whole numbers of a packed field."""
    values, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append(value)
            value = shift = 0
    return values


def tensor(data):
    """A TensorProto of doubles or of int64."""
    f = fields(data)
    kind, raw = f[2][0], f[9][0]
    values = np.array(struct.unpack(f"<{len(raw) // 8}{'d' if kind == 11 else 'q'}", raw))
    return values.reshape(packed(f[1][0]) if 1 in f else ())


def attribute(data):
    f = fields(data)
    kind = f[20][0]
    value = {2: f.get(3), 3: f.get(4), 4: f.get(5), 7: f.get(8), 8: f.get(9)}[kind]
    if kind == 7:
        value = packed(value[0])
    elif kind == 8:
        value = [text.decode() for text in value]
    else:
        value = tensor(value[0]) if kind == 4 else value[0]
    return f[1][0].decode(), value


def ensemble_sums(a, row):
    """TreeEnsembleRegressor: the sums of one row of doubles, in double, as float32."""
    nodes = {key: i for i, key in enumerate(zip(a["nodes_treeids"], a["nodes_nodeids"], strict=True))}
    leaves = dict(
        zip(zip(a["target_treeids"], a["target_nodeids"], strict=True), range(len(a["target_ids"])), strict=True)
    )
    sums = [float(base) for base in a["base_values_as_tensor"]]
    for tree in sorted(set(a["nodes_treeids"])):
        node = 0
        while a["nodes_modes"][nodes[tree, node]] != "LEAF":
            i = nodes[tree, node]
            equal = a["nodes_modes"][i] == "BRANCH_EQ"
            assert equal or a["nodes_modes"][i] == "BRANCH_LEQ"
            x, value = row[a["nodes_featureids"][i]], a["nodes_values_as_tensor"][i]
            holds = x == value if equal else x <= value
            if math.isnan(x):
                holds = bool(a["nodes_missing_value_tracks_true"][i])
            node = (a["nodes_truenodeids"] if holds else a["nodes_falsenodeids"])[i]
        leaf = leaves[tree, node]
        sums[a["target_ids"][leaf]] += float(a["target_weights_as_tensor"][leaf])
    return np.float32(sums)


def onnx_scores(data, rows):
    """Score rows by a model: its operators one after the other."""
    model = fields(data)
    graph = fields(model[7][0])
    values = {fields(t)[8][0].decode(): tensor(t) for t in graph.get(5, [])}
    values["features"] = np.asarray(rows, dtype=np.float32)
    for node in map(fields, graph[1]):
        given = [values[name.decode()] for name in node[1]]
        a = dict(attribute(data) for data in node.get(5, []))
        kind = node[4][0].decode()
        if kind == "TreeEnsembleRegressor":
            out = np.array([ensemble_sums(a, row) for row in given[0]])
        elif kind == "Cast":
            out = given[0].astype({1: np.float32, 11: np.float64}[a["to"]])
        elif kind == "Softmax":
            e = np.exp(given[0] - given[0].max(axis=1, keepdims=True))
            out = e / e.sum(axis=1, keepdims=True)
        elif kind == "Pad":
            top, left, bottom, right = given[1]
            out = np.pad(given[0], ((top, bottom), (left, right)), constant_values=float(given[2]))
        elif kind == "ReduceSum":
            out = given[0].sum(axis=tuple(given[1]), keepdims=True)
        else:
            with np.errstate(over="ignore"):
                one = {"Sub": "subtract", "Div": "divide", "Max": "maximum"}.get(kind, kind.lower())  # add, matmul, exp
                out = getattr(np, one)(*given)
        values[node[2][0].decode()] = out
    assert values["score"].dtype == np.float32
    return values["score"][:, 0].astype(np.float64)
