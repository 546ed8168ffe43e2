"""Gradients of all weights against central differences of a float64 twin, and steps of the optimisers."""

import numpy as np
import pytest

from rankmill.foundation.kernels.dense import from_panels
from rankmill.foundation.kernels.randoms import random_bits
from rankmill.trainer.nets.fit_inputs import fit_inputs
from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.nets.passes import _DROPOUT, NO_STEP, Passes, PreparedRows, Weights
from rankmill.trainer.team import Team, with_team
from tests import naive_nets

N = 300  # two blocks of rows
KEY = np.uint64(5)
CASES = [
    {"layers": (40, 33), "batch_norm": True},
    {"layers": (24,), "batch_norm": False},
    {"layers": (9,), "batch_norm": False, "activation": "tanh"},
    {"layers": (16, 8, 4), "batch_norm": True, "activation": "tanh"},
    {"layers": (), "batch_norm": False},
    {"layers": (24, 20), "batch_norm": True, "dropout": 0.4},
]


class Case:
    """A batch with a categorical feature, and its passes."""

    def __init__(self, team=None, n=N, **options):
        self.options = NetOptions(**{"dropout": 0.0, "transform": "linear", "embedding_width": 3, **options})
        rng = np.random.default_rng(3)
        x = rng.normal(size=(n, 6)).astype(np.float32)
        x[rng.random(x.shape) < 0.1] = np.nan
        x[:, 2] = rng.integers(0, 5, n)
        self.team = team or Team(1)
        self.inputs = fit_inputs(x, [2], self.options, self.team)
        self.prepared = PreparedRows.of(self.inputs, x, self.team)
        self.weights = Weights(self.inputs, self.options)
        for name, part in self.weights.parts.items():  # away from 0 and 1, which hide mistakes
            if name.startswith(("gains", "shifts")):
                width = self.weights.widths[int(name.split()[1])]
                part[:width] += (0.3 * rng.normal(size=width)).astype(np.float32)
            elif name == "top":
                part[:] += rng.normal(size=part.shape).astype(np.float32)
        self.passes = Passes(self.weights, self.inputs, self.options, n, 0.0)
        self.slopes = rng.normal(size=n)
        self.rows = rng.permutation(n)

    def gradient(self):
        scores = np.zeros(len(self.rows))
        self.passes.forward(self.prepared, self.rows, KEY, scores, self.team)
        self.passes.backward(self.slopes, NO_STEP, self.team)
        return scores, self.weights.parts_of(self.passes.gradient)

    def twin(self):
        """The same weights in float64, and a function that returns the scores with them."""
        widths, parts = self.weights.widths, self.weights.parts
        layers = [
            [
                from_panels(parts[f"weights {k}"], widths[k]).astype(np.float64),
                parts[f"gains {k}"][: widths[k]].astype(np.float64),
                parts[f"shifts {k}"][: widths[k]].astype(np.float64),
            ]
            for k in range(1, len(widths))
        ]
        top, tables = parts["top"].astype(np.float64), parts["tables"].astype(np.float64)
        numbers = self.prepared.numbers[self.rows].astype(np.float64)
        categories = self.prepared.categories[self.rows, 0]
        dropped = round(self.options.dropout * 65536)
        masks = [
            naive_nets.dropout_mask((len(numbers), widths[k]), int(random_bits(KEY, _DROPOUT + k)), dropped)
            for k in range(1, len(widths))
        ]

        def scores():
            return naive_nets.training_scores(
                np.concatenate([numbers, tables[categories]], axis=1), layers, top,
                activation=self.options.activation, batch_norm=self.options.batch_norm, masks=masks,
            )  # fmt: skip

        return layers, top, tables, scores


