"""Re-ranking what a run lists: the bytes are those of a file that holds just those rows; nothing is lost in silence."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankmill.cli import execute
from rankmill.foundation.errors import CandidatesRejected, InputError, MalformedLine
from rankmill.scorer.rerank import first_stage, rerank
from rankmill.scorer.rerank import run as rerank_run
from rankmill.scorer.rerank import score as scoring
from rankmill.scorer.rerank.first_stage import BYTES_OF_A_DOCUMENT, FirstStage
from rankmill.scorer.rerank.journal import Journal
from rankmill.scorer.rerank.memory import MemoryPlan
from tests.refusals import refused, unnamed
from tests.scorer.forests import random_forest
from tests.scorer.rerank.candidate_files import (
    as_table,
    random_candidates,
    read_ranked,
    tree_of,
    write_csv,
    write_letor,
    write_parquet,
)


def with_ids(seed, n_rows, n_queries=9):
    """Rows that all have ids, of which every third occurs in every query."""
    rows = random_candidates(seed, n_rows=n_rows, n_queries=n_queries)
    return [
        (g, q, f"d{i // n_queries}" if i % 3 == 0 and q == f"q{i % n_queries}" else d, v)
        for i, (g, q, d, v) in enumerate(rows)
    ]


def drawn(rows, seed, share=0.4):
    """Return the rows that a run lists, in their order, and the run's lines in another one."""
    rng = np.random.default_rng(seed)
    listed = [row for row in rows if rng.random() < share]
    lines = [f"{qid} Q0 {doc_id} {k + 1} {-k}.5 first\n" for k, (_, qid, doc_id, _) in enumerate(listed)]
    return listed, [lines[k] for k in rng.permutation(len(lines))]


def write_run(path, lines):
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_bytes_are_those_of_a_file_with_just_those_rows(tmp_path, forest, suffix, monkeypatch):
    rows = with_ids(3, 700)
    listed, lines = drawn(rows, 4)
    write = {"txt": write_letor, "csv": write_csv, "parquet": write_parquet}[suffix]
    files = [write(tmp_path / f"{k}.{suffix}", part) for k, part in enumerate((rows[:400], rows[400:401], rows[401:]))]
    alone = write(tmp_path / f"alone.{suffix}", listed)
    run = write_run(tmp_path / "first.run", lines)
    (tmp_path / "some").mkdir()
    cut = len(lines) // 2
    write_run(tmp_path / "some" / "a.run", lines[: cut + 30])
    write_run(tmp_path / "some" / "b.run", lines[cut:])
    for top_k in (None, 4):
        rerank.rerank(alone, forest, tmp_path / "out", top_k=top_k, overwrite=True)
        expected, facts = tree_of(tmp_path / "out"), len(listed)
        for n_threads, block, stage in ((1, 1 << 20, run), (2, 900, run), (2, 4000, tmp_path / "some")):
            monkeypatch.setattr(MemoryPlan, "of", lambda total, block=block: MemoryPlan(total, block, 64 << 20))
            report = rerank.rerank(
                files[::-1], forest, tmp_path / "out", run=stage, top_k=top_k, n_threads=n_threads, overwrite=True,
                memory=10**9,
            )  # fmt: skip
            assert tree_of(tmp_path / "out") == expected
            assert (report.rows, report.lacking) == (facts, 0)


def test_groups_of_rows_without_a_document_of_the_run_are_not_read(tmp_path, forest, monkeypatch):
    rows = sorted(with_ids(5, 800), key=lambda row: row[1])
    pq.write_table(as_table(rows), tmp_path / "f.parquet", row_group_size=50)
    monkeypatch.setattr("rankmill.pipeline.read.parquet.PART_ROWS", 50)
    listed = [row for row in rows if row[1] == "q3"]
    run = write_run(tmp_path / "r.run", [f"{q}\tQ0\t{d}\t1\t0\tx\n" for _, q, d, _ in listed])
    coded = []
    real = scoring._scores_by_column
    monkeypatch.setattr(scoring, "_scores_by_column", lambda *a: coded.append(len(a[1])) or real(*a))
    rerank.rerank(tmp_path / "f.parquet", forest, tmp_path / "a.parquet", run=run)
    assert sum(coded) == len(listed)
    rerank.rerank(write_parquet(tmp_path / "q3.parquet", listed), forest, tmp_path / "b.parquet")
    assert read_ranked(tmp_path / "a.parquet") == read_ranked(tmp_path / "b.parquet")


