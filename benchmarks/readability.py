"""Measure the prose of documentation, `--help`, docstrings and comments.

Measures are words a sentence and the share of sentences over 30 words.

    python benchmarks/readability.py [FOLDER]

FOLDER is a checkout (default: this one) with README.md and docs/.  The help is that of the installed package.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

LONG = 30
CODE = ("foundation", "pipeline", "registry", "scorer", "trainer", "rankmill", "tests", "benchmarks")


def sentences(text: str) -> list[int]:
    """Return the number of words of every sentence of prose, without code, tables, headings and lists of formulas."""
    text = re.sub(r"^```.*?^```$", "\n", text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->", "\n", text, flags=re.S)
    text = re.sub(r"^(\||#|:::| {4}|!\[).*$", "\n", text, flags=re.M)
    text = re.sub(r"^ *([-*]|\d+\.) ", "\n\n", text, flags=re.M)
    text = re.sub(r"`[^`]*`", "`code`", text)  # a sentence may begin with it
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`*])", " ".join(paragraph.split())):
            words = re.findall(r"[A-Za-z0-9@%'-]+", sentence)
            if len(words) > 2:
                found.append(len(words))
    return found


def code_prose(path: Path) -> str:
    """Return the docstrings and the comments of a module, each a paragraph of its own, without examples and tables.

    Indented blocks are code.
    """
    source = path.read_text(encoding="utf-8")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    found = [re.sub(r"^ *>>> .*?(\n\s*\n|\Z)|^=+ =+\n.*\n=+ =+$", "\n\n", text, flags=re.M | re.S) for text in found]
    found = [re.sub(r"``[^`]*``", "`code`", re.sub(r"^.*\n-{3,}$", "\n", text, flags=re.M)) for text in found]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found += [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    return "\n\n".join(found)


def helps() -> str:
    from typer.main import get_command

    from rankmill.cli import app

    def walk(command: object) -> list[str]:
        found = [getattr(command, "help", None) or ""]
        found += [param.help for param in getattr(command, "params", []) if getattr(param, "help", None)]
        return found + [text for one in getattr(command, "commands", {}).values() for text in walk(one)]

    texts = [re.sub(r"^.*?rankmill .*$", "", text, flags=re.M) for text in walk(get_command(app))]
    return "\n\n".join(texts)


def line(name: str, lengths: list[int]) -> str:
    long = sum(length > LONG for length in lengths)
    mean = sum(lengths) / max(len(lengths), 1)
    return f"{name:<24} {len(lengths):>9,} {mean:>18.1f} {100 * long / max(len(lengths), 1):>13.1f} %"


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    pages = sorted((root / "docs").rglob("*.md"))
    made = {path for path in pages if "reference" in path.parts}
    reports = {path for path in pages if "benchmark" in str(path.relative_to(root))}
    groups = {
        "README.md": [root / "README.md"],
        "docs, written": [path for path in pages if path not in made | reports],
        "docs, benchmarks": sorted(reports),
    }
    print(f"{'':<24} {'sentences':>9} {'words a sentence':>18} {'over 30 words':>15}")
    for name, paths in groups.items():
        print(line(name, [length for path in paths for length in sentences(path.read_text(encoding="utf-8"))]))
    if len(sys.argv) == 1:
        print(line("--help", sentences(helps())))
    for folder in CODE:
        modules = [path for path in sorted((root / folder).rglob("*.py")) if not path.is_symlink()]
        print(line(f"{folder}, code", [length for path in modules for length in sentences(code_prose(path))]))


if __name__ == "__main__":
    main()
