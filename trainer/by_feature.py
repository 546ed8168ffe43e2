"""Read what options say of features by name: directions, amounts, and groups of them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import spelled
from rankmill.foundation.scalars import real_number, whole_number


def parse_monotone(texts: Iterable[str]) -> dict[str, int]:
    """Read ``NAME:1`` (scores never fall with the feature) and ``NAME:-1`` (they never rise).

    >>> parse_monotone(["bm25:1", "age:days:-1"])
    {'bm25': 1, 'age:days': -1}

    Raises
    ------
    InvalidParameter
        A text has another form, or a feature is given twice.
    """
    found: dict[str, int] = {}
    for text in texts:
        name, _, direction = text.rpartition(":")
        if any(before.rpartition(":")[2] in {"1", "+1", "-1"} and ":" in before for before in text.split(",")[:-1]):
            raise InvalidParameter(
                f"monotone: expected one NAME:1 or NAME:-1, found several in {text!r}; repeat {spelled('monotone')}"
            )
        if not name or direction.strip() not in {"1", "+1", "-1", "0"}:
            raise InvalidParameter(f"monotone: expected NAME:1 or NAME:-1, found {text!r}")
        if name in found:
            raise InvalidParameter(f"monotone: the feature {name!r} is given twice")
        found[name] = int(direction)
    return found


def without_zeros(monotone: Any) -> dict[str, int]:
    """Return the directions by feature name, without zeros, as plain int.

    >>> without_zeros({"bm25": 1, "age": 0})
    {'bm25': 1}

    Raises
    ------
    InvalidParameter
        Not a mapping from names to -1, 0 or 1.
    """
    if not isinstance(monotone, Mapping) or not all(isinstance(name, str) for name in monotone):
        raise InvalidParameter("monotone must map feature names to directions, such as {'bm25': 1}")
    found = {str(name): whole_number(f"monotone[{name!r}]", direction) for name, direction in monotone.items()}
    for name, direction in found.items():
        if direction not in {-1, 0, 1}:
            raise InvalidParameter(f"monotone[{name!r}] must be -1, 0 or 1, got {direction}")
    return {name: direction for name, direction in found.items() if direction}


def parse_amounts(option_name: str, texts: Iterable[str]) -> dict[str, float]:
    """Read ``NAME:NUMBER``.

    >>> parse_amounts("feature_weights", ["bm25:0.5", "age:days:2"])
    {'bm25': 0.5, 'age:days': 2.0}

    Raises
    ------
    InvalidParameter
        A text has another form, or a feature is given twice.
    """
    amounts: dict[str, float] = {}
    for text in texts:
        name, _, written = text.rpartition(":")
        try:
            amount = float(written)
        except ValueError:
            name, amount = "", 0.0
        if not name:
            raise InvalidParameter(f"{spelled(option_name)}: expected NAME:NUMBER, such as bm25:0.5, found {text!r}")
        if name in amounts:
            raise InvalidParameter(f"{spelled(option_name)}: the feature {name!r} is given twice")
        amounts[name] = amount
    return amounts


def as_amounts(option_name: str, amounts: Any) -> dict[str, float]:
    """Return numbers of 0 or more by feature name, as plain float.

    >>> as_amounts("feature_weights", {"bm25": 2})
    {'bm25': 2.0}

    Raises
    ------
    InvalidParameter
        Not a mapping from names to such numbers.
    """
    if not isinstance(amounts, Mapping) or not all(isinstance(name, str) for name in amounts):
        raise InvalidParameter(
            f"{spelled(option_name)} must be numbers by feature name, such as {{'bm25': 0.5}}, got {amounts!r}"
        )
    found = {str(name): real_number(f"{spelled(option_name)}[{name!r}]", amount) for name, amount in amounts.items()}
    for name, amount in found.items():
        if not 0.0 <= amount < inf:
            raise InvalidParameter(f"{spelled(option_name)}[{name!r}] must be 0 or more, got {amount}")
    return found


def parse_groups(texts: Iterable[str]) -> list[list[str]]:
    """Read groups of names separated by commas; a name with a comma is in double quotes, as in CSV.

    >>> parse_groups(["bm25,title", '"a,b",age'])
    [['bm25', 'title'], ['a,b', 'age']]
    """
    return [[name.strip() for name in next(csv.reader([text]), [])] for text in texts]


def as_groups(groups: Any) -> list[list[str]]:
    """Return groups of names as lists.

    >>> as_groups([("bm25", "title"), ["age"]])
    [['bm25', 'title'], ['age']]

    Raises
    ------
    InvalidParameter
        Not a sequence of sequences of names, a group is empty, or has a name twice.
    """
    name = spelled("interaction_constraints")
    listed = isinstance(groups, Sequence) and not isinstance(groups, str)
    if not listed or not all(isinstance(group, Sequence) and not isinstance(group, str) for group in groups):
        raise InvalidParameter(f"{name} must be lists of feature names, such as [['bm25', 'title'], ['age']]")
    for group in groups:
        if not group or not all(isinstance(each, str) and each for each in group) or len(set(group)) < len(group):
            raise InvalidParameter(f"{name}: expected different feature names in each group, found {list(group)!r}")
    return [list(group) for group in groups]
