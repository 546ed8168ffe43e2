"""Models of any kind as ONNX, for onnxruntime and its like: see `onnx_forest` and `onnx_net`.

A blend has the operators of all of its parts, each over its own columns of the features, and adds their float32 scores in double.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import ConversionRefused
from rankmill.scorer.exchange import onnx_net
from rankmill.scorer.exchange.categories import CategoryNumbers, category_numbers, text_notes
from rankmill.scorer.exchange.conversion import (
    FLOAT32_MAX,
    FLOAT32_ROUNDING,
    FLOAT32_TINY,
    FLOAT64_ROUNDING,
    ConvertedModel,
)
from rankmill.scorer.exchange.onnx_forest import add_forest
from rankmill.scorer.exchange.onnx_format import DOUBLE, FLOAT, Graph, Scores, int_attribute
from rankmill.scorer.forest import Forest
from rankmill.scorer.model import Model
from rankmill.scorer.models import Blend, predictor_of
from rankmill.scorer.nets.net import Net

TARGET = "ONNX"
MOST_BYTES = (1 << 31) - 1  # of a protobuf message


def write(model: Model, name: str) -> ConvertedModel:
    """Return ``model`` as ONNX: input ``features`` (n, features) float32, output ``score`` (n, 1) float32.

    Raises
    ------
    ConversionRefused
        Scores exceed the range of float32, or the file would be too large.
    """
    graph = Graph()
    known = {model.feature_names[f]: own for f, own in category_numbers(model).items()}
    scores = _add(graph, model, known, "features", "score")
    texts = {feature: own.texts for feature, own in known.items() if own.texts}
    metadata = {"feature_names": json.dumps(list(model.feature_names), ensure_ascii=False)}
    if texts:
        metadata["categories"] = json.dumps(texts, ensure_ascii=False)
    data = graph.model(name, model.n_features, metadata)
    if len(data) > MOST_BYTES:
        raise ConversionRefused(
            f"{TARGET} files have at most {MOST_BYTES:,} bytes, and this one would have {len(data):,}"
        )
    return ConvertedModel(
        data=data,
        exactness=_exactness(model, scores),
        bound=scores.bound,
        notes=(
            "features are columns in the model's order, which its metadata feature_names lists",
            *text_notes(model),
        ),
    )


def bounds_of_documents(model: Model, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return a bound of the difference between each score (n,) there and here, for documents with these ``values`` (n, n_features).

    ``write`` returns the bound for any document, which for nets is far larger: there all inputs may be the largest at once.
    """
    if isinstance(model, Net):
        return onnx_net.bounds_of_documents(model, values)
    if not isinstance(model, Blend):
        return np.full(len(values), write(model, "model").bound)
    place = {name: f for f, name in enumerate(model.feature_names)}
    total, sizes = np.zeros(len(values)), np.full(len(values), abs(model.base_score))
    for part, weight in zip(model.parts, model.weights.tolist(), strict=True):
        own = np.ascontiguousarray(values[:, [place[name] for name in part.feature_names]])
        total += abs(weight) * bounds_of_documents(part, own)
        sizes += np.abs(weight * predictor_of(part).scores(own))
    return total + (sizes + total) * _rounding_of(model) + FLOAT32_TINY


def _rounding_of(blend: Blend) -> float:
    """Return the relative error of a sum of weighted scores: in double, then rounded to float32."""
    return FLOAT32_ROUNDING + 4.0 * (len(blend.parts) + 2) * FLOAT64_ROUNDING


def _exactness(model: Model, scores: Scores) -> str:
    within = f"within {scores.bound:.2g} of the scores here"
    if isinstance(model, Forest):
        return f"sums in double, given as float32: {within}, half a step of float32"
    share = f"{scores.bound / scores.size if scores.size else 0.0:.2g} of the largest score that the weights allow"
    if isinstance(model, Net):
        return f"sums in float32, in another order: {within}, {share}"
    return f"float32 scores of the parts, added in double: {within}, {share}"


def _add(graph: Graph, model: Model, known: Mapping[str, CategoryNumbers], features: str, out: str) -> Scores:
    """Add the operators that compute the scores ``out`` (n, 1) float32 of ``model`` from the values ``features``."""
    if isinstance(model, Forest):
        return add_forest(graph, model, known, features, out)
    if isinstance(model, Net):
        return onnx_net.add_net(graph, model, known, features, out)
    assert isinstance(model, Blend)  # noqa: S101 (there is no other kind)
    return _add_blend(graph, model, known, features, out)


def _add_blend(graph: Graph, blend: Blend, known: Mapping[str, CategoryNumbers], features: str, out: str) -> Scores:
    """Add the parts of ``blend`` and their weighted sum.

    The difference to our scores is at most that of each part times its weight, the rounding to float32, and those of the sums
    in double.
    """
    column = {name: place for place, name in enumerate(blend.feature_names)}
    total, size, bound = graph.constant("base_score", blend.base_score), abs(blend.base_score), 0.0
    for number, (part, weight) in enumerate(zip(blend.parts, blend.weights.tolist(), strict=True), 1):
        own = graph.part(f"part_{number}_")
        columns = np.array([column[name] for name in part.feature_names], dtype=np.int64)
        of_part = own.node("Gather", [features, own.constant("columns", columns)], "features", int_attribute("axis", 1))
        scores = _add(own, part, known, of_part, "score")
        exact = own.node("Cast", [scores.name], "exact_score", int_attribute("to", DOUBLE))
        weighted = own.node("Mul", [exact, own.constant("weight", weight)], "weighted")
        total = own.node("Add", [total, weighted], "sum")
        size += abs(weight) * scores.size
        bound += abs(weight) * scores.bound
    if not size <= FLOAT32_MAX / 2.0:
        raise ConversionRefused(f"{TARGET} gives scores as float32, and scores of this model reach {size:g}")
    name = graph.node("Cast", [total], out, int_attribute("to", FLOAT))
    return Scores(name, size, bound + (size + bound) * _rounding_of(blend) + FLOAT32_TINY)
