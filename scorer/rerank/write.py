"""Write ranked lists: a folder of Parquet shards with its manifest, or one Parquet, CSV, TSV or TREC run file.

Row groups and shards depend on the rows alone (their number, queries and id lengths), and the writer's settings are fixed:
the bytes do not depend on the batches in which rows arrive.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rankmill.foundation.errors import CandidatesRejected
from rankmill.foundation.records import as_json, canonical_json
from rankmill.foundation.storage.publish import file_digest, fsync_file, fsync_folder
from rankmill.foundation.threads import ahead
from rankmill.pipeline.read.made_ids import are_made
from rankmill.scorer.models.identity import ModelIdentity
from rankmill.scorer.rerank.journal import RankedShard
from rankmill.scorer.rerank.ranked_file import (
    BELONGS,
    FACTS,
    FORMAT,
    GRADE_COUNTS,
    MANIFEST,
    RUN_TAG,
    RankedPart,
    checked_suffix,
    grades_path,
    ranked_schema,
)
from rankmill.scorer.rerank.spill import NOTHING_KEPT, RankedBatch, SortedParts

SHARD_ROWS = 1_000_000  # a shard ends with the query that reaches this length
ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 8 << 20  # of ids: a row group ends with the row that reaches this size


@dataclass(frozen=True, slots=True)
class RankedFiles:
    """The files of a ranked list, and their folder; ``grades`` is None if no grade is known, or ``lacks_counts``."""

    folder: Path
    ranked: tuple[RankedPart, ...]
    grades: RankedPart | None
    lacks_counts: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the files of rows, in their order."""
        return tuple(file.name for file in self.ranked) + (() if self.grades is None else (self.grades.name,))

    @property
    def rows(self) -> int:
        """Number of rows written."""
        return sum(file.rows for file in self.ranked)

    @property
    def queries(self) -> int:
        """Number of queries."""
        return sum(file.queries for file in self.ranked)

    @property
    def repeated(self) -> int:
        """Number of rows with a document that is above them in their query."""
        return sum(file.repeated for file in self.ranked)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedFacts:
    """The metadata of every file of ranked lists and of their folder's manifest."""

    format: int = FORMAT
    kind: str = "ranked"
    max_grade: object
    """The highest grade of the scale, if the model's training data had one."""
    model: ModelIdentity
    top_k: int | None


def write_lists(
    rows_of: SortedParts,
    folder: Path,
    target: Path,
    facts: RankedFacts,
    *,
    rows: int,
    counted: bool = True,
    done: Sequence[RankedShard] = (),
    finished: Callable[[RankedShard], None] = lambda _: None,
) -> RankedFiles:
    """Write the rows of ``rows_of`` to ``folder`` in the format of the suffix of ``target``.

    Parameters
    ----------
    facts
        Metadata of the files and the manifest.
    rows
        Number of candidates, for the manifest.
    counted
        Write the counts of the grades of lists cut to the top k.
    done
        Shards that an earlier run finished in ``folder``.
    finished
        Called with each further shard but the last once it is durable.
    """
    top_k, metadata = facts.top_k, {FACTS: canonical_json(as_json(facts)).decode()}
    digests = {shard.written.name: shard.sha256 for shard in done}

    def shard_written(written: RankedPart, part: int, row: int) -> None:
        fsync_file(folder / written.name)
        fsync_folder(folder)
        digests[written.name] = file_digest(folder / written.name)
        finished(RankedShard(written=written, sha256=digests[written.name], part=part, row=row))

    graded = False
    writer = open_writer(target, folder, metadata, [shard.written for shard in done], shard_written, rows_of.kept)
    try:
        begin = (done[-1].part, done[-1].row) if done else (0, 0)
        with closing(rows_of.ranked(top_k, *begin)) as ranked, closing(ahead(ranked)) as batches:
            for batch in batches:
                writer.write(batch)
                graded = graded or batch.rows["grade"].null_count < batch.rows.num_rows
        files = tuple(writer.close())
    except BaseException:
        writer.abandon()
        raise
    single = bool(checked_suffix(target))
    sha256 = {file.name: digests.get(file.name) or file_digest(folder / file.name) for file in files}
    side = None
    if top_k is not None and counted:
        belongs = {BELONGS: sha256[files[0].name]} if single else {}
        side = write_grade_counts(folder / grades_path(target).name, rows_of.grade_counts(), metadata | belongs)
    written = RankedFiles(folder, files, side, lacks_counts=top_k is not None and graded and not counted)
    if not single:
        grades = None if side is None else {"name": side.name, "sha256": file_digest(folder / side.name)}
        manifest = as_json(facts) | {
            "grades": grades,
            "queries": written.queries,
            "rows": rows,
            "rows_written": written.rows,
            "shards": [
                {"name": file.name, "rows": file.rows, "queries": file.queries, "sha256": sha256[file.name]}
                for file in files
            ],
        }
        (folder / MANIFEST).write_bytes(canonical_json(manifest) + b"\n")
    return written


