"""What the image holds, without an engine to build it: its install script in an empty folder, and the file that runs it."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.publish import file_digest

ROOT = Path(__file__).resolve().parents[2]
BASELINE = {"x86_64": "x86-64-v3", "AMD64": "x86-64-v3"}.get(os.uname().machine, "generic")

COUNT_COMPILATIONS = """
import io, json, sys
from contextlib import redirect_stdout
from numba.core import event
import rankmill
from rankmill.cli import execute
from trainer.objectives.registry import OBJECTIVES, objective_class

def commands():
    yield ["demo", "--queries", "80", "--seed", "5"]
    yield ["run", "rankmill.toml"]
    for name in sorted(OBJECTIVES.keys() - {"user"}):
        for criterion in objective_class(name).criteria:
            train = ["train", "rankmill-demo/dataset", "--name", name, "--objective", name, "--criterion", criterion]
            yield [*train, "--n-rounds", "3", "--max-leaves", "7", "--n-threads", "2"]
        yield ["evaluate", "rankmill-demo/dataset", "--split", "valid", "--model", name + "@1", "--metric", "map", "--metric", "err"]


with event.install_recorder("numba:compile") as compiled, redirect_stdout(io.StringIO()):
    codes = [execute(command) for command in commands()]
names = [str(record.data["dispatcher"]) for _, record in compiled.buffer if record.is_start]
print(json.dumps({"codes": codes, "compiled": names, "home": rankmill.__file__}))
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
[rerank]
candidates = ["rankmill-demo/candidates.txt"]
"""


WAY_OUT = (
    "SSL_CERT_FILE",
    "PIP_CERT",
    "PIP_INDEX_URL",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)  # the network's own ways


def kernels_of_the_house() -> set[tuple[str, str, str]]:
    """(package, file, function) of everything that is decorated with ``@njit``, but for what is always inlined."""
    found = set()
    for package in ("pipeline", "scorer", "trainer"):
        for path in (ROOT / package).rglob("_*kernels.py"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef):
                    how = " ".join(map(ast.unparse, node.decorator_list))
                    if "njit" in how and "inline='always'" not in how:
                        found.add((path.parent.name, path.stem, node.name))
    return found


def kernel_of(cached: str) -> tuple[str, str, str]:
    """(package, file, function) of a file of Numba's cache: ``scorer_<digest>/_kernels.bin_rows-60.py311.nbi``."""
    path = Path(cached)
    file, _, rest = path.name.partition(".")
    return path.parent.name.rsplit("_", 1)[0], file, rest.rsplit("-", 1)[0]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_dockerfile_installs_through_the_script_alone() -> None:
    dockerfile = text_of("Dockerfile")
    runs = re.findall(r"^RUN (.*(?:\\\n.*)*)", dockerfile, flags=re.MULTILINE)
    assert [run for run in runs if "install" in run] == ["sh /src/docker/install.sh /src /opt/rankmill"]
    assert not any(word in run for run in runs for word in ("pip", "apt", "curl", "wget"))


def test_the_image_runs_as_nobody_in_particular_with_the_values_it_was_compiled_for() -> None:
    dockerfile = text_of("Dockerfile")
    build, final = dockerfile.split("FROM base AS build")[1].split("\nFROM base\n")
    assert re.search(r"^USER 10001$", final, flags=re.MULTILINE)
    assert 'ENTRYPOINT ["rankmill"]' in final
    assert "NUMBA" not in build + final  # said once, in the stage that both start from
    assert {"NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_CACHE_DIR"} <= set(re.findall(r"NUMBA_\w+", dockerfile))
    assert "NUMBA_CACHE_DIR=/opt/rankmill/numba-cache" in dockerfile


def test_the_build_context_holds_what_the_script_copies() -> None:
    parts = re.search(r"for part in (.*); do", text_of("docker/install.sh"))
    assert parts is not None
    needed = {*parts[1].split(), "locks/runtime.txt", "docker/install.sh"}
    assert needed <= {line[1:] for line in text_of(".dockerignore").splitlines() if line.startswith("!")}
    assert all((ROOT / name).exists() for name in needed)


@pytest.mark.slow
def test_the_script_installs_into_an_empty_folder_and_nothing_is_compiled_afterwards(tmp_path: Path) -> None:
    prefix, home, work = tmp_path / "prefix", tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (work / "rankmill.toml").write_text(CONFIG)
    clean = {"PATH": os.defpath, "HOME": str(home), "PIP_CONFIG_FILE": os.devnull, "LANG": "C.UTF-8"}
    clean |= {name: os.environ[name] for name in WAY_OUT if name in os.environ}
    baseline = {"NUMBA_CPU_NAME": BASELINE, "NUMBA_CPU_FEATURES": ""}
    installed = subprocess.run(
        ["sh", str(ROOT / "docker" / "install.sh"), str(ROOT), str(prefix)],
        env={**clean, **baseline, "PYTHON": sys.executable},
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert installed.returncode == 0, installed.stderr
    assert re.search(
        rf"compiled \d+ kernels for {BASELINE} into {re.escape(str(prefix / 'numba-cache'))}", installed.stdout
    )
    assert not list(home.rglob("*.nb?"))

    def cache() -> dict[str, str]:
        return {str(path): file_digest(path) for path in (prefix / "numba-cache").rglob("*") if path.is_file()}

    before = cache()
    assert kernels_of_the_house() - {kernel_of(path) for path in before} == set()
    ran = subprocess.run(
        [str(prefix / "bin" / "python"), "-I", "-c", COUNT_COMPILATIONS],
        env={**clean, **baseline, "NUMBA_CACHE_DIR": str(prefix / "numba-cache")},
        cwd=work,
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(ran.stdout.splitlines()[-1])
    assert set(report["codes"]) == {0}, ran.stderr
    assert report["compiled"] == []
    assert report["home"].startswith(str(prefix))
    assert cache() == before
