"""What tables with named columns have in common: the header, and the column of grades."""

from __future__ import annotations

import re
from collections import Counter
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pipeline.errors import DataRejected, InputError
from pipeline.sources.batch import MAX_FEATURES
from pipeline.sources.optional import OPTIONAL, optional_columns
from pipeline.sources.times import TIME

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pipeline.sources.batch import ReadOptions

ID_COLUMNS = ("qid", "doc_id", "grade")
RESERVED = ("position", "split")  # not columns of rows yet, but no features either
_HABITS = {
    "qid": ("query_id", "query", "queryid", "group", "group_id", "topic"),
    "grade": ("relevance", "rel", "rating", "judgment", "judgement", "target", "y"),
}
_WHOLE = re.compile(r"[ \t]*([0-9]+)(?:\.0*)?[ \t]*")
GRADE_RULE = "a grade: a whole number, 0 or more"


def feature_columns(path: Path, names: Sequence[str], options: ReadOptions) -> tuple[str, ...]:
    """Return the columns of a table that are features, in file order.

    Raises
    ------
    DataRejected
        ``qid`` or a required ``grade`` (or ``label``) is missing, a name is empty, given twice or reserved, or nothing is
        left.
    """
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataRejected(f"{path}: column {twice[0]!r} is there twice; every column needs a name of its own")
    if "" in names:
        raise DataRejected(
            f"{path}: column {list(names).index('') + 1} has no name; the first line must name the columns"
        )
    graded = options.grade_required and not options.ungraded and "label" not in names
    for needed in ("qid", *(["grade"] if graded else [])):
        if needed not in names:
            raise DataRejected(f"{path}: no column {needed!r}{_instead(needed, names)}")
    _check_time_column(path, names, options)
    for name in names:
        if name in RESERVED:
            raise DataRejected(
                f"{path}: column name {name!r} is reserved; rename it if it is a feature, else leave it out"
            )
    features = tuple(name for name in names if name not in {*ID_COLUMNS, *OPTIONAL, options.time_column})
    if not features:
        raise DataRejected(f"{path}: no column is a feature: there are only {', '.join(names)}")
    if len(features) > MAX_FEATURES:
        raise DataRejected(f"{path}: {len(features)} features; {MAX_FEATURES} at most")
    return features


def given_fields(names: Sequence[str], options: ReadOptions) -> tuple[str, ...]:
    """Return which of ``grade``, the optional columns and ``time`` are read from a table with the columns ``names``."""
    grade = tuple(name for name in names if name == "grade")
    time = () if options.time_column is None else (TIME,)
    return (*grade, *optional_columns(names), *time) if options.grade_required else grade


def _check_time_column(path: Path, names: Sequence[str], options: ReadOptions) -> None:
    name = options.time_column
    if name is None:
        return
    if name in {*ID_COLUMNS, *OPTIONAL}:
        raise InputError(f"--time-column: {name!r} has a meaning of its own; name the column that holds the times")
    if name not in names:
        near = get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the columns are: {', '.join(names[:6])}"
        raise DataRejected(f"{path}: no column {name!r}, which --time-column names; {hint}")


def _instead(needed: str, names: Sequence[str]) -> str:
    near = [name for name in names if name.lower() == needed or name.lower() in _HABITS[needed]]
    near = near or get_close_matches(needed, names, n=1)
    if near:
        return f"; rename {near[0]!r} to {needed!r} if that is what it holds"
    shown = ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
    delimiter = " (is that the right delimiter?)" if len(names) == 1 else ""
    return f"; the columns are: {shown}{delimiter}"


def whole_number(token: str) -> int | None:
    """Read a whole number of 0 or more, with nothing but zeros after a point; None if it is none.

    >>> whole_number("3"), whole_number("2.0"), whole_number("-1"), whole_number("0.5")
    (3, 2, None, None)
    """
    match = _WHOLE.fullmatch(token)
    return int(match[1]) if match else None
