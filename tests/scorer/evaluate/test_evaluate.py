"""Evaluation of ranked lists, runs and candidates: every way to the same numbers, and every mistake named."""

import gzip
import math
from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankmill.foundation.errors import CandidatesRejected, DataRejected, InputError
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions
from rankmill.scorer.evaluate.compare import Ranking, compare
from rankmill.scorer.evaluate.evaluate import evaluate, write_per_query
from rankmill.scorer.metrics.explain_metric import explain_metric
from rankmill.scorer.models.loading import predictor_of
from rankmill.scorer.rerank import score as scoring
from rankmill.scorer.rerank.candidate_sources import DatasetSource
from rankmill.scorer.rerank.rerank import rerank
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.rerank.candidate_files import as_table, random_candidates, ranked, write_letor, write_parquet

METRICS = ("ndcg@5", "ndcg", "err@5", "map", "mrr", "precision@3")


@pytest.fixture(scope="module")
def forest():
    return random_forest(5, n_trees=10, max_leaves=12, info={"max_grade": 6})


@pytest.fixture(scope="module")
def rows():
    return random_candidates(1)


@pytest.fixture
def candidates(tmp_path, rows):
    return write_letor(tmp_path / "c.txt", rows)


def means(evaluation):
    return {str(metric): mean for metric, mean in evaluation.means.items()}


def test_every_way_leads_to_the_same_numbers(tmp_path, forest, rows, candidates):
    expected = evaluate(candidates, model=forest, metrics=METRICS)
    assert expected.policy.max_grade == 6  # the model's scale, not the highest grade seen
    for name in ("out", "out.parquet", "out.tsv"):
        rerank(candidates, forest, tmp_path / name)
        again = evaluate(tmp_path / name, metrics=METRICS, max_grade=6 if name == "out.tsv" else None)
        assert again.record(per_query=True) == expected.record(per_query=True)
    forest.save(tmp_path / "m.rankmill")
    parts = [write_parquet(tmp_path / "a.parquet", rows[:90]), write_parquet(tmp_path / "b.parquet", rows[90:])]
    assert means(evaluate(parts, model=tmp_path / "m.rankmill", metrics=METRICS)) == means(expected)


def test_the_top_of_the_lists_is_judged_against_the_whole_lists(tmp_path, forest, candidates):
    """Cut off behind the cutoff of the metric, nothing changes: the ideal list comes from the grade counts."""
    metrics, ties = ("ndcg@5", "err@5", "precision@3"), "doc_id"
    expected = evaluate(candidates, model=forest, metrics=metrics, ties=ties)
    for name in ("out", "out.parquet"):
        rerank(candidates, forest, tmp_path / name, top_k=5)
        found = evaluate(tmp_path / name, metrics=metrics, ties=ties)
        assert means(found) == means(expected)
        assert found.ideal == "grade counts"
        assert (found.counts.n_cut_queries, found.counts.fewest_kept) == (12, 5)
        assert "below the top that was kept" not in found.render()
        said = " ".join(evaluate(tmp_path / name, metrics=[*metrics, "ndcg@6", "map", "wta"]).render().split())
        assert "ndcg@6, map: documents below the top that was kept count as not retrieved" in said
    rerank(candidates, forest, tmp_path / "whole", top_k=300)
    assert "below the top that was kept" not in evaluate(tmp_path / "whole").render()


def test_the_top_of_the_lists_without_the_grade_counts_is_refused(tmp_path, forest, rows, candidates):
    """Its own grades would make ideal lists that are too short, and metrics that are too high."""
    for name, counts in (("out", "out/_grades.pq"), ("out.parquet", "out.parquet.grades.parquet")):
        rerank(candidates, forest, tmp_path / name, top_k=5)
        (tmp_path / counts).unlink()
        with refused(InputError, name, "top 5", "grade counts"):
            evaluate(tmp_path / name)
        qrels = tmp_path / "qrels"
        qrels.write_text("".join(f"{qid} 0 {doc_id} {grade}\n" for grade, qid, doc_id, _ in rows))
        assert evaluate(tmp_path / name, qrels=qrels).ideal == "qrels"
    (tmp_path / "out" / "_manifest.json").unlink()
    with refused(InputError, "top 5"):
        evaluate(tmp_path / "out")
    pq.write_table(as_table(rows).drop_columns(["grade"]), tmp_path / "c.parquet")
    for name in ("bare", "bare.parquet"):  # nothing is lost: there were no grades
        rerank(tmp_path / "c.parquet", forest, tmp_path / name, top_k=5)
        with refused(InputError, "no grades"):
            evaluate(tmp_path / name)


