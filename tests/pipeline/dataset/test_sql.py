"""SQL over a dataset: its own files, all of them, nothing else, and nothing changed."""

import csv
import io
import json
import os
import tempfile

import numpy as np
import pytest
from typer.testing import CliRunner

from rankmill.foundation.errors import InputError
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.cli import app
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.sql import query_dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, QueryOptions, ReadOptions, SynthParameters
from rankmill.pipeline.synth import write_synthetic
from tests.refusals import refused
from tests.written import files_in


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sql")
    write_synthetic(folder / "in.txt", SynthParameters(queries=30, documents_per_query=9, features=11, seed=3))
    text = (
        (folder / "in.txt").read_text().replace(" 4:", " 4:nan #", 1)
    )  # the first document misses f4 and all behind it
    (folder / "in.txt").write_text(text + "what is this\n")
    options = IngestOptions(buckets=5, max_rejects=3, read=ReadOptions(absent="missing"))
    ingest([folder / "in.txt"], folder / "it's data", options=options)
    bin_dataset(Dataset.open(folder / "it's data"))
    return folder


@pytest.fixture
def dataset(folder):
    return Dataset.open(folder / "it's data")


def ask(dataset, sql, **options):
    answer = query_dataset(dataset, sql, QueryOptions(**options))
    return list(zip(*(column.to_pylist() for column in answer.columns), strict=True))


def test_features_are_the_rows_and_missing_is_null(dataset):
    names = ", ".join(dataset.feature_names)
    found = ask(dataset, f"SELECT qid, grade, {names} FROM features")
    rows = dataset.rows(None, ["qid", "grade"])
    assert [row[:2] for row in found] == list(
        zip(rows.column("qid").to_pylist(), rows.column("grade").to_pylist(), strict=True)
    )
    values = np.array([row[2:] for row in found], dtype=np.float32)  # None becomes NaN
    np.testing.assert_array_equal(values, np.concatenate(list(dataset.feature_batches())))
    ((nulls,),) = ask(dataset, f"SELECT count(*) * {len(dataset.feature_names)} - (" + "+".join(
        f"count({name})" for name in dataset.feature_names) + ") FROM features")  # fmt: skip
    assert nulls == dataset.manifest.missing_values > 0


def test_shard_and_row_join_queries_to_features(dataset):
    found = ask(
        dataset, "SELECT q.qid = f.qid FROM features f"
        " JOIN queries q ON q.shard = f.shard AND f.row >= q.row_start AND f.row < q.row_start + q.n_docs",
    )  # fmt: skip
    assert found == [(True,)] * dataset.manifest.rows


def test_only_what_is_there_has_a_view(folder, dataset):
    assert [name for (name,) in ask(dataset, "SHOW TABLES")] == ["features", "queries", "rejects"]
    ((line, text),) = ask(dataset, "SELECT line, text FROM rejects")
    assert text == "what is this"
    assert line == len((folder / "in.txt").read_text().splitlines())


