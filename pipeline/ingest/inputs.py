"""Find and open the files of an ingest, and check that they are consistent, before any row is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rankmill.foundation.cures import named
from rankmill.foundation.errors import DataRejected, InputError, UnusableColumns
from rankmill.foundation.options import spelled
from rankmill.foundation.storage.local_copies import object_behind
from rankmill.pipeline.dataset.manifest import SPLITS, SourceFile, SplitName
from rankmill.pipeline.judgments.judgment_files import (
    JudgmentFile,
    check_labels_and_weights,
    check_times_and_labels,
    without_grades,
)
from rankmill.pipeline.pairs.pair_files import PairFile
from rankmill.pipeline.read.columns import (
    check_categorical,
    check_ignored,
    check_somewhere,
    guesses_of,
    tables_disagree,
)
from rankmill.pipeline.read.files import find_files, refuse_copies, with_rows
from rankmill.pipeline.read.letor import check_made_ids, companions_of, letor_name
from rankmill.pipeline.read.open_source import open_source, share_categories, share_features

if TYPE_CHECKING:
    from rankmill.pipeline.options import Format, IngestOptions, ReadOptions
    from rankmill.pipeline.read.batch import Quarantine, Source

Given = Sequence[str | os.PathLike[str]]
Finder = Callable[..., list[Path]]
"""Returns the files that are given, in a format, without those that have no rows."""


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file and, if it has rows, the split it was given for."""

    path: Path
    split: SplitName | None = None


@dataclass(frozen=True, slots=True)
class Inputs:
    """All files of an ingest, opened.

    Attributes
    ----------
    rows, sources
        The files of rows, in an order that does not depend on the arguments, and their readers.
    judgments, pairs
        The readers of judgments and of preference pairs.
    companions
        Companion files with the sizes of queries, by file of rows.
    columns
        The features, if the files name them; None for LETOR text.
    categorical
        The features that are categories.
    read
        How the files of rows are read.
    empty
        Files in any role that were skipped because they have no rows.
    """

    rows: tuple[RowFile, ...]
    sources: tuple[Source, ...]
    judgments: tuple[JudgmentFile, ...]
    pairs: tuple[PairFile, ...]
    companions: dict[Path, Path]
    columns: tuple[str, ...] | None
    categorical: frozenset[str]
    read: ReadOptions
    empty: tuple[Path, ...]

    @property
    def paths(self) -> list[Path]:
        """All files."""
        return [
            *(file.path for file in self.rows),
            *self.companions.values(),
            *(source.path for source in self.judgments),
            *(source.path for source in self.pairs),
        ]

    @property
    def guessed(self) -> dict[str, str]:
        """The inferred roles of columns in tables of rows."""
        return guesses_of(source.table for source in self.sources)

    @property
    def index(self) -> tuple[str, ...]:
        """The columns in tables of rows that are left out because they are the index of a pandas frame."""
        tables = (source.table for source in self.sources)
        return tuple(dict.fromkeys(name for table in tables if table is not None for name in table.index))

    @property
    def graded(self) -> bool:
        """Whether the rows have grades."""
        return "grade" in self.sources[0].fields

    @property
    def extras(self) -> tuple[str, ...]:
        """The optional columns of the rows."""
        return tuple(name for name in self.sources[0].fields if name not in {"grade", *self.goals})

    @property
    def goals(self) -> tuple[str, ...]:
        """The goals of the rows."""
        table = self.sources[0].table
        return () if table is None else table.goals

    def row_files(self, digests: Mapping[Path, tuple[int, str]], *, by_split: bool) -> list[SourceFile]:
        """Return the manifest's entries of the files of rows; ``by_split``: the file determines the split."""
        found = []
        for file in self.rows:
            size, sha256 = digests[file.path]
            companion = self.companions.get(file.path)
            found.append(
                SourceFile(
                    name=file.path.name,
                    size=size,
                    sha256=sha256,
                    split=file.split if by_split else None,
                    sizes=None if companion is None else digests[companion][1],
                )
            )
        return found


