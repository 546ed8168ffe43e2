"""Successive halving from its definition, and a space drawn by hand."""

from __future__ import annotations

import math


def halving(n_trials, n_rounds, factor, least_rounds, score):
    """Return the trials that were trained on each rung, with their rounds; ``score(trial, rounds)`` is None for a failure.

    Rounds are divided by ``factor`` as often as there are trials to let go of and at least ``least_rounds`` are left.
    """
    steps = 0
    while n_trials // factor ** (steps + 1) >= 1 and n_rounds / factor ** (steps + 1) >= least_rounds:
        steps += 1
    told, left = [], list(range(n_trials))
    for step in range(steps + 1):
        rounds = math.ceil(n_rounds / factor ** (steps - step))
        told.append((rounds, left))
        found = [(trial, score(trial, rounds)) for trial in left]
        sound = [(trial, value) for trial, value in found if value is not None]
        wanted = max(1, expected_size(n_trials, factor, step + 1))
        kept = []
        while sound and len(kept) < wanted:  # take the best one again and again, the first of equals
            best = sound[0]
            for pair in sound[1:]:
                if pair[1] > best[1]:
                    best = pair
            sound.remove(best)
            kept.append(best[0])
        left = sorted(kept)
        if not left:
            break
    return told


def expected_size(n_trials, factor, steps):
    size = n_trials
    for _ in range(steps):
        size = max(1, size // factor)
    return size
