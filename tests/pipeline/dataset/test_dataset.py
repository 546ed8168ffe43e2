"""Reading a dataset back, and saying what is wrong with a damaged one."""

import fcntl
import hashlib
import json

import numpy as np
import pytest

from rankmill import __version__
from rankmill.foundation.errors import DatasetFormatError, InputError
from rankmill.foundation.storage import staging as storage_staging
from rankmill.foundation.storage.publish import publish_folder
from rankmill.foundation.storage.staging import staging_folder
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.sql import query_dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.statistics.feature_statistics import statistics_of
from tests.readers import READERS, rows_of
from tests.refusals import refused


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dataset")
    rng = np.random.default_rng(3)
    lines = [f"{rng.integers(3)} qid:{rng.integers(60)} 1:{k} 2:{rng.random()} #docid = d{k}\n" for k in range(900)]
    (folder / "in.txt").write_text("".join(lines))
    shares = {"train": 0.5, "valid": 0.3, "test": 0.2}
    ingest([folder / "in.txt"], folder / "out", options=IngestOptions(split=shares, buckets=5))
    return Dataset.open(folder / "out")


@pytest.mark.parametrize("split", ["train", "valid", "test", None])
def test_everything_that_is_read_is_in_one_order(dataset, split):
    queries = dataset.queries(split)
    rows = dataset.rows(split, ["f1", "qid", "doc_id", "grade"])
    assert rows.column_names == ["f1", "qid", "doc_id", "grade"]
    assert len(rows) == queries.n_rows == queries.starts[-1] > 0
    assert np.repeat(queries.qid.to_pylist(), np.diff(queries.starts)).tolist() == rows["qid"].to_pylist()
    assert [f"d{int(x)}" for x in rows["f1"].to_pylist()] == rows["doc_id"].to_pylist()
    assert (dataset.feature_column("f1", split) == rows["f1"].to_numpy()).all()
    for batch_rows in (7, 65536):
        batches = list(dataset.feature_batches(split, batch_rows=batch_rows))
        assert max(map(len, batches)) <= batch_rows
        assert all(batch.flags.c_contiguous and batch.dtype == np.float32 for batch in batches)
        assert (np.concatenate(batches)[:, 0] == rows["f1"].to_numpy()).all()
    swapped = np.concatenate(list(dataset.feature_batches(split, ["f2", "f1"])))
    assert (swapped[:, ::-1] == np.concatenate(batches)).all()


def test_a_split_that_is_not_there_is_empty(tmp_path):
    (tmp_path / "in.txt").write_text("1 qid:1 1:1\n")
    ingest([tmp_path / "in.txt"], tmp_path / "out")
    dataset = Dataset.open(tmp_path / "out")
    assert len(dataset.queries("test")) == dataset.queries("test").n_rows == 0
    assert dataset.rows("test", ["qid", "grade", "f1"]).num_rows == 0
    assert list(dataset.feature_batches("test")) == []
    assert dataset.feature_column("f1", "test").shape == (0,)


def test_unknown_names_are_met_with_the_nearest_known_one(dataset):
    for call, message in (
        (lambda: dataset.queries("vaild"), ("split", "'vaild'", "'valid'")),
        (lambda: dataset.rows("train", ["grades"]), ("column", "'grades'", "'grade'")),
        (lambda: dataset.feature_column("f11"), ("feature", "'f11'", "'f1'")),
        (dataset.binspec, f"rankmill data bin {dataset.path}"),
    ):
        with refused(InputError, message):
            call()


