"""What can go wrong between raw judgments and a dataset.  The front door maps these classes to exit codes."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAMED = 20  # choices in a message


class PipelineError(Exception):
    """Base of everything this package raises on purpose."""


class InputError(PipelineError):
    """The caller asked for something that is not there: a missing file, an unknown option value."""

    @classmethod
    def unknown(cls, what: str, name: str, known: Iterable[str]) -> InputError:
        """Build the error for ``name`` that is none of ``known``, with the nearest spelling as a hint."""
        choices = list(known)
        near = get_close_matches(name, choices, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {_some(choices)}"
        return cls(f"unknown {what} {name!r}; {hint}")


class DataRejected(PipelineError):
    """The data break a rule of the format; nothing was written."""


class MalformedLine(DataRejected):
    """One input line breaks the format.  ``line`` and ``column`` count from 1, as editors do."""

    def __init__(self, path: Path, line: int, column: int, found: str, expected: str, cure: str = "") -> None:
        super().__init__(path, line, column, found, expected, cure)
        self.path, self.line, self.column = path, line, column
        self.found, self.expected, self.cure = found, expected, cure

    def __str__(self) -> str:
        cure = f"; {self.cure}" if self.cure else ""
        found = repr(self.found) if self.found else "nothing"
        return f"{self.path}:{self.line}:{self.column}: expected {self.expected}, found {found}{cure}"


class MalformedRow(DataRejected):
    """One row of a table without lines (Parquet) breaks the format.  ``row`` counts from 1."""

    def __init__(self, path: Path, row: int, column: str, found: str, expected: str, cure: str = "") -> None:
        super().__init__(path, row, column, found, expected, cure)
        self.path, self.row, self.column = path, row, column
        self.found, self.expected, self.cure = found, expected, cure

    def __str__(self) -> str:
        cure = f"; {self.cure}" if self.cure else ""
        return (
            f"{self.path}: row {self.row}, column {self.column!r}: expected {self.expected}, found {self.found}{cure}"
        )


class ColumnProblem(NamedTuple):
    """Why a column of a table cannot be used as it is."""

    column: str
    reason: str
    """What is wrong, as a clause of a message; the column is named in it."""
    cure: str = ""
    """What to do about it."""
    options: tuple[tuple[str, str], ...] = ()
    """Options of the command line, with their values, that do so."""
    in_rows: bool = False
    """Whether whoever reads the rows finds it, too, and says as much."""


class UnusableColumns(DataRejected):
    """Columns of a table cannot be used as they are; all of them are named, with the options that cure it."""

    def __init__(self, path: Path, problems: tuple[ColumnProblem, ...]) -> None:
        super().__init__(path, problems)
        self.path, self.problems = path, problems

    @property
    def options(self) -> tuple[str, ...]:
        """Words of the command line that cure all problems; empty where there is none for one of them."""
        if not all(problem.options for problem in self.problems):
            return ()
        values: dict[str, list[str]] = {}
        for problem in self.problems:
            for option, value in problem.options:
                if value not in values.setdefault(option, []):
                    values[option].append(value)
        return tuple(word for option, found in values.items() for word in (option, ",".join(found)))

    def __str__(self) -> str:
        told = [f"{problem.reason}; {problem.cure}" if problem.cure else problem.reason for problem in self.problems]
        if len(told) == 1:
            return f"{self.path}: {told[0]}"
        each = "; ".join(f"({number}) {reason}" for number, reason in enumerate(told, start=1))
        return f"{self.path}: {len(told)} columns cannot be used as they are: {each}"


class TooManyRejects(DataRejected):
    """More rows break the format than ``--max-rejects`` allows; ``first`` is the first of them in reading order."""

    def __init__(self, first: str, limit: int, rejects: str = "") -> None:
        super().__init__(first, limit, rejects)
        self.first, self.limit, self.rejects = first, limit, rejects

    def __str__(self) -> str:
        listed = f"; listed in {self.rejects}" if self.rejects else ""
        return f"{self.first} (and more bad rows than --max-rejects {self.limit} allows{listed})"


class DatasetConflict(PipelineError):
    """Somebody else changed the dataset while it was being changed; the same again may succeed."""


class DriftAlarm(PipelineError):
    """Features are not distributed as they were, and the caller has asked to stop then."""


class DatasetFormatError(PipelineError):
    """A dataset on disk is of another format number, incomplete or damaged."""


def _some(choices: list[str]) -> str:
    """Name all choices, or the first of very many."""
    more = len(choices) - _NAMED
    return ", ".join(choices) if more <= 0 else f"{', '.join(choices[:_NAMED])} and {more:,} more"
