"""Runs and judgments in text."""

import gzip
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import CandidatesRejected, DataRejected, InputError, MalformedLine
from rankmill.scorer.evaluate.evaluate import evaluate_scored
from rankmill.scorer.evaluate.scored_file import read_qrels, read_run, read_scored
from rankmill.scorer.metrics import Metric, Policy, parse_metric
from tests.refusals import refused, unnamed

RUN = "1 Q0 d1 1 2.5 tag\n\n1\tQ0\td2\t2\t-1e3\ttag and words after it\r\n 2 Q0 é 1 inf tag\n"


def test_a_run_is_read_between_any_white_space(tmp_path):
    path = tmp_path / "a.run"
    path.write_text(RUN, encoding="utf-8", newline="")
    assert read_run(path).to_pydict() == {
        "qid": ["1", "1", "2"],
        "doc_id": ["d1", "d2", "é"],
        "score": [2.5, -1000.0, float("inf")],
    }
    with gzip.open(tmp_path / "a.run.gz", "wt", encoding="utf-8-sig", newline="") as file:  # and a byte-order mark
        file.write(RUN)
    assert read_scored(tmp_path / "a.run.gz").equals(read_run(path))


def test_judgments_may_be_negative(tmp_path):
    path = tmp_path / "qrels"
    text = "1 0 d1 2\n\n1\t0 d2 -1\r\n #2 x d1 0\n#2 x d2 +02147483647"
    path.write_text(text, newline="")
    wanted = {"qid": ["1", "1", "#2", "#2"], "doc_id": ["d1", "d2"] * 2, "grade": [2, -1, 0, 2**31 - 1]}
    assert read_qrels(path).to_pydict() == wanted
    with gzip.open(tmp_path / "qrels.gz", "wt") as file:
        file.write(text)
    assert read_qrels(tmp_path / "qrels.gz").equals(read_qrels(path))


def test_a_missing_file_or_a_folder_is_the_callers_mistake(tmp_path):
    for read in (read_run, read_qrels):
        with refused(InputError, "no such file"):
            read(tmp_path / "none")
        with refused(InputError, "is a folder", "files"):
            read(tmp_path)


# ---- Scored lists from every kind of file, with grades from everywhere they may come from


METRICS = [parse_metric(name) for name in ("ndcg@2", "ndcg", "err", "map", "mrr", "precision@1")]
NDCG = [Metric("ndcg")]
POLICY = Policy(max_grade=4)


def scored_table(rows=None):
    """Three queries: b is ranked perfectly, a the wrong way round, c has nothing relevant."""
    rows = rows or [
        ("b", "d1", 2.0, 3),
        ("a", "d1", 0.5, 4),
        ("b", "d2", 1.0, 0),
        ("a", "d2", 0.75, 0),
        ("c", "d9", 0.0, 0),
    ]
    names = ("qid", "doc_id", "score", "grade")
    types = (pa.string(), pa.string(), pa.float64(), pa.int32())
    columns = zip(*rows, strict=True)
    return pa.table({n: pa.array(c, t) for n, c, t in zip(names, columns, types, strict=True)})


def write_all(table, folder):
    """The same table in every format that can hold it."""
    pq.write_table(table, folder / "scored.parquet")
    pacsv.write_csv(table, folder / "scored.tsv", pacsv.WriteOptions(delimiter="\t"))
    pacsv.write_csv(table, folder / "scored.csv")
    (folder / "plain.tsv").write_text(
        "".join(
            "\t".join(map(str, row)) + "\n"
            for row in [table.column_names, *zip(*table.to_pydict().values(), strict=True)]
        )
    )
    (folder / "shards").mkdir()
    pq.write_table(table.slice(0, 2), folder / "shards" / "part-0.parquet")
    pq.write_table(table.slice(2), folder / "shards" / "part-1.parquet")
    pq.write_table(pa.table({"qid": ["a"], "count": [1]}), folder / "shards" / "side.parquet")
    with gzip.open(folder / "scored.csv.gz", "wb") as file:
        file.write((folder / "scored.csv").read_bytes())
    names = ("scored.parquet", "scored.tsv", "scored.csv", "scored.csv.gz", "plain.tsv", "shards")
    return [folder / name for name in names]


def test_every_format_gives_the_same_evaluation(tmp_path):
    table = scored_table()
    expected = evaluate_scored(table, METRICS, POLICY)
    for path in write_all(table, tmp_path):
        assert read_scored(path).to_pydict() == table.to_pydict(), path
        assert evaluate_scored(str(path), METRICS, POLICY).record(per_query=True) == expected.record(per_query=True)


