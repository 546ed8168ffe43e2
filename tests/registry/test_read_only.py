"""Where nothing can be written everything can be looked at and used, and a writer gets one clear line."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rankmill.registry.model_registry import Registry
from tests import ROOT
from tests.refusals import unnamed
from tests.registry.conftest import FACTS, OpenRegistry, QuickDisk
from tests.scorer.forests import random_forest
from tests.scorer.rerank.candidate_files import random_candidates, write_letor

LINUX = sys.platform == "linux"
SUPERUSER = hasattr(os, "geteuid") and os.geteuid() == 0
PR_CAPBSET_DROP = 24  # <linux/prctl.h>
OVERRIDES = (1, 2, 3)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER of <linux/capability.h>

PROGRAM = """
import contextlib, io, json, sys
from pathlib import Path
from rankmill.cli import execute
from rankmill.registry import Registry
from tests.registry.conftest import FACTS
root, candidates, out = sys.argv[1:]
def run(*words):
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = execute([*words, *([] if "rerank" in words else ["--registry", root])])
    return [code, stdout.getvalue(), stderr.getvalue()]
reported = {
    "list": run("models", "list"),
    "list web": run("models", "list", "web"),
    "show": run("models", "show", "web@1"),
    "log": run("models", "log", "web"),
    "verify": run("models", "verify"),
    "rerank": run("rerank", candidates, "--model", "web@1", "-o", out, "--registry", root),
    "promote what stands": run("models", "promote", "web@2"),
    "promote": run("models", "promote", "web@1"),
    "roll back": run("models", "rollback", "web"),
    "collect": run("models", "gc"),
}
for name, work in {
    "register": lambda r: r.register("web", b"new", manifest=FACTS),
    "register another name": lambda r: r.register("shop", b"new", manifest=FACTS),
    "prepare": lambda r: r.prepare(),
}.items():
    try:
        work(Registry(root))
        reported[name] = [0, "", ""]
    except OSError as error:
        reported[name] = [74, "", f"rankmill: {error.filename}: {error.strerror}\\n"]
print(json.dumps(reported))
"""
READING = ["list", "list web", "show", "log", "verify", "rerank", "promote what stands"]


@pytest.fixture
def used(tmp_path: Path) -> Registry:
    """Two versions of a model that scores, of which production is the second."""
    registry = OpenRegistry(tmp_path / "r", disk=QuickDisk())
    for seed in (1, 2):
        forest = random_forest(seed, n_trees=3, info={"max_grade": 4})
        manifest = FACTS | {"features": list(forest.feature_names)}
        registry.register("web", forest.to_bytes(), manifest=manifest)
        registry.promote("web", seed)
    return registry


def reported_by(
    prefix: list[str], used: Registry, prepare: Callable[[], object] | None = None
) -> dict[str, list[object]]:
    """What every command says of the registry in a process of its own."""
    candidates, out = used.root.parent / "candidates.txt", used.root.parent / "ranked"
    write_letor(candidates, random_candidates(1))
    words = [*prefix, sys.executable, "-c", PROGRAM, str(used.root), str(candidates), str(out)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, preexec_fn=prepare)
    if "unshare failed" in done.stderr or "mount: " in done.stderr:
        pytest.skip(f"no mounting here: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    reported: dict[str, list[object]] = json.loads(done.stdout.splitlines()[-1])
    return reported


def check(reported: dict[str, list[object]]) -> None:
    for name, (code, stdout, stderr) in reported.items():
        if name in READING:
            assert code == 0, (name, stderr)
        else:
            assert (code, stdout) == (74, ""), (name, stdout, stderr)
            assert str(stderr).count("\n") == 1
            assert "nothing can be written here" in str(stderr)
            assert "nothing was changed" in str(stderr)
            assert "already" not in str(stderr)


@pytest.fixture
def sealed(used: Registry) -> Registry:
    """Nobody has leave to write."""
    paths = [used.root, *used.root.rglob("*")]
    for path in paths:
        path.chmod(path.stat().st_mode & ~0o222)
    yield used
    for path in paths:
        path.chmod(path.stat().st_mode | 0o200)


def without_overrides() -> None:
    """Let the process that is about to start be bound by permissions though it is the superuser's."""
    if SUPERUSER:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in OVERRIDES:
            if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "prctl")


@pytest.mark.skipif(SUPERUSER and not LINUX, reason="the superuser may write everywhere")
def test_without_leave_to_write(sealed: Registry, tree: Callable[[Path], object]) -> None:
    before = tree(sealed.root)
    check(reported_by([], sealed, without_overrides))
    assert tree(sealed.root) == before


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1) to mount where nobody else sees it")
def test_on_a_read_only_mount(used: Registry, tree: Callable[[Path], object]) -> None:
    before = tree(used.root)
    mount = f'mount --bind "{used.root}" "{used.root}" && mount -o remount,bind,ro "{used.root}" && exec "$@"'
    check(reported_by(["unshare", "-m" if SUPERUSER else "-rm", "sh", "-c", mount, "sh"], used))
    assert tree(used.root) == before


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1) to mount where nobody else sees it")
def test_no_registry_is_made_on_a_read_only_mount(tmp_path: Path) -> None:
    program = "import sys; from rankmill.registry import Registry; Registry(sys.argv[1]).prepare()"
    mount = f'mount --bind "{tmp_path}" "{tmp_path}" && mount -o remount,bind,ro "{tmp_path}" && exec "$@"'
    words = ["unshare", "-m" if SUPERUSER else "-rm", "sh", "-c", mount, "sh", sys.executable, "-c", program]
    done = subprocess.run([*words, str(tmp_path / "r")], cwd=ROOT, capture_output=True, text=True, check=False)
    if "unshare failed" in done.stderr or "mount: " in done.stderr:
        pytest.skip(f"no mounting here: {done.stderr.splitlines()[-1]}")
    assert not unnamed(done.stderr, "Read-only file system", "nothing was changed", f"'{tmp_path}'")
    assert list(tmp_path.iterdir()) == []
