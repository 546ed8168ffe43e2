"""RankNet and LambdaRank as published: forces, factored updates, and what LambdaRank gains."""

import numpy as np
import pytest

from benchmarks import _ranknet_kernels
from rankmill.foundation.kernels.dense import from_panels
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries, mean_of
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.nets import _kernels
from rankmill.trainer.nets.options import as_published
from rankmill.trainer.nets.passes import Weights
from rankmill.trainer.nets.training import NetData, train_net
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.team import Team
from tests import naive_nets
from tests.trainer.nets.net_case import rows_of


def drawn_net(n, n_inputs, n_hidden, seed=0):
    rng = np.random.default_rng(seed)
    x, hidden = rng.normal(size=(n, n_inputs)), rng.normal(size=(n_inputs, n_hidden))
    return x, rng.integers(0, 4, n), hidden, rng.normal(size=n_hidden), rng.normal(size=n_hidden or n_inputs)


@pytest.mark.parametrize("n_hidden", [0, 5])
@pytest.mark.parametrize("n", [2, 20])
def test_the_factored_gradient_is_the_one_pair_by_pair(n, n_hidden):
    x, grades, hidden, biases, top = drawn_net(n, 4, n_hidden)
    factored, by_pair = ([np.zeros_like(a) for a in (hidden, biases, top)] for _ in range(2))
    _ranknet_kernels.factored_gradient(x, grades, hidden, biases, top, 0.7, *factored)
    own_loss = _kernels.pair_by_pair(x, grades, hidden, biases, top, 0.7, *by_pair, 0.0)
    twin, loss = naive_nets.ranknet_gradient(x, grades, hidden, biases, top, 0.7)
    assert own_loss == pytest.approx(loss, rel=1e-10)
    for a, b, c in zip(factored, by_pair, twin, strict=True):
        assert a == pytest.approx(b, rel=1e-10, abs=1e-10)
        assert a == pytest.approx(c, rel=1e-9, abs=1e-9)  # exp is a polynomial


@pytest.mark.parametrize("layers", [(), (6,)])
def test_a_factored_step_is_the_sum_of_the_pairs(layers):
    """One epoch over one query: the weights move by the gradient that pairs alone add up to, to the precision
    of float32."""
    x, grades, _, _, _ = drawn_net(30, 4, 0, seed=3)
    rows = rows_of((x.astype(np.float32), grades.astype(np.int32), np.array([0, 30], dtype=np.int64)))
    data = NetData(train=rows, feature_names=list("abcd"), max_grade=3)
    options = as_published(layers=layers, epochs=1, learning_rate=0.01)
    net = train_net(data, options).net
    parts, inputs = (
        Weights(net.inputs, options).parts,
        np.array([naive_nets.inputs_of(row, net.inputs) for row in rows.values]),
    )
    before = [np.zeros((4, 0)), np.zeros(0), parts["top"].astype(np.float64)]
    if layers:
        before[:2] = from_panels(parts["weights 1"], 6).astype(np.float64), np.zeros(6)
    gradient = [np.zeros_like(values) for values in before]
    _kernels.pair_by_pair(inputs, grades, *before, 1.0, *gradient, 0.0)
    after = [*(net.layers[0] if layers else before[:2]), net.top]
    for now, then, slope in zip(after, before, gradient, strict=True):
        assert now - then == pytest.approx(-0.01 * slope, abs=1e-5)
    assert max(np.abs(slope).max(initial=0.0) for slope in gradient) > 1.0


def test_an_update_pair_by_pair_moves_weights_after_each_pair():
    x, grades, hidden, biases, top = drawn_net(2, 4, 5)
    grades[:] = 1, 0
    moved, gradient = [a.copy() for a in (hidden, biases, top)], [np.zeros_like(a) for a in (hidden, biases, top)]
    none = [np.zeros_like(a) for a in gradient]
    _kernels.pair_by_pair(x, grades, *moved, 1.0, *none, 0.1)
    _ranknet_kernels.factored_gradient(x, grades, hidden, biases, top, 1.0, *gradient)
    for after, before, g in zip(moved, (hidden, biases, top), gradient, strict=True):
        assert after == pytest.approx(before - 0.1 * g, abs=1e-12)


@pytest.mark.parametrize("metric", ["ndcg@3", "map"])
def test_forces_of_lambdarank_are_the_papers(metric):
    rng = np.random.default_rng(2)
    scores, grades = rng.normal(size=9), rng.integers(0, 2, 9).astype(np.int32)
    rows = RankedRows(grades, np.array([0, 9], dtype=np.int64), ())
    options = as_published(objective="lambdamart(tail=false)", metric=metric)
    g, h = np.zeros(9), np.zeros(9)
    objective_of(rows, options.losses()).gradients(1, scores, g, h, Team(1))
    expected = naive_nets.lambdarank_forces(scores.tolist(), grades.tolist(), parse_metric(metric), Policy())
    assert g == pytest.approx(expected, abs=1e-9)


def one_good_document_in_a_crowd(seed, n_queries=150, n=25):
    """Two signals that contradict each other: most pairs are ordered by the first, the best document is found by the
    second."""
    rng = np.random.default_rng(seed)
    grades = np.zeros((n_queries, n), dtype=np.int32)
    grades[:, 0], grades[:, 1 : n // 2] = 4, 1
    first, second = (rng.normal(size=grades.shape) for _ in range(2))
    first += 1.5 * (grades == 1) - 2.5 * (grades == 4)
    second += 2.0 * (grades == 4)
    x = np.stack([first, second], axis=-1).reshape(-1, 2).astype(np.float32)
    return x, grades.reshape(-1), np.arange(0, grades.size + 1, n, dtype=np.int64)


@pytest.mark.parametrize("layers", [(6,)])
def test_lambdarank_beats_ranknet_on_ndcg(layers):
    data = NetData(train=rows_of(one_good_document_in_a_crowd(1)), feature_names=["first", "second"], max_grade=4)
    x, grades, starts = one_good_document_in_a_crowd(2)
    metric, queries = parse_metric("ndcg@5"), PreparedQueries(grades, starts, Policy())
    means, losses = {}, {}
    for objective, rate in (("ranknet", 1e-4), ("lambdamart", 1e-2)):
        options = as_published(objective=objective, metric="ndcg@5", layers=layers, learning_rate=rate, epochs=30)
        result = train_net(data, options)
        values = queries.evaluate([metric], result.net.predict(x))[metric]
        means[objective] = mean_of(values)
        pairs = objective_of(data.train.rows, as_published().losses())
        losses[objective] = pairs.deviance(result.net.predict(data.train.values))
    assert means["lambdamart"] > means["ranknet"] + 0.05
    assert losses["ranknet"] < losses["lambdamart"]  # it minimises its own loss