def test_documents_without_a_row_are_reported_or_dropped(tmp_path, forest):
    rows = with_ids(6, 200)
    listed, lines = drawn(rows, 7)
    source = write_letor(tmp_path / "f.txt", rows)
    lines[5:5] = ["\n", "q0 Q0 nobody 1 2 x\n", "q99 Q0 d1 1 2 x\n"]
    run = write_run(tmp_path / "first.run", lines)
    with refused(CandidatesRejected, f"2 of {len(listed) + 2}", "'nobody'", "'q0'") as caught:
        rerank.rerank(source, forest, tmp_path / "out", run=run)
    assert str(caught.value).startswith(f"{run}:7: ")
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []
    report = rerank.rerank(source, forest, tmp_path / "out", run=run, lacking="drop")
    assert (report.rows, report.lacking, json.loads(report.to_json())["lacking"]) == (len(listed), 2, 2)
    assert "documents of the run dropped, as they have no row of features: 2\n" in report.render()
    rerank.rerank(write_letor(tmp_path / "alone.txt", listed), forest, tmp_path / "other")
    assert list(tree_of(tmp_path / "out").values()) == list(tree_of(tmp_path / "other").values())
    nameless = write_letor(tmp_path / "nameless.txt", [(g, q, None, v) for g, q, _, v in rows])
    with refused(CandidatesRejected, "rows", "documents"):
        rerank.rerank(nameless, forest, tmp_path / "out2", run=run, lacking="drop")


@pytest.mark.parametrize("block", [200, 1 << 20])
def test_a_second_row_of_a_document_is_reported(tmp_path, forest, block, monkeypatch):
    monkeypatch.setattr(MemoryPlan, "of", lambda total: MemoryPlan(10**9, block, 64 << 20))
    rows = with_ids(8, 100)
    a = write_letor(tmp_path / "a.txt", rows[:60])
    b = write_letor(tmp_path / "b.txt", [*rows[60:], rows[70], rows[3]])
    run = write_run(tmp_path / "r.run", [f"{rows[3][1]} Q0 {rows[3][2]} 1 2 x\n"])
    for n_threads in (1, 2):
        with refused(CandidatesRejected, b, "one row") as caught:
            rerank.rerank([a, b], forest, tmp_path / "out", run=run, n_threads=n_threads)
        assert f"in row 42 for document {rows[3][2]!r} of query {rows[3][1]!r} ({run}:1); keep one" in str(caught.value)
    rerank.rerank([a, write_letor(tmp_path / "c.txt", [*rows[60:], rows[70]])], forest, tmp_path / "out", run=run)
    twice = write_letor(tmp_path / "twice.txt", [rows[5], rows[3], rows[3]])
    with refused(CandidatesRejected, "row 3"):
        rerank.rerank(twice, forest, tmp_path / "out", run=run, overwrite=True)


def test_runs_that_cannot_be_used_are_refused(tmp_path, forest):
    source = write_letor(tmp_path / "f.txt", with_ids(9, 30))
    run = tmp_path / "r.run"
    for text, error, message in (
        ("a Q0 b 1 2 x\nc Q0 b 1 2 x\na Q0 b 7 1 x\n", CandidatesRejected, ("r.run:3", "'b'", "'a'", "line 1")),
        ("", CandidatesRejected, "none"),
        ("a Q0 b 1 2 x\na Q0 b\n", MalformedLine, "r.run:2"),
    ):
        run.write_text(text)
        with refused(error, message):
            rerank.rerank(source, forest, tmp_path / "out", run=run)
    run.write_text("".join(f"q Q0 {k} 1 2 x\n" for k in range(100)))
    with refused(InputError, "100", "99", "memory"):
        FirstStage.read([run], 99 * BYTES_OF_A_DOCUMENT)
    assert len(FirstStage.read([run], 100 * BYTES_OF_A_DOCUMENT)) == 100
    with refused(InputError, "lacking", "run"):
        rerank.rerank(source, forest, tmp_path / "out", lacking="drop")
    with refused(InputError, "'drop'"):
        rerank.rerank(source, forest, tmp_path / "out", run=run, lacking="drp")


