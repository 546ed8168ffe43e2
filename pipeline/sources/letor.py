"""LETOR (SVMlight) text: ``grade qid:ID index:value ... #docid = X``, one document a line.

Fields are separated by blanks or tabs.  The grade is a whole number of 0 or more (``2.0`` will do); with ``labels="real"`` any
number may stand there, and there are labels instead of grades.  Features may come in any order,
each at most once a line; a value is a number, or ``nan`` or ``null`` where it is missing.  A comment runs from ``#`` to the
end of the line; if it begins with ``docid =`` the next word is the document's id.  Blank lines and lines with nothing but
a comment are skipped.  Lines may end with CR LF.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.errors import MalformedLine
from pipeline.sources import _kernels
from pipeline.sources.batch import (
    BATCH_BYTES,
    DEFAULT_BLOCK_BYTES,
    MAX_FEATURES,
    Quarantine,
    ReadOptions,
    RowBatch,
    shorten,
)
from pipeline.sources.blocks import copy_tokens, read_blocks
from pipeline.sources.optional import OPTIONAL, read_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.sources.blocks import Block

Positions = npt.NDArray[np.int64]


class LetorSource:
    """One file of LETOR text, plain or compressed (``.gz``, ``.bz2``, ``.zst``, ``.lz4``)."""

    columns: tuple[str, ...] | None = None

    def __init__(self, path: Path, options: ReadOptions, quarantine: Quarantine | None = None) -> None:
        self.path = path
        self.position = 0
        self.fields: tuple[str, ...] = ("label",) if options.labels == "real" else ("grade",)
        self._options = options
        self._quarantine = Quarantine() if quarantine is None else quarantine

    def names(self, width: int) -> tuple[str, ...]:
        """Return ``f<index as written>`` for each of ``width`` features, or of ``n_features`` if that was given."""
        base = self._options.index_base
        return tuple(f"f{index}" for index in range(base, base + (self._options.n_features or width)))

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[RowBatch]:
        """Yield the rows in the order of the file; a batch is as wide as the highest index so far."""
        parser = _Parser(self.path, self._options, self._quarantine)
        for block in read_blocks(self.path, block_bytes):
            rows = parser.parse(block)
            yield from rows.batches(self._options.absent_value)
            self.position = block.position


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of one block, features still sparse."""

    qid: pa.StringArray
    doc_id: pa.StringArray | None
    grade: npt.NDArray[np.int32]
    label: npt.NDArray[np.float64] | None  # where labels are real; grades are all 0 then
    entry_from: Positions
    feature: npt.NDArray[np.int32]
    value: npt.NDArray[np.float32]
    width: int

    def batches(self, absent: float) -> Iterator[RowBatch]:
        """Yield dense rows, a bounded number of bytes at a time: a few bytes of text may stand for a very wide row."""
        step = max(1, BATCH_BYTES // (4 * max(1, self.width)))
        for first in range(0, len(self.grade), step):
            grade = self.grade[first : first + step]
            values = np.full((len(grade), self.width), absent, dtype=np.float32)
            _kernels.densify(self.feature, self.value, self.entry_from, first, values)
            yield RowBatch(
                qid=self.qid.slice(first, step),
                doc_id=None if self.doc_id is None else self.doc_id.slice(first, step),
                grade=grade if self.label is None else None,
                values=values,
                extras={} if self.label is None else {"label": self.label[first : first + step]},
            )


class _Complaint(NamedTuple):
    expected: str
    cure: str = ""


class _Parser:
    """Runs the kernel over blocks, sets bad lines aside and settles the numbers that the kernel was not sure of."""

    def __init__(self, path: Path, options: ReadOptions, quarantine: Quarantine) -> None:
        self._path = path
        self._options = options
        self._quarantine = quarantine
        base = options.index_base
        self._top = base + (options.n_features or MAX_FEATURES - base) - 1
        self._last_line = np.zeros(self._top + 1, dtype=np.int64)
        self._lines = 0
        self._width = options.n_features or 0

    def parse(self, block: Block) -> _Rows:
        """Parse all lines of ``block``."""
        text = block.bytes_view
        lines, colons = _kernels.count_marks(text, block.start, block.stop)
        real = self._options.labels == "real"
        grade = np.empty(lines, dtype=np.int32)
        label_from, label_to = (np.empty(lines if real else 0, dtype=np.int64) for _ in range(2))
        scratch = np.empty(1, dtype=np.float32)
        qid_from, qid_to, doc_from, doc_to = (np.empty(lines, dtype=np.int64) for _ in range(4))
        entry_from = np.zeros(lines + 1, dtype=np.int64)
        feature = np.empty(colons, dtype=np.int32)
        value = np.empty(colons, dtype=np.float32)
        defer_entry, defer_from, defer_to = (np.empty(colons, dtype=np.int64) for _ in range(3))
        state = np.zeros(_kernels.STATE_CELLS, dtype=np.int64)
        state[_kernels.AT], state[_kernels.STAMP], state[_kernels.WIDTH] = block.start, self._lines, self._width
        while True:
            _kernels.parse_lines(
                text, block.stop, self._options.index_base, self._top, self._options.highest_grade, real, _kernels.POWERS,
                self._last_line, grade, label_from, label_to, scratch, qid_from, qid_to, doc_from, doc_to, entry_from, feature, value,
                defer_entry, defer_from, defer_to, state,
            )  # fmt: skip
            if state[_kernels.CODE] == _kernels.END:
                break
            self._reject(block, int(state[_kernels.CODE]), int(state[_kernels.WHERE]), int(state[_kernels.LINE_START]))
            state[_kernels.AT] = block.data.index(b"\n", int(state[_kernels.WHERE])) + 1
        self._lines, self._width = int(state[_kernels.STAMP]), int(state[_kernels.WIDTH])

        with np.errstate(over="ignore"):
            for k in range(int(state[_kernels.DEFERS])):
                value[defer_entry[k]] = np.float32(float(block.data[defer_from[k] : defer_to[k]]))
        n = int(state[_kernels.ROWS])
        return _Rows(
            qid=copy_tokens(text, qid_from[:n], qid_to[:n]),
            doc_id=copy_tokens(text, doc_from[:n], doc_to[:n]) if (doc_from[:n] >= 0).any() else None,
            grade=grade[:n],
            label=OPTIONAL["label"].stored(read_numbers(copy_tokens(text, label_from[:n], label_to[:n])))
            if real
            else None,
            entry_from=entry_from[: n + 1],
            feature=feature,
            value=value,
            width=self._width,
        )

    def _reject(self, block: Block, code: int, where: int, line_start: int) -> None:
        line_end = block.data.index(b"\n", where)
        line = block.text(line_start, line_end).rstrip("\r")
        token = re.split("[ \t\r]", block.text(where, line_end), maxsplit=1)[0]
        column = len(block.text(line_start, where)) + 1
        expected, cure = self._complaint(code)
        if token.startswith("\ufeff"):
            cure = "a byte-order mark may only begin a file: were two put together?"
        error = MalformedLine(self._path, block.line_number(where), column, shorten(token), expected, cure)
        self._quarantine.add(error, column, line)

    def _complaint(self, code: int) -> _Complaint:
        base = self._options.index_base
        if code == _kernels.ABOVE_TOP and self._options.n_features is not None:
            return _Complaint(f"a feature index up to {self._top}", f"--n-features {self._options.n_features} says so")
        no_grade = "" if self._options.grade_required else "candidates need one too: 0 if unknown"
        complaints = {
            _kernels.BAD_GRADE: _Complaint("a grade: a whole number, 0 or more", no_grade),
            _kernels.BAD_LABEL: _Complaint(OPTIONAL["label"].expected),
            _kernels.GRADE_TOO_HIGH: _Complaint(f"a grade up to {self._options.highest_grade}"),
            _kernels.NO_QID: _Complaint("qid:ID after the grade", "every line must name its query"),
            _kernels.EMPTY_QID: _Complaint("an id after qid:"),
            _kernels.BAD_FEATURE: _Complaint("index:value"),
            _kernels.BAD_VALUE: _Complaint("index:value with a number as value"),
            _kernels.BELOW_BASE: _Complaint(f"a feature index from {base}", "if features count from 0: --index-base 0"),
            _kernels.ABOVE_TOP: _Complaint(f"a feature index up to {self._top}"),
            _kernels.REPEATED: _Complaint("each feature once a line"),
        }
        return complaints[code]
