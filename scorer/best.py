"""What of a batch can be among the first of its query: most of a list is dropped before it is written anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.sources.grades import UNKNOWN_GRADE
from scorer import _kernels
from scorer.schemas import GRADE_COUNTS


def runs_of(qid: pa.Array[Any]) -> npt.NDArray[np.int64]:
    """Return where the runs of equal ids in ``qid`` (n,) start, and n.

    >>> runs_of(pa.array(["a", "a", "b", "a"])).tolist()
    [0, 2, 3, 4]
    """
    n = len(qid)
    if n < 2:
        return np.arange(n + 1, dtype=np.int64)
    changes = pc.not_equal(qid.slice(1), qid.slice(0, n - 1)).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.flatnonzero(changes) + 1, [n]]).astype(np.int64)


def can_be_kept(
    starts: npt.NDArray[np.int64], scores: npt.NDArray[np.float64], top_k: int
) -> npt.NDArray[np.bool_] | None:
    """Return which rows (n,) have fewer than ``top_k`` of their run above them; None: all of them.

    No other row can be among the first ``top_k`` of its query, wherever else rows of the query are.  Where scores are
    equal all are kept: which of them comes first is for the sort to say.

    Parameters
    ----------
    starts
        Where the runs of one query start, and n (see `runs_of`).
    scores
        (n,) finite.
    """
    if np.diff(starts).max(initial=0) <= top_k:
        return None
    keep = np.ones(len(scores), dtype=np.bool_)
    _kernels.mark_kept(starts, scores, top_k, np.empty(top_k), keep)
    return keep


def counts_of_dropped(
    qid: pa.Array[Any], starts: npt.NDArray[np.int64], grade: npt.NDArray[np.int32] | None, keep: npt.NDArray[np.bool_]
) -> pa.RecordBatch | None:
    """Return how often each known grade occurs among the rows not kept, as ``GRADE_COUNTS`` by run; None if never."""
    if grade is None:
        return None
    rows = np.flatnonzero(~keep & (grade != UNKNOWN_GRADE))
    if len(rows) == 0:
        return None
    run = np.searchsorted(starts, rows, side="right") - 1
    pairs, counts = np.unique((run << 32) | grade[rows].astype(np.int64), return_counts=True)
    columns = [
        qid.take(pa.array(starts[pairs >> 32])),
        pa.array((pairs & 0xFFFFFFFF).astype(np.int32)),
        pa.array(counts),
    ]
    return pa.record_batch(columns, schema=GRADE_COUNTS)
