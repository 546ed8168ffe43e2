"""The protocol of row sources: batches of rows, rejects and progress."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import MalformedLine, TooManyRejects
from rankmill.foundation.options import spelled
from rankmill.pipeline.options import DEFAULT_BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from rankmill.pipeline.read.columns import TableColumns

BATCH_BYTES = 16 << 20  # bytes of a batch of dense rows, at most (but at least one row)
SHOWN_CHARACTERS = 60  # of a bad token in an error message
KEPT_CHARACTERS = 4096  # of a malformed row in the list of rejects


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Some rows, in the order of the file."""

    qid: pa.StringArray
    """(n,) never null."""
    doc_id: pa.StringArray | None
    """(n,) null if a row has none; None if no row of the batch has one."""
    grade: npt.NDArray[np.int32] | None
    """(n,) 0 or more; `rankmill.pipeline.read.grades.UNKNOWN_GRADE` for an empty cell if grades are optional; None if
    the source has no grades."""
    values: npt.NDArray[np.float32]
    """(n, width) row-major, NaN if missing.  In text the width may grow from batch to batch; further features are
    absent."""
    extras: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """Optional columns (see :mod:`rankmill.pipeline.read.column_roles`), (n,) each, in the stored type.  ``time`` is in
    int64 microseconds; goals are int32, `rankmill.pipeline.read.grades.UNKNOWN_GRADE` only in rows without a grade."""
    categories: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Codes of the categories of these rows that are not their own codes, by feature and text."""

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, first: int, count: int) -> RowBatch:
        """Return up to ``count`` rows from ``first`` on, not copied."""
        here = slice(first, first + count)
        return RowBatch(
            qid=self.qid.slice(first, count),
            doc_id=None if self.doc_id is None else self.doc_id.slice(first, count),
            grade=None if self.grade is None else self.grade[here],
            values=self.values[here],
            extras={name: column[here] for name, column in self.extras.items()},
        )


@dataclass(frozen=True, slots=True)
class ReadTask:
    """A part of a file: one thread at a time takes the next part, any thread may read its rows."""

    rows: Callable[[], Iterable[RowBatch]]
    """Returns the rows, in the order of the file.  Must be called exactly once."""
    position: int
    """Bytes of the file read up to its end; may be 0 if unknown."""


class Source(Protocol):
    """One input file."""

    path: Path
    position: int
    """Bytes of the file read so far, for a progress bar; may stay 0 if unknown."""
    columns: tuple[str, ...] | None
    """Names of the features, in file order; None if the file does not name them (LETOR text)."""
    fields: tuple[str, ...]
    """Which of ``grade`` and the optional columns its rows have."""
    table: TableColumns | None
    """The roles of its columns; None if columns have no names (LETOR text)."""

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[RowBatch]:
        """Yield the rows in the order of the file; ``block_bytes`` affects only the division into batches."""
        ...

    def names(self, width: int) -> tuple[str, ...]:
        """Return the names of the features, given the ``width`` of the widest batch."""
        ...


@runtime_checkable
class InParts(Protocol):
    """A source whose parts can be read in parallel."""

    def tasks(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[ReadTask]:
        """Yield the parts of the file in order; together their rows are those of ``batches``."""
        ...


def tasks_of(source: Source, block_bytes: int) -> Iterator[ReadTask]:
    """Yield the parts of ``source``; a source that is not :class:`InParts` is read while they are yielded."""
    if isinstance(source, InParts):
        yield from source.tasks(block_bytes)
        return
    for batch in source.batches(block_bytes):
        yield ReadTask(partial(_the_batch, batch), source.position)


def _the_batch(batch: RowBatch) -> tuple[RowBatch]:
    return (batch,)


@dataclass(frozen=True, slots=True)
class Reject:
    """A malformed row: its position, counted from 1, the problem, and its text."""

    source: str
    line: int
    column: int
    reason: str
    text: str


class Quarantine:
    """Collects up to ``limit`` malformed rows; with a limit of 0 the first one is raised as an error.

    Several threads may add rows, each to its own :meth:`part`; :meth:`sort` brings them into the order of the input.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self._found: list[_Found] = []
        self._own = threading.local()

    @property
    def rejects(self) -> list[Reject]:
        """The malformed rows so far."""
        return [found.reject for found in self._found]

    @property
    def full(self) -> bool:
        """Whether there are more malformed rows than allowed."""
        return len(self._found) > self.limit

    @property
    def remaining(self) -> int:
        """How many more malformed rows are allowed, in total or in this part."""
        return max(0, self.limit - len(getattr(self._own, "found", self._found)))

    def add(self, error: MalformedLine, column: int, text: str) -> None:
        """Quarantine a malformed row.

        Raises
        ------
        MalformedLine
            ``error`` itself, if no malformed row is allowed.
        TooManyRejects
            This row exceeds the limit, in total or in this part.
        """
        if self.limit == 0:
            raise error
        reason = f"expected {error.expected}, found {error.found or 'nothing'}"
        reject = Reject(error.path.name, error.line, column, reason, text[:KEPT_CHARACTERS])
        found: list[_Found] = getattr(self._own, "found", self._found)
        found.append(_Found(getattr(self._own, "number", 0), reject, str(error)))
        self._check(found)

    @contextmanager
    def part(self, number: int) -> Iterator[None]:
        """Collect the rows that this thread adds while it reads part ``number`` of the input.

        The limit applies to each part: reading a part stops at ``limit + 1`` malformed rows.  So all parts together
        include the first ``limit + 1`` of the input, however many later parts were read.
        """
        self._own.number, self._own.found = number, []
        try:
            yield
        finally:
            self._found.extend(self._own.found)
            del self._own.number, self._own.found

    @property
    def found(self) -> tuple[tuple[Reject, str], ...]:
        """The malformed rows with their messages, for :meth:`include`."""
        return tuple((found.reject, found.message) for found in self._found)

    def include(self, number: int, found: Iterable[tuple[Reject, str]]) -> None:
        """Add the rows that the quarantine of part ``number`` of the input has :attr:`found`."""
        self._found.extend(_Found(number, reject, message) for reject, message in found)

    def sort(self, parts: int | None = None) -> None:
        """Sort the malformed rows, and discard those of parts from number ``parts`` on.

        Raises
        ------
        TooManyRejects
            There are more than allowed; the first ones are kept.
        """
        kept = [found for found in self._found if parts is None or found.part < parts]
        kept.sort(key=lambda found: (found.part, found.reject.line, found.reject.column))
        self._found = kept[: self.limit + 1]
        self._check(self._found)

    def _check(self, found: list[_Found]) -> None:
        if len(found) > self.limit:
            raise TooManyRejects(found[0].message, self.limit, option=spelled("max_rejects"))


