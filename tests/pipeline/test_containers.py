"""What a container says about its columns and files: the same in every format, and nothing is learnt that nobody meant."""

from __future__ import annotations

import gzip
from decimal import Decimal

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from rankmill.foundation.errors import DataRejected, InputError
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.read.open_source import open_source
from rankmill.scorer.evaluate.scored_file import read_scored
from tests.refusals import refused

ROWS = {"qid": ["q1", "q1", "q2", "q2"], "doc_id": list("abab"), "grade": [1, 0, 0, 2], "x": [0.5, 1.5, 2.5, 3.5]}


def write(path, table):
    """Write an Arrow table in the format of the suffix of ``path``."""
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".feather":
        feather.write_feather(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    return path


def rows_of(path, **options):
    """Return the features' names, those that are categories, and the rows (qid, doc_id, grade, values)."""
    source = open_source(path, options=ReadOptions(**options))
    found = []
    for batch in source.batches():
        doc_ids = [None] * len(batch) if batch.doc_id is None else batch.doc_id.to_pylist()
        grades = [None] * len(batch) if batch.grade is None else batch.grade.tolist()
        found += zip(batch.qid.to_pylist(), doc_ids, grades, batch.values.tolist(), strict=True)
    return source.columns, source.table.categorical, found


FORMATS = ("a.parquet", "a.feather", "a.arrows")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("index", [None, "place", ["site", None]])
def test_the_index_of_a_frame_is_no_feature_and_is_named(tmp_path, name, index):
    frame = pd.DataFrame(ROWS)
    levels = [range(4, 0, -1)] * (2 if isinstance(index, list) else 1)
    frame.index = (
        pd.MultiIndex.from_arrays(levels, names=index) if len(levels) > 1 else pd.Index([4, 3, 2, 1], name=index)
    )
    said = []
    ingest([write(tmp_path / name, pa.Table.from_pandas(frame))], tmp_path / "d", say=said.append)
    assert Dataset.open(tmp_path / "d").feature_names == ("x",)
    assert len(said) == 1
    assert "index" in said[0]


@pytest.mark.parametrize("name", FORMATS)
def test_an_index_with_a_role_has_it_and_one_that_is_named_is_meant(tmp_path, name):
    path = write(tmp_path / name, pa.Table.from_pandas(pd.DataFrame(ROWS).set_index(["qid", "doc_id"])))
    columns, _, rows = rows_of(path)
    assert (columns, [row[:2] for row in rows]) == (("x",), list(zip(ROWS["qid"], ROWS["doc_id"], strict=True)))
    path = write(tmp_path / name, pa.Table.from_pandas(pd.DataFrame(ROWS).set_index("x", append=True)))
    assert rows_of(path, categorical=("x",))[:2] == (("x",), {"x"})
    assert rows_of(path, grade_required=False, known_features=frozenset({"x"}))[0] == ("x",)
    assert rows_of(path, ignore=("__index_level_0__",), categorical=("x",))[0] == ("x",)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet"])
@pytest.mark.parametrize("column", ["Unnamed: 0", "Unnamed: 0.1", "__index_level_0__", "__index_level_12__"])
def test_names_that_pandas_gives_its_index_are_no_features_without_metadata(tmp_path, name, column):
    path, table = tmp_path / name, pl.DataFrame(ROWS).with_columns(pl.Series(column, [4, 3, 2, 1]))
    kinds = {
        "a.csv": pl.DataFrame.write_csv,
        "a.jsonl": pl.DataFrame.write_ndjson,
        "a.parquet": pl.DataFrame.write_parquet,
    }
    kinds.get(name, lambda table, path: table.write_csv(path, separator="\t"))(table, path)
    assert rows_of(path)[0] == ("x",)


def test_pairs_and_judgments_of_a_shuffled_frame_are_read(tmp_path):
    frame = pd.DataFrame({"qid": ["q1", "q2"], "better": ["a", "b"], "worse": ["b", "a"]}, index=[7, 3])
    judgments = pd.DataFrame({name: ROWS[name] for name in ("qid", "doc_id", "grade")}, index=[4, 3, 2, 1])
    for kept, name in ((frame, "pairs.parquet"), (judgments, "qrels.parquet"), (pd.DataFrame(ROWS), "rows.parquet")):
        kept.to_parquet(tmp_path / name)
    files = {"pairs": [tmp_path / "pairs.parquet"], "qrels": [tmp_path / "qrels.parquet"]}
    assert ingest([tmp_path / "rows.parquet"], tmp_path / "d", **files).manifest.pairs.pairs == 2


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "shops", [[10, 20, 10, 30], [1.5, 2.5, 1.5, None], [True, False, True, True], ["acme", "b", "acme", None]]
)
def test_categories_of_any_type_are_categories_in_every_format(tmp_path, name, shops):
    frame = pd.DataFrame(ROWS).assign(shop=pd.Categorical(shops))
    of_pandas, of_arrow = pa.Table.from_pandas(frame), pa.table({**ROWS, "shop": pa.array(shops).dictionary_encode()})
    expected = rows_of(write(tmp_path / "plain.parquet", pa.table({**ROWS, "shop": shops})), categorical=("shop",))
    for table in (of_pandas, of_arrow):
        assert str(rows_of(write(tmp_path / name, table))) == str(expected)
    plain = of_pandas.set_column(4, "shop", pa.array(shops)).replace_schema_metadata(of_pandas.schema.metadata)
    assert str(rows_of(write(tmp_path / name, plain))) == str(expected)  # as fastparquet writes it


