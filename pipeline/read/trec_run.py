"""TREC runs: ``qid Q0 doc_id rank score tag``, one document per line (see :mod:`rankmill.pipeline.read.words`).

Read as rows for training or ranking, ``score`` and ``rank`` are the features and must be numbers.  Read as a ranked
list, for evaluation or as candidates, only the score must be a number.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import CandidatesRejected, DataRejected, InputError
from rankmill.foundation.options import spelled
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.options import DEFAULT_BLOCK_BYTES, ReadOptions
from rankmill.pipeline.read.batch import Quarantine, RowBatch
from rankmill.pipeline.read.columns import TableColumns
from rankmill.pipeline.read.files import check_file
from rankmill.pipeline.read.role_columns import read_parts
from rankmill.pipeline.read.words import RUN, word_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

FEATURES = ("score", "rank")


class RankedLines(NamedTuple):
    """Some lines of a run, as a ranked list."""

    qid: pa.Array[Any]
    doc_id: pa.Array[Any]
    score: npt.NDArray[np.float64]
    """(n,) may be infinite, never NaN."""
    line: npt.NDArray[np.int64]
    """(n,) line numbers, from 1."""


def read_ranked_lines(path: Path, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[RankedLines]:
    """Yield the lines of the run ``path``; the rank is ignored, as in trec_eval.

    Raises
    ------
    InputError
        There is no such file.
    MalformedLine
        A line is malformed.
    CandidatesRejected
        The file is empty.
    """
    check_file(path)
    empty = True
    for lines, _ in word_lines(path, RUN, Quarantine(), block_bytes):
        columns = {part: lines.columns[part] for part in ("qid", "doc_id", "score")}
        found = read_parts(columns, lines.problems)
        lines.reject(lines.problems)
        empty &= not len(lines.place)
        yield RankedLines(**found, line=lines.place)
    if empty:
        raise CandidatesRejected(f"{path}: expected lines 'qid Q0 doc_id rank score tag', found none")


class RunSource:
    """A run, plain or compressed, read as rows."""

    columns: tuple[str, ...] | None = FEATURES
    fields: tuple[str, ...] = ()

    def __init__(self, path: Path, options: ReadOptions, quarantine: Quarantine | None = None) -> None:
        if options.grade_required and not options.ungraded:
            raise DataRejected(f"{path}: a run has no grades; give judgments with {spelled('qrels')} FILE")
        if options.time_column is not None and not options.time_optional:
            raise InputError(f"{spelled('time_column')} is for tables; {path} is a run, which has no times")
        self.path = path
        self.position = 0
        self.table: TableColumns | None = TableColumns({"qid": "qid", "doc_id": "doc_id"}, FEATURES)
        self._quarantine = Quarantine() if quarantine is None else quarantine

    def names(self, width: int) -> tuple[str, ...]:
        """Return the names of the features."""
        if width != len(FEATURES):
            raise ValueError(f"{len(FEATURES)} features, not {width}")
        return FEATURES

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[RowBatch]:
        """Yield the rows in the order of the file."""
        for lines, position in word_lines(self.path, RUN, self._quarantine, block_bytes):
            found = read_parts(lines.columns, lines.problems)
            lines.reject(lines.problems)
            kept: pa.Array[Any] = as_array(np.flatnonzero(lines.problems.keep))
            with np.errstate(over="ignore"):
                values = np.stack([found[name] for name in FEATURES], axis=1).astype(np.float32)
            yield RowBatch(
                found["qid"].take(kept), found["doc_id"].take(kept), grade=None, values=values[lines.problems.keep]
            )
            self.position = position
