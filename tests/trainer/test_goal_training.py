"""Trainings with several goals: memory, measures, cross-validation, tuning, selection, base models and refit."""

import tomllib
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankmill.foundation.errors import InputError, InvalidParameter
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.scorer.evaluate.train_test_overlap import TrainedModel
from rankmill.trainer.candidates.blending import blended
from rankmill.trainer.candidates.feature_selection import select_features
from rankmill.trainer.candidates.train_on_dataset import cross_validate, plan_of, train
from rankmill.trainer.options import BlendOptions, SelectOptions, TuneOptions
from rankmill.trainer.rounds.round_metrics import measure
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


# -- metrics of a goal, as if it were the grade -----------------------------------------------------------------------


METRICS = ("ndcg@5", "err@10", "map", "concordance_micro", "rbp(0.8)@7")


def ingested(folder, columns, goals=()):
    """Ingest ``columns`` as a binned dataset with all splits."""
    folder.mkdir()
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    options = IngestOptions(
        buckets=3, split={"train": 0.5, "valid": 0.3, "test": 0.2}, read=ReadOptions(goals=goals, absent="missing")
    )
    ingest([folder / "rows.parquet"], folder / "dataset", options=options)
    bin_dataset(Dataset.open(folder / "dataset"), 31)
    return Dataset.open(folder / "dataset")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A dataset with a goal, and one whose main grade that goal is; both have the same labels."""
    folder, rng, n = tmp_path_factory.mktemp("goals"), np.random.default_rng(1), 900
    x = rng.normal(size=(n, 3))
    columns = {
        "qid": [f"q{k // 9}" for k in range(n)],
        "doc_id": [f"d{k}" for k in range(n)],
        "label": x[:, 0] + rng.normal(size=n),
        **{f"x{k}": x[:, k].astype(np.float32) for k in range(3)},
    }
    grade, bought = rng.integers(0, 3, n), np.clip(np.round(x[:, 0] + rng.normal(size=n) * 2), 0, 5).astype(np.int64)
    with_goal = ingested(folder / "goal", columns | {"grade": grade, "bought": bought}, ("bought",))
    return with_goal, ingested(folder / "main", columns | {"grade": bought})


def trained(data, metrics, stop):
    parameters = fixed(objective="l2", n_rounds=12, max_leaves=4, stop_metric=stop, early_stopping_rounds=3)
    options = TrainingOptions(eval_metrics=metrics, n_threads=2)
    return train(data, parameters, options), parameters


def test_rounds_are_measured_and_chosen_as_if_the_goal_were_the_grade(both):
    with_goal, main = both
    named = [f"{metric}:bought" for metric in METRICS]
    (found, parameters), (expected, others) = (
        trained(with_goal, [*named, "map"], "err:bought"),
        trained(main, METRICS, "err"),
    )
    assert found.best_round == expected.best_round
    assert len(found.history) == len(expected.history)
    for record, other in zip(found.history, expected.history, strict=True):
        for name, metrics in other.metrics.items():
            for metric, value in metrics.items():
                assert record.metrics[name][f"{metric}:bought"] == value
            assert record.metrics[name]["map"] != metrics["map"]
    of_goal, of_main = (
        measure(result.forest, data, "test", given, metrics)
        for result, data, given, metrics in ((found, with_goal, parameters, named), (expected, main, others, METRICS))
    )
    assert of_goal[0] == {f"{metric}:bought": value for metric, value in of_main[0].items()}
    for metric, values in of_main[1].items():
        assert np.array_equal(of_goal[1][f"{metric}:bought"].values, values.values, equal_nan=True)


def test_a_goal_that_the_data_lack_is_named_with_those_they_have(both):
    with_goal, main = both
    with refused(InputError, "ndcg@10:sold", "'sold'", "bought"):
        trained(with_goal, (), "ndcg@10:sold")
    with refused(InputError, "map:bought", "no goal"):
        trained(main, ["map:bought"], "ndcg@10")
    with refused(InvalidParameter, "ndcg@10:bought", "stop_metric"):
        fixed(metric="ndcg@10:bought")


def test_blends_are_weighed_by_a_goal_as_if_it_were_the_grade(both):
    with_goal, main = both
    forests = [train(with_goal, fixed(n_rounds=3, max_leaves=leaves)).forest for leaves in (3, 6)]
    models = [(forest, TrainedModel.of(forest)) for forest in forests]
    found, expected = (
        blended(models, data, BlendOptions(split="test", metric=metric))[1]
        for data, metric in ((with_goal, "err@5:bought"), (main, "err@5"))
    )
    assert found == expected
