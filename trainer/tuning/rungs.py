"""Successive halving: many trials for a few rounds, the best of them for more, and so on (Jamieson & Talwalkar 2016).

The resource is boosting rounds, and a trial goes on from what it has, so a rung costs only the rounds that are new.  What
learns slowly looks worse in the first rungs than it is: a space of very small learning rates is for random search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

LEAST_ROUNDS = 10  # of the first rung: before that, trials differ by chance


@dataclass(frozen=True, slots=True)
class Rung:
    """One step: how many rounds its trials have in all, and how many of the trials go on."""

    rounds: int
    kept: int


def rungs_of(n_trials: int, n_rounds: int, factor: int) -> list[Rung]:
    """Return the rungs of a search, the last with all rounds.

    A ``factor``-th of the trials goes on, rounded down, and one at least; rounds grow by ``factor`` from rung to rung.  There
    are as many rungs as leave a trial for the last, and the first ``LEAST_ROUNDS``.

    >>> rungs_of(9, 90, 3)
    [Rung(rounds=10, kept=3), Rung(rounds=30, kept=1), Rung(rounds=90, kept=1)]
    """
    steps = 0
    while n_trials >= factor ** (steps + 1) and n_rounds >= LEAST_ROUNDS * factor ** (steps + 1):
        steps += 1
    found, left = [], n_trials
    for step in range(steps, -1, -1):
        kept = max(1, left // factor) if step else left
        found.append(Rung(ceil(n_rounds / factor**step), kept))
        left = kept
    return found


def ordered(scores: Mapping[int, float | None], *, higher_is_better: bool) -> list[int]:
    """Return the trials, the best score first; of equal ones the first trial, and those that failed last.

    >>> ordered({0: 0.5, 1: None, 2: 0.7, 3: 0.5}, higher_is_better=True)
    [2, 0, 3, 1]
    """

    def key(trial: int) -> tuple[bool, float, int]:
        score = scores[trial]
        return score is None, 0.0 if score is None else -score if higher_is_better else score, trial

    return sorted(scores, key=key)


def going_on(scores: Mapping[int, float | None], rung: Rung, *, higher_is_better: bool) -> Sequence[int]:
    """Return the trials that go on after ``rung``, in their own order; those that failed never do."""
    best = ordered(scores, higher_is_better=higher_is_better)[: rung.kept]
    return sorted(trial for trial in best if scores[trial] is not None)
