"""Bins mapped from a cache file: the same arrays and models as from memory, whatever happened to the file."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numba
import numpy as np
import pytest

from rankmill.cli import execute
from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.pipeline.binning import bin_dataset
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, SynthParameters
from rankmill.pipeline.synth import write_synthetic
from rankmill.trainer import bin_cache
from rankmill.trainer.bin_cache import CachedBins
from rankmill.trainer.layout import BlockedBins
from rankmill.trainer.train_on_dataset import plan_of, train
from rankmill.trainer.training_options import TrainingOptions
from tests.refusals import refused
from tests.trainer.fixed import fixed

ROOT = Path(__file__).resolve().parents[2]
N_BINS = np.arange(200, 240, dtype=np.int32)
BINS = np.random.default_rng(5).integers(0, N_BINS, size=(300, 40)).astype(np.uint8)
SMALL = fixed(n_rounds=4, max_leaves=5)


def cache_in(folder: Path, **changes) -> CachedBins:
    fields = {"dataset_digest": "d" * 64, "binspec_digest": "b" * 64, "split": "train", "n_rows": 300, "n_features": 40}
    return CachedBins(folder=folder, **(fields | changes))


def batches(rows=70):
    return [BINS[i : i + rows] for i in range(0, len(BINS), rows)]


def load(cache: CachedBins, rows=70) -> tuple[BlockedBins, list[str], bool]:
    """What is loaded, what is said, and whether the batches were asked for."""
    said, asked = [], []

    def read():
        asked.append(1)
        return batches(rows)

    return cache.load(read, N_BINS, said.append), said, bool(asked)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Dataset:
    folder = tmp_path_factory.mktemp("data")
    write_synthetic(folder / "j.txt", SynthParameters(queries=60, documents_per_query=10, features=21, seed=3))
    ingest([folder / "j.txt"], folder / "d", options=IngestOptions(split={"train": 0.7, "valid": 0.3}, buckets=3))
    bin_dataset(Dataset.open(folder / "d"), 63)
    return Dataset.open(folder / "d")


def never(*_: object, **__: object) -> None:
    raise AssertionError("must not be called")


@pytest.mark.parametrize("width", [8, 16, 32, 48])
@pytest.mark.parametrize("rows", [1, 70, 300])
def test_the_map_is_what_memory_would_hold(tmp_path, width, rows):
    held = BlockedBins.from_batches(batches(), 300, N_BINS, width)
    cache = cache_in(tmp_path, width=width)
    for first in (True, False):
        mapped, said, asked = load(cache, rows)
        assert np.array_equal(mapped.words, held.words)
        assert np.array_equal(mapped.n_bins, held.n_bins)
        assert (mapped.n_rows, mapped.width, mapped.n_features) == (300, width, 40)
        assert (said, asked) == ([], first)
        # no second specialisation of any kernel
        assert numba.typeof(mapped.words) == numba.typeof(held.words)
        assert numba.typeof(mapped.lanes) == numba.typeof(held.lanes)
    data = cache.path.read_bytes()
    n_bytes = held.words.nbytes
    assert (len(data) - n_bytes) % 4096 == 0
    assert data[-n_bytes:] == held.words.tobytes()
    assert json.loads(data[:-n_bytes])["shape"] == [-(-40 // width), 300, width]


def test_what_is_written_to_the_array_stays_in_this_process(tmp_path):
    cache = cache_in(tmp_path)
    mapped, _, _ = load(cache)
    before = cache.path.read_bytes()
    mapped.words[:] = 0
    assert cache.path.read_bytes() == before
    again, said, _ = load(cache)
    assert again.words.any()
    assert not said


def test_the_model_is_the_same_from_memory_and_from_the_map(dataset, tmp_path):
    expected = train(dataset, SMALL, TrainingOptions(n_threads=1)).forest.to_bytes()
    for n_threads in (1, 2, 1):
        assert (
            train(dataset, SMALL, TrainingOptions(n_threads=n_threads, bin_cache=tmp_path)).forest.to_bytes()
            == expected
        )
    assert len(list(tmp_path.iterdir())) == 1


def test_a_cache_that_is_there_is_used_instead_of_the_binned_shards(dataset, tmp_path, monkeypatch):
    train(dataset, SMALL, TrainingOptions(n_threads=1, bin_cache=tmp_path))
    read = Dataset.bin_batches

    def only_valid(self, split, *arguments, **more):
        assert split == "valid"
        return read(self, split, *arguments, **more)

    monkeypatch.setattr(Dataset, "bin_batches", only_valid)
    train(dataset, SMALL, TrainingOptions(n_threads=1, bin_cache=tmp_path))


def flip(at: int):
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    return damage


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flip(3), "of another format"),
        (flip(40), "digest does not match"),  # in the digest itself
        (flip(150), "of another format"),
        (flip(4095), "of another format"),
        (flip(4096), "digest does not match"),
        (flip(-1), "digest does not match"),
        (lambda path: os.truncate(path, 5000), "has 5,000 bytes instead of 18,496"),
        (lambda path: os.truncate(path, 0), "has 0 bytes"),
        (lambda path: os.truncate(path, 20_000), "has 20,000 bytes"),
        (lambda path: path.write_bytes(b"x" * 18_496), "of another format"),
    ],
)
def test_a_damaged_file_is_built_anew_with_one_line(tmp_path, damage, reason):
    cache = cache_in(tmp_path)
    load(cache)
    whole = cache.path.read_bytes()
    assert len(whole) == 18_496
    damage(cache.path)
    mapped, said, asked = load(cache)
    assert asked
    assert len(said) == 1
    assert said[0].startswith(f"{cache.path}: ")
    assert reason in said[0]
    assert said[0].endswith("; rebuilding the bin cache")
    assert np.array_equal(mapped.words, BlockedBins.from_batches(batches(), 300, N_BINS).words)
    assert cache.path.read_bytes() == whole
    assert list(tmp_path.iterdir()) == [cache.path]


@pytest.mark.parametrize(
    "other", [{"dataset_digest": "e" * 64}, {"binspec_digest": "c" * 64}, {"split": "valid"}, {"width": 32}]
)
def test_another_key_is_another_file_and_the_old_one_stays(tmp_path, other):
    cache, second = cache_in(tmp_path), cache_in(tmp_path, **other)
    load(cache)
    _, said, asked = load(second)
    assert (said, asked) == ([], True)
    assert len(list(tmp_path.iterdir())) == 2
    # even under the right name it is not taken for the other
    cache.path.replace(second.path)
    assert len(load(second)[1]) == 1


def test_digests_that_begin_alike_are_told_apart(tmp_path):
    load(cache_in(tmp_path))
    _, said, asked = load(cache_in(tmp_path, dataset_digest="d" * 63 + "e"))
    assert asked
    assert "of another format, dataset or binning" in said[0]


def test_other_bin_counts_are_not_taken(tmp_path):
    cache = cache_in(tmp_path)
    load(cache)
    said = []
    cache.load(batches, N_BINS + 1, said.append)
    assert len(said) == 1


def test_a_file_is_replaced_and_never_changed_under_a_reader(tmp_path):
    cache = cache_in(tmp_path)
    mapped, _, _ = load(cache)
    words, before = mapped.words.copy(), cache.path.stat().st_ino
    cache.load(lambda: [np.zeros_like(BINS)], N_BINS + 1, lambda _: None)
    assert cache.path.stat().st_ino != before
    assert np.array_equal(mapped.words, words)


def test_two_that_build_at_once_both_succeed(tmp_path):
    cache = cache_in(tmp_path)
    held = BlockedBins.from_batches(batches(), 300, N_BINS)
    inner = []

    def slow():
        yield BINS[:100]
        inner.append(load(cache))  # starts and ends while the other one is half-way
        yield BINS[100:]

    said = []
    outer = cache.load(slow, N_BINS, said.append)
    assert inner[0][2]
    assert said == inner[0][1] == []
    for mapped in (outer, inner[0][0], load(cache)[0]):
        assert np.array_equal(mapped.words, held.words)
    assert list(tmp_path.iterdir()) == [cache.path]


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_where_nothing_can_be_written_the_bins_are_held_in_memory(tmp_path, monkeypatch, code):
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code), str(tmp_path))

    monkeypatch.setattr(bin_cache, "staging_folder", refuse)
    held, said, _ = load(cache_in(tmp_path))
    assert np.array_equal(held.words, BlockedBins.from_batches(batches(), 300, N_BINS).words)
    assert said == [
        f"{tmp_path}: cannot write the bin cache ({os.strerror(code)}); holding 0 MB of bins in memory instead"
    ]


def test_a_file_that_is_there_is_mapped_where_nothing_can_be_written(tmp_path, monkeypatch):
    cache = cache_in(tmp_path)
    load(cache)
    monkeypatch.setattr(bin_cache, "staging_folder", never)
    _, said, asked = load(cache)
    assert (said, asked) == ([], False)


def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("this user may write everywhere")
    cache = cache_in(tmp_path / "below")
    assert not cache.can_be_mapped()
    assert "of bins in memory instead" in load(cache)[1][0]


def test_a_full_disk_is_an_error_that_leaves_nothing(tmp_path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left") as caught:
        load(cache_in(tmp_path / "cache"))
    assert Path(caught.value.filename).parent == tmp_path / "cache"
    assert list(tmp_path.iterdir()) == []


def test_writes_that_stop_short_are_continued(tmp_path, monkeypatch):
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, offset: write(handle, data[:1000], offset))
    cache = cache_in(tmp_path)
    load(cache)
    assert load(cache)[1:] == ([], False)


def test_bins_that_do_not_fit_leave_nothing(tmp_path):
    with refused(TrainingDataRejected, "bins", "300", "299"):
        cache_in(tmp_path / "a" / "cache").load(lambda: [BINS[:-1]], N_BINS, never)
    assert list(tmp_path.iterdir()) == []


def test_it_is_built_and_checked_in_bounded_memory(tmp_path):
    n = 200_000
    batch = np.repeat(BINS[:1], 2_000, axis=0)
    cache = cache_in(tmp_path, n_rows=n)
    for _ in ("build", "check"):
        tracemalloc.start()
        try:
            n_bytes = cache.load(lambda: (batch for _ in range(n // len(batch))), N_BINS, never).words.nbytes
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < n_bytes / 4
        assert n_bytes > 9_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_more_than_all_memory_can_be_mapped(tmp_path):
    """Linux refuses a private writeable map of more than memory and swap, unless nothing is reserved for it."""
    if Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2":
        pytest.skip("this machine reserves memory for every map")
    sizes = {line.split(":")[0]: line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines()}
    memory = (int(sizes["MemTotal"]) + int(sizes["SwapTotal"])) * 1024
    n_blocks = memory // (16 * 1_000_000_000) + 1
    cache = cache_in(tmp_path, n_rows=1_000_000_000, n_features=16 * n_blocks)
    n_bytes = 16 * n_blocks * 1_000_000_000
    with (tmp_path / "sparse").open("xb+") as file:
        try:
            file.truncate(4096 + n_bytes)
        except OSError as error:
            pytest.skip(f"no file of {n_bytes:,} bytes here, not even a sparse one: {error}")
        mapped = cache._mapped(file.fileno(), 4096, np.full(16 * n_blocks, 200, np.int32))
        assert mapped.words[-1, -1, -1] == 0
        assert mapped.words.nbytes > memory


def test_a_file_is_no_folder(tmp_path, dataset):
    (tmp_path / "file").write_text("mine")
    for refuse in (
        lambda: train(dataset, SMALL, TrainingOptions(bin_cache=tmp_path / "file")),
        lambda: plan_of(dataset, SMALL, TrainingOptions(bin_cache=tmp_path / "file")),
    ):
        with refused(InvalidParameter, "bin_cache", "folder"):
            refuse()
    assert (tmp_path / "file").read_text() == "mine"


def test_without_a_listener_a_damaged_cache_is_a_warning(dataset, tmp_path):
    train(dataset, SMALL, TrainingOptions(n_threads=1, bin_cache=tmp_path))
    (file,) = tmp_path.iterdir()
    flip(-1)(file)
    with pytest.warns(UserWarning, match="rebuilding the bin cache") as caught:
        train(dataset, SMALL, TrainingOptions(n_threads=1, bin_cache=tmp_path))
    assert [warning.filename for warning in caught] == [__file__]


def test_the_plan_counts_mapped_bins_apart(dataset, tmp_path, monkeypatch):
    held = plan_of(dataset, SMALL)
    assert "mapped" not in held.render()
    mapped = plan_of(dataset, SMALL, TrainingOptions(bin_cache=tmp_path / "new"))
    assert mapped.bin_bytes == held.bin_bytes == 32 * dataset.queries("train").n_rows
    assert held.bytes_needed - mapped.bytes_needed == held.bin_bytes
    assert f"; bins 0 MB mapped from {tmp_path / 'new'}; about " in mapped.render()
    assert "; bins 98 MB mapped from D; " in replace(mapped, train_rows=3_062_500, mapped_from=Path("D")).render()
    assert not (tmp_path / "new").exists()
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK and Path(path).exists())
    assert plan_of(dataset, SMALL, TrainingOptions(bin_cache=tmp_path / "new")) == held
    monkeypatch.undo()
    train(dataset, SMALL, TrainingOptions(n_threads=1, bin_cache=tmp_path / "new"))
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK and Path(path).exists())
    assert plan_of(dataset, SMALL, TrainingOptions(bin_cache=tmp_path / "new")) == mapped


def test_the_command_maps_the_bins(dataset, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["train", str(dataset.path), "--name", "web", "--n-rounds", "3", "--max-leaves", "3", "--json"]
    facts = []
    for options in ([], ["--bin-cache", "c"], ["--bin-cache", "c"]):
        assert execute([*command, *options]) == 0
        out, err = capsys.readouterr()
        facts.append(json.loads(out)["sha256"])
        assert ("mapped from c" in err) == bool(options)
        assert "built anew" not in err
    assert len(set(facts)) == 1
    (file,) = Path("c").iterdir()
    flip(5000)(file)
    assert execute([*command, "--bin-cache", "c"]) == 0
    assert capsys.readouterr().err.count("its digest does not match; rebuilding the bin cache") == 1
    assert execute([*command, "--bin-cache", str(file)]) == 2


GROWTH = """
import sys
from pathlib import Path

