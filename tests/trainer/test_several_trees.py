"""Training with several trees a round: several outputs and their link, or several steps."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.scorer.forest import Forest
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.scorer.predict import predict
from rankmill.trainer import round_metrics
from rankmill.trainer.growing import tree as tree_module
from rankmill.trainer.objectives import spelling
from tests.refusals import refused
from tests.trainer.planted import fit, small_data

SHAPES = {"multinomial": ("softmax_grade", 5, 5), "averaged": ("identity", 1, 2)}


@pytest.fixture(autouse=True)
def known_losses(monkeypatch):
    for name, kind in (("multinomial", "Multinomial"), ("averaged", "Averaged")):
        monkeypatch.setitem(spelling.OBJECTIVES, name, f"tests.trainer.several_trees:{kind}")
    for module, least in (
        (tree_module, "_LEAST_WALKED"),
        (round_metrics, "_LEAST_WALKED"),
        (round_metrics, "_LEAST_LINKED"),
    ):
        monkeypatch.setattr(module, least, 1)  # let small work be shared out as well


@pytest.mark.parametrize("objective", SHAPES)
def test_what_is_measured_in_a_round_is_what_its_forest_says(objective):
    data = small_data()
    _, (x, grades, starts), _ = data
    result = fit(data, objective=objective, n_rounds=8, early_stopping_rounds=0)
    forest = result.forest
    assert (forest.link, forest.n_outputs, forest.trees_a_round) == SHAPES[objective]
    assert forest.n_rounds == result.best_round
    assert forest.n_trees == result.best_round * forest.trees_a_round
    metric = parse_metric("ndcg@10")
    queries = PreparedQueries(grades, starts, Policy())
    for record in result.history[: result.best_round]:
        found = queries.means([metric], predict(forest, x, n_rounds=record.round_number))[metric]
        assert record.metrics["valid"]["ndcg@10"] == pytest.approx(found, abs=1e-12)
    assert result.history[-1].metrics["valid"]["ndcg@10"] > result.history[0].metrics["valid"]["ndcg@10"]


def test_trees_of_an_output_lower_its_own_deviance():
    values = fit(small_data(), objective="multinomial", n_rounds=8, options={"eval_metrics": ["deviance"]}).history
    deviances = [record.metrics["train"]["deviance"] for record in values]
    assert deviances == sorted(deviances, reverse=True)
    assert deviances[-1] < 0.8 * deviances[0]


@pytest.mark.parametrize("objective", SHAPES)
def test_threads_and_going_on_do_not_change_a_byte(objective):
    data = small_data()
    way = {"objective": objective, "early_stopping_rounds": 0}
    whole = fit(data, n_rounds=7, **way)
    shared = fit(data, n_rounds=7, options={"n_threads": 3}, **way)
    half = fit(data, n_rounds=3, **way)
    resumed = fit(data, n_rounds=7, options={"resume": half.forest}, **way)
    for other in (shared, resumed):
        assert other.forest.to_bytes() == whole.forest.to_bytes()
        assert other.history == whole.history
    assert half.forest.n_trees == half.best_round * half.forest.trees_a_round


def test_every_tree_has_the_weight_that_the_loss_gives_it_in_the_end():
    forest = fit(small_data(), watch=False, objective="averaged", n_rounds=4).forest
    plain = fit(small_data(), watch=False, objective="l2", n_rounds=8).forest
    assert np.all(forest.tree_weights == 0.2)
    assert np.array_equal(forest.node_value, plain.node_value)
    assert forest.base_score == 0.2 * plain.base_score
    x = small_data()[1][0]
    assert predict(forest, x) == pytest.approx(0.2 * predict(plain, x), rel=1e-12)


@pytest.mark.parametrize(
    "change",
    [{"tree_weights": np.ones(8)}, {"base_score": 1.0}, {"trees_a_round": 1}, {"trees_a_round": 4}, {"link": "ordinal_grade"}],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_a_forest_that_the_loss_could_not_have_made_is_no_start(change):
    forest = fit(small_data(), watch=False, objective="averaged", n_rounds=4).forest
    other = Forest(**({f.name: getattr(forest, f.name) for f in fields(forest)} | change))
    with refused(InvalidParameter, "file", "changed"):
        fit(small_data(), watch=False, objective="averaged", n_rounds=8, options={"resume": other})
