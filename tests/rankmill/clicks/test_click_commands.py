"""The commands on click logs: from files to their answers, with mistakes, and in how much memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from rankmill.cli import execute
from rankmill.clicks.describe_log import ClickLogDescription, describe_clicks
from rankmill.clicks.off_policy import BYTES_USED as EVALUATE
from rankmill.clicks.options import ClickFitOptions, ClickSimulation
from rankmill.clicks.result_lists import LogInMemory
from rankmill.clicks.simulate import EXAMINATION, QueriesToShow, write_click_log
from rankmill.clicks.sorted_log import BYTES_A_ROW, RESIDENT
from rankmill.clicks.write_judgments import BYTES_OF_LABELS, BYTES_OF_PAIRS
from rankmill.foundation.exit_codes import DATA_REJECTED, USAGE
from rankmill.pipeline.judgments.propensities import Propensities, read_propensities, write_propensities
from tests.rankmill.clicks.test_click_models import in_two_blocks, log_of
from tests.refusals import only_line, unnamed

HEADER = "session,qid,doc_id,position,clicked\n"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 20,000 sessions on 40 queries: a noisy ranker, swapped neighbours, and lists in random order."""
    path = tmp_path_factory.mktemp("clicks") / "log.parquet"
    rng = np.random.default_rng(1)
    grades = rng.integers(0, 5, 40 * 12).astype(np.int32)
    judged = QueriesToShow(np.arange(0, 40 * 12 + 1, 12), grades)
    options = ClickSimulation(sessions=20_000, list_length=5, swapped=0.3, randomised=0.3)
    write_click_log(path, judged, [grades + rng.normal(0, 2, len(grades))], options)
    return path


def test_fit_writes_the_file_and_prints_it(simulated, tmp_path, capsys):
    out = tmp_path / "pbm.json"
    assert execute(["clicks", "fit", str(simulated), "-o", str(out), "--replicates", "5", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    written = read_propensities(out)
    assert answer["propensities"] == json.loads(out.read_text())
    assert (answer["path"], answer["converged"]) == (str(out), True)
    np.testing.assert_allclose(written.examination, np.array(EXAMINATION[:5]) / EXAMINATION[0], rtol=0.2)
    assert written.held_out is not None
    assert (
        execute(
            ["clicks", "fit", str(simulated), "-o", str(out), "--overwrite", "--model", "trust", "--replicates", "0"]
        )
        == 0
    )
    assert "trust" in capsys.readouterr().out
    assert read_propensities(out).trust is not None


def test_describe_prints_one_object_or_text(simulated, capsys):
    assert execute(["clicks", "describe", str(simulated), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["sessions"], found["lists"], found["impressions"]) == (20_000, 20_000, 100_000)
    assert {each["name"] for each in found["policies"]} == {"logger", "logger-swapped", "random"}
    assert found["recommended"]["model"] in {"pbm", "allpairs", "ubm", "trust"}
    assert [each["rank"] for each in found["ranks"]] == [1, 2, 3, 4, 5]
    assert execute(["clicks", "describe", str(simulated), "--policy", "random"]) == 0
    printed = capsys.readouterr().out
    assert "randomised" in printed
    assert "recommended" in printed


def described(log: LogInMemory) -> ClickLogDescription:
    return describe_clicks(log, ClickFitOptions(max_steps=50))


def test_figures_are_those_of_the_lists_in_any_blocks():
    log = log_of(3000, queries=20, n_docs=8, randomised=0.5).log
    (block,) = log.in_memory
    found, lists = described(log), block.lists
    places: dict[int, set[int]] = {}
    for document, rank in zip(lists.document.tolist(), lists.rank.tolist(), strict=True):
        places.setdefault(document, set()).add(rank)
    several = {document for document, ranks in places.items() if len(ranks) > 1}
    assert (found.documents, found.repeated_documents) == (len(places), len(several))
    assert found.repeated_impressions == sum(document in several for document in lists.document.tolist())
    assert found.clicks == lists.clicked.sum() == sum(each.clicks for each in found.ranks)
    for each in found.ranks:
        at = lists.rank == each.rank
        assert (each.impressions, each.clicks) == (at.sum(), lists.clicked[at].sum())
        assert each.elsewhere == sum(each.rank in places[document] for document in several)
    assert found.sessions == len(set(lists.session.tolist()))
    assert described(in_two_blocks(log)) == found


def test_without_swaps_it_says_what_cannot_be_estimated():
    found = described(log_of(5000).log)
    assert found.recommended.model is None
    assert "cannot be distinguished from relevance" in found.recommended.reason
    assert {each.model for each in found.models if each.refused} == {"pbm", "ubm", "trust", "allpairs"}
    assert found.repeated_documents == 0
    assert "do not correct" in found.render()


def test_a_session_with_very_many_lists_is_suspicious():
    log = log_of(5000, swapped=0.5).log
    (block,) = log.in_memory
    session = block.lists.session.copy()
    session[:60] = session[0]
    order = np.lexsort((session, block.lists.query))
    assert order is not None
    bot = LogInMemory(
        (type(block)(block.lists._replace(session=session), block.queries, block.documents, block.document_start),),
        log.policies,
    )
    assert described(log).many_lists.sessions == 0
    found = described(bot).many_lists
    assert (found.sessions, found.most) == (1, 60)
    assert found.share == pytest.approx(60 / 5000)


def test_bad_logs_are_one_line_and_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for text, *facts in (
        ("", "log.csv", 1, "empty"),
        (HEADER + "s,q,a,0,1\n", "log.csv:2:7", "position", "'0'"),
        ("qid,doc_id,position,clicked\nq,a,1,1\n", "log.csv", "session", "--columns"),
    ):
        Path("log.csv").write_text(text)
        for command in (["fit", "log.csv", "-o", "out.json"], ["describe", "log.csv"]):
            assert execute(["clicks", *command]) == DATA_REJECTED
            assert not unnamed(only_line(capsys.readouterr().err), *facts)
            assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_what_a_log_does_not_determine_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [f"s{s},q,{d},{k},{{}}" for s in range(60) for k, d in ((1, "a"), (2, "b"))]
    for click, words in (("0", "no click"), ("1", "every document")):
        Path("log.csv").write_text(HEADER + "\n".join(row.format(click) for row in rows) + "\n")
        assert execute(["clicks", "fit", "log.csv", "-o", "out.json"]) == DATA_REJECTED
        assert not unnamed(only_line(capsys.readouterr().err), "pbm", words)
        assert execute(["clicks", "describe", "log.csv", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["recommended"]["model"] is None
    Path("log.csv").write_text(HEADER + "\n".join(row.format(i % 3 // 2) for i, row in enumerate(rows)) + "\n")
    assert execute(["clicks", "fit", "log.csv", "-o", "out.json"]) == DATA_REJECTED
    assert not unnamed(only_line(capsys.readouterr().err), "pbm", "rank 2", "swapped")
    assert execute(["clicks", "fit", "log.csv", "-o", "out.json", "--model", "randomised", "--policy", "old"]) == USAGE
    assert not unnamed(only_line(capsys.readouterr().err), "--policy", "'old'")
    Path("out.json").write_text("mine")
    assert execute(["clicks", "fit", "log.csv", "-o", "out.json"]) == USAGE
    assert not unnamed(only_line(capsys.readouterr().err), "out.json", "--overwrite")
    assert Path("out.json").read_text() == "mine"


# ---- memory: what the plan asks for is enough, for a query of a million impressions
# ----------------------------------------

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