def test_malformed_metadata_of_pandas_are_passed_over(tmp_path):
    for text in (b"{", b"[1]", b'{"index_columns": [{"kind": "range"}], "columns": [7, {}]}', b"\xff"):
        path = write(tmp_path / "a.parquet", pa.table(ROWS).replace_schema_metadata({b"pandas": text}))
        assert rows_of(path)[0] == ("x",)


MARKS = {"Delta": "_delta_log/0.json", "Iceberg": "metadata/v3.metadata.json", "Hudi": ".hoodie/hoodie.properties"}


@pytest.mark.parametrize("kind", MARKS)
def test_folders_of_table_formats_are_refused_whatever_reads_them(tmp_path, kind):
    root = tmp_path / "table"
    for name in (f"{MARKS[kind]}", "data/part.parquet", "part.parquet"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        write(root / name, pa.table(ROWS)) if name.endswith("parquet") else (root / name).write_text("{}")
    plain = write(tmp_path / "plain.parquet", pa.table(ROWS))
    for given in (root, root / "data", root / "part.parquet", root / "data/part.parquet", f"{root}/**/*.parquet"):
        for roles in ({"train": [given]}, {"train": [plain], "qrels": [given]}, {"train": [plain], "pairs": [given]}):
            with refused(InputError, root, kind, "log"):
                ingest(out=tmp_path / "d", **roles)
    with refused(InputError, root, kind, "log"):
        read_scored(root)


def test_a_folder_that_is_called_metadata_is_not_iceberg(tmp_path):
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "notes.json").write_text("{}")
    assert ingest([write(tmp_path / "a.parquet", pa.table(ROWS))], tmp_path / "d").manifest.rows == 4


