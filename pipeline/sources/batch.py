"""What every source of rows hands over, and what it is told about its input."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InputError, MalformedLine, MalformedRow, TooManyRejects
from rankmill.pipeline.sources.grades import MAX_GRADE, GradeRules, NegativeGrades, Unjudged, Words, words_of
from rankmill.pipeline.sources.parts import check_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from rankmill.pipeline.sources.columns import TableColumns


Format = Literal["auto", "letor", "csv", "tsv", "parquet", "arrow", "jsonl", "run"]
Absent = Literal["zero", "missing"]
Labels = Literal["grade", "real"]

DEFAULT_BLOCK_BYTES = 16 << 20
BATCH_BYTES = 16 << 20  # most a batch of dense rows takes (but at least one row)
MAX_FEATURES = 65536
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
    """Optional columns (see :mod:`rankmill.pipeline.sources.parts`), (n,) each, as they are stored; ``time`` as int64 microseconds."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to read the input.

    Attributes
    ----------
    absent
        What a feature means that a line of text leaves out: ``zero`` (SVMlight's meaning) or ``missing``.
    index_base
        Number of the first feature in text, 1 or 0.
    n_features
        Features of text, where the highest index seen is not to decide; an index above it is an error.
    max_grade
        Highest grade allowed; None for no bound.
    grade_required
        Whether rows are judgments.  Without it they are candidates: a table need not have a column ``grade`` with a value in every
        row, and optional columns are passed over.
    ungraded
        Whether a table of judgments may have neither ``grade`` nor ``label``: where pairs say what is better.  Grades are 0 then.
    labels
        What the first number of a line of text is: a ``grade``, or a ``real`` number, stored as the column ``label``.
    grades
        Pairs of a word and the grade that it stands for (see :class:`rankmill.pipeline.sources.grades.GradeRules`).
    negative_grades, unjudged
        What negative grades and no grade mean (see there); candidates may always lack grades.
    columns
        Which column of a table plays which part (see :data:`rankmill.pipeline.sources.parts.PARTS`), where it has another name; an
        empty name: no column plays it.
    ignore
        Names of columns of a table, or patterns such as ``debug_*``, that are left out.
    known_features
        Columns of a table that are features for certain: no guess makes them anything else.
    time_column
        Column of a table that says when each row was judged or seen (see :mod:`rankmill.pipeline.sources.times`); None: there is none.
    time_optional
        Whether a file may be without that column.
    judgments_alone
        Whether a table holds judgments and no features: qid, doc_id and grade in every row, other columns passed over.
    """

    absent: Absent = "zero"
    index_base: Literal[0, 1] = 1
    n_features: int | None = None
    max_grade: int | None = None
    grade_required: bool = True
    ungraded: bool = False
    labels: Labels = "grade"
    time_column: str | None = None
    time_optional: bool = False
    judgments_alone: bool = False
    grades: Words = ()
    negative_grades: NegativeGrades = "reject"
    unjudged: Unjudged = "keep"
    columns: Mapping[str, str] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    known_features: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.absent not in {"zero", "missing"}:
            raise InputError.unknown("value of --absent", self.absent, ("zero", "missing"))
        if self.labels not in {"grade", "real"}:
            raise InputError.unknown("value of --labels", self.labels, ("grade", "real"))
        if self.index_base not in {0, 1}:
            raise InputError(f"--index-base must be 0 or 1, got {self.index_base}")
        if self.n_features is not None and not 1 <= self.n_features <= MAX_FEATURES:
            raise InputError(f"--n-features must be in 1..{MAX_FEATURES}, got {self.n_features}")
        if self.max_grade is not None and not 0 <= self.max_grade <= MAX_GRADE:
            raise InputError(f"--max-grade must be in 0..{MAX_GRADE}, got {self.max_grade}")
        check_columns(self.columns, self.ignore)
        object.__setattr__(self, "grades", words_of(self.grades))
        _ = self.grade_rules  # which checks them
        if self.labels == "real" and self.grades:
            raise InputError("--grades maps words to grades; with --labels real the first number of a line is no grade")

    @property
    def absent_value(self) -> float:
        """The number that stands for a feature a line leaves out."""
        return 0.0 if self.absent == "zero" else float("nan")

    @property
    def highest_grade(self) -> int:
        """Highest grade allowed."""
        return MAX_GRADE if self.max_grade is None else self.max_grade

    @property
    def grade_rules(self) -> GradeRules:
        """How grades are read; candidates may lack them."""
        return GradeRules(
            words=self.grades,
            negative=self.negative_grades,
            unjudged=self.unjudged if self.grade_required else "keep",
            highest=self.highest_grade,
        )


@dataclass(frozen=True, slots=True)
class ReadTask:
    """A part of a file: one thread at a time takes the next from the file, any thread reads its rows."""

    rows: Callable[[], Iterable[RowBatch]]
    """Returns the rows, in the order of the file.  Must be called, once."""
    position: int
    """Bytes of the file used up after it; may be 0 where that is not known."""


class Source(Protocol):
    """One input file."""

    path: Path
    position: int
    """Bytes of the file used up so far, for a progress bar; may stay 0 where that is not known."""
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
    def room(self) -> int:
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
        if self.limit == 0:
            raise error
        line = error.line if isinstance(error, MalformedLine) else error.row
        cure = f"; {error.cure}" if error.cure else ""
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
            raise TooManyRejects(found[0].message, self.limit)


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
    """Bytes of the file used up after it; may be 0 where that is not known."""


def without_values(n: int) -> npt.NDArray[np.float32]:
    """Return the ``values`` of ``n`` rows without features."""
    return np.empty((n, 0), dtype=np.float32)
