"""A sweep over the weights of goals: what it trains, its front, its choice, and what it refuses."""

from __future__ import annotations

import itertools
import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter, RankmillError
from rankmill.foundation.records import as_json
from rankmill.registry import Registry
from rankmill.scorer.forest import Forest
from rankmill.trainer.feature_selection import select_features
from rankmill.trainer.goal_options import GoalSweepOptions
from rankmill.trainer.goal_sweeps import check_comparable
from rankmill.trainer.multi_seed_training import plan_candidate, train_candidate
from rankmill.trainer.options import SeedOptions, SelectOptions, TuneOptions
from rankmill.trainer.train_on_dataset import cross_validate, plan_of, train
from rankmill.trainer.training_options import StartingModel, TrainingOptions
from rankmill.trainer.training_rows import read_columns
from rankmill.trainer.training_service import train_and_register
from rankmill.trainer.tuning.search import plan_tuning, tune
from rankmill.trainer.tuning.space import space_of
from tests.refusals import refused
from tests.trainer.conflicting_goals import dataset_with_goals
from tests.trainer.fixed import fixed

PARAMETERS = fixed(
    goals=["bought"], objective="lambdamart", metric="ndcg@5", n_rounds=15, max_leaves=6, early_stopping_rounds=0
)
MAIN, BOUGHT, FRESH = "ndcg@5", "ndcg@5:bought", "ndcg@5:fresh"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return dataset_with_goals(tmp_path_factory.mktemp("conflict"))


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


def swept(dataset, kept=None, parameters=PARAMETERS, seeds=None, steps=5, floors=None, **options):
    sweep = GoalSweepOptions(goal_steps=steps, goal_floors=floors or {})
    given = TrainingOptions(**{"n_threads": 1, "checkpoint": kept, **options})
    return train_candidate(dataset, parameters, given, seeds or SeedOptions(), sweep)


def test_a_sweep_moves_from_one_goal_to_the_other(dataset, kept):
    found = swept(dataset, kept).facts.goal_sweep
    assert found.metrics == (MAIN, BOUGHT)
    assert [point.goals for point in found.points] == [{"bought": i / 4} for i in range(5)]
    values = [found.values(point) for point in found.points]
    tolerance = 0.01  # of one model that happens to be better than its neighbour
    for (main, bought), (later_main, later_bought) in itertools.pairwise(values):
        assert later_main < main + tolerance
        assert later_bought > bought - tolerance
    assert values[0][0] > values[-1][0] + 0.2
    assert values[-1][1] > values[0][1] + 0.2
    means = [sum(each) for each in values]
    assert found.chosen == means.index(max(means)) + 1
    for one in range(5):
        rivals = [
            other
            for other in range(5)
            if values[other] != values[one] and all(a >= b for a, b in zip(values[other], values[one], strict=True))
        ]
        assert (found.points[one].dominated_by is None) == (not rivals)
        assert found.points[one].dominated_by is None or found.points[one].dominated_by - 1 in rivals


def test_every_model_is_that_of_its_weights_alone(dataset, kept):
    candidate = swept(dataset, kept)
    for point, training in zip(candidate.facts.goal_sweep.points, candidate.points, strict=True):
        alone = train(dataset, replace(PARAMETERS, goals=dict(point.goals)), TrainingOptions(n_threads=2))
        assert training.result.forest.to_bytes() == alone.forest.to_bytes()
        assert point.sha256 == alone.forest.sha256
    chosen = candidate.facts.goal_sweep.chosen_point
    assert candidate.forest.sha256 == chosen.sha256
    assert candidate.facts.metrics == chosen.metrics
    assert candidate.facts.parameters["goals"] == chosen.goals
    assert swept(dataset).forest.to_bytes() == candidate.forest.to_bytes()  # without a checkpoint, too
    assert as_json(swept(dataset).facts) == as_json(candidate.facts)


@pytest.mark.parametrize("floor", [0.45, 0.6, 0.7])
def test_with_floors_the_best_metric_among_those_that_meet_them_is_chosen(dataset, kept, floor):
    plain = swept(dataset, kept).facts.goal_sweep
    able = [point for point in plain.points if point.metrics["valid"][BOUGHT] >= floor]
    assert able
    found = swept(dataset, kept, floors={BOUGHT: floor}).facts.goal_sweep
    assert found.chosen_point.metrics["valid"][MAIN] == max(point.metrics["valid"][MAIN] for point in able)
    assert [point.meets_floors for point in found.points] == [
        point.metrics["valid"][BOUGHT] >= floor for point in found.points
    ]


def test_floors_that_none_meets_are_refused_with_the_closest_values(dataset, kept):
    best = max(point.metrics["valid"][BOUGHT] for point in swept(dataset, kept).facts.goal_sweep.points)
    with refused(InvalidParameter, "goal_floors", "5 models", f"{BOUGHT} 0.999", f"{best:.4f}", "bought"):
        swept(dataset, kept, floors={BOUGHT: 0.999})


def test_other_metrics_may_have_floors(dataset, kept):
    found = swept(dataset, kept, floors={"map:bought": 0.5, MAIN: 0.3}, eval_metrics=["mrr"]).facts.goal_sweep
    assert found.metrics == (MAIN, BOUGHT, "map:bought")
    assert found.chosen_point.metrics["valid"]["map:bought"] >= 0.5
    assert "mrr" in found.chosen_point.metrics["valid"]