def test_values_counts_and_order_of_queries():
    found = evaluate_scored(scored_table(), METRICS, POLICY)
    assert found.qids == ("a", "b", "c")
    np.testing.assert_allclose(found.values[Metric("mrr")], [0.5, 1.0, math.nan])
    np.testing.assert_allclose(found.values[Metric("ndcg")], [1 / math.log2(3), 1.0, math.nan])
    assert found.means[Metric("mrr")] == 0.75
    assert found.n_counted(Metric("mrr")) == 2
    counts = found.counts
    assert (counts.n_queries, counts.n_documents, counts.n_nothing_relevant) == (3, 5, 1)
    assert (counts.n_single_document, counts.n_one_grade, counts.n_tied_documents) == (1, 0, 0)
    assert counts.tied_share == 0.0


def test_counts_of_ties_and_equal_grades():
    rows = [("a", "1", 1.0, 2), ("a", "2", 1.0, 2), ("a", "3", 0.0, 2), ("b", "1", 1.0, 1), ("b", "2", 1.0, 0)]
    found = evaluate_scored(scored_table(rows), NDCG, Policy(relevant_from=2))
    assert (found.counts.n_tied_documents, found.counts.n_one_grade) == (4, 1)
    assert (found.counts.n_nothing_relevant, found.counts.n_below_relevant_from) == (0, 1)
    assert found.counts.tied_share == 0.8
    assert "no grade of 2 or more: 1 (50.0%)" in found.render()


@settings(deadline=None, max_examples=12)
@given(st.permutations(range(5)), st.sampled_from(["expected", "doc_id", "pessimistic"]))
def test_the_order_of_rows_changes_nothing(order, ties):
    table = scored_table(
        [("a", "x", 1.0, 1), ("b", "y", 1.0, 0), ("a", "z", 1.0, 0), ("b", "w", 1.0, 3), ("a", "v", 2.0, 0)]
    )
    policy = Policy(ties=ties, max_grade=4)
    first = evaluate_scored(table, METRICS, policy, replicates=50)
    again = evaluate_scored(table.take(list(order)), METRICS, policy, replicates=50)
    assert first.to_json(per_query=True) == again.to_json(per_query=True)


def test_ties_by_document_id_go_by_its_bytes():
    rows = [("a", "d10", 1.0, 1), ("a", "d9", 1.0, 0), ("a", "é", 1.0, 0)]
    for ties, value in (
        ("doc_id", 1.0),
        ("doc_id_descending", 1 / 3),
        ("row_order", 1.0),
        ("expected", (1 + 1 / 2 + 1 / 3) / 3),
    ):
        assert evaluate_scored(scored_table(rows), [Metric("mrr")], Policy(ties=ties)).means[
            Metric("mrr")
        ] == pytest.approx(value)
    without = scored_table(rows).drop_columns("doc_id")
    assert evaluate_scored(without, [Metric("mrr")], Policy())
    with refused(InputError, "ties doc_id"):
        evaluate_scored(without, [Metric("mrr")], Policy(ties="doc_id"))


QRELS = "a 0 d1 4\na 0 d7 4\nb 0 d1 3\nb 0 d2 -1\nz 0 d1 1\ny 0 d1 0\n"


def test_judgments_override_grades_of_the_file_and_include_what_was_not_retrieved(tmp_path):
    qrels = tmp_path / "qrels"
    qrels.write_text(QRELS)
    found = evaluate_scored(scored_table(), [Metric("ndcg"), Metric("map")], POLICY, qrels=qrels)
    assert found.qids == ("a", "b")
    np.testing.assert_allclose(found.values[Metric("ndcg")], [(1 / math.log2(3)) / (1 + 1 / math.log2(3)), 1.0])
    np.testing.assert_allclose(found.values[Metric("map")], [0.25, 1.0])
    counts = found.counts
    assert (counts.n_unjudged_documents, counts.n_unjudged_queries, counts.n_missing_queries) == (1, 1, 2)
    text = found.render()
    assert "all judged documents of the query" in text
    assert not unnamed(text, "1", "not judged")
    assert "2 judged queries were not scored" in text


@pytest.mark.parametrize(("rule", "y"), [("skip", math.nan), ("zero", 0.0), ("one", 1.0)])
def test_complete_counts_judged_queries_that_were_not_scored(tmp_path, rule, y):
    qrels = tmp_path / "qrels"
    qrels.write_text(QRELS)
    policy = Policy(max_grade=4, nothing_relevant=rule)
    found = evaluate_scored(scored_table(), METRICS, policy, qrels=qrels, complete=True)
    assert found.qids == ("a", "b", "y", "z")
    for metric in METRICS:
        np.testing.assert_array_equal(found.values[metric][2:], [y, 0.0])
    few = evaluate_scored(scored_table(), METRICS, policy, qrels=qrels)
    for metric in METRICS:
        np.testing.assert_array_equal(found.values[metric][:2], few.values[metric])