def open_inputs(
    rows: Mapping[SplitName, Given],
    judgments: Given,
    pairs: Given,
    options: IngestOptions,
    quarantine: Quarantine,
    say: Callable[[str], None] | None = None,
) -> Inputs:
    """Open all files but those without rows, which ``say`` reports.

    Parameters
    ----------
    rows
        Files, folders and patterns of rows, by split.
    judgments, pairs
        Those of judgments and of preference pairs.
    options
        How to read them.
    quarantine
        Where malformed rows go.

    Raises
    ------
    InputError
        A file is missing or given twice, two files have the same bytes, or an option does not apply to the files.
    DataRejected
        The files are inconsistent.
    """
    empty: list[Path] = []

    def found(given: Given, form: Format = "auto") -> list[Path]:
        return with_rows(find_files(given), form, say, empty)

    files = _row_files(rows, options, found)
    paths = [file.path for file in files]
    read = replace(options.read, ungraded=options.read.ungraded or bool(pairs))
    if judgments:
        read = without_grades(read, timed=options.split_time is not None)
    sources = open_rows(paths, options.format, read, quarantine)
    columns = _common_columns(sources, options, read, graded=not judgments)
    check_made_ids(sources)
    judgment_files = [file.path for file in _in_order([*map(RowFile, found(judgments))], paths)]
    pair_files = [file.path for file in _in_order([*map(RowFile, found(pairs))], [*paths, *judgment_files])]
    categorical = frozenset(named(read.categorical, columns or ()))
    if columns is None:
        categorical = frozenset(map(letor_name, categorical))
    categorical = categorical.union(*(source.table.categorical for source in sources if source.table is not None))
    judgment_sources = [JudgmentFile(path, options.read, quarantine) for path in judgment_files]
    for file in judgment_sources:
        check_somewhere(read.columns, [*(source.table for source in sources), file.table], file.path)
    pair_sources = [PairFile(path, quarantine) for path in pair_files]
    if judgment_sources:
        check_labels_and_weights(sources, judgment_sources, options.aggregate)
    if options.aggregate is not None:
        check_times_and_labels(options.aggregate, sources, judgment_sources, options.read.time_column)
    return Inputs(
        rows=tuple(files),
        sources=tuple(sources),
        judgments=tuple(judgment_sources),
        pairs=tuple(pair_sources),
        companions=companions_of(sources),
        columns=columns,
        categorical=categorical,
        read=read,
        empty=tuple(empty),
    )


def check_for_cluster(inputs: Inputs) -> None:
    """Raise InputError for what cannot be done on a cluster yet."""
    word = spelled("cluster")
    for path in inputs.paths:
        if (behind := object_behind(path)) is not None:
            raise InputError(f"{behind.url}: {word} reads no files from buckets yet; copy them to a shared folder")


def _row_files(rows: Mapping[SplitName, Given], options: IngestOptions, found: Finder) -> list[RowFile]:
    """Return the files of rows in an order that does not depend on the arguments."""
    train, valid, test = (rows.get(split, ()) for split in SPLITS)
    if options.rule is not None and (valid or test):
        raise InputError(
            f"{options.rule.option} assigns queries to splits; it cannot be combined with"
            f" {spelled('valid')} or {spelled('test')} files"
        )
    if not train:
        raise InputError("no input files")
    return _in_order([RowFile(path, split) for split in SPLITS for path in found(rows.get(split, ()), options.format)])


def _in_order(files: Sequence[RowFile], taken: Iterable[Path] = ()) -> list[RowFile]:
    """Return ``files`` in an order that does not depend on the arguments.

    InputError if one is given twice, or is a copy of another.
    """
    seen: dict[Path, SplitName | None] = {path.resolve(): None for path in taken}
    for file in files:
        count = len(seen)
        before = seen.setdefault(file.path.resolve(), file.split)
        if len(seen) == count:
            roles = "" if before == file.split else f", for {before} and for {file.split}"
            raise InputError(f"{file.path}: is given twice{roles}")
    ordered = sorted(files, key=lambda file: (file.path.name, os.fspath(file.path)))
    refuse_copies([file.path for file in ordered])
    return ordered


