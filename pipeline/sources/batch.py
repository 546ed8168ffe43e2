"""The protocol of row sources: batches of rows, rejects and progress."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import MalformedLine, MalformedRow, TooManyRejects
from rankmill.foundation.options import respelled, spelled
from rankmill.pipeline.options import DEFAULT_BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from rankmill.pipeline.sources.columns import TableColumns


BATCH_BYTES = 16 << 20  # most a batch of dense rows takes (but at least one row)
SHOWN_CHARACTERS = 60  # of a bad token, in a message
KEPT_CHARACTERS = 4096  # of a bad row, in the list of rejects


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Some rows, in the order of the file."""

    qid: pa.StringArray
    """(n,) the bytes of the token, never null."""
    doc_id: pa.StringArray | None
    """(n,) with nulls where the row has none; None where no row of the batch has one."""
    grade: npt.NDArray[np.int32] | None
    """(n,) 0 or more; `rankmill.pipeline.sources.grades.UNKNOWN_GRADE` for an empty cell where grades are optional; None where the source has no grades."""
    values: npt.NDArray[np.float32]
    """(n, width) row-major, NaN where missing.  Text may widen from batch to batch: what follows is absent."""
    extras: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """Optional columns (see :mod:`rankmill.pipeline.sources.column_roles`), (n,) each, as they are stored; ``time`` as int64 microseconds."""

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, first: int, count: int) -> RowBatch:
        """Return ``count`` rows from ``first`` on, or as many as there are, not copied."""
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
    """A part of a file: one thread at a time takes the next from the file, any thread reads its rows."""

    rows: Callable[[], Iterable[RowBatch]]
    """Returns the rows, in the order of the file.  Must be called, once."""
    position: int
    """Bytes of the file read up to its end; may be 0 if unknown."""


class Source(Protocol):
    """One input file."""

    path: Path
    position: int
    """Bytes of the file read so far, for a progress bar; may stay 0 if unknown."""
    columns: tuple[str, ...] | None
    """Names of the features, in file order; None where the file does not name them (LETOR text)."""
    fields: tuple[str, ...]
    """Which of ``grade`` and the optional columns its rows bring."""
    table: TableColumns | None
    """Which of its columns plays which part; None where columns have no names (LETOR text)."""

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[RowBatch]:
        """Yield the rows in the order of the file; the rows do not depend on ``block_bytes``, their batches do."""
        ...

    def names(self, width: int) -> tuple[str, ...]:
        """Return the names of the features, once the widest batch is known to have ``width``."""
        ...


@runtime_checkable
class InParts(Protocol):
    """A source whose parts several threads can read at once."""

    def tasks(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[ReadTask]:
        """Yield the parts of the file in its order; their rows, one part after the other, are those of ``batches``."""
        ...


def tasks_of(source: Source, block_bytes: int) -> Iterator[ReadTask]:
    """Yield the parts of ``source``; one that is not :class:`InParts` is read while they are yielded."""
    if isinstance(source, InParts):
        yield from source.tasks(block_bytes)
        return
    for batch in source.batches(block_bytes):
        yield ReadTask(partial(_the_batch, batch), source.position)


def _the_batch(batch: RowBatch) -> tuple[RowBatch]:
    return (batch,)


@dataclass(frozen=True, slots=True)
class Reject:
    """A row that broke the format: where it is, counted from 1, what is wrong with it, and its text."""

    source: str
    line: int
    column: int
    reason: str
    text: str


class Quarantine:
    """Bad rows, up to ``limit``; with a limit of 0 the first is raised as it is.

    Several threads may add rows, each to a :meth:`part` of its own; :meth:`settle` brings them in the order of the input.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self._found: list[_Found] = []
        self._own = threading.local()

    @property
    def rejects(self) -> list[Reject]:
        """The bad rows so far."""
        return [found.reject for found in self._found]

    @property
    def full(self) -> bool:
        """Whether there are more bad rows than are allowed."""
        return len(self._found) > self.limit

    @property
    def remaining(self) -> int:
        """How many more bad rows there may be, here or in this part."""
        return max(0, self.limit - len(getattr(self._own, "found", self._found)))

    def add(self, error: MalformedLine | MalformedRow, column: int, text: str) -> None:
        """Put a bad row aside.

        Raises
        ------
        MalformedLine, MalformedRow
            ``error`` itself, where no bad row is allowed.
        TooManyRejects
            This is one more than allowed, here or in this part.
        """
        stored = error.cure  # by its flags whoever asks, so that equal input makes equal bytes
        error.cure = respelled(error.cure)
        if self.limit == 0:
            raise error
        line = error.line if isinstance(error, MalformedLine) else error.row
        cure = f"; {stored}" if stored else ""
        reason = f"expected {error.expected}, found {error.found or 'nothing'}{cure}"
        reject = Reject(error.path.name, line, column, reason, text[:KEPT_CHARACTERS])
        found: list[_Found] = getattr(self._own, "found", self._found)
        found.append(_Found(getattr(self._own, "number", 0), reject, str(error)))
        self._check(found)

    @contextmanager
    def part(self, number: int) -> Iterator[None]:
        """Collect what this thread adds, while it reads part ``number`` of the input, apart from what others add.

        The limit holds for each part, so that a part that is given up has ``limit + 1`` bad rows: those of all parts
        together include the first ``limit + 1`` of the input, whichever later parts there was time for.
        """
        self._own.number, self._own.found = number, []
        try:
            yield
        finally:
            self._found.extend(self._own.found)
            del self._own.number, self._own.found

    def settle(self, parts: int | None = None) -> None:
        """Bring the bad rows in order; those of parts from number ``parts`` on are forgotten.

        Raises
        ------
        TooManyRejects
            There are more than are allowed; the first ones are kept.
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
    """Cut a long token for a message."""
    return token if len(token) <= SHOWN_CHARACTERS else token[: SHOWN_CHARACTERS - 1] + "…"


class FeaturePart(NamedTuple):
    """Some values of one feature."""

    number: int
    """Which of the source's ``columns`` it is."""
    first: int
    """The row of the first value, from 0 in the batch."""
    values: npt.NDArray[np.float32]
    """(m,) NaN where missing; read only, and gone when the next part is asked for."""


@dataclass(frozen=True, slots=True)
class ColumnBatch:
    """Some rows, in the order of the file."""

    rows: RowBatch
    """The rows, without features: ``values`` is (n, 0)."""
    features: Iterator[FeaturePart]
    """Every value of every feature, once, in any order."""

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class ColumnTask:
    """A part of a file: one thread at a time takes the next from the file, any thread reads its rows."""

    batch: Callable[[], ColumnBatch]
    """Reads the rows; its features must be drawn in the thread that called it.  Must be called, once."""
    position: int
    """Bytes of the file read up to its end; may be 0 if unknown."""


def without_values(n: int) -> npt.NDArray[np.float32]:
    """Return the ``values`` of ``n`` rows without features."""
    return np.empty((n, 0), dtype=np.float32)
