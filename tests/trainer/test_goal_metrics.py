"""Metrics of a goal while a model is trained: as if the goal were the main grade."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankmill.foundation.errors import InputError, InvalidParameter
from rankmill.pipeline.binning import bin_dataset
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.scorer.train_test_overlap import TrainedModel
from rankmill.trainer.blending import blended
from rankmill.trainer.options import BlendOptions
from rankmill.trainer.round_metrics import measure
from rankmill.trainer.train_on_dataset import train
from rankmill.trainer.training_options import TrainingOptions
from tests.refusals import refused
from tests.trainer.fixed import fixed

METRICS = ("ndcg@5", "err@10", "map", "concordance_micro", "rbp(0.8)@7")


def dataset(folder, columns, goals=()):
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
    with_goal = dataset(folder / "goal", columns | {"grade": grade, "bought": bought}, ("bought",))
    return with_goal, dataset(folder / "main", columns | {"grade": bought})


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
        for result, data, given, metrics in (
            (found, with_goal, parameters, named),
            (expected, main, others, METRICS),
        )
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
