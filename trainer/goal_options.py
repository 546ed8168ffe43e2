"""Options for several goals: their weights, and a sweep over weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum, isfinite
from typing import Any

from rankmill.foundation.errors import InputError, InvalidParameter
from rankmill.foundation.options import option, options, spelled
from rankmill.foundation.scalars import real_number
from rankmill.pipeline.goals import checked_goals

MIXES = SUM, DRAW = ("sum", "draw")
ROUNDING = 1e-9  # of sums of weights


def parse_goals(texts: Iterable[str]) -> dict[str, float] | list[str]:
    """Read ``NAME:WEIGHT,NAME:WEIGHT``, or names alone.

    >>> parse_goals(["bought:0.3,fresh:0.1"]), parse_goals(["bought", "fresh"])
    ({'bought': 0.3, 'fresh': 0.1}, ['bought', 'fresh'])

    Raises
    ------
    InvalidParameter
        A weight is not a number, or only some goals have one.
    """
    parts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    if not any(":" in part for part in parts):
        return parts
    found: dict[str, float] = {}
    for part in parts:
        name, _, written = part.rpartition(":")
        try:
            weight = float(written)
        except ValueError:
            name, weight = "", 0.0
        if not name or name in found:
            raise InvalidParameter(
                f"{spelled('goals')}: expected each goal once as NAME:WEIGHT, such as bought:0.3,fresh:0.1, found {part!r}"
            )
        found[name] = weight
    return found


def as_goals(goals: Any) -> dict[str, float] | list[str]:
    """Return weights by name of goal, in the order of the names; or the names alone.

    >>> as_goals({"fresh": 0.1, "bought": 0.3}), as_goals(["fresh", "bought"])
    ({'bought': 0.3, 'fresh': 0.1}, ['bought', 'fresh'])

    Raises
    ------
    InvalidParameter
        Not such a mapping or sequence, a name that is no name of a goal, or weights below 0 or above 1 together.
    """
    option_name = spelled("goals")
    listed = isinstance(goals, Mapping) or (isinstance(goals, Sequence) and not isinstance(goals, str))
    if not listed or not all(isinstance(name, str) for name in goals):
        raise InvalidParameter(
            f"{option_name} must be weights by name, such as {{'bought': 0.3}}, or names alone, got {goals!r}"
        )
    try:
        names = list(checked_goals(goals))
    except InputError as error:
        raise InvalidParameter(str(error)) from None
    if not isinstance(goals, Mapping):
        return names or {}
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


def parse_floors(texts: Iterable[str]) -> dict[str, float]:
    """Read ``METRIC=VALUE,METRIC=VALUE``.

    >>> parse_floors(["ndcg@10:bought=0.55", "ndcg@10=0.4"])
    {'ndcg@10:bought': 0.55, 'ndcg@10': 0.4}

    Raises
    ------
    InvalidParameter
        A part has another form, or a metric is given twice.
    """
    found: dict[str, float] = {}
    for part in (part.strip() for text in texts for part in text.split(",") if part.strip()):
        name, _, written = part.rpartition("=")
        try:
            floor = float(written)
        except ValueError:
            name, floor = "", 0.0
        if not name.strip() or name.strip() in found:
            raise InvalidParameter(
                f"{spelled('goal_floors')}: expected each metric once as METRIC=VALUE, such as ndcg@10:bought=0.55, found {part!r}"
            )
        found[name.strip()] = floor
    return found


def as_floors(floors: Any) -> dict[str, float]:
    """Return floors by metric as plain numbers; InvalidParameter if it is no such mapping."""
    name = spelled("goal_floors")
    if not isinstance(floors, Mapping) or not all(isinstance(metric, str) for metric in floors):
        raise InvalidParameter(f"{name} must be values by metric, such as {{'ndcg@10:bought': 0.55}}, got {floors!r}")
    found = {str(metric): real_number(f"{name}[{metric!r}]", floor) for metric, floor in floors.items()}
    for metric, floor in found.items():
        if not isfinite(floor):
            raise InvalidParameter(f"{name}[{metric!r}] must be a finite number, got {floor}")
    return found


@options
class GoalSweepOptions:
    """How to find the weights of goals: train one model for each of some weights, and register one of them."""

    goal_steps: int = option(
        default=0,
        help="Train one model for each combination of this many weights of the goals, such as 0, 0.25, 0.5, 0.75 and 1 for 5, and"
        " register the one with the best metric that meets all --goal-floors; without floors, the one with the best mean of the"
        " metric over the grade and all goals. 0: train one model, with the weights of --goals.",
        least=0,
        most=101,
    )
    goal_floors: Mapping[str, float] = option(
        default_factory=dict,
        help="With goal_steps: minimum of a metric on the valid split, such as ndcg@10:bought=0.55, that the registered model must"
        " reach.",
        metavar="METRIC=VALUE,..",
        read=parse_floors,
        repeat=True,
        convert=as_floors,
    )

    def check_together(self) -> None:
        """Raise InvalidParameter if values do not go together."""
        if self.goal_steps == 1:
            raise InvalidParameter(f"{spelled('goal_steps')} must be 0 or 2 or more, as one weight is no choice, got 1")
        if self.goal_floors and not self.goal_steps:
            raise InvalidParameter(
                f"{spelled('goal_floors')} choose among the models of several weights; give {spelled('goal_steps')}, too"
            )


NO_SWEEP = GoalSweepOptions()
