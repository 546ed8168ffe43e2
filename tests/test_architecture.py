"""The rules of the house that a machine can check: who imports whom, where printing is allowed, what a command owes."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

MAY_IMPORT: dict[str, set[str]] = {
    "foundation": set(),
    "pipeline": {"foundation"},
    "registry": {"foundation"},
    "scorer": {"foundation", "pipeline"},
    "trainer": {"foundation", "pipeline", "scorer"},
    "rankmill": {"foundation", "pipeline", "scorer", "trainer", "registry"},
}
COMPOSING_MAY = {"registry"}  # cli*.py and *_service.py compose; the libraries do not know that there is a store
HEAVY = {"duckdb", "joblib", "numba", "numpy", "polars", "pyarrow", "pydantic"}


def imports_of(path: Path) -> list[tuple[int, str]]:
    """Line and full module name of every import in ``path``, inside functions too."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively: name the package"
            found.append((node.lineno, node.module or ""))
    return found


def package_of(module: str) -> str | None:
    """The folder at the top level that holds ``module``: pipeline for ``rankmill.pipeline.dataset``; None where it is not ours."""
    first, _, rest = module.partition(".")
    if first != "rankmill":
        assert first not in MAY_IMPORT, f"{module}: import it as rankmill.{module}"
        return None
    second = rest.partition(".")[0]
    return second if second in MAY_IMPORT else first


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def tracked_files() -> list[Path]:
    """What git tracks; in a copy without git, every file that is not in a hidden or generated folder."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
        if listed.returncode == 0:
            paths = [ROOT / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
            return [path for path in paths if path.is_file()]
    generated = {"__pycache__", "build", "dist", "registry-data", "rankmill-demo", "work"}
    return [
        path
        for path in ROOT.rglob("*")
        if path.is_file()
        and not any(
            part in generated or (part.startswith(".") and part != ".ci") or part.endswith(".egg-info")
            for part in path.relative_to(ROOT).parts[:-1]
        )
    ]


def lines_matching(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    found = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
            for number, line in enumerate(text.splitlines(), start=1)
            if pattern.search(line)
        ]
    return found


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_follow_the_arrows(package: str) -> None:
    for path in sources(package):
        composes = path.stem.split("_")[0] == "cli" or path.stem.endswith("_service")
        allowed = MAY_IMPORT[package] | (COMPOSING_MAY if composes else set())
        for line, module in imports_of(path):
            used = {package_of(module)} - {package, None}
            assert used <= allowed, f"{path}:{line} imports {module}"


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_kernels_import_kernels_alone(package: str) -> None:
    """Compiled kernels are kept under a digest of all kernel sources: what they take from other files would go unnoticed."""
    for path in sources(package):
        text = path.read_text(encoding="utf-8")
        if path.name.endswith("_kernels.py"):
            ours = [(line, module) for line, module in imports_of(path) if package_of(module)]
            assert all(re.search(r"_kernels$|^rankmill\.foundation\.kernels\.", module) for _, module in ours), (
                path,
                ours,
            )
            assert "njit" not in text, f"{path}: decorate with kernel from foundation/kernels/compiling.py"
        elif path.parent != ROOT / "foundation" / "kernels":
            assert not re.search(r"^@(kernel|njit)", text, re.MULTILINE), f"{path}: kernels belong in a _kernels.py"


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_only_the_command_line_prints(package: str) -> None:
    for path in sources(package):
        if path.stem.split("_")[0] == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            printing = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            assert not printing, f"{path}:{getattr(node, 'lineno', 0)} prints; raise, return or log instead"


def test_every_folder_of_python_files_is_an_installed_package() -> None:
    """A package without ``__init__.py``, or one that pyproject does not list, is there in the tree and gone when installed."""
    for package in MAY_IMPORT:
        for path in sources(package):
            assert (path.parent / "__init__.py").is_file(), f"{path.parent} has no __init__.py"


LIGHT = """
import sys
{statement}
print(*sorted(set(sys.modules) & {heavy!r}), file=sys.__stdout__)
"""
SILENT = "from rankmill.cli import execute; sys.stdout = sys.stderr; "


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import rankmill", HEAVY),
        (
            "import rankmill.foundation.errors, rankmill.foundation.exit_codes",
            HEAVY,
        ),
        ("import rankmill.cli", HEAVY),
        (SILENT + "assert execute(['--help']) == 0", HEAVY),
        (
            SILENT + "assert execute(['train', '--help']) == 0",
            HEAVY - {"pydantic"},
        ),  # Typer itself reads options with it
    ],
)
def test_no_heavy_library_is_loaded_before_a_command_runs(statement: str, heavy: set[str]) -> None:
    code = LIGHT.format(statement=statement, heavy=heavy)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def public_commands() -> list[tuple[tuple[str, ...], str]]:
    """Name and whole help text of every command that a user can see."""
    from typer.main import get_command

    from rankmill.cli import app

    def walk(command: object, name: tuple[str, ...]) -> list[tuple[tuple[str, ...], str]]:
        below = getattr(command, "commands", None)
        if below is None:
            return [(name, getattr(command, "help", None) or "")]
        return [row for key in below if not below[key].hidden for row in walk(below[key], (*name, key))]

    return walk(get_command(app), ())


def test_the_commands_are_the_documented_ones() -> None:
    assert {" ".join(name) for name, _ in public_commands()} == {
        *(
            "demo",
            "run",
            "schedule",
            "health",
            "report",
            "train",
            "cv",
            "tune",
            "rerank",
            "evaluate",
            "explain-metric",
            "convert",
            "compare",
        ),
        *(
            f"inspect {what}"
            for what in ("influence", "dependence", "interaction", "shap", "why", "combine", "optimality")
        ),
        *("data ingest", "data bin", "data describe", "data query", "data synth"),
        *("models list", "models show", "models log", "models promote", "models rollback", "models verify"),
        *("models init", "models alias", "models tag", "models diff", "models gate", "models gc", "models fsck"),
        *("models export", "models import", "models register"),
    }


def test_every_command_has_help_with_an_example_of_itself() -> None:
    for name, text in public_commands():
        call = "rankmill " + " ".join(name)
        assert call in text, f"the help of `{call}` has no example of itself"


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [" ".join(name) for name, _ in public_commands() if "rankmill " + " ".join(name) not in readme]
    assert not missing, f"README.md does not show: {', '.join(missing)}"


def test_no_tracked_file_names_a_place_on_the_machine_it_was_written_on() -> None:
    homes = "|".join(("work", "farm", "root", "Users", "home"))
    places = re.compile(rf"(^|[^A-Za-z0-9_.}}])/({homes})/[A-Za-z.]")
    assert lines_matching(places, tracked_files()) == []


def test_no_tracked_file_names_a_package_index() -> None:
    hosts = re.compile("|".join(("pypi" r"\.org", "python" r"hosted\.org", "index-url", "find-links")))
    allowed = {ROOT / "tests" / "test_architecture.py"}
    assert lines_matching(hosts, [path for path in tracked_files() if path not in allowed]) == []


def test_the_locks_hold_hashes_and_no_address() -> None:
    for name in ("runtime", "dev", "bench"):
        text = (ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8")
        assert "://" not in text
        assert "file:" not in text
        pins = [line for line in text.splitlines() if line and not line[0].isspace()]
        assert pins
        assert all("==" in line for line in pins)
        for block in re.split(r"\n(?=\S)", text.strip()):
            assert "--hash=sha256:" in block, block.splitlines()[0]


def test_the_locks_agree_with_each_other() -> None:
    def pins(name: str) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for line in (ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8").splitlines():
            if line and not line[0].isspace():
                package, version = re.match(r"([^=]+)==(\S+)", line).groups()  # type: ignore[union-attr]
                found.setdefault(package, set()).add(version)
        return found

    runtime = pins("runtime")
    for name in ("dev", "bench"):
        other = pins(name)
        for package, versions in runtime.items():
            assert other.get(package) == versions, f"{package} in locks/{name}.txt"
