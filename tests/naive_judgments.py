"""Slow, obvious twin of `rankmill.pipeline.judgments`: every rule by its definition, in plain Python."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction


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
