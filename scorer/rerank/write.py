"""Write ranked lists: a folder of Parquet shards with its manifest, or one Parquet, CSV, TSV or TREC run file.

Row groups and shards depend on the rows alone (their number, queries and id lengths), and the writer's settings are
fixed.  So the bytes do not depend on the batches in which rows arrive.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

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
    """The files of a ranked list, and their folder.

    ``grades``, the side table, is None if no grade is known, or ``lacks_counts``.
    """

    folder: Path
    ranked: tuple[RankedPart, ...]
    grades: str | None
    lacks_counts: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the files of rows, in their order, and of the side table."""
        return tuple(file.name for file in self.ranked) + (() if self.grades is None else (self.grades,))

    def total(self, what: Literal["rows", "queries", "repeated"]) -> int:
        """Add up a number of all files."""
        return sum(getattr(file, what) for file in self.ranked)


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
    """
    top_k, metadata = facts.top_k, {FACTS: canonical_json(as_json(facts)).decode()}
    graded = False
    writer = open_writer(target, folder, metadata, rows_of.kept)
    try:
        with closing(rows_of.ranked(top_k)) as ranked, closing(ahead(ranked)) as batches:
            for batch in batches:
                if checked_suffix(target) == ".run":
                    _refuse_repeated(batch)
                writer.write(batch)
                graded = graded or batch.rows["grade"].null_count < batch.rows.num_rows
        files = tuple(writer.close())
    except BaseException:
        writer.abandon()
        raise
    single = bool(checked_suffix(target))
    side = None
    if top_k is not None and counted:
        belongs = {BELONGS: file_digest(folder / files[0].name)} if single else {}
        side = write_grade_counts(folder / grades_path(target).name, rows_of.grade_counts(), metadata | belongs)
    written = RankedFiles(folder, files, side, lacks_counts=top_k is not None and graded and not counted)
    if not single:
        grades = None if side is None else {"name": side, "sha256": file_digest(folder / side)}
        manifest = as_json(facts) | {
            "grades": grades,
            "queries": written.total("queries"),
            "rows": rows,
            "rows_written": written.total("rows"),
            "shards": [
                {
                    "name": each.name,
                    "rows": each.rows,
                    "queries": each.queries,
                    "sha256": file_digest(folder / each.name),
                }
                for each in files
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


def write_grade_counts(path: Path, counts: Iterable[pa.Table], metadata: Mapping[str, str]) -> str | None:
    """Write the side table of grade counts, and return its name; None, and no file, if no grade is known."""
    file: _ParquetFile | None = None
    try:
        for table in counts:
            file = file or _ParquetFile(path, GRADE_COUNTS, metadata)
            file.write(table)
        if file is not None:
            file.close()
    except BaseException:
        with suppress(OSError):
            if file is not None:
                file.abandon()
        raise
    return None if file is None else path.name


class _ParquetFile:
    """One Parquet file with row groups of exactly ``ROW_GROUP_ROWS`` rows.

    The last one and those with long ids may be shorter.
    """

    def __init__(self, path: Path, schema: pa.Schema, metadata: Mapping[str, str]) -> None:
        self._schema = schema.with_metadata(dict(metadata)) if metadata else schema
        self._writer = pq.ParquetWriter(
            path,
            self._schema,
            version="2.6",
            compression="zstd",
            compression_level=3,
            use_dictionary=False,
            data_page_version="1.0",
            data_page_size=1 << 20,
            write_batch_size=1024,
            write_statistics=True,
        )
        self._held = [self._schema.empty_table()]
        self._n_held = self._bytes_held = self._n_groups = 0
        self._texts = [field.name for field in schema if pa.types.is_string(field.type)]

    def write(self, table: pa.Table) -> None:
        self._held.append(table)
        self._n_held += table.num_rows
        self._bytes_held += table.nbytes
        while end := self._end_of_group():
            self._write_group(end)

    def close(self) -> None:
        if self._n_held or self._n_groups == 0:
            self._write_group(self._n_held)
        self._writer.close()

    def abandon(self) -> None:
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
        held = pa.concat_tables(self._held)
        # One chunk: pages are cut per chunk, and must not depend on the batches in which rows arrive.
        group = held.slice(0, rows).combine_chunks().replace_schema_metadata(self._schema.metadata)
        self._writer.write_table(group, row_group_size=ROW_GROUP_ROWS)
        rest = held.slice(rows)
        self._held, self._n_held, self._bytes_held = [rest], rest.num_rows, rest.nbytes
        self._n_groups += 1


class _LinesFile:
    """One text file; ``lines_of`` turns rows into lines without their line ends."""

    def __init__(self, path: Path, header: str, lines_of: Callable[[pa.Table], pa.ChunkedArray[Any]]) -> None:
        self._lines_of = lines_of
        self._file: BinaryIO = path.open("xb")
        self._file.write(header.encode())

    def write(self, table: pa.Table) -> None:
        self._file.write("".join(f"{line}\n" for line in self._lines_of(table).to_pylist()).encode())

    def close(self) -> None:
        self._file.close()

    def abandon(self) -> None:
        self._file.close()


class ListWriter:
    """Write ranked rows to the files ``open_file(number)``.

    It is one file, or shards of whole queries of about ``shard_rows`` rows.
    """

    def __init__(
        self, open_file: Callable[[int], tuple[str, _ParquetFile | _LinesFile]], shard_rows: int | None = None
    ) -> None:
        self._open_file, self._shard_rows = open_file, shard_rows
        self._done: list[RankedPart] = []
        self._begin()

    def _begin(self) -> None:
        name, self._file = self._open_file(len(self._done))
        self._part = RankedPart(name, 0, 0)

    def write(self, batch: RankedBatch) -> None:
        """Add the next rows; a query stays in one shard."""
        starts, begin = np.flatnonzero(batch.first_of_query), 0
        while self._shard_rows is not None:
            ends = starts[starts >= begin + max(0, self._shard_rows - self._part.rows)]
            if len(ends) == 0:
                break
            end = int(ends[0])
            self._add(batch, begin, end)
            self._end()
            self._begin()
            begin = end
        self._add(batch, begin, len(batch.rows))

    def _add(self, batch: RankedBatch, begin: int, end: int) -> None:
        self._file.write(batch.rows.slice(begin, end - begin))
        queries, repeated = (int(rows[begin:end].sum()) for rows in (batch.first_of_query, batch.repeated))
        part = self._part
        self._part = RankedPart(part.name, part.rows + end - begin, part.queries + queries, part.repeated + repeated)

    def _end(self) -> None:
        self._file.close()
        self._done.append(self._part)

    def close(self) -> list[RankedPart]:
        """Finish the last file, and return all files in order."""
        self._end()
        return self._done

    def abandon(self) -> None:
        """Close the open file, finished or not; the caller removes the folder."""
        with suppress(OSError):  # most likely the disk is full
            self._file.abandon()


def open_writer(path: Path, folder: Path, metadata: Mapping[str, str], kept: pa.Schema = NOTHING_KEPT) -> ListWriter:
    """Open the writer for the suffix of ``path``, with its files in ``folder``; no suffix means shards.

    Raises
    ------
    InputError
        The suffix is none of ``SUFFIXES``.
    """
    suffix, schema = checked_suffix(path), ranked_schema(kept)

    def open_file(number: int) -> tuple[str, _ParquetFile | _LinesFile]:
        name = path.name if suffix else f"part-{number:05d}.parquet"
        if suffix in {"", ".parquet"}:
            return name, _ParquetFile(folder / name, schema, metadata)
        lines_of = {".run": _run_lines, ".tsv": _tsv_lines, ".csv": _csv_lines}[suffix]
        names = pa.table({name: [name] for name in schema.names})
        header = "" if suffix == ".run" else f"{lines_of(names)[0].as_py()}\n"
        return name, _LinesFile(folder / name, header, lines_of)

    return ListWriter(open_file, None if suffix else SHARD_ROWS)


def _refuse_repeated(batch: RankedBatch) -> None:
    """Raise CandidatesRejected if a document is above itself in its query."""
    if batch.repeated.any():
        row = int(np.argmax(batch.repeated))
        qid, doc_id = (batch.rows[name][row].as_py() for name in ("qid", "doc_id"))
        raise CandidatesRejected(
            f"document {doc_id!r} of query {qid!r} is a candidate twice, which a TREC run cannot hold; leave one out, "
            "or write a .parquet file or a folder instead"
        )


def _run_lines(rows: pa.Table) -> pa.ChunkedArray[Any]:
    if pc.any(are_made(rows["doc_id"])).as_py():
        raise CandidatesRejected(
            "there are candidates without a doc_id, by which a TREC run is joined with judgments; give them ids, or "
            "write a .parquet file"
        )
    _refuse(rows, r"[\s\v]|^$", "white space in it, or is empty", "a TREC run")
    rank, score = rows["rank"].cast(pa.string()), rows["score"].cast(pa.string())
    return _joined(rows["qid"], pa.scalar("Q0"), rows["doc_id"], rank, score, pa.scalar(RUN_TAG), " ")


def _tsv_lines(rows: pa.Table) -> pa.ChunkedArray[Any]:
    _refuse(rows, '[\t\r\n]|^[" ]| $', "a tab, a line end, a blank at an end or a quotation mark at its start", "TSV")
    return _joined(*(_text(rows[name]) for name in rows.column_names), "\t")


def _csv_lines(rows: pa.Table) -> pa.ChunkedArray[Any]:
    """Return CSV lines (RFC 4180).

    Cells with a comma, a quotation mark or a blank at an end are quoted; quotation marks in them are doubled.
    """
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
