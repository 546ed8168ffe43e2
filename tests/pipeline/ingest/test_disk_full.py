"""No room on the disk during an ingest: exit 74 and one line, the old dataset as it was, and nothing else left."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions
from tests import ROOT
from tests.pipeline.ingest.interrupted import BALLAST, start
from tests.pipeline.ingest.test_ingest import judgments
from tests.written import files_in

PUBLISHING = "dataset/_manifest.json"
STEPS = {"first pass": ("staging/spill", 3), "second pass": ("dataset/", 3), "publishing": (PUBLISHING, 1)}
"""By name: part of a path and number of the operation at which there is no room any more."""
FULL = "the disk is full (No space left on device); nothing was changed"
TOO_LARGE = "a file would be larger than is allowed here (File too large); nothing was changed"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """A folder with two inputs and the dataset of the old one."""
    folder = tmp_path_factory.mktemp("inputs")
    for seed, name in enumerate(("new.txt", "old.txt")):
        (folder / name).write_text("".join(judgments(3000, seed)))
    ingest([folder / "old.txt"], folder / "out", options=IngestOptions(buckets=4))
    return folder


def command(inputs: Path, out: Path) -> list[str | Path]:
    given = ["--buckets", "4", "--overwrite", "--block-size", "16KiB"]
    return ["data", "ingest", inputs / "new.txt", "-o", out, *given]


def check_refused(process: subprocess.Popen[str], out: Path, reason: str, before: dict[str, bytes]) -> None:
    """See that the command failed for ``reason``, said so in one line, and left what there was ``before``."""
    _, err = process.communicate()
    assert (process.returncode, err) == (74, f"rankmill: {out}: {reason}\n")
    (out.parent / BALLAST).unlink(missing_ok=True)
    assert files_in(out.parent) == before
    assert {path.name for path in out.parent.iterdir()} <= {"out"}


def put_old(inputs: Path, folder: Path, *, had_one: bool) -> Path:
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
            process = start(out.parent, command(inputs, out), action="limit", part=part, number=number)
            processes.append((process, out, files_in(out.parent)))
    for process, out, before in processes:
        check_refused(process, out, TOO_LARGE, before)


SMALL = 'mkdir -p "$1" && mount -t tmpfs -o "size=$2" tmpfs "$1" && shift 2 && exec "$@"'
IN_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", SMALL, "small")


def small_disk(folder: Path, size: str, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ``command`` where ``folder`` is a disk of that size, which is gone afterwards."""
    return subprocess.run(
        [*IN_NAMESPACE, folder, size, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )


def fill_small_disk(inputs: Path, disk: Path) -> None:
    """Let the disk be full from each step on; called where ``disk`` is a small one.  The next run finds room again."""
    for name, (part, number) in STEPS.items():
        for had_one in (True, False):
            out = put_old(inputs, disk / f"{name}, {had_one}", had_one=had_one)
            before = files_in(out.parent)
            process = start(out.parent, command(inputs, out), action="fill", part=part, number=number)
            check_refused(process, out, FULL, before)
            assert start(out.parent, command(inputs, out)).wait() == 0
            Dataset.open(out).verify()
            shutil.rmtree(out.parent)


def use_small_disk(inputs: Path, disk: Path) -> None:
    """Ingest where ``disk`` is a small one, and say whether there was room."""
    out = put_old(inputs, disk / "work", had_one=True)
    before = files_in(out.parent)
    process = start(out.parent, command(inputs, out))
    if process.wait():
        check_refused(process, out, FULL, before)
        print("full")
    else:
        Dataset.open(out).verify()


@pytest.fixture
def disk(tmp_path) -> Path:
    """A place where a small disk can be mounted."""
    tried = small_disk(tmp_path / "disk", "1m", "true")
    if tried.returncode:
        pytest.skip(f"no small disk can be mounted here: {tried.stderr.strip()}")
    return tmp_path / "disk"


def inside(name: str, inputs: Path, disk: Path, size: str) -> str:
    """Call a function of this module where ``disk`` is a small one; returns what it printed."""
    script = (
        "import sys; from pathlib import Path; from tests.pipeline.ingest import test_disk_full\n"
        f"test_disk_full.{name}(*map(Path, sys.argv[1:]))"
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
