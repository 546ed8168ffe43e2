"""Slow, obvious twins of what is made of rows: judgments combined, pairs joined, columns counted, samples compared."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np

from tests.naive import mixed

# ---- judgments -------------------------------------------------------------------------------------------------------


def half_up(number):
    return math.floor(number + Fraction(1, 2))


def aggregate(judgments, how):
    """(grade, label or None) of the judgments [(grade, time)] of one document."""
    grades = sorted(grade for grade, _ in judgments)
    if how == "mean":
        mean = Fraction(sum(grades), len(grades))
        return half_up(mean), float(mean)
    if how == "median":
        n = len(grades)
        median = Fraction(grades[(n - 1) // 2] + grades[n // 2], 2)
        return half_up(median), float(median)
    if how in {"max", "heaviest"}:  # all weigh 1
        return grades[-1], None
    if how == "majority":
        votes = Counter(grades)
        most = max(votes.values())
        return min(grade for grade, count in votes.items() if count == most), None
    if how == "latest":
        return max((time, grade) for grade, time in judgments)[1], None
    assert len(set(grades)) == 1
    return grades[0], None


def by_document(judgments):
    """{(qid, doc_id): [(grade, time), ..]} of (qid, doc_id, grade, time)."""
    found = {}
    for qid, doc_id, grade, time in judgments:
        found.setdefault((qid, doc_id), []).append((grade, time))
    return found


# ---- preference pairs ------------------------------------------------------------------------------------------------


def joined(rows, pairs):
    """Join ``pairs`` (qid, better, worse, weight, probability) to ``rows`` (qid, doc_id or None), by numbers of rows.

    Returns the pairs (row of better, row of worse, weight, probability) by query in the order of the rows, and in each
    query sorted; where the pairs of each query start; and the numbers of the pairs that have no two rows.
    """
    queries = list(dict.fromkeys(qid for qid, _ in rows))
    found = {qid: [] for qid in queries}
    refused = []
    for number, (qid, better, worse, weight, probability) in enumerate(pairs):
        of_better = [k for k, row in enumerate(rows) if row == (qid, better)]
        of_worse = [k for k, row in enumerate(rows) if row == (qid, worse)]
        if len(of_better) == len(of_worse) == 1:
            found[qid].append((of_better[0], of_worse[0], weight, probability))
        else:
            refused.append(number)
    starts, everything = [0], []
    for qid in queries:
        everything += sorted(found[qid])
        starts.append(len(everything))
    return everything, starts, refused


def contradicted(pairs):
    """Count the pairs (better, worse, ..) whose opposite is there too."""
    directions = {(better, worse) for better, worse, *_ in pairs}
    return sum((worse, better) in directions for better, worse, *_ in pairs)


# ---- what is counted of columns --------------------------------------------------------------------------------------

_WORD = (1 << 64) - 1


def bits(value):
    """Bits of a float32; -0.0 is 0.0, every NaN the same."""
    if math.isnan(value):
        return 0x7FC00000
    return int(np.float32(value + 0.0).view(np.uint32))


def digest(column):
    """Sum of the bits of each value times number (its row) of the splitmix64 sequence of seed 0."""
    return (
        sum(
            mixed((row + 1) * 0x9E3779B97F4A7C15 & _WORD) * bits(value)
            for row, value in enumerate(column)
        )
        & _WORD
    )  # fmt: skip


def facts(column, queries):
    """What the statistics of a shard say of one column; ``queries`` are the ids of its rows."""
    present = [value + 0.0 for value in column if not math.isnan(value)]
    values_of = {}
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


# ---- drift -----------------------------------------------------------------------------------------------------------


def cell_of(value, edges, low, high):
    """0 missing, 1 below all, then by edges, the last one above all."""
    if math.isnan(value):
        return 0
    if value < low:
        return 1
    return len(edges) + 3 if value > high else 2 + sum(edge < value for edge in edges)


def covariance(queries, n_cells):
    """Sum over queries (cells of their rows) of z z' / rows^2; z: their counts less what their size lets expect."""
    rows = sum(map(len, queries))
    every = Counter(cell for query in queries for cell in query)
    share = np.array([every[cell] for cell in range(n_cells)]) / rows
    total = np.zeros((n_cells, n_cells))
    for query in queries:
        counts = Counter(query)
        z = np.array([counts[cell] for cell in range(n_cells)]) - len(query) * share
        total += np.outer(z, z)
    return total / rows**2


def psi(old, new):
    """The index of two lists of shares."""
    return sum((p - q) * math.log(p / q) for p, q in zip(old, new, strict=True))
