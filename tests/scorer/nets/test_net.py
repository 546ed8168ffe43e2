"""Nets as data: inputs and scores against twins, the same bits in any batch, and bytes that notice every change."""

from dataclasses import replace

import numpy as np
import pytest

from rankmill.scorer.nets.inputs import NetInputs
from rankmill.scorer.nets.net import Layer, Net
from tests import naive_nets
from tests.refusals import refused


def drawn_net(transform="quantile", widths=(40, 9), activation="relu", seed=0):
    rng = np.random.default_rng(seed)
    numeric, knots = 3, [128, 1, 7]
    starts = np.concatenate(([0], np.cumsum(knots)))
    quantile = transform == "quantile"
    inputs = NetInputs(
        transform=transform,
        numeric=np.array([0, 2, 3]),
        centres=rng.normal(size=numeric),
        scales=rng.random(numeric) + 0.5,
        knot_starts=starts if quantile else np.zeros(numeric + 1),
        knots=np.concatenate([np.sort(rng.normal(size=k)) for k in knots]) if quantile else np.zeros(0),
        heights=np.concatenate([np.sort(rng.normal(size=k)) for k in knots]) if quantile else np.zeros(0),
        indicators=np.array([2]),
        categorical=np.array([1, 4]),
        code_starts=np.array([0, 5, 5]),
        codes=np.array([-2.0, 0.0, 1.0, 3.0, 1e30]),
        embeddings=rng.normal(size=(9, 3)),
    )
    layers, n = [], inputs.n_inputs
    for width in widths:
        layers.append(Layer(rng.normal(size=(n, width)) / np.sqrt(n), rng.normal(size=width)))
        n = width
    return Net(
        feature_names=tuple("abcde"), inputs=inputs, layers=tuple(layers), top=rng.normal(size=n), start=0.25,
        activation=activation if widths else "identity", objective="softmax", categories={"b": ["acme"], "e": []},
        parameters={"layers": list(widths)}, info={"max_grade": 4},
    )  # fmt: skip


def drawn_values(n, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5)).astype(np.float32) * np.float32(3.0)
    x[:, 1] = rng.choice([-2.0, 0.0, 1.0, 3.0, 1e30, 7.0, np.nan], n)
    x[rng.random(x.shape) < 0.1] = np.nan
    x[:3, 0] = np.inf, -np.inf, 1e38
    x[3:6, 2] = x[6:9, 3] = np.inf, -np.inf, 1e38
    return x


NETS = [
    {},
    {"transform": "log1p", "activation": "tanh"},
    {"transform": "linear", "widths": ()},
    {"widths": (33,)},
    {"widths": (70, 64, 5)},
]


@pytest.mark.parametrize("options", NETS)
def test_scores_are_those_of_the_twin(options):
    net, x = drawn_net(**options), drawn_values(60)
    expected = [naive_nets.score_of(row, net) for row in x]
    assert net.predict(x) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert np.array_equal(net.predict(x).astype(np.float32), net.predict(x))


@pytest.mark.parametrize("options", NETS)
def test_all_weights_put_back_give_the_same_net_and_others_another(options):
    net, other = drawn_net(**options), drawn_net(**options, seed=3)
    assert net.with_weights(net.all_weights).to_bytes() == net.to_bytes()
    moved = net.with_weights(other.all_weights)
    assert np.array_equal(moved.all_weights, other.all_weights)
    assert len(net.all_weights) == net.n_weights
    with pytest.raises(ValueError, match="weights"):
        net.with_weights(net.all_weights[1:])


@pytest.mark.parametrize("options", NETS)
def test_a_score_does_not_depend_on_batch_order_or_threads(options):
    net, x = drawn_net(**options), drawn_values(1300)
    whole = net.predict(x)
    assert np.all(np.isfinite(whole))
    for size in (1, 7, 1024):
        parts = [net.predict(x[first : first + size]) for first in range(0, 100 if size == 1 else len(x), size)]
        assert np.array_equal(np.concatenate(parts), whole[: sum(map(len, parts))])
    order = np.random.default_rng(2).permutation(len(x))
    assert np.array_equal(net.predict(x[order]), whole[order])
    for n_threads in (2, 3):
        assert np.array_equal(net.predict(x, n_threads), whole)
    assert np.array_equal(net.predict(x.astype(np.float64)), whole)
    assert np.array_equal(net.predict(np.asfortranarray(x)), whole)


def test_prepared_inputs_give_the_same_scores():
    net, x = drawn_net(), drawn_values(1500)
    numbers = np.zeros((len(x), net.inputs.n_base), dtype=np.float32)
    categories = np.zeros((len(x), 2), dtype=np.int32)
    x.flags.writeable = False
    net.inputs.write_numbers(x, 0, len(x), numbers)
    net.inputs.find_categories(x, 0, len(x), categories)
    assert np.array_equal(net.scores_of_inputs(numbers, categories, 2), net.predict(x))
    expected = [naive_nets.inputs_of(row, net.inputs)[: net.inputs.n_base] for row in x[:200]]
    assert numbers[:200] == pytest.approx(np.array(expected), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("options", NETS)
def test_bytes_give_the_same_net(options, tmp_path):
    net = drawn_net(**options)
    net.save(tmp_path / "web.net")
    assert Net.load(tmp_path / "web.net") == net
    again = Net.from_bytes(net.to_bytes())
    assert again == net
    assert hash(again) == hash(net)
    assert np.array_equal(again.predict(drawn_values(50)), net.predict(drawn_values(50)))
    assert (again.widths, again.n_weights, again.sha256) == (net.widths, net.n_weights, net.sha256)


def test_unsound_inputs_and_nets_are_refused():
    net = drawn_net()
    for changes, fact in (
        ({"knots": np.zeros(136)}, "knots"),
        ({"knot_starts": np.array([0, 128, 129, 135])}, "knot_starts"),
        ({"heights": np.full(136, np.nan)}, "heights"),
        ({"numeric": np.array([0, 2, 2])}, "twice"),
        ({"indicators": np.array([1])}, "numeric"),
        ({"codes": np.array([1.0, 0.0, 2.0, 3.0, 4.0])}, "codes"),
        ({"embeddings": np.zeros((8, 3))}, "embeddings"),
        ({"transform": "cubic"}, "'cubic'"),
        ({"centres": np.zeros(2)}, "centres"),
    ):
        with refused(ValueError, fact):
            replace(net.inputs, **changes)
    for changes, fact in (
        ({"top": np.zeros(8)}, 8),
        ({"top": np.full(9, np.inf)}, "finite"),
        ({"top": np.full(9, 3e38)}, "score"),
        ({"start": 0.1}, "start"),
        ({"activation": "cubic"}, "'cubic'"),
        ({"categories": {"b": []}}, "categorical"),
        ({"categories": dict.fromkeys(net.categories, 5)}, "texts"),
        ({"categories": {name: [1] for name in net.categories}}, "texts"),
        ({"feature_names": tuple("abcd")}, 4),
        ({"feature_names": tuple("abcda")}, "unique"),
    ):
        with refused(ValueError, fact):
            replace(net, **changes)


def test_values_of_another_shape_are_refused():
    with refused(ValueError, 5, 4):
        drawn_net().predict(np.zeros((2, 4), dtype=np.float32))
    with refused(ValueError, "int64"):
        drawn_net().predict(np.zeros((2, 5), dtype=np.int64))
    assert len(drawn_net().predict(np.zeros((0, 5), dtype=np.float32))) == 0
