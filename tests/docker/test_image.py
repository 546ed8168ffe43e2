"""What the image holds, without an engine to build it: its install script in an empty folder, and the file that runs
it."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankmill.foundation.storage.publish import file_digest
from tests import ROOT

BASELINE = {"x86_64": "x86-64-v3", "AMD64": "x86-64-v3"}.get(os.uname().machine, "generic")

COUNT_COMPILATIONS = """
import io, json, os, sys
from contextlib import redirect_stdout

prefix, written = sys.argv[1], []
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.truncate"}

def watch(event, arguments):
    if event in CHANGES or (event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
        if any(isinstance(path, (str, bytes)) and os.fsdecode(path).startswith(prefix) for path in arguments):
            written.append([event, str(arguments[0])])

sys.addaudithook(watch)

from numba.core import event
import rankmill
from rankmill.cli import execute
from rankmill.trainer.objectives.registry import objective_class
from rankmill.trainer.objectives.spelling import OBJECTIVES

def commands():
    yield ["demo", "--queries", "80", "--seed", "5"]
    yield ["run", "rankmill.toml"]
    yield ["run", "rankmill.toml", "--date", "2026-11-21"]
    yield ["run", "seeds.toml"]
    yield ["health", "work"]
    yield ["report", "work"]
    yield ["tune", "rankmill-demo/dataset", "-o", "tuned", "--trials", "3", "--n-rounds", "4", "--workers", "1"]
    yield ["schedule", "rankmill.toml", "--cron", "0 2 * * *", "--timezone", "Europe/Berlin", "--list", "3"]
    for name in sorted(OBJECTIVES.keys() - {"user"}):
        for criterion in objective_class(name).splits.criteria:
            train = ["train", "rankmill-demo/dataset", "--name", name, "--objective", name, "--criterion", criterion]
            yield [*train, "--n-rounds", "3", "--max-leaves", "7", "--n-threads", "2"]
        yield ["evaluate", "rankmill-demo/dataset", "--split", "valid", "--model", name + "@1", "--metric", "map", "--metric", "err"]


with event.install_recorder("numba:compile") as compiled, redirect_stdout(io.StringIO()):
    codes = [execute(command) for command in commands()]
names = [str(record.data["dispatcher"]) for _, record in compiled.buffer if record.is_start]
facts = {"codes": codes, "compiled": names, "home": rankmill.__file__, "written": written, "user": os.getuid()}
print(json.dumps(facts))
"""

CONFIG = """
[ingest]
sources = ["rankmill-demo/judgments.txt"]
split = {train = 0.8, valid = 0.1, test = 0.1}
[train]
name = "web"
n_rounds = 10
[gate]
margin = 1.0
max_cost_ratio = 9.0
[rerank]
candidates = ["rankmill-demo/candidates.txt"]
"""


WAY_OUT = ("SSL_CERT_FILE", "PIP_CERT", "PIP_INDEX_URL", "http_proxy", "https_proxy", "no_proxy")  # the network's own
OF_CLUSTERS = {("growing", "_batch_kernels", "grow_in_batches"), ("trainer", "_kernels", "add_absolute")}
"""Kernels that only workers of a cluster call: the image of this test has no Dask."""
STRANGER = 23456  # nobody has this number: no name, no home


def python_of_everybody() -> str:
    """An interpreter that the stranger may run too: this one, or the system's where this one lies in somebody's
    home."""
    own = Path(sys.executable).resolve()
    if os.geteuid() != 0 or all(folder.stat().st_mode & 0o001 for folder in own.parents):
        return sys.executable
    system = shutil.which("python3", path=os.defpath)
    asked = "import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))"
    if system is None or subprocess.run([system, "-c", asked], capture_output=True, check=False).returncode:
        pytest.skip(f"{own} is for {own.owner()} alone, and the system has no interpreter for us")
    return system


def environment_of_the_image(prefix: Path) -> dict[str, str]:
    """What the Dockerfile sets for who runs, for an installation in ``prefix``."""
    final = text_of("Dockerfile").replace("\\\n", " ")
    final = final.replace("/opt/rankmill", str(prefix)).replace("/var/lib/rankmill", str(prefix.parent / "state"))
    words = [word for line in re.findall(r"^ENV (.*)", final, flags=re.MULTILINE) for word in shlex.split(line)]
    found = dict(word.split("=", 1) for word in words)
    return {name: value.replace("$PATH", os.defpath) for name, value in found.items()}


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty folder that everybody may look into: pytest's own are for their user alone."""
    with tempfile.TemporaryDirectory(prefix="rankmill-image-") as name:
        place = Path(name)
        place.chmod(0o755)
        yield place
        for folder in (place / "prefix").rglob("*"):
            if folder.is_dir() and not folder.is_symlink():
                folder.chmod(0o755)
        (place / "prefix").chmod(0o755)


def kernels_of_the_house() -> set[tuple[str, str, str]]:
    """(package, file, function) of everything that is decorated with ``@kernel``, but for what is always inlined."""
    found = set()
    for package in ("foundation", "pipeline", "scorer", "trainer"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef):
                    how = " ".join(map(ast.unparse, node.decorator_list))
                    if "kernel" in how.split("(")[0].split() and "inline='always'" not in how:
                        found.add((path.parent.name, path.stem, node.name))
    return found


def kernel_of(cached: str) -> tuple[str, str, str]:
    """(package, file, function) of a shipped file:
    ``trainer.growing._growth_kernels.grow_by_level.<digest>.<digest>.nbc``."""
    package, file, function = Path(cached).name.split(".")[-6:-3]
    return package, file, function


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_dockerfile_installs_through_the_script_alone() -> None:
    dockerfile = text_of("Dockerfile")
    runs = re.findall(r"^RUN (.*(?:\\\n.*)*)", dockerfile, flags=re.MULTILINE)
    tools = "apt-get update -qq && apt-get install -qq -y --no-install-recommends binutils"  # in the build stage alone
    assert [run for run in runs if "install" in run] == [tools, "sh /src/docker/install.sh /src /opt/rankmill"]
    assert dockerfile.index(tools) < dockerfile.index("\nFROM base\n")
    assert not any(word in run for run in runs if run != tools for word in ("pip", "apt", "curl", "wget"))


def test_the_image_runs_as_nobody_in_particular_on_any_processor() -> None:
    dockerfile = text_of("Dockerfile")
    build, final = dockerfile.split("FROM base AS build")[1].split("\nFROM base\n")
    assert re.search(r"^USER 10001$", final, flags=re.MULTILINE)
    assert 'ENTRYPOINT ["rankmill"]' in final
    assert "NUMBA_CPU" not in dockerfile  # which kernels run is found out when it runs
    assert "NUMBA" not in build
    (kept,) = re.findall(r"NUMBA_CACHE_DIR=(\S+)", final)
    assert kept in " ".join(re.findall(r"for folder in (.*); do", final)).split()  # made for its user


def test_the_build_context_holds_what_the_script_copies() -> None:
    parts = re.search(r"for part in (.*); do", text_of("docker/install.sh"))
    assert parts is not None
    needed = {*parts[1].split(), "locks/cloud.txt", "locks/dask.txt", "docker/install.sh"}
    assert needed <= {line[1:] for line in text_of(".dockerignore").splitlines() if line.startswith("!")}
    assert all((ROOT / name).exists() for name in needed)


@pytest.mark.slow
def test_the_script_installs_into_an_empty_folder_and_a_stranger_runs_what_may_not_be_written(place: Path) -> None:
    prefix, home, work = place / "prefix", place / "home", place / "work"
    home.mkdir()
    work.mkdir()
    (work / "rankmill.toml").write_text(CONFIG)
    (work / "seeds.toml").write_text(CONFIG.replace("[train]", '[train]\nseeds = [1, 2]\nchoose = "average"'))
    clean = {"PATH": os.defpath, "HOME": str(home), "PIP_CONFIG_FILE": os.devnull, "LANG": "C.UTF-8"}
    clean |= {name: os.environ[name] for name in WAY_OUT if name in os.environ}
    image = environment_of_the_image(prefix)
    installed = subprocess.run(
        ["sh", str(ROOT / "docker" / "install.sh"), str(ROOT), str(prefix)],
        env=clean | {"PYTHON": python_of_everybody()}, cwd=home, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr
    (shipped,) = prefix.rglob("rankmill/compiled/*")
    assert f"kernels for {BASELINE} in " in installed.stdout
    assert not list(home.rglob("*.nb?"))
    assert not list(prefix.rglob("__pycache__/*.nbc"))

    def cache() -> dict[str, str]:
        return {str(path): file_digest(path) for path in shipped.iterdir()}

    def tree() -> dict[str, tuple[int, int]]:
        return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in (prefix, *prefix.rglob("*"))}

    before = cache()
    assert kernels_of_the_house() - {kernel_of(path) for path in before} == OF_CLUSTERS
    for path in (prefix, *prefix.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o222)
    untouched = tree()
    stranger: dict[str, Any] = {}
    if os.geteuid() == 0:
        os.chown(work, STRANGER, STRANGER)
        os.chown(work / "rankmill.toml", STRANGER, STRANGER)
        stranger = {"user": STRANGER, "group": STRANGER, "extra_groups": []}
    ran = subprocess.run(
        [str(prefix / "bin" / "python"), "-I", "-c", COUNT_COMPILATIONS, str(prefix)],
        env={**image, "HOME": "/nonexistent"}, cwd=work, capture_output=True, text=True, check=False, **stranger,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout.splitlines()[-1])
    assert set(report["codes"]) == {0}, ran.stderr
    assert report["compiled"] == []
    assert report["written"] == []
    assert report["home"].startswith(str(prefix))
    assert report["user"] == (STRANGER if stranger else os.getuid())
    assert cache() == before
    assert tree() == untouched
