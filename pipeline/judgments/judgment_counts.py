"""Counts of judgments, merged rows and unjudged rows of a bucket."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.pipeline.read.grades import UNKNOWN_GRADE

_NO_GOALS: Mapping[str, npt.NDArray[np.int32]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts for the judgments of some buckets; tallies can be added.

    Attributes
    ----------
    merged
        Rows that were merged into another row of the same document.
    repeated, conflicting
        Documents judged more than once, and those of them with different grades.
    judgments, ungraded
        Judgments from separate files, with and without a grade.
    without_row
        Judgments of documents without a row.
    rows_with_id
        Rows with a doc_id, if judgments are in separate files; ignored when tallies are compared.
    """

    merged: int = 0
    repeated: int = 0
    conflicting: int = 0
    judgments: int = 0
    ungraded: int = 0
    without_row: int = 0
    rows_with_id: int = field(default=0, compare=False)

    def __add__(self, other: Tally) -> Tally:
        return Tally(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The rows of a bucket with their grades.

    Attributes
    ----------
    judged, unjudged
        (m,) and (u,) int64, ascending: the rows with and without a grade.  All others were merged into another row.
    grade
        (n,) int32, of all rows; undefined for merged rows.
    label
        (n,) float64: mean or median before rounding; None for other aggregates.
    time
        (n,) int64: the latest time of the rows merged into a row; None if rows have no times.
    weight
        (n,) float64: weights of separate judgments; None if they have none.
    goals
        (n,) int32 each: the goals by name, if rows were merged.
    tally
        Counts of what was merged and joined.
    """

    judged: npt.NDArray[np.int64]
    unjudged: npt.NDArray[np.int64]
    grade: npt.NDArray[np.int32]
    label: npt.NDArray[np.float64] | None = None
    time: npt.NDArray[np.int64] | None = None
    weight: npt.NDArray[np.float64] | None = None
    goals: Mapping[str, npt.NDArray[np.int32]] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)


def counts_of(grades: npt.NDArray[np.int32]) -> Counter[int]:
    """Return how often each of ``grades`` (n,) occurs."""
    values, counts = np.unique(grades, return_counts=True)
    return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))


def repeats(qid: pa.Array[Any], doc_id: pa.Array[Any], grade: npt.NDArray[np.int32]) -> Tally:
    """Count the documents with several rows, and those of them with different grades; rows are sorted by qid and doc_id."""
    n = len(grade)
    if n < 2:
        return Tally()
    again = np.ones(n - 1, dtype=np.bool_)
    for ids in (qid, doc_id):
        same = pc.equal(ids.slice(1), ids.slice(0, n - 1)).fill_null(fill_value=False)
        again &= same.to_numpy(zero_copy_only=False)
    if not again.any():
        return Tally()
    starts = np.flatnonzero(np.concatenate([[True], ~again]))
    several = np.diff(np.append(starts, n)) > 1
    differ = np.minimum.reduceat(grade, starts) != np.maximum.reduceat(grade, starts)
    return Tally(repeated=int(np.count_nonzero(several)), conflicting=int(np.count_nonzero(several & differ)))


def settled_as(
    grade: npt.NDArray[np.int32],
    stays: npt.NDArray[np.bool_],
    tally: Tally,
    *,
    label: npt.NDArray[np.float64] | None = None,
    time: npt.NDArray[np.int64] | None = None,
    weight: npt.NDArray[np.float64] | None = None,
    goals: Mapping[str, npt.NDArray[np.int32]] = _NO_GOALS,
) -> Settled:
    """Return the result for rows with known ``grade`` (n,), of which those in ``stays`` (n,) are kept."""
    known = grade != UNKNOWN_GRADE
    return Settled(
        judged=np.flatnonzero(stays & known),
        unjudged=np.flatnonzero(stays & ~known),
        grade=grade,
        label=label,
        time=time,
        weight=weight,
        goals=goals,
        tally=tally,
    )
