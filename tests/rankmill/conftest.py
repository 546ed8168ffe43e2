"""Fixtures of this folder: what several files of tests read and none writes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rankmill.python.small_ranker import planted_arrays


@pytest.fixture(scope="session")
def arrays():
    """(X, y, qid) with a planted signal."""
    return planted_arrays()


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """The dataset of the tests of the gate."""
    from tests.rankmill.gate.gate_case import dataset_of, rows_of

    return dataset_of(tmp_path_factory.mktemp("real"), "real", *rows_of(1))


@pytest.fixture(scope="session")
def model(real):
    """A model that was trained on it, at the gate."""
    from tests.rankmill.gate.gate_case import trained

    return trained(real)


@pytest.fixture(scope="session")
def chance(tmp_path_factory):
    """One that was trained on the same rows with grades that have nothing to do with the features."""
    from tests.rankmill.gate.gate_case import dataset_of, rows_of, shuffled, trained

    x, grades, qid = rows_of(1)
    return trained(dataset_of(tmp_path_factory.mktemp("chance"), "chance", x, shuffled(grades), qid), "web@2")


@pytest.fixture(scope="session")
def run_once(tmp_path_factory) -> Path:
    """A project that was run once, for tests that run it again in a copy."""
    from rankmill.run.runner import run
    from rankmill.run.work import Work
    from tests.rankmill.run.test_run import write_project

    folder = write_project(tmp_path_factory.mktemp("run_once"))
    run(Work(folder / "rankmill.toml", folder / "registry"), lambda _line: None)
    return folder


@pytest.fixture(scope="session")
def first_version(tmp_path_factory):
    """A work folder with a first version, which was promoted."""
    from tests.rankmill.report.report_case import Work

    made = Work(tmp_path_factory.mktemp("first"))
    version, _ = made.train()
    made.judge(version, margin=1.0)
    return made


@pytest.fixture(scope="session")
def two_versions(tmp_path_factory):
    """A work folder with two versions of two seeds, the second of them better and promoted in place of the first."""
    from tests.rankmill.report.report_case import Work

    made = Work(tmp_path_factory.mktemp("two"))
    made.judge(made.train(n_rounds=2, max_leaves=2)[0], margin=1.0)
    (second, reported), (_, other) = made.train(), made.train(seed=11)
    made.judge(second, max_cost_ratio=1000.0)
    spread = {"mean": 0.7, "deviation": 0.004, "least": 0.69, "greatest": 0.71}
    training = {
        "metric": "ndcg@10",
        "chosen": 7,
        "seeds": [reported, other],
        "noise_floor": {"valid": {"ndcg@10": spread}},
    }
    made.trained_here(second, training)
    return made
