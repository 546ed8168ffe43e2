"""Files without rows beside others: skipped and counted in every role, and an error only if nothing is left."""

from __future__ import annotations

import gzip

import polars as pl
import pytest

from rankmill.clicks.read_log import open_click_log
from rankmill.foundation.errors import DataRejected
from rankmill.pipeline.dataset.manifest import MANIFEST_NAME
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions
from rankmill.scorer.rerank.candidate_sources import files_of
from tests.refusals import refused

TABLE = pl.DataFrame({"qid": ["q1", "q1", "q2"], "doc_id": ["a", "b", "a"], "grade": [1, 0, 2], "x": [0.5, 1.5, 2.5]})
EMPTY = {
    "csv": ["", "\n", "qid,doc_id,grade,x\n", "qid,doc_id,grade,x", "qid,x\r\n\r\n", "\ufeffqid,doc_id\n"],
    "jsonl": ["", "\n \n"],
    "txt": ["", "\n", "# nothing today\n"],
    "parquet": [TABLE.clear()],
    "arrow": [TABLE.clear()],
}


def write(path, content):
    if isinstance(content, str):
        path.write_text(content, encoding="utf-8", newline="")
    else:
        writers = {"csv": content.write_csv, "jsonl": content.write_ndjson, "parquet": content.write_parquet}
        writers.get(path.suffix[1:], content.write_ipc)(path)
    return path


def full(suffix):
    return "1 qid:q1 1:0.5 #docid = a\n0 qid:q1 1:1.5 #docid = b\n" if suffix == "txt" else TABLE


CASES = [(name, each) for name, contents in EMPTY.items() for each in contents]


@pytest.mark.parametrize(("number", "suffix", "content"), [(number, *case) for number, case in enumerate(CASES)])
def test_the_dataset_is_that_of_the_files_with_rows(tmp_path, number, suffix, content):
    folder = tmp_path / "parts"
    folder.mkdir()
    part = write(folder / f"b.{suffix}", full(suffix))
    ingest([part], tmp_path / "alone")
    for name in ("a", "c"):  # with the same bytes
        write(folder / f"{name}.{suffix}", content)
    (folder / f"d.{suffix}").touch()
    paths = ([folder], [f"{folder}/*.{suffix}"], sorted(folder.iterdir()))[number % 3]
    said = []
    report = ingest(paths, tmp_path / "d", say=said.append)
    assert report.to_json()["empty_files"] == 3
    assert (tmp_path / "d" / MANIFEST_NAME).read_bytes() == (tmp_path / "alone" / MANIFEST_NAME).read_bytes()
    assert len(said) == 1
    assert "3 of 4 files" in said[0]
    assert files_of([folder]) == [part]


@pytest.mark.parametrize("suffix", EMPTY)
def test_nothing_is_left_if_all_are_empty(tmp_path, suffix):
    for number, content in enumerate(EMPTY[suffix]):
        write(tmp_path / f"{number}.{suffix}", content)
    (tmp_path / f"z.{suffix}").touch()
    for read in (lambda: ingest([tmp_path], tmp_path / "d"), lambda: files_of([tmp_path])):
        with refused(DataRejected, "no rows"):
            read()


def test_each_split_needs_rows_of_its_own(tmp_path):
    rows, empty = write(tmp_path / "a.csv", TABLE), write(tmp_path / "b.csv", "qid,doc_id,grade,x\n")
    with refused(DataRejected, "b.csv", "no rows"):
        ingest([rows], tmp_path / "d", valid=[empty])


def test_what_is_compressed_is_looked_into(tmp_path):
    for name, text in (("a.csv.gz", ""), ("b.csv.gz", "qid,grade,x\n"), ("c.csv.gz", "qid,grade,x\nq,1,2\n")):
        with gzip.open(tmp_path / name, "wt") as file:
            file.write(text)
    assert ingest([tmp_path], tmp_path / "d").manifest.rows == 1


def test_a_damaged_file_is_not_an_empty_one(tmp_path):
    write(tmp_path / "a.csv", TABLE)
    for name in ("b.parquet", "b.arrow", "b.csv.gz"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with refused(DataRejected, name):
            ingest([tmp_path / "a.csv", tmp_path / name], tmp_path / "d")
    with refused(DataRejected, "c.csv"):
        ingest([tmp_path / "a.csv", write(tmp_path / "c.csv", "qid,grade,x\n,,\n")], tmp_path / "d")


def test_judgments_pairs_and_clicks_are_read_without_their_empty_parts(tmp_path):
    rows = write(tmp_path / "rows.csv", TABLE)
    contents = {
        "qrels": ("q1 0 a 1\nq1 0 b 0\n", "", "\n"),
        "pairs": ("q1 a b\n", "", "# none\n"),
        "clicks": (
            "qid,doc_id,list,position,clicked\nq1,a,l,1,1\nq1,b,l,2,0\n",
            "qid,doc_id,list,position,clicked\n",
            "",
        ),
    }
    for role, texts in contents.items():
        (tmp_path / role).mkdir()
        for number, text in enumerate(texts):
            write(tmp_path / role / f"{number}.{'csv' if role == 'clicks' else 'txt'}", text)
    said = []
    report = ingest([rows], tmp_path / "d", qrels=[tmp_path / "qrels"], pairs=[tmp_path / "pairs"], say=said.append)
    assert report.to_json()["empty_files"] == 4
    assert report.manifest.pairs.pairs == 1
    assert [line.split(",")[0] for line in said] == ["skipped 2 of 3 files"] * 2
    with open_click_log([tmp_path / "clicks"], say=said.append) as log:
        assert log.totals.rows == 2
    assert len(said) == 3


def test_the_format_that_is_given_decides_what_a_header_is(tmp_path):
    for name, text in (("a.dat", "qid,grade,x\nq,1,2\n"), ("b.dat", "qid,grade,x\n")):
        (tmp_path / name).write_text(text)
    assert ingest([tmp_path], tmp_path / "d", options=IngestOptions(format="csv")).manifest.rows == 1
