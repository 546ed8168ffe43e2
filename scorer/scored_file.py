"""Scored lists as tables: Parquet (a file or a folder of shards), TSV or CSV with a header, or a TREC run."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.pipeline.dataset_manifest import MANIFEST_NAME, path_in
from rankmill.pipeline.sources.batch import shorten
from rankmill.pipeline.sources.blocks import compression_of
from rankmill.pipeline.sources.files import uncompressed
from rankmill.scorer.ranked_file import is_ranked_folder
from rankmill.scorer.trec import read_run

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
        return as_scored(read_cells(path, separator, _COLUMNS), str(path))
    shards = scored_shards(path)
    if path.is_dir():
        return pa.concat_tables([_read_parquet(shard) for shard in shards], promote_options="default")
    if shards:
        return _read_parquet(path)
    if uncompressed(path).suffix.lower() in {".csv", ".tsv"}:
        first = _first_bytes(path).decode("utf-8", "replace").strip()
        raise CandidatesRejected(
            f"{path}: expected a first line with the names of columns, qid and score among them, between commas or tabs, found "
            + (repr(shorten(first)) if first else "an empty file")
        )
    return read_run(path)


def scored_shards(path: Path) -> list[Path]:
    """Return the Parquet files of a scored list; none if it is text.  Errors as `read_scored`."""
    if path.is_dir():
        shards = [file for file in sorted(path.glob("*.parquet")) if _is_scored(file)]
        lists = [] if shards else sorted(folder for folder in path.iterdir() if is_ranked_folder(folder))
        if lists:
            raise InputError(f"{path}: has the lists of several models; name one of them: {', '.join(map(str, lists))}")
        if not shards and path_in(path, MANIFEST_NAME).is_file():
            raise InputError(f"{path}: is a dataset; name the model that ranks it with --model")
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


def open_text(path: Path) -> io.TextIOWrapper:
    """Open text, plain or compressed, a byte-order mark left out."""
    stream = pa.input_stream(str(path), compression=cast("Any", compression_of(path)))
    return io.TextIOWrapper(cast("Any", stream), encoding="utf-8-sig", newline="")


def read_cells(
    path: Path, separator: str, types: Mapping[str, pa.DataType], columns: Sequence[str] | None = None
) -> pa.Table:
    """Read delimited text with a header, plain or compressed; no text is a null.

    Raises
    ------
    CandidatesRejected
        A line has more or fewer cells than the header, a cell is not of the type of its column, or the compression is damaged.
    """
    compression = compression_of(path)
    try:
        with pa.input_stream(str(path), compression=cast("Any", compression)) as stream:
            return pacsv.read_csv(
                cast("Any", stream),
                parse_options=pacsv.ParseOptions(delimiter=separator),
                convert_options=pacsv.ConvertOptions(
                    column_types=dict(types), include_columns=None if columns is None else list(columns)
                ),
            )
    except (OSError, pa.ArrowInvalid) as error:
        if isinstance(error, OSError) and compression is None:
            raise
        raise CandidatesRejected(f"{path}: {_first_line(error)}") from None


def _first_bytes(path: Path) -> bytes:
    try:
        with pa.input_stream(str(path), compression=cast("Any", compression_of(path))) as stream:
            return stream.read(65536).partition(b"\n")[0]
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no such file") from None
    except (OSError, pa.ArrowInvalid) as error:
        if compression_of(path) is None:
            raise
        raise CandidatesRejected(f"{path}: {_first_line(error)}") from None


def as_scored(table: pa.Table, where: str) -> pa.Table:
    """Check and cast the columns of a scored table; ``where`` names it in messages (see `read_scored`)."""
    _refuse_twice(table.column_names, where)
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


def _refuse_twice(names: Sequence[str], where: str) -> None:
    for name in _COLUMNS:
        if names.count(name) > 1:
            raise CandidatesRejected(f"{where}: column {name!r} is there twice; every column needs a name of its own")


def _is_scored(path: Path) -> bool:
    return set(_NEEDED) <= set(_parquet_columns(path))


def _parquet_columns(path: Path) -> list[str]:
    try:
        return list(pq.read_schema(path).names)
    except pa.ArrowInvalid:
        raise CandidatesRejected(f"{path}: not a complete Parquet file; write it again") from None


def _read_parquet(path: Path) -> pa.Table:
    found = _parquet_columns(path)
    _refuse_twice(found, str(path))
    wanted = [name for name in found if name in _COLUMNS]
    try:
        table = pq.read_table(path, columns=wanted, partitioning=None)
    except pa.ArrowInvalid as error:
        raise CandidatesRejected(f"{path}: {_first_line(error)}") from None
    return as_scored(table, str(path))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
