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

from tests import ROOT

MAY_IMPORT: dict[str, set[str]] = {
    "foundation": set(),
    "pipeline": {"foundation"},
    "registry": {"foundation"},
    "scorer": {"foundation", "pipeline"},
    "trainer": {"foundation", "pipeline", "scorer"},
    "rankmill": {"foundation", "pipeline", "scorer", "trainer", "registry"},
}
COMPOSING_MAY = {"registry"}  # cli*.py and *_service.py compose; the libraries do not know that there is a store
HEAVY = {"dask", "distributed", "duckdb", "joblib", "numba", "numpy", "polars", "pyarrow", "pydantic"}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path) -> list[tuple[int, str]]:
    """Line and full module name of every import in ``path``, inside functions too."""
    found = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively: name the package"
            found.append((node.lineno, node.module or ""))
    return found


def package_of(module: str) -> str | None:
    """The folder at the top level that holds ``module``: pipeline for ``rankmill.pipeline.dataset.dataset``; None where
    it is not ours."""
    first, _, rest = module.partition(".")
    if first != "rankmill":
        assert first not in MAY_IMPORT, f"{module}: import it as rankmill.{module}"
        return None
    second = rest.partition(".")[0]
    return second if second in MAY_IMPORT else first


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def all_sources() -> list[tuple[str, Path]]:
    return [(package, path) for package in MAY_IMPORT for path in sources(package)]


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


def test_imports_follow_the_arrows() -> None:
    for package, path in all_sources():
        composes = path.stem.split("_")[0] == "cli" or path.stem.endswith("_service")
        allowed = MAY_IMPORT[package] | (COMPOSING_MAY if composes else set())
        for line, module in imports_of(path):
            used = {package_of(module)} - {package, None}
            assert used <= allowed, f"{path}:{line} imports {module}"


def test_kernels_import_kernels_alone() -> None:
    """Compiled kernels are kept under a digest of the modules that they import: an edit elsewhere should not compile
    them anew."""
    for _, path in all_sources():
        text = path.read_text(encoding="utf-8")
        if path.name.endswith("_kernels.py"):
            for line, module in imports_of(path):
                kernels = re.search(r"_kernels$|^rankmill\.foundation\.kernels\.", module)
                assert kernels or not package_of(module), f"{path}:{line} imports {module}"
            assert "njit" not in text, f"{path}: decorate with kernel from foundation/kernels/compiling.py"
        elif path.parent != ROOT / "foundation" / "kernels":
            assert not re.search(r"^@(kernel|njit)", text, re.MULTILINE), f"{path}: kernels belong in a _kernels.py"


def test_only_the_command_line_prints() -> None:
    for _, path in all_sources():
        if path.stem.split("_")[0] == "cli" or "print(" not in path.read_text(encoding="utf-8"):
            continue
        for node in ast.walk(tree_of(path)):
            printing = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            assert not printing, f"{path}:{getattr(node, 'lineno', 0)} prints; raise, return or log instead"


@cache
def modules() -> dict[str, Path]:
    """All modules by their names, those that a linked folder shows a second time once."""
    found = {}
    for package in MAY_IMPORT:
        for path in sources(package):
            parts = list(path.relative_to(ROOT).with_suffix("").parts)
            if parts[0] == "rankmill" and len(parts) > 2 and (ROOT / "rankmill" / parts[1]).is_symlink():
                continue
            name = ".".join(parts if parts[0] == "rankmill" else ["rankmill", *parts])
            found[name.removesuffix(".__init__")] = path
    return found