def test_the_cure_of_a_partitioned_folder_reads_it_and_that_of_its_key_makes_a_column(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for day in (1, 2):
        path = tmp_path / f"hive/date=2024-01-0{day}/part.parquet"
        path.parent.mkdir(parents=True)
        write(path, pa.table({**ROWS, "qid": [f"{day}{qid}" for qid in ROWS["qid"]]}))
    with pytest.raises(InputError, match="date=2024-01-01") as caught:
        ingest(["hive"], tmp_path / "d")
    pattern = str(caught.value).rpartition(": ")[2].strip("'")
    assert ingest([pattern], tmp_path / "d").manifest.rows == 8
    for options in (
        ReadOptions(time_column="date"),
        ReadOptions(columns={"qid": "date"}),
        ReadOptions(goals=("date",)),
    ):
        with pytest.raises((InputError, DataRejected), match="key of the folders") as caught:
            ingest([pattern], tmp_path / "e", options=IngestOptions(read=options))
    duckdb.sql(str(caught.value).partition("DuckDB: ")[2])
    report = ingest(["rows.parquet"], tmp_path / "e", options=IngestOptions(read=ReadOptions(time_column="date")))
    assert report.manifest.rows == 8


NUMBERS = {
    "int64": pa.array([7, 8, 9, 10]),
    "uint64": pa.array([7, 8, 9, 10], pa.uint64()),
    "float64": pa.array([7.0, 8.0, 9.0, 10.0]),
    "float32": pa.array([7.0, 8.0, 9.0, 10.0], pa.float32()),
    "decimal(38, 0)": pa.array([Decimal(k) for k in (7, 8, 9, 10)], pa.decimal128(38, 0)),
    "decimal(10, 2)": pa.array([Decimal(k) for k in (7, 8, 9, 10)], pa.decimal128(10, 2)),
    "decimal256": pa.array([Decimal(k) for k in (7, 8, 9, 10)], pa.decimal256(60, 1)),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", NUMBERS)
def test_whole_numbers_of_any_type_are_the_same_ids_grades_and_features(tmp_path, name, kind):
    table = pa.table({"qid": NUMBERS[kind], "doc_id": NUMBERS[kind], "grade": NUMBERS[kind], "x": NUMBERS[kind]})
    text = [str(k) for k in (7, 8, 9, 10)]
    expected = [(one, one, int(one), [float(one)]) for one in text]
    assert rows_of(write(tmp_path / name, table))[2] == expected
    scored = write(tmp_path / "s.parquet", table.rename_columns(["qid", "doc_id", "grade", "score"]))
    assert [read_scored(scored)[part].to_pylist() for part in ("qid", "doc_id")] == [text, text]


@pytest.mark.parametrize(
    "ids",
    [
        pa.array([7.5]),
        pa.array([2.0**53]),
        pa.array([2.0**24], pa.float32()),
        pa.array([float("inf")]),
        pa.array([Decimal("7.5")], pa.decimal128(10, 2)),
    ],
    ids=str,
)
def test_numbers_that_are_no_whole_ids_are_refused_in_files_and_lists(tmp_path, ids):
    path = write(tmp_path / "a.parquet", pa.table({"qid": ids, "grade": [1], "score": [0.5]}))
    for read in (rows_of, read_scored):
        with refused(DataRejected, "row 1", "'qid'", ids[0].as_py(), "text"):
            read(path)


def test_a_boolean_is_no_id(tmp_path):
    path = write(tmp_path / "a.parquet", pa.table({**ROWS, "qid": [True, False, True, False]}))
    with refused(DataRejected, "'qid'", "bool"):
        rows_of(path)
    (tmp_path / "a.jsonl").write_text('{"qid": true, "grade": 1, "x": 1}\n')
    with refused(DataRejected, "'qid'", "true"):
        rows_of(tmp_path / "a.jsonl")


@pytest.mark.parametrize("grades", [(), (("true", 3), ("false", 1))])
def test_truth_is_the_same_grade_in_every_format(tmp_path, grades):
    truth = [True, False, None, True]
    table = pl.DataFrame({**ROWS, "grade": truth})
    table.write_csv(tmp_path / "a.csv")
    table.write_ndjson(tmp_path / "a.jsonl")
    table.write_parquet(tmp_path / "a.parquet")
    table.write_ipc(tmp_path / "a.arrow")
    (tmp_path / "b.csv").write_text((tmp_path / "a.csv").read_text().replace("true", "True").replace("false", "False"))
    meant = {True: dict(grades).get("true", 1), False: dict(grades).get("false", 0), None: -1}
    for name in ("a.csv", "b.csv", "a.jsonl", "a.parquet", "a.arrow"):
        assert [row[2] for row in rows_of(tmp_path / name, grades=grades)[2]] == [meant[each] for each in truth]


def test_exponents_are_spellings_of_numbers_in_every_role(tmp_path):
    (tmp_path / "a.csv").write_text("qid,grade,x\nq,1.000000e+00,5.0e-01\nq,2e0,1E1\n")
    (tmp_path / "a.txt").write_text("1.000000e+00 qid:q 1:5.0e-01\n2e0 qid:q 1:1E1\n")
    (tmp_path / "a.jsonl").write_text(
        '{"qid": "q", "grade": 1.0e+00, "x": 5.0e-1}\n{"qid": "q", "grade": "2e0", "x": 1E1}\n'
    )
    for name in ("a.csv", "a.jsonl"):
        assert [row[2:] for row in rows_of(tmp_path / name)[2]] == [(1, [0.5]), (2, [10.0])]
    (batch,) = open_source(tmp_path / "a.txt").batches()
    assert (batch.grade.tolist(), batch.values.tolist()) == ([1, 2], [[0.5], [10.0]])
    (tmp_path / "b.jsonl").write_text('{"qid": 1.0e+00, "doc_id": 2.0, "grade": 1, "x": 1}\n')
    assert rows_of(tmp_path / "b.jsonl")[2] == [("1", "2", 1, [1.0])]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_whole_numbers_of_128_bits_are_refused_with_a_cure_that_works(tmp_path, name):
    table = pl.DataFrame({**ROWS, "qid": [10**19, 10**19, 10**19 + 1, 10**19 + 1]}, schema_overrides={"qid": pl.Int128})
    write_it = pl.DataFrame.write_parquet if name == "a.parquet" else pl.DataFrame.write_ipc
    write_it(table, tmp_path / name)
    for read in (rows_of, read_scored) if name == "a.parquet" else (rows_of,):
        with refused(DataRejected, name, "128", "cast(pl.String)"):
            read(tmp_path / name)
    write_it(table.with_columns(pl.col("qid").cast(pl.String)), tmp_path / name)
    assert [row[0] for row in rows_of(tmp_path / name)[2]] == [str(qid) for qid in table["qid"]]


def test_blanks_around_cells_of_csv_are_no_part_of_them(tmp_path):
    spaced, plain = tmp_path / "a.csv", tmp_path / "b.csv"
    spaced.write_text('qid, doc_id ,\tgrade, "brand" ,"x, y" \nq1, d1, 1 , acme, 1.5\nq1 ,d 2,0,  , 2 \n')
    plain.write_text('qid,doc_id,grade,brand,"x, y"\nq1,d1,1,acme,1.5\nq1,d 2,0,,2\n')
    options = {"categorical": ("brand",)}
    assert str(rows_of(spaced, **options)) == str(rows_of(plain, **options))
    (tmp_path / "c.csv").write_text('qid,doc_id,grade," x"\n" q1"," d ",1,2\n')
    assert rows_of(tmp_path / "c.csv") == ((" x",), frozenset(), [(" q1", " d ", 1, [2.0])])
    with gzip.open(tmp_path / "scored.csv.gz", "wt") as file:
        file.write("qid, doc_id, score\nq1, d1, 0.5\n")
    assert read_scored(tmp_path / "scored.csv.gz").to_pylist() == [{"qid": "q1", "doc_id": "d1", "score": 0.5}]


def test_dates_and_missing_values_of_categories_stay_apart(tmp_path):
    """A dictionary of what can be no category is refused, not read as numbers."""
    days = pa.array(np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[D]")).dictionary_encode()
    with refused(DataRejected, "'x'", "date32[day]"):
        rows_of(write(tmp_path / "a.parquet", pa.table({"qid": ["q", "q"], "grade": [0, 1], "x": days})))
