"""Candidates by other names: the same ranking, and no feature of the model is taken for anything else."""

import numpy as np
import polars as pl
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rankmill.cli import app
from rankmill.foundation.errors import CandidatesRejected, DataRejected, InputError
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.rerank.rerank import rerank
from rankmill.trainer.candidates.train_on_dataset import train
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.rerank.candidate_files import as_table, random_candidates, ranked, read_ranked, write_letor
from tests.trainer.fixed import fixed

NAMES = {"qid": "query_id", "doc_id": "url", "grade": "relevance"}


@pytest.fixture(scope="module")
def forest():
    return random_forest(5, n_trees=10, max_leaves=12, info={"max_grade": 6})


@pytest.fixture(scope="module")
def rows():
    return random_candidates(1)


def write(path, rows, called, more=()):
    """The candidates with columns by other names, and text columns besides."""
    table = as_table(rows)
    table = table.rename_columns([called.get(name, name) for name in table.column_names])
    for name in more:
        table = table.append_column(name, [["some text"] * len(rows)])
    pq.write_table(table, path)
    return path


def test_names_of_columns_and_other_columns_do_not_change_the_result(tmp_path, forest, rows):
    expected = ranked(forest, rows)
    mean = evaluate(write(tmp_path / "plain.parquet", rows, {}), model=forest).means
    more = ("title", "split", "weight", "debug")
    path = write(tmp_path / "guessed.parquet", rows, NAMES, more)
    assert rerank(path, forest, tmp_path / "guessed").columns_guessed == NAMES
    assert read_ranked(tmp_path / "guessed") == expected
    assert evaluate(path, model=forest).means == mean
    other = {"qid": "kw", "doc_id": "page", "grade": "stars"}
    path = write(tmp_path / "reported.parquet", rows, other, more)
    assert rerank(path, forest, tmp_path / "reported", columns=other).columns_guessed == {}
    assert read_ranked(tmp_path / "reported") == expected
    assert evaluate(path, model=forest, columns=other).means == mean
    with refused(DataRejected, "'qid'", "columns qid=NAME"):
        rerank(path, forest, tmp_path / "none")


def test_a_column_that_is_no_number_is_passed_over_where_an_unused_feature_is_lacking(tmp_path, rows):
    forest = random_forest(8, n_features=40, n_trees=1, max_leaves=3)
    names = [f"f{i + 1}" for i in forest.used_features]
    kept = [(*row[:3], np.resize(row[3], 40)[list(forest.used_features)]) for row in rows]
    table = as_table(kept, names).append_column("title", [["some text"] * len(rows)])
    pq.write_table(table, tmp_path / "c.parquet")
    pacsv.write_csv(table, tmp_path / "c.csv")
    pl.DataFrame(table).fill_nan(None).write_ndjson(tmp_path / "c.jsonl")
    expected = ranked(forest, [(*row[:3], np.resize(row[3], 40)) for row in rows])
    for name in ("c.parquet", "c.csv", "c.jsonl"):
        rerank(tmp_path / name, forest, tmp_path / f"{name}.out")
        assert read_ranked(tmp_path / f"{name}.out") == expected
    other = random_forest(8, n_features=40, n_trees=3, max_leaves=9)
    for name in ("c.parquet", "c.csv", "c.jsonl"):
        with refused(CandidatesRejected, "which the model uses", "title"):
            rerank(tmp_path / name, other, tmp_path / "none")


def test_a_feature_of_the_model_is_never_guessed_to_be_anything_else(tmp_path, rows):
    forest = random_forest(5, n_trees=10, max_leaves=12, info={"max_grade": 6})
    first, second = forest.feature_names[:2]
    renamed = {first: "rating", second: "url"}
    forest = random_forest(
        5,
        n_trees=10,
        max_leaves=12,
        info={"max_grade": 6},
        names=[renamed.get(name, name) for name in forest.feature_names],
    )
    path = write(tmp_path / "c.parquet", rows, renamed)
    rerank(path, forest, tmp_path / "out")
    assert read_ranked(tmp_path / "out") == ranked(forest, rows)


