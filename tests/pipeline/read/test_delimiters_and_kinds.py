"""What the first bytes of a file show: the character between cells, and another format or compression than the name
says."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile

import pyarrow as pa
import pytest
from pyarrow import orc

from rankmill.foundation.errors import RankmillError
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.read.files import find_files
from rankmill.scorer.evaluate.scored_file import read_qrels, read_scored
from tests.refusals import refused

ROWS = "qid,doc_id,grade,x\nq1,a,1,0.5\nq1,b,0,1.5\n"
DELIMITER_OF = {"csv": ",", "tsv": "\t"}
DELIMITERS = [",", ";", "\t", "|"]


@pytest.mark.parametrize("delimiter", DELIMITERS)
@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_the_first_line_shows_the_delimiter_in_every_role(tmp_path, delimiter, suffix):
    def write(name, text):
        path = tmp_path / f"{name}.{suffix}"
        path.write_text(text.replace(",", delimiter))
        return path

    rows, plain = write("rows", ROWS), tmp_path / "plain.csv"
    plain.write_text(ROWS)
    qrels = write("qrels", "qid,doc_id,grade\nq1,a,2\nq1,b,1\n")
    pairs = write("pairs", "qid,better,worse\nq1,a,b\n")
    scored = write("scored", "qid,doc_id,score\nq1,a,0.5\n")
    said: list[str] = []
    ingest([rows], tmp_path / "d", say=said.append)
    assert [f"{rows}: cells end at {delimiter!r}" in line for line in said] == [True] * (
        delimiter != DELIMITER_OF[suffix]
    )
    ingest([plain], tmp_path / "e")
    columns = ("qid", "doc_id", "grade", "x")
    assert (
        Dataset.open(tmp_path / "d").rows("train", columns).equals(Dataset.open(tmp_path / "e").rows("train", columns))
    )
    assert ingest([rows], tmp_path / "f", qrels=[qrels], pairs=[pairs]).manifest.pairs.pairs == 1
    assert sorted(each.grade for each in Dataset.open(tmp_path / "f").manifest.grades) == [1, 2]
    assert read_qrels(qrels)["grade"].to_pylist() == [2, 1]
    assert read_scored(scored).to_pylist() == [{"qid": "q1", "doc_id": "a", "score": 0.5}]


def test_a_delimiter_that_is_given_is_meant(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(ROWS.replace(",", ";"))
    with refused(RankmillError, "a.csv", "';'"):
        ingest([path], tmp_path / "d", options=IngestOptions(read=ReadOptions(delimiter=",")))


def packed(kind):
    if kind == "zip":
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("rows.csv", ROWS)
        return file.getvalue()
    if kind == "ORC":
        file = io.BytesIO()
        orc.write_table(pa.table({"qid": ["q"], "grade": [1], "x": [0.5]}), file)
        return file.getvalue()
    data = ROWS.encode()
    by_arrow = {"zstd": "zstd", "lz4": "lz4"}
    if kind in by_arrow:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, by_arrow[kind]) as out:
            out.write(data)
        return sink.getvalue().to_pybytes()
    return {"gzip": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[kind](data)


SUFFIX_OF = {"gzip": ".gz", "bz2": ".bz2", "zstd": ".zst", "lz4": ".lz4"}
NAMES = ["a.csv", "a.txt", "a.jsonl", "a.parquet", "a.arrow", "a.csv.gz", "a.csv.zst", "a.csv.bz2", "a.csv.lz4"]


@pytest.mark.parametrize("kind", ["gzip", "bz2", "zstd", "lz4", "xz", "zip", "ORC"])
def test_a_file_under_a_wrong_name_is_named_for_what_it_is(tmp_path, kind):
    data = packed(kind)
    for name in NAMES:
        path = tmp_path / name
        path.write_bytes(data)
        if kind in SUFFIX_OF and name.endswith(SUFFIX_OF[kind]):
            assert ingest([path], tmp_path / f"d{name}").manifest.rows == 2
            continue
        with refused(RankmillError, path, kind):
            ingest([path], tmp_path / "d")
        if name.startswith("a.csv") or name == "a.txt":
            with refused(RankmillError, path, kind):
                read_scored(path)


@pytest.mark.parametrize("name", ["a.csv.xz", "a.orc", "a.avro", "a.csv.lzma"])
def test_suffixes_that_are_not_read_are_named_with_the_way_out(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(packed("xz"))
    with refused(RankmillError, path, "decompress it" if name.startswith("a.csv") else "Parquet"):
        ingest([path], tmp_path / "d")
    assert find_files([path]) == [path]
