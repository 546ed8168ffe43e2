"""Counts of judgments, merged rows and unjudged rows of a bucket."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.pipeline.sources.grades import UNKNOWN_GRADE


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What happened to the judgments of some buckets; tallies add up.

    Attributes
    ----------
    merged
        Rows that went into another row of the same document.
    repeated, conflicting
        Documents that were judged more than once, and those of them that got different grades.
    judgments, ungraded
        Judgments in files of their own that say a grade, and those that say that there is none.
    without_row
        Judgments of a document that has no row.
    rows_with_id
        Rows that say which document they are of, where judgments came in files of their own; tallies are compared without it.
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
        (m,) and (u,) int64, ascending: the rows with a grade, and those without.  What is in neither was merged into another.
    grade
        (n,) int32, of all rows; that of a merged row is of no meaning.
    label
        (n,) float64 what mean or median gave, before it was rounded; None for other aggregates.
    time
        (n,) int64, the latest time of the rows that went into a row; None where rows have no times.
    tally
        What happened.
    """

    judged: npt.NDArray[np.int64]
    unjudged: npt.NDArray[np.int64]
    grade: npt.NDArray[np.int32]
    label: npt.NDArray[np.float64] | None = None
    time: npt.NDArray[np.int64] | None = None
    tally: Tally = field(default_factory=Tally)


def repeats(qid: pa.Array[Any], doc_id: pa.Array[Any], grade: npt.NDArray[np.int32]) -> Tally:
    """Count the documents that have several rows, and those of them with different grades, in rows sorted by qid and doc_id."""
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
) -> Settled:
    """Return what is settled where ``grade`` (n,) is known and where rows ``stays`` (n,)."""
    known = grade != UNKNOWN_GRADE
    return Settled(
        judged=np.flatnonzero(stays & known),
        unjudged=np.flatnonzero(stays & ~known),
        grade=grade,
        label=label,
        time=time,
        tally=tally,
    )
