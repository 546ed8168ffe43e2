"""Goals: further grades of each document besides the main one, such as purchases, that are ranked by, too."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

ALL_GOALS = "goals"
"""In the name of a metric: the weighted mean of the metric over the main grade and all goals."""

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_RESERVED = frozenset(
    {
        ALL_GOALS, "qid", "doc_id", "grade", "label", "event", "weight", "offset", "position", "query_weight",
        "better", "worse", "probability", "score", "rank", "time", "split", "shard", "row", "features",
    }
)  # fmt: skip


def is_goal_name(name: str) -> bool:
    """Whether ``name`` has only letters, digits, ``_``, ``-`` and ``.``."""
    return _NAME.fullmatch(name) is not None


def checked_goals(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of goals, sorted, so that their order does not matter.

    >>> checked_goals(["fresh", "bought"])
    ('bought', 'fresh')

    Raises
    ------
    InputError
        A name is malformed, reserved, or occurs twice.
    """
    found = tuple(sorted(names))
    for name in found:
        if not is_goal_name(name):
            raise InputError(
                f"{spelled('goals')}: a goal has a name of letters, digits, '_', '-' and '.', got {name!r}; rename "
                "the column"
            )
        if name.lower() in _RESERVED:
            raise InputError(f"{spelled('goals')}: {name!r} is a reserved name; rename the column")
        if found.count(name) > 1:
            raise InputError(f"{spelled('goals')} names {name!r} twice")
    return found


def check_goal(metric: object, goal: str, goals: Collection[str], where: str) -> None:
    """Raise InputError if ``metric`` is of a ``goal`` that ``where`` lacks; empty: the main grade.

    ``goals`` are those that ``where`` has.
    """
    if not goal or goal in goals:
        return
    if goal == ALL_GOALS:
        raise InputError(
            f"metric {metric}: only training knows the weights of the goals; name one goal, or leave out ':{ALL_GOALS}'"
        )
    known = f"its goals are {', '.join(sorted(goals))}" if goals else "it has no goals"
    raise InputError(f"metric {metric}: {where} has no goal {goal!r}; {known}")
