"""``rankmill doctor``: what it says of this machine, and that it leaves nothing behind."""

from __future__ import annotations

import errno
import json
import socket
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from rankmill import Ranker, Registry, __version__, doctor
from rankmill.cli import execute
from rankmill.doctor import FileSystem, KernelCache, Memory
from rankmill.foundation.storage.disk import Disk
from tests.rankmill.test_image import kernels_of_the_house


def tree(folder: Path) -> set[tuple[str, int]]:
    return {(str(path), path.lstat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()} | {
        (str(path), 0) for path in folder.rglob("*")
    }


def test_it_says_everything_in_text_and_in_json(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    Registry(tmp_path / "models").prepare()
    before = tree(tmp_path)
    assert execute(["doctor", "--registry", str(tmp_path / "models")]) == 0
    text = capsys.readouterr().out
    assert execute(["doctor", "--registry", str(tmp_path / "models"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert tree(tmp_path) == before

    assert found["rankmill"] == __version__
    assert found["libraries"]["numpy"] == np.__version__
    assert found["settings"]["NUMBA_CPU_NAME"] == "generic"
    assert 1 <= found["usable_cores"] <= found["cores"]
    assert found["registry"]["folder"] == "~/models"
    assert found["registry"]["publishes_by"] in {"link", "rename"}
    assert found["registry"]["free"] > 0
    for words in (f"rankmill        {__version__}", f"numpy {np.__version__}", "usable of", "~/models: "):
        assert words in text
    for private in (socket.gethostname(), str(tmp_path)):
        assert private not in text + json.dumps(found)


def test_a_registry_that_is_not_made_yet_is_not_made(tmp_path: Path) -> None:
    found = FileSystem.probe(tmp_path / "a" / "b")
    assert (found.exists, found.problem, list(tmp_path.iterdir())) == (False, None, [])
    assert "not created yet" in found.words()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    """Make system calls of the disk fail as on a file system that does not know them."""

    def fail(*names: str) -> None:
        def refuse(*_: object) -> NoReturn:
            raise OSError(errno.EPERM, "Operation not permitted")

        for name in names:
            monkeypatch.setattr(Disk, name, refuse)

    return fail


def test_without_hard_links_files_appear_by_renames(tmp_path: Path, failing) -> None:
    failing("link", "fsync_folder")
    found = FileSystem.probe(tmp_path)
    assert (found.publishes_by, found.flushes_files, found.flushes_folders, found.problem) == (
        "rename",
        True,
        False,
        None,
    )
    assert "renames that never replace" in found.words()
    assert "NO fsync of folders" in found.words()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_keep_a_registry_is_an_error_after_the_report(tmp_path: Path, failing, capsys) -> None:
    failing("link", "rename_new")
    assert execute(["doctor", "--registry", str(tmp_path), "--json"]) == 74
    out, err = capsys.readouterr()
    problem = json.loads(out)["registry"]["problem"]
    assert problem.startswith("cannot hold a registry: ")
    assert problem in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_missing_locks_are_said(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "try_lock", lambda _: True)  # both of two get it: there are none
    assert "NO locks" in FileSystem.probe(tmp_path).words()


@pytest.mark.parametrize(
    ("first", "second", "limit"),
    [
        ("max\n", None, None),
        ("8000000000\n", None, 8_000_000_000),
        (None, "9223372036854771712\n", None),
        (None, "500000000\n", 500_000_000),
        (None, None, None),
    ],
)
def test_the_limit_of_a_container_is_read_in_both_versions(
    tmp_path: Path, monkeypatch, first: str | None, second: str | None, limit: int | None
) -> None:
    paths = (tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes")
    for path, text in zip(paths, (first, second), strict=True):
        if text is not None:
            path.write_text(text)
    monkeypatch.setattr(doctor, "LIMITS", tuple(map(str, paths)))
    found = Memory.read()
    assert found.limit == limit
    assert found.total > 0
    assert ("no container limit" in found.words()) == (limit is None)


def test_compiled_kernels_are_counted() -> None:
    rng = np.random.default_rng(0)
    X, qid = rng.normal(size=(60, 2)), np.repeat(np.arange(6), 10)
    Ranker(n_rounds=2, max_leaves=3).fit(X, rng.integers(0, 3, size=60), qid=qid)
    found = KernelCache.read()
    assert 0 < found.compiled <= found.kernels
    assert found.kernels == len(kernels_of_the_house())
    assert f"{found.compiled} of {found.kernels} kernels compiled" in found.words()


def test_a_cache_that_cannot_be_written_is_said() -> None:
    found = KernelCache(folder="x", writable=False, kernels=3, compiled=0)
    assert "compiled in every process" in found.words()
