"""Scored lists as tables in memory, and qrels.

Lists are Parquet (a file or a folder of shards), Arrow, TSV, CSV, JSON lines, or a TREC run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.storage.special_files import refuse_special
from rankmill.foundation.storage.table_formats import refuse_table_format
from rankmill.pipeline.arrow import parquet_metadata, refused_by_arrow, schema_of
from rankmill.pipeline.dataset.manifest import MANIFEST_NAME
from rankmill.pipeline.options import USUAL_DELIMITERS, ReadOptions
from rankmill.pipeline.read.batch import Problems, Quarantine, shorten
from rankmill.pipeline.read.blocks import compression_of, damaged, refuse_foreign_content
from rankmill.pipeline.read.column_roles import IDS
from rankmill.pipeline.read.columnar import ColumnsOf, TableSource
from rankmill.pipeline.read.columns import TableColumns
from rankmill.pipeline.read.delimited import DelimitedSource
from rankmill.pipeline.read.files import check_file, format_of, uncompressed
from rankmill.pipeline.read.grades import GradeRules
from rankmill.pipeline.read.made_ids import without_made
from rankmill.pipeline.read.open_source import NarrowFile, open_table
from rankmill.pipeline.read.role_columns import (
    EXACT_ID,
    are_ids,
    are_numbers,
    as_floats,
    as_strings,
    ids_of,
    read_parts,
)
from rankmill.pipeline.read.trec_run import read_ranked_lines
from rankmill.pipeline.read.words import QRELS
from rankmill.scorer.rerank.ranked_file import is_ranked_folder

_COLUMNS: dict[str, pa.DataType] = {
    "qid": pa.string(),
    "doc_id": pa.string(),
    "score": pa.float64(),
    "grade": pa.int32(),
}
_NEEDED = ("qid", "score")
_JUDGED = schema_of([("qid", pa.string(), True), ("doc_id", pa.string(), True), ("grade", pa.int32(), True)])
_GRADE_LIMIT = 2**31
_PLAIN = ReadOptions()


def read_scored(path: Path, goals: Sequence[str] = ()) -> pa.Table:
    """Read a scored list; its first bytes, not its name, decide the format.

    Returns
    -------
    pa.Table
        qid string, score float64, and if the source has them doc_id string and grade int32 (null: unknown); also the
        columns of ``goals`` that the source has, int32 like the grade.

    Raises
    ------
    InputError
        There is no such file, or no shard in the folder.
    CandidatesRejected
        A column is missing or of another type, a line is malformed, a score is missing or not a number.
    """
    refuse_special(path)
    refuse_table_format(path)
    if (source := open_list(path, partial(_scored_columns, goals))) is not None:
        return as_scored(_read_rows(source, goals), str(path), goals)
    shards = scored_shards(path)
    if path.is_dir():
        return pa.concat_tables([_read_parquet(shard, goals) for shard in shards], promote_options="default")
    if shards:
        return _read_parquet(path, goals)
    if uncompressed(path).suffix.lower() in {".csv", ".tsv"}:
        first = _first_bytes(path).decode("utf-8", "replace").strip()
        raise CandidatesRejected(
            f"{path}: expected a header line with column names separated by commas or tabs, including qid and score, "
            "found " + (repr(shorten(first)) if first else "an empty file")
        )
    return read_run(path)


def scored_shards(path: Path) -> list[Path]:
    """Return the Parquet files of a scored list; none if it is text.  Errors as `read_scored`."""
    if path.is_dir():
        shards = [file for file in sorted(path.glob("*.parquet")) if _is_scored(file)]
        lists = [] if shards else sorted(folder for folder in path.iterdir() if is_ranked_folder(folder))
        if lists:
            raise InputError(
                f"{path}: contains the lists of several models; name one of them: {', '.join(map(str, lists))}"
            )
        if not shards and (path / MANIFEST_NAME).is_file():
            raise InputError(f"{path}: is a dataset; name the model that ranks it with {spelled('model')}")
        if not shards:
            raise InputError(f"{path}: no Parquet file with columns qid and score in this folder")
        return shards
    return [path] if _first_bytes(path).startswith(b"PAR1") else []


def delimiter_of(path: Path) -> str | None:
    """Return the separator of a scored list in delimited text, by its first line; else None."""
    first = b"" if path.is_dir() else _first_bytes(path)
    if not first.startswith(b"PAR1"):
        for separator in USUAL_DELIMITERS:
            header = [name.strip(b' "\r\n\xef\xbb\xbf') for name in first.split(separator.encode())]
            if b"qid" in header:
                return separator
    return None


def open_list(path: Path, columns_of: ColumnsOf) -> TableSource | None:
    """Open a table of text, JSON lines or Arrow.

    Its first bytes or the suffix of Arrow show the format. None for Parquet and TREC runs.
    """
    separator = delimiter_of(path)
    if separator is not None:
        return DelimitedSource(path, separator, ReadOptions(), columns_of=columns_of)
    first = b"" if path.is_dir() else _first_bytes(path)
    if first.startswith(b"ARROW1") or (not path.is_dir() and format_of(path) == "arrow"):
        return open_table(path, "arrow", ReadOptions(), Quarantine(), columns_of)
    if first.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
        return open_table(path, "jsonl", ReadOptions(), Quarantine(), columns_of)
    return None


def _read_rows(source: TableSource, goals: Sequence[str]) -> pa.Table:
    """Read the columns of a scored list; MalformedLine or MalformedRow names the first bad cell."""
    parts = []
    for rows in source.table_rows():
        graded = [part for part in rows.columns if part in {"grade", *goals}]
        columns = {part: column for part, column in rows.columns.items() if part not in graded}
        if "doc_id" in columns and not are_numbers(columns["doc_id"].type):
            columns["doc_id"] = without_made(as_strings(columns["doc_id"]))
        found = read_parts(columns, rows.problems, needed=("qid",))
        for part in graded:
            grade, missing = whole_grades(rows.columns[part], rows.problems, part)
            found[part] = pa.array(grade, mask=missing)
        rows.reject(rows.problems)
        parts.append(pa.table({name: found[name] for name in rows.columns}))
    kinds, names = _kinds(goals), [] if source.table is None else [*source.table.column_of]
    return pa.concat_tables(parts) if parts else pa.schema([(name, kinds[name]) for name in names]).empty_table()


def _sources(names: Sequence[str], goals: Sequence[str]) -> dict[str, str]:
    """Return the columns of a scored list to read, by their content.

    ``label`` has the grades where ``grade`` is missing.
    """
    found = {name: name for name in _kinds(goals) if name in names}
    if "grade" not in found and "label" in names and "label" not in goals:
        found["grade"] = "label"
    return found


def _kinds(goals: Sequence[str]) -> dict[str, pa.DataType]:
    """Return the columns of a scored list that are read, with their types."""
    return _COLUMNS | dict.fromkeys(goals, pa.int32())


def _scored_columns(goals: Sequence[str], path: Path, header: Sequence[str], *_: object) -> TableColumns:
    _refuse_twice(header, str(path), goals)
    _refuse_lacking(header, str(path))
    return TableColumns(_sources(header, goals), ())


def _first_bytes(path: Path) -> bytes:
    try:
        refuse_foreign_content(path)
        with pa.input_stream(str(path), compression=cast("Any", compression_of(path))) as stream:
            return stream.read(65536).partition(b"\n")[0]
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no such file") from None
    except (OSError, pa.ArrowInvalid) as error:
        if compression_of(path) is None:
            raise
        raise damaged(path, error) from None


def as_scored(table: pa.Table, where: str, goals: Sequence[str] = ()) -> pa.Table:
    """Check and cast the columns of a scored table; ``where`` names it in messages (see `read_scored`)."""
    _refuse_twice(table.column_names, where, goals)
    columns = {}
    for name, source in _sources(table.column_names, goals).items():
        kind = _kinds(goals)[name]
        are_of_ids = name in IDS and are_ids(table.schema.field(source).type)
        try:
            columns[name] = _ids(table, source, where) if are_of_ids else table.column(source).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            actual = table.schema.field(source).type
            raise CandidatesRejected(f"{where}: expected column {source!r} as {kind}, found {actual}") from None
        try:
            columns[name].validate(full=True)  # Parquet does not check its text for UTF-8, and Polars relies on it
        except pa.ArrowInvalid:
            raise CandidatesRejected(f"{where}: expected UTF-8 text in column {name!r}, found other bytes") from None
    _refuse_lacking(table.column_names, where)
    if columns["qid"].null_count:
        row = pc.index(columns["qid"].is_null(), pa.scalar(value=True)).as_py()
        raise CandidatesRejected(f"{where}: expected a qid in every row, found none in row {row + 1}")
    bad = columns["score"].is_null(nan_is_null=True)
    if pc.any(bad).as_py():
        row = pc.index(bad, pa.scalar(value=True)).as_py()
        qid = columns["qid"][row].as_py()
        raise CandidatesRejected(f"{where}: expected a number as score, found none in row {row + 1}, query {qid!r}")
    if "doc_id" in columns:
        columns["doc_id"] = without_made(columns["doc_id"])
    return pa.table(columns)


def _ids(table: pa.Table, name: str, where: str) -> pa.ChunkedArray[Any]:
    """Return a column of ids as text; CandidatesRejected if one is no whole number."""
    column = table.column(name)
    found = [ids_of(chunk) for chunk in column.chunks]
    bad = np.concatenate([np.zeros(0, dtype=np.bool_), *(wrong for _, wrong in found)])
    if bad.any():
        row = int(np.argmax(bad))
        raise CandidatesRejected(
            f"{where}: expected {EXACT_ID} in column {name!r}, found {column[row].as_py()} in row {row + 1}; write "
            "ids as text"
        )
    return pa.chunked_array([texts for texts, _ in found], pa.string())


def _refuse_twice(names: Sequence[str], where: str, goals: Sequence[str] = ()) -> None:
    for name in _kinds(goals):
        if names.count(name) > 1:
            raise CandidatesRejected(f"{where}: column {name!r} occurs twice; every column needs a unique name")


def _refuse_lacking(names: Sequence[str], where: str) -> None:
    for name in _NEEDED:
        if name not in names:
            found = ", ".join(names[:8])
            raise CandidatesRejected(f"{where}: expected columns qid and score, found no {name!r} among {found}")


def _is_scored(path: Path) -> bool:
    return set(_NEEDED) <= set(_parquet_columns(path))


def _parquet_columns(path: Path) -> list[str]:
    try:
        return parquet_metadata(path).schema.to_arrow_schema().names
    except pa.ArrowException as error:
        raise CandidatesRejected(
            refused_by_arrow(path, error, "not a complete Parquet file; create it again")
        ) from None


def _read_parquet(path: Path, goals: Sequence[str]) -> pa.Table:
    names = _parquet_columns(path)
    _refuse_twice(names, str(path), goals)
    columns = list(_sources(names, goals).values())
    try:
        table = pq.read_table(path, columns=columns, partitioning=None)
    except pa.ArrowInvalid as error:
        raise CandidatesRejected(f"{path}: {_first_line(error)}") from None
    return as_scored(table, str(path), goals)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def read_run(path: Path) -> pa.Table:
    """Read a run, ``qid Q0 doc_id rank score tag`` a line, into columns qid, doc_id (string) and score (float64).

    As in trec_eval the second field, the rank and the tag are ignored, and so is everything after the tag.  Empty lines
    are skipped, and the text may be compressed.  Scores are doubles here and float32 in trec_eval: close scores that
    tie there may not tie here.

    Raises
    ------
    InputError
        There is no such file.
    DataRejected
        A line breaks the format (named as file:line:column), or the file has no line.
    """
    names = ["qid", "doc_id", "score"]
    parts = [pa.table([lines.qid, lines.doc_id, pa.array(lines.score)], names) for lines in read_ranked_lines(path)]
    return pa.concat_tables(parts).combine_chunks()


def read_qrels(path: Path, options: ReadOptions = _PLAIN) -> pa.Table:
    """Read judgments into columns qid, doc_id (string) and grade (int32), as `rankmill data ingest` reads them.

    A table by its suffix, or lines ``qid iteration doc_id grade``, also in a file of CSV or TSV without a header.  Text
    may be compressed.  ``options`` have the names of columns and the delimiter.  A grade may be below 0: such a
    document counts as not relevant (see `rankmill.scorer.metrics.Policy`). Lines with the grade ``nan`` or ``null`` are
    skipped.

    Raises
    ------
    InputError
        There is no such file.
    DataRejected
        A line breaks the format or judges a document again (named as file:line), or the file has no line.
    """
    check_file(path)
    parts, file = [], _qrels_file(path, options)
    for lines in file.rows():
        ids = {name: lines.columns[name] for name in ("qid", "doc_id")}
        ids = read_parts(ids, lines.problems, needed=("qid", "doc_id"))
        grade, missing = whole_grades(lines.columns["grade"], lines.problems)
        lines.reject(lines.problems)
        columns = {name: pl.Series(ids[name], dtype=pl.String) for name in ids}
        found = pl.DataFrame(columns | {"grade": grade, "line": lines.place})
        parts.append(found.filter(~missing))
    judged = pl.concat(parts) if parts else pl.DataFrame()
    if judged.is_empty():
        expected = "lines 'qid iteration doc_id grade'" if file.table is None else "rows with a grade"
        raise CandidatesRejected(f"{path}: expected {expected}, found none")
    again = judged.filter(pl.struct("qid", "doc_id").is_duplicated())
    if len(again):
        again = again.with_columns(first=pl.col("line").min().over("qid", "doc_id")).filter(
            pl.col("line") > pl.col("first")
        )
        qid, doc_id, _, line, first = again.sort("line").row(0)
        raise CandidatesRejected(
            f"{path}:{line}: expected each document once per query, found {doc_id!r} of query {qid!r} again"
            f" (first in {'line' if file.table is None else 'row'} {first})"
        )
    return judged.select("qid", "doc_id", "grade").to_arrow().cast(_JUDGED)


def _qrels_file(path: Path, options: ReadOptions) -> NarrowFile:
    alone = replace(options, judgments_alone=True)
    return NarrowFile(path, QRELS, Quarantine(), alone, of_words=_has_no_header(path) or None)


@dataclass(frozen=True)
class QrelsFile:
    """A file of judgments, which is read once; ``options`` say how.  InputError if it is a pipe or a device."""

    path: Path
    options: ReadOptions = _PLAIN

    def __post_init__(self) -> None:
        refuse_special(self.path)

    @classmethod
    def of(cls, given: str | os.PathLike[str] | QrelsFile | None) -> QrelsFile | None:
        """Return the file ``given``, if any."""
        return given if given is None or isinstance(given, QrelsFile) else cls(Path(given))

    @cached_property
    def table(self) -> pa.Table:
        """Its judgments; see `read_qrels`."""
        return read_qrels(self.path, self.options)

    @cached_property
    def roles(self) -> TableColumns | None:
        """The roles of its columns; None for lines of words."""
        return _qrels_file(self.path, self.options).table


def _has_no_header(path: Path) -> bool:
    """Return whether text begins with judgments as trec_eval reads them, with any suffix."""
    words = [] if _first_bytes(path).startswith((b"PAR1", b"ARROW1")) else _first_bytes(path).split()
    return len(words) == len(QRELS.fields) and re.fullmatch(rb"-?[0-9]+", words[-1]) is not None


def whole_grades(
    words: pa.Array[Any], problems: Problems, part: str = "grade"
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """Parse grades (n,), numbers or text, which may be below 0.

    Return them, 0 if missing, and a mask (n,) of the missing ones.
    """
    grade = as_floats(words).astype(np.float64) if are_numbers(words.type) else GradeRules().numbers(as_strings(words))
    missing = np.isnan(grade)
    whole = (np.abs(grade) < _GRADE_LIMIT) & (grade == np.floor(grade))
    problems.refuse(~missing & ~whole, part, "a whole number as grade")
    return np.where(missing | ~whole, 0, grade).astype(np.int32), missing