def test_grade_counts_of_another_file_are_refused(tmp_path, forest, candidates):
    rerank(candidates, forest, tmp_path / "a.parquet", top_k=5)
    rerank(candidates, forest, tmp_path / "b.parquet", top_k=4)
    (tmp_path / "b.parquet").replace(tmp_path / "a.parquet")
    with refused(InputError, "a.parquet.grades.parquet", "another version"):
        evaluate(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("q.parquet", "grade"), ("q.csv", "label"), ("q.tsv", "relevance"), ("q.jsonl", "label"),
        ("q.arrow", "relevance"),
        ("q.csv.gz", "grade"), ("bare.tsv", ""), ("words", ""),
    ],
)  # fmt: skip
def test_judgments_may_be_a_table_of_any_format(tmp_path, forest, rows, candidates, name, column):
    rerank(candidates, forest, tmp_path / "out.run")
    judged = pl.DataFrame([row[:3] for row in rows], [column, "query_id", "doc_id"], orient="row")
    judged = judged.with_columns(judge=pl.lit("somebody"))
    path = tmp_path / name
    if name in {"bare.tsv", "words"}:  # a usual suffix of lines as trec_eval reads them
        path.write_text("".join(f"{qid}\t0\t{doc_id}\t{grade}\n" for grade, qid, doc_id, _ in rows))
    elif name == "q.csv.gz":
        path.write_bytes(gzip.compress(judged.write_csv().encode()))
    else:
        write = {
            ".parquet": judged.write_parquet, ".jsonl": judged.write_ndjson, ".arrow": judged.write_ipc,
            ".csv": judged.write_csv, ".tsv": partial(judged.write_csv, separator="\t"),
        }[path.suffix]  # fmt: skip
        write(path)
    expected = evaluate(candidates, model=forest, metrics=METRICS, max_grade=4)
    assert means(evaluate(tmp_path / "out.run", qrels=path, metrics=METRICS)) == means(
        expected
    )  # 4 is the highest judged
    assert means(evaluate(candidates, model=forest, qrels=path, metrics=METRICS, max_grade=4)) == means(expected)


def test_judgments_of_tables_are_checked_like_lines(tmp_path):
    scored = pa.table({"qid": ["1"], "doc_id": ["a"], "score": [1.0]})
    for columns, facts in (
        ({"qid": [1], "doc_id": ["a"]}, "'grade'"),
        ({"qid": [1, 1], "doc_id": ["a", "a"], "grade": [1, 1]}, ("'a'", "again", "row 1")),
        ({"qid": [1], "doc_id": ["a"], "grade": [0.5]}, "whole number"),
        ({"qid": [1], "doc_id": ["a"], "grade": [None]}, "grade"),
        ({"qid": [1], "doc_id": [None], "grade": [1]}, "doc_id"),
    ):
        pq.write_table(pa.table(columns), tmp_path / "q.parquet")
        with refused(DataRejected, "q.parquet", facts):
            evaluate(scored, qrels=tmp_path / "q.parquet")
    pq.write_table(
        pa.table({"qid": [1, 1, 1], "doc_id": ["a", "b", "c"], "grade": [-1, None, 1]}), tmp_path / "q.parquet"
    )
    assert means(evaluate(scored, qrels=tmp_path / "q.parquet", metrics=["precision@1"])) == {"precision@1": 0.0}


@pytest.mark.parametrize(("name", "kind"), [("s.parquet", pl.Float64), ("s.csv", pl.Float64), ("s.tsv", pl.Int64)])
def test_labels_are_grades_where_there_are_no_others(tmp_path, name, kind):
    frame = pl.DataFrame({"qid": ["1", "1", "2", "2"], "score": [0.1, 0.2, 0.3, 0.1], "grade": [0, 3, 1, 2]})

    def means_of(frame):
        separator = "\t" if name == "s.tsv" else ","
        path = tmp_path / name
        frame.write_parquet(path) if name == "s.parquet" else frame.write_csv(path, separator=separator)
        return means(evaluate(path, metrics=METRICS))

    expected = means_of(frame)
    assert means_of(frame.rename({"grade": "label"}).cast({"label": kind})) == expected
    assert means_of(frame.with_columns(label=pl.lit(0.5))) == expected
    with refused(
        CandidatesRejected if name == "s.parquet" else DataRejected, name, "label" if name == "s.parquet" else "grade"
    ):
        means_of(frame.drop("grade").with_columns(label=pl.lit(0.5)))


