"""CSV, TSV and Parquet: the rows of the same judgments are the same whatever file brings them."""

import gzip
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather, ipc

from rankmill.foundation.errors import DataRejected, InputError, MalformedRow
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.arrow_ipc import ArrowSource
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.delimited import DelimitedSource
from rankmill.pipeline.read.open_source import open_source
from rankmill.pipeline.read.parquet import ParquetSource
from tests.refusals import refused


def read(path, quarantine=None, block_bytes=64, **options):
    """All rows: qid, doc_id, grade, values."""
    rows = []
    for batch in open_source(path, options=ReadOptions(**options), quarantine=quarantine).batches(block_bytes):
        doc_ids = [None] * len(batch) if batch.doc_id is None else batch.doc_id.to_pylist()
        grades = [None] * len(batch) if batch.grade is None else batch.grade.tolist()
        rows += zip(batch.qid.to_pylist(), doc_ids, grades, map(np.ndarray.tobytes, batch.values), strict=True)
    return rows


def row(qid, doc_id, grade, *values):
    return qid, doc_id, grade, np.float32(values).tobytes()


def test_csv_cells_come_through_as_written(tmp_path):
    path = tmp_path / "a.csv"
    text = (
        '\ufeffqid,x,grade,doc_id,"y,z"\r\n1,1.5,0,a,\r\n\r\n1,nan,2.0,"b ""q""",3e2\r\n02,0.1,1,,0.30000001192092896'
    )
    path.write_bytes(text.encode())
    expected = [
        row("1", "a", 0, 1.5, np.nan),
        row("1", 'b "q"', 2, np.nan, 300),
        row("02", None, 1, 0.1, 0.30000001192092896),
    ]
    assert read(path) == expected
    assert open_source(path).columns == ("x", "y,z")
    packed = tmp_path / "a.csv.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert read(packed) == expected
    tabbed = tmp_path / "a.tsv"
    tabbed.write_text("grade\tqid\tx\n1\t7\t .5 \n")
    assert read(tabbed) == [row("7", None, 1, 0.5)]


def test_candidates_may_lack_grades(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("qid,x\n1,2\n")
    assert read(path, grade_required=False) == [row("1", None, None, 2)]
    path.write_text("qid,x,grade\n1,2,\n1,2,3\n")
    assert read(path, grade_required=False) == [row("1", None, -1, 2), row("1", None, 3, 2)]
    table = pa.table({"qid": ["1", "1"], "grade": [None, 3], "x": [1.5, 2.0]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", grade_required=False) == [row("1", None, -1, 1.5), row("1", None, 3, 2)]
    pq.write_table(table.drop(["grade"]), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", grade_required=False) == [row("1", None, None, 1.5), row("1", None, None, 2)]


def parquet(path, **columns):
    table = pa.table({"qid": ["1"], "grade": [1], "x": [1.0]} | columns)
    pq.write_table(table, path)


def test_parquet_of_every_number_type(tmp_path):
    path = tmp_path / "a.parquet"
    kinds = [
        pa.int8(),
        pa.uint64(),
        pa.float16(),
        pa.float32(),
        pa.float64(),
        pa.decimal128(30, 3),
        pa.bool_(),
        pa.null(),
    ]
    features = {f"x{k}": pa.array([None if kind == pa.null() else 1, None]).cast(kind) for k, kind in enumerate(kinds)}
    for qid, grade in itertools.product(
        (pa.array([7, 8]), pa.array(["7", "8"], pa.large_string()), pa.array(["7", "8"]).dictionary_encode()),
        (pa.array([1, 0], pa.uint8()), pa.array([1.0, 0.0])),
    ):
        pq.write_table(pa.table({"qid": qid, "grade": grade, "doc_id": ["a", ""], **features}), path)
        nothing = [np.nan] * len(kinds)
        assert read(path) == [row("7", "a", 1, *[1.0] * 7, np.nan), row("8", None, 0, *nothing)]


def test_doubles_are_rounded_once(tmp_path):
    path = tmp_path / "a.parquet"
    numbers = [0.1, 1e300, -1e-300, 16777217.0, np.nan]
    parquet(path, qid=["q"] * 5, grade=[1] * 5, x=numbers)
    with np.errstate(over="ignore"):
        assert read(path) == [row("q", None, 1, np.float32(x)) for x in numbers]


def test_open_source_goes_by_format_then_suffix(tmp_path):
    (tmp_path / "a.csv").write_text("qid\tgrade\tx\n1\t1\t1\n")
    parquet(tmp_path / "b")
    assert isinstance(open_source(tmp_path / "a.csv", "tsv"), DelimitedSource)
    assert isinstance(open_source(tmp_path / "b", "parquet"), ParquetSource)
    with refused(InputError, "format", "cvs", "csv"):
        open_source(tmp_path / "a.csv", "cvs")
    with pytest.raises(InputError, match="no such file"):
        open_source(tmp_path / "gone.csv")
    with refused(ValueError, "1", "2"):
        open_source(tmp_path / "b", "parquet").names(2)


# ---- Arrow files and streams: the rows of a Parquet file with the same table -----------------------------------------


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
