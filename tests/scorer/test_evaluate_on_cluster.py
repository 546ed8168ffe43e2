"""Evaluation on a cluster: the same numbers as in one process, for any workers, ranges, order of completion and loss."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankmill.cli import execute
from rankmill.foundation.cluster.workers import Cluster
from rankmill.foundation.errors import CandidatesRejected, InputError, NotFiniteScore, WorkerLost
from rankmill.pipeline.ingest import IngestOptions, ingest
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.sources import file_ranges
from rankmill.scorer.compare import Ranking, compare
from rankmill.scorer.evaluate import evaluate
from tests.clusters import killing_in, look_often, on, opened_by
from tests.refusals import refused
from tests.scorer.candidate_files import (
    as_table,
    random_candidates,
    scored_infinite_in_two_files,
    write_csv,
    write_letor,
)

SCORING = "rankmill.scorer.score_on_cluster"
HOW = {"metrics": ["ndcg@10", "map", "mrr", "err@5"], "ties": "row_order", "by": ["f2", "query_size"]}
LOSING = ["a b c", "a", "", "b", "c d", "d"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Candidates in files of several formats; queries are in several of them, and some documents have no id."""
    folder = tmp_path_factory.mktemp("candidates")
    named: dict[str, list[Path]] = {"parquet": [], "text": [], "mixed": [], "dataset": [folder / "dataset"]}
    for number in range(4):
        rows = random_candidates(number, n_rows=150, n_queries=30, nameless=0.3)
        table = folder / f"{number}.parquet"
        pq.write_table(as_table(rows), table, row_group_size=20)
        text = write_letor(folder / f"{number}.txt", rows)
        named["parquet"].append(table)
        named["text"].append(text)
        named["mixed"].append([table, write_csv(folder / f"{number}.csv", rows), text, table][number])
    options = IngestOptions(buckets=9, split={"train": 0.5, "valid": 0.25, "test": 0.25})
    ingest(named["text"], folder / "dataset", options=options)
    return named


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    look_often(monkeypatch)
    monkeypatch.setattr(file_ranges, "LEAST_BYTES", 6000)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "text", "mixed", "dataset"])
def test_the_numbers_are_those_of_one_process(forest, inputs, kind: str) -> None:
    before = sorted(inputs[kind][0].parent.iterdir())
    for split in ("all", "test") if kind == "dataset" else (None,):
        alone = evaluate(inputs[kind], model=forest, split=split, **HOW).to_json(per_query=True)
        for seed, looks in enumerate([["a"], ["a b"], ["a b c"], LOSING]):
            with on(SCORING, *looks, seed=seed) as engine:
                found = evaluate(inputs[kind], model=forest, split=split, cluster="local:2", **HOW)
            assert found.to_json(per_query=True) == alone
            assert len(engine.started) >= 3
    assert sorted(inputs[kind][0].parent.iterdir()) == before


def test_goals_and_judgments_come_along(forest, tmp_path: Path) -> None:
    rows = random_candidates(3, n_rows=400)
    table = as_table(rows)
    bought = pa.array(np.arange(400) % 3, pa.int32())
    pq.write_table(table.append_column("bought", bought), tmp_path / "a.parquet", row_group_size=50)
    (tmp_path / "qrels").write_text("".join(f"{qid} 0 {doc_id} {grade}\n" for grade, qid, doc_id, _ in rows[::2]))
    read = ReadOptions(goals=("bought",))
    ingest([tmp_path / "a.parquet"], tmp_path / "data", options=IngestOptions(buckets=4, read=read))
    for subject, how in (
        (tmp_path / "a.parquet", {"metrics": ["ndcg@5", "err:bought"]}),
        (tmp_path / "data", {"metrics": ["ndcg@5", "err:bought"], "split": "all"}),
        (tmp_path / "a.parquet", {"qrels": tmp_path / "qrels"}),
    ):
        with on(SCORING, "a b"):
            found = evaluate(subject, model=forest, cluster="local:2", **how)
        assert found.to_json(per_query=True) == evaluate(subject, model=forest, **how).to_json(per_query=True)


def test_errors_are_those_of_one_process(forest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.txt").write_text("")
    with on(SCORING, "a"), refused(CandidatesRejected, "no candidates found"):
        evaluate(tmp_path / "empty.txt", model=forest, cluster="local:1")
    (tmp_path / "narrow.txt").write_text("1 qid:1 1:2\n")
    with on(SCORING, "a"), refused(CandidatesRejected, "n_features"):
        evaluate(tmp_path / "narrow.txt", model=forest, cluster="local:1")
    paths = scored_infinite_in_two_files(tmp_path, monkeypatch)
    with refused(NotFiniteScore, "2.txt", "row 258", "inf") as alone:
        evaluate(paths, model=forest)
    for seed in range(3):
        with on(SCORING, "a b c", seed=seed), pytest.raises(NotFiniteScore) as found:
            evaluate(paths, model=forest, cluster="local:2")
        assert str(found.value) == str(alone.value)


def test_what_a_cluster_is_not_for_is_refused(forest, inputs, tmp_path: Path) -> None:
    with refused(InputError, "cluster", "model"):
        evaluate(inputs["text"][0], cluster="local:2")
    with refused(InputError, "cluster", "compare"):
        compare([Ranking(name="a", source=forest)] * 2, on=inputs["text"], cluster="local:2")


def test_a_file_that_is_another_one_there_is_refused(forest, inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    original = file_ranges.ranges_of

    def larger(sources):
        return [replace(each, sizes=tuple(size + 1 for size in each.sizes)) for each in original(sources)]

    monkeypatch.setattr(f"{SCORING}.ranges_of", larger)
    with on(SCORING, "a"), refused(InputError, "0.txt", "another file"):
        evaluate(inputs["text"], model=forest, cluster="local:1")


def test_an_evaluation_that_lost_all_workers_leaves_nothing(forest, inputs) -> None:
    before = sorted(inputs["text"][0].parent.iterdir())
    with on(SCORING, "a b", "a b", ""), pytest.raises(WorkerLost, match=r"run the same command again$"):
        evaluate(inputs["text"], model=forest, cluster="local:2")
    assert sorted(inputs["text"][0].parent.iterdir()) == before


@pytest.mark.slow
def test_the_work_of_a_killed_process_is_done_again(forest, inputs, dask: Cluster) -> None:
    with killing_in("score_rows", dask) as killed, opened_by(SCORING, dask):
        found = evaluate(inputs["mixed"], model=forest, cluster="local:2", **HOW)
    assert killed
    assert found.to_json(per_query=True) == evaluate(inputs["mixed"], model=forest, **HOW).to_json(per_query=True)


@pytest.mark.slow
def test_the_command_prints_the_same(forest, inputs, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.rankmill").write_bytes(forest.to_bytes())
    paths = [os.path.relpath(path) for path in inputs["mixed"]]
    usual = ["evaluate", *paths, "--model", str(tmp_path / "model.rankmill"), "--json"]
    assert execute(usual) == 0
    alone = capfd.readouterr().out
    assert execute([*usual, "--cluster", "local:2"]) == 0
    assert capfd.readouterr().out == alone