def test_the_highest_grade_seen_is_the_last_resort(tmp_path, forest, rows):
    table = pa.table(
        {"qid": ["a", "a"], "doc_id": ["x", "y"], "score": [1.0, 0.0], "grade": pa.array([0, 3], pa.int32())}
    )
    assert evaluate(table, metrics=["err@2"]).policy.max_grade == 3
    assert evaluate(table, metrics=["ndcg"]).policy.max_grade is None
    for grades in (["0", "3"], [0.0, 3.0]):
        assert evaluate(table.set_column(3, "grade", [grades]), metrics=["err@2"]).policy.max_grade == 3
    with refused(InputError, "err", "60", "metrics"):
        evaluate(table.set_column(3, "grade", [[0, 60]]), gain="linear")
    pq.write_table(table, tmp_path / "s.parquet")
    assert evaluate(tmp_path / "s.parquet", metrics=["err@2"]).policy.max_grade == 3
    assert evaluate(tmp_path / "s.parquet", metrics=["err@2"], max_grade=5).policy.max_grade == 5


def test_the_highest_grade_is_that_of_the_whole_lists(tmp_path, rows):
    """A converted model knows no scale, and the best document may be the one that the top of the lists lacks."""
    forest = random_forest(5, n_trees=10, max_leaves=12)
    last = {qid: doc_id for qid, doc_id, *_ in ranked(forest, rows)}
    graded = [(4 if last[qid] == doc_id else grade % 3, qid, doc_id, values) for grade, qid, doc_id, values in rows]
    source = write_letor(tmp_path / "c.txt", graded)
    for name in ("out", "out.tsv"):
        rerank(source, forest, tmp_path / name, top_k=1, grade_counts=True)
        found = evaluate(tmp_path / name, metrics=["err@1"], ties="doc_id")
        assert found.policy.max_grade == 4
        assert found.means == evaluate(source, model=forest, metrics=["err@1"], ties="doc_id").means
        assert explain_metric(tmp_path / name, "q1", "err@1", ties="doc_id").policy.max_grade == 4


def test_threads_change_no_bit(tmp_path, forest, rows, monkeypatch):
    source = write_letor(tmp_path / "c.txt", rows)
    pq.write_table(as_table(rows), tmp_path / "c.parquet", row_group_size=70)
    ingest([source], tmp_path / "data", options=IngestOptions(buckets=3))
    monkeypatch.setattr(scoring, "ScoringLimits", partial(scoring.ScoringLimits, block_bytes=2000))
    monkeypatch.setattr("rankmill.pipeline.read.columnar.ROWS", (1, 40))
    for subject in ([source, tmp_path / "c.parquet"], tmp_path / "data"):
        how = {"model": forest, "metrics": METRICS, "ties": "row_order", "by": ["f2"]}
        one = evaluate(subject, n_threads=1, **how)
        assert evaluate(subject, n_threads=3, **how).record(per_query=True) == one.record(per_query=True)


