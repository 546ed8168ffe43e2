"""Small faults put into the sources, one at a time, to see whether the tests find them.

``python -m benchmarks.mutations draw > list.jsonl`` draws five faults a folder by a seed: a comparison flipped, a check
dropped, a constant changed. ``python -m benchmarks.mutations run list.jsonl`` puts each into this checkout, runs the
tests of its folder, then the others if these pass, puts the line back, and prints what was found. Run it in a checkout
of its own:
a file of the sources holds the fault while its tests run.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("foundation", "pipeline", "scorer", "trainer", "registry", "rankmill")
OTHER = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}


def faults_of(path: Path) -> Iterator[dict[str, object]]:
    """Every fault that can be put into one line of a file."""
    text = path.read_text()
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OTHER:
                kind, part = "comparison", node
                new = f"{ast.unparse(left)} {OTHER[type(op)]} {ast.unparse(right)}"
            case ast.If(test=test, body=[ast.Raise()], orelse=[]):
                kind, part, new = "check", test, "False"
            case ast.Constant(value=value) if type(value) in (int, float):
                kind, part, new = "constant", node, repr(value + 1)
            case _:
                continue
        if part.lineno == part.end_lineno and lines[part.lineno - 1].isascii():
            line = lines[part.lineno - 1]
            changed = f"{line[: part.col_offset]}({new}){line[part.end_col_offset :]}"
            yield {"file": str(path), "line": part.lineno, "kind": kind, "before": line, "after": changed}


def draw(seed: int, each: int) -> None:
    """Print ``each`` faults of every folder, all kinds equally likely, as JSON lines."""
    chance = random.Random(seed)
    for folder in FOLDERS:
        faults = [fault for path in sorted(Path(folder).rglob("*.py")) for fault in faults_of(path)]
        for number in range(each):
            kind = ("comparison", "check", "constant")[number % 3]
            print(json.dumps(chance.choice([fault for fault in faults if fault["kind"] == kind])))


def run(faults: list[dict[str, str]]) -> None:
    """Put every fault into the checkout in turn and print which test fails."""
    for fault in faults:
        path = Path(fault["file"])
        text = path.read_text()
        if text.splitlines().count(fault["before"]) == 0:
            print(f"gone       {fault['file']}: {fault['before'].strip()}", flush=True)
            continue
        lines = text.splitlines(keepends=True)
        places = [number for number, line in enumerate(lines) if line.rstrip("\n") == fault["before"]]
        place = min(places, key=lambda number: abs(number - int(fault["line"]) + 1))
        lines[place] = fault["after"] + "\n"
        path.write_text("".join(lines))
        start = time.monotonic()
        try:
            found = first_failure(path.parts[0])
        finally:
            path.write_text(text)
        seconds = time.monotonic() - start
        print(
            f"{'found' if found else 'NOT FOUND':10} {seconds:4.0f} s  {path}:{place + 1}  {fault['after'].strip()}  "
            f"{found}",
            flush=True,
        )


def first_failure(folder: str) -> str:
    """The first test that fails, of the folder's tests and then of all others; empty if none does."""
    own = f"tests/{folder}"
    for tests in ([own], ["tests", f"--ignore={own}"]):
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        result = subprocess.run(command, check=False, capture_output=True, text=True)
        if result.returncode:
            failed = [line for line in result.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            return failed[0] if failed else result.stdout[-200:]
    return ""


def main() -> None:
    """Read the command line."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("step", choices=("draw", "run"))
    arguments.add_argument("list", nargs="?", type=Path)
    arguments.add_argument("--seed", type=int, default=42)
    arguments.add_argument("--each", type=int, default=5)
    given = arguments.parse_args()
    if given.step == "draw":
        draw(given.seed, given.each)
    else:
        run([json.loads(line) for line in given.list.read_text().splitlines()])


if __name__ == "__main__":
    main()
