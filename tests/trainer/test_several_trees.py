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
from tests.refusals import refused
from tests.trainer.planted import fit, small_data

SHAPES = {"mcrank": ("softmax_grade", 5, 5), "gbrank(trees=2)": ("identity", 1, 2)}


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


@pytest.mark.parametrize(
    "change",
    [{"tree_weights": np.ones(8)}, {"base_score": 1.0}, {"trees_a_round": 1}, {"trees_a_round": 4}, {"link": "ordinal_grade"}],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_a_forest_that_the_loss_could_not_have_made_is_no_start(change):
    forest = fit(small_data(), watch=False, objective="gbrank(trees=2)", n_rounds=4).forest
    other = Forest(**({f.name: getattr(forest, f.name) for f in fields(forest)} | change))
    with refused(InvalidParameter, "file", "changed"):
        fit(small_data(), watch=False, objective="gbrank(trees=2)", n_rounds=8, options={"resume": other})
