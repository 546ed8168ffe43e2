"""Scored lists as tables: Parquet (a file or a folder of shards), TSV or CSV with a header, or a TREC run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from scorer.errors import CandidatesRejected, InputError
from scorer.trec import read_run

_COLUMNS: dict[str, pa.DataType] = {
    "qid": pa.string(),
    "doc_id": pa.string(),
    "score": pa.float64(),
    "grade": pa.int32(),
}
_NEEDED = ("qid", "score")


def read_scored(path: Path) -> pa.Table:
    """Read a scored list; which format it is in shows in its first bytes, not in its name.

    Returns
    -------
    pa.Table
        qid string, score float64, and where the source has them doc_id string and grade int32 (nulls: not known).

    Raises
    ------
    InputError
        There is no such file, or no shard in the folder.
    CandidatesRejected
        A column is lacking or of another type, a line breaks the format, a score is missing or not a number.
    """
    separator = delimiter_of(path)
    if separator is not None:
        return _read_delimited(path, separator)
    shards = scored_shards(path)
    if path.is_dir():
        return pa.concat_tables([_read_parquet(shard) for shard in shards], promote_options="default")
    return _read_parquet(path) if shards else read_run(path)


def scored_shards(path: Path) -> list[Path]:
    """Return the Parquet files of a scored list; none if it is text.  Errors as `read_scored`."""
    if path.is_dir():
        shards = [file for file in sorted(path.glob("*.parquet")) if _is_scored(file)]
        if not shards:
            raise InputError(f"{path}: no Parquet file with columns qid and score in this folder")
        return shards
    return [path] if _first_bytes(path).startswith(b"PAR1") else []


def delimiter_of(path: Path) -> str | None:
    """Return what separates the cells of a scored list that is a table of text, a tab or a comma; else None."""
    first = b"" if path.is_dir() else _first_bytes(path)
    if not first.startswith(b"PAR1"):
        for separator in ("\t", ","):
            header = [name.strip(b'"\r\n\xef\xbb\xbf') for name in first.split(separator.encode())]
            if b"qid" in header:
                return separator
    return None


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.readline(65536)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no such file") from None


def as_scored(table: pa.Table, where: str) -> pa.Table:
    """Check and cast the columns of a scored table; ``where`` names it in messages (see `read_scored`)."""
    columns = {}
    for name, kind in _COLUMNS.items():
        if name not in table.column_names:
            continue
        try:
            columns[name] = table.column(name).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            found = table.schema.field(name).type
            raise CandidatesRejected(f"{where}: expected column {name!r} as {kind}, found {found}") from None
        try:
            columns[name].validate(full=True)  # Parquet does not check its text, and Polars relies on it
        except pa.ArrowInvalid:
            raise CandidatesRejected(f"{where}: expected UTF-8 text in column {name!r}, found other bytes") from None
    for name in _NEEDED:
        if name not in columns:
            found = ", ".join(table.column_names[:8])
            raise CandidatesRejected(f"{where}: expected columns qid and score, found no {name!r} among {found}")
    if columns["qid"].null_count:
        row = pc.index(columns["qid"].is_null(), pa.scalar(value=True)).as_py()
        raise CandidatesRejected(f"{where}: expected a qid in every row, found none in row {row + 1}")
    bad = columns["score"].is_null(nan_is_null=True)
    if pc.any(bad).as_py():
        row = pc.index(bad, pa.scalar(value=True)).as_py()
        qid = columns["qid"][row].as_py()
        raise CandidatesRejected(f"{where}: expected a number as score, found none in row {row + 1}, query {qid!r}")
    return pa.table(columns)


def _is_scored(path: Path) -> bool:
    return set(_NEEDED) <= set(_parquet_columns(path))


def _parquet_columns(path: Path) -> list[str]:
    try:
        return list(pq.read_schema(path).names)
    except pa.ArrowInvalid:
        raise CandidatesRejected(f"{path}: not a complete Parquet file; write it again") from None


def _read_parquet(path: Path) -> pa.Table:
    wanted = [name for name in _parquet_columns(path) if name in _COLUMNS]
    try:
        table = pq.read_table(path, columns=wanted, partitioning=None)
    except pa.ArrowInvalid as error:
        raise CandidatesRejected(f"{path}: {_first_line(error)}") from None
    return as_scored(table, str(path))


def _read_delimited(path: Path, separator: str) -> pa.Table:
    try:
        table = pacsv.read_csv(
            path,
            parse_options=pacsv.ParseOptions(delimiter=separator),
            convert_options=pacsv.ConvertOptions(column_types=_COLUMNS),
        )
    except pa.ArrowInvalid as error:
        raise CandidatesRejected(f"{path}: {_first_line(error)}") from None
    return as_scored(table, str(path))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