def test_a_split_of_a_dataset(tmp_path, forest, rows):
    source = write_letor(tmp_path / "c.txt", rows)
    others = write_letor(tmp_path / "t.txt", [(g, f"t{q}", d, v) for g, q, d, v in random_candidates(9)])
    ingest([source], tmp_path / "data", test=[others], options=IngestOptions(buckets=3))
    for split, path in (("train", source), ("test", others)):
        found = evaluate(tmp_path / "data", model=forest, split=split, metrics=METRICS)
        expected = evaluate(path, model=forest, metrics=METRICS)
        assert found.scope.splits == (split,)
        assert replace(found, scope=None).record(per_query=True) == expected.record(per_query=True)
    assert evaluate(tmp_path / "data", model=forest, split="all").counts.n_documents == 600
    assert evaluate(tmp_path / "data", model=forest).scope.splits == ("test",)  # who knows what it was trained on
    with refused(InputError, "data", "dataset", "model"):
        evaluate(tmp_path / "data")
    read = DatasetSource(Dataset.open(tmp_path / "data"), "test", predictor_of(forest))
    size = read.path.stat().st_size
    at = [(read.position, len(batch)) for batch in read.batches(4 * 50)]
    done = np.cumsum([n for _, n in at])
    assert [position for position, _ in at] == [size * int(n) // 300 for n in done]  # a bar knows how far it is
    foreign = random_forest(5, names=["a", "b", "c", "d", "e"])
    with refused(CandidatesRejected, "data", "a", "e"):
        evaluate(tmp_path / "data", model=foreign)


def test_a_folder_stands_for_the_candidates_in_it(tmp_path, forest, rows):
    (tmp_path / "folder").mkdir()
    write_parquet(tmp_path / "folder" / "a.parquet", rows[:100])
    write_parquet(tmp_path / "folder" / "b.parquet", rows[100:])
    whole = write_parquet(tmp_path / "c.parquet", rows)
    found, expected = (
        evaluate(path, model=forest, metrics=METRICS, by=["f1"]) for path in (tmp_path / "folder", whole)
    )
    assert found.record(per_query=True) == expected.record(per_query=True)
    rankings = [Ranking(name=name, source=forest) for name in ("one", "other")]
    assert compare(rankings, on=tmp_path / "folder", metrics=["ndcg@5"]).evaluations[0].counts.n_documents == len(rows)
    with refused(InputError, "folder", "dataset"):
        evaluate(tmp_path / "folder", model=forest, split="test")


def test_a_split_without_rows_is_said_to_be_empty(tmp_path, forest, candidates):
    ingest([candidates], tmp_path / "data", options=IngestOptions(buckets=3))
    with refused(CandidatesRejected, "data", "'test'", "train"):
        evaluate(tmp_path / "data", model=forest, split="test")
    with pytest.raises(InputError, match="'tset'"):
        evaluate(tmp_path / "data", model=forest, split="tset")


def test_mistakes(tmp_path, forest, candidates):
    rerank(candidates, forest, tmp_path / "out")
    cases = [
        ({"metrics": ["ncdg@10"]}, ("metric", "'ncdg'", "'ndcg'")),
        ({"gain": "expo"}, ("gain", "'expo'", "'exp'")),
        ({"ties": "docid"}, ("ties", "'docid'", "'doc_id'")),
        ({"nothing_relevant": "two"}, ("nothing_relevant", "'two'")),
        ({"split": "test"}, ("split", "dataset", "model")),
        ({"qrels": tmp_path / "none"}, tmp_path / "none"),
        ({"complete": True}, ("complete", "qrels FILE")),
    ]
    for options, message in cases:
        with refused(InputError, message):
            evaluate(tmp_path / "out", **options)
    with refused(InputError, "split", "not a dataset"):
        evaluate(candidates, model=forest, split="test")
    with refused(InputError, "scored", "2", "model MODEL"):
        evaluate([candidates, candidates])
    with pytest.raises(InputError, match="no such file"):
        evaluate(tmp_path / "nothing.parquet")
    with refused(InputError, "scores", "no model"):
        evaluate(pa.table({"qid": ["a"]}), model=forest)


@pytest.mark.parametrize("suffix", ["tsv", "csv", "parquet"])
def test_values_per_query(tmp_path, forest, rows, suffix):
    none_relevant = [(0, "empty", f"e{i}", row[3]) for i, row in enumerate(rows[:3])]
    source = write_letor(tmp_path / "c.txt", rows + none_relevant)
    evaluation = evaluate(source, model=forest, metrics=("ndcg@5", "map"))
    path = tmp_path / "deep" / f"q.{suffix}"
    write_per_query(evaluation, path)
    if suffix == "parquet":
        table = pq.read_table(path)
        assert table["ndcg@5"].null_count == 1
        cells = [["" if x is None else repr(x) for x in column] for column in table.to_pydict().values()]
        found = [[q.strip("'"), *rest] for q, *rest in zip(*cells, strict=True)]
    else:
        delimiter = "\t" if suffix == "tsv" else ","
        header, *lines = [line.split(delimiter) for line in path.read_text().splitlines()]
        assert header == ["qid", "ndcg@5", "map"]
        found = lines
    expected = [
        [qid, *("" if math.isnan(x) else repr(float(x)) for x in row)]
        for qid, row in zip(evaluation.qids, np.transpose([*evaluation.values.values()]), strict=True)
    ]
    assert found == expected
    assert ["empty", "", ""] in found
