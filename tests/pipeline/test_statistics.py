"""What is counted of the columns while they are written, a shard at a time."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from typer.testing import CliRunner

from rankmill.foundation.errors import DatasetFormatError
from rankmill.pipeline.binning import bin_dataset
from rankmill.pipeline.cli import app
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.grouping import settled_bucket as layout
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions, SynthParameters
from rankmill.pipeline.statistics.describe_dataset import describe
from rankmill.pipeline.statistics.feature_statistics import (
    ColumnCollector,
    FeatureFacts,
    QueryCounts,
    Statistics,
    statistics_of,
)
from rankmill.pipeline.synth import write_synthetic
from tests import naive_statistics

law = settings(deadline=None)
SOME = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, np.nan, np.inf, -np.inf, 1e-45]) | st.floats(width=32)
COLUMNS = hnp.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(0, 40)), elements=SOME)


@law
@given(COLUMNS, st.lists(st.integers(1, 6), min_size=40, max_size=40), st.lists(st.integers(0, 40), max_size=4))
def test_what_is_counted_is_what_is_there_in_any_pieces(columns, sizes, cuts):
    rows = columns.shape[1]
    queries = [f"q{number}" for number, size in enumerate(sizes) for _ in range(size)][:rows]
    starts = np.array([row for row in range(rows) if row == 0 or queries[row] != queries[row - 1]], dtype=np.int64)
    collector = ColumnCollector(len(columns), starts)
    for piece in np.split(columns, sorted(cut % (rows + 1) for cut in cuts), axis=1):
        collector.add(np.ascontiguousarray(piece))
    names = tuple(f"f{number}" for number in range(len(columns)))
    for name, column, found in zip(names, columns.tolist(), collector.table(names).to_pylist(), strict=True):
        assert found == {"feature": name, **naive_statistics.facts(column, queries)}
        assert str(found["minimum"]) != "-0.0"
    assert collector.missing == np.isnan(columns).sum()


@law
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=8))
def test_queries_that_teach_little(queries):
    grade = np.array([grade for query in queries for grade in query], dtype=np.int32)
    starts = np.cumsum([0, *map(len, queries)])[:-1].astype(np.int64)
    found = QueryCounts.of(grade, starts)
    assert found.one_document == sum(len(query) == 1 for query in queries)
    assert found.one_grade == sum(len(query) > 1 and len(set(query)) == 1 for query in queries)


def test_columns_that_differ_in_signs_or_places_alone_have_other_digests():
    one = np.ones((1, 64), dtype=np.float32)
    seen = set()
    for first in range(8):
        for second in range(first, 8):
            column = one.copy()
            column[0, [first, second]] *= -1
            collector = ColumnCollector(1, np.array([0]))
            collector.add(column)
            seen.add(collector.table(("x",)).column("digest")[0].as_py())
    assert len(seen) == 36


TEXT = """\
2 qid:a 1:1 2:1 3:7 4:5 6:-1 7:1 8:nan
0 qid:a 1:2 2:2 3:7 4:5 6:0 7:inf 8:3
0 qid:b 1:3 2:3 3:7 4:6 6:0 7:1
0 qid:b 1:3 2:3 3:7 4:6 6:-0 7:1
1 qid:c 1:4 2:4 3:7 4:8 6:nan 7:1
"""


def make(folder: Path, text: str = TEXT, name: str = "data", **options: object) -> Dataset:
    (folder / f"{name}.txt").write_text(text)
    read = ReadOptions(absent="missing", n_features=8)
    ingest([folder / f"{name}.txt"], folder / name, options=IngestOptions(read=read, buckets=3, **options))
    return Dataset.open(folder / name)


def test_pieces_and_order_do_not_show_in_the_files(tmp_path, monkeypatch):
    write_synthetic(tmp_path / "in.txt", SynthParameters(queries=40, documents_per_query=30, features=12, seed=2))
    files = {}
    for name, group_bytes, blocks in (("one", 64 << 20, 1 << 20), ("other", 4 * 12 * 16, 4096)):
        monkeypatch.setattr(layout, "ROW_GROUP_BYTES", group_bytes)
        ingest([tmp_path / "in.txt"], tmp_path / name, options=IngestOptions(buckets=4, block_size=blocks))
        files[name] = {file.name: file.read_bytes() for file in (tmp_path / name / "_statistics").iterdir()}
    assert files["one"] == files["other"]
    dataset = Dataset.open(tmp_path / "other")
    assert {shard.statistics.digest for shard in dataset.manifest.shards} == {name[:64] for name in files["one"]}
    for shard in dataset.manifest.shards:
        (columns,) = (np.concatenate(list(dataset.shard_batches(shard))).T,)
        queries = dataset.read(dataset.features_path(shard), ["qid"]).column("qid").to_pylist()
        for column, row in zip(columns.tolist(), dataset.statistics_table(shard).to_pylist(), strict=True):
            assert row == {"feature": row["feature"], **naive_statistics.facts(column, queries)}


def test_lost_and_damaged_files_are_named(tmp_path):
    dataset = make(tmp_path)
    file = next((dataset.path / "_statistics").iterdir())
    data = file.read_bytes()
    file.write_bytes(bytes(reversed(data)))
    with pytest.raises(DatasetFormatError, match=file.name):
        statistics_of(Dataset.open(dataset.path))
    with pytest.raises(DatasetFormatError, match=file.name):
        dataset.verify()
    file.unlink()
    with pytest.raises(DatasetFormatError, match=file.name):
        Dataset.open(dataset.path)


def test_describe_needs_no_columns_where_there_are_too_many(tmp_path, monkeypatch):
    dataset = make(tmp_path)
    bin_dataset(dataset)
    whole = describe(Dataset.open(dataset.path))
    monkeypatch.setattr("rankmill.pipeline.statistics.describe_dataset._MOST_COUNTED", 10)
    monkeypatch.setattr(Dataset, "column_batches", lambda *_: pytest.fail("reads columns"))
    quick = describe(Dataset.open(dataset.path))
    assert [feature.distinct for feature in quick.features] == [None] * 8
    assert [feature.remarks for feature in quick.features] == [feature.remarks for feature in whole.features]
    assert [feature.bins for feature in quick.features] == [feature.bins for feature in whole.features]
    assert "-" in quick.render()


def test_ingest_tells_what_teaches_nothing(tmp_path):
    (tmp_path / "in.txt").write_text(TEXT)
    arguments = ["ingest", os.fspath(tmp_path / "in.txt"), "--absent", "missing", "--n-features", "8"]
    told = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "a")]).stdout
    assert "  remarks   all missing: f5; constant: f3; the same: f2 as f1; infinite values: f7\n" in told
    assert "            queries: 1 of one document, 1 of one grade\n" in told
    told = json.loads(CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "b"), "--json"]).stdout)
    assert told["remarks"][0].endswith("; infinite values: f7")
    assert told["statistics"]["one_document"] == 1
    assert told["statistics"]["features"][6]["maximum"] == "inf"
    assert told["statistics"]["features"][1]["same_as"] == "f1"


def test_ingest_tells_that_nothing_can_be_trained_on(tmp_path):
    (tmp_path / "in.txt").write_text(TEXT)
    without = ingest([tmp_path / "in.txt"], tmp_path / "a", options=IngestOptions(split={"valid": 0.5, "test": 0.5}))
    assert without.remarks[-1] == "no query is in the train split: training needs one"
    assert without.to_json()["remarks"] == without.remarks
    assert without.remarks[-1] in without.render()
    whole = ingest([tmp_path / "in.txt"], tmp_path / "b")
    assert whole.remarks == without.remarks[:-1]


def test_amounts_that_were_taken_for_grades_are_told_and_not_all_of_them_listed(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{grade} qid:{grade % 7} 1:{grade}\n" for grade in range(31, -1, -1)))
    few = ingest([path], tmp_path / "few")
    assert few.remarks == []
    path.write_text(path.read_text() + "4986 qid:a 1:1\n31 qid:a 1:2\n")
    found = ingest([path], tmp_path / "many")
    assert found.remarks == [
        "grades up to 4,986: amounts are labels (a column label, columns={'label': NAME}; labels='real' for LETOR text)"
    ]
    listed = next(line for line in found.render().splitlines() if line.startswith("  grades"))
    assert listed.count("%") == 12
    assert "11: 1 (2.9%) and 21 more" in listed
    assert len(found.to_json()["grades"]) == 33
    described = describe(Dataset.open(tmp_path / "many"))
    rows = [line.split() for line in described.render().splitlines() if "grade" in line]
    assert [row[1] for row in rows if row[0] == "grade"] == [str(grade) for grade in range(12)]
    assert ["and", "21", "more", "grades", "22", "(64.7%)"] in rows
    assert set(described.splits[0].grades) == {*range(32), 4986}


def test_nothing_is_said_where_there_is_nothing_to_say():
    plain = FeatureFacts("a", 0.0, 1.0, 0, 3, 4, None)
    assert Statistics((plain,), 0, 0).remarks == []
    many = tuple(FeatureFacts(f"f{i}", 1.0, 1.0, 0, 0, 0, None if not i else "f0") for i in range(30))
    assert Statistics(many, 0, 2).remarks == [
        "constant: f0, f1, f2, f3, f4 and 25 more",
        "queries: 2 of one grade",
    ]
