"""Re-ranking against a plain sort; the same bytes whatever the memory, threads and batches; nothing half-written."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankmill.foundation.errors import CandidatesRejected, ConflictError, InputError, MalformedLine, ModelFormatError
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.evaluate.scored_file import read_scored
from rankmill.scorer.models.identity import ModelIdentity
from rankmill.scorer.rerank import memory, ranked_file
from rankmill.scorer.rerank import score as scoring
from rankmill.scorer.rerank import spill as sorting
from rankmill.scorer.rerank import write as ranked_writer
from rankmill.scorer.rerank.memory import MemoryPlan
from rankmill.scorer.rerank.ranked_file import RANKED, SCORED_ROW
from rankmill.scorer.rerank.rerank import rerank
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.rerank.candidate_files import (
    as_table,
    random_candidates,
    ranked,
    read_ranked,
    tree_of,
    write_csv,
    write_letor,
    write_parquet,
)


@pytest.mark.parametrize(("suffix", "top_k"), [("txt", None), ("parquet", 1), ("csv", 7), ("tsv", None)])
def test_lists_come_out_as_a_plain_sort_has_them(tmp_path, forest, rows, suffix, top_k):
    write = {"txt": write_letor, "parquet": write_parquet}.get(suffix, write_csv)
    source = write(tmp_path / f"candidates.{suffix}", rows)
    report = rerank(source, forest, tmp_path / "out", top_k=top_k)
    expected = ranked(forest, rows, top_k)
    assert read_ranked(tmp_path / "out") == expected
    assert (report.rows, report.rows_written) == (len(rows), len(expected))
    assert report.queries == len({row[1] for row in rows})


@pytest.mark.parametrize("link", ["softmax_gain", "ordinal_grade"])
def test_several_outputs_rank_by_the_score_that_their_link_gives(tmp_path, rows, link):
    forest = random_forest(5, n_trees=12, max_leaves=12, info={"max_grade": 4}, n_outputs=4, link=link)
    source = write_letor(tmp_path / "c.txt", rows)
    for n_rounds, start, top_k in ((None, 0, None), (2, 0, 7), (2, 1, 7), (None, 3, 7)):
        rerank(source, forest, tmp_path / "out", top_k=top_k, n_rounds=n_rounds, start_round=start, overwrite=True)
        cut = forest.truncated(n_rounds, start)
        assert read_ranked(tmp_path / "out") == ranked(cut, rows, top_k)
    rerank(source, forest, tmp_path / "whole")
    scored = evaluate(tmp_path / "whole", metrics=["ndcg@5", "err"])
    assert evaluate(source, model=forest, metrics=["ndcg@5", "err"]).means == scored.means


def test_the_unjudged_rows_of_a_dataset_are_ranked_as_they_came(tmp_path, forest):
    rows = random_candidates(4)
    source = write_letor(tmp_path / "rows.txt", rows)
    for n in (250, 60):  # of the first, files lie in the folder that are not of the dataset any more
        judged = [f"{qid} 0 {doc_id} {grade}\n" for grade, qid, doc_id, _ in rows[:n]]
        (tmp_path / "qrels").write_text("".join(judged))
        ingest(
            [source], tmp_path / "data", qrels=[tmp_path / "qrels"], options=IngestOptions(overwrite=True, buckets=4)
        )
    rerank(tmp_path / "data" / "_unjudged", forest, tmp_path / "out")
    assert read_ranked(tmp_path / "out") == [(*row[:4], None) for row in ranked(forest, rows[60:])]


def test_the_same_bytes_for_any_memory_threads_and_blocks(tmp_path, forest, monkeypatch):
    rows = random_candidates(3, n_rows=1500, n_queries=20)
    source = write_letor(tmp_path / "c.txt", rows)
    rerank(source, forest, tmp_path / "out", top_k=20)
    first = tree_of(tmp_path / "out")
    for n_threads, limit, block in ((1, "512MB", 1000), (2, "600MB", 70_000), (3, 3 * 10**9, 1 << 20)):
        monkeypatch.setattr(MemoryPlan, "of", lambda total, block=block: MemoryPlan(total, block, 64 << 20))
        monkeypatch.setattr(sorting, "BATCH_ROWS", max(2, block // 100))
        monkeypatch.setattr(sorting, "PARTS_OF_THE_LIMIT", block)
        rerank(source, forest, tmp_path / "out", top_k=20, n_threads=n_threads, memory=limit, overwrite=True)
        assert tree_of(tmp_path / "out") == first


def test_shards_hold_whole_queries_and_their_bytes_do_not_depend_on_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(ranked_writer, "ROW_GROUP_ROWS", 16)
    monkeypatch.setattr(ranked_writer, "SHARD_ROWS", 100)
    rng = np.random.default_rng(4)
    sizes = rng.integers(1, 30, size=40)
    qids = np.repeat([f"q{i:02d}" for i in range(40)], sizes)
    n = len(qids)
    first = np.ones(n, dtype=bool)
    first[1:] = qids[1:] != qids[:-1]
    columns = [qids.tolist(), [f"d{i}" for i in range(n)], rng.normal(size=n), np.ones(n, np.int32), [None] * n]
    table = pa.table(columns, schema=ranked_file.RANKED)
    seen = []
    for step in (1, 7, 50, n):
        folder = tmp_path / str(step)
        folder.mkdir()
        writer = ranked_writer.open_writer(folder, folder, {"rankmill": "{}"})
        for i in range(0, n, step):
            writer.write(
                sorting.RankedBatch(table.slice(i, step), first[i : i + step], np.zeros(len(first[i : i + step]), bool))
            )
        shards = writer.close()
        seen.append([(folder / shard.name).read_bytes() for shard in shards])
        assert sum(shard.rows for shard in shards) == n
        assert sum(shard.queries for shard in shards) == 40
        assert all(100 <= shard.rows < 130 for shard in shards[:-1])
        parts = [set(pq.read_table(folder / shard.name)["qid"].to_pylist()) for shard in shards]
        assert sum(len(part) for part in parts) == 40
        groups = pq.ParquetFile(folder / shards[0].name).metadata
        assert [groups.row_group(g).num_rows for g in range(groups.num_row_groups - 1)] == [16] * (
            groups.num_row_groups - 1
        )
    assert all(other == seen[0] for other in seen)


def test_the_manifest_says_what_was_done(tmp_path, forest, rows):
    source = write_parquet(tmp_path / "c.parquet", rows)
    identity = ModelIdentity(sha256=forest.sha256, name="web", number=3)
    rerank(source, forest, tmp_path / "out", top_k=2, identity=identity)
    text = (tmp_path / "out" / "_manifest.json").read_text()
    manifest = json.loads(text)
    assert str(tmp_path) not in text
    assert manifest["model"] == {"sha256": forest.sha256, "name": "web", "number": 3}
    assert (manifest["format"], manifest["kind"], manifest["top_k"], manifest["max_grade"]) == (1, "ranked", 2, 4)
    assert manifest["rows"] == len(rows)
    for listed in [*manifest["shards"], manifest["grades"]]:
        assert hashlib.sha256((tmp_path / "out" / listed["name"]).read_bytes()).hexdigest() == listed["sha256"]


def test_no_grades_no_side_table_and_null_grades(tmp_path, forest, rows):
    table = as_table(rows).drop_columns(["grade"])
    pq.write_table(table, tmp_path / "c.parquet")
    rerank(tmp_path / "c.parquet", forest, tmp_path / "out", top_k=3)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["_manifest.json", "part-00000.parquet"]
    assert {row[4] for row in read_ranked(tmp_path / "out")} == {None}


def test_text_formats_hold_the_same_lists(tmp_path, forest):
    rows = random_candidates(1)
    source = write_letor(tmp_path / "c.txt", rows)
    expected = ranked(forest, rows)
    for name in ("out.run", "out.tsv", "out.csv"):
        rerank(source, forest, tmp_path / name)
        table = read_scored(tmp_path / name)
        found = zip(*(table[c].to_pylist() for c in ("qid", "doc_id", "score")), strict=True)
        assert list(found) == [row[:3] for row in expected]
    lines = (tmp_path / "out.run").read_text().splitlines()
    assert lines[0].split() == [expected[0][0], "Q0", expected[0][1], "1", repr(expected[0][2]), "rankmill"]
    assert [int(line.split()[3]) for line in lines] == [row[3] for row in expected]
    assert read_scored(tmp_path / "out.tsv")["grade"].to_pylist() == [row[4] for row in expected]


def test_ids_that_a_text_format_cannot_hold(tmp_path, forest):
    rows = random_candidates(1)
    spaced = [(grade, f"{qid} x", doc_id, values) for grade, qid, doc_id, values in rows]
    source = write_parquet(tmp_path / "c.parquet", spaced)
    with refused(CandidatesRejected, "qid", "white space", "TREC"):
        rerank(source, forest, tmp_path / "out.run")
    rerank(source, forest, tmp_path / "out.tsv")
    for blank in ("\v", "\f", "\r"):  # all of them part the fields of a run
        source = write_parquet(
            tmp_path / "c.parquet", [(g, q, f"d{blank}{i}", v) for i, (g, q, _, v) in enumerate(rows)]
        )
        with refused(CandidatesRejected, "white space"):
            rerank(source, forest, tmp_path / "out.run")
    tabbed = [(grade, f"{qid}\tx", doc_id, values) for grade, qid, doc_id, values in rows]
    with refused(CandidatesRejected, "tab"):
        rerank(write_parquet(tmp_path / "t.parquet", tabbed), forest, tmp_path / "t.tsv")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.parquet", "out.tsv", "t.parquet"]


def test_text_that_leaves_the_last_features_out(tmp_path):
    forest = random_forest(5, n_trees=10, max_leaves=12)
    assert forest.used_features[-1] == 4
    rows = random_candidates(2, n_features=4)
    source = write_letor(tmp_path / "c.txt", rows)
    with refused(CandidatesRejected, "c.txt", "f5", "4", "n_features 5"):
        rerank(source, forest, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for absent, value in (("zero", 0.0), ("missing", np.nan)):
        rerank(source, forest, tmp_path / "out", n_features=5, absent=absent, overwrite=True)
        full = [(*row[:3], np.append(row[3], np.float32(value))) for row in rows]
        assert read_ranked(tmp_path / "out") == ranked(forest, full)
    with refused(CandidatesRejected, "f5", "n_features 4", "n_features 5"):
        rerank(source, forest, tmp_path / "more", n_features=4)


def test_what_text_means_is_as_in_training(tmp_path):
    rows = random_candidates(2, n_features=3)
    names = ["f0", "f1", "f2", "f3"]
    forest = random_forest(6, n_features=4, n_trees=10, names=names, info={"absent": "missing", "index_base": 0})
    source = write_letor(tmp_path / "c.txt", rows, base=0)
    rerank(source, forest, tmp_path / "out", n_features=4)
    full = [(*row[:3], np.append(row[3], np.float32(np.nan))) for row in rows]
    assert read_ranked(tmp_path / "out") == ranked(forest, full)
    with refused(CandidatesRejected, "f0", "LETOR", "index_base 0"):
        rerank(source, forest, tmp_path / "out2", n_features=4, index_base=1)


def test_features_that_are_lacking_are_named_with_the_cure(tmp_path, forest, rows):
    names = ["f1", "x", "f3", "y", "f5"]
    source = write_parquet(tmp_path / "c.parquet", rows, names=names)
    with refused(CandidatesRejected, source, "'f2', 'f4'", "f1, x, f3, y, f5", "add the columns, empty"):
        rerank(source, forest, tmp_path / "out")
    foreign = random_forest(5, names=["a", "b", "c", "d", "e"])
    with refused(CandidatesRejected, "a, b, c, d, e", "LETOR"):
        rerank(write_letor(tmp_path / "c.txt", rows), foreign, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.parquet", "c.txt"]


def test_a_run_has_no_features_of_a_model_and_is_to_be_joined(tmp_path, forest):
    (tmp_path / "c.run").write_text("q Q0 d 1 0.5 tag\n")
    with refused(CandidatesRejected, "TREC", "rankmill rerank FEATURES --run"):
        rerank(tmp_path / "c.run", forest, tmp_path / "out")


def test_mistakes_leave_nothing_behind(tmp_path, forest, rows, monkeypatch):
    source = write_letor(tmp_path / "c.txt", rows)
    broken = tmp_path / "broken.txt"
    broken.write_text(source.read_text() + "1 qid:7 1:x\n")
    empty = write_letor(tmp_path / "empty.txt", [])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(MalformedLine):
        rerank([source, broken], forest, tmp_path / "out")
    with pytest.raises(Exception, match=r"empty\.txt"):
        rerank(empty, forest, tmp_path / "out")
    with pytest.raises(InputError, match="no such file"):
        rerank(tmp_path / "none.txt", forest, tmp_path / "out")
    with refused(InputError, "no candidates", "one file"):
        rerank([], forest, tmp_path / "out")
    (tmp_path / "link.txt").symlink_to(source)
    for again in (source, tmp_path / "link.txt"):
        with refused(InputError, again.name, "twice"):
            rerank([source, again], forest, tmp_path / "out")
    (tmp_path / "link.txt").unlink()
    with refused(InputError, "top_k", "1", "0"):
        rerank(source, forest, tmp_path / "out", top_k=0)
    with refused(InputError, "memory", "512MB", "100,000,000"):
        rerank(source, forest, tmp_path / "out", memory="100MB")
    with refused(InputError, ".xlsx"):
        rerank(source, forest, tmp_path / "out.xlsx")
    with refused(InputError, "no such", "model"):
        rerank(source, tmp_path / "m.rankmill", tmp_path / "out")
    with pytest.raises(ModelFormatError):
        rerank(source, source, tmp_path / "out")

    def full(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    for name in ("publish.publish_folder", "write.file_digest"):
        with monkeypatch.context() as patch:
            patch.setattr(f"rankmill.scorer.rerank.{name}", full)
            with pytest.raises(OSError, match="No space"):
                rerank(source, forest, tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before


def test_what_exists_is_replaced_only_when_asked_and_only_our_own(tmp_path, forest, rows, monkeypatch):
    source = write_letor(tmp_path / "c.txt", rows)
    for name in ("out", "out.parquet"):
        rerank(source, forest, tmp_path / name, top_k=2)
        before = tree_of(tmp_path / name)
        with refused(InputError, "overwrite"):
            rerank(source, forest, tmp_path / name)
        assert tree_of(tmp_path / name) == before
        with monkeypatch.context() as patch:
            patch.setattr(ranked_writer.ListWriter, "close", lambda _writer: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                rerank(source, forest, tmp_path / name, overwrite=True)
        assert tree_of(tmp_path / name) == before
        rerank(source, forest, tmp_path / name, overwrite=True)
        assert read_ranked(tmp_path / name) == ranked(forest, rows)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.txt", "out", "out.parquet"]  # no stale side table
    with monkeypatch.context() as patch:
        patch.setattr("rankmill.scorer.rerank.publish.publish_folder", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            rerank(source, forest, tmp_path / "out", top_k=1, overwrite=True)
    assert read_ranked(tmp_path / "out") == ranked(forest, rows)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with refused(InputError, "folder", "overwritten"):
        rerank(source, forest, tmp_path / "mine", overwrite=True)


@pytest.mark.parametrize("name", ["out", "out.tsv"])
def test_what_another_run_has_written_meanwhile_is_not_replaced(tmp_path, forest, rows, monkeypatch, name):
    source = write_letor(tmp_path / "c.txt", rows)
    scored = scoring._scores

    def raced(*arguments):
        with monkeypatch.context() as patch:
            patch.setattr(scoring, "_scores", scored)
            if not (tmp_path / name).exists():
                rerank(source, forest, tmp_path / name, top_k=1)
        return scored(*arguments)

    monkeypatch.setattr(scoring, "_scores", raced)
    with refused(ConflictError, name, "overwrite"):
        rerank(source, forest, tmp_path / name)
    assert evaluate(tmp_path / name).counts.n_documents == 12
    assert [p.name for p in tmp_path.iterdir() if "staging" in p.name] == []


def test_text_candidates_without_a_grade_get_a_line_that_says_what_to_write(tmp_path, forest):
    (tmp_path / "c.txt").write_text("qid:1 1:0.5 5:1\n")
    with refused(MalformedLine, "qid:1"):
        rerank(tmp_path / "c.txt", forest, tmp_path / "out")
    (tmp_path / "c.txt").write_text("0 qid:1 1:0.5 5:1\n")
    assert rerank(tmp_path / "c.txt", forest, tmp_path / "out").rows == 1


def test_an_older_side_table_stays_until_the_file_is_replaced(tmp_path, forest, rows, monkeypatch):
    source = write_letor(tmp_path / "c.txt", rows)
    rerank(source, forest, tmp_path / "z.tsv", top_k=2, grade_counts=True)
    before = tree_of(tmp_path)

    def refuse(*_, **__):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", refuse)
        with pytest.raises(OSError, match="Input/output"):
            rerank(source, forest, tmp_path / "z.tsv", overwrite=True)
    assert tree_of(tmp_path) == before
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.unlink", refuse)
        with pytest.raises(OSError, match="Input/output"):
            rerank(source, forest, tmp_path / "z.tsv", overwrite=True)
    with refused(InputError, "z.tsv.grades.parquet", "another version"):
        evaluate(tmp_path / "z.tsv")


@pytest.mark.parametrize("overwrite", [False, True])
def test_out_may_not_be_what_it_is_made_from(tmp_path, forest, rows, overwrite):
    source = write_parquet(tmp_path / "c.parquet", rows)
    write_parquet(tmp_path / "c.tsv.grades.parquet", rows)
    (tmp_path / "link.parquet").symlink_to(source)
    (tmp_path / "here").symlink_to(tmp_path)
    before = tree_of(tmp_path)
    cases = [
        (source, source),
        (source, tmp_path / "here" / ".." / tmp_path.name / "c.parquet"),
        (source, tmp_path / "link.parquet"),
        (tmp_path / "link.parquet", source),
        (tmp_path / "c.tsv.grades.parquet", tmp_path / "c.tsv"),
    ]
    for path, out in cases:
        with refused(InputError, "input", "OUT"):
            rerank(path, forest, out, overwrite=overwrite)
    assert tree_of(tmp_path) == before
    rerank(source, forest, tmp_path / "out")
    write_parquet(tmp_path / "out" / "c.parquet", rows)
    with refused(InputError, "out", "c.parquet", "input"):
        rerank([source, tmp_path / "out" / "c.parquet"], forest, tmp_path / "out", overwrite=overwrite)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".run"])
def test_no_file_is_beside_text_unless_it_is_asked_for(tmp_path, forest, suffix):
    source = write_letor(tmp_path / "c.txt", random_candidates(1))
    report = rerank(source, forest, tmp_path / f"z{suffix}", top_k=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.txt", f"z{suffix}"]
    assert report.lacks_counts
    assert "grade_counts" in report.render()
    whole = rerank(source, forest, tmp_path / f"z{suffix}", overwrite=True)
    assert not whole.lacks_counts
    rerank(source, forest, tmp_path / f"z{suffix}", top_k=3, overwrite=True, grade_counts=True)
    rerank(source, forest, tmp_path / f"z{suffix}", top_k=3, overwrite=True)  # old counts go
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.txt", f"z{suffix}"]


def test_what_has_the_name_of_the_grade_counts_is_treated_like_out(tmp_path, forest, rows):
    source = write_letor(tmp_path / "c.txt", rows)
    counts = tmp_path / "z.tsv.grades.parquet"
    rerank(source, forest, tmp_path / "z.tsv", top_k=2, grade_counts=True)
    (tmp_path / "z.tsv").unlink()
    for top_k in (None, 3):
        before = counts.read_bytes()
        with refused(InputError, "z.tsv.grades.parquet", "grade counts", "overwrite"):
            rerank(source, forest, tmp_path / "z.tsv", top_k=top_k)
        assert counts.read_bytes() == before
    rerank(source, forest, tmp_path / "z.tsv", top_k=3, overwrite=True, grade_counts=True)
    assert counts.read_bytes() != before
    pq.write_table(pa.table({"years": ["of work"]}), tmp_path / "foreign.parquet")
    for foreign in ((tmp_path / "foreign.parquet").read_bytes(), b"a thesis"):
        counts.write_bytes(foreign)
        for top_k in (None, 3):
            with refused(InputError, "table", "overwritten"):
                rerank(source, forest, tmp_path / "z.tsv", top_k=top_k, overwrite=True)
        assert counts.read_bytes() == foreign


def test_row_groups_of_long_ids_are_short_and_do_not_depend_on_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(ranked_writer, "ROW_GROUP_BYTES", 1000)
    ids = ["x" * n for n in [10] * 300 + [400] * 4 + [3000, 1] + [10] * 300]
    n = len(ids)
    columns = [["q"] * n, ids, [0.0] * n, range(1, n + 1), [None] * n]
    rows = pa.table([pa.array(c, f.type) for c, f in zip(columns, RANKED, strict=True)], schema=RANKED)
    files = []
    for size in (1, 7, 100, n):
        writer = ranked_writer.open_writer(tmp_path / f"{size}.parquet", tmp_path, {})
        for first in range(0, n, size):
            part = rows.slice(first, size)
            once = np.zeros(len(part), bool)
            writer.write(sorting.RankedBatch(part, np.arange(first, first + len(part)) == 0, once))
        writer.close()
        files.append((tmp_path / f"{size}.parquet").read_bytes())
    assert len(set(files)) == 1
    metadata = pq.read_metadata(tmp_path / "1.parquet")
    groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    ends = np.cumsum(groups)[:-1]
    for first, end in zip([0, *ends], ends, strict=False):
        of_rows = [1 + len(doc_id) for doc_id in ids[first:end]]
        assert sum(of_rows[:-1]) < 1000 <= sum(of_rows)
    assert pq.read_table(tmp_path / "1.parquet").equals(rows)


def test_batches_of_long_ids_are_short(tmp_path, monkeypatch):
    monkeypatch.setattr(sorting, "BATCH_BYTES", 1 << 20)
    n = 20_000
    columns = [["q"] * n, [f"{i:0500}" for i in range(n)], [0.0] * n, [None] * n, range(n)]
    rows = pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCORED_ROW, strict=True)], schema=SCORED_ROW)
    spill = sorting.ScoreSpill(tmp_path)
    for first in range(0, n, 100):
        spill.write(rows.slice(first, 100))
    spilled = spill.checkpoint()
    written = [batch.num_rows for batch in sorting.batches_of(spilled.paths(tmp_path, "scored"))]
    with sorting.sorted_parts(tmp_path, spilled, 0, sort_bytes=1 << 30, n_threads=1) as found:
        ranked = [len(batch.rows) for batch in found.ranked(None)]
    for sizes in (written, ranked):
        assert sum(sizes) == n
        assert max(sizes) <= 2100  # a megabyte of them


def test_the_memory_plan_adds_up():
    for total in (memory.LEAST, 10**9, 2 * 10**9, 64 * 10**9):
        plan = MemoryPlan.of(total)
        # Twelve blocks while scoring; the sort, and about as much again, while sorting (see the docstrings).
        assert memory.FLOOR + 12 * plan.block_bytes <= total
        assert memory.FLOOR + 2 * plan.sort_bytes <= total
        for wanted in (1, 2, 16, 500):
            threads = plan.scoring_threads(wanted)
            assert 1 <= threads <= wanted
            held = memory.READER + threads * memory.GROWTH * plan.block_bytes
            assert threads == 1 or memory.FLOOR + held <= total
            by_column = 2 * threads * plan.columns_bytes(threads)  # read in groups, and waiting
            assert memory.FLOOR + by_column + plan.best_bytes <= total


def peak_of_a_fresh_process(*arguments, n_threads=0):
    """Re-rank in a process of its own with warm kernels and return (its output, peak resident bytes)."""
    code = (
        "import sys; from rankmill.scorer.rerank.rerank import rerank; "
        "report = rerank(sys.argv[1], sys.argv[2], sys.argv[3], memory=sys.argv[4], overwrite=True, "
        "n_threads=int(sys.argv[5])); "
        "print(report.rows, [l.split()[1] for l in open('/proc/self/status') if l.startswith('VmHWM')][0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments), str(n_threads)], check=True, capture_output=True, text=True
    )
    rows, peak = done.stdout.split()
    return int(rows), int(peak) * 1024


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")
@pytest.mark.parametrize(
    "shape",
    ["wide text", "long text", "parquet", "parquet in threads", "parquet in groups", "long ids", "long ids in groups"],
)
def test_the_memory_bound_holds(tmp_path, shape):
    """About 250 MB of candidates under 512 MB: wide rows, very many narrow ones, giant row groups, and ids of 1,000
    letters."""
    rng = np.random.default_rng(0)
    n_features = 3 if shape.startswith("long") else 136
    forest = random_forest(3, n_features=n_features, n_trees=50, max_leaves=31, n_thresholds=100)
    forest.save(tmp_path / "m.rankmill")
    source = tmp_path / ("c.txt" if shape.endswith("text") else "c.parquet")
    if source.suffix == ".parquet":
        n = 250_000 if shape.startswith("long ids") else 450_000
        place = np.arange(n)
        columns = {"qid": (place * 7919) % 9973, "doc_id": place, "grade": place % 5}
        if shape.startswith("long ids"):
            columns["doc_id"] = [f"{i:01000}" for i in range(n)]
        columns |= {f"f{f + 1}": rng.normal(size=n).astype(np.float32) for f in range(n_features)}
        size = {"parquet in groups": 100_000, "long ids in groups": 60_000}.get(shape, n)
        pq.write_table(pa.table(columns), source, row_group_size=size, use_dictionary=False, compression="none")
    else:
        n = 170_000 if shape == "wide text" else 5_000_000
        texts = [" ".join(f"{f + 1}:{x:.4f}" for f, x in enumerate(row)) for row in rng.normal(size=(400, n_features))]
        with source.open("w") as file:
            for i in range(n):
                file.write(f"{i % 5} qid:{(i * 7919) % 99_991} {texts[i % 400]} #docid = D{i:010d}\n")
    assert source.stat().st_size > 240_000_000
    peak_of_a_fresh_process(write_letor(tmp_path / "warm.txt", random_candidates(0, n_features=n_features)),
                            tmp_path / "m.rankmill", tmp_path / "warm", "512MB")  # fmt: skip
    n_threads = 16 if shape.endswith("threads") else 0
    rows, peak = peak_of_a_fresh_process(
        source, tmp_path / "m.rankmill", tmp_path / "out", "512MB", n_threads=n_threads
    )
    assert rows == n
    assert peak <= 512_000_000


def test_models_count_in_the_memory_plan(tmp_path, monkeypatch):
    plan = MemoryPlan.of(512_000_000)
    with_models = plan.with_models(10_000_000)
    assert with_models.held == memory.COPIES_OF_A_MODEL * 10_000_000
    assert with_models.columns_bytes(1) < plan.columns_bytes(1)
    assert with_models.block_bytes == plan.block_bytes
    with refused(InputError, "memory", "512MB", "at least"):
        plan.with_models(80_000_000)
    monkeypatch.setattr(memory, "COPIES_OF_A_MODEL", 10**6)
    path = write_letor(tmp_path / "a.txt", random_candidates(1))
    with refused(InputError, "memory", "models"):
        rerank(path, random_forest(1), tmp_path / "out", memory="512MB")
    assert not (tmp_path / "out").exists()
