"""CSV, TSV and Parquet: the rows of the same judgments are the same whatever file brings them."""

import datetime
import gzip
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import DataRejected, InputError, MalformedLine, MalformedRow
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.delimited import DelimitedSource
from rankmill.pipeline.read.open_source import open_source
from rankmill.pipeline.read.parquet import ParquetSource
from tests import naive
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


@given(st.lists(st.floats(), min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_a_token_means_the_same_number_in_csv_and_in_letor_text(tmp_path_factory, numbers):
    folder = tmp_path_factory.getbasetemp()
    (folder / "x.csv").write_text("qid,grade,f1\n" + "".join(f"q,1,{x!r}\n" for x in numbers))
    (folder / "x.txt").write_text("".join(f"1 qid:q 1:{x!r}\n" for x in numbers))
    expected = [row("q", None, 1, naive.number_of(repr(x))) for x in numbers]
    assert read(folder / "x.csv") == read(folder / "x.txt") == expected


NEGATIVE = "negative_grades zero"
NOTHING = "unjudged keep"
BAD_CSV = [
    ("qid,grade,x\n1,0,1\n1,0\n", MalformedLine, (":3:1", "3", "'2 cells'")),
    ("qid,grade,x\n1,0,1,2\n", MalformedLine, (":2:1", "3", "'4 cells'")),
    (
        "qid,grade,x\n1,0,1\n\n1,-1,2\n",
        MalformedLine,
        (":4:3", "'-1'", NEGATIVE, "grade"),
    ),
    ("qid,grade,x\n1,0.5,2\n", MalformedLine, (":2:3", "'0.5'", "grade")),
    (
        "qid,grade,x\n1,,2\n",
        MalformedLine,
        (":2:3", NOTHING, "grade"),
    ),
    ("qid,grade,x\n1,99999999999,2\n", MalformedLine, (":2:3", "2147483647", "'99999999999'", "grade")),
    ("qid,grade,x\n,1,abc\n", MalformedLine, (":2:1", "query")),
    (
        'qid,grade,x\n"a,b",1,abc\n',
        MalformedLine,
        (":2:9", "'x'", "'abc'", "max_rejects N", "ignore x"),
    ),
    (
        "qid,grade,x\n1,1,1 2\n",
        MalformedLine,
        (":2:5", "'x'", "'1 2'", "max_rejects N", "ignore x"),
    ),
    ("qid,grad,x\n1,0,1\n", DataRejected, ("'grade'", "'grad'", "columns grade=grad")),
    (
        "q,z,x\n1,0,1\n",
        DataRejected,
        ("2", "(1)", "'qid'", "(2)", "'grade'", "columns qid=NAME", "columns grade=NAME"),
    ),
    ("a;b;c\n", DataRejected, ("2", "'qid'", "'grade'", "a, b, c")),  # the first line shows the delimiter
    (
        "qid,grade,x,x\n",
        DataRejected,
        ("'x'", "twice", "ignore x"),
    ),
    (
        "qid,grade,,x\n",
        DataRejected,
        ("column 3", "name", "ignore column_3"),
    ),
    (
        "qid,grade,split\n",
        DataRejected,
        ("'split'", "reserved", "ignore split"),
    ),
    ("qid,grade\n1,0\n", DataRejected, ("feature", "qid, grade")),
    ("", DataRejected, (":1", "empty")),
    ("qid,grade,x\n1,0,\0\n", DataRejected, (":2", "NUL")),
    ("qid,gr\0ade,x\n", DataRejected, (":1", "NUL")),
]


@pytest.mark.parametrize(("text", "error", "message"), BAD_CSV)
def test_bad_csv_is_named_by_line_and_column(tmp_path, text, error, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with refused(error, path, message):
        read(path, unjudged="reject")


@pytest.mark.parametrize("rows", [3, 2_000])  # in the first block of text, and far behind it
@pytest.mark.parametrize("bad", ['5,1,"2', '5,"1,2', '"5,1,2', '5,1,"2\n3"', '"5\n",1,2'])
def test_a_quote_that_does_not_close_in_its_line_is_named_and_takes_no_row_with_it(tmp_path, bad, rows):
    path = tmp_path / "a.csv"
    path.write_text("qid,grade,x\n" + "7,0,1\n" * rows + bad + "\n" + "7,0,1\n" * 2_000)
    found = bad.split("\n")[0][bad.index('"') :]
    expected = f"{path}:{rows + 2}:{bad.index(chr(34)) + 1}: expected a cell that ends on its line, found {found!r}"
    for quarantine in (None, Quarantine(limit=10)):
        with refused(MalformedLine, expected, "quote", "one line"):
            read(path, quarantine)


def test_csv_that_is_no_text_or_damaged(tmp_path):
    for name, data, message in (
        ("a.csv", b"qid,grade,x\n\xff,0,1\n", "text"),
        ("b.csv", b"\xff,grade,x\n", "text"),
        ("c.csv.gz", gzip.compress(b"qid,grade,x\n1,1,1\n" * 100)[:-20], "damaged"),
        ("d.csv.gz", b"qid,grade,x\n", "damaged"),
    ):
        (tmp_path / name).write_bytes(data)
        with refused(DataRejected, message):
            read(tmp_path / name)


def test_csv_rejects_are_listed_in_the_order_of_the_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("qid,grade,x\n1,0,1\n1,x,1\n1,0\n2,1,y\n\n3,1,2\n3,3.5,z\n")
    quarantine = Quarantine(limit=4)
    assert read(path, quarantine) == [row("1", None, 0, 1), row("3", None, 1, 2)]
    assert [(r.line, r.column, r.text) for r in quarantine.rejects] == [
        (3, 3, "1,x,1"),
        (4, 1, "1,0"),
        (5, 5, "2,1,y"),
        (8, 3, "3,3.5,z"),
    ]
    with refused(DataRejected, "a.csv:3:3", "max_rejects 3"):
        read(path, Quarantine(limit=3))


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


BAD_PARQUET = [
    ({"qid": ["1", ""], "grade": [1, 1], "x": [1, 1]}, ("row 2", "'qid'", "query")),
    ({"qid": ["1", None], "grade": [1, 1], "x": [1, 1]}, ("row 2", "'qid'", "query")),
    ({"grade": [-1]}, ("row 1", "'grade'", "-1", NEGATIVE, "grade")),
    ({"grade": [1.5]}, ("row 1", "'grade'", "1.5", "grade")),
    ({"grade": pa.array([None], pa.int8())}, ("row 1", "'grade'", NOTHING, "grade")),
    ({"grade": [float("inf")]}, ("row 1", "'grade'", "grade", "inf")),
    ({"grade": [2**40]}, ("row 1", "'grade'", "2147483647", "1099511627776", "grade")),
    ({"grade": ["x"]}, ("row 1", "'grade'", "'x'", "grades good=1,bad=0", "grade")),
    ({"grade": [datetime.date(2020, 1, 1)]}, ("'grade'", "date32[day]")),
    ({"qid": [1.5]}, ("'qid'", "double")),
    ({"x": ["a"]}, ("'x'", "ignore x", "string")),
    ({"x": [datetime.date(2020, 1, 1)]}, ("'x'", "date32[day]", "ignore x")),
    ({"split": ["train"]}, ("'split'", "reserved", "ignore split")),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "message"), BAD_PARQUET)
def test_bad_parquet_is_named_by_row_and_column(tmp_path, columns, message):
    path = tmp_path / "bad.parquet"
    parquet(path, **columns)
    with refused(DataRejected, path, message):
        read(path, unjudged="reject")


def test_parquet_that_is_none_and_parquet_rejects(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 but no more")
    with refused(DataRejected, "a.parquet", "Parquet"):
        read(path)
    parquet(path, qid=["1", "2", None], grade=[1, -1, 0], x=[1, 2, 3])
    quarantine = Quarantine(limit=2)
    assert read(path, quarantine) == [row("1", None, 1, 1)]
    assert sorted((r.source, r.line, r.column) for r in quarantine.rejects) == [
        ("a.parquet", 2, 3),
        ("a.parquet", 3, 1),
    ]
    with pytest.raises(MalformedRow):
        read(path)


def test_files_must_have_the_same_features(tmp_path):
    (tmp_path / "a.csv").write_text("qid,grade,x,y\n1,1,1,1\n")
    (tmp_path / "b.csv").write_text("qid,grade,x,z\n1,1,1,1\n")
    (tmp_path / "c.csv").write_text("qid,grade,x,y,z\n1,1,1,1,1\n")
    (tmp_path / "d.txt").write_text("1 qid:1 1:1\n")
    a, b, c, d = (tmp_path / name for name in ("a.csv", "b.csv", "c.csv", "d.txt"))
    for files, error, message in (
        ([a, b], DataRejected, (b, "'y'", a)),
        ([a, c], DataRejected, (c, "'z'", a)),
        (
            [a, d],
            InputError,
            (a, d, "LETOR"),
        ),
    ):
        with refused(error, message):
            ingest(files, tmp_path / "out")
    with refused(InputError, "n_features", "LETOR"):
        ingest([a], tmp_path / "out", options=IngestOptions(read=ReadOptions(n_features=3)))


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
