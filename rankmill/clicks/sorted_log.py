"""A click log on disk: DuckDB sorts its rows, and they are put together to result lists that can be read several times.

Rows are in the order of the hash of the query, the query, the session, the list, the rank and the document.  So the
lists and their order depend neither on the order in which rows were read nor on the memory.
"""

from __future__ import annotations

import errno
import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.clicks.result_lists import LogBlock, ResultLists
from rankmill.clicks.table_files import columns_of
from rankmill.foundation.cures import NAME, spelled_with
from rankmill.foundation.database import open_database, ran_out_of_memory
from rankmill.foundation.errors import DataRejected, InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.process_memory import release_freed
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.group.query_splits import hash_ids

RESIDENT = 290 * 10**6  # bytes of the process with libraries, and memory that allocators keep
BYTES_A_ROW = 88  # of a block while it is put together
_LEAST_SORTING = 100 * 10**6  # bytes of DuckDB, beside which no block is in memory
_BATCH_ROWS = 1 << 16
_BLOCK_ROWS = 1 << 20  # rows of a block, unless one query has more

ROWS = columns_of(
    qid=pa.string(),
    session=pa.uint64(),
    within=pa.int64(),
    policy=pa.int32(),
    position=pa.int32(),
    doc_id=pa.string(),
    clicked=pa.uint8(),
)
"""Rows of a log: ``session`` is a hash, ``within`` distinguishes the lists of one session and query."""
_HASHED = pa.schema([pa.field("hash", pa.uint64(), nullable=False), *ROWS])
_PACKED = pa.ipc.IpcWriteOptions(compression="lz4")
_LARGEST = "SELECT min(qid), count(*) FROM log_rows GROUP BY hash ORDER BY 2 DESC, 1 LIMIT 1"
_SORTED = "SELECT * EXCLUDE (hash) FROM log_rows ORDER BY hash, qid, session, within, position, doc_id"