def open_rows(
    paths: Sequence[Path],
    form: Format,
    read: ReadOptions,
    quarantine: Quarantine,
    features: Iterable[str] = (),
    categories: Iterable[str] = (),
) -> list[Source]:
    """Open files of rows; dictionaries in one of them are categories in all.

    ``features`` and ``categories`` are those of further files, which are not opened here.
    """
    sources: dict[Path, Source] = {}
    refused: dict[Path, UnusableColumns] = {}
    for path in paths:
        try:
            sources[path] = open_source(path, form, read, quarantine)
        except UnusableColumns as error:
            refused[path] = error
    found = {name for source in sources.values() if source.table is not None for name in source.table.categorical}
    found |= {*categories}
    for path, why in refused.items():
        if found <= {*named(read.categorical, found)}:
            raise why
        more = replace(read, categorical=(*read.categorical, *sorted(found)))
        sources[path] = open_source(path, form, more, quarantine)
    opened = [sources[path] for path in paths]
    share_features(opened, features)
    share_categories(opened, found)
    return opened


def _common_columns(
    sources: Sequence[Source], options: IngestOptions, read: ReadOptions, *, graded: bool
) -> tuple[str, ...] | None:
    """Return the names of the features in the order of the first file; None for LETOR text.

    Unless the rows are ``graded``, only some files may have a column of grades, which is not used.
    """

    def besides(source: Source) -> tuple[str, ...]:
        return source.fields if graded else tuple(name for name in source.fields if name != "grade")

    first = sources[0]
    for other in sources[1:]:
        if (first.columns is None) != (other.columns is None):
            raise InputError(
                f"{first.path} and {other.path}: files with numbered features (LETOR text) cannot be"
                " mixed with tables with named features"
            )
        if first.columns is not None and other.columns is not None:
            complaint = _disagreement(first.columns, str(first.path), other.columns, str(other.path))
            complaint = complaint or _disagreement(
                besides(first), str(first.path), besides(other), str(other.path), "columns besides the features"
            )
            if not complaint and first.table is not None and other.table is not None:
                complaint = tables_disagree(first.table, str(first.path), other.table, str(other.path))
            if complaint:
                raise DataRejected(complaint)
    tables = [source.table for source in sources if source.table is not None]
    if tables:
        check_ignored(options.read.ignore, tables)
        check_categorical(options.read.categorical, tables)
    else:
        timed = read.time_column is not None and not read.time_optional
        for name, given in (("columns", options.read.columns), ("ignore", options.read.ignore), ("time_column", timed)):
            if given:
                raise InputError(
                    f"{spelled(name)} applies to tables only; {first.path} is LETOR text, whose"
                    " columns have no names; leave it out"
                )
        if options.read.goals:
            raise InputError(
                f"{spelled('goals')} names columns of tables; {first.path} is LETOR text, whose columns have no names;"
                " convert the file to a table with a column for each goal"
            )
    if first.columns is not None and options.read.n_features is not None:
        raise InputError(
            f"{spelled('n_features')} applies to LETOR text only; {first.path} has named features; leave it out"
        )
    if first.columns is not None and options.read.labels != "grade":
        raise InputError(
            f"{spelled('labels')} applies to LETOR text only; in {first.path} put labels into a column named 'label'"
        )
    return first.columns


def _disagreement(
    first: tuple[str, ...], first_name: str, other: tuple[str, ...], other_name: str, what: str = "features"
) -> str:
    """Describe in which columns, called ``what``, two tables differ; empty if they have the same columns."""
    lacking = sorted(set(first) - set(other))
    added = sorted(set(other) - set(first))
    if lacking:
        return f"{other_name}: no column {lacking[0]!r}, which {first_name} has; all files must have the same {what}"
    if added:
        return f"{other_name}: column {added[0]!r} is not in {first_name}; all files must have the same {what}"
    return ""
