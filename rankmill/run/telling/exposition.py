"""Prometheus' text format, 0.0.4: samples of gauges to text and back.

Lines end with a line feed, the last one too.  ``# HELP`` and ``# TYPE`` come once before the samples of a name; in a help text
backslash and line feed are escaped, in the value of a label the double quote as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"'
_SAMPLE = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{((?:{_LABEL},?)*)\}})? (\S+)")
_PAIR = re.compile(_LABEL)
_ESCAPES = {"\\": "\\\\", "\n": "\\n", '"': '\\"'}
_UNESCAPED = {escaped: letter for letter, escaped in _ESCAPES.items()}

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One number."""

    name: str
    labels: Labels
    value: float

    @classmethod
    def of(cls, name: str, value: float, labels: Mapping[str, str]) -> Sample:
        """Make a sample; the order of the labels is that of ``labels``."""
        return cls(name, tuple(labels.items()), float(value))

    @property
    def series(self) -> tuple[str, frozenset[tuple[str, str]]]:
        """What there may be one of."""
        return self.name, frozenset(self.labels)


def exposition(samples: Iterable[Sample], helps: Mapping[str, str]) -> str:
    r"""Return ``samples`` as text, the names in the order of ``helps``; what has no help text is left out.

    >>> print(exposition([Sample.of("up", 1, {"of": 'a "b"'})], {"up": "Whether."}), end="")
    # HELP up Whether.
    # TYPE up gauge
    up{of="a \"b\""} 1
    """
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    lines = []
    for name, text in helps.items():
        if name in by_name:
            lines += [f"# HELP {name} {_escaped(text, 'help')}", f"# TYPE {name} gauge"]
            lines += sorted(_line(sample) for sample in by_name[name])
    return "".join(f"{line}\n" for line in lines)


def read_exposition(text: str) -> list[Sample]:
    """Return the samples of what `exposition` wrote; lines that it would not have written are left out."""
    found = []
    for line in text.split("\n"):
        match = None if line.startswith("#") else _SAMPLE.fullmatch(line)
        if match is None:
            continue
        labels = tuple((name, _unescaped(value)) for name, value in _PAIR.findall(match[2] or ""))
        try:
            found.append(Sample(match[1], labels, float(match[match.re.groups])))
        except ValueError:
            continue
    return found


def _line(sample: Sample) -> str:
    labels = ",".join(f'{name}="{_escaped(value, "label")}"' for name, value in sample.labels)
    return f"{sample.name}{{{labels}}} {_number(sample.value)}" if labels else f"{sample.name} {_number(sample.value)}"


def _escaped(text: str, where: str) -> str:
    return "".join(_ESCAPES.get(letter, letter) if letter != '"' or where == "label" else letter for letter in text)


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda match: _UNESCAPED[match[0]], text)


def _number(value: float) -> str:
    if math.isfinite(value):
        return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