def modules_imported_by(path: Path) -> set[str]:
    """Modules of ours that ``path`` imports anywhere, for type checking and inside functions too."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules() else str(node.module) for name in names}
    return found & modules().keys()


def test_no_module_imports_itself_through_others() -> None:
    imported = {name: sorted(modules_imported_by(path) - {name}) for name, path in modules().items()}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, "imports go round: " + " -> ".join((*above[above.index(name) :], name))
        if name not in done:
            for other in imported[name]:
                visit(other, (*above, name))
            done.add(name)

    for name in imported:
        visit(name, ())


MEANS_DIFFERENT_THINGS = {
    "--absent": "of judgments that are read; of a model that another tool has trained",
    "--as": "the name that an imported model gets; what is made from clicks",
    "--alias": "the alias to move, or whose place a candidate is to take",
    "--propensities": "of judgments, or of a model, which keeps their numbers",
    "--reason": "of a change; of a verdict, which changes nothing",
    "--by": "all columns to slice by, or those besides what a report has anyway",
    "--categorical": "features that are read as categories; how many categories to generate",
    "--clicks": "the file of a simulated log; which demo",
    "--convention": "a name; a name that an alias may ask for; a digest",
    "--dataset": "a digest to protect by, or what a model was trained on",
    "--features": "how many to generate, or their names",
    "--folds": "which parts a dataset has, or how often a training is repeated",
    "--fresh": "without what a killed run has left, or another search",
    "--from": "a number, a format",
    "--goals": "columns that are read as further grades, or what to learn from and its weights",
    "--grace": "of versions that nobody wants, or of a run that is to end",
    "--keep": "columns of candidates, or versions of a model",
    "--log-every": "rounds, or trials",
    "--margin": "of this gate, or the widest of all gates",
    "--max-grade": "a bound on judgments, or a part of the metric err",
    "--metric": "one or several, with a default of each command's own",
    "--model": "one, or several; of clicks",
    "--n-rounds": "to train, to score with, to look at, to convert",
    "--name": "in the registry, or in another tool",
    "--on": "documents for comparisons, for means, for a gate",
    "--open": "of a new registry, or of one alias",
    "--out": "each command writes something else",
    "--overwrite": "a file, a dataset, ranked lists",
    "--protect": "aliases to name, or that of the command",
    "--qid": "the one query, or those to look at",
    "--queries": "to generate, to generate for the demo (50 at least), to draw",
    "--seed": "of judgments, of a training, of what is drawn",
    "--seeds": "whether to look for them, or which to train with",
    "--split": "shares to draw; a split of a dataset, or all; one that a gate may go by",
    "--threads": "of an ingest, or of a query in SQL: 4 at most",
    "--to": "a number, a format, a version",
}
"""Options that may be declared more than once: what they mean, which is not the same in all commands."""


def flag_of(call: ast.Call, name: str) -> str:
    """Return the option that ``call``, to ``typer.Option`` or ``option``, declares for the parameter or field
    ``name``."""
    flags = [*call.args]
    flags += [flag for each in call.keywords if each.arg == "flags" for flag in getattr(each.value, "elts", ())]
    for flag in flags:
        if isinstance(flag, ast.Constant) and str(flag.value).startswith("--"):
            return str(flag.value).partition("/")[0]
    assert name.islower(), f"{name}: an alias of an option says its flag"
    return "--" + name.replace("_", "-").strip("-")


def options_declared_in(path: Path) -> list[tuple[str, str, str]]:
    """Return (option, help text, place) of all that ``path`` declares with a help text of their own."""
    if not re.search(r"\b(option|Option|younger)\(", path.read_text(encoding="utf-8")):
        return []
    found = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            within = [node.annotation] if isinstance(node, ast.arg) else [node.annotation, node.value]
            name = node.arg if isinstance(node, ast.arg) else ast.unparse(node.target)
        elif isinstance(node, ast.Assign):
            within, name = [node.value], ast.unparse(node.targets[0])
        else:
            continue
        for call in (each for part in within if part is not None for each in ast.walk(part)):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in {"typer.Option", "option", "younger"}:
                said = {each.arg: each.value for each in call.keywords}
                if (
                    isinstance(said.get("help"), ast.Constant | ast.JoinedStr | ast.BinOp)
                    and "on_command_line" not in said
                ):
                    place = f"{path.relative_to(ROOT)}:{call.lineno}"
                    found.append((flag_of(call, name), ast.unparse(said["help"]), place))
    return found


def test_no_option_of_the_command_line_is_declared_twice() -> None:
    declared: dict[str, list[tuple[str, str]]] = {}
    for path in set(modules().values()) - {
        ROOT / "rankmill" / "python" / "ranker.py"
    }:  # whose options are Python's alone
        if path.is_relative_to(
            ROOT / "trainer" / "objectives"
        ):  # theirs stand in brackets after a name and are no flags
            continue
        for option, text, place in options_declared_in(path):
            declared.setdefault(option, []).append((text, place))
    twice = {option: sorted(rows) for option, rows in declared.items() if len(rows) > 1}
    for option, rows in twice.items():
        places = ", ".join(place for _, place in rows)
        assert option in MEANS_DIFFERENT_THINGS, f"{option} is declared in {places}: share one alias or group"
        assert len({text for text, _ in rows}) == len(rows), f"{option} is declared in the same words in {places}"
    assert twice.keys() == MEANS_DIFFERENT_THINGS.keys()


MOST_PARAMETERS = 10


def test_functions_take_groups_of_options_and_not_their_fields_one_by_one() -> None:
    for path in set(modules().values()):
        if path.stem.endswith("_kernels") or "kernels" in path.parts:
            continue  # compiled code takes flat arguments
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef):
                names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                n = len([name for name in names if name not in {"self", "cls"}])
                assert n <= MOST_PARAMETERS, f"{path}:{node.lineno} {node.name} has {n} parameters: group them"


def test_no_two_public_classes_have_one_name() -> None:
    """A stranger who searches for a class finds the one that is meant."""
    found: dict[str, Path] = {}
    for path in sorted(set(modules().values())):
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                other = found.setdefault(node.name, path)
                assert other == path, f"class {node.name} is in {other} and in {path}: give one of them another name"


def test_every_folder_of_python_files_is_an_installed_package() -> None:
    """A package without ``__init__.py``, or one that pyproject does not list, is there in the tree and gone when
    installed."""
    for _, path in all_sources():
        assert (path.parent / "__init__.py").is_file(), f"{path.parent} has no __init__.py"


LIGHT = """
import sys
{statement}
print(*sorted(set(sys.modules) & {heavy!r}), file=sys.__stdout__)
"""
HELP = "from rankmill.cli import execute; sys.stdout = sys.stderr; "


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        (
            "import rankmill.foundation.errors, rankmill.foundation.exit_codes; "
            + HELP
            + "assert execute(['--help']) == 0",
            HEAVY,
        ),
        (HELP + "assert execute(['train', '--help']) == 0", HEAVY - {"pydantic"}),  # Typer itself reads options with it
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
        return [row for key in below for row in walk(below[key], (*name, key))]

    return walk(get_command(app), ())


COMMANDS = """
demo run schedule health doctor warm report train cv tune select-features rerank evaluate explain-metric convert compare
inspect: influence dependence interaction shap leaves why combine optimality
data: ingest bin describe query synth
clicks: describe fit judge evaluate interleave interleaving-outcome
models: list show log promote rollback verify init alias diff gate gc export import copy register merge blend
"""


def test_the_commands_are_the_documented_ones() -> None:
    lines = [line.rpartition(": ") for line in COMMANDS.strip().splitlines()]
    documented = {f"{group} {name}".strip() for group, _, names in lines for name in names.split()}
    assert {" ".join(name) for name, _ in public_commands()} == documented


def test_every_command_has_help_with_an_example_of_itself() -> None:
    for name, text in public_commands():
        call = "rankmill " + " ".join(name)
        assert call in text, f"the help of `{call}` has no example of itself"


def test_every_command_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    missing = [" ".join(name) for name, _ in public_commands() if f"[`{' '.join(name)}`]" not in page]
    assert not missing, f"docs/reference/commands.md does not show: {', '.join(missing)}"


def test_no_tracked_file_names_a_place_on_the_machine_it_was_written_on() -> None:
    homes = "|".join(("work", "farm", "root", "Users", "home"))
    places = re.compile(rf"(^|[^A-Za-z0-9_.}}])/({homes})/[A-Za-z.]")
    assert lines_matching(places, tracked_files()) == []


def test_no_tracked_file_names_a_package_index() -> None:
    hosts = re.compile("|".join(("pypi" r"\.org", "python" r"hosted\.org", "index-url", "find-links")))
    allowed = {ROOT / "tests" / "test_architecture.py"}
    assert lines_matching(hosts, [path for path in tracked_files() if path not in allowed]) == []


def test_the_locks_hold_hashes_and_no_address() -> None:
    for name in ("runtime", "cloud", "dask", "dev", "bench"):
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
    for name in ("cloud", "dask", "dev", "bench"):
        other = pins(name)
        for package, versions in runtime.items():
            assert other.get(package) == versions, f"{package} in locks/{name}.txt"