def test_what_is_no_dataset_or_a_damaged_one(tmp_path):
    (tmp_path / "in.txt").write_text("1 qid:1 1:1\n0 qid:2 1:2\n")
    out = tmp_path / "out"
    ingest([tmp_path / "in.txt"], out)
    manifest = (out / "_manifest.json").read_bytes()

    with refused(InputError, "gone", "rankmill data ingest SRC -o"):
        Dataset.open(tmp_path / "gone")
    with refused(InputError, "_manifest.json"):
        Dataset.open(tmp_path)
    with refused(InputError, "in.txt", "data ingest", "-o", "in.dataset"):
        Dataset.open(tmp_path / "in.txt")

    def damaged(change):
        data = json.loads(manifest)
        change(data)
        (out / "_manifest.json").write_text(json.dumps(data))
        with pytest.raises(DatasetFormatError) as caught:
            Dataset.open(out)
        return str(caught.value).removeprefix(f"{out / '_manifest.json'}: ")

    assert damaged(lambda data: data.update(format=0)) == (
        f"dataset of format 0, but rankmill {__version__} reads format 1; ingest the data again"
    )
    assert damaged(lambda data: data.pop("format")) == "not a manifest of a dataset; ingest the data again"
    assert "damaged at shards.0.features: " in damaged(
        lambda data: data["shards"][0].update(features="../../etc/passwd")
    )
    assert "damaged at more: " in damaged(lambda data: data.update(more=1))
    assert "damaged at rows: " in damaged(lambda data: data.update(rows="3"))
    (out / "_manifest.json").write_bytes(manifest[:40])
    with refused(DatasetFormatError, "manifest"):
        Dataset.open(out)

    (out / "_manifest.json").write_bytes(manifest)
    dataset = Dataset.open(out)
    shard = dataset.features_path(dataset.manifest.shards[0])
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    for read in (
        Dataset.verify,
        Dataset.rows,
        lambda dataset: dataset.feature_column("f1"),
        lambda dataset: list(dataset.feature_batches()),
        lambda dataset: list(dataset.shard_batches(dataset.manifest.shards[0])),
    ):
        with refused(DatasetFormatError, shard, "digest", "ingest"):
            read(Dataset.open(out))
    shard.write_bytes(data[:-1])
    with refused(DatasetFormatError, "shard", "bytes"):
        Dataset.open(out)
    shard.unlink()
    with refused(DatasetFormatError, "shard", "missing"):
        Dataset.open(out)


def test_a_split_that_was_changed_is_not_read(tmp_path):
    (tmp_path / "in.txt").write_text("1 qid:1 1:1\n0 qid:2 1:2\n")
    ingest([tmp_path / "in.txt"], tmp_path / "out")
    dataset = Dataset.open(tmp_path / "out")
    queries = dataset.queries_path(dataset.manifest.shards[0])
    queries.write_bytes(queries.read_bytes().replace(b"train", b"valid"))
    with refused(DatasetFormatError, queries.name, "differ"):
        dataset.queries("train")


def test_a_shard_that_has_its_digest_but_cannot_be_decoded_is_named(tmp_path):
    (tmp_path / "in.txt").write_text("1 qid:1 1:1\n")
    ingest([tmp_path / "in.txt"], tmp_path / "out", options=IngestOptions(buckets=1))
    dataset = Dataset.open(tmp_path / "out")
    (shard,) = dataset.manifest.shards
    for data in (b"", dataset.features_path(shard).read_bytes()[:-1], b"PAR1" * 20):
        other = shard.model_copy(update={"features": hashlib.sha256(data).hexdigest()})
        dataset.features_path(other).write_bytes(data)
        broken = Dataset(dataset.path, dataset.manifest.model_copy(update={"shards": [other]}))
        for read in (broken.rows, lambda: list(broken.feature_batches())):  # noqa: B023  called at once
            with refused(DatasetFormatError, f"{other.features}.parquet", "decoded"):
                read()


def test_a_shard_is_hashed_once(dataset, monkeypatch):
    hashed = []
    monkeypatch.setattr(
        "rankmill.pipeline.dataset.stored_shards.file_digest", lambda file: hashed.append(file) or file.stem
    )
    opened = Dataset.open(dataset.path)
    for _ in range(3):
        opened.rows("train")
        list(opened.feature_batches())
    assert len(hashed) == len(set(hashed)) == 2 * len(opened.manifest.shards)


def test_a_folder_is_published_by_a_rename(tmp_path):
    target = tmp_path / "a" / "b" / "target*"
    with staging_folder(target) as staging:
        (staging / "tree" / "sub").mkdir(parents=True)
        (staging / "tree" / "sub" / "x").write_text("1")
        publish_folder(staging / "tree", target)
    assert (target / "sub" / "x").read_text() == "1"
    assert [file.name for file in target.parent.iterdir()] == ["target*"]
    with pytest.raises(FileNotFoundError), staging_folder(tmp_path / "c" / "d") as staging:
        (staging / "no" / "such").mkdir()
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_a_sweeper_leaves_a_folder_alone_that_is_being_made(tmp_path, monkeypatch):
    target, lock = tmp_path / "target", fcntl.flock

    def sweep_first(handle, how):
        if how == fcntl.LOCK_EX:  # the owner is about to lock
            storage_staging._sweep_abandoned(target)
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    with staging_folder(target) as staging:
        (staging / "x").write_text("1")
        storage_staging._sweep_abandoned(target)
        assert sorted(file.name for file in staging.iterdir()) == [storage_staging.LOCK_NAME, "x"]
    assert list(tmp_path.iterdir()) == []


# ---- other programs read a dataset as it is, before and after it has grown or been replaced --------------------------

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
