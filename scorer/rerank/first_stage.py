"""Restrict ranking to the documents of a first-stage ranker, given as TREC runs; features come from other files.

Memory: 17 bytes per document, a 128-bit hash of its query and document id and whether it was seen.  Messages read the
ids from the files again.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.foundation.options import spelled
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.group.query_splits import hash_ids
from rankmill.pipeline.read.batch import ColumnBatch, FeaturePart, RowBatch
from rankmill.pipeline.read.trec_run import read_ranked_lines
from rankmill.scorer.options import Lacking

if TYPE_CHECKING:
    import pyarrow as pa


BYTES_OF_A_DOCUMENT = 17
_BLOCK_BYTES = 1 << 20
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # odd, so that the hash depends on which id is the query's
_BEFORE = "\x01"
_SALTS = (0x2545F4914F6CDD1D, 0xD6E8FEB86659FD93)

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Listed:
    """Rows of a batch whose documents are in the runs: positions (m,) in the batch, and document numbers (m,)."""

    place: Numbers
    document: Numbers
    again: int | None
    """The first of them that repeats a document of the batch, or None."""


class FirstStage:
    """The union of the documents of some runs; a document may be in several runs, but only once in each.

    Attributes
    ----------
    paths
        The files.
    first, second
        (n,) two hashes of each document, ascending.
    seen
        (n,) whether there was a row of features.
    """

    def __init__(self, paths: Sequence[Path], first: Hashes, second: Hashes) -> None:
        self.paths = tuple(paths)
        self.first = first
        self.second = second
        self.seen: Mask = np.zeros(len(first), dtype=np.bool_)
        places = np.flatnonzero(np.concatenate([[True], first[1:] != first[:-1], [True]]))
        self._alike = int(np.diff(places).max(initial=1))  # documents with the same first hash: nearly always 1

    @classmethod
    def read(cls, paths: Sequence[Path], room: int) -> Self:
        """Read the runs.

        Parameters
        ----------
        paths
            TREC runs, plain or compressed.
        room
            Maximum bytes for the documents.

        Raises
        ------
        InputError
            There is no such file, or the documents take more than ``room``.
        rankmill.foundation.errors.DataRejected
            A line is malformed.
        CandidatesRejected
            A file is empty, or has a document twice.
        """
        first, second = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint64)
        for path in paths:
            parts, rows = [], 0
            for batch in read_ranked_lines(path, _BLOCK_BYTES):
                rows += len(batch.line)
                if (len(first) + rows) * BYTES_OF_A_DOCUMENT <= room:
                    parts.append(_hashes(batch.qid, batch.doc_id))
            if (len(first) + rows) * BYTES_OF_A_DOCUMENT > room:
                raise InputError(
                    f"{path}: the {len(first) + rows:,} documents up to here take {BYTES_OF_A_DOCUMENT} bytes each, "
                    f"and there is room for {room // BYTES_OF_A_DOCUMENT:,}; give more {spelled('memory')}, or rank a "
                    "part of the queries at a time"
                )
            own_first, own_second = (np.concatenate(lane) for lane in zip(*parts, strict=True))
            del parts
            own_first, own_second, new = _ascending(own_first, own_second)
            if not new.all():
                _refuse_repeated(path, own_first[~new], own_second[~new])
            if len(first):
                own_first, own_second, new = _ascending(
                    np.concatenate([first, own_first]), np.concatenate([second, own_second])
                )
                own_first, own_second = own_first[new], own_second[new]
            first, second = own_first, own_second
        return cls(paths, first, second)

    def __len__(self) -> int:
        return len(self.first)

    @property
    def lacking(self) -> int:
        """Number of documents without a row of features so far."""
        return len(self) - int(np.count_nonzero(self.seen))

    def numbers(self, qid: pa.Array[Any], doc_id: pa.Array[Any]) -> Numbers:
        """Return the number of each document (n,), -1 if it is in no run.  Ids must not be null."""
        first, second = _hashes(qid, doc_id)
        order = np.argsort(first)  # sorted lookups are several times faster: they stay in the cache
        begin = np.empty(len(first), dtype=np.int64)
        begin[order] = np.searchsorted(self.first, first[order])
        number = np.full(len(first), -1, dtype=np.int64)
        for step in range(self._alike):
            at = np.minimum(begin + step, len(self) - 1)
            same = (self.first[at] == first) & (self.second[at] == second)
            number[same] = at[same]
        return number

    def listed(self, batch: RowBatch) -> Listed:
        """Return the rows of ``batch`` whose documents are in the runs; a row without a document id never is."""
        if batch.doc_id is None:
            nothing = np.empty(0, dtype=np.int64)
            return Listed(nothing, nothing, None)
        place = np.arange(len(batch))
        qid, doc_id = batch.qid, batch.doc_id
        if doc_id.null_count:
            place = np.flatnonzero(doc_id.is_valid().to_numpy(zero_copy_only=False))
            named = as_array(place)
            qid, doc_id = qid.take(named), doc_id.take(named)
        numbers = self.numbers(qid, doc_id)
        here = numbers >= 0
        place, numbers = place[here], numbers[here]
        again = None
        ordered = np.sort(numbers)
        if (ordered[1:] == ordered[:-1]).any():
            _, once = np.unique(numbers, return_index=True)
            again = int(np.setdiff1d(np.arange(len(numbers)), once)[0])
        return Listed(place, numbers, again)

    def see(self, listed: Listed, path: Path, rows_before: int) -> None:
        """Mark the documents of these rows as seen; their batch begins after ``rows_before`` rows of ``path``.

        Raises
        ------
        CandidatesRejected
            A document already had a row.
        """
        seen = np.flatnonzero(self.seen[listed.document])
        again = [] if listed.again is None else [listed.again]
        if len(seen) or again:
            row = min([*seen[:1].tolist(), *again])
            wanted = np.zeros(len(self), dtype=np.bool_)
            wanted[listed.document[row]] = True
            where, qid, doc_id = self._first_line(wanted)
            raise CandidatesRejected(
                f"{path}: expected one row of features for each document of the run, found another in row "
                f"{rows_before + int(listed.place[row]) + 1:,} for document {doc_id!r} of query {qid!r} ({where}); "
                "keep one"
            )
        self.seen[listed.document] = True

    def check_seen(self, lacking: Lacking) -> None:
        """Raise CandidatesRejected if no document has a row of features, or one has none and may not be dropped."""
        count = self.lacking
        if count == 0 or (lacking == "drop" and count < len(self)):
            return
        where, qid, doc_id = self._first_line(~self.seen)
        cure = (
            "see that the ids are written as in the run, and that the rows name their documents (doc_id)"
            if count == len(self)
            else f"give their rows too, or leave such documents out with {spelled('lacking')} drop"
        )
        raise CandidatesRejected(
            f"{where}: expected a row of features for each document of the run, found none for {count:,} of "
            f"{len(self):,}, the first of them {doc_id!r} of query {qid!r}; {cure}"
        )

    def seen_as_text(self) -> str:
        """Return ``seen`` as text for the journal."""
        return base64.b64encode(np.packbits(self.seen).tobytes()).decode("ascii")

    def restore_seen(self, seen: str) -> None:
        """Restore ``seen`` from the text of `seen_as_text`; empty text means that nothing was seen."""
        if seen:
            bits = np.frombuffer(base64.b64decode(seen), dtype=np.uint8)
            self.seen = np.unpackbits(bits, count=len(self)).astype(np.bool_)

    def _first_line(self, wanted: Mask) -> tuple[str, str, str]:
        """Return file:line, qid and doc_id of the first document for which ``wanted`` (n,) is true."""
        for path in self.paths:
            for batch in read_ranked_lines(path, _BLOCK_BYTES):
                numbers = self.numbers(batch.qid, batch.doc_id)
                hits = np.flatnonzero((numbers >= 0) & wanted[numbers])
                if len(hits):
                    row = int(hits[0])
                    return f"{path}:{batch.line[row]}", batch.qid[row].as_py(), batch.doc_id[row].as_py()
        raise InputError(f"{self.paths[0]}: was changed while it was read; run again when it is complete")


def rows_of(batch: RowBatch, listed: Listed) -> RowBatch:
    """Return the rows of ``batch`` that are ``listed``, without optional columns."""
    chosen = as_array(listed.place)
    return RowBatch(
        qid=batch.qid.take(chosen),
        doc_id=None if batch.doc_id is None else batch.doc_id.take(chosen),
        grade=None if batch.grade is None else batch.grade[listed.place],
        values=batch.values[listed.place],
    )


def columns_of(batch: ColumnBatch, listed: Listed) -> ColumnBatch:
    """Return the rows of ``batch`` that are ``listed``; if there are none, no feature is read."""
    keep = np.zeros(len(batch), dtype=np.bool_)
    keep[listed.place] = True
    features = _chosen(batch.features, keep) if len(listed.place) else iter(())
    return replace(batch, rows=rows_of(batch.rows, listed), features=features)


def _chosen(features: Iterator[FeaturePart], keep: Mask) -> Iterator[FeaturePart]:
    before = np.concatenate([[0], np.cumsum(keep)])
    for part in features:
        here = keep[part.first : part.first + len(part.values)]
        yield FeaturePart(part.number, int(before[part.first]), part.values[here])


def _hashes(qid: pa.Array[Any], doc_id: pa.Array[Any] | None) -> tuple[Hashes, Hashes]:
    assert doc_id is not None  # noqa: S101 (a run has them)
    one = [hash_ids(ids, _SALTS[0]) for ids in (qid, doc_id)]
    # with a byte before them, since ids that are alike without it are so with any salt
    other = [hash_ids(_after_a_byte(ids), _SALTS[1]) for ids in (qid, doc_id)]
    return one[0] * _SPREAD + one[1], other[0] + other[1] * _SPREAD


def _after_a_byte(ids: Any) -> pa.Array[Any]:
    found: pa.Array[Any] = pc.binary_join_element_wise(_BEFORE, ids, "")
    return found


def _ascending(first: Hashes, second: Hashes) -> tuple[Hashes, Hashes, Mask]:
    """Return the hashes in ascending order, and a mask (n,) that is false for repeated ones."""
    order = np.argsort(first)
    if (first[order][1:] == first[order][:-1]).any():
        order = np.lexsort((second, first))
    first, second = first[order], second[order]
    same = (first[1:] == first[:-1]) & (second[1:] == second[:-1])
    return first, second, np.concatenate([[True], ~same])


def _refuse_repeated(path: Path, first: Hashes, second: Hashes) -> None:
    """Raise CandidatesRejected for the first line of a run that repeats one of the documents with these hashes."""
    first, second, new = _ascending(first, second)  # a document may be there three times
    repeated = FirstStage([path], first[new], second[new])
    lines: dict[int, int] = {}
    for batch in read_ranked_lines(path, _BLOCK_BYTES):
        numbers = repeated.numbers(batch.qid, batch.doc_id)
        for row in np.flatnonzero(numbers >= 0).tolist():
            if (before := lines.setdefault(int(numbers[row]), int(batch.line[row]))) != batch.line[row]:
                raise CandidatesRejected(
                    f"{path}:{batch.line[row]}: expected each document once a query, found "
                    f"{batch.doc_id[row].as_py()!r} of query "
                    f"{batch.qid[row].as_py()!r} again (first in line {before}); keep one"
                )
