"""Documents without an id: what they are called is the id of no document, and nothing is joined by it."""

import json
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.clicks.rankings import scored_table
from rankmill.foundation.errors import CandidatesRejected, DataRejected, InputError
from rankmill.pipeline.ingest import ingest
from rankmill.scorer.evaluate.compare import Ranking, compare
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.evaluate.scored_file import read_scored
from rankmill.scorer.rerank import spill as sorting
from rankmill.scorer.rerank.ranked_file import SCORED_ROW
from rankmill.scorer.rerank.rerank import rerank
from tests.refusals import refused
from tests.scorer.forests import random_forest

MADE = "(row 2)"


@pytest.fixture(scope="module")
def forest():
    return random_forest(3, n_features=3)


def table(ids, **more):
    rng = np.random.default_rng(0)
    columns = {f"f{i}": rng.normal(size=len(ids)) for i in (1, 2, 3)}
    return pl.DataFrame({"qid": ["q"] * len(ids), "doc_id": pl.Series(ids, dtype=pl.String), **columns, **more})


def qrels(folder):
    (folder / "q.qrels").write_text("q 0 1 0\nq 0 2 3\nq 0 3 1\n")
    return folder / "q.qrels"


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ""])
def test_a_name_of_a_row_never_meets_a_document(tmp_path, forest, suffix):
    """The documents "2" and the one in row 2, which has no id, are not the same."""
    table(["x", None, "7", "2"]).write_parquet(tmp_path / "c.parquet")
    out = tmp_path / f"out{suffix}"
    rerank(tmp_path / "c.parquet", forest, out)
    if suffix == ".csv":
        assert sorted(pl.read_csv(out)["doc_id"].to_list()) == ["(row 2)", "2", "7", "x"]
    assert sorted(read_scored(out)["doc_id"].to_pylist(), key=str) == ["2", "7", None, "x"]
    with refused(CandidatesRejected, "doc_id", "every row"):
        evaluate(out, qrels=qrels(tmp_path))
    with refused(CandidatesRejected, "doc_id", "every row"):
        compare([Ranking(name="one", source=out), Ranking(name="two", source=out)], qrels=qrels(tmp_path))


@pytest.mark.parametrize("ids", [[None] * 3, ["1", "", "3"]])
def test_candidates_without_ids_are_not_joined_with_judgments(tmp_path, forest, ids):
    table(ids).write_csv(tmp_path / "c.csv")
    with refused(CandidatesRejected, "doc_id", "every row", "q.qrels"):
        evaluate(tmp_path / "c.csv", model=forest, qrels=qrels(tmp_path))
    with refused(CandidatesRejected, "doc_id", "TREC"):
        rerank(tmp_path / "c.csv", forest, tmp_path / "out.run")
    assert not (tmp_path / "out.run").exists()
    assert scored_table(forest, [tmp_path / "c.csv"])["doc_id"].null_count == sum(not each for each in ids)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "arrow"])
def test_no_document_of_any_table_has_such_an_id(tmp_path, forest, suffix):
    rows = table(["1", MADE, "3"], grade=[0, 1, 2])
    path = tmp_path / f"c.{suffix}"
    write = {"csv": rows.write_csv, "jsonl": rows.write_ndjson, "parquet": rows.write_parquet, "arrow": rows.write_ipc}
    write[suffix](path)
    with refused(DataRejected, MADE, "document"):
        rerank(path, forest, tmp_path / "out")
    with refused(DataRejected, MADE, "document"):
        ingest([path], tmp_path / "out")
    table(["1", "2", "3"]).write_csv(tmp_path / "rows.csv")
    with refused(DataRejected, MADE, "document"):
        ingest([tmp_path / "rows.csv"], tmp_path / "out", qrels=[path])
    pairs = rows.select("qid", better="doc_id", worse=pl.lit("4"))
    getattr(pairs, {"jsonl": "write_ndjson", "arrow": "write_ipc"}.get(suffix, f"write_{suffix}"))(path)
    with refused(DataRejected, MADE, "document"):
        ingest([tmp_path / "rows.csv"], tmp_path / "out", pairs=[path])


# ---- lists in other formats, and lists with a document twice -------------------------------------------------------


def lists(ids=("x", "y", "x", "y")):
    qids = ["q", "q", "r", "r"]
    return pl.DataFrame({"qid": qids, "doc_id": ids, "score": [3, 1, 1, 2], "grade": [1, 0, 2, 0], "lang": qids})