def test_times_are_in_utc(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    (tmp_path / "in.csv").write_text("qid,grade,at,a\nx,1,2026-01-02T03:04:05.25+02:00,5\ny,0,2026-03-01,6\n")
    ingest([tmp_path / "in.csv"], tmp_path / "data", options=IngestOptions(read=ReadOptions(time_column="at")))
    found = ask(Dataset.open(tmp_path / "data"), "SELECT time FROM queries ORDER BY qid")
    assert [time.isoformat() for (time,) in found] == ["2026-01-02T01:04:05.250000+00:00", "2026-03-01T00:00:00+00:00"]


@pytest.mark.parametrize("form", [["--json"], ["--csv"], []])
def test_a_statement_that_fails_late_prints_nothing(dataset, form):
    late = "SELECT CASE WHEN range = 70000 THEN error('late') ELSE range END AS n FROM range(90000)"
    got = CliRunner().invoke(app, ["query", str(dataset.path), late, "--threads", "1", *form])
    assert isinstance(got.exception, InputError)
    assert got.stdout == ""


def test_pairs_have_a_view(tmp_path):
    (tmp_path / "in.txt").write_text("1 qid:a 1:1 #docid = x\n0 qid:a 1:2 #docid = y\n")
    (tmp_path / "pairs.txt").write_text("a y x\n")
    ingest([tmp_path / "in.txt"], tmp_path / "data", pairs=[tmp_path / "pairs.txt"])
    assert ask(Dataset.open(tmp_path / "data"), "SELECT qid, better, worse FROM pairs") == [("a", 1, 0)]


def test_unjudged_rows_have_a_view(tmp_path):
    (tmp_path / "in.csv").write_text("qid,doc_id,grade,weight,a\nx,d1,1,2,5\nx,d2,,3,6\nx,d4,,1,\ny,d3,0,1,nan\n")
    ingest([tmp_path / "in.csv"], tmp_path / "data", options=IngestOptions(read=ReadOptions(unjudged="keep")))
    dataset = Dataset.open(tmp_path / "data")
    assert query_dataset(dataset, "FROM unjudged").column_names == ["qid", "doc_id", "weight", "a"]
    assert ask(dataset, "FROM unjudged ORDER BY doc_id") == [("x", "d2", 3.0, 6.0), ("x", "d4", 1.0, None)]
    assert ask(dataset, "SELECT doc_id, a FROM features ORDER BY 1") == [("d1", 5.0), ("d3", None)]


def test_features_called_like_our_columns_keep_their_names(tmp_path):
    (tmp_path / "in.csv").write_text('qid,grade,Row,"a ""b"""\nx,1,5,2\n')
    ingest([tmp_path / "in.csv"], tmp_path / "data")
    answer = query_dataset(Dataset.open(tmp_path / "data"), "FROM features")
    assert answer.to_pylist() == [{"qid": "x", "doc_id": None, "grade": 1, "Row": 5.0, 'a "b"': 2.0}]


REFUSED = [
    "COPY features TO '{out}'",
    "COPY (SELECT 1) TO '{own}'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{own}'",
    "ATTACH '{out}'",
    "EXPORT DATABASE '{out}'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET threads = 1",
    "SET enable_external_access = true",
    "PRAGMA memory_limit='9GB'",
    "CREATE TABLE t AS SELECT 1",
    "DROP VIEW features",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM glob('{out}/*')",
    "SELECT * FROM read_parquet('https://example.org/x.parquet')",
    "SELECT * FROM dataset",
    "SELECT 1; SELECT 2",
    "",
    " -- nothing",
    "SELECT nosuch FROM features",
    "SELECT count( FROM features",
    "SELECT 'x'::INTEGER",
    "SELECT list(range) FROM range(100000000)",
]


def test_what_is_refused_is_one_line_and_changes_nothing(folder, dataset):
    before = files_in(folder)
    own = dataset.features_path(dataset.manifest.shards[0])
    for sql in REFUSED:
        statement = sql.replace("{out}", str(folder / "out")).replace("{own}", str(own).replace("'", "''"))
        with pytest.raises(InputError, match=r"^SQL: ") as caught:
            ask(dataset, statement, memory=512 * 10**6, threads=1)
        assert "\n" not in str(caught.value)
        assert files_in(folder) == before, sql


def test_what_spills_leaves_nothing_behind(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    statement = "SELECT max(n) FROM (SELECT row_number() OVER (ORDER BY hash(range), range) n FROM range(9000000))"
    assert ask(dataset, statement, memory=512 * 10**6, threads=1) == [(9000000,)]
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_named(tmp_path, dataset):
    import shutil

    shutil.copytree(dataset.path, tmp_path / "data")
    copy = Dataset.open(tmp_path / "data")
    file = copy.features_path(copy.manifest.shards[0])
    file.write_bytes(b"\0" * file.stat().st_size)
    with pytest.raises(InputError, match=file.name):
        ask(copy, "SELECT sum(f1) FROM features")


def test_options_out_of_range(dataset):
    with refused(InputError, "memory", "512MB"):
        ask(dataset, "SELECT 1", memory=10**6)
    with refused(InputError, "threads", "0"):
        ask(dataset, "SELECT 1", threads=-1)


def test_the_command_says_the_same_in_three_ways(dataset):
    run = CliRunner()
    statement = "SELECT grade, count(*) AS n FROM features GROUP BY grade ORDER BY grade"
    wanted = [[count.grade, count.rows] for count in dataset.manifest.grades]
    reported = json.loads(run.invoke(app, ["query", os.fspath(dataset.path), statement, "--json"]).stdout)
    assert reported == {"columns": ["grade", "n"], "rows": wanted}
    lines = list(csv.reader(io.StringIO(run.invoke(app, ["query", str(dataset.path), statement, "--csv"]).stdout)))
    assert lines == [["grade", "n"], *([str(value) for value in row] for row in wanted)]
    shown = run.invoke(app, ["query", str(dataset.path), statement]).stdout.splitlines()
    assert [line.split() for line in shown[2:-1] if line.strip()] == [[str(value) for value in row] for row in wanted]
    assert shown[-1] == f"{len(wanted)} rows"
    both = run.invoke(app, ["query", str(dataset.path), statement, "--json", "--csv"])
    assert isinstance(both.exception, InputError)
    nothing = json.loads(run.invoke(app, ["query", str(dataset.path), f"FROM ({statement}) LIMIT 0", "--json"]).stdout)
    assert nothing == {"columns": ["grade", "n"], "rows": []}
