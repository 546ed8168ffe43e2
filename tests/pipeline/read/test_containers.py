"""What a container says about its columns and files: the same in every format, and nothing is learnt that nobody
meant."""

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


def in_partitions(root, suffix="parquet"):
    """Write a table of two folders of partitions, ``date=``; queries are named after the day."""
    for day in (1, 2):
        path = root / f"date=2024-01-0{day}/site=a%20b/part.{suffix}"
        path.parent.mkdir(parents=True)
        rows = pl.DataFrame({**ROWS, "qid": [f"{day}{qid}" for qid in ROWS["qid"]]})
        rows.write_csv(path) if suffix == "csv" else write(path, rows.to_arrow())
    return root


@pytest.mark.parametrize("suffix", ["parquet", "arrows"])
def test_keys_of_partitions_are_columns_where_an_option_names_them(tmp_path, monkeypatch, suffix):
    monkeypatch.chdir(tmp_path)
    in_partitions(tmp_path / "hive", suffix)
    read = ReadOptions(time_column="date", categorical=("site",))
    report = ingest(["hive"], tmp_path / "d", options=IngestOptions(read=read))
    assert report.manifest.rows == 8
    (first, second) = sorted((tmp_path / "hive").glob(f"**/*.{suffix}"))
    names, categorical, rows = rows_of(first, categorical=("site",), columns={"qid": "date"}, ignore=("qid",))
    assert (names, set(categorical), {row[0] for row in rows}) == (("x", "site"), {"site"}, {"2024-01-01"})
    (batch,) = open_source(second, options=read).batches()
    assert set(batch.extras["time"].astype("datetime64[us]").astype(str)) == {"2024-01-02T00:00:00.000000"}
    assert rows_of(first)[0] == ("x",)
    assert ingest([f"hive/**/*.{suffix}"], tmp_path / "e").manifest.rows == 8


def test_keys_of_partitions_of_text_become_columns_by_the_cure(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    in_partitions(tmp_path / "hive", "csv")
    for read in (ReadOptions(time_column="date"), ReadOptions(columns={"qid": "date"}), ReadOptions(goals=("date",))):
        with pytest.raises((InputError, DataRejected), match="key of the folders") as caught:
            ingest(["hive"], tmp_path / "e", options=IngestOptions(read=read))
    duckdb.sql(str(caught.value).partition("DuckDB: ")[2])
    options = IngestOptions(read=ReadOptions(time_column="date", ignore=("site",)))
    assert ingest(["rows.parquet"], tmp_path / "e", options=options).manifest.rows == 8


def test_a_key_of_partitions_that_may_be_the_query_is_offered_as_it(tmp_path):
    path = tmp_path / "qid=7/part.parquet"
    path.parent.mkdir()
    write(path, pa.table(ROWS).drop_columns("qid"))
    with refused(DataRejected, "qid=qid"):
        rows_of(path)
    assert {row[0] for row in rows_of(path, columns={"qid": "qid"})[2]} == {"7"}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float32(), 3), pa.list_(pa.int16())],
    ids=str,
)
def test_a_column_of_lists_has_a_feature_for_each_number(tmp_path, name, kind):
    lists = [[1, 2, 3], [4, None, 6], None, [7, 8, 9]]
    table = pa.table({**ROWS, "v": pa.array(lists, kind), "z": [0, 1, 2, 3]})
    if name == "a.feather" and pa.types.is_fixed_size_list(kind):
        table = table.combine_chunks()
    flat = {f"v_{k}": [None if each is None else each[k - 1] for each in lists] for k in (1, 2, 3)}
    plain = pa.table(
        {**ROWS, **{each: pa.array(cells, kind.value_type) for each, cells in flat.items()}, "z": [0, 1, 2, 3]}
    )
    expected = rows_of(write(tmp_path / "plain.parquet", plain))
    assert expected[0] == ("x", "v_1", "v_2", "v_3", "z")
    assert str(rows_of(write(tmp_path / name, table))) == str(expected)
    assert rows_of(tmp_path / name, ignore=("v",))[0] == ("x", "z")
    assert rows_of(tmp_path / name, ignore=("v_[12]",))[0] == ("x", "v_3", "z")
    for each in (name, "plain.parquet"):
        ingest([tmp_path / each], tmp_path / f"of-{each}")
    first, second = (
        sorted(file.name for file in tmp_path.glob(f"of-{each}/features/*")) for each in (name, "plain.parquet")
    )
    assert first == second  # named by their bytes


def test_lists_of_many_batches_and_a_name_that_is_taken(tmp_path):
    n = 3000
    table = pa.table({"qid": ["q"] * n, "grade": [0] * n, "v": [[k, -k] for k in range(n)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=700)
    assert [row[3] for row in rows_of(tmp_path / "a.parquet")[2]] == [[k, -k] for k in range(n)]
    ragged = table.set_column(2, "v", pa.array([[k] * (1 if k == n - 3 else 2) for k in range(n)]))
    pq.write_table(ragged, tmp_path / "b.parquet", row_group_size=700)
    with refused(DataRejected, f"row {n - 2}", "'v'", "2 numbers", "one of 1", "ignore=['v']"):
        ingest([tmp_path / "b.parquet"], tmp_path / "d")
    with refused(DataRejected, "'v_2'", "twice"):
        rows_of(write(tmp_path / "c.parquet", table.append_column("v_2", [[0] * n])))


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


def test_dates_and_missing_values_of_categories_stay_distinct(tmp_path):
    """A dictionary of what can be no category is refused, not read as numbers."""
    days = pa.array(np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[D]")).dictionary_encode()
    with refused(DataRejected, "'x'", "date32[day]"):
        rows_of(write(tmp_path / "a.parquet", pa.table({"qid": ["q", "q"], "grade": [0, 1], "x": days})))
