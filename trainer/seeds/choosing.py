"""Which seeds are trained, and what becomes of their forests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.scalars import whole_number

Choose: TypeAlias = Literal["best", "average"]
CHOICES: tuple[Choose, ...] = get_args(Choose)
MOST_SEEDS = 100


def checked_seeds(seeds: Sequence[int], seed: int) -> tuple[int, ...]:
    """Return the seeds in ascending order, so that nothing depends on the order they were given in; ``seed`` where there are none.

    >>> checked_seeds([3, 1, 2], 7), checked_seeds([], 7)
    ((1, 2, 3), (7,))

    Raises
    ------
    InvalidParameter
        A seed is none, one is there twice, or there are too many.
    """
    found = [whole_number("seeds", each) for each in seeds]
    for each in found:
        if not 0 <= each <= 2**63 - 1:
            raise InvalidParameter(f"seeds: expected numbers in 0 .. {2**63 - 1}, found {each}")
        if found.count(each) > 1:
            raise InvalidParameter(
                f"seeds: {each} is there {found.count(each)} times; the same seed is the same forest"
            )
    if len(found) > MOST_SEEDS:
        raise InvalidParameter(f"seeds: expected {MOST_SEEDS} at most, found {len(found)}")
    return tuple(sorted(found)) or (seed,)


def parse_seeds(written: str) -> tuple[int, ...]:
    """Read seeds as a command line gives them.

    >>> parse_seeds("1, 2,3")
    (1, 2, 3)

    Raises
    ------
    InvalidParameter
        One of them is no whole number.
    """
    parts = [part.strip() for part in written.split(",")]
    try:
        return tuple(int(part) for part in parts)
    except ValueError:
        raise InvalidParameter(f"seeds: expected whole numbers with commas, as in 1,2,3, found {written!r}") from None


def check_choice(choose: str, seeds: Sequence[int], *, has_valid: bool, link: str) -> None:
    """Raise InvalidParameter if several ``seeds`` cannot be chosen from, or not be averaged, on such data.

    Parameters
    ----------
    choose
        What is asked for.
    seeds
        Those that are trained; with one there is nothing to choose.
    has_valid
        Whether there is a valid split, whose queries no seed has learnt from, the same ones for all.
    link
        That of the objective: what makes a score of the sums of trees (:mod:`rankmill.scorer.links`).
    """
    if choose not in CHOICES:
        raise InvalidParameter(f"choose: expected {' or '.join(CHOICES)}, found {choose!r}")
    if len(seeds) < 2:
        return
    if choose == "best" and not has_valid:
        raise InvalidParameter(
            "choose: there is no valid split on which the best of several seeds would show; ingest one, or set choose to"
            " average"
        )
    if choose == "average" and link != "identity":
        raise InvalidParameter(
            "choose: scores of this objective are made of probabilities, and what trees of several seeds add up to has no"
            " such meaning; set choose to best"
        )


def best_of(values: Sequence[float], *, higher_is_better: bool) -> int:
    """Return the place of the best value, the first of equal ones; NaN is never better.

    >>> best_of([0.5, 0.7, 0.7], higher_is_better=True), best_of([float("nan"), 2.0, 1.0], higher_is_better=False)
    (1, 2)
    """
    sign = 1.0 if higher_is_better else -1.0
    return max(range(len(values)), key=lambda i: (values[i] == values[i], sign * values[i], -i))
