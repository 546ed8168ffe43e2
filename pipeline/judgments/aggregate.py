"""Several judgments of each document become one, as :mod:`rankmill.pipeline.judgments.rules` says; their order does not matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rankmill.pipeline.judgments.rules import WITH_LABEL

if TYPE_CHECKING:
    from rankmill.pipeline.judgments.rules import Aggregate


@dataclass(frozen=True, slots=True)
class Aggregated:
    """One judgment a document.

    Attributes
    ----------
    document
        (m,) int64 numbers of the documents, ascending.
    grade
        (m,) int32.
    label
        (m,) float64, the number before it was rounded; None but for ``mean`` and ``median``.
    judgments
        (m,) int64 how many there were.
    lowest, highest
        (m,) int32 of their grades.
    """

    document: npt.NDArray[np.int64]
    grade: npt.NDArray[np.int32]
    label: npt.NDArray[np.float64] | None
    judgments: npt.NDArray[np.int64]
    lowest: npt.NDArray[np.int32]
    highest: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.document)

    @property
    def different(self) -> npt.NDArray[np.bool_]:
        """Which documents have judgments that differ, (m,)."""
        differ: npt.NDArray[np.bool_] = self.lowest != self.highest
        return differ

    def find(self, document: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the place of each of some documents (n,), -1 where it has no judgment."""
        if not len(self):
            return np.full(len(document), -1, dtype=np.int64)
        place = np.minimum(np.searchsorted(self.document, document), len(self) - 1)
        return np.where(self.document[place] == document, place, -1)


def aggregated(
    document: npt.NDArray[np.int64],
    grade: npt.NDArray[np.int32],
    time: npt.NDArray[np.int64] | None,
    how: Aggregate | None,
) -> Aggregated:
    """Make one judgment of those of each document.

    Parameters
    ----------
    document
        (n,) int64 which document each judgment is of, in any order.
    grade
        (n,) int32, 0 or more.
    time
        (n,) int64; used by ``latest`` alone.
    how
        Which of `rankmill.pipeline.judgments.rules.AGGREGATES`; None: the lowest grade, for where all are the same.
    """
    order = np.lexsort((grade, document))
    documents, grades = document[order], grade[order]
    starts = np.flatnonzero(np.append(True, documents[1:] != documents[:-1])) if len(order) else order
    count = np.diff(np.append(starts, len(order)))
    lowest, highest = grades[starts], grades[starts + count - 1]
    label = None
    if how == "mean":
        total = np.add.reduceat(grades, starts, dtype=np.int64) if len(order) else count
        label, chosen = total / np.maximum(count, 1), (2 * total + count) // np.maximum(2 * count, 1)
    elif how == "median":
        both = grades[starts + (count - 1) // 2].astype(np.int64) + grades[starts + count // 2]
        label, chosen = both / 2, (both + 1) // 2
    elif how == "majority":
        chosen = _most_frequent(documents, grades)
    elif how == "latest" and time is not None:
        chosen = grade[np.lexsort((grade, time, document))][starts + count - 1]
    else:
        chosen = highest if how == "max" else lowest
    if (how in WITH_LABEL) != (label is not None):
        raise ValueError(how)
    return Aggregated(documents[starts], chosen.astype(np.int32), label, count, lowest, highest)


def _most_frequent(documents: npt.NDArray[np.int64], grades: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return the most frequent grade of each document, of several the lowest; both (n,) are sorted by document, then grade."""
    if not len(documents):
        return grades
    changes = (documents[1:] != documents[:-1]) | (grades[1:] != grades[:-1])
    runs = np.flatnonzero(np.append(True, changes))
    votes = np.diff(np.append(runs, len(documents)))
    order = np.lexsort((grades[runs], -votes, documents[runs]))
    ranked = documents[runs][order]
    first = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))
    return grades[runs][order][first]