def test_hashes_that_agree_in_their_first_half_are_distinguished(tmp_path, monkeypatch):
    whole = first_stage._hashes
    monkeypatch.setattr(first_stage, "_hashes", lambda q, d: (whole(q, d)[0] % np.uint64(3), whole(q, d)[1]))
    run = write_run(tmp_path / "r.run", [f"q{k % 4} Q0 d{k} 1 2 x\n" for k in range(40)])
    stage = FirstStage.read([run], 10**6)
    qid, doc_id = (pa.array([f"{c}{k % m}" for k in range(80)]) for c, m in (("q", 4), ("d", 80)))
    numbers = stage.numbers(qid, doc_id)
    assert sorted(numbers[:40].tolist()) == list(range(40))
    assert (numbers[40:] == -1).all()


@pytest.mark.parametrize("suffix", ["txt", "parquet"])
def test_a_killed_run_goes_on_unless_the_first_stage_has_changed(tmp_path, forest, monkeypatch, suffix):
    rows = with_ids(11, 900)
    listed, lines = drawn(rows, 12)
    source = tmp_path / f"f.{suffix}"
    if suffix == "txt":
        write_letor(source, rows)
    else:
        pq.write_table(as_table(rows), source, row_group_size=50)
        monkeypatch.setattr("rankmill.pipeline.read.parquet.PART_ROWS", 50)
    run = write_run(tmp_path / "first.run", lines)
    rerank.rerank(write_letor(tmp_path / "alone.txt", listed), forest, tmp_path / "out", top_k=9)
    expected = tree_of(tmp_path / "out")
    monkeypatch.setattr(rerank_run, "CHECKPOINT_ROWS", 100)
    monkeypatch.setattr(MemoryPlan, "of", lambda total: MemoryPlan(10**9, 2000, 64 << 20))
    scored = []
    for name in ("_scores", "_scores_by_column"):
        real = getattr(scoring, name)
        monkeypatch.setattr(scoring, name, lambda *a, real=real: scored.append(len(a[1])) or real(*a))

    def kill_in_the_middle():
        write = Journal.write

        def write_and_die(self, folder):
            write(self, folder)
            if self.place.all_rows >= 450:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Journal, "write", write_and_die)
            with pytest.raises(KeyboardInterrupt):
                rerank.rerank(source, forest, tmp_path / "out", run=run, top_k=9, overwrite=True, n_threads=1)
        scored.clear()

    kill_in_the_middle()
    rerank.rerank(source, forest, tmp_path / "out", run=run, top_k=9, overwrite=True, n_threads=1)
    assert 0 < sum(scored) < len(listed) * 2 // 3
    assert tree_of(tmp_path / "out") == expected
    kill_in_the_middle()
    write_run(run, lines[1:])
    report = rerank.rerank(source, forest, tmp_path / "out", run=run, top_k=9, overwrite=True)
    assert sum(scored) == report.rows == len(listed) - 1


def test_the_command_ranks_by_several_models_at_once_and_leaves_with_10(tmp_path, forest, capsys):
    rows = with_ids(13, 150)
    listed, lines = drawn(rows, 14)
    source = write_parquet(tmp_path / "f.parquet", rows)
    run = write_run(tmp_path / "first.run", lines)
    for name, model in (("a", forest), ("b", random_forest(6, n_trees=3, max_leaves=5))):
        model.save(tmp_path / f"{name}.rankmill")
        rerank.rerank(write_parquet(tmp_path / "alone.parquet", listed), model, tmp_path / "alone" / name, top_k=3)
    words = ["rerank", source, "-m", tmp_path / "a.rankmill", "-m", tmp_path / "b.rankmill", "--run", run, "--top-k", 3]
    assert execute([*map(str, words), "-o", str(tmp_path / "both")]) == 0
    for name in "ab":
        assert tree_of(tmp_path / "both" / name) == tree_of(tmp_path / "alone" / name)
    capsys.readouterr()
    run.write_text("nowhere Q0 nobody 1 2 x\n")
    assert execute([*map(str, words), "-o", str(tmp_path / "none")]) == 10
    assert not unnamed(capsys.readouterr().err.splitlines()[-1], f"{run}:1", "features")