from rankmill.pipeline.dataset import Dataset
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.train_on_dataset import plan_of, train
from rankmill.trainer.training_options import TrainingOptions


def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(key)))


small, large = (Dataset.open(Path(name)) for name in sys.argv[1:3])
cache = Path(sys.argv[3]) if len(sys.argv) > 3 else None
parameters = TrainParameters(preset="defaults-1", n_rounds=2)
train(small, parameters, TrainingOptions(n_threads=1))  # compiled kernels and loaded libraries are no part of the plan
options = TrainingOptions(n_threads=1, bin_cache=cache)
plan = plan_of(large, parameters, options)
Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
before = status("VmRSS")
train(large, parameters, options)
print(plan.bytes_needed, plan.bin_bytes if plan.mapped_from else 0, status("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs the high-water mark of Linux")
@pytest.mark.parametrize("shares", [None, {"train": 0.6, "valid": 0.4}])
def test_a_training_takes_the_memory_that_was_announced(tmp_path, shares):
    for name, queries in (("small", 60), ("large", 7_500)):
        file = tmp_path / f"{name}.parquet"
        write_synthetic(file, SynthParameters(queries=queries, documents_per_query=40, features=40, seed=1))
        ingest([file], tmp_path / name, options=IngestOptions(split=shares))
        bin_dataset(Dataset.open(tmp_path / name))
    folders = [str(tmp_path / "small"), str(tmp_path / "large")]
    for arguments in (folders, [*folders, str(tmp_path / "cache")], [*folders, str(tmp_path / "cache")]):
        done = subprocess.run(
            [sys.executable, "-c", GROWTH, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
        needed, mapped, growth = map(int, done.stdout.split())
        # pages of the map count too, as long as nobody needs their memory for other things
        assert abs(growth - needed - mapped) <= max(0.15 * needed, 30e6), (arguments, needed, mapped, growth)
