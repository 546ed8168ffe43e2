"""Prometheus' text format 0.0.4 by its definition, for gauges as the node exporter's textfile collector wants them.

Stricter than a scraper: one HELP and one TYPE a name, before its samples and beside each other; no name twice; no series twice; no
timestamps; every line ends with a line feed and none is empty.  Written a character at a time.
"""

from __future__ import annotations

import re

Series = tuple[str, tuple[tuple[str, str], ...]]


def parse(text: str) -> dict[Series, float]:
    """The samples by name and sorted labels; AssertionError where a rule is broken."""
    assert text.endswith("\n")
    found: dict[Series, float] = {}
    seen: set[str] = set()
    name, typed = "", False
    for line in text[:-1].split("\n"):
        assert line
        if line.startswith("# HELP "):
            name, words = line[7:].split(" ", 1)
            assert name not in seen
            assert words
            assert re.fullmatch(r"(?:[^\\]|\\\\|\\n)*", words)
            seen.add(name)
            typed = False
        elif line.startswith("# TYPE "):
            assert line == f"# TYPE {name} gauge"
            assert not typed
            typed = True
        else:
            assert typed
            series, value = sample(line)
            assert series[0] == name
            assert series not in found
            found[series] = value
    return found


def sample(line: str) -> tuple[Series, float]:
    """One line ``name{label="value",..} number``."""
    name = re.match(r"[a-zA-Z_:][a-zA-Z0-9_:]*", line)
    assert name
    at, labels = name.end(), []
    if line[at] == "{":
        at += 1
        while line[at] != "}":
            label = re.match(r"[a-zA-Z_][a-zA-Z0-9_]*", line[at:])
            assert label
            assert not label[0].startswith("__")
            at += label.end()
            assert line[at : at + 2] == '="'
            at, value = at + 2, ""
            while line[at] != '"':
                if line[at] == "\\":
                    value += {"\\": "\\", '"': '"', "n": "\n"}[line[at + 1]]
                    at += 2
                else:
                    value += line[at]
                    at += 1
            labels.append((label[0], value))
            at += 1
            assert line[at] in ",}"
            at += line[at] == ","
        at += 1
    assert line[at] == " "
    number = line[at + 1 :]
    assert re.fullmatch(r"[+-]?(\d+(\.\d+)?(e[+-]?\d+)?|Inf)|NaN", number)
    assert len(dict(labels)) == len(labels)
    return (name[0], tuple(sorted(labels))), float(number)
