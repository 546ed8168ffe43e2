"""What is said of a model by its scores alone: laws, and trees as an oracle, of which more is known."""

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from rankmill.cli import app
from rankmill.foundation.errors import InputError
from rankmill.pipeline.bins.categories import category_codes
from rankmill.scorer.inspect import any_model
from rankmill.scorer.inspect.any_model import dependence_on, permutation_losses, scores_of_documents, why_by_score
from rankmill.scorer.inspect.dependence import partial_dependence
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.scorer.models.loading import Blend, predictor_of
from tests.naive_inspect import shapley_values
from tests.refusals import refused
from tests.scorer.forests import TEXTS, random_forest
from tests.scorer.rerank.candidate_files import random_candidates, write_letor

NDCG = parse_metric("ndcg@5")


def documents(predictor, n=120, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n, len(predictor.features))).astype(np.float32)
    values[rng.random(values.shape) < 0.1] = np.nan
    return values


def blend(seed=1, **more):
    parts = tuple(random_forest(seed + i, n_trees=10, n_features=6, **more) for i in range(2))
    return Blend(parts=parts, weights=np.array([1.0, 0.5]))


def queries(n, seed=0):
    rng = np.random.default_rng(seed)
    starts = np.concatenate([np.arange(0, n, 7), [n]])
    return PreparedQueries(rng.integers(0, 3, size=n).astype(np.int32), starts, Policy())


@pytest.mark.parametrize(("features", "most"), [(["f2"], 0), (["f1", "f4"], 5)])
def test_dependence_on_documents_is_that_of_trees(features, most):
    forest = random_forest(3, n_trees=20, n_features=6)
    predictor = predictor_of(forest)
    values = documents(predictor, 40)
    found = dependence_on(predictor, values, features, most)
    known = partial_dependence(forest, features, points=found.points, values=values)
    np.testing.assert_allclose(found.outputs, known.outputs, atol=1e-12)
    assert all(np.isnan(axis[0]) and (np.diff(axis[1:]) > 0).all() for axis in found.points)
    if most:
        assert all(len(axis) <= most + 1 for axis in found.points)


def test_dependence_on_a_category_names_its_texts():
    model = blend(categorical=1)
    predictor = predictor_of(model)
    values = documents(predictor, 60)
    values[:, predictor.feature_names.index("f1")] = np.random.default_rng(0).choice(category_codes(TEXTS), 60)
    found = dependence_on(predictor, values, ["f1"], 4)
    texts = found.categories["f1"]
    assert texts[0] == "missing"
    assert len(texts) == len(found.points[0]) <= 5
    for bad in (["f9"], ["f1", "f1"], []):
        with pytest.raises(InputError):
            dependence_on(predictor, values, bad, 4)


def test_a_feature_without_effect_in_the_queries_loses_nothing():
    predictor = predictor_of(blend())
    values, graded = documents(predictor), queries(120)
    constant = 2
    values[:, constant] = np.repeat(np.arange(18), 7)[:120]  # one value a query
    base, losses = permutation_losses(predictor, values, graded, NDCG, repeats=3, seed=1)
    of = {each.feature: each for each in losses}
    assert of[predictor.feature_names[constant]].loss == 0.0
    assert base == graded.means([NDCG], scores_of_documents(predictor, values))[NDCG]
    assert [each.loss for each in losses] == sorted((each.loss for each in losses), reverse=True)
    again = permutation_losses(predictor, values, graded, NDCG, repeats=3, seed=1, n_threads=2)
    assert again == (base, losses)
    assert permutation_losses(predictor, values, graded, NDCG, repeats=3, seed=2)[1] != losses


