"""Slow twins of the click simulator and the click models, in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def random_bits(seed: int, number: int) -> int:
    """Element ``number`` of SplitMix64."""
    z = (seed + number * GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def uniform(bits: int) -> float:
    return ((bits >> 12) + 0.5) / 2**52


def shown_list(
    key: int,
    rankings: Sequence[Sequence[int]],
    documents: Sequence[int],
    length: int,
    randomised: float,
    swapped: float,
) -> list[int]:
    """The documents that the session with this key sees; ``rankings`` are those of its query by each logger."""
    logger = int(uniform(random_bits(key, 3)) * len(rankings))
    kind = uniform(random_bits(key, 2))
    if kind < randomised:
        left, shuffle = list(documents), random_bits(key, 5)
        for k in range(length):
            other = k + int(uniform(random_bits(shuffle, k + 1)) * (len(left) - k))
            left[k], left[other] = left[other], left[k]
        return left[:length]
    shown = list(rankings[logger][:length])
    if kind < randomised + swapped and length > 1:
        above = int(uniform(random_bits(key, 4)) * (length - 1))
        shown[above], shown[above + 1] = shown[above + 1], shown[above]
    return shown


def clicks_of(
    key: int, relevance: Sequence[float], chance: Callable[[int, int, float], float], go_on: Callable[[int], float]
) -> list[int]:
    """Clicks on a list: ``chance(rank, last click, gamma)`` and ``go_on(rank)`` after a click, ranks from 1."""
    key = random_bits(key, 6)
    last, going, clicks = 0, True, []
    for rank, gamma in enumerate(relevance, start=1):
        click = going and uniform(random_bits(key, 2 * rank - 1)) < chance(rank, last, gamma)
        clicks.append(int(click))
        if click:
            last, going = rank, uniform(random_bits(key, 2 * rank)) < go_on(rank)
    return clicks
