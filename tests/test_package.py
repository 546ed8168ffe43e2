"""What is released: the sdist and the wheel, what they say of themselves, and the rule for commit subjects."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.metadata import Metadata
from packaging.specifiers import SpecifierSet

import rankmill
from tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_classifiers_name_every_python_that_is_allowed() -> None:
    allowed = SpecifierSet(PROJECT["requires-python"])
    minors = [f"3.{minor}" for minor in range(30) if f"3.{minor}.1" in allowed]
    found = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), flags=re.MULTILINE)
    assert found == minors
    assert "Typing :: Typed" in PROJECT["classifiers"]
    assert PROJECT["classifiers"] == sorted(PROJECT["classifiers"])


def test_every_extra_is_explained() -> None:
    text = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    assert [name for name in PROJECT["optional-dependencies"] if f"[{name}]" not in text] == []


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it, in an environment without a network."""
    folder = tmp_path_factory.mktemp("dist")
    source = folder / "source"  # the build writes beside the sources
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info", "work", "registry-data")
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "-o", str(folder), str(source)], check=True)
    shutil.rmtree(source)
    return folder


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        described = wheel.read(next(name for name in names if name.endswith("METADATA")))
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "rankmill").rglob("*.py")}
    for room in ("foundation", "pipeline", "registry", "scorer", "trainer"):
        modules |= {f"rankmill/{path.relative_to(ROOT)}" for path in (ROOT / room).rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    assert {"rankmill/py.typed", "rankmill/report/templates/style.css"} <= names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"rankmill"}
    metadata = Metadata.from_email(described, validate=True)
    assert (metadata.name, str(metadata.version)) == ("rankmill", rankmill.__version__)
    assert metadata.license_expression == "Apache-2.0"
    assert set(metadata.provides_extra or ()) == set(PROJECT["optional-dependencies"])
    assert not metadata.project_urls
    assert not metadata.home_page


EVERYTHING = """
import hashlib, json, sys
from pathlib import Path
from typing import Any
import numpy as np
from numba.core import event
import rankmill
from rankmill import Ranker
from rankmill.warm import call_every_kernel

folder = Path(sys.argv[1])
with event.install_recorder("numba:compile") as compiled:
    printed, scores = call_every_kernel(folder)
    rng = np.random.default_rng(5)  # the default preset, on other data
    X, qid = rng.normal(size=(900, 7)), np.repeat(np.arange(60), 15)
    Ranker().fit(X, np.clip(X[:, 0] + 1, 0, 4).round(), qid=qid).save(folder / "own")
    scores.append(Ranker.load(folder / "own").predict(X))
made = {name: [file.name for file in sorted(folder.rglob(name)) if file.is_file()] for name in ("*.bins", "blobs/**/*")}
made |= {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("ranked.run", "ranked.parquet", "bare.tsv")}
made["scores"] = hashlib.sha256(b"".join(found.tobytes() for found in scores)).hexdigest()
made |= {line: text.replace(str(folder), "") for line, text in printed.items() if line.startswith(("evaluate", "inspect"))}
print(json.dumps([rankmill.__file__, sum(record.is_start for _, record in compiled.buffer), made]))
"""


@pytest.mark.slow
@pytest.mark.skipif((sys.platform, os.uname().machine) != ("linux", "x86_64"), reason="is for Linux on x86-64")
def test_the_wheel_with_kernels_compiles_nothing_and_gives_the_same_bits(built: Path, tmp_path: Path) -> None:
    """Every kernel is called with those for x86-64-v3, and with those for this machine."""
    (tmp_path / "dist").mkdir()
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(next(built.glob("*.tar.gz")), tmp_path / "dist")
    here = f"BIN={Path(sys.executable).parent}"
    subprocess.run(
        ["make", "-o", ".venv/.dev", "wheel", here, "BUILD=--no-isolation"], cwd=tmp_path, check=True, timeout=2400
    )
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert wheel.name == f"rankmill-{rankmill.__version__}-{python}-none-manylinux_2_17_x86_64.whl"
    assert wheel.stat().st_size < 25_000_000
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "site")

    def everything(packages: Path, name: str) -> tuple[int, dict[str, Any]]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA", "PYTHON"))}
        done = subprocess.run(
            [sys.executable, "-c", EVERYTHING, str(tmp_path / name)],
            env={**clean, "PYTHONPATH": str(packages)},
            cwd=packages,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        home, compiled, made = json.loads(done.stdout)
        assert home.startswith(str(packages))
        return compiled, made

    compiled, made = everything(tmp_path / "site", "shipped")
    assert compiled == 0
    assert len(made["blobs/**/*"]) > 100
    assert made == everything(ROOT, "native")[1]


@pytest.mark.slow
def test_the_sdist_holds_plain_files(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        members = sdist.getmembers()
    assert all(member.isfile() or member.isdir() for member in members)  # links would not survive everywhere
    names = {member.name.partition("/")[2] for member in members}
    assert {
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "rankmill/py.typed",
        "rankmill/trainer/rounds/boosting.py",
    } <= names
    assert not any(name.startswith(("tests/test_", "docs", "benchmarks")) for name in names)


@pytest.mark.slow
def test_the_installed_wheel_runs_the_demo_beside_a_users_own_modules(built: Path, tmp_path: Path) -> None:
    home = tmp_path / "environment"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    command = [python, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", *built.glob("*.whl")]
    subprocess.run(command, check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")  # after the wheel, and no network
    for name in ("pipeline", "trainer", "scorer", "registry"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('this is not rankmill')\n")
    outside = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "RANKMILL"))}

    def run(*words: str | Path) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=outside, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert str(packages) in run(python, "-c", "import rankmill; from rankmill import Ranker; print(rankmill.__file__)")
    assert "the model" in run(home / "bin" / "rankmill", "demo", "--queries", "120")


def test_the_hook_refuses_long_commit_subjects() -> None:
    """As pre-commit's pygrep does with ``--multiline``: a message in which the pattern is found is refused."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    (hook,) = (each for each in hooks if each["id"] == "commit-subject")
    assert (hook["language"], hook["args"], hook["stages"]) == ("pygrep", ["--multiline"], ["commit-msg"])
    for subject, accepted in (
        ("x" * 72, True),
        ("x" * 73, False),
        ("é" * 72, True),
        ("é" * 73, False),
        ("short\n\n" + "a body may have long lines, such as a command or an error " * 2, True),
        ("fixup! " + "x" * 72, True),
    ):
        found = re.search(hook["entry"].encode(), subject.encode(), re.MULTILINE | re.DOTALL)
        assert (found is None) == accepted, subject