def publish_file(lists: RankedFiles, target: Path) -> None:
    """Publish the ranked file; between the two steps it is beside a side table of another list, which readers detect.

    A new side table therefore goes first; an old one without a successor is removed last.
    """
    grades = grades_path(target)
    for path in lists.folder.iterdir():
        fsync_file(path)
    if lists.grades is not None:
        (lists.folder / grades.name).replace(grades)
        fsync_folder(target.parent)
    (lists.folder / target.name).replace(target)
    fsync_folder(target.parent)
    if lists.grades is None and os.path.lexists(grades):
        grades.unlink()
        fsync_folder(target.parent)


def write_grade_counts(path: Path, counts: Iterable[pa.Table], metadata: Mapping[str, str]) -> RankedPart | None:
    """Write the side table of grade counts; None, and no file, if no grade is known."""
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


class _ParquetFile:
    """One Parquet file with row groups of exactly ``ROW_GROUP_ROWS`` rows, except the last one and those with long ids."""

    def __init__(self, path: Path, schema: pa.Schema, metadata: Mapping[str, str]) -> None:
        schema = schema.with_metadata(dict(metadata)) if metadata else schema
        self.path, self.rows, self.queries, self.repeated = path, 0, 0, 0
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

    def write(self, table: pa.Table, queries: int, repeated: int = 0) -> None:
        self.repeated += repeated
        self._held.append(table)
        self._n_held += table.num_rows
        self._bytes_held += table.nbytes
        self.rows += table.num_rows
        self.queries += queries
        while end := self._end_of_group():
            self._write_group(end)

    def close(self) -> RankedPart:
        if self._n_held or self.rows == 0:
            self._write_group(self._n_held)
        self._writer.close()
        return RankedPart(self.path.name, self.rows, self.queries, self.repeated)

    def abandon(self) -> None:
        with suppress(OSError):  # most likely the disk is full
            self._writer.close()

    def _end_of_group(self) -> int:
        """Return how many of the buffered rows make a whole row group; 0 if they do not yet."""
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
        # One chunk: pages are cut per chunk, and must not depend on the batches in which rows arrive.
        group = held.slice(0, rows).combine_chunks().replace_schema_metadata(self._schema.metadata)
        self._writer.write_table(group, row_group_size=ROW_GROUP_ROWS)
        rest = held.slice(rows)
        self._held, self._n_held, self._bytes_held = ([rest] if rest.num_rows else []), rest.num_rows, rest.nbytes


Finished = Callable[[RankedPart, int, int], None]
"""Called with each written shard but the last, and the part and row of the sorted rows at which the next one begins."""


class ParquetWriter:
    """Write Parquet files ``name.format(number)``: one, or shards of whole queries of about ``shard_rows`` rows, after ``done``."""

    def __init__(
        self,
        folder: Path,
        name: str,
        metadata: Mapping[str, str],
        *,
        shard_rows: int | None = None,
        done: Iterable[RankedPart] = (),
        finished: Finished = lambda *_: None,
        kept: pa.Schema = NOTHING_KEPT,
    ) -> None:
        self._schema = ranked_schema(kept)
        self._folder, self._name, self._metadata = folder, name, metadata
        self._shard_rows, self._finished = shard_rows, finished
        self._done = list(done)
        self._open = self._next()

    def write(self, batch: RankedBatch) -> None:
        """Add the next rows; a query stays in one shard."""
        rows, first, again, begin = batch.rows, batch.first_of_query, batch.repeated, 0
        starts = np.flatnonzero(first)
        while self._shard_rows is not None:
            short_by = self._shard_rows - self._open.rows
            ends = starts[(starts >= begin) & (starts >= begin + short_by)]
            if len(ends) == 0:
                break
            end = int(ends[0])
            self._open.write(rows.slice(begin, end - begin), int(first[begin:end].sum()), int(again[begin:end].sum()))
            self._done.append(self._open.close())
            self._finished(self._done[-1], batch.part, batch.row + end)
            self._open, begin = self._next(), end
        self._open.write(rows.slice(begin), int(first[begin:].sum()), int(again[begin:].sum()))

    def close(self) -> list[RankedPart]:
        """Finish the last file, and return all files in order."""
        return [*self._done, self._open.close()]

    def abandon(self) -> None:
        """Close the open file, finished or not; the caller removes the folder."""
        self._open.abandon()

    def _next(self) -> _ParquetFile:
        return _ParquetFile(self._folder / self._name.format(len(self._done)), self._schema, self._metadata)