@pytest.mark.parametrize("name", ["s.jsonl", "s.arrow", "s.dat"])
def test_a_list_in_json_lines_or_arrow_is_that_of_csv(tmp_path, name):
    rows = lists()
    rows.write_csv(tmp_path / "s.csv")
    if "json" in name:
        rows.write_ndjson(tmp_path / name)
    else:
        rows.write_ipc(tmp_path / name)
    expected = evaluate(tmp_path / "s.csv", metrics=["ndcg@3"], by=["lang"])
    found = evaluate(tmp_path / name, metrics=["ndcg@3"], by=["lang"])
    assert (found.means, found.qids) == (expected.means, expected.qids)
    assert [[part.name for part in one.slices] for one in found.slices] == [["q", "r"]]
    assert read_scored(tmp_path / name).equals(
        read_scored(tmp_path / "s.csv").cast(read_scored(tmp_path / name).schema)
    )


def test_bad_cells_of_such_lists_are_named(tmp_path):
    (tmp_path / "s.jsonl").write_text(
        json.dumps({"qid": "q", "score": 1, "grade": 0}) + '\n{"qid": "q", "score": "x"}\n'
    )
    with refused(DataRejected, "s.jsonl:2", "score"):
        read_scored(tmp_path / "s.jsonl")
    (tmp_path / "t.jsonl").write_text('{"qid": "q", "grade": 0}\n')
    with refused((DataRejected, InputError), "t.jsonl", "score"):
        read_scored(tmp_path / "t.jsonl")


def doubled(folder, forest, suffix):
    """Rank candidates of which two are documents of others, with other features; in different files."""
    one, two = table(["a", "b", "c"], grade=[0, 1, 2]), table(["c", "d", "a"], grade=[0, 1, 2])
    one.write_csv(folder / "1.csv")
    two.with_columns(f1=pl.col("f1") + 1).write_csv(folder / "2.csv")
    return rerank([folder / "1.csv", folder / "2.csv"], forest, folder / f"out{suffix}")


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ""])
def test_documents_that_are_candidates_twice_are_counted(tmp_path, forest, suffix):
    report = doubled(tmp_path, forest, suffix)
    assert (report.rows_written, report.repeated, json.loads(report.to_json())["repeated"]) == (6, 2, 2)
    assert "2" in next(line for line in report.render().splitlines() if "more than once" in line)
    with refused(CandidatesRejected, "once", "'q'", "again"):
        evaluate(tmp_path / f"out{suffix}")
    with refused(CandidatesRejected, "once", "'q'", "again"):
        evaluate(read_scored(tmp_path / f"out{suffix}"))


def test_a_trec_run_has_each_document_once(tmp_path, forest):
    with refused(CandidatesRejected, "'q'", "twice", "TREC"):
        doubled(tmp_path, forest, ".run")
    assert not (tmp_path / "out.run").exists()


def test_the_same_bytes_given_twice_are_refused_as_in_ingest(tmp_path, forest):
    for name in ("1.csv", "2.csv"):
        table(["a", "b"], grade=[0, 1]).write_csv(tmp_path / name)
    files = [tmp_path / "1.csv", tmp_path / "2.csv"]
    for call in (
        lambda: rerank(files, forest, tmp_path / "out"),
        lambda: evaluate(files, model=forest),
        lambda: ingest(files, tmp_path / "out"),
    ):
        with refused(InputError, "1.csv", "2.csv", "same bytes"):
            call()


@settings(max_examples=20, deadline=None)
@given(st.data(), st.sampled_from([None, 1, 3, 10]))
def test_repeated_documents_are_those_above_in_the_list_whatever_the_batches(data, top_k):
    queries = data.draw(st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=30), min_size=1, max_size=5))
    rows = [(f"q{q}", f"d{doc}", data.draw(st.integers(-2, 2))) for q, docs in enumerate(queries) for doc in docs]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "BATCH_ROWS", data.draw(st.integers(1, 40)))
        qid, doc_id, score = (list(column) for column in zip(*rows, strict=True))
        columns = [qid, doc_id, [float(x) for x in score], [None] * len(rows), list(range(1, len(rows) + 1))]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCORED_ROW, strict=True)]
        spill = sorting.ScoreSpill(Path(folder))
        spill.write(pa.record_batch(arrays, schema=SCORED_ROW))
        written = spill.checkpoint()
        with sorting.sorted_parts(Path(folder), written, 0, sort_bytes=256 << 20, n_threads=1) as found:
            batches = list(found.ranked(top_k))
    seen, expected = set(), []
    for row in (row for batch in batches for row in batch.rows.select(["qid", "doc_id"]).to_pylist()):
        expected.append((row["qid"], row["doc_id"]) in seen)
        seen.add((row["qid"], row["doc_id"]))
    assert np.concatenate([batch.repeated for batch in batches]).tolist() == expected
