"""The correction of a search's gain from its definition, one query at a time."""

import math

import numpy as np


def gain(values, best, replicates, seed):
    """Return (observed, corrected, low, high) for lists of whole numbers, a list of queries for each trial."""
    n = len(values[0])
    unseen = []
    for replicate in range(replicates):
        raw = np.random.Philox(key=np.array([seed, replicate], np.uint64)).random_raw(n).tolist()
        drawn = [(number >> 32) * n >> 32 for number in raw]
        chosen, most = 0, None
        for trial, row in enumerate(values):
            total = sum(row[query] for query in drawn)
            if most is None or total > most:
                chosen, most = trial, total
        rest = [query for query in range(n) if query not in drawn]
        if rest:
            unseen.append(sum(values[chosen][query] - values[0][query] for query in rest) / len(rest))
    unseen.sort()
    cut = round(len(unseen) / 40)
    observed = (sum(values[best]) - sum(values[0])) / n
    return observed, math.fsum(unseen) / len(unseen), unseen[cut], unseen[len(unseen) - 1 - cut]