class LinesWriter:
    """One text file; ``lines_of`` turns rows into lines without their line ends; with ``once`` no document may be repeated."""

    def __init__(
        self, path: Path, header: str, lines_of: Callable[[pa.Table], pa.ChunkedArray[Any]], *, once: bool = False
    ) -> None:
        self._path, self._lines_of, self._once = path, lines_of, once
        self._rows = self._queries = self._repeated = 0
        self._file: BinaryIO = path.open("xb")
        self._file.write(header.encode())

    def write(self, batch: RankedBatch) -> None:
        """Add the next rows."""
        if self._once and batch.repeated.any():
            row = int(np.argmax(batch.repeated))
            qid, doc_id = (batch.rows[name][row].as_py() for name in ("qid", "doc_id"))
            raise CandidatesRejected(
                f"document {doc_id!r} of query {qid!r} is a candidate twice, which a TREC run cannot hold; leave one out, or write a"
                " .parquet file or a folder instead"
            )
        self._repeated += int(batch.repeated.sum())
        lines = self._lines_of(batch.rows).to_pylist()
        self._file.write("".join(f"{line}\n" for line in lines).encode())
        self._rows += len(lines)
        self._queries += int(batch.first_of_query.sum())

    def close(self) -> list[RankedPart]:
        """Finish the file."""
        self._file.close()
        return [RankedPart(self._path.name, self._rows, self._queries, self._repeated)]

    def abandon(self) -> None:
        """Close the file."""
        with suppress(OSError):
            self._file.close()


def open_writer(
    path: Path,
    folder: Path,
    metadata: Mapping[str, str],
    done: Iterable[RankedPart] = (),
    finished: Finished = lambda *_: None,
    kept: pa.Schema = NOTHING_KEPT,
) -> ParquetWriter | LinesWriter:
    """Open the writer for the suffix of ``path``, with its files in ``folder``; no suffix means shards.

    Shards continue after ``done``; ``finished`` is called with each complete one.

    Raises
    ------
    InputError
        The suffix is none of ``SUFFIXES``.
    """
    suffix = checked_suffix(path)
    if not suffix:
        return ParquetWriter(
            folder, "part-{:05d}.parquet", metadata, shard_rows=SHARD_ROWS, done=done, finished=finished, kept=kept
        )
    if suffix == ".parquet":
        return ParquetWriter(folder, path.name.replace("{", "{{").replace("}", "}}"), metadata, kept=kept)
    if suffix == ".run":
        return LinesWriter(folder / path.name, "", _run_lines, once=True)
    lines_of = _tsv_lines if suffix == ".tsv" else _csv_lines
    names = pa.table({name: [name] for name in ranked_schema(kept).names})
    return LinesWriter(folder / path.name, lines_of(names)[0].as_py() + "\n", lines_of)


def _run_lines(rows: pa.Table) -> pa.ChunkedArray[Any]:
    if pc.any(are_made(rows["doc_id"])).as_py():
        raise CandidatesRejected(
            "there are candidates without a doc_id, by which a TREC run is joined with judgments; give them ids, or write a .parquet file"
        )
    _refuse(rows, r"[\s\v]|^$", "white space in it, or is empty", "a TREC run")
    rank, score = rows["rank"].cast(pa.string()), rows["score"].cast(pa.string())
    return _joined(rows["qid"], pa.scalar("Q0"), rows["doc_id"], rank, score, pa.scalar(RUN_TAG), " ")


def _tsv_lines(rows: pa.Table) -> pa.ChunkedArray[Any]:
    _refuse(rows, '[\t\r\n]|^[" ]| $', "a tab, a line end, a blank at an end or a quotation mark at its start", "TSV")
    return _joined(*(_text(rows[name]) for name in rows.column_names), "\t")


def _csv_lines(rows: pa.Table) -> pa.ChunkedArray[Any]:
    """Return CSV lines (RFC 4180): cells with a comma, a quotation mark or a blank at an end are quoted, quotation marks in them doubled."""
    _refuse(rows, r"[\r\n]", "a line end", "CSV")
    cells = []
    for name in rows.column_names:
        text: Any = _text(rows[name])
        quoted = pc.binary_join_element_wise('"', pc.replace_substring(text, '"', '""'), '"', "")
        cells.append(pc.if_else(pc.match_substring_regex(text, '[",]|^[ \t]|[ \t]$'), quoted, text))
    return _joined(*cells, ",")


def _text(column: pa.ChunkedArray[Any]) -> Any:
    """Return a column as text; what is missing is empty."""
    return pc.fill_null(cast("Any", column.cast(pa.string())), "")


def _joined(*parts: Any) -> pa.ChunkedArray[Any]:
    """Join columns and scalars row by row; the last of ``parts`` is the separator."""
    lines: pa.ChunkedArray[Any] = pc.binary_join_element_wise(*parts)
    return lines


def _refuse(rows: pa.Table, pattern: str, what: str, where: str) -> None:
    for name in (field.name for field in rows.schema if pa.types.is_string(field.type)):
        bad = pc.match_substring_regex(rows[name], pattern)
        if pc.any(bad).as_py():
            found = rows[name].filter(bad)[0].as_py()
            raise CandidatesRejected(
                f"the {name} {found!r} has {what}, which {where} cannot hold; write a .parquet file or a folder instead"
            )
