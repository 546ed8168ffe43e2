"""A net in ONNX, by operators that every runtime has.

A value becomes an input by the steps of `rankmill.scorer.nets.inputs`, in double, and is rounded to float32 as here.  The knot below a
value is found by halving, for all features at once: each step adds a power of two to the places where the knot so much further is not
above the value.  So a graph has few operators, however many features and knots there are, and its inputs have the bits of those here; only
the logarithm of ``log1p`` may be rounded in another way.  A category is looked up in a table (LabelEncoder), which gives its
row of the embeddings.

The layers are products of float32 matrices (Gemm), whose sums runtimes add in an order of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import ConversionRefused
from rankmill.scorer.exchange.categories import CategoryNumbers
from rankmill.scorer.exchange.conversion import FLOAT32_MAX, FLOAT32_ROUNDING, FLOAT32_TINY
from rankmill.scorer.exchange.onnx_format import (
    DOUBLE,
    FLOAT,
    INT64,
    MACHINE_LEARNING,
    Graph,
    Scores,
    float_attribute,
    floats_attribute,
    int_attribute,
)
from rankmill.scorer.nets._kernels import FIRST_CATEGORY, LARGEST_INPUT, MISSING_CATEGORY, OTHER_CATEGORY
from rankmill.scorer.nets.inputs import LINEAR, LOG1P, QUANTILE, NetInputs
from rankmill.scorer.nets.net import RELU, TANH, Net

Floats = npt.NDArray[np.float64]
ACTIVATIONS = {RELU: "Relu", TANH: "Tanh"}
MOST_ROWS = 1 << 24  # of embeddings: their numbers are float32 in LabelEncoder
LARGEST_LOG1P = float(np.log1p(FLOAT32_MAX))
LOGARITHM_ERROR = 2e-12  # absolute, ours and theirs
TANH_ERROR = 2.0**-21  # absolute, theirs: eight times the rounding of a float32 below 1


def add_net(graph: Graph, net: Net, known: Mapping[str, CategoryNumbers], features: str, out: str) -> Scores:
    """Add the operators that compute the scores ``out`` (n, 1) float32 from the values ``features``.

    ``known`` has the numbers of the categories of each categorical feature.

    Raises
    ------
    ConversionRefused
        There are more categories than float32 can count.
    """
    given = net.inputs
    parts = []
    if len(given.numeric):
        parts.append(_add_numbers(graph, given, features))
    if len(given.indicators):
        values = _columns(graph, features, "indicators", given.indicators)
        parts.append(_cast(graph, graph.node("IsNaN", [values], "is_missing"), "missing", FLOAT))
    if given.embeddings.size:
        numbers = [known[net.feature_names[f]] for f in given.categorical]
        parts.append(_add_embeddings(graph, given, numbers, features))
    if not parts:
        parts.append(_columns(graph, features, "none", np.zeros(0, dtype=np.int32)))
    h = parts[0] if len(parts) == 1 else graph.node("Concat", parts, "inputs", int_attribute("axis", 1))
    for number, (weights, biases) in enumerate(net.layers, 1):
        matrices = graph.constant(f"weights_{number}", weights), graph.constant(f"biases_{number}", biases)
        h = graph.node("Gemm", [h, *matrices], f"sums_{number}")
        if net.activation in ACTIVATIONS:
            h = graph.node(ACTIVATIONS[net.activation], [h], f"outputs_{number}")
    start = graph.constant("start", np.array([net.start], dtype=np.float32))
    name = graph.node("Gemm", [h, graph.constant("top", net.top[:, None]), start], out)
    return Scores(name, *_size_and_bound(net))


def _add_numbers(graph: Graph, given: NetInputs, features: str) -> str:
    """Add the inputs of the numeric features: scale (transform - centre), 0 where the value is missing."""
    x = _cast(graph, _columns(graph, features, "numeric", given.numeric), "numbers", DOUBLE)
    if given.transform == QUANTILE:
        t = _add_interpolation(graph, given, x)
    else:
        largest = graph.constant("smallest_value", -FLOAT32_MAX), graph.constant("largest_value", FLOAT32_MAX)
        t = graph.node("Clip", [x, *largest], "finite")
    if given.transform == LOG1P:
        size = graph.node("Add", [graph.node("Abs", [t], "sizes"), graph.constant("one", 1.0)], "sizes_and_1")
        t = graph.node(
            "Mul", [graph.node("Sign", [t], "signs"), graph.node("Log", [size], "logarithms")], "transformed"
        )
    t = graph.node("Sub", [t, graph.constant("centres", given.centres)], "centred")
    t = graph.node("Mul", [t, graph.constant("scales", given.scales)], "scaled")
    limits = graph.constant("smallest_input", -LARGEST_INPUT), graph.constant("largest_input", LARGEST_INPUT)
    t = graph.node("Clip", [t, *limits], "limited")
    t = graph.node("Where", [graph.node("IsNaN", [x], "no_number"), graph.constant("zero", 0.0), t], "filled")
    return _cast(graph, t, "numeric_inputs", FLOAT)


def _add_interpolation(graph: Graph, given: NetInputs, x: str) -> str:
    """Add the lines through the knots at ``x``, as `rankmill.scorer.nets._kernels.interpolate` follows them."""
    counts = np.diff(given.knot_starts)
    size = 1 << int(counts.max() - 1).bit_length()  # a power of two: the steps are its halves
    knots, heights = (table[:, : size + 1].astype(np.float64) for table in given.padded)
    least, greatest = knots[:, 0], knots[np.arange(len(counts)), counts - 1]
    x = graph.node("Max", [x, graph.constant("least_knots", least)], "above_least")
    x = graph.node("Min", [x, graph.constant("greatest_knots", greatest)], "within_knots")
    knot_table, height_table = graph.constant("knots", knots.ravel()), graph.constant("heights", heights.ravel())
    none = graph.node("Mul", [_cast(graph, x, "whole", INT64), graph.constant("no_place", np.int64(0))], "no_places")
    place = graph.node("Add", [none, graph.constant("first_knots", np.arange(len(counts)) * (size + 1))], "places")
    half = size >> 1
    while half:
        step = graph.constant(f"half_{half}", np.int64(half))
        further = graph.node("Add", [place, step], f"further_{half}")
        knot = graph.node("Gather", [knot_table, further], f"knots_{half}")
        reached = _cast(graph, graph.node("LessOrEqual", [knot, x], f"is_reached_{half}"), f"reached_{half}", INT64)
        place = graph.node("Add", [place, graph.node("Mul", [reached, step], f"steps_{half}")], f"places_{half}")
        half >>= 1
    beyond = graph.node("Add", [place, graph.constant("next", np.int64(1))], "next_places")

    def ends(table: str, name: str) -> tuple[str, str]:
        """Add the number of ``table`` below x, and the way from it to the next one."""
        low = graph.node("Gather", [table, place], f"low_{name}")
        return low, graph.node("Sub", [graph.node("Gather", [table, beyond], f"high_{name}"), low], f"{name}_apart")

    (knot, wide), (height, rise) = ends(knot_table, "knot"), ends(height_table, "height")
    share = graph.node("Div", [graph.node("Sub", [x, knot], "past_knot"), wide], "shares")
    return graph.node("Add", [height, graph.node("Mul", [share, rise], "risen")], "interpolated")


def _add_embeddings(graph: Graph, given: NetInputs, numbers: list[CategoryNumbers], features: str) -> str:
    """Add the embeddings of the categories of each row, side by side; ``numbers`` are those of each feature."""
    if len(given.embeddings) > MOST_ROWS:
        raise ConversionRefused(
            f"ONNX counts at most {MOST_ROWS:,} categories, and this net knows {len(given.codes):,}"
        )
    rows = []
    for j, (f, first) in enumerate(zip(given.categorical.tolist(), given.table_starts.tolist(), strict=True)):
        values = _columns(graph, features, f"category_{j}", np.array([f]))
        codes = given.codes_of(j)
        if not len(codes):
            row = graph.constant(f"other_{j}", np.float32(first + OTHER_CATEGORY))
        else:
            row = graph.node(
                "LabelEncoder",
                [values],
                f"known_{j}",
                floats_attribute("keys_floats", np.array([numbers[j].numbers[code] for code in codes.tolist()])),
                floats_attribute("values_floats", first + FIRST_CATEGORY + np.arange(len(codes))),
                float_attribute("default_float", first + OTHER_CATEGORY),
                domain=MACHINE_LEARNING,
            )
        missing = graph.constant(f"missing_{j}", np.float32(first + MISSING_CATEGORY))
        rows.append(graph.node("Where", [graph.node("IsNaN", [values], f"no_category_{j}"), missing, row], f"row_{j}"))
    found = graph.node("Concat", rows, "float_rows", int_attribute("axis", 1))
    table = graph.constant("embeddings", given.embeddings)
    embedded = graph.node("Gather", [table, _cast(graph, found, "rows", INT64)], "embedded")
    shape = graph.constant(
        "side_by_side", np.array([0, len(rows) * given.embeddings.shape[1]])
    )  # 0: as many rows as there are
    return graph.node("Reshape", [embedded, shape], "embedding_inputs")


def _columns(graph: Graph, features: str, name: str, columns: npt.NDArray[np.integer]) -> str:
    """Add some columns of the features."""
    places = graph.constant(f"columns_{name}", columns.astype(np.int64))
    return graph.node("Gather", [features, places], f"values_{name}", int_attribute("axis", 1))


def _cast(graph: Graph, values: str, name: str, kind: int) -> str:
    return graph.node("Cast", [values], name, int_attribute("to", kind))


def _size_and_bound(net: Net) -> tuple[float, float]:
    """Return the greatest absolute value of a score of any document, and a bound of the difference to ours."""
    size, error = _inputs_and_errors(net.inputs)
    size, error = _through_layers(net, size[None], error[None])
    return float(size[0]), float(error[0])


def bounds_of_documents(net: Net, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return a bound of the difference between each score (n,) there and here, for documents with these ``values`` (n, n_features).

    It is far below the bound for any document, whose inputs and outputs may all be the largest at once.
    """
    inputs = net.inputs_of(values).astype(np.float64)
    _, largest = _inputs_and_errors(net.inputs)
    errors = np.broadcast_to(largest, inputs.shape)
    return _through_layers(net, np.abs(inputs), errors, inputs)[1]


