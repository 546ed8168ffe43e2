"""Trainings with several goals: memory, measures, cross-validation, tuning, selection, base models and refit."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.trainer.feature_selection import select_features
from rankmill.trainer.options import SelectOptions, TuneOptions
from rankmill.trainer.train_on_dataset import cross_validate, plan_of, train
from rankmill.trainer.training_options import StartingModel, TrainingOptions
from rankmill.trainer.tuning.search import plan_tuning, tune
from rankmill.trainer.tuning.space import space_of
from tests.refusals import refused
from tests.trainer.conflicting_goals import dataset_with_goals
from tests.trainer.fixed import fixed

PARAMETERS = fixed(
    goals={"bought": 0.5}, objective="lambdamart", metric="ndcg@5", n_rounds=15, max_leaves=6, early_stopping_rounds=0
)
MAIN, BOUGHT, FRESH = "ndcg@5", "ndcg@5:bought", "ndcg@5:fresh"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return dataset_with_goals(tmp_path_factory.mktemp("conflict"))


def test_the_plan_counts_the_memory_of_the_mix(dataset):
    one = plan_of(dataset, replace(PARAMETERS, goals={}))
    mixed = plan_of(dataset, replace(PARAMETERS, goals={"bought": 0.5}))
    assert mixed.objective_bytes > 2 * one.objective_bytes
    assert mixed.bytes_needed > one.bytes_needed
    watched = plan_of(dataset, replace(PARAMETERS, goals={}), TrainingOptions(eval_metrics=["map:bought", "map:fresh"]))
    assert watched.bytes_needed > one.bytes_needed  # metrics of goals that nothing is learnt from


def test_trainings_stop_by_the_weighted_mean_and_measure_every_goal(dataset):
    parameters = replace(PARAMETERS, goals={"bought": 0.3, "fresh": 0.1}, early_stopping_rounds=3, n_rounds=40)
    result = train(dataset, parameters, TrainingOptions(eval_metrics=["map"]))
    best = result.history[result.best_round - 1].metrics
    for metrics in best.values():
        assert list(metrics) == ["ndcg@5:goals", MAIN, BOUGHT, FRESH, "map"]
        mean = 0.6 * metrics[MAIN] + 0.3 * metrics[BOUGHT] + 0.1 * metrics[FRESH]
        assert metrics["ndcg@5:goals"] == pytest.approx(mean, rel=1e-12)
    values = [record.metrics["valid"]["ndcg@5:goals"] for record in result.history]
    assert values.index(max(values)) + 1 == result.best_round
    assert len(values) == min(40, result.best_round + 3)
    of_queries = result.by_query["valid"]["ndcg@5:goals"].values
    counted = of_queries[~np.isnan(of_queries)]
    assert counted.mean() == pytest.approx(best["valid"]["ndcg@5:goals"], rel=1e-12)
    by_goal = train(dataset, replace(parameters, stop_metric=BOUGHT))
    assert next(iter(by_goal.history[0].metrics["valid"])) == BOUGHT


def test_goals_are_cross_validated(dataset):
    parameters = replace(PARAMETERS, goals={"bought": 0.5}, folds=3, n_rounds=5)
    found = cross_validate(dataset, parameters)
    assert found.measures == ("ndcg@5:goals", MAIN, BOUGHT)


def test_a_mean_over_goals_needs_goals(dataset):
    with refused(InvalidParameter, "ndcg@5:goals", "none"):
        train(dataset, replace(PARAMETERS, goals={}, stop_metric="ndcg@5:goals"))


def test_a_search_is_judged_by_the_mean_over_goals(dataset, tmp_path):
    parameters = replace(PARAMETERS, goals={"bought": 0.5}, n_rounds=4)
    for compare_by in ("valid", "folds"):
        options = TuneOptions(trials=1, best=1, repeat=0, workers=1, compare_by=compare_by)
        plan = plan_tuning(dataset, parameters, space_of({"learning_rate": "0.05,0.2"}, "test"), options)
        table = tune(plan, tmp_path / compare_by)
        assert table.measure == "ndcg@5:goals"
        section = tomllib.loads(table.winner_toml())["train"]
        assert section["goals"] == {"bought": 0.5}
        assert "stop_metric" not in section
    with refused(InvalidParameter, "goals"):
        space_of({"goals": "a,b"}, "test")


def test_features_are_selected_by_the_mean_over_goals(dataset):
    parameters = replace(PARAMETERS, goals={"bought": 0.5}, n_rounds=4)
    found = select_features(dataset, parameters, SelectOptions(drop_fraction=0.5, repeats=1))
    assert found.measure == "ndcg@5:goals"
    assert {"x0", "x1"} <= set(found.steps[1].features)


def test_models_are_trained_on_top_of_another_and_again_with_the_valid_split(dataset):
    base = train(dataset, replace(PARAMETERS, goals={}, n_rounds=3)).forest
    parameters = replace(PARAMETERS, goals={"bought": 0.5}, refit="all", early_stopping_rounds=5, n_rounds=8)
    options = TrainingOptions(base_model=StartingModel(base), n_threads=1)
    result = train(dataset, parameters, options)
    assert result.forest.info["refit"]["rows"] > dataset.queries("train").n_rows
    again = train(dataset, parameters, replace(options, n_threads=3))
    assert again.forest.to_bytes() == result.forest.to_bytes()
