"""Splits that every tree begins with, in the form of LightGBM's ``forcedsplits_filename``.

    {"feature": "bm25", "threshold": 12.5, "left": {"feature": "age", "threshold": 3}}

Of a categorical feature the threshold is a category, or a list of categories that go left.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import spelled
from rankmill.foundation.scalars import whole_number

FEATURE, THRESHOLD, SIDES = "feature", "threshold", ("left", "right")
_FORM = 'such as {"feature": "bm25", "threshold": 12.5, "left": {..}, "right": {..}}'


def as_forced_splits(given: Any) -> dict[str, Any]:
    """Return the splits of a mapping, of JSON text, or of the JSON file at a path, with plain values; empty for an empty mapping.

    >>> as_forced_splits('{"feature": "bm25", "threshold": 12}')
    {'feature': 'bm25', 'threshold': 12.0}
    >>> as_forced_splits({"feature": "bm25", "threshold": 12, "left": {}})
    {'feature': 'bm25', 'threshold': 12.0}

    Raises
    ------
    InvalidParameter
        There is no such file, it is not valid JSON, or the splits have another form.
    """
    where = spelled("forced_splits")
    if isinstance(given, str) and given.lstrip().startswith("{"):
        given = _parsed(given, where)
    elif isinstance(given, str | os.PathLike):
        path = Path(given)
        given, where = _read(path), str(path)
    return _checked(given, f"{where}: ")


def _read(path: Path) -> Any:
    """Return the content of a JSON file."""
    try:
        text = path.read_bytes()
    except OSError:
        raise InvalidParameter(
            f"{spelled('forced_splits')}: expected a JSON file with splits, found no file {path}"
        ) from None
    return _parsed(text, str(path))


def _parsed(text: str | bytes, where: str) -> Any:
    """Return the content of JSON text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidParameter(f"{where}: expected JSON with splits {_FORM}, found none: {error}") from None


def _checked(given: Any, where: str) -> dict[str, Any]:
    """Return a node and what is below it; ``where`` begins messages."""
    if not isinstance(given, Mapping):
        raise InvalidParameter(f"{where}expected a split {_FORM}, found {given!r}")
    if not given:
        return {}
    for name in given:
        if name not in {FEATURE, THRESHOLD, *SIDES}:
            raise InvalidParameter(f"{where}unknown key {name!r} of a split; it has feature, threshold, left and right")
    if FEATURE not in given or THRESHOLD not in given:
        raise InvalidParameter(f"{where}expected a split with feature and threshold, found {dict(given)!r}")
    feature = given[FEATURE]
    if not isinstance(feature, str) or not feature:
        feature = whole_number(f"{where}feature", feature)
        if feature < 0:
            raise InvalidParameter(f"{where}feature must be a name or a number from 0, got {feature}")
    found = {FEATURE: feature, THRESHOLD: _threshold(given, where)}
    sides = {side: _checked(given.get(side) or {}, where) for side in SIDES}
    return found | {side: below for side, below in sides.items() if below}


def _threshold(given: Mapping[str, Any], where: str) -> float | str | list[float | str]:
    """Return the threshold of a split: a number, a category, or several."""
    written = given[THRESHOLD]
    several = isinstance(written, Sequence) and not isinstance(written, str)
    found: list[float | str] = []
    for each in written if several else [written]:
        value: float | str = ""
        with suppress(TypeError, ValueError):
            value = each if isinstance(each, str) else float(each)
        if isinstance(each, bool) or value == "" or (isinstance(value, float) and not isfinite(value)):
            raise InvalidParameter(
                f"{where}threshold of {given[FEATURE]!r} must be a number, a category or a list of categories, got {each!r}"
            )
        found.append(value)
    if not found:
        raise InvalidParameter(f"{where}threshold of {given[FEATURE]!r} must have a category, got []")
    return found if several else found[0]


class ForcedSplit(NamedTuple):
    """A forced split, the numbers of those above it from the root down, and its side of the last of them."""

    feature: str | int
    threshold: Any
    above: tuple[int, ...]
    side: int


def listed(splits: Mapping[str, Any]) -> list[ForcedSplit]:
    """Return the splits breadth first."""
    waiting: list[tuple[Mapping[str, Any], tuple[int, ...], int]] = [(splits, (), 0)] if splits else []
    found: list[ForcedSplit] = []
    for number, (node, above, side) in enumerate(waiting):  # which grows
        found.append(ForcedSplit(node[FEATURE], node[THRESHOLD], above, side))
        waiting += [(node[name], (*above, number), below) for below, name in enumerate(SIDES) if name in node]
    return found


def first_of_depths(splits: Mapping[str, Any]) -> list[int]:
    """Return the number of the first split of each depth; for oblivious trees, whose nodes of a depth share a condition.

    InvalidParameter if they do not.
    """
    found: list[int] = []
    every = listed(splits)
    for number, split in enumerate(every):
        depth = len(split.above)
        if depth == len(found):
            found.append(number)
        first = every[found[depth]]
        if split[:2] != first[:2]:
            raise InvalidParameter(
                f"{spelled('forced_splits')}: all nodes of a depth share a condition with {spelled('grow')} 'oblivious', found"
                f" {first.feature!r} at {first.threshold!r} and {split.feature!r} at {split.threshold!r}"
            )
    return found


def of_features(splits: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the splits by features among ``names``, without all that is below another one.

    Raises
    ------
    InvalidParameter
        A feature is given by its number, which means another one among fewer features.
    """
    if not splits:
        return {}
    if not isinstance(splits[FEATURE], str):
        raise InvalidParameter(
            f"{spelled('forced_splits')}: give features by name, not by number, where features are left out; found {splits[FEATURE]}"
        )
    if splits[FEATURE] not in names:
        return {}
    below = {side: of_features(splits[side], names) for side in SIDES if side in splits}
    return {FEATURE: splits[FEATURE], THRESHOLD: splits[THRESHOLD]} | {
        side: each for side, each in below.items() if each
    }
