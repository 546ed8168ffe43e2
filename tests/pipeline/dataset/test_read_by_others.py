"""Other programs read a dataset as it is: its rows and nothing else, before and after it has grown or been replaced."""

from __future__ import annotations

import pytest

from rankmill.foundation.errors import DatasetFormatError
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.sql import query_dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.statistics.feature_statistics import statistics_of
from tests.readers import READERS, rows_of
from tests.refusals import refused

WHOLE = ("pandas", "pyarrow.dataset", "pyarrow.parquet")  # those that look into the folders of a folder


def csv(path, numbers):
    """Rows of which some are unjudged and some malformed."""
    lines = [f"q{k % 7},{'' if k % 11 == 0 else 'x' if k % 13 == 0 else k % 4},d{k},{k / 3},{k % 5}\n" for k in numbers]
    path.write_text("qid,grade,doc_id,a,b\n" + "".join(lines))
    return path


@pytest.fixture
def full(tmp_path):
    """A dataset with everything that one can have: pairs, unjudged and malformed rows, rejected pairs, bins."""
    (tmp_path / "p.txt").write_text("q1 d1 d8\nq1 d1 nowhere\n")
    options = IngestOptions(buckets=3, max_rejects=99, read=ReadOptions(unjudged="keep"))
    ingest([csv(tmp_path / "a.csv", range(60))], tmp_path / "out", pairs=[tmp_path / "p.txt"], options=options)
    bin_dataset(Dataset.open(tmp_path / "out"))
    return tmp_path / "out"


def rows(path):
    dataset = Dataset.open(path)
    return rows_of(dataset.rows(None, ("qid", "doc_id", "grade", *dataset.manifest.features)))


def count(path, table):
    return query_dataset(Dataset.open(path), f"SELECT count(*) AS n FROM {table}").column("n")[0].as_py()


def check_read_by_others(path):
    expected = rows(path)
    for name in READERS:
        assert rows_of(READERS[name](path / "features")) == expected, name
    for name in WHOLE:
        assert rows_of(READERS[name](path)) == expected, name


def test_a_dataset_is_read_as_it_is(full):
    names = {path.name for path in full.iterdir()}
    assert names == {"features"} | {
        *("_manifest.json", "_queries", "_statistics", "_pairs", "_unjudged", "_bins", "_rejects.parquet"),
        "_pair_rejects.parquet",
    }
    check_read_by_others(full)


def test_it_has_its_rows_alone_after_it_has_been_replaced(full, tmp_path):
    for step in range(3):
        reader, before = Dataset.open(full), rows(full)
        file = csv(tmp_path / f"{step}.csv", range(100 * step + 100, 100 * step + 130))
        options = IngestOptions(buckets=3, max_rejects=99, overwrite=True)
        ingest([file], full, options=options)
        check_read_by_others(full)
        assert rows_of(reader.rows(None, ("qid", "doc_id", "grade", "a", "b"))) == before  # opened before the change
        reader.verify()
        assert query_dataset(reader, "SELECT count(*) AS n FROM features").to_pydict() == {"n": [len(before)]}
    assert len(list((full / "_replaced").iterdir())) <= 3


def test_each_file_that_is_damaged_cut_or_lost_is_named(full):
    reads = {"features": Dataset.rows, "_pairs": Dataset.pairs, "_statistics": statistics_of}
    for folder in ("features", "_queries", "_statistics", "_pairs", "_unjudged"):
        path = min((full / folder).iterdir())
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])
        for read in (Dataset.verify, reads.get(folder, Dataset.verify)):
            with refused(DatasetFormatError, path, "digest", "ingest"):
                read(Dataset.open(full))
        path.write_bytes(data[:-1])
        with refused(DatasetFormatError, path.name, "shard", "bytes"):
            Dataset.open(full)
        path.unlink()
        with refused(DatasetFormatError, path.name, "shard", "missing"):
            Dataset.open(full)
        path.write_bytes(data)
    Dataset.open(full).verify()
