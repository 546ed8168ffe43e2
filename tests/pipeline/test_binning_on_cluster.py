"""Binning on a cluster: the same bytes as in one process, for any workers, order of completion and loss."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rankmill.cli import execute
from rankmill.foundation.cluster.workers import Cluster
from rankmill.foundation.errors import WorkerLost
from rankmill.pipeline.binning import bin_dataset, bin_plan
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.ingest import IngestOptions, ingest
from rankmill.pipeline.memory_plans import BinPlan
from rankmill.pipeline.options import ReadOptions
from tests.clusters import killing_in, look_often, lose_each_call_once, on, opened_by
from tests.pipeline.test_any_order import judgments
from tests.written import files_in, write_rows

BINNING = "rankmill.pipeline.binning"
LOSING = ["a b c", "a", "", "b", "c d", "d"]


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    look_often(monkeypatch)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_rows(folder / "rows.parquet", judgments(1, 900))
    options = IngestOptions(
        buckets=7,
        split={"train": 0.7, "valid": 0.3},
        read=ReadOptions(categorical=("x1", "brand"), ignore=("seen",), unjudged="zero"),
    )
    ingest([folder / "rows.parquet"], folder / "dataset", options=options)
    return folder / "dataset"


def plan_of(dataset: Dataset, sampled_rows: int | None, columns: int) -> BinPlan:
    return replace(bin_plan(dataset), sampled_rows=sampled_rows, columns=columns)


def binned(made: Path, to: Path, sampled_rows: int | None, columns: int = 2, **options: object) -> dict[str, bytes]:
    """Return all files of a copy of the dataset once it is binned."""
    shutil.copytree(made, to)
    dataset = Dataset.open(to)
    bin_dataset(dataset, 31, plan=plan_of(dataset, sampled_rows, columns), max_bin_of={"x3": 5}, **options)
    return files_in(to)


@pytest.mark.parametrize("sampled_rows", [None, 200])
def test_the_bytes_are_those_of_one_process(made: Path, tmp_path: Path, sampled_rows: int | None) -> None:
    expected = binned(made, tmp_path / "alone", sampled_rows)
    assert len([name for name in expected if name.startswith("_bins/")]) == 3  # edges, train, valid
    for seed, looks in enumerate([["a b c"], LOSING]):
        with on(BINNING, *looks, seed=seed) as engine:
            found = binned(made, tmp_path / str(seed), sampled_rows, 1 + seed, cluster="local:2")
        assert found == expected
        assert len(engine.started) >= 6


def test_work_that_was_done_and_lost_is_done_again(made: Path, tmp_path: Path) -> None:
    expected = binned(made, tmp_path / "alone", 200)
    with on(BINNING, "a b") as engine:
        lost = lose_each_call_once(engine)
        assert binned(made, tmp_path / "out", 200, cluster="local:2") == expected
    assert len(lost) * 2 == len(engine.started)


def test_a_binning_that_lost_all_workers_leaves_the_dataset_as_it_was(made: Path, tmp_path: Path) -> None:
    with on(BINNING, "a b", "a b", "a b", ""), pytest.raises(WorkerLost, match=r"run the same command again$"):
        binned(made, tmp_path / "out", None, cluster="local:2")
    before = {path.relative_to(made) for path in made.rglob("*") if path.is_file()}
    assert {path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_bins_that_exist_need_no_cluster(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "out")
    spec = bin_dataset(Dataset.open(tmp_path / "out"))
    assert bin_dataset(Dataset.open(tmp_path / "out"), cluster="tcp://127.0.0.1:1").digest == spec.digest


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", ["bin_features", "write_shards"])
def test_the_work_of_a_killed_process_is_done_again(made: Path, tmp_path: Path, dask: Cluster, killed_at: str) -> None:
    expected = binned(made, tmp_path / "alone", 200)
    with killing_in(killed_at, dask) as killed, opened_by(BINNING, dask):
        assert binned(made, tmp_path / "out", 200, cluster="local:2") == expected
    assert killed


@pytest.mark.slow
def test_the_command_writes_the_same(made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = []
    for name, more in (("alone", []), ("both", ["--cluster", "local:2"])):
        shutil.copytree(made, tmp_path / name)
        assert execute(["data", "bin", str(tmp_path / name), "--max-bin", "20", *more]) == 0
        found.append({path.name: path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()})
        found.append(capfd.readouterr().out.replace(name, ""))
    assert found[:2] == found[2:]