def sort_rows(
    batches: Iterable[pa.RecordBatch], folder: Path, memory: int, bytes_a_row: int = BYTES_A_ROW
) -> Path | None:
    """Write the rows of ``batches`` (:data:`ROWS`, in any order) to a file in ``folder``, sorted.

    Return its path, None if there are no rows.

    Parameters
    ----------
    memory
        Of the process, in bytes.
    bytes_a_row
        How much memory is taken for a row of a block.

    Raises
    ------
    InputError
        The rows cannot be sorted in ``memory``, or those of a query do not fit in it.
    OSError
        The disk is full.
    """
    import duckdb

    read, ordered, n = folder / "rows", folder / "sorted", 0
    with pa.ipc.new_stream(str(read), _HASHED, options=_PACKED) as out:
        for batch in batches:
            hashes = as_array(hash_ids(batch.column("qid")))
            out.write_batch(pa.record_batch([hashes, *batch.columns], schema=_HASHED))
            n += len(batch)
    if not n:
        return None
    release_freed()
    sorting = max(_LEAST_SORTING, (memory - RESIDENT) * 2 // 5)
    database = open_database(memory=sorting, threads=1, spill=folder / "sort", preserve_insertion_order=False)
    try:
        with _scanned(database, read, _LARGEST) as largest:
            qid, rows = (column[0].as_py() for column in largest.read_all().columns)
        needed = RESIDENT + rows * bytes_a_row
        if needed > memory:
            raise InputError(
                f"query {qid!r} has {rows:,} rows, which take {needed / 1e6:,.0f} MB to put together; give"
                f" {spelled('memory')} {-(-needed // 10**8) * 100}MB"
            )
        with (
            _scanned(database, read, _SORTED) as found,
            pa.ipc.new_stream(str(ordered), found.schema, options=_PACKED) as out,
        ):
            for batch in found:
                out.write_batch(batch)
    except (duckdb.Error, pa.ArrowException) as error:
        if ran_out_of_memory(error):
            raise InputError(f"sorting the log needs more memory; give a larger {spelled('memory')}") from None
        raise OSError(errno.EIO, "sorting the log failed: " + str(error).partition("\n")[0]) from error
    finally:
        database.close()
    read.unlink()
    release_freed()
    return ordered


@contextmanager
def _scanned(database: Any, rows: Path, query: str) -> Iterator[pa.RecordBatchReader]:
    """Yield the result of ``query``, in which ``log_rows`` are the rows in this file."""
    with pa.OSFile(str(rows), "rb") as file, pa.ipc.open_stream(file) as stream:
        database.register("log_rows", stream)
        yield database.sql(query).to_arrow_reader(_BATCH_ROWS)


@dataclass(slots=True)
class SortedLog:
    """A click log in a temporary folder; see :class:`~rankmill.clicks.result_lists.ClickLog`."""

    policies: tuple[str, ...]
    rows: int = 0
    """Rows without a problem."""
    merged: int = 0
    """Rows that describe an impression another row describes, too."""
    left_out: int = 0
    """Contradictory result lists."""
    stored: list[Path] = field(default_factory=list)
    """A file for each block."""

    def blocks(self) -> Iterator[LogBlock]:
        """Yield all blocks, in the same order each time; memory: one block."""
        return map(_loaded, self.stored)


def _loaded(path: Path) -> LogBlock:
    with path.open("rb") as file:
        found: LogBlock = pickle.load(file)  # noqa: S301  written by this process
    return found


class Contradiction(DataRejected):
    """A result list that cannot have been shown as the log says."""


def assemble(
    ordered: Path,
    folder: Path,
    policies: tuple[str, ...],
    limit: int,
    memory: int,
    bytes_a_row: int = BYTES_A_ROW,
) -> SortedLog:
    """Put the rows that :func:`sort_rows` wrote together to lists.

    Parameters
    ----------
    policies
        Their names, by the numbers in the rows.
    limit
        How many contradictory lists may be left out.
    memory, bytes_a_row
        As :func:`sort_rows`.

    Raises
    ------
    Contradiction
        There are more; the message is about the first.
    """
    log = SortedLog(tuple(sorted(policies, key=str.encode)))
    number_of = np.array([log.policies.index(name) for name in policies], dtype=np.int32)
    wrong: list[str] = []
    for parts in _whole_queries(ordered, min((memory - RESIDENT) // bytes_a_row, _BLOCK_ROWS)):
        block = _block(log, parts, number_of, wrong)
        if log.left_out > limit:
            more = f" (and more than {spelled('max_rejects')} {limit} allows)" if limit else ""
            raise Contradiction(
                f"{wrong[0]}{more}; if sessions see several lists of a query, name the column of the list's id, or of "
                f"the time at which it was shown, with {spelled_with('columns', {'list': NAME})}"
            )
        if len(block.queries):
            log.stored.append(folder / f"block{len(log.stored)}")
            with log.stored[-1].open("wb") as file:
                pickle.dump(block, file, protocol=5)
        del block
        release_freed()
    ordered.unlink()
    return log


class _Rows(NamedTuple):
    """Some sorted rows: for each whether it begins a query, a list and an impression, and what is said once."""

    query: npt.NDArray[np.bool_]
    list: npt.NDArray[np.bool_]
    impression: npt.NDArray[np.bool_]
    policy: npt.NDArray[np.int32]
    rank: npt.NDArray[np.int32]
    clicked: npt.NDArray[np.uint8]
    qid: pa.Array[Any]
    """(queries that begin,)"""
    session: npt.NDArray[np.uint64]
    """(lists that begin,)"""
    doc_id: Any
    """(rows,) dictionary"""


def _whole_queries(ordered: Path, most: int) -> Iterator[list[_Rows]]:
    """Yield the rows of some queries, ``most`` or fewer, or of one query that has more."""
    whole: list[_Rows] = []
    last: list[_Rows] = []  # of a query that may continue
    n_whole = n_last = 0
    for rows in _read(ordered):
        if rows.query[0]:
            whole, n_whole = [*whole, *last], n_whole + n_last
            last, n_last = [], 0
        last.append(rows)
        n_last += len(rows.rank)
        if n_whole and n_whole + n_last > most:
            yield whole
            whole, n_whole = [], 0
    yield [*whole, *last]


def _read(ordered: Path) -> Iterator[_Rows]:
    """Yield the sorted rows, cut where the first query of a batch begins, and the last one."""
    with pa.OSFile(str(ordered), "rb") as file, pa.ipc.open_stream(file) as stream:
        before = None
        for batch in stream:
            query = _changes(before, batch, "qid")
            of_list = query | _changes(before, batch, "session", "within")
            impression = of_list | _changes(before, batch, "position", "doc_id")  # rows that agree are one
            before = batch[len(batch) - 1 :]
            begins = np.flatnonzero(query)
            cuts = np.unique([0, *begins[:1], *begins[-1:], len(batch)]).tolist()
            for first, end in pairwise(cuts):
                rows, here = batch[first:end], slice(first, end)
                yield _Rows(
                    query[here],
                    of_list[here],
                    impression[here],
                    policy=rows.column("policy").to_numpy(),
                    rank=rows.column("position").to_numpy(),
                    clicked=rows.column("clicked").to_numpy(),
                    qid=rows.column("qid").filter(pa.array(query[here])),
                    session=rows.column("session").to_numpy()[of_list[here]],
                    doc_id=rows.column("doc_id").dictionary_encode(),
                )


def _changes(before: pa.RecordBatch | None, rows: pa.RecordBatch, *names: str) -> npt.NDArray[np.bool_]:
    """Return whether each row differs in one of these columns from that above it, ``before`` for the first, (n,)."""
    found = np.zeros(len(rows), dtype=np.bool_)
    found[0] = before is None
    for name in names:
        column = rows.column(name)
        found[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
        found[0] |= before is not None and before.column(name)[0] != column[0]
    return found


def _block(log: SortedLog, parts: list[_Rows], number_of: npt.NDArray[np.int32], complaints: list[str]) -> LogBlock:
    """Return the lists of whole queries, and count them in ``log``; ``parts`` is cleared.

    Lists that contradict themselves are left out, and what is wrong with the first is added to ``complaints``.
    """
    *columns, qids, sessions, doc_ids = map(list, zip(*parts, strict=True))
    parts.clear()
    documents, document = _by_bytes(pa.chunked_array(doc_ids).unify_dictionaries())
    del doc_ids
    begins_query, begins, impression, policy, rank, clicked = map(np.concatenate, columns)
    del columns
    queries, session = pa.concat_arrays(qids), np.concatenate(sessions)
    first = np.flatnonzero(begins)
    least, most = number_of[np.minimum.reduceat(policy, first)], number_of[np.maximum.reduceat(policy, first)]
    query = np.cumsum(begins_query)[first] - 1
    log.rows += len(rank)
    kept = np.flatnonzero(impression)
    del begins_query, impression, policy
    list_of = np.cumsum(begins, dtype=np.int32)[kept] - 1
    del begins
    merged = np.diff(np.append(kept, len(rank))) - 1
    rank, document, clicked = rank[kept], document[kept], np.maximum.reduceat(clicked, kept)
    del kept
    wrong = _contradictory(list_of, rank, document) | (least != most)
    if wrong.any():
        worst = int(np.argmax(wrong))
        here = list_of == worst
        shown = documents.take(as_array(document[here])).to_pylist()
        what = _contradiction(rank[here].tolist(), shown, several=bool(least[worst] != most[worst]))
        complaints.append(f"a result list of query {queries[int(query[worst])].as_py()!r} contradicts itself: {what}")
        log.left_out += int(wrong.sum())
        keep, good = ~wrong[list_of], np.flatnonzero(~wrong)
        list_of, merged, rank, document, clicked = (each[keep] for each in (list_of, merged, rank, document, clicked))
        query, session, least = query[good], session[good], least[good]
        with_lists, query = np.unique(query, return_inverse=True)
        queries = queries.take(as_array(with_lists))
        list_of = np.repeat(np.arange(len(good)), np.bincount(list_of, minlength=len(wrong))[good])
    log.merged += int(merged.sum())
    del merged
    start = np.append(0, np.cumsum(np.bincount(list_of, minlength=len(query))))
    pair = query[list_of] * len(documents)
    del list_of
    pair += document
    pairs = np.unique(pair)
    document = np.searchsorted(pairs, pair).astype(np.int32)
    del pair
    return LogBlock(
        lists=ResultLists(start, query, session, least, document.astype(np.int64), rank, clicked),
        queries=queries,
        documents=documents.take(as_array(pairs % max(len(documents), 1))),
        document_start=np.searchsorted(pairs, np.arange(len(queries) + 1) * len(documents)),
    )


def _contradictory(
    list_of: npt.NDArray[np.int32], rank: npt.NDArray[np.int32], document: npt.NDArray[np.int32]
) -> npt.NDArray[np.bool_]:
    """Return whether a list has two documents at a rank, or a document at two, (lists,)."""
    wrong = np.zeros(int(list_of[-1]) + 1, dtype=np.bool_)
    for key in (rank, document):
        pair = list_of * (np.int64(key.max()) + 1)
        pair += key
        pair.sort()
        wrong[pair[1:][pair[1:] == pair[:-1]] // (np.int64(key.max()) + 1)] = True
    return wrong


def _contradiction(ranks: list[int], documents: list[str | None], *, several: bool) -> str:
    """Say what is wrong with a list."""
    if several:
        return "its rows have several policies"
    for k, document in enumerate(documents):
        if k and ranks[k] == ranks[k - 1]:
            return f"documents {documents[k - 1]!r} and {document!r} are both at position {ranks[k]}"
        if document in documents[:k]:
            return f"document {document!r} is at positions {ranks[documents.index(document)]} and {ranks[k]}"
    raise AssertionError("the list does not contradict itself")


def _by_bytes(ids: Any) -> tuple[pa.Array[Any], npt.NDArray[np.int32]]:
    """Return the ids of a dictionary, ascending byte by byte, and the number of each element among them."""
    distinct = ids.chunk(0).dictionary
    order = pc.sort_indices(distinct).to_numpy()
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return distinct.take(as_array(order)), np.concatenate([place[chunk.indices.to_numpy()] for chunk in ids.chunks])
