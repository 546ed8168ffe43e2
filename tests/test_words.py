"""Words with a plainer alternative and long lines do not come back: in sources, help, messages, documentation, tests."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT

HERE = Path(__file__).relative_to(ROOT).as_posix()
TEXT = {".py", ".md", ".toml", ".yml", ".yaml", ".jinja", ".css", ".sh"}
INSTEAD = {  # what a use contains: the pattern and the alternatives
    "settl": (r"settl(e|es|ed|ing)", "resolve (grades), sort (rejects), flush (log), merge (judgments)"),
    "told": ("told", "printed, reported, distinguished, asked"),
    "whoever": ("whoever", "the subject of the sentence"),
    "put aside": ("put aside", "quarantine"),
    "apart": (r"(tell|keep)s? ([^\s.:;]+ ){0,5}apart", "distinguish, hold out, separate"),
    "hear": (r"hears?", "receive, print"),
    "not sound": ("not sound", "not valid"),
    "on with": (r"(go|goes|going|gone|went) on with", "resume, continue"),
    "methods": (r"(?-i:METHODS)( \d|\.md)", "the paper and its equation, or docs/methods.md"),
}
LONGEST = 120
WORDS = {part: re.compile(rf"(?<![a-z])({pattern})(?![a-z])", re.I) for part, (pattern, _) in INSTEAD.items()}


def uses() -> Iterator[tuple[str, str, str]]:
    """Yield place, word and alternatives."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False).stdout.decode()
    paths = [path for path in listed.split("\0") if Path(path).suffix in TEXT and (ROOT / path).is_file()]
    if not paths:
        pytest.skip("not a checkout")
    for path in paths:
        text = (ROOT / path).read_text(encoding="utf-8", errors="replace").replace("_", " ") if path != HERE else ""
        lower = text.lower()
        for part in INSTEAD:
            if part in lower:
                for use in WORDS[part].finditer(text):
                    line = text.count("\n", 0, use.start()) + 1
                    yield f"{path}:{line}", use[0], INSTEAD[part][1]


def long_lines() -> Iterator[str]:
    """Yield the lines of Markdown over 120 characters; ruff (E501) checks those of sources.

    Tables, blocks of code and generated pages are left out, and so are lines that cannot be broken.
    """
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "reference" not in path.parts]
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages):
        code = False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            code ^= line.lstrip().startswith("```")
            text = re.sub(r"`[^`]*`|\]\([^)]*\)", "x", line.lstrip())
            if len(line) > LONGEST and not code and " " in text[10:] and not text.startswith(("|", "#", "x")):
                yield f"{path.relative_to(ROOT)}:{number}"


def test_no_line_of_prose_is_longer_than_the_screen() -> None:
    assert list(long_lines()) == []


def test_words_with_a_plainer_alternative_are_not_used() -> None:
    assert list(uses()) == []
