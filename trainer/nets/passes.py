"""Forward and backward passes over a batch of whole queries, and the weights they change.

All weights are one flat array, of which layers have parts; so are the gradient and the moments of the optimiser.
Workers share a batch by blocks of rows, and the gradient of a layer by its inputs; no sum depends on who computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rankmill.foundation.kernels.dense import PANEL, add_products, dense, from_panels, in_panels
from rankmill.foundation.kernels.randoms import random_bits
from rankmill.scorer.nets._kernels import scores_of, squashed, write_embeddings
from rankmill.scorer.nets.inputs import NetInputs
from rankmill.scorer.nets.net import RELU, Layer
from rankmill.trainer.data.layout import aligned_empty
from rankmill.trainer.nets import _kernels
from rankmill.trainer.nets._kernels import BLOCK
from rankmill.trainer.nets.fit_inputs import normal_draws
from rankmill.trainer.nets.options import ADAMW, NetOptions
from rankmill.trainer.team import Team

Floats32 = npt.NDArray[np.float32]
EPSILON = 1e-5  # added to variances
_BETA_1, _BETA_2, _ADAM_EPSILON = 0.9, 0.999, 1e-8
_MOMENTUM = 0.1  # share of a batch in the running mean and variance
_LEAST_ROWS = 512  # rows a worker
_NUMBERS_OF_A_TURN = 3 << 16  # outputs of a layer that stay in the cache of a core until the next step reads them
_WEIGHTS, _DROPOUT, _NOISE = 0x77656967687473, 0x64726F706F7574, 0x6E6F697365  # keys of draws


class Rule(NamedTuple):
    """A step of an optimiser; ``rate`` 0: none."""

    adaptive: bool
    rate: float
    decay: float
    beta_1: float
    beta_2: float
    share_1: float  # 1 - beta_1 ** step
    share_2: float
    epsilon: float


NO_STEP = Rule(adaptive=False, rate=0.0, decay=0.0, beta_1=0.0, beta_2=0.0, share_1=1.0, share_2=1.0, epsilon=1.0)


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """The inputs of all rows of a split, besides embeddings."""

    numbers: Floats32  # (n_rows, n_base)
    categories: npt.NDArray[np.int32]  # (n_rows, n_categorical) rows of the embeddings

    @classmethod
    def of(cls, inputs: NetInputs, values: Floats32, team: Team) -> PreparedRows:
        """Prepare ``values`` (n_rows, n_features) float32; the workers share the rows."""
        numbers = aligned_empty((len(values), inputs.n_base), np.float32)
        categories = np.zeros((len(values), len(inputs.categorical)), dtype=np.int32)
        values = values.view()
        values.flags.writeable = False  # kernels are compiled for one type

        def share(first: int, last: int, _: int) -> None:
            inputs.write_numbers(values, first, last, numbers[first:last])
            if len(inputs.categorical):
                inputs.find_categories(values, first, last, categories[first:last])

        team.share(len(values), 1024, share)
        return cls(numbers, categories)


class Weights:
    """The weights of a net in training, as parts of one flat float32 array.

    Per hidden layer: weights in panels, the factors ``gains`` and the summands ``shifts`` of batch normalisation
    (without it only ``shifts``, the biases).  Then the weights of the score, and the embeddings.
    """

    def __init__(self, inputs: NetInputs, options: NetOptions) -> None:
        self.widths = (inputs.n_inputs, *options.layers)
        self.tables_shape = inputs.embeddings.shape
        self.flat = np.zeros(sum(np.prod(shape, dtype=int) for shape in self._shapes().values()), dtype=np.float32)
        parts = self.parts_of(self.flat)
        for number, (n_inputs, n_outputs) in enumerate(pairwise(self.widths), start=1):
            scale = np.float32(np.sqrt((2.0 if options.activation == "relu" else 1.0) / n_inputs))
            draws = normal_draws(n_inputs * n_outputs, options.seed, _WEIGHTS + number)
            parts[f"weights {number}"][:] = in_panels(scale * draws.reshape(n_inputs, n_outputs))
            parts[f"gains {number}"][:n_outputs] = 1.0
        n = self.widths[-1]
        if options.layers:  # a linear score starts from 0
            parts["top"][:n] = np.float32(np.sqrt(1.0 / n)) * normal_draws(n, options.seed, _WEIGHTS)
        parts["tables"][:] = inputs.embeddings
        self.parts = parts

    @property
    def n_layers(self) -> int:
        """Number of hidden layers."""
        return len(self.widths) - 1

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for number, (n_inputs, n_outputs) in enumerate(pairwise(self.widths), start=1):
            n_panels = -(-n_outputs // PANEL)
            shapes[f"weights {number}"] = (n_panels, n_inputs, PANEL)
            shapes[f"gains {number}"] = shapes[f"shifts {number}"] = (n_panels * PANEL,)
        return shapes | {"top": (self.widths[-1],), "tables": self.tables_shape}

    def parts_of(self, flat: Floats32) -> dict[str, Floats32]:
        """Return the parts of an array of the length of ``flat``, which share its memory."""
        parts, first = {}, 0
        for name, shape in self._shapes().items():
            size = int(np.prod(shape, dtype=int))
            parts[name] = flat[first : first + size].reshape(shape)
            first += size
        return parts


@dataclass(frozen=True, slots=True)
class _Statistics:
    """Batch normalisation of a layer: of the last batch, and running."""

    mean: Floats32  # (columns,)
    inverse: Floats32
    factor: Floats32
    shift: Floats32
    variance: Floats32
    running_mean: Floats32
    running_variance: Floats32

    @classmethod
    def of(cls, columns: int) -> _Statistics:
        zeros = [np.zeros(columns, dtype=np.float32) for _ in range(7)]
        zeros[1][:] = zeros[2][:] = 1.0
        return cls(*zeros)


class Passes:
    """Computes scores and gradients of batches, and moves the weights.

    Parameters
    ----------
    most_rows
        Rows of the largest batch.
    start
        The score of a document of which nothing is known.
    """

    def __init__(self, weights: Weights, inputs: NetInputs, options: NetOptions, most_rows: int, start: float) -> None:
        self.weights, self._inputs, self._options, self._start = weights, inputs, options, np.float32(start)
        self.gradient = np.zeros_like(weights.flat)
        adaptive = options.optimiser == ADAMW
        self.moments = np.zeros((2, weights.flat.size if adaptive else 0), dtype=np.float32)
        self._of_weights, self._of_gradient = weights.parts, weights.parts_of(self.gradient)
        self._of_moments = [weights.parts_of(moment if adaptive else self.gradient) for moment in self.moments]
        if not adaptive:
            self._of_moments = [self._of_gradient] * 2  # never used
        self.steps = 0
        self.powers = np.ones(2)  # beta ** steps
        blocks = -(-most_rows // BLOCK)
        columns = [-(-width // PANEL) * PANEL for width in options.layers]
        self._n = 0
        self._x = aligned_empty((most_rows, inputs.n_inputs), np.float32)
        self._categories = np.zeros((most_rows, len(inputs.categorical)), dtype=np.int32)
        self._z, self._h, self._d = ([aligned_empty((most_rows, c), np.float32) for c in columns] for _ in range(3))
        self._squares = [(np.zeros((blocks, c)), np.zeros((blocks, c))) for c in columns]
        self._parts = [(np.zeros((blocks, c), np.float32), np.zeros((blocks, c), np.float32)) for c in columns]
        self._totals = [(np.zeros(c, np.float32), np.zeros(c, np.float32)) for c in columns]
        self._top_parts = np.zeros((blocks, weights.widths[-1]), np.float32)
        self.statistics = [_Statistics.of(c) for c in columns]
        self._zeros = np.zeros(max([inputs.n_inputs, *columns], default=0) + PANEL, np.float32)
        # of layers above the first, (panels of inputs, outputs, PANEL)
        self._transposed = [
            np.zeros((-(-n_inputs // PANEL), n_outputs, PANEL), np.float32)
            for n_inputs, n_outputs in pairwise(weights.widths)
        ]
        embedded = len(inputs.categorical) > 0
        padded = -(-inputs.n_inputs // PANEL) * PANEL if embedded else 0
        self._d_inputs = aligned_empty((most_rows if embedded else 0, padded), np.float32)
        self._rectified = options.activation == RELU
        self._dropped = round(options.dropout * 65536)
        self._scale = np.float32(65536.0 / (65536.0 - self._dropped))
        self._turn = max(1, _NUMBERS_OF_A_TURN // max(columns, default=BLOCK) // BLOCK) * BLOCK

    @np.errstate(all="ignore")
    def forward(
        self,
        source: PreparedRows,
        rows: npt.NDArray[np.int64],
        key: np.uint64,
        scores: npt.NDArray[np.float64],
        team: Team,
    ) -> None:
        """Write the scores (n,) of these rows of ``source``, with the noise and dropout of ``key``."""
        self._n, layers, top = len(rows), self.weights.n_layers, self._of_weights["top"]

        def layer(number: int, first: int, last: int) -> None:
            """Write the outputs of a layer, 0 for the inputs, and from them the sums of the next one or the scores."""
            if number == 0:
                self._gather(source, rows, key, first, last)
            else:
                self._activate(number, key, first, last)
            outputs = self._x if number == 0 else self._h[number - 1]
            if number == layers:
                scores_of(outputs, first, last, top, self._start, scores, 0)
                return
            sums, panels = self._z[number], self._of_weights[f"weights {number + 1}"]
            dense(outputs, panels, self._bias(number + 1), first, last, sums)
            if self._options.batch_norm:
                _kernels.sums_of_columns(sums, first, last, *self._squares[number])

        for number in range(layers + 1):
            if number > 0 and self._options.batch_norm:
                self._normalise(number)
            self._share(team, partial(layer, number))

    def _gather(self, source: PreparedRows, rows: npt.NDArray[np.int64], key: np.uint64, first: int, last: int) -> None:
        """Write the inputs of these rows of the batch."""
        x, chosen, n_base = self._x[first:last], rows[first:last], self._inputs.n_base
        source.numbers.take(chosen, axis=0, out=x[:, :n_base], mode="clip")
        if self._options.input_noise > 0.0:
            noise = np.float32(self._options.input_noise)
            _kernels.add_noise(noise, np.uint64(random_bits(key, _NOISE)), first, last, n_base, self._x)
        if len(self._inputs.categorical):
            categories = self._categories[first:last]
            source.categories.take(chosen, axis=0, out=categories, mode="clip")
            write_embeddings(categories, last - first, self._of_weights["tables"], n_base, x)

    def _normalise(self, number: int) -> None:
        """Compute each column's mean and variance; batch normalisation becomes ``z * factor + shift``."""
        each, parts, blocks = self.statistics[number - 1], self._of_weights, -(-self._n // BLOCK)
        sums, squares = (_in_order(part[:blocks]) for part in self._squares[number - 1])
        mean = sums / self._n
        variance = np.fmax(0.0, squares / self._n - mean * mean)
        each.mean[:], each.variance[:] = mean, variance
        each.inverse[:] = 1.0 / np.sqrt(variance + EPSILON)
        each.factor[:] = parts[f"gains {number}"] * each.inverse
        each.shift[:] = parts[f"shifts {number}"] - each.mean * each.factor

    def _activate(self, number: int, key: np.uint64, first: int, last: int) -> None:
        """Write the outputs of a layer from its sums."""
        at, n_outputs, each = number - 1, self.weights.widths[number], self.statistics[number - 1]
        if self._rectified:
            of_dropout = np.uint64(random_bits(key, _DROPOUT + number))
            _kernels.rectified(
                self._z[at], first, last, n_outputs, each.factor, each.shift, of_dropout, self._dropped, self._scale,
                self._h[at],
            )  # fmt: skip
        else:
            squashed(self._z[at], first, last, n_outputs, each.factor, each.shift, self._h[at])

    def _bias(self, number: int) -> Floats32:
        """Return what the sums of a layer start from: its biases, or 0 if it is normalised."""
        parts = self._of_weights
        return self._zeros[: len(parts[f"shifts {number}"])] if self._options.batch_norm else parts[f"shifts {number}"]

    @np.errstate(all="ignore")
    def backward(self, slopes: npt.NDArray[np.float64], rule: Rule, team: Team) -> None:
        """Compute the gradient of the loss, and make a step. ``slopes`` (n,) are its derivatives by the last scores."""
        n, layers, widths, parts = self._n, self.weights.n_layers, self.weights.widths, self._of_weights
        embedded = len(self._inputs.categorical) > 0
        for number in range(1 if embedded else 2, layers + 1):
            in_panels(from_panels(parts[f"weights {number}"], widths[number]).T, self._transposed[number - 1])
        top, forces = parts["top"], slopes.astype(np.float32)[:, None]
        outputs, d = (self._h[-1], self._d[-1]) if layers else (self._x, self._d_inputs)

        def from_scores(first: int, last: int) -> None:
            _kernels.slopes_of_weights(outputs, forces, first, last, self._top_parts)
            if layers or embedded:
                np.multiply(forces[first:last], top, out=d[first:last, : len(top)])
            if layers:
                d[first:last, len(top) :] = 0.0
                self._through_activation(layers, first, last)

        self._share(team, from_scores)
        for number in range(layers, 0, -1):
            for of_blocks, total in zip(self._parts[number - 1], self._totals[number - 1], strict=True):
                total[:] = _in_order(of_blocks[: -(-n // BLOCK)])
            self._share(team, partial(self._back_through, number))
        self._learn(rule, team)

    def _through_activation(self, number: int, first: int, last: int) -> None:
        """Turn the derivative by outputs of a layer into that by ``z * factor + shift``, and sum its columns."""
        at, each, h = number - 1, self.statistics[number - 1], self._h[number - 1]
        if not self._rectified:
            self._d[at][first:last] *= np.float32(1.0) - h[first:last] * h[first:last]
        _kernels.through_activation(
            self._d[at], h, self._z[at], each.mean, each.inverse, first, last, self._scale if self._rectified else None,
            *self._parts[at],
        )  # fmt: skip

    def _back_through(self, number: int, first: int, last: int) -> None:
        """Turn the derivative by ``z * factor + shift`` of a layer into that by z, and write that of the layer below.

        Below the first layer are the embeddings, if any.
        """
        at, each, d = number - 1, self.statistics[number - 1], self._d[number - 1]
        if self._options.batch_norm:
            _kernels.through_normalisation(
                d, self._z[at], each.mean, each.inverse, each.factor, *self._totals[at], self._n, first, last
            )
        if number > 1 or len(self._d_inputs):
            transposed = self._transposed[at]
            zeros = self._zeros[: len(transposed) * PANEL]
            dense(d, transposed, zeros, first, last, self._d[at - 1] if number > 1 else self._d_inputs)
        if number > 1:
            self._through_activation(number - 1, first, last)

    def _learn(self, rule: Rule, team: Team) -> None:
        """Compute the gradients of all weights, and make a step; workers share the inputs of each layer."""
        gradient, categorical = self._of_gradient, len(self._inputs.categorical)
        size = team.busy(self._n, _LEAST_ROWS)

        def learn(worker: int) -> None:
            for number, n_inputs in enumerate(self.weights.widths[:-1], start=1):
                name, x = f"weights {number}", self._x if number == 1 else self._h[number - 2]
                first, last = worker * n_inputs // size, (worker + 1) * n_inputs // size
                gradient[name][:, first:last] = 0.0
                add_products(x, self._d[number - 1], self._n, first, last, gradient[name])
                for panel in range(len(gradient[name])):
                    self._step(name, rule, rule.decay, (panel, slice(first, last)))
            if worker == 0:
                self._learn_vectors(rule)
            if worker == size - 1 and categorical:
                gradient["tables"][:] = 0.0
                _kernels.add_to_tables(
                    self._categories, self._n, 0, categorical, self._d_inputs, self._inputs.n_base, gradient["tables"]
                )
                self._step("tables", rule, rule.decay)

        team.each(learn, size)
        self.steps += rule.rate > 0.0

    def _learn_vectors(self, rule: Rule) -> None:
        self._of_gradient["top"][:] = _in_order(self._top_parts[: -(-self._n // BLOCK)])
        self._step("top", rule, rule.decay)
        for number, (sums, products) in enumerate(self._totals, start=1):
            self._of_gradient[f"shifts {number}"][:] = sums
            self._step(f"shifts {number}", rule, 0.0)
            if self._options.batch_norm:
                self._of_gradient[f"gains {number}"][:] = products
                self._step(f"gains {number}", rule, 0.0)

    def _step(self, name: str, rule: Rule, decay: float, at: tuple[int, slice] | tuple[()] = ()) -> None:
        """Move weights, or a contiguous part of them, by a step."""
        if rule.rate == 0.0:
            return
        weights, gradient, *moments = (
            parts[name][at].reshape(-1) for parts in (self._of_weights, self._of_gradient, *self._of_moments)
        )
        if rule.adaptive:
            _kernels.adamw(
                weights, gradient, *moments, rule.rate, decay, rule.beta_1, rule.beta_2, rule.share_1, rule.share_2,
                rule.epsilon,
            )  # fmt: skip
        else:
            _kernels.sgd(weights, gradient, rule.rate, decay)

    def rule(self, rate: float) -> Rule:
        """Return the next step of the optimiser."""
        if self._options.optimiser != ADAMW:
            return NO_STEP._replace(rate=rate, decay=self._options.weight_decay)
        self.powers *= (_BETA_1, _BETA_2)
        share_1, share_2 = (1.0 - self.powers).tolist()
        return Rule(
            adaptive=True,
            rate=rate,
            decay=self._options.weight_decay,
            beta_1=_BETA_1,
            beta_2=_BETA_2,
            share_1=share_1,
            share_2=share_2,
            epsilon=_ADAM_EPSILON,
        )

    @np.errstate(all="ignore")
    def follow_statistics(self) -> None:
        """Let the running means and variances follow those of the last batch."""
        if not self._options.batch_norm:
            return
        share = np.float32(max(_MOMENTUM, 1.0 / self.steps))
        for each in self.statistics:
            for running, current in ((each.running_mean, each.mean), (each.running_variance, each.variance)):
                running[:] += share * (current - running)

    def folded(self) -> Iterator[Layer]:
        """Yield the hidden layers for scoring, with normalisation by the running statistics folded in."""
        parts, normalised = self._of_weights, self._options.batch_norm
        for number, (n_outputs, each) in enumerate(zip(self.weights.widths[1:], self.statistics, strict=True), start=1):
            weights = from_panels(parts[f"weights {number}"], n_outputs).astype(np.float64)
            biases = parts[f"shifts {number}"][:n_outputs].astype(np.float64)
            if normalised:
                inverse = 1.0 / np.sqrt(each.running_variance[:n_outputs].astype(np.float64) + EPSILON)
                factor = parts[f"gains {number}"][:n_outputs] * inverse
                weights, biases = weights * factor, biases - each.running_mean[:n_outputs] * factor
            yield Layer(weights.astype(np.float32), biases.astype(np.float32))

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return all that later steps depend on besides their number, flat arrays by name."""
        running = [part for each in self.statistics for part in (each.running_mean, each.running_variance)]
        return {
            "weights": self.weights.flat,
            "moments": self.moments.reshape(-1),
            "powers": self.powers,
            "running": np.concatenate([np.zeros(0, np.float32), *running]),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]], steps: int) -> None:
        """Set what :meth:`state` returned after ``steps`` steps."""
        self.weights.flat[:], self.powers[:], self.steps = state["weights"], state["powers"], steps
        self.moments[:] = state["moments"].reshape(self.moments.shape)
        first = 0
        for each in self.statistics:
            for part in (each.running_mean, each.running_variance):
                part[:] = state["running"][first : first + len(part)]
                first += len(part)

    def _share(self, team: Team, task: Callable[[int, int], None]) -> None:
        """Run ``task(first row, last row)`` for ranges that begin with a block and make up the batch."""
        blocks, busy = -(-self._n // BLOCK), team.busy(self._n, _LEAST_ROWS)

        def share(worker: int) -> None:
            begin, end = (min(self._n, k * blocks // busy * BLOCK) for k in (worker, worker + 1))
            with np.errstate(all="ignore"):  # weights that grow without bound are found after the epoch
                for first in range(begin, end, self._turn):
                    task(first, min(first + self._turn, end))

        team.each(share, busy)


def _in_order(parts: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """Return the float64 sums (n_columns,) of the rows of ``parts`` (n_blocks, n_columns), added in their order."""
    totals: npt.NDArray[np.float64] = np.add.accumulate(parts, axis=0, dtype=np.float64)[-1]
    return totals
