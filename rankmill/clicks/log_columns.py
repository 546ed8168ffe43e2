"""The columns of a click log: which column has which role, and what follows for its result lists."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from rankmill.foundation.cures import NAME, spelled_with
from rankmill.foundation.errors import ColumnProblem, DataRejected, InputError, UnusableColumns, name_hint
from rankmill.foundation.options import spelled
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.column_roles import CLICK_PARTS, HABITS
from rankmill.pipeline.read.columns import TableColumns, usual_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rankmill.pipeline.read.columnar import ColumnsOf

REQUIRED = ("qid", "doc_id", "position", "clicked")
FURTHER = ("propensity", "dwell", "converted")

_HABITS = {
    "qid": (*HABITS["qid"], "userquery", "searchterm"),
    "doc_id": (*HABITS["doc_id"], "objectid"),
    "position": ("rank", "pos", "ordinal"),
    "clicked": ("click", "clicks", "isclicked", "isclick"),
    "session": ("sessionid", "visit", "visitid"),
    "list": ("listid", "resultlist", "resultlistid", "impressionid", "serpid"),
    "time": ("timestamp", "datetime"),
    "policy": ("ranker", "policyname"),
    "propensity": ("pscore",),
    "dwell": ("dwelltime",),
    "converted": ("conversion", "isconverted", "purchased"),
}
"""Usual names of these columns beside their own, in lower case without blanks and underscores."""


def list_columns(path: Path, columns: TableColumns) -> tuple[str, ...]:
    """Return the roles in which all rows of a list are equal.

    These are the list's id, else the session, the query and, if there is one, the time.

    Raises
    ------
    DataRejected
        There is neither a session, nor a list's id, nor a time.
    """
    given = columns.column_of
    if "list" in given:
        return ("session", "qid", "list") if "session" in given else ("qid", "list")
    if "session" in given:
        return ("session", "qid", "time") if "time" in given else ("session", "qid")
    if "time" in given:
        return ("qid", "time")
    raise DataRejected(
        f"{path}: no column tells result lists apart: expected one with the session (visit), the id of the list or "
        f"the time at which it was shown; if there is one, name it with {spelled_with('columns', {'session': NAME})}, "
        "list=NAME or time=NAME"
    )


def log_columns(assigned: Mapping[str, str]) -> ColumnsOf:
    """Return a function that assigns roles to the columns of tables.

    The roles ``assigned`` come first, then names decide; other columns are ignored.
    """
    return partial(_columns, assigned)


def _columns(
    assigned: Mapping[str, str],
    path: Path,
    header: Sequence[str],
    _: ReadOptions,
    look: Callable[[TableColumns], list[ColumnProblem]],
) -> TableColumns:
    for part, name in assigned.items():
        if name and name not in header:
            hint = name_hint(name, header, f"the columns are: {', '.join(header)}")
            raise InputError(f"{path}: no column {name!r}, which {spelled('columns')} takes as {part}; {hint}")
    column_of = {part: assigned[part] for part in CLICK_PARTS if assigned.get(part)}
    free = [name for name in header if name not in column_of.values()]
    open_parts = [part for part in CLICK_PARTS if part not in assigned]
    column_of |= {part: part for part in open_parts if part in free}
    guessed = []
    for part in (part for part in open_parts if part not in column_of):
        found = [name for name in free if name not in column_of.values() and usual_name(name) in _HABITS[part]]
        if len(found) == 1:
            column_of[part] = found[0]
            guessed.append(part)
        elif found and part in REQUIRED:
            which = " or ".join(map(repr, found))
            raise DataRejected(
                f"{path}: {part} could be column {which}; choose one: {spelled_with('columns', {part: found[0]})}"
            )
    missing = [part for part in REQUIRED if part not in column_of]
    if missing:
        cure = "a click log has a row for each document shown, with qid, doc_id, position and clicked"
        raise DataRejected(
            f"{path}: no column {missing[0]!r}; {cure}; the columns are {', '.join(header)};"
            f" {spelled_with('columns', {missing[0]: NAME})} says which it is"
        )
    counts = Counter(header)
    twice = [name for name in column_of.values() if counts[name] > 1]
    if twice:
        raise DataRejected(f"{path}: column {twice[0]!r} occurs twice; every column needs a unique name")
    columns = TableColumns({part: column_of[part] for part in CLICK_PARTS if part in column_of}, (), tuple(guessed))
    problems = [problem for problem in look(columns) if not problem.in_rows]
    if problems:
        raise UnusableColumns(path, tuple(problems))
    return columns