def test_judgments_need_ids_and_a_query_in_common(tmp_path):
    qrels = tmp_path / "qrels"
    qrels.write_text("other 0 d1 1\n")
    with refused(CandidatesRejected, qrels, "'b'"):
        evaluate_scored(scored_table(), NDCG, POLICY, qrels=qrels)
    qrels.write_text(QRELS)
    with refused(CandidatesRejected, "doc_id", "row"):
        evaluate_scored(scored_table().drop_columns("doc_id"), NDCG, POLICY, qrels=qrels)
    twice = scored_table([("b", "d3", 1.0, 0), ("b", "d3", 0.0, 0), ("a", "d1", 0.0, 0)])
    with refused(CandidatesRejected, "'d3'", "'b'", "once"):
        evaluate_scored(twice, NDCG, POLICY, qrels=qrels)
    with pytest.raises(InputError, match="no such file"):
        evaluate_scored(scored_table(), NDCG, POLICY, qrels=tmp_path / "none")


def counts_of(table):
    return table.group_by(["qid", "grade"]).aggregate([([], "count_all")]).rename_columns(["qid", "grade", "count"])


@settings(deadline=None, max_examples=20)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(-1, 4)), min_size=1, max_size=30),
    st.integers(1, 5),
    st.randoms(),
)
def test_a_list_cut_at_k_keeps_its_metrics_at_k_by_the_counts_of_grades(drawn, k, random):
    """What `rerank --top-k` writes: the top of each list, and how often each grade occurs in all of it."""
    scores = list(range(len(drawn)))
    random.shuffle(scores)
    rows = sorted(
        ((qid, f"d{i}", float(s), grade) for i, ((qid, grade), s) in enumerate(zip(drawn, scores, strict=True))),
        key=lambda row: -row[2],
    )
    top = [row for i, row in enumerate(rows) if sum(other[0] == row[0] for other in rows[:i]) < k]
    metrics = [Metric(name, k) for name in ("ndcg", "dcg", "err", "map", "mrr", "precision")]
    whole = evaluate_scored(scored_table(rows), metrics, POLICY, replicates=0)
    cut = evaluate_scored(scored_table(top), metrics, POLICY, grade_counts=counts_of(scored_table(rows)), replicates=0)
    assert cut.qids == whole.qids
    for metric in metrics:
        np.testing.assert_array_equal(cut.values[metric], whole.values[metric])
    assert cut.counts.n_nothing_relevant == whole.counts.n_nothing_relevant


def test_counts_of_grades_must_belong_to_the_list(tmp_path):
    table = scored_table()
    counts = counts_of(table)
    path = tmp_path / "counts.parquet"
    pq.write_table(counts, path)
    found = evaluate_scored(table, NDCG, POLICY, grade_counts=path)
    assert found.means == evaluate_scored(table, NDCG, POLICY).means
    assert "of which the top was kept" in found.render()
    without_c = counts.filter(pc.not_equal(counts["qid"], "c"))  # grade 0 and unknown grades need no count
    assert evaluate_scored(table, NDCG, POLICY, grade_counts=without_c).record() == found.record()
    for foreign in (counts.filter(pc.not_equal(counts["grade"], 4)), counts.slice(0, 0)):
        with refused(CandidatesRejected, "grade counts", "grade 4", "'a'", "0"):
            evaluate_scored(table, NDCG, POLICY, grade_counts=foreign)
    without_a_grade = counts.set_column(1, "grade", pa.array([None] * len(counts), pa.int32()))
    for broken in (counts.drop_columns("grade"), without_a_grade):
        with refused(CandidatesRejected, "qid, grade, count"):
            evaluate_scored(table, NDCG, POLICY, grade_counts=broken)
    with pytest.raises(InputError, match="no such file"):
        evaluate_scored(table, NDCG, POLICY, grade_counts=tmp_path / "none.parquet")


def test_unknown_grades_count_as_zero_and_are_reported():
    rows = [("a", "d1", 1.0, None), ("a", "d2", 0.0, 1)]
    found = evaluate_scored(scored_table(rows), [Metric("mrr")], POLICY)
    assert found.means[Metric("mrr")] == 0.5
    assert found.counts.n_unjudged_documents == 1
    assert "1 scored documents have no grade: counted as grade 0" in found.render()