class _Found(NamedTuple):
    part: int
    reject: Reject
    message: str


def shorten(token: str) -> str:
    """Shorten a long token for an error message."""
    return token if len(token) <= SHOWN_CHARACTERS else token[: SHOWN_CHARACTERS - 1] + "…"


class FeaturePart(NamedTuple):
    """Some values of one feature."""

    number: int
    """Its index in the source's ``columns``."""
    first: int
    """The row of the first value, from 0 in the batch."""
    values: npt.NDArray[np.float32]
    """(m,) NaN if missing; read-only, and overwritten by the next part."""


@dataclass(frozen=True, slots=True)
class ColumnBatch:
    """Some rows, in the order of the file."""

    rows: RowBatch
    """The rows, without features: ``values`` is (n, 0)."""
    features: Iterator[FeaturePart]
    """Parts with every value of every feature, in any order."""

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class ColumnTask:
    """A part of a file: one thread at a time takes the next part, any thread may read its rows."""

    batch: Callable[[], ColumnBatch]
    """Reads the rows; the same thread must iterate its features.  Must be called exactly once."""
    position: int
    """Bytes of the file read up to its end; may be 0 if unknown."""


def without_values(n: int) -> npt.NDArray[np.float32]:
    """Return the ``values`` of ``n`` rows without features."""
    return np.empty((n, 0), dtype=np.float32)


Mask = npt.NDArray[np.bool_]


class Problem(NamedTuple):
    """A problem of a row of a batch, counted from 0."""

    row: int
    part: str
    """The role of the bad cell or word; empty: the line has too many or too few words."""
    found: str
    """The value as shown in a message; for text, the message quotes the file instead."""
    expected: str
    cure: str = ""


class Problems:
    """The first problem of each bad row of a batch."""

    def __init__(self, rows: int) -> None:
        self.keep: Mask = np.ones(rows, dtype=np.bool_)
        self._found: list[Problem] = []

    def new(self, bad: Mask) -> Iterable[int]:
        """Mark the ``bad`` (n,) rows and return those without an earlier problem."""
        rows: list[int] = np.flatnonzero(bad & self.keep).tolist()
        self.keep &= ~bad
        return rows

    def add(self, row: int, part: str, found: str, expected: str, cure: str = "") -> None:
        """Add the problem of a row that `new` returned."""
        self._found.append(Problem(row, part, found, expected, cure))

    def refuse(self, bad: Mask, part: str, expected: str, cure: str = "", *, found: str = "nothing") -> None:
        """Add the same problem for all ``bad`` (n,) rows without an earlier one."""
        for row in self.new(bad):
            self.add(row, part, found, expected, cure)

    def sorted(self) -> list[Problem]:
        """Return all problems in the order of the rows."""
        return sorted(self._found)


@dataclass(frozen=True, slots=True)
class TableRows:
    """Some rows of a table, or lines of words, in the order of the file."""

    columns: Mapping[str, pa.Array[Any]]
    """(n,) cells, by the role of the column."""
    place: npt.NDArray[np.int64]
    """(n,) ascending: row or line number in the file."""
    problems: Problems
    """Problems found so far."""
    reject: Callable[[Problems], None]
    """Quarantines the rows with problems."""
