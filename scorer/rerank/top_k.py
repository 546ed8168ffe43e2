"""Select the rows of a batch that can be in the top k of their query, and drop the others early."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.read.grades import UNKNOWN_GRADE
from rankmill.scorer import _kernels
from rankmill.scorer.rerank.ranked_file import GRADE_COUNTS

BYTES_OF_A_QUERY = 72  # besides its best scores: its id, their number and the least of them
CELLS_A_ROW = 4  # of a table of counts by query and grade


class BestScores:
    """The best scores of each query so far, over all parts of the input.

    Rows with ``top_k`` better ones are dropped early.

    Parts may come in any order: that changes which rows are dropped early, not the ranking.  Safe to share between
    threads.

    Parameters
    ----------
    top_k
        Number of documents to keep per query.
    most_bytes
        Maximum bytes of the scores; with too many queries, all are forgotten.
    """

    def __init__(self, top_k: int, most_bytes: int) -> None:
        self.top_k = top_k
        self._most = most_bytes // (8 * top_k + BYTES_OF_A_QUERY)
        self._heaps = np.empty((self._most, top_k))  # takes memory only once it is written
        self._sizes = np.zeros(self._most, dtype=np.int64)
        self._bars = np.full(self._most, -np.inf)
        self._known: pa.Array[Any] = pa.array([], pa.string())
        self._own = threading.Lock()

    def strike_out(
        self, ids: pa.DictionaryArray[Any, Any], scores: npt.NDArray[np.float64], keep: npt.NDArray[np.bool_]
    ) -> None:
        """Add the rows of the mask ``keep`` (n,), and clear it for rows with ``top_k`` better ones in their query.

        Parameters
        ----------
        ids
            (n,) query ids, dictionary-encoded.
        scores
            (n,) finite.
        """
        with self._own:
            if (number := self._numbers(ids.dictionary)) is not None:
                _kernels.raise_bars(number[ids.indices.to_numpy()], scores, self._heaps, self._sizes, self._bars, keep)

    def _numbers(self, ids: pa.Array[Any]) -> npt.NDArray[np.int64] | None:
        """Return the number of each of the distinct ``ids``; None if there are too many."""
        if len(ids) > self._most:
            return None
        number = pc.index_in(ids, self._known)
        new = ids.filter(number.is_null())
        if len(self._known) + len(new) > self._most:
            self._known, new = self._known.slice(0, 0), ids
            self._sizes.fill(0)
            self._bars.fill(-np.inf)
            numbers = np.arange(len(ids))
        else:
            numbers = number.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            numbers[numbers < 0] = len(self._known) + np.arange(len(new))
        if len(new):
            self._known = pa.concat_arrays([self._known, new])
        return numbers


def counts_of_dropped(
    ids: pa.Array[Any],
    query: npt.NDArray[np.integer[Any]],
    grade: npt.NDArray[np.int32] | None,
    keep: npt.NDArray[np.bool_],
) -> pa.RecordBatch | None:
    """Count the known grades of the rows not kept, as ``GRADE_COUNTS``; None if there are none.

    ``query`` (n,) indexes ``ids``.
    """
    if grade is None:
        return None
    rows = np.flatnonzero(~keep & (grade != UNKNOWN_GRADE))
    if len(rows) == 0:
        return None
    grades = int(grade[rows].max()) + 1
    keys = query[rows].astype(np.int64) * grades + grade[rows]
    if grades * len(ids) <= CELLS_A_ROW * len(query):  # counting is faster than sorting
        table = np.bincount(keys)
        found = np.flatnonzero(table)
        counts = table[found]
    else:
        found, counts = np.unique(keys, return_counts=True)
    of_query, of_grade = np.divmod(found, grades)
    columns = [ids.take(as_array(of_query)), as_array(of_grade.astype(np.int32)), as_array(counts)]
    return pa.record_batch(columns, schema=GRADE_COUNTS)


def first_of_queries(
    qid: pa.Array[Any], scores: npt.NDArray[np.float64], grade: npt.NDArray[np.int32] | None, best: BestScores
) -> tuple[npt.NDArray[np.bool_] | None, pa.RecordBatch | None]:
    """Return a mask (n,) of the rows that may be in the top k of their query.

    Also return the grade counts of the others.

    None: all rows, and no counts.  ``scores`` (n,) are finite.
    """
    ids, keep = qid.dictionary_encode(), np.ones(len(qid), dtype=np.bool_)
    best.strike_out(ids, scores, keep)
    if keep.all():
        return None, None
    return keep, counts_of_dropped(ids.dictionary, ids.indices.to_numpy(), grade, keep)
