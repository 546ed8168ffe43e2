"""The errors of rankmill.  Each class has the exit code of the command; only `rankmill.cli` prints them."""

from __future__ import annotations

import os
import re
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from rankmill.foundation.exit_codes import (
    BUG,
    DATA_REJECTED,
    DRIFT,
    GATE_NOT_PASSED,
    INPUT_OUTPUT,
    INTEGRITY,
    INTERRUPTED,
    READER_GONE,
    TRY_AGAIN,
    USAGE,
)
from rankmill.foundation.shown import few, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAMED = 20  # choices in a message
_USER = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+://?)[^\s/?#'\"@]*@")
_QUERY = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+://?[^\s?'\"]*)\?[^\s?'\",;:]*=[^\s'\",;]*?(?=[,;]|:?(?:\s|$|['\"]))")


def without_secrets(text: str) -> str:
    """Return ``text`` without the parts of URLs that may be secret.

    These are query strings (they have signatures), user names and passwords.

    A local path may have lost one of the slashes of the URL that was meant.

    >>> without_secrets("https://me:pw@host/a.csv?sig=x&se=1: no such file; s3://bucket/day-?.csv")
    'https://host/a.csv: no such file; s3://bucket/day-?.csv'
    """
    return _QUERY.sub(r"\1", _USER.sub(r"\1", text)) if ":/" in text else text


class RankmillError(Exception):
    """Base of everything rankmill raises on purpose; its message has no secrets of URLs."""

    exit_code: ClassVar[int] = BUG

    def __init__(self, *args: object) -> None:
        super().__init__(*(without_secrets(arg) if isinstance(arg, str) else arg for arg in args))

    def __init_subclass__(cls) -> None:
        """Let messages show what names in them would hide."""
        super().__init_subclass__()
        if (text := vars(cls).get("__str__")) is not None:
            cls.__str__ = lambda self: shown(text(self))  # type: ignore[method-assign]

    def __str__(self) -> str:
        return shown(super().__str__())


class InputError(RankmillError):
    """The caller named something that does not exist or is not allowed.

    Examples: a missing file, an unknown name, a value out of bounds.
    """

    exit_code = USAGE

    @classmethod
    def unknown(cls, what: str, name: str, known: Iterable[str], cure: str = "there is none yet") -> Self:
        """Build the error for a ``name`` that is not ``known``, with the nearest spelling, all names, or the cure."""
        choices = list(known)
        otherwise = f"known: {few(choices, _NAMED)}" if choices else cure
        return cls(f"unknown {what} {name!r}; {name_hint(name, choices, otherwise)}")


