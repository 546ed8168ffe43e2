"""The narrow columns of one bucket: read from the spill, and brought in canonical order.

Canonical order inside a bucket: qid, then doc_id (rows without one last), then a 128-bit digest of grade and values, then the
optional columns, ids compared byte by byte.  Rows equal in all of these have the same bytes (but for a chance of 2^-128), so the
order of the input does not show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.group import _kernels
from rankmill.pipeline.sources.batch import BATCH_BYTES
from rankmill.pipeline.sources.parts import TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rankmill.pipeline.group.spill import Spill, SpilledRows

_MOST_PARTS = 1024  # held apart: a part takes about 2 KB besides its rows, and may be of one row


@dataclass(frozen=True, slots=True)
class BucketRows:
    """All of the rows of a bucket but their values."""

    qid: pa.Array[Any]  # (n,)
    doc_id: pa.Array[Any]  # (n,), null where a row has none
    grade: npt.NDArray[np.int32]  # (n,)
    source: npt.NDArray[np.int32]  # (n,) number of the input file
    digest: npt.NDArray[np.uint64]  # (n, 2) of grade and values, or of the values alone
    extras: Mapping[str, npt.NDArray[Any]]  # (n,) each, as they are stored
    place: npt.NDArray[np.int64]  # (n,) which of the spilled rows each is

    def __len__(self) -> int:
        return len(self.grade)

    def take(self, rows: npt.NDArray[np.int64]) -> BucketRows:
        """Return ``rows`` (m,) of these, in that order."""
        places = as_array(rows)
        return BucketRows(
            qid=self.qid.take(places),
            doc_id=self.doc_id.take(places),
            grade=self.grade[rows],
            source=self.source[rows],
            digest=self.digest[rows],
            extras={name: column[rows] for name, column in self.extras.items()},
            place=self.place[rows],
        )

    def sorted(self) -> BucketRows:
        """Return the rows in canonical order."""
        columns = {
            "qid": self.qid,
            "doc_id": self.doc_id,
            "high": as_array(self.digest[:, 0].copy()),
            "low": as_array(self.digest[:, 1].copy()),
        }
        columns |= {f"its {name}": as_array(column) for name, column in self.extras.items()}
        keys = [(name, "ascending") for name in columns]
        order = pc.sort_indices(pa.table(columns), sort_keys=cast("Any", keys)).to_numpy().astype(np.int64)
        return self.take(order)


def read_bucket(
    spill: Spill,
    bucket: int,
    width: int,
    absent: float,
    extras: tuple[str, ...],
    *,
    labels_are_grades: bool = False,
    values_alone: bool = False,
    into: npt.NDArray[np.float32] | None = None,
) -> BucketRows:
    """Read the rows of ``bucket``, in the order in which they were spilled.

    Parameters
    ----------
    spill
        Where they are.
    bucket
        Its number.
    width, absent
        Number of features of all rows, and the value of those that a narrower row leaves out.
    extras
        Optional columns to read.
    labels_are_grades
        Whether the grades are to be taken from the labels, all of which are whole numbers.
    values_alone
        Whether the digests are to be of the values without the grade.
    into
        (rows of the bucket, width): filled with the values if there is room for them.
    """
    n = int(spill.rows[bucket])
    qids: list[pa.Array[Any]] = []
    doc_ids: list[pa.Array[Any]] = []
    grade = np.empty(n, dtype=np.int32)
    source = np.empty(n, dtype=np.int32)
    digest = np.empty((n, 2), dtype=np.uint64)
    columns = {name: np.empty(n, dtype=TYPES[name].to_pandas_dtype()) for name in extras}
    low = 0
    for rows, values in padded(spill, bucket, width, absent, into):
        high = low + len(rows.grade)
        grade[low:high] = rows.extras["label"] if labels_are_grades else rows.grade
        source[low:high] = rows.source
        for name, column in columns.items():
            column[low:high] = rows.extras[name]
        digested = np.zeros(high - low, dtype=np.int32) if values_alone else grade[low:high]
        _kernels.digest_rows(values.view(np.uint32), digested, digest[low:high])
        qids.append(rows.qid)
        doc_ids.append(rows.doc_id)
        if len(qids) == _MOST_PARTS:
            qids, doc_ids = [pa.concat_arrays(qids)], [pa.concat_arrays(doc_ids)]
        low = high
    return BucketRows(
        qid=pa.concat_arrays(qids),
        doc_id=pa.concat_arrays(doc_ids),
        grade=grade,
        source=source,
        digest=digest,
        extras=columns,
        place=np.arange(n),
    )


def padded(
    spill: Spill, bucket: int, width: int, absent: float, into: npt.NDArray[np.float32] | None = None
) -> Iterator[tuple[SpilledRows, npt.NDArray[np.float32]]]:
    """Yield the rows of ``bucket`` as they were spilled, and their values at full width, in ``into`` if it is given.

    Else some of them at a time: a few bytes of narrow rows may stand for many of wide ones.
    """
    low = 0
    step = max(1, BATCH_BYTES // (4 * max(1, width)))
    for rows in spill.batches(bucket, into):
        n, found = rows.values.shape
        if found == width:
            yield rows, rows.values
        elif into is not None:
            yield rows, _filled_up(rows.values, absent, into[low : low + n])
        else:
            for first in range(0, n, step):
                some = rows.slice(first, step)
                yield some, _filled_up(some.values, absent, np.empty((len(some.grade), width), dtype=np.float32))
        low += n


def _filled_up(values: npt.NDArray[np.float32], absent: float, out: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Put ``values`` in ``out``, which is wider, and ``absent`` in the rest of it."""
    out[:, : values.shape[1]] = values
    out[:, values.shape[1] :] = absent
    return out


def runs_of(qid: pa.Array[Any]) -> tuple[pa.Array[Any], npt.NDArray[np.int64]]:
    """Return the different ids (q,) of rows of which those of a query stand together, and the first row of each (q,)."""
    runs = qid.dictionary_encode()  # codes go up by one from query to query
    return runs.dictionary, np.searchsorted(runs.indices.to_numpy(), np.arange(len(runs.dictionary)))
