"""What every source of rows hands over, and what it is told about its input."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.errors import InputError, MalformedLine, MalformedRow, TooManyRejects
from pipeline.sources.grades import MAX_GRADE, GradeRules
from pipeline.sources.parts import check_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pipeline.sources.columns import TableColumns

Format = Literal["auto", "letor", "csv", "tsv", "parquet", "run"]
Absent = Literal["zero", "missing"]
Labels = Literal["grade", "real"]

DEFAULT_BLOCK_BYTES = 16 << 20
BATCH_BYTES = 64 << 20  # most a batch of dense rows takes (but at least one row)
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
    """(n,) 0 or more; `pipeline.sources.grades.UNKNOWN_GRADE` for an empty cell where grades are optional; None where the source has no grades."""
    values: npt.NDArray[np.float32]
    """(n, width) row-major, NaN where missing.  Text may widen from batch to batch: what follows is absent."""
    extras: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """Optional columns (see :mod:`pipeline.sources.optional`), (n,) each, as they are stored; ``time`` as int64 microseconds."""

    def __len__(self) -> int:
        return len(self.values)


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
    columns
        Which column of a table plays which part (see :data:`pipeline.sources.parts.PARTS`), where it has another name; an
        empty name: no column plays it.
    ignore
        Names of columns of a table, or patterns such as ``debug_*``, that are left out.
    known_features
        Columns of a table that are features for certain: no guess makes them anything else.
    time_column
        Column of a table that says when each row was judged or seen (see :mod:`pipeline.sources.times`); None: there is none.
    """

    absent: Absent = "zero"
    index_base: Literal[0, 1] = 1
    n_features: int | None = None
    max_grade: int | None = None
    grade_required: bool = True
    ungraded: bool = False
    labels: Labels = "grade"
    time_column: str | None = None
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
        return GradeRules(unjudged="reject" if self.grade_required else "keep", highest=self.highest_grade)


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


@dataclass(frozen=True, slots=True)
class Reject:
    """A row that broke the format: where it is, counted from 1, what is wrong with it, and its text."""

    source: str
    line: int
    column: int
    reason: str
    text: str


@dataclass(slots=True)
class Quarantine:
    """Bad rows, up to ``limit``; with a limit of 0 the first is raised as it is."""

    limit: int = 0
    rejects: list[Reject] = field(default_factory=list)
    first: str = ""

    def add(self, error: MalformedLine | MalformedRow, column: int, text: str) -> None:
        """Put a bad row aside.

        Raises
        ------
        MalformedLine, MalformedRow
            ``error`` itself, where no bad row is allowed.
        TooManyRejects
            This is one more than allowed.
        """
        if self.limit == 0:
            raise error
        line = error.line if isinstance(error, MalformedLine) else error.row
        cure = f"; {error.cure}" if error.cure else ""
        reason = f"expected {error.expected}, found {error.found or 'nothing'}{cure}"
        self.first = self.first or str(error)
        self.rejects.append(Reject(error.path.name, line, column, reason, text[:KEPT_CHARACTERS]))
        if len(self.rejects) > self.limit:
            raise TooManyRejects(self.first, self.limit)


def shorten(token: str) -> str:
    """Cut a long token for a message."""
    return token if len(token) <= SHOWN_CHARACTERS else token[: SHOWN_CHARACTERS - 1] + "…"
