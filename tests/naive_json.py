"""JSON lines by definition: Python's own reader, a line at a time."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from tests import naive

PARTS = {"qid", "doc_id", "grade"}
Row = tuple[str, str | None, int, dict[str, np.float32]]


def natural(name: str) -> list[Any]:
    """What names are sorted by: numbers in them as numbers."""
    return [int(part) if part.isdigit() else part for part in re.split("([0-9]+)", name)]


def parse(text: str) -> tuple[list[Row], list[int]]:
    """Rows of the good lines, and the numbers of the bad ones; features beside the ids or in an object."""
    objects = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip(" \t\r")]
    read = [(number, _object(line)) for number, line in objects]
    nested = any(found is not None and isinstance(found.get("features"), dict) for _, found in read)
    rows, bad = [], []
    for number, found in read:
        row = None if found is None else _row(found, nested=nested)
        if row is None:
            bad.append(number)
        else:
            rows.append(row)
    return rows, bad


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line, object_pairs_hook=_once)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def _row(found: dict[str, Any], *, nested: bool) -> Row | None:
    qid, doc_id, grade = (found.get(part) for part in ("qid", "doc_id", "grade"))
    features = found.get("features") if nested else {key: x for key, x in found.items() if key not in PARTS}
    if not isinstance(features, dict) or not all(x is None or isinstance(x, (int, float)) for x in features.values()):
        return None
    for cell in (qid, doc_id):
        if not (cell is None or isinstance(cell, str) or (isinstance(cell, int) and not isinstance(cell, bool))):
            return None
    if qid in (None, "") or not _is_number(grade) or grade != int(grade) or not 0 <= grade < 2**31:
        return None
    values = {key: naive.number_of(repr(float(x))) for key, x in features.items() if x is not None}
    return str(qid), None if doc_id in (None, "") else str(doc_id), int(grade), values


def _is_number(cell: object) -> bool:
    return isinstance(cell, (int, float)) and not isinstance(cell, bool)
