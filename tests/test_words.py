"""Words with a plainer alternative do not come back: in sources, help, messages, documentation and tests."""

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
    "on with": (r"(go|goes|going|gone|went) on with", "resume, continue"),
    "methods": (r"(?-i:METHODS)( \d|\.md)", "the paper and its equation, or docs/methods.md"),
}
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


def test_words_with_a_plainer_alternative_are_not_used() -> None:
    assert list(uses()) == []