def test_two_goals_have_a_grid_of_weights(dataset):
    quick = replace(PARAMETERS, goals=["bought", "fresh"], n_rounds=3)
    found = swept(dataset, parameters=quick, steps=3).facts.goal_sweep
    assert found.metrics == (MAIN, BOUGHT, FRESH)
    assert len(found.points) == 6
    assert [tuple(point.goals.values()) for point in found.points] == [
        (0, 0), (0, 0.5), (0, 1), (0.5, 0), (0.5, 0.5), (1, 0),
    ]  # fmt: skip
    assert found.points[4].grade_weight == 0


def test_kept_trainings_are_not_trained_again(dataset, kept):
    first = swept(dataset, kept)
    lines, rounds = [], []
    again = swept(dataset, kept, on_message=lines.append, on_round=rounds.append, floors={BOUGHT: 0.5})
    assert not rounds
    assert lines[0].startswith("goals bought 0 is already trained")
    assert len(first.keys) == 5
    assert set(first.keys) == set(again.keys)


def test_what_makes_no_sense_is_refused_before_training(dataset, tmp_path):
    def plan(parameters=PARAMETERS, seeds=(), resume=None, base=dataset, steps=5, floors=None):
        options = TrainingOptions(resume=resume)
        sweep = GoalSweepOptions(goal_steps=steps, goal_floors=floors or {})
        return plan_candidate(base, parameters, options, SeedOptions(seeds=seeds), sweep)

    with refused(InvalidParameter, "goal_steps", "goals"):
        plan(replace(PARAMETERS, goals={}))
    with refused(InvalidParameter, "goal_steps", "name", "bought"):
        plan(replace(PARAMETERS, goals={"bought": 0.3}))
    with refused(InvalidParameter, "goal_steps", "seeds"):
        plan(seeds=(1, 2))
    forest = train(dataset, replace(PARAMETERS, goals={}, n_rounds=1)).forest
    with refused(InvalidParameter, "goal_steps", "resume"):
        plan(resume=StartingModel(forest))
    with refused(InvalidParameter, "goal_floors", "ndcg@5:price", "bought"):
        plan(floors={"ndcg@5:price": 0.5})
    with refused(InvalidParameter, "goal_floors", "ndcg@5:goals", "weights"):
        plan(floors={"ndcg@5:goals": 0.5})
    with refused(RankmillError, "ndgc", "ndcg"):
        plan(floors={"ndgc@5": 0.5})
    with refused(RankmillError, "'price'", "bought"):
        plan(replace(PARAMETERS, goals=["price"]))
    with refused(InvalidParameter, "goal_steps", "valid split"):
        plan(base=dataset_with_goals(tmp_path, split={"train": 0.8, "test": 0.2}))
    with refused(InvalidParameter, "goal_steps", "goals", "weight"):
        plan(steps=0)


def test_the_plan_counts_the_memory_of_the_mix(dataset):
    one = plan_of(dataset, replace(PARAMETERS, goals={}))
    mixed = plan_of(dataset, replace(PARAMETERS, goals={"bought": 0.5}))
    of_sweep = plan_candidate(dataset, PARAMETERS, TrainingOptions(), SeedOptions(), GoalSweepOptions(goal_steps=3))
    assert mixed.objective_bytes > 2 * one.objective_bytes
    assert mixed.bytes_needed > one.bytes_needed
    assert of_sweep.objective_bytes == mixed.objective_bytes
    watched = plan_of(dataset, replace(PARAMETERS, goals={}), TrainingOptions(eval_metrics=["map:bought", "map:fresh"]))
    assert watched.bytes_needed > one.bytes_needed  # metrics of goals that nothing is learnt from


def test_the_registered_version_has_the_whole_front(dataset, kept, tmp_path):
    registry = Registry(tmp_path / "models")
    options = TrainingOptions(n_threads=1, checkpoint=kept, on_message=lambda _: None)
    sweep = GoalSweepOptions(goal_steps=5, goal_floors={BOUGHT: 0.5})
    trained = train_and_register(dataset, "web", registry, PARAMETERS, options, SeedOptions(), sweep, log_every=0)
    facts = json.loads(json.dumps(trained.version.manifest))["goal_sweep"]
    assert len(facts["points"]) == 5
    assert facts["floors"] == {BOUGHT: 0.5}
    assert facts["points"][facts["chosen"] - 1]["sha256"] == trained.version.sha256
    shown = trained.report.render()
    assert "Pareto front" in shown
    assert shown.count("chosen") == 1
    assert as_json(trained.report)["goal_sweep"] == facts
    assert Forest.from_bytes(trained.version.read(), "web").info["valid"].keys() == {"ndcg@5:goals"}


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
    found = swept(dataset, parameters=replace(parameters, goals=["bought"]), steps=3, base_model=StartingModel(base))
    assert found.points[1].result.forest.to_bytes() == result.forest.to_bytes()


def test_a_goal_that_the_valid_split_lacks_is_refused_before_training(dataset):
    def without(rows):
        return replace(
            rows, goals={name: np.where(name == "bought", 0, of).astype(np.int32) for name, of in rows.goals.items()}
        )

    rows, sweep = read_columns(dataset, "valid", PARAMETERS), GoalSweepOptions(goal_steps=3)
    check_comparable(rows, PARAMETERS, sweep, {"": 2, **dataset.goals})
    with refused(RankmillError, "goal_steps", "valid split", BOUGHT):
        check_comparable(without(rows), PARAMETERS, sweep, {"": 2, **dataset.goals})
