"""A dataset's binned copy: edges from train only, the same rows, written once, whole or not at all."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rankmill.foundation.errors import ConflictError, DataRejected, DatasetFormatError, InputError
from rankmill.pipeline.bins import write as bin_work
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.bins.layout import lanes_of, n_lanes
from rankmill.pipeline.bins.spec import apply_bins, feature_bins
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, SynthParameters
from rankmill.pipeline.synth import write_synthetic
from tests.bins import bins_of
from tests.refusals import refused
from tests.written import files_in

SPLITS = ("train", "valid", "test")


def make(folder, seed=4, name="dataset", **options):
    """Ingest 40 generated queries, split by hash."""
    source = folder / "judgments.txt"
    parameters = SynthParameters(queries=40, documents_per_query=12, features=14, seed=seed)
    write_synthetic(source, parameters, overwrite=True)
    shares = {"train": 0.6, "valid": 0.2, "test": 0.2}
    ingest([source], folder / name, options=IngestOptions(buckets=4, split=shares, **options))
    return Dataset.open(folder / name)


@pytest.fixture
def dataset(tmp_path):
    return make(tmp_path)


def test_bins_are_the_rows_and_edges_come_from_train(dataset):
    spec = bin_dataset(dataset)
    dataset = Dataset.open(dataset.path)
    assert dataset.binspec().digest == spec.digest
    assert spec.feature_names == dataset.feature_names
    train = np.concatenate(list(dataset.feature_batches("train")))
    for column, bins in zip(train.T, spec.features, strict=True):
        alone = feature_bins(bins.name, np.ascontiguousarray(column))
        assert bins.edges.tobytes() == alone.edges.tobytes()
        np.testing.assert_array_equal(bins.counts, alone.counts)
        assert bins.counts.sum() == len(train)
    for split in SPLITS:
        values = np.concatenate(list(dataset.feature_batches(split)))
        found = bins_of(dataset, split, spec.digest)
        np.testing.assert_array_equal(found, apply_bins(values, spec))
    dataset.verify()


def test_a_file_has_the_lanes_of_a_split_and_nothing_else(dataset):
    """Narrow features share the bytes of a lane; the rest of the last block is zero."""
    spec = bin_dataset(dataset)
    dataset = Dataset.open(dataset.path)
    lanes = lanes_of(spec.n_bins)
    assert {*dataset.bin_set().splits} == {name for name in SPLITS if dataset.queries(name).n_rows}
    for split, digest in dataset.bin_set().splits.items():
        rows = bins_of(dataset, split).astype(int)
        codes = np.zeros((len(rows), -(-n_lanes(lanes) // 16) * 16), dtype=np.uint8)
        for column, (lane, place, _) in zip(rows.T, lanes.tolist(), strict=True):
            codes[:, lane] += (place * column).astype(np.uint8)
        file = dataset.path / "_bins" / spec.digest / f"{digest}.bins"
        assert file.read_bytes() == b"".join(
            np.split(codes[:, b : b + 16], 1)[0].tobytes() for b in range(0, codes.shape[1], 16)
        )


def test_what_is_written_to_a_map_never_reaches_the_file(dataset):
    bin_dataset(dataset)
    dataset = Dataset.open(dataset.path)
    before = files_in(dataset.path)
    words = dataset.bin_words("train")
    words[:] = 7
    assert files_in(dataset.path) == before
    assert (Dataset.open(dataset.path).bin_words("train") != 7).any()


def test_a_second_run_does_nothing(dataset):
    spec = bin_dataset(dataset)
    before = {path: path.stat().st_mtime_ns for path in dataset.path.rglob("*") if path.is_file()}
    assert bin_dataset(Dataset.open(dataset.path)).digest == spec.digest
    assert bin_dataset(dataset).digest == spec.digest  # opened before the bins were made
    assert {path: path.stat().st_mtime_ns for path in dataset.path.rglob("*") if path.is_file()} == before


def test_another_max_bin_is_a_second_copy_and_the_last_one_asked_for_is_the_newest(dataset):
    fine, coarse = bin_dataset(dataset, 255), bin_dataset(dataset, 15)
    assert max(len(bins.edges) for bins in coarse.features) == 14
    assert Dataset.open(dataset.path).binspec().digest == coarse.digest
    bin_dataset(Dataset.open(dataset.path), 255)
    again = Dataset.open(dataset.path)
    assert [entry.max_bin for entry in again.manifest.bins] == [15, 255]
    assert again.binspec().digest == fine.digest
    assert again.binspec(coarse.digest).max_bin == 15


def test_two_that_bin_at_once_both_stand(dataset):
    with ThreadPoolExecutor(3) as threads:
        specs = list(threads.map(lambda max_bin: bin_dataset(dataset, max_bin), (255, 15, 255)))
    again = Dataset.open(dataset.path)
    assert {entry.max_bin for entry in again.manifest.bins} == {15, 255}
    assert {entry.binspec for entry in again.manifest.bins} == {spec.digest for spec in specs}
    assert {path.name for path in (dataset.path / "_bins").iterdir()} == {spec.digest for spec in specs}
    again.verify()


@pytest.mark.parametrize("name", ["binspec.json", "shard"])
@pytest.mark.parametrize("damage", [b"{}", None])
def test_lost_or_damaged_bins_are_made_again(dataset, name, damage):
    spec = bin_dataset(dataset)
    before = files_in(dataset.path)
    dataset = Dataset.open(dataset.path)
    file = dataset.path / "_bins" / spec.digest / name
    if name == "shard":
        file = file.with_name(f"{dataset.bin_set().splits['valid']}.bins")
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage)
    assert bin_dataset(dataset).digest == spec.digest
    assert files_in(dataset.path) == before


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_damaged_bins_are_not_read(dataset):
    spec = bin_dataset(dataset, 31)
    dataset = Dataset.open(dataset.path)
    splits = dataset.bin_set().splits
    first, second = (dataset.path / "_bins" / spec.digest / f"{splits[name]}.bins" for name in ("train", "valid"))
    whole = first.read_bytes(), second.read_bytes()

    def unreadable():
        for read in (lambda opened: opened.bin_words("train"), Dataset.verify):
            with refused(DatasetFormatError, first, f"rankmill data bin {dataset.path} --max-bin 31"):
                read(Dataset.open(dataset.path))

    flip(first)
    unreadable()
    first.write_bytes(whole[0][:-9])
    unreadable()
    first.write_bytes(whole[1])
    second.write_bytes(whole[0])
    unreadable()
    first.unlink()
    unreadable()


def test_edges_that_were_changed_are_not_read(dataset):
    file = dataset.path / "_bins" / bin_dataset(dataset).digest / "binspec.json"
    content = json.loads(file.read_text())
    content["features"][0]["minimum"] = -1.0
    for data in (json.dumps(content).encode(), b"\xff"):
        file.write_bytes(data)
        with pytest.raises(DatasetFormatError, match=r"binspec\.json: "):
            Dataset.open(dataset.path).binspec()


def test_bins_of_replaced_data_go_when_the_new_ones_stand(tmp_path, dataset):
    old = bin_dataset(dataset)
    changed = make(tmp_path, seed=5, overwrite=True)
    with refused(InputError, "rankmill data bin"):
        changed.binspec()
    new = bin_dataset(changed)
    assert new.digest != old.digest
    assert [path.name for path in (dataset.path / "_bins").iterdir()] == [new.digest]


def test_a_failure_leaves_the_dataset_as_it_was(dataset, monkeypatch):
    before = files_in(dataset.path)
    calls = []

    def fail(*arguments):
        calls.append(arguments)
        if len(calls) > 2:
            raise OSError(28, "No space left on device")
        return write(*arguments)

    write = bin_work.codes_of
    monkeypatch.setattr(bin_work, "codes_of", fail)
    with pytest.raises(OSError, match="No space left"):
        bin_dataset(dataset)
    assert files_in(dataset.path) == before


def test_data_replaced_meanwhile_are_noticed(tmp_path, dataset):
    changed = make(tmp_path, seed=5, overwrite=True)
    with refused(ConflictError, "replaced"):
        bin_dataset(dataset)
    assert not changed.manifest.bins


def test_max_bin_out_of_range_and_no_training_rows(dataset):
    for max_bin in (14, 256):
        with refused(InputError, "max_bin", "15", "255", max_bin):
            bin_dataset(dataset, max_bin)
    manifest = dataset.path / "_manifest.json"
    content = json.loads(manifest.read_text())
    del content["splits"]["train"]
    manifest.write_text(json.dumps(content))
    with refused(DataRejected, "train", "rows"):
        bin_dataset(Dataset.open(dataset.path))
