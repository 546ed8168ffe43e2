"""Ranked lists on disk: a folder of Parquet shards, or one Parquet, CSV, TSV or TREC run file.

In a folder only the shards have names that pandas, pyarrow and Spark take for data: they pass over what begins with ``_``.

Row groups and shards are cut by the rows alone (their number, their queries, how long their ids are), and the writer's
settings are fixed, so the bytes do not depend on the batches that the rows came in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.scorer.schemas import GRADE_COUNTS, RANKED
from rankmill.scorer.sorting import RankedBatch

SHARD_ROWS = 1_000_000  # a shard ends with the query in which it gets so long
ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 8 << 20  # of ids: a group ends with the row in which they get so long
RUN_TAG = "rankmill"
SUFFIXES = (".parquet", ".csv", ".tsv", ".run")
# fmt: off
_REFUSED = {  # of files; a folder may have any other
    ".txt", ".json", ".jsonl", ".ndjson", ".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".arrow", ".arrows",
    ".feather", ".ipc", ".pq", ".trec", ".letor", ".svm", ".svmlight", ".libsvm", ".xlsx", ".xls", ".ods",
    ".orc", ".avro", ".xml", ".html", ".db", ".sqlite", ".npy", ".pkl", ".h5",
}
# fmt: on
MANIFEST = "_manifest.json"
SEVERAL = "ranked by several"  # the kind of a folder of folders, one for each model
GRADE_TABLE = "_grades.pq"  # in a folder; not .parquet, so that ``*.parquet`` means the shards alone
BESIDE = "grades.parquet"  # after the whole name of a single file
_FORMER = {MANIFEST: "manifest.json", GRADE_TABLE: "grades.parquet"}  # in folders that earlier versions wrote
FACTS = "rankmill"  # the key in a Parquet file's metadata, what the manifest says of a folder
BELONGS = "rankmill.ranked"  # the key in a side table's metadata, the digest of the file that it is of


@dataclass(frozen=True, slots=True)
class Written:
    """One finished file: its name, rows and queries."""

    name: str
    rows: int
    queries: int


class RankedWriter(Protocol):
    """Takes ranked rows in order and leaves files in its folder."""

    def write(self, batch: RankedBatch) -> None:
        """Add the next rows."""
        ...

    def close(self) -> list[Written]:
        """Finish, and say what was written, in order."""
        ...

    def abandon(self) -> None:
        """Let go of the open file, finished or not; its folder is to be removed."""
        ...


class _ParquetFile:
    """One Parquet file with row groups of exactly ``ROW_GROUP_ROWS`` rows, but for the last one and where ids are long."""

    def __init__(self, path: Path, schema: pa.Schema, metadata: Mapping[str, str]) -> None:
        schema = schema.with_metadata(dict(metadata)) if metadata else schema
        self.path, self.rows, self.queries = path, 0, 0
        self._writer = pq.ParquetWriter(
            path,
            schema,
            version="2.6",
            compression="zstd",
            compression_level=3,
            use_dictionary=False,
            data_page_version="1.0",
            data_page_size=1 << 20,
            write_batch_size=1024,
            write_statistics=True,
        )
        self._schema = schema
        self._held: list[pa.Table] = []
        self._n_held = self._bytes_held = 0
        self._texts = [field.name for field in schema if pa.types.is_string(field.type)]

    def write(self, table: pa.Table, queries: int) -> None:
        self._held.append(table)
        self._n_held += table.num_rows
        self._bytes_held += table.nbytes
        self.rows += table.num_rows
        self.queries += queries
        while end := self._end_of_group():
            self._write_group(end)

    def close(self) -> Written:
        if self._n_held or self.rows == 0:
            self._write_group(self._n_held)
        self._writer.close()
        return Written(self.path.name, self.rows, self.queries)

    def abandon(self) -> None:
        with suppress(OSError):  # a full disk, most likely, is what we are giving up for
            self._writer.close()

    def _end_of_group(self) -> int:
        """Return how many of the rows held make a whole group; 0: they do not yet."""
        if self._bytes_held >= ROW_GROUP_BYTES:
            long = np.zeros(self._n_held, dtype=np.int64)
            for name in self._texts:
                texts: list[Any] = [chunk for table in self._held for chunk in table[name].chunks]
                long += np.concatenate([pc.binary_length(text).to_numpy() for text in texts])
            end = int(np.searchsorted(np.cumsum(long), ROW_GROUP_BYTES)) + 1
            if end <= min(self._n_held, ROW_GROUP_ROWS):
                return end
        return ROW_GROUP_ROWS if self._n_held >= ROW_GROUP_ROWS else 0

    def _write_group(self, rows: int) -> None:
        held = pa.concat_tables(self._held) if self._held else self._schema.empty_table()
        # One chunk: the pages of a column are cut per chunk, and must not show the batches that the rows came in.
        group = held.slice(0, rows).combine_chunks().replace_schema_metadata(self._schema.metadata)
        self._writer.write_table(group, row_group_size=ROW_GROUP_ROWS)
        rest = held.slice(rows)
        self._held, self._n_held, self._bytes_held = ([rest] if rest.num_rows else []), rest.num_rows, rest.nbytes


Finished = Callable[[Written, int, int], None]
"""Called with each shard but the last once it is written, and with the part and row of what was sorted where the next begins."""


class ShardWriter:
    """``part-00000.parquet``, .. of whole queries, each of about ``shard_rows`` rows, after those that are ``done``."""

    def __init__(
        self,
        folder: Path,
        metadata: Mapping[str, str],
        shard_rows: int | None = None,
        done: Iterable[Written] = (),
        finished: Finished | None = None,
    ) -> None:
        self._folder, self._metadata, self._shard_rows = folder, metadata, shard_rows or SHARD_ROWS
        self._done = list(done)
        self._finished = finished
        self._open = self._next()

    def write(self, batch: RankedBatch) -> None:
        """Add the next rows; a query stays in one shard."""
        starts = np.flatnonzero(batch.first_of_query)
        rows, first, begin = batch.rows, batch.first_of_query, 0
        while True:
            short_by = self._shard_rows - self._open.rows
            ends = starts[(starts >= begin) & (starts >= begin + short_by)]
            if len(ends) == 0:
                break
            end = int(ends[0])
            self._open.write(rows.slice(begin, end - begin), int(first[begin:end].sum()))
            self._done.append(self._open.close())
            if self._finished is not None:
                self._finished(self._done[-1], batch.part, batch.row + end)
            self._open, begin = self._next(), end
        self._open.write(rows.slice(begin), int(first[begin:].sum()))

    def close(self) -> list[Written]:
        """Finish the last shard."""
        self._done.append(self._open.close())
        return self._done

    def abandon(self) -> None:
        """Let go of the open shard."""
        self._open.abandon()

    def _next(self) -> _ParquetFile:
        return _ParquetFile(self._folder / f"part-{len(self._done):05d}.parquet", RANKED, self._metadata)


class ParquetWriter:
    """One Parquet file."""

    def __init__(self, path: Path, metadata: Mapping[str, str]) -> None:
        self._file = _ParquetFile(path, RANKED, metadata)

    def write(self, batch: RankedBatch) -> None:
        """Add the next rows."""
        self._file.write(batch.rows, int(batch.first_of_query.sum()))

    def close(self) -> list[Written]:
        """Finish the file."""
        return [self._file.close()]

    def abandon(self) -> None:
        """Let go of the file."""
        self._file.abandon()


class LinesWriter:
    """One text file; ``lines_of`` turns rows into lines without their line ends."""

    def __init__(self, path: Path, header: str, lines_of: Callable[[pa.Table], pa.ChunkedArray[Any]]) -> None:
        self._path, self._lines_of, self._rows, self._queries = path, lines_of, 0, 0
        self._file: BinaryIO = path.open("xb")
        self._file.write(header.encode())

    def write(self, batch: RankedBatch) -> None:
        """Add the next rows."""
        lines = self._lines_of(batch.rows).to_pylist()
        self._file.write("".join(f"{line}\n" for line in lines).encode())
        self._rows += len(lines)
        self._queries += int(batch.first_of_query.sum())

    def close(self) -> list[Written]:
        """Finish the file."""
        self._file.close()
        return [Written(self._path.name, self._rows, self._queries)]

    def abandon(self) -> None:
        """Let go of the file."""
        with suppress(OSError):
            self._file.close()


def open_writer(
    path: Path,
    folder: Path,
    metadata: Mapping[str, str],
    done: Iterable[Written] = (),
    finished: Finished | None = None,
) -> RankedWriter:
    """Open the writer that the name ``path`` asks for, with its files in ``folder``; no suffix asks for shards.

    Shards go on after those that are ``done``; of each that is complete ``finished`` is told.

    Raises
    ------
    InputError
        The suffix is none of ``SUFFIXES``.
    """
    suffix = checked_suffix(path)
    if suffix == ".parquet":
        return ParquetWriter(folder / path.name, metadata)
    if suffix == ".run":
        return LinesWriter(folder / path.name, "", _run_lines)
    if suffix == ".tsv":
        return LinesWriter(folder / path.name, "\t".join(RANKED.names) + "\n", _tsv_lines)
    if suffix == ".csv":
        return LinesWriter(folder / path.name, ",".join(RANKED.names) + "\n", _csv_lines)
    return ShardWriter(folder, metadata, done=done, finished=finished)


def checked_suffix(path: Path) -> str:
    """Return the suffix that decides the format, empty for a folder; InputError for an unknown one."""
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        return suffix
    if suffix in _REFUSED:
        raise InputError(
            f"{path}: cannot write {suffix}; name a folder of Parquet shards, or one file: {', '.join(SUFFIXES)}"
        )
    return ""


def grades_path(out: Path) -> Path:
    """Where the side table of grade counts of ``out`` lies: in its folder, or beside the file under its whole name."""
    return out.with_name(f"{out.name}.{BESIDE}") if checked_suffix(out) else out / GRADE_TABLE


def side_file(folder: Path, name: str) -> Path:
    """Where the side file ``name`` of the ranked lists in ``folder`` is: by its former name where an earlier version wrote it."""
    former = folder / _FORMER[name]
    return former if not (folder / name).exists() and former.exists() else folder / name


def is_ranked_folder(folder: Path) -> bool:
    """Whether ``folder`` is one of ranked lists, by its manifest."""
    try:
        manifest = json.loads(side_file(folder, MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.get("kind") in {"ranked", SEVERAL}


def counts_belong_to(path: Path) -> str | None:
    """Return the digest of the ranked file that the side table ``path`` is of; None if it is no such table."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowInvalid):
        return None
    digest = metadata.get(BELONGS.encode())
    return None if digest is None else digest.decode(errors="replace")


