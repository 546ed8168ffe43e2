"""Arrow files and streams: the rows are those of a Parquet file with the same table, and what is cut off is refused."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather, ipc

from rankmill.foundation.errors import DataRejected, MalformedRow
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.arrow_ipc import ArrowSource
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.open_source import open_source
from tests.refusals import refused


def a_table(rows=50, seed=0):
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "title": ["not a feature"] * rows,
            "x": pa.array(rng.normal(size=rows), mask=rng.random(rows) < 0.2),
            "qid": pa.array([f"q{k % 7}é" for k in range(rows)]).dictionary_encode(),
            "doc_id": pa.array([f"d{k}" if k % 5 else None for k in range(rows)], pa.large_string()),
            "grade": pa.array(rng.integers(0, 5, rows), pa.int8()),
            "y": pa.array(rng.normal(size=rows), pa.float32()),
            "weight": rng.random(rows),
        }
    )


OPTIONS = ReadOptions(ignore=("title",))


def write(path, table, *, stream=False, rows=9, compression=None):
    options = ipc.IpcWriteOptions(compression=compression)
    opened = ipc.new_stream if stream else ipc.new_file
    with opened(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def rows_of(path, quarantine=None, block_bytes=64):
    rows = []
    for batch in open_source(path, "auto", OPTIONS, quarantine).batches(block_bytes):
        extras = list(zip(*(column.tolist() for column in batch.extras.values()), strict=True)) or [()] * len(batch)
        ids = batch.qid.to_pylist(), batch.doc_id.to_pylist(), batch.grade.tolist()
        rows += zip(*ids, extras, map(np.ndarray.tobytes, batch.values), strict=True)
    return rows


def test_every_form_brings_the_rows_of_parquet(tmp_path):
    table = a_table()
    pq.write_table(table, tmp_path / "a.parquet")
    expected = rows_of(tmp_path / "a.parquet")
    views = table.set_column(3, "doc_id", table["doc_id"].cast(pa.string()).cast(pa.string_view()))
    for name, found, options in (
        ("a.arrow", table, {}),
        ("b.ipc", table, {"rows": 1000, "compression": "zstd"}),
        ("c.arrow", table, {"stream": True, "compression": "lz4"}),
        ("d.arrows", views, {"stream": True, "rows": 1}),
        ("e.feather", views, {"compression": "lz4"}),
    ):
        assert rows_of(write(tmp_path / name, found, **options)) == expected, name
    feather.write_feather(table, str(tmp_path / "f.feather"), chunksize=13)
    assert rows_of(tmp_path / "f.feather") == expected
    (tmp_path / "g.arrow.gz").write_bytes(gzip.compress((tmp_path / "d.arrows").read_bytes()))
    assert rows_of(tmp_path / "g.arrow.gz") == expected


def test_bad_rows_are_named_in_the_order_of_the_file(tmp_path):
    table = pa.table({"qid": ["a", "b", None, "d"], "grade": [1, 7, 1, -1], "x": [1.0, 2.0, 3.0, 4.0]})
    path = write(tmp_path / "a.arrow", table, rows=3)
    options = ReadOptions(max_grade=5)
    with refused(MalformedRow, path, "row 2", "'grade'", "5", "7"):
        list(ArrowSource(path, options).batches())
    for block_bytes in (1, 1 << 20):
        quarantine = Quarantine(limit=3)
        (row,) = [batch for batch in ArrowSource(path, options, quarantine).batches(block_bytes) if len(batch)]
        assert row.qid.to_pylist() == ["a"]
        assert [(reject.line, reject.column) for reject in quarantine.rejects] == [(2, 3), (3, 1), (4, 3)]


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_cut_off_anywhere_is_refused(tmp_path, stream):
    whole = write(tmp_path / "whole.arrow", a_table(30), stream=stream, rows=10).read_bytes()
    path = tmp_path / "a.arrow"
    for length in sorted({*range(0, len(whole), 331), *range(len(whole) - 9, len(whole))}):
        path.write_bytes(whole[:length])
        with refused(DataRejected, "a.arrow", "Arrow"):
            rows_of(path)


def test_damage_is_an_error_and_no_crash(tmp_path):
    whole = write(tmp_path / "whole.arrow", a_table(30), rows=10).read_bytes()
    rng = np.random.default_rng(1)
    path = tmp_path / "a.arrow"
    refused = 0
    for _ in range(80):
        data = bytearray(whole)
        for place in rng.integers(0, len(data), 3):
            data[place] = rng.integers(0, 256)
        path.write_bytes(bytes(data))
        try:
            rows_of(path, Quarantine(limit=1000))
        except DataRejected:
            refused += 1
    assert refused > 8


def test_what_is_no_arrow(tmp_path):
    table = a_table()
    for name, data, message in (
        ("a.arrow", b"qid,grade\n1,2\n", ("Arrow", "truncated")),
        ("b.feather", b"FEA1" + b"\0" * 50, ("Feather", "version 1", "version 2")),
        ("c.arrow", b"", ("Arrow", "truncated")),
        ("d.arrow.gz", gzip.compress(write(tmp_path / "whole", table).read_bytes()), "decompress"),
        ("e.arrow.gz", gzip.compress(b"text"), ("Arrow", "damaged")),
    ):
        (tmp_path / name).write_bytes(data)
        with refused(DataRejected, message):
            rows_of(tmp_path / name)
    text = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff")]
    )  # fmt: skip
    write(tmp_path / "f.arrow", pa.table({"qid": text, "grade": [1, 1], "x": [1.0, 2.0]}))
    with refused(MalformedRow, "f.arrow", "row 2", "'qid'", "UTF-8"):
        rows_of(tmp_path / "f.arrow")
