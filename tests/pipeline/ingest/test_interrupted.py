"""Kill -9 during an ingest: the dataset is the old one or the new one, and the next run completes and clears up."""

import os
import random
import shutil
import subprocess
import sys
import time

import pytest

from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.manifest import MANIFEST_NAME
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions
from tests import ROOT
from tests.pipeline.ingest.interrupted import BALLAST, operations, start
from tests.pipeline.ingest.test_ingest import judgments
from tests.written import files_in

BUCKETS = 4
PUBLISHING = "dataset/_manifest.json"  # what is written last, and published first or last
INPUTS = {"old.txt", "new.txt"}


def options(**others):
    return IngestOptions(buckets=BUCKETS, overwrite=True, max_rejects=1, **others)


def command(folder, name="new.txt"):
    """The ingest that is killed; small blocks, so that it spills many times."""
    given = ["--overwrite", "--buckets", str(BUCKETS)]
    return ["data", "ingest", folder / name, "-o", folder / "out", "--block-size", "4KiB", "--max-rejects", "1", *given]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with two inputs and the dataset of the old one, and the digests of what can be made of them."""
    folder = tmp_path_factory.mktemp("prepared")
    digests = {}
    for seed, name in enumerate(("new.txt", "old.txt")):
        (folder / name).write_text("".join([*judgments(400, seed), "x qid:1 1:1\n"]))
        ingest([folder / name], folder / "out", options=options())
        digests[name] = Dataset.open(folder / "out").digest
    assert len(set(digests.values())) == 2
    shutil.rmtree(folder / "out")
    ingest([folder / "old.txt"], folder / "out", options=options())
    return folder, digests


def check_left(folder, digests, *, had_one):
    """See that there is all of the old dataset or of the new one and nothing else in sight; return its digest."""
    visible = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert visible - {"out"} == INPUTS
    if "out" not in visible:
        assert not had_one
        return None
    dataset = Dataset.open(folder / "out")
    dataset.verify()
    assert dataset.digest in digests.values()
    return dataset.digest


def check_next(folder, digests):
    """See that the next run completes and leaves nothing but the dataset and, for its readers, the shards of the former
    one."""
    former = Dataset.open(folder / "out") if (folder / "out").exists() else None
    for path in folder.glob(".*.staging"):  # a run that was killed before it had its lock is known by its age
        if not (path / "lock").exists():
            os.utime(path, (0, 0))
    ingest([folder / "old.txt"], folder / "out", options=options())
    dataset = Dataset.open(folder / "out")
    dataset.verify()
    assert dataset.digest == digests["old.txt"]
    assert {path.name for path in folder.iterdir()} == {*INPUTS, "out"}
    named = dataset.manifest.to_bytes() + (former.manifest.to_bytes() if former else b"")
    for path in (path for path in (folder / "out").rglob("*") if path.is_file()):
        known = path.name in {"_rejects.parquet", MANIFEST_NAME}
        assert known or path.stem.encode() in named, path.relative_to(folder)


MOMENTS = {
    "in the first pass": ("staging/spill", 5, "over"),
    "in the second pass, with no dataset before": ("dataset/", 12, "first"),
    "while shards are published": (PUBLISHING, 7, "over"),
    "before the manifest is": (PUBLISHING, 15, "over"),
}
"""By name: the operation, counted from the first one on such a path, and whether there is an old dataset."""


def prepare(folder, prepared, *, had_one):
    """Copy what was prepared to ``folder``, the dataset if ``had_one``."""
    return shutil.copytree(prepared, folder, ignore=None if had_one else shutil.ignore_patterns("out"))


@pytest.mark.slow
def test_a_killed_ingest_leaves_the_old_dataset_or_none_and_the_next_one_clears_up(tmp_path, prepared):
    processes = {}
    for name, (part, number, done) in MOMENTS.items():
        folder = prepare(tmp_path / name, prepared[0], had_one=done != "first")
        killed = command(folder)
        processes[name] = start(folder, killed, action="kill", part=part, number=number)
    ended = {name: (process.communicate()[1], process.returncode) for name, process in processes.items()}
    for name, (err, code) in ended.items():
        assert code == -9, (name, err)
        had_one = MOMENTS[name][2] != "first"
        left = check_left(tmp_path / name, prepared[1], had_one=had_one)
        assert left == (prepared[1]["old.txt"] if had_one else None)
        check_next(tmp_path / name, prepared[1])


@pytest.mark.slow
@pytest.mark.parametrize("done", ["over", "first"])
def test_killed_at_every_step_of_publishing_the_dataset_is_the_old_or_the_new_one(tmp_path, prepared, done):
    had_one = done != "first"
    counted = prepare(tmp_path / "counted", prepared[0], had_one=had_one)
    steps = len(operations(counted, command(counted), PUBLISHING))
    found = set()
    for first in range(1, steps + 1, 4):
        processes = {}
        for number in range(first, min(first + 4, steps + 1)):
            folder = prepare(tmp_path / str(number), prepared[0], had_one=had_one)
            killed = command(folder)
            processes[folder] = start(folder, killed, action="kill", part=PUBLISHING, number=number)
        for process in processes.values():
            process.communicate()
        for folder in processes:
            found.add(check_left(folder, prepared[1], had_one=had_one))
            check_next(folder, prepared[1])
            shutil.rmtree(folder)
    assert found == {prepared[1]["new.txt"], prepared[1]["old.txt"] if had_one else None}


@pytest.mark.slow
def test_killed_at_twenty_random_moments_the_dataset_is_the_old_or_the_new_one(tmp_path, prepared):
    rng = random.Random(5)
    folder, digests = prepare(tmp_path / "work", prepared[0], had_one=True), prepared[1]
    began = time.monotonic()
    operations(folder, command(folder))
    lasts = time.monotonic() - began
    for moment in range(20):
        if moment == 12:
            shutil.rmtree(folder / "out")
        had_one = (folder / "out").exists()
        killed = command(folder, "new.txt")
        with start(folder, killed) as process:
            time.sleep(rng.uniform(0.3, 1.1) * lasts)
            process.kill()
        check_left(folder, digests, had_one=had_one)
        if moment % 4 == 3:
            check_next(folder, digests)
    check_next(folder, digests)


# ---- no room on the disk: exit 74 and one line, the old dataset as it was, and nothing else left ---------------------

MANIFEST = "dataset/_manifest.json"
STEPS = {"first pass": ("staging/spill", 3), "second pass": ("dataset/", 3), "publishing": (MANIFEST, 1)}
"""By name: part of a path and number of the operation at which there is no room any more."""
FULL = "the disk is full (No space left on device); nothing was changed"
TOO_LARGE = "a file would be larger than is allowed here (File too large); nothing was changed"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with two inputs and the dataset of the old one."""
    folder = tmp_path_factory.mktemp("inputs")
    for seed, name in enumerate(("new.txt", "old.txt")):
        (folder / name).write_text("".join(judgments(3000, seed)))
    ingest([folder / "old.txt"], folder / "out", options=IngestOptions(buckets=4))
    return folder


