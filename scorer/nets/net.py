"""A trained net: scores, and bytes that notice every change.

``score(x) = start + weights . h``, where h are the outputs of the last hidden layer, or the inputs if there is none; a
layer is ``activation(bias + h @ weights)``.  Batch normalisation is folded into weights and biases.  Everything is
float32.

A score has the same bits for any batch, row order, number of threads and CPU: see `rankmill.foundation.kernels.dense`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import ModelFormatError
from rankmill.foundation.kernels.dense import PANEL, dense, in_panels
from rankmill.foundation.records import JSON, canonical_json
from rankmill.foundation.threads import for_each
from rankmill.scorer.models import model_file
from rankmill.scorer.models.model import Model, check_bound
from rankmill.scorer.models.model_file import shortened
from rankmill.scorer.nets import _kernels
from rankmill.scorer.nets import inputs as net_inputs
from rankmill.scorer.nets.inputs import INPUT, NetInputs

ACTIVATIONS = IDENTITY, RELU, TANH = ("identity", "relu", "tanh")
LARGEST_SCORE = 1e30  # far from the largest float32, so that no sum can overflow
ROWS_OF_A_TURN = 1024  # rows that a free thread takes next; their numbers stay in the cache of a core
NUMBERS_OF_A_TURN = 1 << 24  # inputs and outputs of their layers; of very wide nets, a turn has fewer rows

LAYERS: model_file.ArrayTypes = (
    ("weights", np.dtype("<f4")),
    ("biases", np.dtype("<f4")),
    ("top", np.dtype("<f4")),
)
ARRAYS: model_file.ArrayTypes = (*net_inputs.ARRAYS, *LAYERS)
HEADER: model_file.Header = {
    "activation": str,
    "categories": dict,
    "embedding_width": int,
    "feature_names": list,
    "info": dict,
    "objective": str,
    "parameters": dict,
    "start": float,
    "transform": str,
    "widths": list,
}


class Layer(NamedTuple):
    """A dense layer."""

    weights: npt.NDArray[np.float32]  # (n_inputs, n_outputs)
    biases: npt.NDArray[np.float32]  # (n_outputs,)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Net(Model):
    """A trained net.  Arrays are copied, checked and made read-only.

    Raises
    ------
    ValueError
        An array has another shape than stated here, a number is not finite, or a score could be too large.
    """

    feature_names: tuple[str, ...]  # all features of the dataset it was trained on, in order
    inputs: NetInputs
    layers: tuple[Layer, ...]  # the hidden ones
    top: npt.NDArray[np.float32]  # (outputs of the last layer,) weights of the score
    start: float  # exact in float32
    activation: str
    objective: str
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The categorical features, with the texts of the categories that are not numbers, in any order."""
    parameters: Mapping[str, JSON] = field(default_factory=dict)
    info: Mapping[str, JSON] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "feature_names", tuple(self.feature_names))
        layers = tuple(Layer(_frozen(layer.weights, 2), _frozen(layer.biases, 1)) for layer in self.layers)
        object.__setattr__(self, "layers", layers)
        object.__setattr__(self, "top", _frozen(self.top, 1))
        object.__setattr__(self, "start", float(self.start))
        for name in ("parameters", "info", "categories"):
            # Through JSON and back: a private copy, exactly as the file will hold it.
            object.__setattr__(self, name, json.loads(canonical_json(dict(getattr(self, name)))))
        fault = self._fault()
        if fault is not None:
            raise ValueError(fault)
        check_bound(self.score_bound, LARGEST_SCORE)

    def _fault(self) -> str | None:
        names = self.feature_names
        if not all(type(name) is str and name for name in names) or len(set(names)) != len(names):
            return "feature names are not unique texts"
        if self.inputs.n_features > len(names):
            return f"the inputs use {self.inputs.n_features} features of {len(names)}"
        if {names[f] for f in self.inputs.categorical} != set(self.categories):
            return "the categorical features are not those of the inputs"
        for name, texts in self.categories.items():
            if not (isinstance(texts, list) and all(type(text) is str for text in texts)):
                return f"the categories of {name!r} are not a list of texts"
        if self.activation not in ACTIVATIONS:
            return f"unknown activation {self.activation!r}"
        with np.errstate(over="ignore"):
            if float(np.float32(self.start)) != self.start:
                return "the start is not a float32"
        width = self.inputs.n_inputs
        for weights, biases in self.layers:
            if weights.shape != (width, len(biases)) or not 1 <= len(biases) <= net_inputs.MAX_WIDTH:
                return f"a layer of {width} inputs has weights of shape {weights.shape} and {len(biases)} biases"
            width = len(biases)
        return None if self.top.shape == (width,) else f"{len(self.top)} weights of the score for {width} outputs"

    def __repr__(self) -> str:
        layers = " x ".join(map(str, self.widths)) or "no hidden layer"
        return f"<Net, {layers}, {self.objective}, sha256 {self.sha256[:12]}>"

    @property
    def score_bound(self) -> float:
        """Upper bound of the absolute score of any document, and of any output of a layer on the way to it."""
        bound, greatest = self.inputs.largest, abs(self.start)
        for weights, biases in [*self.layers, Layer(self.top[:, None], np.array([self.start], dtype=INPUT))]:
            reached = np.abs(weights).astype(np.float64).sum(axis=0) * bound + np.abs(biases)
            bound = float(reached.max(initial=0.0))
            greatest = max(greatest, bound)
            bound = 1.0 if self.activation == TANH else bound
        return greatest

    @property
    def used_features(self) -> tuple[int, ...]:
        """Positions in ``feature_names`` of the features that are inputs, ascending."""
        return tuple(sorted([*self.inputs.numeric.tolist(), *self.inputs.categorical.tolist()]))

    @property
    def widths(self) -> tuple[int, ...]:
        """Outputs of each hidden layer."""
        return tuple(len(layer.biases) for layer in self.layers)

    @property
    def n_weights(self) -> int:
        """Number of weights, biases and embeddings."""
        return int(sum(w.size + b.size for w, b in self.layers) + self.top.size + self.inputs.embeddings.size)

    @property
    def all_weights(self) -> npt.NDArray[np.float32]:
        """All weights, biases and embeddings as one vector (n_weights,)."""
        return np.concatenate([part.reshape(-1) for part in self._weight_arrays])

    def with_weights(self, weights: npt.NDArray[np.floating[Any]]) -> Net:
        """Return the net with other ``weights`` (n_weights,), in the order of :attr:`all_weights`, rounded to float32.

        Raises
        ------
        ValueError
            There are fewer or more, or the net is not valid with them.
        """
        if weights.shape != (self.n_weights,):
            raise ValueError(f"expected {self.n_weights} weights, got shape {weights.shape}")
        arrays = self._weight_arrays
        parts = np.split(weights, np.cumsum([part.size for part in arrays])[:-1])
        *layers, top, embeddings = (part.reshape(old.shape) for part, old in zip(parts, arrays, strict=True))
        return replace(
            self,
            inputs=replace(self.inputs, embeddings=embeddings.astype(np.float32)),
            layers=tuple(Layer(w, b) for w, b in zip(layers[::2], layers[1::2], strict=True)),
            top=top,
        )

    @property
    def _weight_arrays(self) -> list[npt.NDArray[np.float32]]:
        return [*(array for layer in self.layers for array in layer), self.top, self.inputs.embeddings]

    def predict(self, values: npt.NDArray[np.floating[Any]], n_threads: int = 1) -> npt.NDArray[np.float64]:
        """Return the (n,) float64 scores of ``values`` (n, n_features), each exact in float32.

        float64 values are rounded to float32 first; NaN is missing.  Threads share blocks of rows; the scores have the
        same bits for any ``n_threads`` and batch.

        Raises
        ------
        ValueError
            ``values`` is not a table of floats with a column for each feature.
        """
        if values.ndim != 2 or values.shape[1] != len(self.feature_names) or values.dtype.kind != "f":
            raise ValueError(
                f"expected floats of shape (n, {len(self.feature_names)}), got {values.dtype} of shape {values.shape}"
            )
        out = np.empty(len(values), dtype=np.float64)

        def score(first: int) -> None:
            block, last = _Scratch.of(self), min(first + self._rows_of_a_turn, len(values))
            rows = _as_rows(values[first:last])
            self.inputs.write_numbers(rows, 0, last - first, block.outputs[0])
            if len(self.inputs.categorical):
                self.inputs.find_categories(rows, 0, last - first, block.categories)
            self._score(block, last - first, out, first)

        self._in_turns(len(values), n_threads, score)
        return out

    def scores_of_inputs(
        self, numbers: npt.NDArray[np.float32], categories: npt.NDArray[np.int32], n_threads: int = 1
    ) -> npt.NDArray[np.float64]:
        """Return the scores of rows whose inputs have been prepared: what :meth:`predict` returns for their values.

        ``numbers`` (n, n_base) and ``categories`` (n, n_categorical) are those of `NetInputs.write_numbers` and
        `NetInputs.find_categories`.
        """
        out = np.empty(len(numbers), dtype=np.float64)

        def score(first: int) -> None:
            block, last = _Scratch.of(self), min(first + self._rows_of_a_turn, len(numbers))
            block.outputs[0][: last - first, : self.inputs.n_base] = numbers[first:last]
            block.categories[: last - first] = categories[first:last]
            self._score(block, last - first, out, first)

        self._in_turns(len(numbers), n_threads, score)
        return out

    def _in_turns(self, n_rows: int, n_threads: int, score: Callable[[int], None]) -> None:
        turns = range(0, n_rows, self._rows_of_a_turn)
        for_each(turns, score, max(1, min(n_threads, len(turns))))

    def _score(self, block: _Scratch, n: int, out: npt.NDArray[np.float64], first: int) -> None:
        """Score the ``n`` rows whose numbers and categories are in ``block`` into ``out[first:]``."""
        inputs, h = self.inputs, block.outputs[0]
        if len(inputs.categorical):
            _kernels.write_embeddings(block.categories, n, inputs.embeddings, inputs.n_base, h)
        for (panels, biases), outputs in zip(self._panels, block.outputs[1:], strict=True):
            dense(h, panels, biases, 0, n, outputs)
            if self.activation == RELU:
                np.maximum(outputs[:n], 0.0, out=outputs[:n])
            elif self.activation == TANH:
                ones, zeros = np.ones_like(biases), np.zeros_like(biases)
                _kernels.squashed(outputs, 0, n, len(biases), ones, zeros, outputs)
            h = outputs
        _kernels.scores_of(h, 0, n, self._top, np.float32(self.start), out, first)

    @cached_property
    def _columns(self) -> list[int]:
        """Numbers of a row: inputs, and outputs of each layer with those that pad the last panel."""
        return [self.inputs.n_inputs, *(len(biases) for _, biases in self._panels)]

    @cached_property
    def _rows_of_a_turn(self) -> int:
        return max(1, min(ROWS_OF_A_TURN, NUMBERS_OF_A_TURN // max(1, sum(self._columns))))

    @cached_property
    def _panels(self) -> tuple[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]], ...]:
        """Weights in panels, and biases with zeros for the columns that pad the last panel."""
        return tuple(
            (in_panels(weights), np.concatenate([biases, np.zeros(-len(biases) % PANEL, dtype=INPUT)]))
            for weights, biases in self.layers
        )

    @cached_property
    def _top(self) -> npt.NDArray[np.float32]:
        """The weights of the score, writable as in training: kernels are compiled for one type."""
        return self.top.copy()

    def to_bytes(self) -> bytes:
        """Return the model file; equal nets have equal bytes."""
        header = {
            "activation": self.activation,
            "categories": self.categories,
            "embedding_width": self.inputs.embeddings.shape[1],
            "feature_names": list(self.feature_names),
            "info": self.info,
            "objective": self.objective,
            "parameters": self.parameters,
            "start": self.start,
            "transform": self.inputs.transform,
            "widths": list(self.widths),
        }
        none = [np.zeros(0, dtype=INPUT)]
        layers = {
            "weights": np.concatenate(none + [layer.weights.reshape(-1) for layer in self.layers]),
            "biases": np.concatenate(none + [layer.biases for layer in self.layers]),
            "top": self.top,
        }
        return model_file.encode(model_file.NET, header, self.inputs.arrays() | layers)

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "model") -> Net:
        """Read a net from ``data``; ``where`` names the source in messages.

        Raises
        ------
        ModelFormatError
            Another format number, damaged bytes, or an array or value that no sound net has.
        """
        _, header, arrays = model_file.decode(data, where, "a net", {model_file.NET: (HEADER, ARRAYS)})
        try:
            return cls._assembled(header, arrays)
        except (ValueError, TypeError, RecursionError) as error:
            raise ModelFormatError(f"{where}: the model is not valid: {shortened(error)}") from error

    @classmethod
    def _assembled(cls, header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Net:
        width, widths = header["embedding_width"], header["widths"]
        if not 0 <= width <= net_inputs.MAX_WIDTH or not all(
            type(each) is int and 1 <= each <= net_inputs.MAX_WIDTH for each in widths
        ):
            raise ValueError("a width is out of range")
        given = {name: arrays[name] for name, _ in net_inputs.ARRAYS}
        rows = len(given["codes"]) + _kernels.FIRST_CATEGORY * len(given["categorical"])
        given["embeddings"] = given["embeddings"].reshape(rows, width)
        inputs = NetInputs(transform=header["transform"], **given)
        layers, weights, biases = [], arrays["weights"], arrays["biases"]
        for n_inputs, n_outputs in pairwise([inputs.n_inputs, *widths]):
            size = n_inputs * n_outputs
            layers.append(Layer(weights[:size].reshape(n_inputs, n_outputs), biases[:n_outputs]))
            weights, biases = weights[size:], biases[n_outputs:]
        if len(weights) or len(biases):
            raise ValueError("more weights or biases than the widths of the layers need")
        kept = ("activation", "categories", "feature_names", "info", "objective", "parameters", "start")
        return cls(inputs=inputs, layers=tuple(layers), top=arrays["top"], **{name: header[name] for name in kept})


class _Scratch(NamedTuple):
    """Scratch buffers for one block of rows."""

    categories: npt.NDArray[np.int32]  # (rows of a turn, n_categorical)
    outputs: list[npt.NDArray[np.float32]]  # inputs, and outputs of each layer, (rows of a turn, columns)

    @classmethod
    def of(cls, net: Net) -> _Scratch:
        """Return buffers for ``net``."""
        rows = net._rows_of_a_turn  # noqa: SLF001 - the same file
        return cls(
            np.zeros((rows, len(net.inputs.categorical)), dtype=np.int32),
            [np.zeros((rows, each), dtype=INPUT) for each in net._columns],  # noqa: SLF001 - the same file
        )


def _frozen(array: npt.NDArray[Any], dimensions: int) -> npt.NDArray[np.float32]:
    if array.ndim != dimensions:
        raise ValueError(f"expected an array of {dimensions} dimensions, found shape {array.shape}")
    with np.errstate(over="ignore"):  # infinite: refused
        copy = np.array(array, dtype=INPUT, order="C")
    if not np.all(np.isfinite(copy)):
        raise ValueError("a weight is not finite")
    copy.flags.writeable = False
    return copy


def _as_rows(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return the values as rows of float32, read-only: kernels are compiled for one type."""
    with np.errstate(over="ignore"):  # too large for float32: infinite
        rows = np.ascontiguousarray(values, dtype=INPUT).view()
    rows.flags.writeable = False
    return rows
