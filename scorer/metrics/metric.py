"""A metric is a value: parsed, printed, compared and used as a key; computing it is another file's business."""

from __future__ import annotations

import re
from dataclasses import dataclass

from scorer.errors import InputError

METRIC_NAMES = ("ndcg", "dcg", "err", "map", "mrr", "precision")
_LARGEST_CUTOFF = 2**31 - 1


@dataclass(frozen=True, slots=True, order=True)
class Metric:
    """One ranking metric; ``k`` is the cutoff, or None for the whole list.  ``str()`` gives the spelling back.

    Raises
    ------
    InputError
        The name is unknown, the cutoff is not a whole number of at least 1, or ``precision`` comes without one.
    """

    name: str
    k: int | None = None

    def __post_init__(self) -> None:
        if self.name not in METRIC_NAMES:
            raise InputError.unknown("metric", self.name, METRIC_NAMES)
        if self.k is None:
            if self.name == "precision":
                raise InputError("metric 'precision' needs a cutoff, for example precision@10")
        elif not 1 <= self.k <= _LARGEST_CUTOFF:
            raise InputError(f"metric {self!s}: the cutoff must be at least 1 and below 2**31")

    def __str__(self) -> str:
        return self.name if self.k is None else f"{self.name}@{self.k}"

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value means a better ranking; true for every metric here."""
        return True


def parse_metric(text: str) -> Metric:
    """Read ``name`` or ``name@k``.

    >>> parse_metric("ndcg@10")
    Metric(name='ndcg', k=10)
    >>> str(parse_metric("map"))
    'map'
    >>> parse_metric("ncdg@10")
    Traceback (most recent call last):
    scorer.errors.InputError: unknown metric 'ncdg'; did you mean 'ndcg'?

    Raises
    ------
    InputError
        See `Metric`; also where the cutoff is not written as a plain whole number.
    """
    name, at, cutoff = text.strip().partition("@")
    if name not in METRIC_NAMES:
        raise InputError.unknown("metric", name, METRIC_NAMES)
    if not at:
        return Metric(name)
    if not re.fullmatch(r"[0-9]{1,10}", cutoff):
        raise InputError(f"metric {text!r}: expected a whole number after '@', for example {name}@10, found {cutoff!r}")
    return Metric(name, int(cutoff))