def command_on_disk(inputs, out):
    given = ["--buckets", "4", "--overwrite", "--block-size", "16KiB"]
    return ["data", "ingest", inputs / "new.txt", "-o", out, *given]


def check_refused(process, out, reason, before):
    """See that the command failed for ``reason``, said so in one line, and left what there was ``before``."""
    _, err = process.communicate()
    assert (process.returncode, err) == (74, f"rankmill: {out}: {reason}\n")
    (out.parent / BALLAST).unlink(missing_ok=True)
    assert files_in(out.parent) == before
    assert {path.name for path in out.parent.iterdir()} <= {"out"}


def put_old(inputs, folder, *, had_one):
    """Make ``folder``, put the old dataset into it if ``had_one``, and return where that is."""
    folder.mkdir()
    if had_one:
        shutil.copytree(inputs / "out", folder / "out")
    return folder / "out"


@pytest.mark.slow  # test_ingest has an error at every step in one process
def test_where_files_may_not_grow_the_old_dataset_stays_and_nothing_else(tmp_path, inputs):
    """As on a full disk, but for the number of the error; needs no disk of its own."""
    processes = []
    for name, (part, number) in STEPS.items():
        for had_one in (True, False) if name == "second pass" else (True,):
            out = put_old(inputs, tmp_path / f"{name}, {had_one}", had_one=had_one)
            process = start(out.parent, command_on_disk(inputs, out), action="limit", part=part, number=number)
            processes.append((process, out, files_in(out.parent)))
    for process, out, before in processes:
        check_refused(process, out, TOO_LARGE, before)


SMALL = 'mkdir -p "$1" && mount -t tmpfs -o "size=$2" tmpfs "$1" && shift 2 && exec "$@"'
IN_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", SMALL, "small")


def small_disk(folder, size, *command):
    """Run ``command`` where ``folder`` is a disk of that size, which is gone afterwards."""
    return subprocess.run(
        [*IN_NAMESPACE, folder, size, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )


def fill_small_disk(inputs, disk):
    """Let the disk be full from each step on; called where ``disk`` is a small one.  The next run finds room again."""
    for name, (part, number) in STEPS.items():
        for had_one in (True, False):
            out = put_old(inputs, disk / f"{name}, {had_one}", had_one=had_one)
            before = files_in(out.parent)
            process = start(out.parent, command_on_disk(inputs, out), action="fill", part=part, number=number)
            check_refused(process, out, FULL, before)
            assert start(out.parent, command_on_disk(inputs, out)).wait() == 0
            Dataset.open(out).verify()
            shutil.rmtree(out.parent)


def use_small_disk(inputs, disk):
    """Ingest where ``disk`` is a small one, and say whether there was room."""
    out = put_old(inputs, disk / "work", had_one=True)
    before = files_in(out.parent)
    process = start(out.parent, command_on_disk(inputs, out))
    if process.wait():
        check_refused(process, out, FULL, before)
        print("full")
    else:
        Dataset.open(out).verify()


@pytest.fixture
def disk(tmp_path):
    """A place where a small disk can be mounted."""
    tried = small_disk(tmp_path / "disk", "1m", "true")
    if tried.returncode:
        pytest.skip(f"no small disk can be mounted here: {tried.stderr.strip()}")
    return tmp_path / "disk"


def inside(name, inputs, disk, size):
    """Call a function of this module where ``disk`` is a small one; returns what it printed."""
    script = (
        "import sys; from pathlib import Path; from tests.pipeline.ingest import test_interrupted\n"
        f"test_interrupted.{name}(*map(Path, sys.argv[1:]))"
    )
    done = small_disk(disk, size, sys.executable, "-c", script, inputs, disk)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_disk_that_is_full_from_any_step_on(inputs, disk):
    inside("fill_small_disk", inputs, disk, "48m")


@pytest.mark.slow
def test_disks_of_any_size(inputs, disk):
    old = sum(path.stat().st_size for path in (inputs / "out").rglob("*") if path.is_file())
    full = [inside("use_small_disk", inputs, disk, f"{old + room * old // 4 + 100_000}") for room in range(1, 20, 2)]
    assert full[0] == "full\n"
    assert full[-1] == ""
