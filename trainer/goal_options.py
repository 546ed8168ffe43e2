"""The weights of several goals, as options give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import fsum
from typing import Any

from rankmill.foundation.errors import InputError, InvalidParameter
from rankmill.foundation.options import spelled
from rankmill.foundation.scalars import real_number
from rankmill.pipeline.dataset.goals import checked_goals

MIXES = SUM, DRAW = ("sum", "draw")
ROUNDING = 1e-9  # of sums of weights


def parse_goals(texts: Iterable[str]) -> dict[str, float]:
    """Read ``NAME:WEIGHT,NAME:WEIGHT``.

    >>> parse_goals(["bought:0.3,fresh:0.1"])
    {'bought': 0.3, 'fresh': 0.1}

    Raises
    ------
    InvalidParameter
        A weight is not a number, or a goal has none.
    """
    parts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    found: dict[str, float] = {}
    for part in parts:
        name, _, written = part.rpartition(":")
        try:
            weight = float(written)
        except ValueError:
            name, weight = "", 0.0
        if not name or name in found:
            raise InvalidParameter(
                f"{spelled('goals')}: expected each goal once as NAME:WEIGHT, such as bought:0.3,fresh:0.1, found "
                f"{part!r}"
            )
        found[name] = weight
    return found


def as_goals(goals: Any) -> dict[str, float]:
    """Return weights by name of goal, in the order of the names.

    >>> as_goals({"fresh": 0.1, "bought": 0.3})
    {'bought': 0.3, 'fresh': 0.1}

    Raises
    ------
    InvalidParameter
        Not such a mapping, a name that is no name of a goal, or weights below 0 or above 1 together.
    """
    option_name = spelled("goals")
    if not isinstance(goals, Mapping) or not all(isinstance(name, str) for name in goals):
        raise InvalidParameter(f"{option_name} must be weights by name, such as {{'bought': 0.3}}, got {goals!r}")
    try:
        names = list(checked_goals(goals))
    except InputError as error:
        raise InvalidParameter(str(error)) from None
    found = {name: real_number(f"{option_name}[{name!r}]", goals[name]) for name in names}
    for name, weight in found.items():
        if not 0.0 <= weight <= 1.0:
            raise InvalidParameter(f"{option_name}[{name!r}] must be a weight in [0, 1], got {weight}")
    total = fsum(found.values())
    if total > 1.0 + ROUNDING:
        raise InvalidParameter(
            f"{option_name}: the weights must be at most 1 together, as the grade has the rest, got {total:g}"
        )
    return found
