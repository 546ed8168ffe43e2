"""Distilling: students come close to their teacher, need no grades, and say what was lost."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from rankmill.cli import app
from rankmill.foundation.errors import InvalidParameter
from rankmill.pipeline.binning import bin_dataset
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions
from rankmill.registry import Registry
from rankmill.scorer.models import Blend
from rankmill.scorer.predict import predict
from rankmill.trainer.blending import scores_on
from rankmill.trainer.distilling import agreement, distill, loss_of
from rankmill.trainer.train_on_dataset import train
from rankmill.trainer.training_options import StartingModel, TrainingOptions
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.small_dataset import small_dataset

ONE = TrainingOptions(n_threads=1)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    dataset = small_dataset(tmp_path_factory.mktemp("distilled"))
    forests = [train(dataset, fixed(n_rounds=15, max_leaves=6, seed=seed), ONE).forest for seed in (1, 2)]
    return dataset, Blend(parts=tuple(forests), weights=np.array([0.5, 0.5]))


def student(dataset, teacher, options=ONE, **more):
    given = {"objective": "query_rmse", "n_rounds": 30, "max_leaves": 8, "min_rows_in_leaf": 5, **more}
    return distill(dataset, teacher, fixed(**given), options).forest


def test_more_rounds_agree_more_with_the_teacher(case):
    dataset, teacher = case
    starts = dataset.queries("test").starts
    found = []
    for rounds in (1, 10, 100):
        small = student(dataset, teacher, n_rounds=rounds, stop_metric="deviance")
        found.append(agreement(*scores_on(dataset, "test", [teacher, small]), starts))
    assert found == sorted(found)
    assert found[-1] > 0.85


def test_the_same_bytes_for_any_threads_and_the_teacher_in_the_facts(case):
    dataset, teacher = case
    one, two = (student(dataset, teacher, TrainingOptions(n_threads=n)) for n in (1, 2))
    assert one == two
    assert one.info["teacher"] == teacher.sha256
    shifted = replace(teacher, base_score=5.0)
    assert student(dataset, shifted).used_features == one.used_features  # only differences within a query count


def test_grades_are_not_needed(case, tmp_path):
    dataset, teacher = case
    rows = (dataset.path.parent / "judgments.txt").read_text().splitlines()
    bare = tmp_path / "bare.txt"
    bare.write_text("\n".join("0" + row[row.index(" ") :] for row in rows) + "\n")
    ingest([bare], tmp_path / "d", options=IngestOptions(buckets=3, split=dict(dataset.manifest.meaning.split)))
    bin_dataset(Dataset.open(tmp_path / "d"), 31)
    without = Dataset.open(tmp_path / "d")
    small = student(without, teacher, stop_metric="deviance")
    graded = student(dataset, teacher, stop_metric="deviance")
    values = np.concatenate([*dataset.feature_batches("test")])
    assert np.array_equal(predict(small, values), predict(graded, values))
    loss = loss_of(without, teacher, small, "test", "ndcg@10")
    assert loss.teacher.value is None
    assert loss.agreement > 0.7


def test_agreement_is_that_of_all_pairs():
    rng = np.random.default_rng(0)
    starts = np.array([0, 4, 4, 5, 11])
    one, other = rng.integers(0, 4, size=(2, 11)).astype(float)
    total = agreed = 0.0
    for first, last in itertools.pairwise(starts.tolist()):
        for i, j in itertools.combinations(range(first, last), 2):
            total += 1
            signs = np.sign(one[i] - one[j]), np.sign(other[i] - other[j])
            agreed += 1.0 if signs[0] == signs[1] else 0.5 if 0 in signs else 0.0
    assert agreement(one, other, starts) == pytest.approx(agreed / total)


def test_what_cannot_be_distilled_is_refused(case):
    dataset, teacher = case
    with refused(InvalidParameter, "lambdamart", "query_rmse"):
        student(dataset, teacher, objective="lambdamart")
    with refused(InvalidParameter, "base_model"):
        distill(dataset, teacher, fixed(objective="l2"), TrainingOptions(base_model=StartingModel(teacher.parts[0])))


def test_the_command_registers_the_student(case, tmp_path):
    dataset, teacher = case
    teacher.save(tmp_path / "teacher.rankmill")
    arguments = ["distill", str(tmp_path / "teacher.rankmill"), "--on", str(dataset.path), "--name", "small"]
    arguments += ["--n-rounds", "8", "--registry", str(tmp_path / "r"), "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout[done.stdout.index("{") :])
    assert report["loss"]["split"] == "test"
    assert 0.5 < report["loss"]["agreement"] <= 1.0
    version = Registry(tmp_path / "r").resolve("small@1", bare="latest")
    assert version.manifest["distilled_from"] == {"sha256": teacher.sha256}
    again = CliRunner().invoke(app, arguments)
    assert json.loads(again.stdout[again.stdout.index("{") :])["new"] is False
