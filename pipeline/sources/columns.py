"""Which column of a table plays which part: as told, by its own name, or guessed from the habits of the field."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, cast

from pipeline.errors import DataRejected, InputError
from pipeline.sources.batch import MAX_FEATURES
from pipeline.sources.optional import OPTIONAL
from pipeline.sources.parts import HABITS, ID_COLUMNS, PARTS, RESERVED
from pipeline.sources.times import TIME

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from pipeline.judgments.batch import JudgmentSource
    from pipeline.sources.batch import ReadOptions, Source


@dataclass(frozen=True, slots=True)
class TableColumns:
    """What the columns of one table are for.

    Attributes
    ----------
    column_of
        The name in the file of each part that is read: of ids, grade, optional columns and ``time``.
    features
        The columns that are features, in file order.
    guessed
        Parts that were neither told nor found by their own name.
    ignored
        Columns that ``--ignore`` leaves out.
    of_judgments
        Whether it is an ingest, which can leave columns out, that reads the table.
    needs_doc_id
        Whether a row without one is a bad row.
    offered
        Of candidates: all columns that could be features, in file order, those that the model does not know among them.
    """

    column_of: Mapping[str, str]
    features: tuple[str, ...]
    guessed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    of_judgments: bool = True
    needs_doc_id: bool = False
    offered: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """Which of grade, the optional columns and ``time`` are read."""
        return tuple(part for part in ("grade", *OPTIONAL, TIME) if part in self.column_of)

    @property
    def extras(self) -> tuple[str, ...]:
        """Which of the optional columns are read."""
        return tuple(part for part in OPTIONAL if part in self.column_of)

    @property
    def read(self) -> tuple[str, ...]:
        """All columns that are read."""
        return (*self.features, *self.column_of.values())

    def cure_of(self, feature: str) -> str:
        """Say what to do about a feature that is none."""
        return f"--ignore {feature} leaves the column out" if self.of_judgments else ""

    @property
    def cure_of_grade(self) -> str | None:
        """What to do about a grade that is none; None where the rules of grades know better."""
        return None if self.of_judgments else "candidates need no grades: --columns grade= passes the column over"

    @property
    def guesses(self) -> dict[str, str]:
        """The guessed parts with their columns."""
        return {part: self.column_of[part] for part in self.guessed}


def table_columns(path: Path, names: Sequence[str], options: ReadOptions) -> TableColumns:
    """Say what the columns ``names`` of the table ``path`` are for.

    Raises
    ------
    InputError
        ``options.columns`` names a column that is not there or is ignored.
    DataRejected
        A name is empty, given twice or reserved, ``qid`` or a required ``grade`` (or ``label``) is missing or could be several
        columns, or no feature is left.
    """
    if options.judgments_alone:
        return _judgment_columns(path, names, options)
    _check_names(path, names)
    ignored = tuple(name for name in names if any(fnmatchcase(name, pattern) for pattern in options.ignore))
    rest = [name for name in names if name not in ignored]
    column_of = _told(path, names, ignored, options)
    free = set(rest) - set(column_of.values())
    column_of |= {part: part for part in PARTS if part not in options.columns and part in free}
    if options.time_column is not None and not (options.time_optional and options.time_column not in rest):
        column_of[TIME] = _time_column(path, rest, options.time_column, column_of)
    guessed = []
    for part in HABITS:
        if part not in column_of and part not in options.columns and not (part == "grade" and "label" in column_of):
            found = _guess(path, part, [name for name in rest if name not in column_of.values()], options)
            if found is not None:
                column_of[part] = found
                guessed.append(part)
    needs_grade = options.grade_required and not options.ungraded and "label" not in column_of
    for part in ("qid", *(["grade"] if needs_grade else [])):
        if part not in column_of:
            raise DataRejected(f"{path}: no column {part!r}{_instead(part, rest)}")
    features = tuple(name for name in rest if name not in column_of.values())
    offered: tuple[str, ...] = ()
    if options.grade_required:
        _check_features(path, features)
    else:
        offered = features
        features = of_candidates(features, options.known_features)
        column_of = {part: name for part, name in column_of.items() if part in ID_COLUMNS}
    if not features:
        raise DataRejected(f"{path}: no column is a feature: there are only {', '.join(rest)}")
    if len(features) > MAX_FEATURES:
        raise DataRejected(f"{path}: {len(features)} features; {MAX_FEATURES} at most")
    return TableColumns(column_of, features, tuple(guessed), ignored, options.grade_required, offered=offered)


def _judgment_columns(path: Path, names: Sequence[str], options: ReadOptions) -> TableColumns:
    """Say which columns of a table of judgments alone are qid, doc_id, grade and time; others are passed over.

    What ``options`` says of columns is meant for tables of rows, too: a name that is not here is passed over.

    Raises
    ------
    DataRejected
        A name is empty or given twice, or one of the columns is missing or could be several.
    """
    _check_names(path, names)
    column_of = {part: told for part in ID_COLUMNS if (told := options.columns.get(part, "")) in names}
    free = [name for name in names if name not in column_of.values()]
    column_of |= {part: part for part in ID_COLUMNS if part not in column_of and part in free}
    if options.time_column in names:
        column_of[TIME] = _time_column(path, names, cast("str", options.time_column), column_of)
    guessed = []
    for part in ID_COLUMNS:
        if part not in column_of:
            found = _guess(path, part, [name for name in names if name not in column_of.values()], options)
            if found is None:
                raise DataRejected(f"{path}: no column {part!r}{_instead(part, names)}")
            column_of[part] = found
            guessed.append(part)
    return TableColumns(column_of, (), tuple(guessed), needs_doc_id=True)


def guesses_of(sources: Iterable[Source | JudgmentSource]) -> dict[str, str]:
    """Return the guessed parts of all ``sources`` with their columns."""
    tables = [source.table for source in sources if source.table is not None]
    return {part: name for table in tables for part, name in table.guesses.items()}


def guesses_line(guesses: Mapping[str, str]) -> str:
    """Tell a person what was guessed.

    >>> guesses_line({"qid": "query_id", "grade": "rel"})
    "columns: qid from 'query_id', grade from 'rel' (guessed; --columns settles it)"
    """
    found = ", ".join(f"{part} from {name!r}" for part, name in guesses.items())
    return f"columns: {found} (guessed; --columns settles it)"


def check_ignored(ignore: Iterable[str], tables: Sequence[TableColumns]) -> None:
    """Raise InputError if ``ignore`` has a name, not a pattern, that no table has."""
    left_out = {name for table in tables for name in table.ignored}
    for name in ignore:
        if name not in left_out and not re.search(r"[*?[]", name):
            raise InputError.unknown("column in --ignore", name, tables[0].read)


def tables_disagree(first: TableColumns, first_name: str, other: TableColumns, other_name: str) -> str:
    """Say for which part two tables have columns of different names; empty if for none."""
    for part, name in first.column_of.items():
        found = other.column_of.get(part, name)
        if found != name:
            return (
                f"{other_name}: {part} is in column {found!r}, in {first_name} it is in {name!r}; all files must have the same"
                f" columns: rename one, or say which it is with --columns {part}=NAME"
            )
    return ""


def _check_features(path: Path, features: Sequence[str]) -> None:
    for name in features:
        if name in PARTS:
            raise DataRejected(
                f"{path}: column {name!r} is there, but --columns takes another one as {name}; --ignore {name} leaves it out"
            )
        if name in RESERVED:
            raise DataRejected(
                f"{path}: column name {name!r} is reserved; --ignore {name} leaves it out; rename it if it is a feature"
            )


def of_candidates(features: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """Return the features of candidates: those that the model knows, or where it knows none all that may be features."""
    found = tuple(name for name in features if name in known)
    return found or tuple(name for name in features if name not in {*PARTS, *RESERVED})


def _check_names(path: Path, names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataRejected(f"{path}: column {twice[0]!r} is there twice; every column needs a name of its own")
    if "" in names:
        raise DataRejected(f"{path}: column {list(names).index('') + 1} has no name; every column needs one")


def _told(path: Path, names: Sequence[str], ignored: Sequence[str], options: ReadOptions) -> dict[str, str]:
    """Return the parts of ``--columns`` in the order of PARTS; those that no column is to play are left out."""
    for part, name in options.columns.items():
        if name in ignored:
            raise InputError(f"{path}: --columns takes {name!r} as {part}, and --ignore leaves it out")
        if name and name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the columns are: {_shown(names)}"
            raise InputError(f"{path}: no column {name!r}, which --columns takes as {part}; {hint}")
    return {part: told for part in PARTS if (told := options.columns.get(part))}


def _time_column(path: Path, names: Sequence[str], name: str, column_of: Mapping[str, str]) -> str:
    if name in column_of.values() or name in PARTS:
        raise InputError(f"--time-column: {name!r} has a meaning of its own; name the column that holds the times")
    if name not in names:
        near = get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the columns are: {_shown(names)}"
        raise DataRejected(f"{path}: no column {name!r}, which --time-column names; {hint}")
    return name


def _guess(path: Path, part: str, names: Sequence[str], options: ReadOptions) -> str | None:
    """Return the one of ``names`` that habit calls ``part``; DataRejected if there are several."""
    found = [name for name in names if _plain(name) in HABITS[part] and name not in options.known_features]
    if len(found) > 1:
        which = " or ".join(map(repr, found))
        raise DataRejected(
            f"{path}: {part} could be column {which}; say which with --columns {part}={found[0]}, or with {part}= that it is none"
        )
    return found[0] if found else None


def _plain(name: str) -> str:
    return re.sub(r"[\s_.-]", "", name).lower()


def _instead(part: str, names: Sequence[str]) -> str:
    near = get_close_matches(part, names, n=1)
    if near:
        return f"; if it is {near[0]!r}: --columns {part}={near[0]}"
    delimiter = " (is that the right delimiter?)" if len(names) == 1 else f"; --columns {part}=NAME says which it is"
    return f"; the columns are: {_shown(names)}{delimiter}"


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