def _through_layers(
    net: Net, size: Floats, error: Floats, outputs: Floats | None = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the greatest absolute score of each row, and a bound of the difference to ours, from those of its inputs.

    Sums of n + 1 terms, in any order, are off by at most ``gamma = (n + 1) u / (1 - (n + 1) u)`` times the sum of the absolute terms,
    u = 2^-24 (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2); ours are, and so are theirs.  An output
    of a layer also passes on the errors of its inputs, each times its weight; no activation makes an error larger.
    ``outputs`` are the inputs of known documents, whose sizes are followed instead of bounds of them.
    """
    top = net.top[:, None], np.array([net.start])
    for number, (weights, biases) in enumerate([*net.layers, top]):
        if number and net.activation == TANH:
            error = error + TANH_ERROR
            size = np.ones_like(size) if outputs is None else size
        exact, absolute = weights.astype(np.float64), np.abs(weights).astype(np.float64)
        share = (len(weights) + 1) * FLOAT32_ROUNDING
        gamma = share / (1.0 - share)
        terms = size @ absolute + np.abs(biases)
        passed = error @ absolute
        error = passed * (1.0 + 4.0 * gamma) + 2.0 * gamma * terms + 2.0 * (len(weights) + 1) * FLOAT32_TINY
        size = terms * (1.0 + gamma)
        if outputs is not None:
            outputs = outputs @ exact + biases
            if number < len(net.layers) and net.activation == RELU:
                error = np.where(outputs < -error, 0.0, error)  # 0 here and there
                outputs = np.maximum(outputs, 0.0)
            elif number < len(net.layers) and net.activation == TANH:
                outputs = np.tanh(outputs)
            size = np.abs(outputs)
    return size[:, 0], error[:, 0]


def _inputs_and_errors(given: NetInputs) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the greatest absolute value of each input, and bounds of their differences to ours."""
    scales = np.abs(given.scales)
    far = {LINEAR: FLOAT32_MAX, LOG1P: LARGEST_LOG1P}.get(given.transform, 0.0) + np.abs(given.centres)
    if given.transform == QUANTILE and len(given.numeric):
        low, high = (
            way.reduceat(given.heights.astype(np.float64), given.knot_starts[:-1]) for way in (np.minimum, np.maximum)
        )
        far = np.maximum(np.abs(low - given.centres), np.abs(high - given.centres))
    with np.errstate(over="ignore"):
        numbers = np.minimum(scales * far, LARGEST_INPUT) * (1.0 + FLOAT32_ROUNDING)
    errors = np.zeros(len(numbers))
    if given.transform == LOG1P:
        errors = 2.0 * FLOAT32_ROUNDING * numbers + scales * LOGARITHM_ERROR + FLOAT32_TINY
    rows = np.split(np.abs(given.embeddings).astype(np.float64), given.table_starts[1:])
    width = given.embeddings.shape[1]
    embedded = [own.max(axis=0, initial=0.0) for own in rows] if len(given.categorical) else [np.zeros(0)]
    sizes = np.concatenate([numbers, np.ones(len(given.indicators)), *embedded])
    return sizes, np.concatenate([errors, np.zeros(len(given.indicators) + width * len(given.categorical))])