def name_hint(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of a message about the unknown ``name``: the nearest of the ``known`` names, else ``otherwise``.

    The default of ``otherwise`` is the first of them as an example.

    >>> name_hint("q77", ["q1", "q7"]), name_hint("x", ["q1", "q7"])
    ("did you mean 'q7'?", "such as 'q1'")
    """
    choices = list(known)
    near = [choice for choice in choices if choice.lower() == name.lower()] or get_close_matches(name, choices, n=1)
    example = f"such as {choices[0]!r}" if choices else "there is none"
    return f"did you mean {near[0]!r}?" if near else otherwise or example


class InvalidParameter(InputError, ValueError):
    """An option is outside its bounds, or unknown; the message has name, bound and value."""


class NotFitted(InvalidParameter, AttributeError):
    """A ranker has not been fitted; where scikit-learn is in use, also its NotFittedError."""

    @classmethod
    def needed_by(cls, what: str) -> NotFitted:
        """Build the error that ``what`` needs a fitted ranker."""
        theirs = getattr(sys.modules.get("sklearn.exceptions"), "NotFittedError", None)
        kind: type[NotFitted] = cls
        if theirs is not None:
            kind = type(cls.__name__, (cls, theirs), {"__module__": cls.__module__})
        return kind(f"{what} needs a fitted ranker; call fit first")


class NoTrees(InputError, AttributeError):
    """The model is of another kind than trees, or a blend, and only a model of trees has what is asked for."""


class MissingLibrary(InputError, ImportError):
    """An optional library is not installed; the message says what needs it and how to install it."""


class ConfigError(InputError):
    """``rankmill.toml`` is invalid; the message has the file, the key, what was found and the cure."""


class InvalidName(InputError):
    """A name of a model or alias, or a reference built of them, breaks the rules of ``rankmill.registry.names``."""


class UnknownModel(InputError):
    """There is no such model, or it has no such version or alias."""


class DataRejected(RankmillError):
    """The data are malformed; nothing was written."""

    exit_code = DATA_REJECTED


class MalformedLine(DataRejected):
    """One input line is malformed.  ``line`` and ``column`` count from 1, as editors do."""

    def __init__(self, path: Path, line: int, column: int | str, found: str, expected: str, cure: str = "") -> None:
        super().__init__(path, line, column, found, expected, cure)
        self.path, self.line, self.column = path, line, column
        self.found, self.expected, self.cure = found, expected, cure

    def __str__(self) -> str:
        found = repr(self.found) if self.found else "nothing"
        return self._said(f"{self.path}:{self.line}:{self.column}", found)

    def _said(self, where: str, found: str) -> str:
        return f"{where}: expected {self.expected}, found {found}" + (f"; {self.cure}" if self.cure else "")


class MalformedRow(MalformedLine):
    """One row of a table without lines (Parquet) is malformed; ``line`` is its number from 1, ``column`` a name."""

    def __str__(self) -> str:
        return self._said(f"{self.path}: row {self.line}, column {self.column!r}", self.found)


class ColumnProblem(NamedTuple):
    """Why a column of a table cannot be used as it is."""

    column: str
    reason: str
    """What is wrong, as a clause of a message; the column is named in it."""
    cure: str = ""
    """What to do about it."""
    options: tuple[tuple[str, str], ...] = ()
    """Options of the command line, with their values, that solve it; a flag has the value ``""``."""
    in_rows: bool = False
    """Whether the reader of the rows reports it, too."""


class UnusableColumns(DataRejected):
    """Columns of a table cannot be used as they are; all of them are named, with the options that cure it."""

    def __init__(self, path: Path, problems: tuple[ColumnProblem, ...]) -> None:
        super().__init__(path, problems)
        self.path, self.problems = path, problems

    @property
    def options(self) -> dict[str, list[str]]:
        """Options of the command line with their values, that solve all problems; empty if one of them has none."""
        if not all(problem.options for problem in self.problems):
            return {}
        values: dict[str, list[str]] = {}
        for problem in self.problems:
            for option, value in problem.options:
                if value not in values.setdefault(option, []):
                    values[option].append(value)
        return values

    def __str__(self) -> str:
        head, *each = self.lines
        return f"{head} {'; '.join(each)}" if each else head

    @property
    def lines(self) -> list[str]:
        """The message as a line for the file and a numbered one for each column; one line if there is one column."""
        reasons = [f"{problem.reason}; {problem.cure}" if problem.cure else problem.reason for problem in self.problems]
        if len(reasons) == 1:
            return [f"{self.path}: {reasons[0]}"]
        head = f"{self.path}: {len(reasons)} columns cannot be used as they are:"
        return [head, *(f"({number}) {reason}" for number, reason in enumerate(reasons, start=1))]


class TooManyRejects(DataRejected):
    """More rows are malformed than ``option``, max_rejects, allows; ``first`` is the first of them in reading order."""

    def __init__(self, first: str, limit: int, rejects: str = "", option: str = "max_rejects") -> None:
        super().__init__(first, limit, rejects, option)
        self.first, self.limit, self.rejects, self.option = first, limit, rejects, option

    def __str__(self) -> str:
        listed = f"; listed in {self.rejects}" if self.rejects else ""
        return f"{self.first} (and more bad rows than {self.option} {self.limit} allows{listed})"


class TrainingDataRejected(DataRejected):
    """The rows cannot be trained on: no train split, no two grades in any query."""


class CandidatesRejected(DataRejected):
    """The candidates or scores cannot be used: features that the model needs are missing, a score is not a number."""


class NotFiniteScore(CandidatesRejected):
    """A score is infinite or not a number.

    ``row`` counts the rows of the whole input from 1, or those of the ``part`` of it with this number.
    """

    part: int | None = None

    def __init__(self, where: str, row: int, qid: str, score: float) -> None:
        super().__init__(where, row, qid, score)
        self.where, self.row, self.qid, self.score = where, row, qid, score

    def __str__(self) -> str:
        return (
            f"{self.where}: the score of row {self.row}, query {self.qid!r}, is {self.score}; "
            "expected a finite number: the model's values are out of range"
        )


class ConversionRefused(DataRejected):
    """The format of another tool cannot express a model, or our format cannot express a model of another tool."""


class PromotionRefused(RankmillError):
    """A gate did not pass: the version stays registered and the alias is unchanged."""

    exit_code = GATE_NOT_PASSED


class DriftAlarm(RankmillError):
    """Features have drifted, and the caller asked to fail in this case."""

    exit_code = DRIFT


class IntegrityError(RankmillError):
    """Stored data are damaged, incomplete or of another format number."""

    exit_code = INTEGRITY


class DatasetFormatError(IntegrityError):
    """A dataset on disk is of another format number, incomplete or damaged."""


class ModelFormatError(IntegrityError):
    """Model bytes are of another format number, incomplete or damaged."""


class ConflictError(RankmillError):
    """Another process made a conflicting change first; nothing was written, and a retry may succeed."""

    exit_code = TRY_AGAIN


class WorkerLost(ConflictError):
    """A worker process or all workers of a cluster were lost; the same command resumes."""


class ClusterUnavailable(RankmillError):
    """The scheduler of a cluster does not answer, or it has no workers."""

    exit_code = TRY_AGAIN


class RunUnderWay(ConflictError):
    """Another run uses the same folder; the message says which."""


class Unhealthy(ConflictError):
    """No run of a work folder has succeeded for too long; the message says since when, and what is known."""


def code_of(error: BaseException) -> int:
    """Return the exit code for ``error``, also for bugs and signals."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return READER_GONE
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, RankmillError):
        return error.exit_code
    return INPUT_OUTPUT if isinstance(error, OSError) else BUG


def one_line(error: BaseException) -> str:
    """Return what ``error`` says, as one line."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        names = " -> ".join(os.fsdecode(name) for name in (error.filename, error.filename2) if name is not None)
        text = f"{names}: {error.strerror}" if names else error.strerror
    return " ".join("; ".join([text, *getattr(error, "__notes__", ())]).split("\n"))


def lines_of(error: BaseException) -> list[str]:
    """Return what ``error`` says for a terminal: one line, except for several columns and their common cure."""
    if not isinstance(error, UnusableColumns) or len(error.problems) == 1:
        return [one_line(error)]
    return [" ".join(shown(line).split("\n")) for line in (*error.lines, *getattr(error, "__notes__", ()))]
