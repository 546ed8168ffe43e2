"""Ranked lists are read by other programs as they are: folders of shards, and one CSV."""

import csv
import json

import pandas as pd
import polars as pl
import pytest

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.rerank import run as rerank_run
from rankmill.scorer.rerank import spill as sorting
from rankmill.scorer.rerank import write as ranked_writer
from rankmill.scorer.rerank.rerank import rerank, rerank_several
from tests.readers import READERS, rows_of
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.rerank.candidate_files import as_table, random_candidates, ranked, write_letor, write_parquet

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


# ---- ``rerank --keep``: columns of the candidates in the list, beside the documents that they belong to


TITLES = ["plain", "with, comma", 'a "quoted" one', "", None, " blank ", "été"]


def candidates(seed=1):
    rows = pl.DataFrame(as_table(random_candidates(seed)))
    n = len(rows)
    more = {
        "title": pl.Series([TITLES[i % 7] for i in range(n)]),
        "price": pl.Series([i * 0.5 if i % 3 else None for i in range(n)]),
    }
    return rows.with_columns(**more, number=pl.Series(range(n)))


def write(rows, path):
    {"csv": rows.write_csv, "tsv": lambda p: rows.write_csv(p, separator="\t"), "parquet": rows.write_parquet,
     "arrow": rows.write_ipc, "jsonl": rows.write_ndjson}[path.suffix[1:]](path)  # fmt: skip
    return path


@pytest.mark.parametrize(("suffix", "top_k"), [("csv", None), ("parquet", 3), ("arrow", None), ("jsonl", 3)])
def test_columns_stay_with_their_documents(tmp_path, forest, suffix, top_k):
    rows = candidates()
    source = write(rows, tmp_path / f"c.{suffix}")
    rerank(source, forest, tmp_path / "out", keep=["title,price"], top_k=top_k)
    rerank(source, forest, tmp_path / "plain", top_k=top_k)
    kept, plain = pl.read_parquet(tmp_path / "out/*.parquet"), pl.read_parquet(tmp_path / "plain/*.parquet")
    assert kept.columns == [*plain.columns, "title", "price"]
    assert kept.select(plain.columns).equals(plain)
    expected = plain.select("doc_id").join(
        rows.select("doc_id", "title", "price"), on="doc_id", how="left", maintain_order="left"
    )
    text = kept.select("doc_id", pl.col("title").fill_null(""), pl.col("price").cast(pl.Float64, strict=False))
    assert text.equals(
        expected.with_columns(
            pl.col("title").fill_null("").str.strip_chars(" ") if suffix == "csv" else pl.col("title").fill_null("")
        )
    )
    assert kept.schema["price"] == (pl.Float64 if suffix in {"parquet", "arrow"} else pl.String)


@pytest.mark.parametrize("suffix", [".csv", ""])
def test_bytes_do_not_depend_on_memory_files_and_threads(tmp_path, forest, monkeypatch, suffix):
    rows = candidates()
    whole = write(rows, tmp_path / "c.parquet")
    out = tmp_path / f"one{suffix}"
    rerank(whole, forest, out, keep=["title", "price"])
    parts = [write(rows[:100], tmp_path / "1.parquet"), write(rows[100:], tmp_path / "2.parquet")]
    monkeypatch.setattr(rerank_run, "CHECKPOINT_ROWS", 20)
    monkeypatch.setattr(sorting, "BATCH_ROWS", 7)
    monkeypatch.setattr(sorting, "PARTS_OF_THE_LIMIT", 1 << 20)
    other = tmp_path / f"two{suffix}"
    rerank(parts, forest, other, keep=["title", "price"], n_threads=3)
    if suffix:
        assert out.read_bytes() == other.read_bytes()
    else:
        assert [p.read_bytes() for p in sorted(out.iterdir())] == [p.read_bytes() for p in sorted(other.iterdir())]
    assert evaluate(out).means == evaluate(other).means


def test_what_is_kept_by_several_models_and_from_several_formats(tmp_path, forest):
    rows = candidates()
    files = [write(rows[:100], tmp_path / "1.parquet"), write(rows[100:], tmp_path / "2.csv")]
    models = {"a": (forest, None), "b": (random_forest(6), None)}
    rerank_several(files, models, tmp_path / "out", keep=["number"])
    for label in models:
        found = pl.read_parquet(tmp_path / "out" / label / "*.parquet").select("doc_id", "number")
        assert dict(found.iter_rows()) == {d: str(n) for d, n in rows.select("doc_id", "number").iter_rows()}


def test_exact_names_come_before_commas_and_mistakes_are_refused(tmp_path, forest):
    rows = candidates().rename({"title": "title, long"})
    source = write(rows, tmp_path / "c.parquet")
    rerank(source, forest, tmp_path / "out.csv", keep=["title, long"])
    assert pl.read_csv(tmp_path / "out.csv").columns[-1] == "title, long"
    for keep, out, facts in (
        (["titel"], "o", ("keep", "titel")),
        (["grade"], "o", ("keep", "grade")),
        (["price,price"], "o", ("keep", "price", "twice")),
        (["price"], "o.run", ("keep", "TREC")),
    ):
        with refused(InputError, *facts):
            rerank(source, forest, tmp_path / out, keep=keep)
        assert not (tmp_path / out).exists()
    with refused(InputError, "keep", "c.txt"):
        rerank(write_letor(tmp_path / "c.txt", random_candidates(1)), forest, tmp_path / "o", keep=["title"])
