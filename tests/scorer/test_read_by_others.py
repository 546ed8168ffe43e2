"""Ranked lists are read by other programs as they are: folders of shards, and one CSV."""

from __future__ import annotations

import csv
import json

import pandas as pd
import polars as pl
import pytest

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.scorer import ranked_writer
from rankmill.scorer.evaluate import evaluate
from rankmill.scorer.rerank import rerank
from tests.readers import READERS, rows_of
from tests.refusals import refused
from tests.scorer.candidate_files import as_table, random_candidates, ranked, write_letor, write_parquet

AWKWARD = ("a,b", 'say "x"', '"', "plain", " a b ", "é\t", "")


@pytest.mark.parametrize("top_k", [None, 3])
def test_a_folder_is_read_as_it_is(tmp_path, forest, rows, monkeypatch, top_k):
    monkeypatch.setattr(ranked_writer, "SHARD_ROWS", 50)
    rerank(write_letor(tmp_path / "c.txt", rows), forest, tmp_path / "ranked", top_k=top_k)
    assert ((tmp_path / "ranked" / "_grades.pq").exists(), len(list((tmp_path / "ranked").glob("*.parquet"))) > 1) == (
        top_k is not None,
        top_k is None,
    )
    expected = sorted(ranked(forest, rows, top_k), key=repr)
    for name, reader in READERS.items():
        assert rows_of(reader(tmp_path / "ranked")) == expected, name


@pytest.mark.parametrize("top_k", [None, 3])
def test_one_csv_holds_the_same_rows_in_the_same_order(tmp_path, forest, top_k):
    rows = [
        (grade, f"{qid}{AWKWARD[i % 5]}", f"{i}{AWKWARD[i % 7]}", values)
        for i, (grade, qid, _, values) in enumerate(random_candidates(2))
    ]
    source = write_parquet(tmp_path / "c.parquet", rows)
    expected = ranked(forest, rows, top_k)
    report = rerank(source, forest, tmp_path / "ranked.csv", top_k=top_k, grade_counts=True)
    assert report.files[0] == "ranked.csv"
    with (tmp_path / "ranked.csv").open(newline="", encoding="utf-8") as file:
        header, *found = csv.reader(file)
    assert header == ["qid", "doc_id", "score", "rank", "grade"]
    assert [(q, d, float(s), int(r), int(g)) for q, d, s, r, g in found] == expected
    text = {"qid": str, "doc_id": str}
    assert list(pd.read_csv(tmp_path / "ranked.csv", dtype=text).itertuples(index=False, name=None)) == expected
    assert pl.read_csv(tmp_path / "ranked.csv", schema_overrides={"qid": pl.String}).rows() == expected
    rerank(source, forest, tmp_path / "ranked", top_k=top_k)
    by_csv, by_folder = (json.loads(evaluate(tmp_path / name).to_json()) for name in ("ranked.csv", "ranked"))
    assert by_csv["metrics"] == by_folder["metrics"]
    assert by_csv["ideal"] == ("list" if top_k is None else "grade counts")


def test_a_csv_that_cannot_be_is_none(tmp_path, forest, rows):
    lines = [(grade, qid, f"D\n{i}", values) for i, (grade, qid, _, values) in enumerate(rows)]
    source = write_parquet(tmp_path / "c.parquet", lines)
    with refused(CandidatesRejected, "doc_id", "line end", "CSV", ".parquet"):
        rerank(source, forest, tmp_path / "ranked.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["c.parquet"]
    table = as_table(rows).drop_columns(["grade"])
    pl.DataFrame(table).write_csv(tmp_path / "c.csv")
    rerank(tmp_path / "c.csv", forest, tmp_path / "ranked.csv")
    assert pd.read_csv(tmp_path / "ranked.csv")["grade"].isna().all()


def test_other_suffixes_are_refused_before_any_work(tmp_path, forest):
    for suffix in ("jsonl", "csv.gz", "Json", "txt"):
        with refused(InputError, ".parquet, .csv, .tsv, .run"):
            rerank(tmp_path / "is not looked for", forest, tmp_path / f"ranked.{suffix}")
    assert not list(tmp_path.iterdir())