def write_grade_counts(path: Path, counts: Iterable[pa.Table], metadata: Mapping[str, str]) -> Written | None:
    """Write the side table of grade counts; None, and no file, where no grade is known."""
    file: _ParquetFile | None = None
    try:
        for table in counts:
            file = file or _ParquetFile(path, GRADE_COUNTS, metadata)
            file.write(table, 0)
        return None if file is None else file.close()
    except BaseException:
        if file is not None:
            file.abandon()
        raise


def _run_lines(rows: pa.Table) -> pa.ChunkedArray[Any]:
    _refuse(rows, r"[\s\v]|^$", "white space in it, or is empty", "a TREC run")
    zero, tag = pa.scalar("Q0"), pa.scalar(RUN_TAG)
    rank, score = rows["rank"].cast(pa.string()), rows["score"].cast(pa.string())
    return _joined(rows["qid"], zero, rows["doc_id"], rank, score, tag, " ")


def _tsv_lines(rows: pa.Table) -> pa.ChunkedArray[Any]:
    _refuse(rows, '[\t\r\n]|^"', "a tab, a line end or a quotation mark at its start", "TSV")
    return _joined(rows["qid"], rows["doc_id"], *_numbers(rows), "\t")


def _csv_lines(rows: pa.Table) -> pa.ChunkedArray[Any]:
    """RFC 4180: what has a comma or a quotation mark in it stands between quotation marks, those in it doubled."""
    _refuse(rows, r"[\r\n]", "a line end", "CSV")
    cells = []
    for name in ("qid", "doc_id"):
        text: Any = rows[name]
        quoted = pc.binary_join_element_wise('"', pc.replace_substring(text, '"', '""'), '"', "")
        cells.append(pc.if_else(pc.match_substring_regex(text, '[",]'), quoted, text))
    return _joined(*cells, *_numbers(rows), ",")


def _numbers(rows: pa.Table) -> tuple[Any, Any, Any]:
    """Score, rank and grade as text; an unknown grade is empty."""
    score, rank, grade = (rows[name].cast(pa.string()) for name in ("score", "rank", "grade"))
    return score, rank, pc.fill_null(cast("Any", grade), "")


def _joined(*parts: Any) -> pa.ChunkedArray[Any]:
    """Join columns and scalars row by row; the last of ``parts`` goes between them."""
    lines: pa.ChunkedArray[Any] = pc.binary_join_element_wise(*parts)
    return lines


def _refuse(rows: pa.Table, pattern: str, what: str, where: str) -> None:
    for name in ("qid", "doc_id"):
        bad = pc.match_substring_regex(rows[name], pattern)
        if pc.any(bad).as_py():
            found = rows[name].filter(bad)[0].as_py()
            raise CandidatesRejected(
                f"the {name} {found!r} has {what}, which {where} cannot hold; write a .parquet file or a folder instead"
            )
