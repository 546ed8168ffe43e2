"""What several judgments of one document make.

===========  ========================================================================================================
mean         arithmetic mean; the grade is it rounded to the next whole number, halves up
median       the middle one, or the mean of the two in the middle; the grade is it rounded, halves up
max          the highest grade
majority     the grade given most often; of several equally often the lowest
latest       the grade given last; of several at the same time the highest
===========  ========================================================================================================

Mean and median give a label besides, the number before it is rounded.
"""

from __future__ import annotations

from typing import get_args

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled
from rankmill.pipeline.options import Aggregate

AGGREGATES: tuple[Aggregate, ...] = get_args(Aggregate)
WITH_LABEL = ("mean", "median")


def check_aggregate(how: str) -> Aggregate:
    """Return ``how``; InputError if it is none of :data:`AGGREGATES`."""
    for known in AGGREGATES:
        if how == known:
            return known
    raise InputError.unknown(f"value of {spelled('aggregate')}", how, AGGREGATES)
