"""The slow, obvious twin of what is counted of columns on their way to a file."""

from __future__ import annotations

import math

import numpy as np

from tests.naive import mixed

_WORD = (1 << 64) - 1


def bits(value: float) -> int:
    """Bits of a float32; -0.0 is 0.0, every NaN the same."""
    if math.isnan(value):
        return 0x7FC00000
    return int(np.float32(value + 0.0).view(np.uint32))


def digest(column: list[float]) -> int:
    """Sum of the bits of each value times number (its row) of the splitmix64 sequence of seed 0."""
    return (
        sum(
            mixed((row + 1) * 0x9E3779B97F4A7C15 & _WORD) * bits(value)
            for row, value in enumerate(column)
        )
        & _WORD
    )  # fmt: skip


def facts(column: list[float], queries: list[str]) -> dict[str, object]:
    """What the statistics of a shard say of one column; ``queries`` are the ids of its rows."""
    present = [value + 0.0 for value in column if not math.isnan(value)]
    values_of: dict[str, set[int]] = {}
    for value, query in zip(column, queries, strict=True):
        values_of.setdefault(query, set()).add(bits(value))
    return {
        "minimum": min(present, default=None),
        "maximum": max(present, default=None),
        "missing": len(column) - len(present),
        "zeros": present.count(0.0),
        "varied_queries": sum(len(values) > 1 for values in values_of.values()),
        "digest": digest(column),
    }