def test_why_is_the_shapley_value_of_the_difference():
    seed = 1
    predictor = predictor_of(blend(seed))
    above, below = documents(predictor, 2, seed)
    above[1] = below[1]

    def value_of(some):
        mixed = np.where(np.isin(np.arange(len(above)), list(some)), above, below)
        return float(scores_of_documents(predictor, mixed[None].astype(np.float32))[0])

    found = why_by_score(predictor, above, below)
    by_name = {each.feature: each.difference for each in found.differences}
    expected = np.array(shapley_values(value_of, len(above)))
    assert [by_name[name] for name in predictor.feature_names] == pytest.approx(expected.tolist(), abs=1e-12)
    assert math.fsum(by_name.values()) == pytest.approx(found.outputs[0] - found.outputs[1], abs=1e-12)
    assert by_name[predictor.feature_names[1]] == 0.0
    turned = {each.feature: each.difference for each in why_by_score(predictor, below, above).differences}
    assert turned == pytest.approx({name: -value for name, value in by_name.items()}, abs=1e-12)


def test_random_orders_come_close_and_add_up(monkeypatch):
    predictor = predictor_of(blend(5))
    above, below = documents(predictor, 2, 9)
    exact = why_by_score(predictor, above, below)
    monkeypatch.setattr(any_model, "ALL_SETS", 0)
    drawn = why_by_score(predictor, above, below, seed=3)
    again = why_by_score(predictor, above, below, seed=3)
    assert [each.difference for each in again.differences] == [each.difference for each in drawn.differences]
    assert math.fsum(each.difference for each in drawn.differences) == pytest.approx(
        drawn.outputs[0] - drawn.outputs[1], abs=1e-12
    )
    largest = max(abs(each.difference) for each in exact.differences)
    known = {each.feature: each.difference for each in exact.differences}
    assert all(abs(each.difference - known[each.feature]) < 0.15 * largest for each in drawn.differences)
    same = why_by_score(predictor, above, above)
    assert not any(each.difference for each in same.differences)


def test_the_commands_take_a_blend(tmp_path):
    model, data = tmp_path / "b.rankmill", write_letor(tmp_path / "a.txt", random_candidates(3))
    Blend(parts=tuple(random_forest(i) for i in (1, 2)), weights=np.array([1.0, 2.0])).save(model)

    def run(*arguments):
        return CliRunner().invoke(app, ["inspect", *map(str, arguments), "--json"])

    influence = json.loads(run("influence", model, "--on", data, "--metric", "ndcg@5").stdout)
    assert {"value", "features"} <= influence.keys()
    dependence = json.loads(run("dependence", model, "f1", "--on", data, "--points", "6").stdout)
    assert dependence["over"] == "documents"
    why = json.loads(run("why", model, "--on", data, "--qid", "q2").stdout)
    assert why["difference"] == pytest.approx(sum(each["difference"] for each in why["features"]) + why["others"])
    assert "value" in json.loads(run("combine", model, model, "--on", data).stdout)
    for command in (["influence", model], ["dependence", model, "f1"]):
        done = run(*command)
        assert done.exit_code
        assert "--on" in f"{done.output}{done.exception}"
    for command in (["shap"], ["leaves", "-o", tmp_path / "l.parquet"], ["optimality"], ["interaction"]):
        done = run(command[0], model, "--on", data, *command[1:])
        assert done.exit_code
        assert f"inspect {command[0]} needs a model of trees" in f"{done.output}{done.exception}"


def test_a_forest_may_be_permuted_too(tmp_path):
    forest = random_forest(4)
    forest.save(tmp_path / "f.rankmill")
    data = write_letor(tmp_path / "a.txt", random_candidates(3))
    done = CliRunner().invoke(
        app, ["inspect", "influence", str(tmp_path / "f.rankmill"), "--on", str(data), "--json", "--permutations", "2"]
    )
    found = json.loads(done.stdout)
    assert {each["feature"] for each in found["features"]} == {forest.feature_names[f] for f in forest.used_features}
    with refused(InputError, "f9"):
        dependence_on(predictor_of(forest), documents(predictor_of(forest)), ["f9"], 3)
