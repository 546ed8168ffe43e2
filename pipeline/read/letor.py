"""LETOR (SVMlight) text: ``grade qid:ID index:value ... #docid = X``, one document per line.

Fields are separated by blanks or tabs.  The grade is a whole number of 0 or more (also ``2.0``); with ``labels="real"``
it may be any number and is a label instead of a grade.  Features may come in any order, each at most once per line; a
value is a number, or ``nan`` or ``null`` if it is missing.  A comment begins with a word that begins with ``#``, and
ends with the line; a ``#`` inside a word, as in ``qid:c#``, is part of it.  If the comment begins with ``docid =`` the
next word is the document's id.  Blank lines and lines with only a comment are skipped.  Lines may end with CR LF.

If the first row has no ``qid:`` and there is a companion file with query sizes, no line has a qid (see
:mod:`rankmill.pipeline.read.query_sizes`). Then ids are the file's name and the number of the query:
``rank.train:17``.  Quarantined lines count as rows of their query.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.cures import spelled_with
from rankmill.foundation.errors import InputError, MalformedLine
from rankmill.pipeline.arrow import ScratchBuffer, as_array
from rankmill.pipeline.options import DEFAULT_BLOCK_BYTES, MAX_FEATURES, ReadOptions
from rankmill.pipeline.read import _text_kernels as _kernels
from rankmill.pipeline.read._number_kernels import POWERS
from rankmill.pipeline.read.batch import BATCH_BYTES, Quarantine, ReadTask, RowBatch, shorten
from rankmill.pipeline.read.blocks import copy_tokens, read_blocks, unchecked_blocks
from rankmill.pipeline.read.column_roles import OPTIONAL
from rankmill.pipeline.read.files import uncompressed
from rankmill.pipeline.read.grades import GradeRules
from rankmill.pipeline.read.query_sizes import QuerySizes, find_sizes
from rankmill.pipeline.read.role_columns import read_finite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rankmill.pipeline.read.batch import Source
    from rankmill.pipeline.read.blocks import Block
    from rankmill.pipeline.read.columns import TableColumns

_FIRST_BYTES = 1 << 16  # read to find out whether lines have a qid

Positions = npt.NDArray[np.int64]

_MOST_LINES = 1 << 17  # parsed at a time: short lines take many times the memory of their text
_LEAST_ENTRY = 4  # bytes: a digit, a colon, a digit and a separator


class LetorSource:
    """A file of LETOR text, plain or compressed (``.gz``, ``.bz2``, ``.zst``, ``.lz4``)."""

    columns: tuple[str, ...] | None = None
    table: TableColumns | None = None

    def __init__(self, path: Path, options: ReadOptions, quarantine: Quarantine | None = None) -> None:
        self.path = path
        self.position = 0
        self.fields: tuple[str, ...] = ("label",) if options.labels == "real" else ("grade",)
        self._options = options
        self._quarantine = Quarantine() if quarantine is None else quarantine
        sizes = find_sizes(path)
        self.sizes_path: Path | None = sizes if sizes is not None and not _names_queries(path) else None
        """The file with the sizes of queries, if lines have no qid."""

    def names(self, width: int) -> tuple[str, ...]:
        """Return ``f<index as written>`` for each of ``width`` features, or of ``n_features`` if given."""
        base = self._options.index_base
        return tuple(f"f{index}" for index in range(base, base + (self._options.n_features or width)))

    def tasks(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[ReadTask]:
        """Yield a task for each block of the file; the values of a batch are overwritten by the next one."""
        kept = _KeptLines([], [])
        # without qids, the query of a row depends on all rows before it
        sizes = None if self.sizes_path is None else QuerySizes(self.sizes_path, self.path)
        for block in unchecked_blocks(self.path, block_bytes, kept.texts):
            if sizes is None:
                yield ReadTask(partial(self._read, block, kept), block.position)
                continue
            for piece, lines in block.pieces(block.check(), _MOST_LINES):
                parser = self._parser(kept)
                rows = parser.parse(piece, lines).grouped(sizes, piece)
                yield ReadTask(partial(self._dense_batches, kept, parser, rows), block.position)
        if sizes is not None:
            sizes.close()

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[RowBatch]:
        """Yield the rows in the order of the file; a batch is as wide as the highest index of its block."""
        for task in self.tasks(block_bytes):
            for batch in task.rows():
                yield replace(batch, values=batch.values.copy())
            self.position = task.position

    def _read(self, block: Block, kept: _KeptLines) -> Iterator[RowBatch]:
        for piece, lines in block.pieces(block.check(), _MOST_LINES):
            parser = self._parser(kept)
            yield from self._dense_batches(kept, parser, parser.parse(piece, lines))
        kept.texts.append(block.data)

    def _parser(self, kept: _KeptLines) -> _Parser:
        try:
            return kept.parsers.pop()
        except IndexError:  # checking first would be a race with other threads
            return _Parser(self.path, self._options, self._quarantine, grouped=self.sizes_path is not None)

    def _dense_batches(self, kept: _KeptLines, parser: _Parser, rows: _Rows) -> Iterator[RowBatch]:
        yield from rows.batches(self._options.absent_value, parser.room)
        kept.parsers.append(parser)  # not earlier: the rows are in its arrays


class _KeptLines(NamedTuple):
    """Parsers and buffers for reuse, as many as there are threads; appending to and popping from lists is atomic."""

    parsers: list[_Parser]
    texts: list[bytearray]


def letor_name(feature: str) -> str:
    """Return the name of a ``feature`` of LETOR text, which may be given by its number.

    >>> letor_name("7"), letor_name("f7")
    ('f7', 'f7')
    """
    return f"f{feature}" if feature.isdecimal() else feature


def check_made_ids(sources: Sequence[Source]) -> None:
    """Raise InputError if two of ``sources`` would generate the same query ids."""
    made: dict[str, Path] = {}
    for source in sources:
        if isinstance(source, LetorSource) and source.sizes_path is not None:
            other = made.setdefault(uncompressed(source.path).name, source.path)
            if other is not source.path:
                raise InputError(
                    f"{other} and {source.path}: their queries would get the same ids, which come from"
                    " the file name because no line has qid:; rename one file"
                )


def companions_of(sources: Sequence[Source]) -> dict[Path, Path]:
    """Return the files with query sizes, by file of rows."""
    return {
        source.path: source.sizes_path
        for source in sources
        if isinstance(source, LetorSource) and source.sizes_path is not None
    }


def _names_queries(path: Path) -> bool:
    """Whether the first row has ``qid:``."""
    for block in read_blocks(path, _FIRST_BYTES):
        for line in block.data[block.start : block.stop].splitlines():
            words = re.split(rb"(?:^|[ \t])#", line, maxsplit=1)[0].split()
            if words:
                return any(word.startswith(b"qid:") for word in words)
    return True


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a block with sparse features, in arrays owned by the parser."""

    qid: pa.StringArray  # empty if lines have no qid
    doc_id: pa.StringArray | None
    grade: npt.NDArray[np.int32]
    label: npt.NDArray[np.float64] | None  # real labels; all grades are 0 then
    entry_from: Positions
    feature: npt.NDArray[np.int32]
    value: npt.NDArray[np.float32]
    width: int
    starts: Positions  # start of each row, including quarantined ones; only if lines have no qid
    kept: npt.NDArray[np.bool_]  # which of these rows were not quarantined

    def grouped(self, sizes: QuerySizes, block: Block) -> _Rows:
        """Return the rows with generated query ids; call it for the blocks in the order of the file."""
        numbers = sizes.take(len(self.starts), lambda k: block.line_number(int(self.starts[k])))
        return replace(self, qid=sizes.ids(numbers[self.kept]))

    def only(self, keep: npt.NDArray[np.bool_], narrow: int) -> _Rows:
        """Return the rows to ``keep`` (n,); the width is that of the widest, at least ``narrow``."""
        lengths = np.diff(self.entry_from)
        entries = np.repeat(keep, lengths)
        feature, value = self.feature[: len(entries)][entries], self.value[: len(entries)][entries]
        places = as_array(np.flatnonzero(keep))
        return replace(
            self,
            qid=self.qid.take(places),
            doc_id=None if self.doc_id is None else self.doc_id.take(places),
            grade=self.grade[keep],
            entry_from=np.append(0, np.cumsum(lengths[keep])),
            feature=feature,
            value=value,
            width=max(narrow, int(feature.max(initial=-1)) + 1),
        )

    def batches(self, absent: float, room: ScratchBuffer) -> Iterator[RowBatch]:
        """Yield dense rows in the buffer ``room``, a bounded number of bytes at a time.

        A short text may be a very wide row.
        """
        step = max(1, BATCH_BYTES // (4 * max(1, self.width)))
        for first in range(0, len(self.grade), step):
            grade = self.grade[first : first + step]
            values = room.array(len(grade), self.width)
            values[:] = absent
            _kernels.densify(self.feature, self.value, self.entry_from, first, values)
            yield RowBatch(
                qid=self.qid.slice(first, step),
                doc_id=None if self.doc_id is None else self.doc_id.slice(first, step),
                grade=grade if self.label is None else None,
                values=values,
                extras={} if self.label is None else {"label": self.label[first : first + step]},
            )


class _Entries(NamedTuple):
    """Scratch buffer for the features of a block, reused for the next; untouched pages take no memory."""

    feature: npt.NDArray[np.int32]
    value: npt.NDArray[np.float32]
    defer_entry: Positions
    defer_from: Positions
    defer_to: Positions

    @classmethod
    def empty(cls, most: int) -> _Entries:
        positions = [np.empty(most, dtype=np.int64) for _ in range(3)]
        return cls(np.empty(most, dtype=np.int32), np.empty(most, dtype=np.float32), *positions)


class _Complaint(NamedTuple):
    expected: str
    cure: str = ""


class _Problem(NamedTuple):
    """A malformed line of a block: the position of the bad token, and the problem."""

    where: int
    complaint: _Complaint


class _Parser:
    """Runs the kernel on one block at a time.

    It quarantines malformed lines and parses the numbers that the kernel deferred.
    """

    def __init__(self, path: Path, options: ReadOptions, quarantine: Quarantine, *, grouped: bool) -> None:
        self._path = path
        self._options = options
        self._rules = GradeRules.of(options)
        self._grouped = grouped
        self._quarantine = quarantine
        base = options.index_base
        self._top = base + (options.n_features or MAX_FEATURES - base) - 1
        self._last_line = np.zeros(self._top + 1, dtype=np.int64)
        self._lines = 0
        self._entries = _Entries.empty(0)
        self.room = ScratchBuffer()

    def parse(self, block: Block, lines: int) -> _Rows:
        """Parse all ``lines`` of ``block``."""
        text = block.bytes_view
        most = (block.stop - block.start) // _LEAST_ENTRY
        if len(self._entries.feature) < most:
            self._entries = _Entries.empty(most)
        feature, value, defer_entry, defer_from, defer_to = self._entries
        real = self._options.labels == "real"
        grade = np.empty(lines, dtype=np.int32)
        label_from, label_to = (np.empty(lines, dtype=np.int64) for _ in range(2))
        qid_from, qid_to, doc_from, doc_to = (np.empty(lines, dtype=np.int64) for _ in range(4))
        entry_from = np.zeros(lines + 1, dtype=np.int64)
        state = np.zeros(_kernels.STATE_CELLS, dtype=np.int64)
        state[_kernels.AT], state[_kernels.STAMP], state[_kernels.WIDTH] = (
            block.start,
            self._lines,
            self._options.n_features or 0,
        )
        rejected: list[tuple[int, int]] = []  # number of rows before the line, start of the line
        problems: list[_Problem] = []
        room = self._quarantine.remaining
        while True:
            _kernels.parse_lines(
                text, block.stop, self._options.index_base, self._top, self._options.highest_grade,
                self._rules.maps_numbers, real, self._grouped, POWERS,
                self._last_line, grade, label_from, label_to, qid_from, qid_to, doc_from, doc_to, entry_from, feature,
                value,
                defer_entry, defer_from, defer_to, state,
            )  # fmt: skip
            if state[_kernels.CODE] == _kernels.END:
                break
            problems.append(self._problem(block, state, label_from, label_to))
            if len(problems) > room:
                break  # the rest does not matter
            if self._grouped:
                rejected.append((int(state[_kernels.ROWS]), int(state[_kernels.LINE_START])))
            state[_kernels.AT] = block.data.index(b"\n", int(state[_kernels.WHERE])) + 1
        self._lines = int(state[_kernels.STAMP])

        with np.errstate(over="ignore"):
            for k in range(int(state[_kernels.DEFERS])):
                value[defer_entry[k]] = np.float32(float(block.data[defer_from[k] : defer_to[k]]))
        n = int(state[_kernels.ROWS])
        grade = grade[:n]
        keep = np.ones(n, dtype=np.bool_)
        bad = self._read_words(text, grade, label_from, label_to)
        keep[bad] = False
        problems += [
            _Problem(int(label_from[row]), self._bad_grade(block.text(label_from[row], label_to[row])))
            for row in bad[: room + 1].tolist()
        ]
        for problem in sorted(problems):
            self._reject(block, problem)
        before, where = np.array(rejected, dtype=np.int64).reshape(-1, 2).T
        rows = _Rows(
            qid=copy_tokens(text, qid_from[:n], qid_to[:n]),
            doc_id=copy_tokens(text, doc_from[:n], doc_to[:n]) if (doc_from[:n] >= 0).any() else None,
            grade=grade,
            label=OPTIONAL["label"].stored(read_finite(copy_tokens(text, label_from[:n], label_to[:n])))
            if real
            else None,
            entry_from=entry_from[: n + 1],
            feature=feature,
            value=value,
            width=int(state[_kernels.WIDTH]),
            starts=np.insert(qid_from[:n], before, where) if self._grouped else qid_from[:0],
            kept=np.insert(keep, before, values=False) if self._grouped else keep[:0],
        )
        return rows if keep.all() else rows.only(keep, self._options.n_features or 0)

    def _read_words(
        self, text: npt.NDArray[np.uint8], grade: npt.NDArray[np.int32], label_from: Positions, label_to: Positions
    ) -> Positions:
        """Parse the grades that the kernel left to the grade rules; return the rows with invalid ones."""
        worded = np.flatnonzero(grade == _kernels.ASKED)
        if not len(worded):
            return worded
        grade[worded], bad = self._rules.read_words(copy_tokens(text, label_from[worded], label_to[worded]))
        return worded[bad]

    def _problem(self, block: Block, state: Positions, label_from: Positions, label_to: Positions) -> _Problem:
        """Return the problem of the line at which the kernel stopped; a bad grade comes first."""
        code, where = int(state[_kernels.CODE]), int(state[_kernels.WHERE])
        if state[_kernels.GRADE_ASKED]:
            row = int(state[_kernels.ROWS])
            word = block.text(label_from[row], label_to[row])
            if self._rules.read_words(pa.array([word]))[1][0]:
                return _Problem(int(label_from[row]), self._bad_grade(word, of_row=False))
        token = re.split("[ \t\r]", block.text(where, block.data.index(b"\n", where)), maxsplit=1)[0]
        return _Problem(where, self._expectation(code, token))

    def _reject(self, block: Block, problem: _Problem) -> None:
        where, (expected, cure) = problem
        line, column = block.line_at(where)
        token = re.split("[ \t]", line[column - 1 :], maxsplit=1)[0]
        if token.startswith("\ufeff"):
            cure = "a byte-order mark may only begin a file; were two files joined?"
        error = MalformedLine(self._path, block.line_number(where), column, shorten(token), expected, cure)
        self._quarantine.add(error, column, line)

    def _bad_grade(self, word: str, *, of_row: bool = True) -> _Complaint:
        """Return the problem of a grade; if the line is otherwise malformed too, the cure is not a map of words."""
        expected, cure = self._rules.expected(word)
        if not self._options.grade_required:
            return _Complaint(expected, "candidates need a first number, too; write nan if unknown")
        return _Complaint(expected, cure if of_row else "")

    def _expectation(self, code: int, found: str) -> _Complaint:
        base = self._options.index_base
        if code == _kernels.ABOVE_TOP and self._options.n_features is not None:
            limit = spelled_with("n_features", self._options.n_features)
            return _Complaint(f"a feature index up to {self._top}", f"{limit} is the limit")
        complaints = {
            _kernels.BAD_LABEL: _Complaint(OPTIONAL["label"].expected),
            _kernels.GRADE_TOO_HIGH: _Complaint(f"a grade up to {self._options.highest_grade}"),
            _kernels.NO_QID: _Complaint(
                "qid:ID after the grade",
                f"every line must name its query, or {self._path.name}.query (or .group) must have the"
                " sizes of all queries, one a line",
            ),
            _kernels.EMPTY_QID: _Complaint("an id after qid:"),
            _kernels.BAD_FEATURE: _Complaint(
                "index:value",
                "no qid: here, because the first line has none" if self._grouped and found.startswith("qid:") else "",
            ),
            _kernels.BAD_VALUE: _Complaint(
                "index:value with a number as value", "a comment begins with a blank and #" if "#" in found else ""
            ),
            _kernels.BELOW_BASE: _Complaint(
                f"a feature index from {base}", f"if features are numbered from 0: {spelled_with('index_base', 0)}"
            ),
            _kernels.ABOVE_TOP: _Complaint(f"a feature index up to {self._top}"),
            _kernels.REPEATED: _Complaint("each feature once a line"),
        }
        return complaints[code]
