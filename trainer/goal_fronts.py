"""Weights of goals to try, the Pareto front of what they reach, and the choice by floors (the epsilon-constraint method)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import comb, fsum

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import spelled

MOST_POINTS = 200


def grid_of(goals: Sequence[str], steps: int) -> list[dict[str, float]]:
    """Return the weights to try: all multiples of 1 / (steps - 1) that sum to 1 with the rest, which the grade has.

    The ends are among them: the grade alone comes first, each goal alone later.  They show what each can reach at most.

    >>> grid_of(["bought"], 3), len(grid_of(["bought", "fresh"], 5))
    ([{'bought': 0.0}, {'bought': 0.5}, {'bought': 1.0}], 15)

    Raises
    ------
    InvalidParameter
        There are too many.
    """
    n_points = comb(steps - 1 + len(goals), len(goals))
    if n_points > MOST_POINTS:
        raise InvalidParameter(
            f"{spelled('goal_steps')} {steps} makes {n_points:,} combinations of weights of {len(goals)} goals, more than the"
            f" {MOST_POINTS} that are allowed; use fewer steps or goals"
        )
    whole = steps - 1
    return [
        {name: part / whole for name, part in zip(goals, parts, strict=True)} for parts in _parts(len(goals), whole)
    ]


def _parts(n: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yield all ``n`` whole numbers of 0 or more that sum to ``most`` or less, in lexicographic order."""
    if n == 0:
        yield ()
        return
    for first in range(most + 1):
        for others in _parts(n - 1, most - first):
            yield (first, *others)


def dominated_by(values: Sequence[Sequence[float]]) -> list[int | None]:
    """Return for each point another one that dominates it, by its place from 0; None: it is on the Pareto front.

    ``values`` (n_points, n_metrics): higher is better.  A point dominates another if no value is lower and one is higher.  The
    place is that of the first such point that is on the front itself.

    >>> dominated_by([(1, 4), (3, 3), (2, 3), (3, 3)])
    [None, None, 1, None]
    """
    beaten = [any(_dominates(other, one) for other in values) for one in values]
    front = [place for place, is_beaten in enumerate(beaten) if not is_beaten]
    return [
        next(place for place in front if _dominates(values[place], one)) if is_beaten else None
        for one, is_beaten in zip(values, beaten, strict=True)
    ]


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def shortfall(values: Mapping[str, float], floors: Mapping[str, float]) -> float:
    """Return how far the worst of ``values`` is below its floor; 0 if all meet theirs.

    >>> shortfall({"a": 0.5, "b": 0.2}, {"a": 0.4, "b": 0.25})
    0.04999999999999999
    """
    return max((floor - values[name] for name, floor in floors.items() if values[name] < floor), default=0.0)


def choose(
    values: Sequence[Mapping[str, float]], measured: Sequence[str], compared: Sequence[str], floors: Mapping[str, float]
) -> int | None:
    """Return the place from 0 of the point to take, or None if none meets the floors; of equal ones the first.

    With floors it is the point of the front with the best ``measured[0]``, the metric by the grade, among those that meet all of
    them; without, the one with the best plain mean of ``measured``, the metric by the grade and by each goal.

    Parameters
    ----------
    values
        (n_points,) by name: higher is better.
    measured, compared
        Names of the metrics to choose by, and of all that the front is made of.
    floors
        Minimum values by name.
    """
    beaten = dominated_by([[point[name] for name in compared] for point in values])
    front = [place for place, by in enumerate(beaten) if by is None and shortfall(values[place], floors) == 0.0]

    def worth(place: int) -> float:
        return values[place][measured[0]] if floors else fsum(values[place][name] for name in measured)

    return max(front, key=lambda place: (worth(place), -place), default=None)
