"""What can go wrong between raw judgments and a dataset.  The front door maps these classes to exit codes."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

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
