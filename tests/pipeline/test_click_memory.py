"""The memory of the commands on click logs: what the plan asks for is enough, for processes that read a query of a million impressions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from rankmill.pipeline.clicks.propensities import Propensities, write_propensities
from rankmill.pipeline.clicks.simulate import EXAMINATION
from rankmill.pipeline.clicks.spilled_log import BYTES_A_ROW, RESIDENT
from rankmill.pipeline.clicks.write_judgments import BYTES_OF_LABELS, BYTES_OF_PAIRS
from rankmill.scorer.clicks.off_policy import BYTES_USED as EVALUATE

GENERATE = "data synth -o rows.parquet --queries 4 --features 10 --clicks log.parquet --sessions 800000 --swapped 0.3"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    subprocess.run(
        [sys.executable, "-m", "rankmill", *GENERATE.split()], cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
    write_propensities(folder / "p.json", Propensities(model="pbm", examination=EXAMINATION))
    rows = pl.read_parquet(folder / "rows.parquet").with_columns(score=pl.col("f1"))
    rows.select("qid", "doc_id", "score").write_parquet(folder / "ranked.parquet")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "bytes_a_row"),
    [
        ("describe", BYTES_A_ROW),
        ("fit -o fitted.json --replicates 10", BYTES_A_ROW),
        ("judge --propensities p.json -o labels.parquet", BYTES_OF_LABELS),
        ("judge --propensities p.json --as grades -o grades.parquet", BYTES_OF_LABELS),
        ("judge --propensities p.json --as pairs -o pairs.parquet", BYTES_OF_PAIRS),
        ("evaluate --propensities p.json --ranked ranked.parquet", EVALUATE),
    ],
)
def test_a_command_keeps_within_what_it_is_given(folder: Path, words: str, bytes_a_row: int) -> None:
    queries = pl.scan_parquet(folder / "log.parquet").group_by("qid").len().collect()["len"]
    largest = int(queries.max() or 0)
    assert largest > 3_500_000
    memory = RESIDENT + largest * bytes_a_row + 10**6
    name, *others = words.split()
    command = [sys.executable, "-m", "rankmill", "clicks", name, "log.parquet", *others, "--memory", str(memory)]
    # a process of its own between, as a peak includes that of the process that started it
    watch = (
        "import os, sys, json\n"
        "pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)])\n"
        "_, status, used = os.wait4(pid, 0)\n"
        "print(json.dumps([status, used.ru_maxrss * 1024]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", watch, *command, "--json"], cwd=folder, capture_output=True, text=True, check=True
    )
    status, peak = json.loads(found.stdout)
    assert status == 0, found.stderr
    print(
        f"{words}: {peak / 1e6:.0f} MB of {memory / 1e6:.0f} MB, {(peak - RESIDENT) / largest:.0f} bytes an impression"
    )
    assert peak <= memory