def test_the_guess_is_reported_and_mistakes_are_named(tmp_path, forest, rows, monkeypatch):
    monkeypatch.chdir(tmp_path)
    forest.save(tmp_path / "m.rankmill")
    path = write(tmp_path / "c.parquet", rows, NAMES)
    line = "columns: qid from 'query_id', doc_id from 'url', grade from 'relevance' (inferred; set with --columns)"
    for command in (["rerank", str(path), "-o", "out"], ["evaluate", str(path)]):
        reported = CliRunner().invoke(app, [*command, "--model", "m.rankmill"])
        assert reported.exit_code == 0
        assert line in reported.stderr.splitlines()
        given = "qid=query_id,doc_id=url,grade=relevance"
        again = CliRunner().invoke(
            app, [*command, "--model", "m.rankmill", "--columns", given, *["--overwrite"] * (command[0] == "rerank")]
        )
        assert again.exit_code == 0
        assert line not in again.stderr
    with refused(InputError, "columns", "tables"):
        rerank(write_letor(tmp_path / "c.txt", rows), forest, tmp_path / "x", columns={"qid": "q"})
    with refused(InputError, "'q'", "columns", "qid"):
        rerank(path, forest, tmp_path / "x", columns={"qid": "q"})
    lacking = write(tmp_path / "d.parquet", rows, {forest.feature_names[0]: "another"})
    with refused(CandidatesRejected, forest.feature_names[0], "another"):
        rerank(lacking, forest, tmp_path / "x")


def test_grades_of_candidates_mean_what_they_meant_in_training(tmp_path, rows):
    plain = random_forest(5, n_trees=10, max_leaves=12, info={"max_grade": 6})
    path = write(tmp_path / "plain.parquet", rows, {})
    table = as_table(rows)
    words = [
        None if grade is None else ["-3", "Fair", "good"][grade] if grade < 3 else str(grade)
        for grade in table["grade"].to_pylist()
    ]
    worded = table.set_column(table.column_names.index("grade"), "grade", [words])
    pq.write_table(worded, tmp_path / "worded.parquet")
    facts = {"max_grade": 6, "grades": {"good": 2, "fair": 1}, "negative_grades": "zero"}
    forest = random_forest(5, n_trees=10, max_leaves=12, info=facts)
    rerank(tmp_path / "worded.parquet", forest, tmp_path / "out")
    assert read_ranked(tmp_path / "out") == ranked(plain, rows)
    assert evaluate(tmp_path / "worded.parquet", model=forest).means == evaluate(path, model=plain).means
    with refused(DataRejected, "grade", "columns grade="):
        rerank(tmp_path / "worded.parquet", plain, tmp_path / "none")
    rerank(tmp_path / "worded.parquet", plain, tmp_path / "none", columns={"grade": ""})
    assert [row[:4] for row in read_ranked(tmp_path / "none")] == [row[:4] for row in ranked(plain, rows)]


def test_a_model_knows_how_the_grades_of_its_dataset_were_read(tmp_path):
    lines = [
        f"{word} qid:{q} 1:{d}.{q} 2:{(d * 7 + q) % 5}"
        for q in range(30)
        for d, word in enumerate(["bad", "good", "-1"])
    ]
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
    plain = [line.replace("bad", "0").replace("good", "1").replace("-1", "0") for line in lines]
    (tmp_path / "plain.txt").write_text("\n".join(plain) + "\n")
    read = ReadOptions(grades=(("good", 1), ("bad", 0)), negative_grades="zero")
    facts = []
    for name, options in (("in", read), ("plain", ReadOptions())):
        ingest([tmp_path / f"{name}.txt"], tmp_path / name, options=IngestOptions(buckets=2, read=options))
        bin_dataset(Dataset.open(tmp_path / name))
        facts.append(train(Dataset.open(tmp_path / name), fixed(n_rounds=1, min_rows_in_leaf=1)).forest.info)
    assert facts[0] == {**facts[1], "grades": {"good": 1, "bad": 0}, "negative_grades": "zero"}
    assert "grades" not in facts[1]
