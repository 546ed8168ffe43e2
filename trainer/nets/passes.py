"""Forward and backward passes over a batch of whole queries, and the weights they change.

All weights are one flat array, of which layers have parts; so are the gradient and the moments of the optimiser.
Workers share a batch by blocks of rows, and the gradient of a layer by its inputs; no sum depends on who computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.kernels.dense import PANEL, from_panels, in_panels, transpose_panels
from rankmill.foundation.kernels.randoms import random_bits
from rankmill.scorer.nets._kernels import scores_of
from rankmill.scorer.nets.inputs import NetInputs
from rankmill.scorer.nets.net import ACTIVATIONS, Layer
from rankmill.trainer.data.layout import aligned_empty
from rankmill.trainer.nets import _kernels
from rankmill.trainer.nets._kernels import BLOCK, Rule
from rankmill.trainer.nets.fit_inputs import normal_draws
from rankmill.trainer.nets.options import ADAMW, NetOptions
from rankmill.trainer.team import Team

Floats32 = npt.NDArray[np.float32]
EPSILON = 1e-5  # added to variances
_BETA_1, _BETA_2, _ADAM_EPSILON = 0.9, 0.999, 1e-8
_MOMENTUM = 0.1  # share of a batch in the running mean and variance
_LEAST_ROWS = 512  # rows a worker
_WEIGHTS, _DROPOUT, _NOISE = 0x77656967687473, 0x64726F706F7574, 0x6E6F697365  # keys of draws
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
        self._n, self._rows = 0, np.zeros(0, dtype=np.int64)
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
        self._activation = ACTIVATIONS.index(options.activation)
        self._dropped = round(options.dropout * 65536)

    def forward(
        self,
        source: PreparedRows,
        rows: npt.NDArray[np.int64],
        key: np.uint64,
        scores: npt.NDArray[np.float64],
        team: Team,
    ) -> None:
        """Write the scores (n,) of these rows of ``source``, with the noise and dropout of ``key``."""
        self._n, self._rows = len(rows), rows
        parts, normalised = self._of_weights, self._options.batch_norm
        noise = np.float32(self._options.input_noise)
        layers = self.weights.n_layers
        of_noise = np.uint64(random_bits(key, _NOISE))
        none3, none2, none1 = np.zeros((0, 0, PANEL), np.float32), np.zeros((0, 0), np.float32), np.zeros(0, np.float32)
        none_of_sums = np.zeros((0, 0))

        def first_layer(first: int, last: int, _: int) -> None:
            _kernels.first_layer(
                source.numbers, source.categories, rows, first, last, noise, of_noise, parts["tables"],
                self._inputs.n_base, self._categories, self._x, parts["weights 1"] if layers else none3,
                self._bias(1) if layers else none1, normalised, self._z[0] if layers else none2,
                *(self._squares[0] if layers else (none_of_sums, none_of_sums)),
            )  # fmt: skip
            if not layers:
                scores_of(self._x, first, last, parts["top"], self._start, scores, 0)

        self._share(team, first_layer)
        for number in range(1, layers + 1):
            below, statistics = number - 1, self.statistics[number - 1]
            if normalised:
                _kernels.moments(
                    *self._squares[below], -(-self._n // BLOCK), self._n, parts[f"gains {number}"],
                    parts[f"shifts {number}"], EPSILON, statistics.mean, statistics.inverse, statistics.factor,
                    statistics.shift, statistics.variance,
                )  # fmt: skip
            of_dropout = np.uint64(random_bits(key, _DROPOUT + number))
            common = (
                self._z[below], self.weights.widths[number], statistics.factor, statistics.shift, self._activation,
                of_dropout, self._dropped, self._h[below],
            )  # fmt: skip

            def next_layer(
                first: int, last: int, _: int, number: int = number, common: tuple[object, ...] = common
            ) -> None:
                if number == layers:
                    _kernels.last_layer(*common, first, last, parts["top"], self._start, scores)
                else:
                    _kernels.next_layer(
                        *common, first, last, parts[f"weights {number + 1}"], self._bias(number + 1), normalised,
                        self._z[number], *self._squares[number],
                    )  # fmt: skip

            self._share(team, next_layer)

    def _bias(self, number: int) -> Floats32:
        """Return what the sums of a layer start from: its biases, or 0 if it is normalised."""
        parts = self._of_weights
        return self._zeros[: len(parts[f"shifts {number}"])] if self._options.batch_norm else parts[f"shifts {number}"]

    def backward(self, slopes: npt.NDArray[np.float64], rule: Rule, team: Team) -> None:
        """Compute the gradient of the loss, and make a step. ``slopes`` (n,) are its derivatives by the last scores."""
        n, layers, normalised = self._n, self.weights.n_layers, self._options.batch_norm
        parts, blocks = self._of_weights, -(-self._n // BLOCK)
        embedded = len(self._inputs.categorical) > 0
        for number in range(1 if embedded else 2, layers + 1):
            transpose_panels(parts[f"weights {number}"], self.weights.widths[number], self._transposed[number - 1])
        if not layers:

            def linear(first: int, last: int, _: int) -> None:
                for begin in range(first, last, BLOCK):
                    end = min(begin + BLOCK, last)
                    _kernels.slopes_of_weights(self._x, slopes, begin, end, self._top_parts)

            self._share(team, linear)
            if embedded:
                self._d_inputs[:n, : self._inputs.n_inputs] = slopes[:, None].astype(np.float32) * parts["top"]
        else:

            def from_scores(first: int, last: int, _: int) -> None:
                top = self.statistics[-1]
                _kernels.back_from_scores(
                    slopes, parts["top"], first, last, self._d[-1], self._h[-1], self._z[-1], top.mean, top.inverse,
                    self._activation, self._dropped, *self._parts[-1], self._top_parts,
                )  # fmt: skip

            if self.weights.widths[-1] < self._d[-1].shape[1]:
                self._d[-1][:n, self.weights.widths[-1] :] = 0.0
            self._share(team, from_scores)
            for number in range(layers, 0, -1):
                self._back_through(number, n, blocks, normalised=normalised, embedded=embedded, team=team)
        self._learn(rule, blocks, team)

    def _back_through(self, number: int, n: int, blocks: int, *, normalised: bool, embedded: bool, team: Team) -> None:
        at, statistics = number - 1, self.statistics[number - 1]
        for of_blocks, total in zip(self._parts[at], self._totals[at], strict=True):
            _kernels.add_blocks(of_blocks, blocks, total)
        common = (
            self._d[at], self._z[at], statistics.mean, statistics.inverse, statistics.factor, *self._totals[at], n,
            normalised,
        )  # fmt: skip
        transposed = self._transposed[at]
        if number == 1 and not embedded:
            transposed = transposed[:0]
        zeros = self._zeros[: transposed.shape[0] * PANEL]

        def back(first: int, last: int, _: int) -> None:
            if number == 1:
                _kernels.back_to_inputs(*common, first, last, transposed, zeros, self._d_inputs)
                return
            below = self.statistics[at - 1]
            _kernels.back_through_layer(
                *common, first, last, transposed, zeros, self._d[at - 1], self._h[at - 1], self._z[at - 1], below.mean,
                below.inverse, self._activation, self._dropped, *self._parts[at - 1],
            )  # fmt: skip

        if number > 1 or normalised or embedded:
            self._share(team, back)

    def _learn(self, rule: Rule, blocks: int, team: Team) -> None:
        """Compute the gradients of all weights, and make a step; workers share the inputs of each layer."""
        weights, gradient, (first_moment, second_moment) = self._of_weights, self._of_gradient, self._of_moments
        categorical, size = len(self._inputs.categorical), team.busy(self._n, _LEAST_ROWS)

        def learn(worker: int) -> None:
            for number, n_inputs in enumerate(self.weights.widths[:-1], start=1):
                name, x = f"weights {number}", self._x if number == 1 else self._h[number - 2]
                first, last = worker * n_inputs // size, (worker + 1) * n_inputs // size
                _kernels.learn_inputs(
                    x, self._d[number - 1], self._n, first, last, weights[name], gradient[name], first_moment[name],
                    second_moment[name], rule,
                )  # fmt: skip
            if worker == 0:
                self._learn_vectors(rule, blocks)
            if worker == size - 1 and categorical:
                gradient["tables"][:] = 0.0
                _kernels.add_to_tables(
                    self._categories, self._n, 0, categorical, self._d_inputs, self._inputs.n_base, gradient["tables"]
                )
                self._step("tables", rule, rule.decay)

        team.each(learn, size)
        self.steps += rule.rate > 0.0

    def _learn_vectors(self, rule: Rule, blocks: int) -> None:
        _kernels.add_blocks(self._top_parts, blocks, self._of_gradient["top"])
        self._step("top", rule, rule.decay)
        for number, (sums, products) in enumerate(self._totals, start=1):
            self._of_gradient[f"shifts {number}"][:] = sums
            self._step(f"shifts {number}", rule, 0.0)
            if self._options.batch_norm:
                self._of_gradient[f"gains {number}"][:] = products
                self._step(f"gains {number}", rule, 0.0)

    def _step(self, name: str, rule: Rule, decay: float) -> None:
        flat = (parts[name].reshape(-1) for parts in (self._of_weights, self._of_gradient, *self._of_moments))
        _kernels.step(*flat, rule, decay)

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

    def follow_statistics(self) -> None:
        """Let the running means and variances follow those of the last batch."""
        if not self._options.batch_norm:
            return
        share = np.float32(max(_MOMENTUM, 1.0 / self.steps))
        for each in self.statistics:
            _kernels.fold_running(each.running_mean, each.mean, share)
            _kernels.fold_running(each.running_variance, each.variance, share)

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

    def _share(self, team: Team, task: Callable[[int, int, int], None]) -> None:
        """Run ``task(first row, last row, worker)`` for ranges that begin with a block and make up the batch."""
        blocks, busy = -(-self._n // BLOCK), team.busy(self._n, _LEAST_ROWS)

        def share(worker: int) -> None:
            first, last = (min(self._n, k * blocks // busy * BLOCK) for k in (worker, worker + 1))
            if first < last:
                task(first, last, worker)

        team.each(share, busy)
