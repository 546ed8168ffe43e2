"""A cross-validation on a cluster has the result of one machine, whatever workers come, go and are killed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from rankmill.cli import app
from rankmill.foundation.cluster.workers import open_cluster
from rankmill.foundation.errors import TrainingDataRejected
from rankmill.pipeline.dataset import Dataset
from rankmill.trainer.cross_validate_on_cluster import cross_validate_on_cluster
from rankmill.trainer.train_on_dataset import cross_validate
from rankmill.trainer.training_options import TrainingOptions
from rankmill.trainer.training_result import RoundRecord
from tests.clusters import in_memory, killing_in, look_often
from tests.refusals import refused
from tests.trainer.small_dataset import SMALL

# folds stop at different rounds, so that the shorter ones are trained on
PARAMETERS = replace(SMALL, n_rounds=30, early_stopping_rounds=3, folds=4)
OPTIONS = TrainingOptions(n_threads=1, eval_metrics=["map"])


@pytest.mark.parametrize("looks", [("a",), ("a b", "a b", "b", "b c", "a c")])
def test_any_workers_in_any_order(looks: tuple[str, ...], dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    look_often(monkeypatch)
    told: list[RoundRecord] = []
    expected = cross_validate(dataset, PARAMETERS, replace(OPTIONS, on_round=told.append))
    assert len({sum(record.fold == fold for record in told) for fold in range(1, 5)}) > 1
    heard: list[RoundRecord] = []
    cluster, _ = in_memory(*looks, seed=len(looks))
    found = cross_validate_on_cluster(dataset, PARAMETERS, replace(OPTIONS, on_round=heard.append), cluster)
    assert found == expected
    assert found.to_dict() == expected.to_dict()
    assert sorted((record.fold, record.round_number) for record in heard) == sorted(
        (record.fold, record.round_number) for record in told
    )
    assert not [path for path in dataset.path.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
def test_a_process_is_killed(dataset: Dataset) -> None:
    with open_cluster("local:2") as cluster, killing_in("_train_fold", cluster) as killed:
        found = cross_validate_on_cluster(dataset, PARAMETERS, OPTIONS, cluster)
        assert killed
    assert found.to_dict() == cross_validate(dataset, PARAMETERS, OPTIONS).to_dict()


@pytest.mark.slow
def test_the_command(dataset: Dataset) -> None:
    words = ["cv", str(dataset.path), "--folds", "3", "--n-rounds", "4", "--max-leaves", "4", "--json"]
    alone, together = (CliRunner().invoke(app, [*words, *more]) for more in ([], ["--cluster", "local:2"]))
    assert alone.exit_code == together.exit_code == 0, together.stderr
    assert alone.stdout == together.stdout


def test_what_is_refused(dataset: Dataset) -> None:
    cluster, _ = in_memory("a b")
    with refused(TrainingDataRejected, 1000, "folds"):
        cross_validate_on_cluster(dataset, replace(PARAMETERS, folds=1000), OPTIONS, cluster)
