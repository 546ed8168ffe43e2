"""Re-ranking and evaluation on a cluster: the bytes and numbers of one process, for any workers, ranges, order of
completion and loss."""

import os
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankmill.cli import execute
from rankmill.foundation.errors import CandidatesRejected, InputError, NotFiniteScore, WorkerLost
from rankmill.pipeline.ingest import IngestOptions, ingest
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read import file_ranges
from rankmill.scorer.evaluate.compare import Ranking, compare
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.rerank import spill as sorting
from rankmill.scorer.rerank import write as ranked_writer
from rankmill.scorer.rerank.memory import MemoryPlan
from rankmill.scorer.rerank.rerank import rerank, rerank_several
from tests.clusters import look_often, on
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.rerank.candidate_files import (
    as_table,
    random_candidates,
    scored_infinite_in_two_files,
    tree_of,
    write_csv,
    write_letor,
)

ON_CLUSTER = "rankmill.scorer.rerank.on_cluster"
HOW = {"metrics": ["ndcg@10", "map", "mrr", "err@5"], "ties": "row_order", "by": ["f2", "query_size"]}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Candidates in files of several formats; queries are in several of them, and some documents have no id."""
    folder = tmp_path_factory.mktemp("candidates")
    named = {kind: [] for kind in ("parquet", "text", "mixed", "with ids")}
    for number in range(4):
        rows = random_candidates(number, n_rows=150, n_queries=30, nameless=0.3)
        table, whole = folder / f"{number}.parquet", folder / f"ids-{number}.parquet"
        pq.write_table(as_table(rows), table, row_group_size=20)
        pq.write_table(as_table(random_candidates(number, n_rows=150, n_queries=30)), whole, row_group_size=20)
        text, csv = write_letor(folder / f"{number}.txt", rows), write_csv(folder / f"{number}.csv", rows)
        named["parquet"].append(table)
        named["text"].append(text)
        named["mixed"].append([table, csv, text, table][number])
        named["with ids"].append(whole)
    options = IngestOptions(buckets=9, split={"train": 0.5, "valid": 0.25, "test": 0.25})
    ingest(named["text"], folder / "dataset", options=options)
    return named | {"dataset": [folder / "dataset"]}


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Cut small ranges, batches, parts and shards."""
    look_often(monkeypatch)
    for module in ("spill", "write"):  # hundreds of tiny files
        monkeypatch.setattr(f"rankmill.scorer.rerank.{module}.fsync_file", lambda path: None)
    monkeypatch.setattr(file_ranges, "LEAST_BYTES", 6000)
    monkeypatch.setattr(ranked_writer, "SHARD_ROWS", 60)
    monkeypatch.setattr(sorting, "BATCH_ROWS", 50)
    monkeypatch.setattr(MemoryPlan, "of", lambda total: MemoryPlan(10**9, 2000, 64 << 20))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "top_k", "out"),
    [
        ("parquet", None, "out"),
        ("parquet", 5, "out"),
        ("text", 5, "out"),
        ("mixed", 5, "out.parquet"),
        ("text", None, "out.tsv"),
        ("with ids", 5, "out.run"),
    ],
)
def test_the_bytes_are_those_of_one_process(forest, inputs, kind, top_k, out, tmp_path):
    alone = rerank(inputs[kind], forest, tmp_path / out, top_k=top_k)
    expected = tree_of(tmp_path / out)
    assert len(expected) > 3 or out != "out"
    for seed, looks in enumerate([["a"], ["a b"], ["a b c", "a", "", "b", "c d", "d"]]):
        with on(ON_CLUSTER, *looks, seed=seed) as engine:
            found = rerank(inputs[kind], forest, tmp_path / out, top_k=top_k, overwrite=True, cluster="local:2")
        assert tree_of(tmp_path / out) == expected
        assert found == alone
        assert len(engine.started) >= 3
    assert {path.name for path in tmp_path.iterdir()} <= {*expected, out, f"{out}.grades.parquet"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "text", "mixed", "dataset"])
def test_the_numbers_are_those_of_one_process(forest, inputs, kind):
    before = sorted(inputs[kind][0].parent.iterdir())
    for split in ("all", "test") if kind == "dataset" else (None,):
        alone = evaluate(inputs[kind], model=forest, split=split, **HOW).to_json(per_query=True)
        for seed, looks in enumerate([["a"], ["a b c"], ["a b c", "a", "", "b", "c d", "d"]]):
            with on(ON_CLUSTER, *looks, seed=seed) as engine:
                found = evaluate(inputs[kind], model=forest, split=split, cluster="local:2", **HOW)
            assert found.to_json(per_query=True) == alone
            assert len(engine.started) >= 3
    assert sorted(inputs[kind][0].parent.iterdir()) == before


def test_several_models_read_their_candidates_once(forest, inputs, tmp_path):
    models = {"x": (forest, None), "y": (random_forest(6, n_trees=3, max_leaves=5), None)}
    alone = rerank_several(inputs["mixed"], models, tmp_path / "out", top_k=4)
    expected = tree_of(tmp_path / "out")
    with on(ON_CLUSTER, "a b"):
        again = rerank_several(inputs["mixed"], models, tmp_path / "out", top_k=4, overwrite=True, cluster="local:2")
    assert again == alone
    assert tree_of(tmp_path / "out") == expected


def test_goals_and_judgments_come_along(forest, tmp_path):
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
        with on(ON_CLUSTER, "a b"):
            found = evaluate(subject, model=forest, cluster="local:2", **how)
        assert found.to_json(per_query=True) == evaluate(subject, model=forest, **how).to_json(per_query=True)