@pytest.mark.parametrize("options", CASES)
def test_gradients_are_central_differences(options):
    case = Case(**options)
    found, gradient = case.gradient()
    layers, top, tables, scores = case.twin()
    assert found == pytest.approx(scores(), abs=2e-5)
    expected = {"top": top, "tables": tables}
    for k, (weights, gains, shifts) in enumerate(layers, start=1):
        expected |= {f"weights {k}": weights, f"gains {k}": gains, f"shifts {k}": shifts}
    if not case.options.batch_norm:
        expected = {name: values for name, values in expected.items() if not name.startswith("gains")}
    rng = np.random.default_rng(4)
    for name, values in expected.items():
        own = gradient[name]
        if name.startswith("weights"):
            own = from_panels(own, values.shape[1])
        own = own[: len(values)] if own.ndim == 1 else own
        scale = float(np.abs(own).max())
        for place in rng.choice(values.size, size=min(values.size, 25), replace=False):
            at = np.unravel_index(place, values.shape)
            slope = naive_nets.central_difference(lambda: float(scores() @ case.slopes), values, at)
            assert own[at] == pytest.approx(slope, rel=2e-3, abs=1e-4 * scale), (name, at)


@pytest.mark.parametrize("options", CASES[:2])
def test_gradients_have_the_same_bits_for_any_team(options):
    n = 2100  # enough for three workers
    alone = Case(n=n, **options).gradient()[1]
    for size in (2, 3):
        together = with_team(size, lambda team: Case(team, n=n, **options).gradient()[1])
        assert all(np.array_equal(alone[name], together[name]) for name in alone)


def test_columns_past_the_last_stay_zero():
    case = Case(layers=(33, 5), dropout=0.2)
    for step in range(3):
        case.gradient()
        case.passes.backward(case.slopes, case.passes.rule(0.1), case.team)
        del step
    for number, width in enumerate(case.weights.widths[1:], start=1):
        assert (
            not case.weights.parts[f"weights {number}"]
            .transpose(1, 0, 2)
            .reshape(-1, 64 if width == 33 else 32)[:, width:]
            .any()
        )
        assert not case.weights.parts[f"shifts {number}"][width:].any()


@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
def test_steps_of_the_optimisers(optimiser):
    case = Case(layers=(8,), optimiser=optimiser, weight_decay=0.1)
    before, gradients = case.weights.parts["top"].astype(np.float64), []
    rate, shifts = 0.01, case.weights.parts["shifts 1"].astype(np.float64)
    shift_gradients = []
    for _ in range(3):
        gradient = case.gradient()[1]
        gradients.append(gradient["top"].astype(np.float64))
        shift_gradients.append(gradient["shifts 1"].astype(np.float64))
        case.passes.backward(case.slopes, case.passes.rule(rate), case.team)
    for values, steps, decay, name in ((before, gradients, 0.1, "top"), (shifts, shift_gradients, 0.0, "shifts 1")):
        if optimiser == "adamw":
            expected = [naive_nets.adamw(value, [g[i] for g in steps], rate, decay) for i, value in enumerate(values)]
        else:
            expected = values
            for g in steps:
                expected = expected * (1 - rate * decay) - rate * g
        assert case.weights.parts[name] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_running_statistics_are_those_of_the_first_batch_and_then_follow():
    case = Case(layers=(8,), learning_rate=1e-3)
    for rate in (1e-9, 1e-9):
        case.gradient()
        case.passes.backward(case.slopes, case.passes.rule(rate), case.team)
        case.passes.follow_statistics()
    each = case.passes.statistics[0]
    assert each.running_mean == pytest.approx(each.mean, abs=1e-5)
    assert each.running_variance == pytest.approx(each.variance, rel=1e-4)


def test_noise_of_inputs_has_its_deviation_and_is_drawn_for_each_of_them():
    """Of a linear net: scores move by the sum of independent numbers times the weights."""
    noisy, plain = (Case(n=2000, layers=(), batch_norm=False, input_noise=noise) for noise in (0.5, 0.0))
    added = noisy.gradient()[0] - plain.gradient()[0]
    expected = 0.5 * np.linalg.norm(plain.weights.parts["top"][: plain.inputs.n_base])
    assert added.std() == pytest.approx(expected, rel=0.06)
    assert abs(added.mean()) < 4 * expected / np.sqrt(2000)
