"""Slow, obvious twins of the sample of rows and of what is counted of a column that is not held."""

from __future__ import annotations

from collections import Counter

from tests.naive import hash_of_id, mixed

_WORD = (1 << 64) - 1


def key_of_row(qid: str, place: int, salt: int) -> int:
    """Number ``place`` (from 0) of the splitmix64 sequence whose seed is the hash of the query."""
    seed = hash_of_id(qid, salt)
    return mixed((seed + (place + 1) * 0x9E3779B97F4A7C15) & _WORD)


def smallest(queries: list[tuple[str, int]], k: int, salt: int) -> list[int]:
    """The rows of the ``k`` smallest keys, in order; ``queries`` are ids and sizes."""
    rows = [(qid, place) for qid, size in queries for place in range(size)]
    order = sorted(range(len(rows)), key=lambda row: key_of_row(*rows[row], salt))
    return sorted(order[:k])


def atoms(values: list[float], one_in: int) -> dict[float, int]:
    """Zero, the extremes, and every value that more than one row in ``one_in`` has, with its count; no NaN among ``values``."""
    counts = Counter(value + 0.0 for value in values)
    return {
        value: count
        for value, count in sorted(counts.items())
        if count * one_in > len(values) or value in {0.0, min(counts), max(counts)}
    }


def neighbours(values: list[float], atoms: list[float]) -> list[float]:
    """The nearest values below and above each of ``atoms`` that are none themselves, ascending."""
    found = set()
    for atom in atoms:
        found |= {max((value for value in values if value < atom), default=atom)}
        found |= {min((value for value in values if value > atom), default=atom)}
    return sorted(found - set(atoms))
