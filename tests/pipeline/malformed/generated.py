"""The malformed inputs that are awkward as files: Parquet, which is binary, and text that is long."""

import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

GOOD = "2 qid:7 1:0.5 2:1 #docid = d1\n"


def table(**columns):
    """Return two good rows with some columns replaced or added."""
    return pa.table({"qid": ["7", "7"], "doc_id": ["a", "b"], "grade": [2, 0], "bm25": [0.5, 0.25]} | columns)


def parquet(rows):
    """Return what writes ``rows`` to a Parquet file."""
    return lambda path: pq.write_table(rows, path)


def cut_off_parquet(path):
    """Write a Parquet file that lacks its last bytes."""
    pq.write_table(table(), path)
    path.write_bytes(path.read_bytes()[:-7])


def damaged_parquet(path):
    """Write a Parquet file with the wrong bytes where its rows are."""
    pq.write_table(table(), path, compression="zstd", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(data)


def arrow(rows, *, cut=0):
    """Return what writes ``rows`` to an Arrow IPC file, all but the last ``cut`` bytes."""

    def write(path):
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows)
        path.write_bytes(path.read_bytes()[: path.stat().st_size - cut])

    return write


def text(content):
    """Return what writes ``content``."""
    return lambda path: path.write_bytes(content.encode())


GENERATED = {
    "good.parquet": parquet(table()),
    "line-of-70-million-characters.txt": text(GOOD + "1 qid:7 1:0.5 #" + "x" * 70_000_000),
    "line-ends-with-cr-70-million-characters.txt": text((GOOD * 2_300_000).replace("\n", "\r")),
    "row-of-3-million-characters.csv": text("qid,grade,bm25\n7,2,0.5\n7,1," + "9" * 3_000_000 + "x\n"),
    "quote-open-for-3-million-characters.csv": text('qid,grade,bm25\n7,2,0.5\n"7,1,0.5\n' + "7,1,0.25\n" * 350_000),
    "cut-off.parquet": cut_off_parquet,
    "damaged.parquet": damaged_parquet,
    "text.parquet": text("qid,grade,bm25\n7,2,0.5\n"),
    "empty.parquet": text(""),
    "no-rows.parquet": parquet(table().slice(0, 0)),
    "no-qid.parquet": parquet(table().drop_columns(["qid"])),
    "no-grade.parquet": parquet(table().drop_columns(["grade"])),
    "no-feature.parquet": parquet(table().drop_columns(["bm25"])),
    "column-twice.parquet": parquet(
        pa.Table.from_arrays([*table().columns, pa.array([1.0, 2.0])], names=[*table().column_names, "bm25"])
    ),
    "column-without-name.parquet": parquet(table().rename_columns(["qid", "doc_id", "grade", ""])),
    "qid-fraction.parquet": parquet(table(qid=[7.0, 7.5])),
    "qid-null.parquet": parquet(table(qid=["7", None])),
    "qid-empty.parquet": parquet(table(qid=["", "7"])),
    "qid-list.parquet": parquet(table(qid=[["7"], ["7"]])),
    "qid-not-utf-8.parquet": parquet(
        table(qid=pa.Array.from_buffers(pa.string(), 2, pa.array([b"7", b"\xff"], pa.binary()).buffers()))
    ),
    "doc-id-date.parquet": parquet(table(doc_id=[datetime.date(2026, 5, 1)] * 2)),
    "grade-word.parquet": parquet(table(grade=["good", "bad"])),
    "grade-null.parquet": parquet(table(grade=[2, None])),
    "grade-negative.parquet": parquet(table(grade=[2, -1])),
    "grade-fraction.parquet": parquet(table(grade=[2, 0.5])),
    "grade-too-high.parquet": parquet(table(grade=[2, 2**31])),
    "feature-text.parquet": parquet(table(bm25=["0.5", "0.25"])),
    "feature-list.parquet": parquet(table(bm25=[[0.5, 1.0], [0.25]])),
    "feature-list-of-text.parquet": parquet(table(bm25=[["a"], ["b"]])),
    "feature-structure.parquet": parquet(table(bm25=[{"title": 0.5}, {"title": 0.25}])),
    "feature-time.parquet": parquet(table(bm25=[datetime.datetime(2026, 5, 1)] * 2)),
    "feature-binary.parquet": parquet(table(bm25=pa.array([b"0.5", b"0.25"], pa.binary()))),
    "weight-null.parquet": parquet(table(weight=[1.0, None])),
    "weight-negative.parquet": parquet(table(weight=[1.0, -1.0])),
    "weight-text.parquet": parquet(table(weight=["1", "2"])),
    "text.arrow": text("qid,grade,bm25\n7,2,0.5\n"),
    "empty.arrow": text(""),
    "cut-off.arrow": arrow(table(), cut=20),
    "no-rows.arrow": arrow(table().slice(0, 0)),
    "no-qid.arrow": arrow(table().drop_columns(["qid"])),
    "qid-fraction.arrow": arrow(table(qid=[7.0, 7.5])),
    "feature-text.arrow": arrow(table(bm25=["0.5", "0.25"])),
    "nothing-in-it": Path.mkdir,
    "other-feature.parquet": parquet(table().rename_columns(["qid", "doc_id", "grade", "pagerank"])),
    "pairs-of-fractions.parquet": parquet(pa.table({"qid": ["7"], "better": [1.5], "worse": ["b"]})),
    "pairs-weight-text.parquet": parquet(pa.table({"qid": ["7"], "better": ["a"], "worse": ["b"], "weight": ["1"]})),
    "pairs-null.parquet": parquet(pa.table({"qid": ["7"], "better": ["a"], "worse": pa.array([None], pa.string())})),
    "pairs-unknown-document.parquet": parquet(pa.table({"qid": ["7"], "better": ["a"], "worse": ["c"]})),
}
"""By name of the file: what writes it."""
