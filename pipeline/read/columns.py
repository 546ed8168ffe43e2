"""Assign roles to table columns: from ``--columns``, by exact name, or inferred from usual names."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from rankmill.foundation.cures import NAME, N, named, spelled_with
from rankmill.foundation.errors import ColumnProblem, DataRejected, InputError, UnusableColumns, name_hint
from rankmill.foundation.options import spelled
from rankmill.pipeline.options import MAX_FEATURES, USUAL_DELIMITERS
from rankmill.pipeline.read.column_roles import (
    CLICK_PARTS,
    HABITS,
    HABITS_OF_JUDGMENTS,
    ID_COLUMNS,
    OF_JUDGMENTS,
    OPTIONAL,
    PAIR_PARTS,
    PARTS,
    RESERVED,
)
from rankmill.pipeline.read.files import has_typed_columns, partitions_of
from rankmill.pipeline.read.times import TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from rankmill.pipeline.options import ReadOptions
_OF_BOTH = (*ID_COLUMNS, *OF_JUDGMENTS)  # roles of rows and of separate judgments
_LETOR_LINE = re.compile(r"\S+ qid:")


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The roles of the columns of a table.

    Attributes
    ----------
    column_of
        The column name of each role that is read: ids, grade, optional columns and ``time``.
    features
        The feature columns, in file order.
    guessed
        Roles that were inferred, neither given nor found by exact name.
    ignored
        Columns that ``--ignore`` leaves out.
    of_judgments
        Whether the table is read by an ingest, which can ignore columns.
    needs_doc_id
        Whether a row without doc_id is malformed.
    offered
        For candidates: all columns that could be features, in file order, including those unknown to the model.
    categorical
        The features that are categories.
    goals
        The columns with further grades; each has its own name as role.
    index
        Columns that are left out because they are the index of a pandas frame.
    """

    column_of: Mapping[str, str]
    features: tuple[str, ...]
    guessed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    of_judgments: bool = True
    needs_doc_id: bool = False
    offered: tuple[str, ...] = ()
    categorical: frozenset[str] = frozenset()
    goals: tuple[str, ...] = ()
    index: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns to read among grade, the optional columns, ``time`` and the goals."""
        return tuple(part for part in ("grade", *OPTIONAL, TIME, *self.goals) if part in self.column_of)

    @property
    def parts(self) -> tuple[str, ...]:
        """All roles that the columns of such a table may have, in the order in which lists of rejects number them."""
        if "better" in self.column_of:
            return PAIR_PARTS
        return CLICK_PARTS if "clicked" in self.column_of else (*PARTS, TIME, *self.goals)

    @property
    def graded(self) -> tuple[str, ...]:
        """The roles of columns with grades."""
        return ("grade", *self.goals)

    @property
    def extras(self) -> tuple[str, ...]:
        """The optional columns to read."""
        return tuple(part for part in OPTIONAL if part in self.column_of)

    @property
    def read(self) -> tuple[str, ...]:
        """All columns to read."""
        return (*self.features, *self.column_of.values())

    def cure_of(self, feature: str, *, text: bool = True) -> str:
        """Return how to fix a column of features that are not numbers; ``text``: it holds text."""
        ignored = f"to ignore the column: {spelled_with('ignore', [feature])}"
        ignored += f"; if it holds categories: {spelled_with('categorical', [feature])}" * text
        return ignored if self.of_judgments else "the model needs numbers there, or empty cells (missing)"

    def cure_of_cell(self, feature: str, empty: str = "make the cell empty", *, text: bool = True) -> str:
        """Return how to fix a cell that is not a number.

        ``empty`` says how to make it missing, ``text`` how to declare it as text.
        """
        ignored = f"to leave out the column: {spelled_with('ignore', [feature])}"
        ignored += f"; if it holds categories: {spelled_with('categorical', [feature])}" * text
        allowed = f"; to leave out such rows: {spelled_with('max_rejects', N)}; {ignored}" if self.of_judgments else ""
        return f"correct it, or {empty} (missing){allowed}"

    def ignoring(self, column: str) -> tuple[tuple[str, str], ...]:
        """Return the option that ignores ``column``; empty if there is no such option."""
        return (("--ignore", column),) if self.of_judgments else ()

    @property
    def cure_of_grade(self) -> str | None:
        """How to fix an invalid grade; None if the rules of grades know better."""
        ignored = f"candidates need no grades; to ignore the column: {spelled_with('columns', {'grade': ''})}"
        return None if self.of_judgments else ignored

    @property
    def guesses(self) -> dict[str, str]:
        """The inferred roles with their columns."""
        return {part: self.column_of[part] for part in self.guessed}


def table_columns(
    path: Path,
    header: Sequence[str],
    options: ReadOptions,
    look: Callable[[TableColumns], list[ColumnProblem]] = lambda _: [],
) -> TableColumns:
    """Assign roles to the columns ``header`` of the table ``path``.

    ``look`` returns problems of the values in these columns, which are reported together with problems of names.

    Raises
    ------
    InputError
        ``options.columns`` names a column that does not exist or is ignored.
    UnusableColumns
        A name is empty, duplicate or reserved, ``qid`` or a required ``grade`` (or ``label``) is missing or ambiguous,
        or ``look`` has found a problem (a single one is left to the reader of the rows).
    DataRejected
        There are no features, or too many.
    """
    if options.judgments_alone:
        return _judgment_columns(path, header, options, look)
    options = replace(options, categorical=named(options.categorical, header))
    if options.columns_elsewhere:
        here = {part: name for part, name in options.columns.items() if part not in _OF_BOTH or name in {"", *header}}
        options = replace(options, columns=here)
    out = ignored_columns(header, options)
    names, problems = _usable_names(header, out, options)
    ignored = tuple(name for name in names if name in out)
    rest = [name for name in names if name not in ignored]
    column_of = _assigned(path, names, ignored, options)
    free = set(rest) - set(column_of.values())
    column_of |= {part: part for part in PARTS if part not in options.columns and part in free}
    if options.time_column is not None and not (options.time_optional and options.time_column not in rest):
        column_of[TIME] = _time_column(path, rest, options.time_column, column_of)
    column_of |= _goals(path, names, ignored, column_of, options)
    guessed, doubts = _guesses(column_of, rest, options)
    column_of |= guessed
    problems += doubts
    if len(header) == 1 and "qid" not in column_of:
        _refuse(path, [_missing(path, "qid", rest)])
    needs_grade = options.grade_required and not options.ungraded and "label" not in column_of
    for part in ("qid", *(["grade"] if needs_grade else [])):
        if part not in column_of:
            problems.append(_missing(path, part, rest))
    features = tuple(name for name in rest if name not in column_of.values())
    offered: tuple[str, ...] = ()
    if options.grade_required:
        wrong = {problem.column for problem in problems}
        problems += _problems_of_features([name for name in features if name not in wrong])
        wrong |= {problem.column for problem in problems}
        features = tuple(name for name in features if name not in wrong)
    else:
        offered = features
        features = of_candidates(features, options.known_features)
        column_of = {part: name for part, name in column_of.items() if part in {*ID_COLUMNS, *options.goals}}
    columns = TableColumns(
        column_of,
        features,
        tuple(guessed),
        ignored,
        options.grade_required,
        offered=offered,
        categorical=frozenset(options.categorical).intersection(features),
        goals=options.goals,
    )
    if len(features) > MAX_FEATURES:
        raise DataRejected(f"{path}: {len(features)} features; {MAX_FEATURES} at most")
    _refuse(path, _without_ignoring_open_roles(problems, look(columns), column_of))
    if not features:
        raise DataRejected(f"{path}: no column is a feature; the columns are {', '.join(rest)}")
    return columns


def _judgment_columns(
    path: Path, header: Sequence[str], options: ReadOptions, look: Callable[[TableColumns], list[ColumnProblem]]
) -> TableColumns:
    """Find qid, doc_id, grade, time, label and weight in a table of separate judgments; other columns are ignored.

    A column ``label`` without ``grade`` and ``weight`` has the grades.  ``options`` also apply to the tables of rows,
    so their column names may be missing here.

    Raises
    ------
    DataRejected
        A name is empty or duplicate, or one of the columns is missing or ambiguous.
    """
    names, problems = _usable_names(header, ignored_columns(header, options), options)
    column_of = {part: column for part in ID_COLUMNS if (column := options.columns.get(part, "")) in names}
    free = [name for name in names if name not in column_of.values()]
    column_of |= {part: part for part in ID_COLUMNS if part not in column_of and part in free}
    if options.time_column in names:
        column_of[TIME] = _time_column(path, names, options.time_column, column_of)
    guessed = []
    for part in ID_COLUMNS:
        if part not in column_of:
            open_names = [name for name in names if name not in column_of.values()]
            found, problem = _guess(part, open_names, options, (*HABITS[part], *HABITS_OF_JUDGMENTS.get(part, ())))
            problems += problem
            if found is None and part == "grade" and "label" in names:
                if "weight" in names:
                    continue  # labels are real numbers
                found = "label"
            if found is None:
                problems.append(_missing(path, part, names))
                continue
            column_of[part] = found
            guessed.append(part)
    for part in OF_JUDGMENTS:
        column = options.columns.get(part, part)
        if column in names and column not in column_of.values():
            column_of[part] = column
    columns = TableColumns(column_of, (), tuple(guessed), needs_doc_id=True)
    _refuse(path, [*problems, *look(columns)])
    return columns


def _without_ignoring_open_roles(
    of_names: Sequence[ColumnProblem], of_values: Sequence[ColumnProblem], column_of: Mapping[str, str]
) -> list[ColumnProblem]:
    """Return all problems; if a role is open, the columns of text that may have it are named, not to be ignored."""
    is_open = [part for part in PARTS for problem in of_names if problem.options == (("--columns", f"{part}=NAME"),)]
    texts = [problem.column for problem in of_values if problem.options == (("--ignore", problem.column),)]
    if not is_open or not texts:
        return [*of_names, *of_values]
    options = (("--columns", f"{is_open[0]}=NAME"),)
    parts = [part for part in PARTS if part in is_open or (part == "doc_id" and part not in column_of)]
    cure = f"; these columns do not hold numbers: {', '.join(texts)}; "
    cure += f"name {' and '.join(parts)} with {spelled('columns')}, ignore the rest"
    return [
        *(each._replace(cure=each.cure + cure) if each.options == options else each for each in of_names),
        *(each._replace(options=options) if each.column in texts else each for each in of_values),
    ]


def _refuse(path: Path, problems: Sequence[ColumnProblem]) -> None:
    """Raise UnusableColumns if there are ``problems``, except a single one that reading the rows will report."""
    if len(problems) > 1 or not all(problem.in_rows for problem in problems):
        raise UnusableColumns(path, tuple(problems))


def without_index(
    header: Sequence[str],
    index: Collection[str],
    options: ReadOptions,
    columns_of: Callable[[Sequence[str]], TableColumns],
) -> TableColumns:
    """Assign roles with ``columns_of`` to the columns ``header``.

    The ``index`` of a pandas frame is excluded, as it is no feature.

    They can still have a role, and are features if the options name them or the model knows them.
    """
    wanted = {
        *options.columns.values(),
        *named(options.categorical, header),
        *options.goals,
        *options.known_features,
        options.time_column,
    }
    index = {name for name in index if name not in wanted | ignored_columns(header, options)}
    roles = {*PARTS, *PAIR_PARTS, *CLICK_PARTS}
    plain = {
        name for name in index if name not in roles and not any(usual_name(name) in usual for usual in HABITS.values())
    }
    found = columns_of([name for name in header if name not in plain])
    return replace(
        found,
        features=tuple(name for name in found.features if name not in index),
        index=tuple(name for name in header if name in index and name not in found.column_of.values()),
    )


def guesses_of(tables: Iterable[TableColumns | None]) -> dict[str, str]:
    """Return the inferred roles of all ``tables`` with their columns; None is a file without column names."""
    return {part: name for table in tables if table is not None for part, name in table.guesses.items()}


def guesses_line(guesses: Mapping[str, str]) -> str:
    """Return a line about inferred columns.

    >>> guesses_line({"qid": "query_id", "grade": "rel"})
    "columns: qid from 'query_id', grade from 'rel' (inferred; set with columns)"
    """
    found = ", ".join(f"{part} from {name!r}" for part, name in guesses.items())
    return f"columns: {found} (inferred; set with {spelled('columns')})"


def index_line(names: Iterable[str]) -> str:
    """Return a line about columns that are left out.

    >>> print(index_line(["__index_level_0__"]).partition(" (")[0])
    columns: '__index_level_0__' is left out: the index of a pandas frame is no feature
    """
    shown = ", ".join(map(repr, names))
    return (
        f"columns: {shown} is left out: the index of a pandas frame is no feature (write the file without it, or "
        "rename the column)"
    )


def check_somewhere(columns: Mapping[str, str], tables: Sequence[TableColumns | None], where: Path) -> None:
    """Raise InputError if ``columns`` gives a role of ids or grades to a column that no table has.

    ``where`` has judgments.
    """
    for part in ID_COLUMNS:
        name = columns.get(part)
        if name and not any(table is not None and table.column_of.get(part) == name for table in tables):
            raise InputError(
                f"no column {name!r}, which {spelled('columns')} takes as {part}: neither the rows nor the judgments,"
                f" {where}, have it; leave out {part}={name}"
            )


def check_ignored(ignore: Iterable[str], tables: Sequence[TableColumns]) -> None:
    """Raise InputError if ``ignore`` has a name (not a pattern) that no table has."""
    left_out = {name for table in tables for name in table.ignored}
    for name in named(ignore, left_out):
        if name not in left_out and not re.search(r"[*?[]", name):
            raise InputError.unknown(f"column in {spelled('ignore')}", name, tables[0].read)


def check_categorical(categorical: Iterable[str], tables: Sequence[TableColumns]) -> None:
    """Raise InputError if ``categorical`` has a name that is a feature of no table."""
    known = {name for table in tables for name in table.features}
    for name in named(categorical, known):
        if name not in known:
            raise InputError.unknown(f"feature in {spelled('categorical')}", name, tables[0].features)


def tables_disagree(first: TableColumns, first_name: str, other: TableColumns, other_name: str) -> str:
    """Describe a role for which two tables have columns of different names; empty if there is none."""
    for part, name in first.column_of.items():
        found = other.column_of.get(part, name)
        if found != name:
            return (
                f"{other_name}: {part} is in column {found!r}, in {first_name} it is in {name!r}; all"
                " files must have the same columns: rename one"
            )
    return ""


def _problems_of_features(features: Sequence[str]) -> list[ColumnProblem]:
    """Return problems of ``features`` with invalid names."""
    problems = []
    for name in features:
        ignore = (("--ignore", name),)
        if name in PARTS:
            reason = f"column {name!r} exists, but {spelled('columns')} uses another one as {name}"
            problems.append(ColumnProblem(name, reason, f"to ignore it: {spelled_with('ignore', [name])}", ignore))
        if name in RESERVED:
            cure = f"to ignore it: {spelled_with('ignore', [name])}; rename it if it is a feature"
            problems.append(ColumnProblem(name, f"column name {name!r} is reserved", cure, ignore))
    return problems


def of_candidates(features: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """Return the features of candidates: those of the model or, if it names none, all columns that can be features."""
    found = tuple(name for name in features if name in known)
    return found or tuple(name for name in features if name not in {*PARTS, *RESERVED})


def _usable_names(
    header: Sequence[str], ignored: Collection[str], options: ReadOptions
) -> tuple[list[str], list[ColumnProblem]]:
    """Return the unique column names, and problems of the others.

    A column without a name is called ``column_N``, N from 1, so that it can be ignored; it is never read.  In
    candidates and separate judgments, unnamed columns and duplicate names without a role are ignored.
    """
    passed_over = options.judgments_alone or not options.grade_required
    parts = {*PARTS, *options.columns.values()}
    counts = Counter(header)
    names: dict[str, None] = {}
    problems: list[ColumnProblem] = []
    for number, given in enumerate(header, start=1):
        name = given or f"column_{number}"
        if name in names or name in ignored or (given and counts[given] == 1):
            names[name] = None
        elif not given and not passed_over:
            cure = f"every column needs a name; to ignore it: {spelled_with('ignore', [name])}"
            problems.append(ColumnProblem(name, f"column {number} has no name", cure, (("--ignore", name),)))
        elif given and (name in parts or name in options.known_features or not passed_over):
            names[name] = None
            reason, cure = f"column {name!r} occurs twice", "every column needs a unique name"
            if name in parts or passed_over:
                problems.append(ColumnProblem(name, reason, cure))
            else:
                cure += f"; to ignore all of them: {spelled_with('ignore', [name])}"
                problems.append(ColumnProblem(name, reason, cure, (("--ignore", name),)))
    return list(names), problems


def ignored_columns(header: Sequence[str], options: ReadOptions) -> frozenset[str]:
    """Return the columns that ``options.ignore`` names: exactly or, if no column has the name, by a pattern."""
    names = {name or f"column_{number}" for number, name in enumerate(header, start=1)}
    found: set[str] = set()
    for name in named(options.ignore, names):
        found |= {name} if name in names else {each for each in names if fnmatchcase(each, name)}
    return frozenset(found)


def _assigned(path: Path, names: Sequence[str], ignored: Sequence[str], options: ReadOptions) -> dict[str, str]:
    """Return the roles of ``--columns`` in the order of PARTS, without those set to no column."""
    for part, name in options.columns.items():
        if name in ignored:
            raise InputError(
                f"{path}: {spelled('columns')} uses {name!r} as {part}, but {spelled('ignore')} names it; leave out "
                "one of the two"
            )
        if name and name not in names:
            if len(names) == 1 and (problem := _wrong_delimiter(part, names[0])):
                raise InputError(f"{path}: {problem.reason}; {problem.cure}")
            hint = _hint(path, name, names)
            if part == "grade" and not options.grade_required:
                hint += f"; for candidates without grades, leave out {part}={name}"
            raise InputError(f"{path}: no column {name!r}, which {spelled('columns')} takes as {part}; {hint}")
    return {part: column for part in PARTS if (column := options.columns.get(part))}


def _time_column(path: Path, names: Sequence[str], name: str, column_of: Mapping[str, str]) -> str:
    if name in column_of.values() or name in PARTS:
        raise InputError(f"{spelled('time_column')}: {name!r} is a reserved name; give the column with the times")
    if name not in names:
        hint = _hint(path, name, names)
        raise DataRejected(f"{path}: no column {name!r}, which {spelled('time_column')} names; {hint}")
    return name


def _goals(
    path: Path, names: Sequence[str], ignored: Collection[str], column_of: Mapping[str, str], options: ReadOptions
) -> dict[str, str]:
    """Return the columns of the goals, which have the names of their roles."""
    part_of = {name: part for part, name in column_of.items()} | dict.fromkeys(
        options.categorical, "a categorical feature"
    )
    for name in options.goals:
        if name in ignored:
            raise InputError(
                f"{path}: {spelled('goals')} names {name!r}, but {spelled('ignore')} names it, too; leave out one of "
                "the two"
            )
        if name not in names:
            hint = _hint(path, name, names)
            what = f"{spelled('goals')} names" if options.grade_required else "the metrics name as a goal"
            raise DataRejected(f"{path}: no column {name!r}, which {what}; {hint}")
        if name in part_of:
            raise InputError(
                f"{path}: {spelled('goals')} names {name!r}, which is {part_of[name]} already; a column has one role"
            )
    return {name: name for name in options.goals}


def _guesses(
    column_of: Mapping[str, str], names: Sequence[str], options: ReadOptions
) -> tuple[dict[str, str], list[ColumnProblem]]:
    """Infer the remaining roles from usual ``names``; also return ambiguities as problems."""
    guessed: dict[str, str] = {}
    problems: list[ColumnProblem] = []
    for part in HABITS:
        if part not in column_of and part not in options.columns and not (part == "grade" and "label" in column_of):
            taken = {*column_of.values(), *guessed.values()}
            found, problem = _guess(part, [name for name in names if name not in taken], options, HABITS[part])
            problems += problem
            if found is not None:
                guessed[part] = found
    return guessed, problems


def _guess(
    part: str, names: Sequence[str], options: ReadOptions, habits: Sequence[str]
) -> tuple[str | None, list[ColumnProblem]]:
    """Return the usual name of ``part``, of ``habits``, among ``names``.

    If there are several, return the likeliest one and a problem.
    """
    features = options.known_features.union(options.categorical)
    found = [name for name in names if usual_name(name) in habits and name not in features]
    if len(found) < 2:
        return (found[0] if found else None), []
    which = " or ".join(map(repr, found))
    likely = min(found, key=lambda name: habits.index(usual_name(name)))
    reason = f"{part} could be column {which}"
    cure = (
        f"choose one: {spelled_with('columns', {part: likely})}; if none is right: "
        f"{spelled_with('columns', {part: ''})}"
    )
    return likely, [ColumnProblem(likely, reason, cure, (("--columns", f"{part}={likely}"),))]


def usual_name(name: str) -> str:
    """Return ``name`` as the usual names of columns are listed.

    >>> usual_name("Query_ID")
    'queryid'
    """
    return re.sub(r"[\s_.-]", "", name).lower()


def _missing(path: Path, part: str, names: Sequence[str]) -> ColumnProblem:
    """Return the problem that no column has the role ``part``, with candidates."""
    near = get_close_matches(part, names, n=1)
    reason = f"no column {part!r}"
    if part in partitions_of(path):
        option = (("--columns", f"{part}={part}"),) if has_typed_columns(path) else ()
        return ColumnProblem(part, reason, _hint(path, part, names), option)
    if near:
        cure = f"if it is {near[0]!r}: {spelled_with('columns', {part: near[0]})}"
        return ColumnProblem(near[0], reason, cure, (("--columns", f"{part}={near[0]}"),))
    if len(names) == 1:
        return _one_column(part, names[0])
    cure = f"the columns are: {_shown(names)}; {spelled_with('columns', {part: NAME})} says which it is"
    return ColumnProblem(part, reason, cure, (("--columns", f"{part}=NAME"),))


def _hint(path: Path, name: str, names: Sequence[str]) -> str:
    """Return what may help if no column of ``names`` is called ``name``."""
    if name not in partitions_of(path):
        return name_hint(name, names, f"the columns are: {_shown(names)}")
    if has_typed_columns(path):
        return (
            f"{name!r} is a key of the folders of a partitioned table; to read it: "
            f"{spelled_with('columns', {name: name})}"
        )
    root = Path(*itertools.takewhile(lambda part: "=" not in part, path.parts))
    reader = "read_csv" if path.suffix in {".csv", ".tsv"} else "read_json"
    return (
        f"{name!r} is a key of the folders of a partitioned table, which are read as columns of Parquet and Arrow "
        "files only; write it into the files, for example with DuckDB: COPY (FROM "
        f"{reader}('{root}/**/*{path.suffix}', hive_partitioning = true)) TO 'rows.parquet'"
    )


def _one_column(part: str, name: str) -> ColumnProblem:
    """Say which delimiter, or which format, a table with only the column ``name`` seems to have."""
    if _LETOR_LINE.match(name):
        reason = f"expected the names of columns, found {name!r}"
        return ColumnProblem(part, reason, f"if it is LETOR text: {spelled_with('format', 'letor')}")
    unsure = ColumnProblem(part, f"no column {part!r}", f"the only column is {name!r}; is the delimiter right?")
    return _wrong_delimiter(part, name) or unsure


def _wrong_delimiter(part: str, name: str) -> ColumnProblem | None:
    """Return the problem of a table whose only column ``name`` is a header with another delimiter.

    None if it is not.
    """
    delimiter = max(USUAL_DELIMITERS, key=name.count)
    if delimiter not in name or _LETOR_LINE.match(name):
        return None
    shown, character = ("tabs", "tab") if delimiter == "\t" else (repr(delimiter), delimiter)
    return ColumnProblem(
        part, f"its columns are separated by {shown}", f"to read it: {spelled_with('delimiter', character)}"
    )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