@pytest.mark.parametrize("drop", [True, False])
def test_no_grades_at_all_names_the_cure(tmp_path, drop):
    table = scored_table([("a", "d1", 1.0, None)])
    path = tmp_path / "scored.parquet"
    pq.write_table(table.drop_columns("grade") if drop else table, path)
    with refused(InputError, path, "grades", "qrels FILE"):
        evaluate_scored(path, NDCG, POLICY)


def test_scores_that_are_no_numbers_name_row_and_query(tmp_path):
    for bad in (math.nan, None):
        with refused(CandidatesRejected, "score", "row 2", "'a'"):
            evaluate_scored(scored_table([("a", "d1", 1.0, 0), ("a", "d2", bad, 0)]), NDCG, POLICY)
    path = tmp_path / "a.tsv"
    path.write_text("qid\tscore\tgrade\na\tNaN\t1\n")
    with refused(MalformedLine, "a.tsv:2:3", "score", "'NaN'"):
        evaluate_scored(path, NDCG, POLICY)


def test_broken_tables_are_refused_in_one_line(tmp_path):
    path = tmp_path / "a.tsv"
    for text, *facts in (
        ("qid\tgrade\na\t1\n", "qid", "score", "qid, grade"),
        ("qid\tscore\tgrade\na\t1\tgood\n", f"{path}:2:5", "grade", "'good'"),
        ("qid\tscore\tgrade\na\t1\n", f"{path}:2:1", "3", "'2 cells'"),
        ("qid\tscore\tgrade\n", "none"),
        ("qid\tqid\tscore\tgrade\na\ta\t1\t1\n", "'qid'", "twice"),
        ("qid/score/grade\na/1/1\n", "qid", "score", "'qid/score/grade'"),
        ("", "empty"),
    ):
        path.write_text(text)
        with refused(DataRejected, path, *facts):
            evaluate_scored(path, NDCG, POLICY)


def test_ids_that_are_no_text_are_refused():
    garbled = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"d\xff"))
    for place, column in enumerate(("qid", "doc_id")):
        with refused(CandidatesRejected, "UTF-8", repr(column)):
            evaluate_scored(scored_table([("a", "d1", 1.0, 0)]).set_column(place, column, garbled), NDCG, POLICY)


def test_wrong_columns_types_and_files(tmp_path):
    table = scored_table()
    with refused(CandidatesRejected, "'grade'", "int32", "double"):
        evaluate_scored(table.set_column(3, "grade", pa.array([0.5] * 5)), NDCG, POLICY)
    with refused(CandidatesRejected, "qid", "row 2"):
        evaluate_scored(table.set_column(0, "qid", pa.array(["a", None, "b", "b", "b"])), NDCG, POLICY)
    assert evaluate_scored(table.set_column(0, "qid", pa.array([1, 2, 1, 2, 3])), NDCG, POLICY).qids == ("1", "2", "3")
    with pytest.raises(InputError, match="no such file"):
        evaluate_scored(tmp_path / "none.parquet", NDCG, POLICY)
    with refused(InputError, "Parquet", "qid", "score", "folder"):
        evaluate_scored(tmp_path, NDCG, POLICY)
    with refused(InputError, "metric"):
        evaluate_scored(table, [], POLICY)
    whole = tmp_path / "a.parquet"
    pq.write_table(table.append_column("qid", table["qid"]), whole)
    with refused(CandidatesRejected, "a.parquet", "'qid'", "twice"):
        evaluate_scored(whole, NDCG, POLICY)
    pq.write_table(table, whole)
    broken = tmp_path / "b.parquet"
    broken.write_bytes(whole.read_bytes()[:-20])
    with refused(CandidatesRejected, "Parquet"):
        evaluate_scored(broken, NDCG, POLICY)


def test_the_reports():
    found = evaluate_scored(scored_table(), [Metric("ndcg", 10), Metric("mrr")], Policy())
    assert "a 0.6309 0.5000 b 1.0000 1.0000 c skipped skipped" in " ".join(found.render(per_query=True).split())
    text = found.to_json(per_query=True)
    assert "\n" not in text
    report = json.loads(text)
    assert report["metrics"]["mrr"] == {"mean": 0.75, "interval": [0.5, 1.0], "n_queries": 2}
    assert report["policy"]["ties"] == "expected"
    assert report["counts"]["n_nothing_relevant"] == 1
    assert report["per_query"][2] == {"qid": "c", "ndcg@10": None, "mrr": None}
    assert "per_query" not in json.loads(found.to_json())
    empty = evaluate_scored(scored_table([("a", "d", 1.0, 0)]), NDCG, Policy())
    assert json.loads(empty.to_json())["metrics"]["ndcg"] == {"mean": None, "interval": None, "n_queries": 0}
    assert "skipped" in empty.render()