def test_a_run_that_lost_all_workers_resumes_and_an_evaluation_leaves_nothing(forest, inputs, tmp_path):
    rerank(inputs["parquet"], forest, tmp_path / "out", top_k=5)
    expected = tree_of(tmp_path / "out")
    looks, calls = ["a b"] * 5, 0
    for _ in range(20):
        with on(ON_CLUSTER, *looks, "") as engine:
            try:
                rerank(inputs["parquet"], forest, tmp_path / "again", top_k=5, cluster="local:2")
                break
            except WorkerLost:
                calls += len(engine.started)
    assert calls > 10
    assert {f"out{name.removeprefix('again')}": data for name, data in tree_of(tmp_path / "again").items()} == expected
    before = sorted(inputs["text"][0].parent.iterdir())
    with on(ON_CLUSTER, "a b", "a b", ""), pytest.raises(WorkerLost, match=r"run the same command again$"):
        evaluate(inputs["text"], model=forest, cluster="local:2")
    assert sorted(inputs["text"][0].parent.iterdir()) == before


def test_a_score_that_is_not_finite_is_named_by_its_row_in_the_whole_input(forest, tmp_path, monkeypatch):
    paths = scored_infinite_in_two_files(tmp_path, monkeypatch)
    for work in (
        lambda **how: rerank(paths, forest, tmp_path / "out", **how),
        lambda **how: evaluate(paths, model=forest, **how),
    ):
        with refused(NotFiniteScore, "2.txt", "row 258", "inf") as alone:
            work()
        for seed in range(2):
            with on(ON_CLUSTER, "a b c", seed=seed), pytest.raises(NotFiniteScore) as found:
                work(cluster="local:2")
            assert str(found.value) == str(alone.value)
    assert not (tmp_path / "out").exists()


def test_what_only_the_whole_input_shows_is_checked(forest, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    narrow = tmp_path / "narrow.txt"
    narrow.write_text("1 qid:1 1:2\n")
    for work in (
        lambda paths, **how: rerank(paths, forest, tmp_path / "out", **how),
        lambda paths, **how: evaluate(paths, model=forest, **how),
    ):
        with on(ON_CLUSTER, "a"), refused(CandidatesRejected, "no candidates found"):
            work(tmp_path / "empty.txt", cluster="local:1")
        with on(ON_CLUSTER, "a"), refused(CandidatesRejected, "n_features"):
            work([tmp_path / "empty.txt", narrow], cluster="local:1")
    wide = write_letor(tmp_path / "wide.txt", random_candidates(1, n_rows=10))
    rerank([narrow, wide, tmp_path / "empty.txt"], forest, tmp_path / "alone")
    with on(ON_CLUSTER, "a"):
        rerank([narrow, wide, tmp_path / "empty.txt"], forest, tmp_path / "out", cluster="local:1")
    assert [*tree_of(tmp_path / "out").values()] == [*tree_of(tmp_path / "alone").values()]


def test_what_a_cluster_is_not_for_or_cannot_read_is_refused(forest, inputs, tmp_path, monkeypatch):
    run = tmp_path / "first.run"
    run.write_text("q1 Q0 D1 1 1.0 x\n")
    with on(ON_CLUSTER, "a"), refused(InputError, "run", "cluster"):
        rerank(inputs["text"], forest, tmp_path / "out", run=run, cluster="local:1")
    with refused(InputError, "cluster", "model"):
        evaluate(inputs["text"][0], cluster="local:2")
    with refused(InputError, "cluster", "compare"):
        compare([Ranking(name="a", source=forest)] * 2, on=inputs["text"], cluster="local:2")
    original = file_ranges.ranges_of

    def larger(sources):
        return [replace(each, sizes=tuple(size + 1 for size in each.sizes)) for each in original(sources)]

    monkeypatch.setattr(f"{ON_CLUSTER}.ranges_of", larger)
    with on(ON_CLUSTER, "a"), refused(InputError, "0.txt", "another file"):
        rerank(inputs["text"], forest, tmp_path / "out", cluster="local:1")
    with on(ON_CLUSTER, "a"), refused(InputError, "0.txt", "another file"):
        evaluate(inputs["text"], model=forest, cluster="local:1")


@pytest.mark.slow
def test_the_commands_write_and_print_the_same(forest, inputs, tmp_path, capfd):
    (tmp_path / "model.rankmill").write_bytes(forest.to_bytes())
    paths = [os.path.relpath(path) for path in inputs["mixed"]]
    usual = ["rerank", *paths, "--model", str(tmp_path / "model.rankmill"), "--top-k", "3", "-o"]
    assert execute([*usual, str(tmp_path / "alone")]) == 0
    assert execute([*usual, str(tmp_path / "both"), "--cluster", "local:2"]) == 0
    assert [*tree_of(tmp_path / "both").values()] == [*tree_of(tmp_path / "alone").values()]
    capfd.readouterr()
    bad = tmp_path / "bad.csv"
    bad.write_text(inputs["mixed"][1].read_text() + "1,2\n")
    assert execute([*usual, str(tmp_path / "t"), str(bad)]) == 10
    alone = capfd.readouterr().err.splitlines()[-1]
    assert execute([*usual, str(tmp_path / "t"), str(bad), "--cluster", "local:2"]) == 10
    assert capfd.readouterr().err.splitlines()[-1] == alone
    usual = ["evaluate", *paths, "--model", str(tmp_path / "model.rankmill"), "--json"]
    assert execute(usual) == 0
    printed = capfd.readouterr().out
    assert execute([*usual, "--cluster", "local:2"]) == 0
    assert capfd.readouterr().out == printed
