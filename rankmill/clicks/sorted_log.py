"""A click log on disk: DuckDB sorts its rows, and they are put together to result lists that can be read several times.

Rows are in the order of the hash of the query, the query, the session, the list, the rank and the document. So the
lists and their order depend neither on the order in which rows were read nor on the memory.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

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
from rankmill.pipeline.arrow import as_array, parts_of, strings_from
from rankmill.pipeline.group.query_splits import hash_ids

RESIDENT = 290 * 10**6  # bytes of the process with libraries, and memory that allocators keep
BYTES_A_ROW = 64  # of a block while it is put together
_LEAST_SORTING = 100 * 10**6  # bytes of DuckDB, beside which no block is in memory
_BATCH_ROWS = 1 << 16
_BLOCK_ROWS = 1 << 20  # impressions of a block, unless one query has more

Numbers = npt.NDArray[np.int64]


@dataclass(slots=True)
class LogTotals:
    """What was read."""

    rows: int = 0
    """Rows without a problem."""
    merged: int = 0
    """Rows that describe an impression another row describes, too."""
    left_out: int = 0
    """Contradictory result lists."""
    several: int = 0
    """How often a session saw several documents of a query."""
    divided: int = 0
    """How often, of these, each document is a list of its own, at another position."""
    lists: int = 0
    impressions: int = 0
    clicks: int = 0
    queries: int = 0
    documents: int = 0
    deepest: int = 0
    """Largest rank."""


def log_rows(numbers: Sequence[str], **columns: pa.Array[Any] | npt.NDArray[Any]) -> pa.RecordBatch:
    """Return some rows of a log without problems, in any order, for :func:`sort_rows`.

    ``columns`` are ``qid`` and ``doc_id`` (text), ``session`` (uint64 hash), ``within`` (int64, what tells lists of one
    session and query apart), ``policy`` (int32), ``position`` (int32), ``clicked`` (uint8) and each of ``numbers``
    (float64).
    """
    cells = [
        each if isinstance(each, pa.Array) else as_array(each) for each in (columns[name] for name in _names(numbers))
    ]
    return pa.record_batch([as_array(hash_ids(cells[0])), *cells], schema=_schema(numbers))


def _names(numbers: Sequence[str]) -> tuple[str, ...]:
    return ("qid", "session", "within", "policy", "position", "doc_id", "clicked", *numbers)


def _schema(numbers: Sequence[str]) -> pa.Schema:
    kinds: dict[str, pa.DataType] = {"session": pa.uint64(), "within": pa.int64(), "clicked": pa.uint8()}
    kinds |= {"policy": pa.int32(), "position": pa.int32(), "qid": pa.string(), "doc_id": pa.string()}
    kinds |= dict.fromkeys(numbers, pa.float64())
    return columns_of(hash=pa.uint64(), **{name: kinds[name] for name in _names(numbers)})


def sort_rows(batches: Iterable[pa.RecordBatch], numbers: Sequence[str], folder: Path, memory: int) -> Path | None:
    """Write the rows of ``batches`` (:func:`log_rows`) to a file in ``folder``, sorted.

    Return its path, None if there are none.

    Raises
    ------
    InputError
        The rows cannot be sorted in ``memory`` bytes of the process.
    OSError
        The disk is full.
    """
    import duckdb

    read, ordered, n = folder / "rows", folder / "sorted", 0
    packed = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(str(read), _schema(numbers), options=packed) as out:
        for batch in batches:
            out.write_batch(batch)
            n += len(batch)
    if not n:
        return None
    release_freed()
    sorting = max(_LEAST_SORTING, (memory - RESIDENT) * 2 // 5)
    try:
        with (
            closing(
                open_database(memory=sorting, threads=1, spill=folder / "sort", preserve_insertion_order=False)
            ) as database,
            pa.OSFile(str(read), "rb") as file,
            pa.ipc.open_stream(file) as rows,
        ):
            database.register("log_rows", rows)
            columns = ", ".join(_names(numbers))
            by = "hash, qid, session, within, position, doc_id"
            query = f"SELECT {columns} FROM log_rows ORDER BY {by}"  # noqa: S608  columns of ours
            sorted_rows = database.sql(query).to_arrow_reader(_BATCH_ROWS)
            with pa.ipc.new_stream(str(ordered), sorted_rows.schema, options=packed) as out:
                for batch in sorted_rows:
                    out.write_batch(batch)
    except (duckdb.Error, pa.ArrowException) as error:
        if ran_out_of_memory(error):
            raise InputError(f"sorting the log needs more memory; give a larger {spelled('memory')}") from None
        raise OSError(errno.EIO, "sorting the log failed: " + str(error).partition("\n")[0]) from error
    read.unlink()
    release_freed()
    return ordered


@dataclass(slots=True)
class SortedLog:
    """A click log in a temporary folder; see :class:`~rankmill.clicks.result_lists.ClickLog`."""

    policies: tuple[str, ...]
    totals: LogTotals
    folder: Path
    number_names: tuple[str, ...] = ()
    stored: list[Path] = field(default_factory=list)
    """A file of arrays for each block."""

    def blocks(self) -> Iterator[LogBlock]:
        """Yield all blocks, in the same order each time; memory: one block."""
        for path in self.stored:
            with path.open("rb") as file:
                start, query, session, policy, document, rank, clicked, document_start, *others = (
                    np.load(file) for _ in range(12 + len(self.number_names))
                )
            yield LogBlock(
                lists=ResultLists(start, query, session, policy, document.astype(np.int64), rank, clicked),
                queries=strings_from(*others[:2]),
                documents=strings_from(*others[2:4]),
                document_start=document_start,
                numbers=dict(zip(self.number_names, others[4:], strict=True)),
            )


class Contradiction(DataRejected):
    """A result list that cannot have been shown as the log says."""


def assemble(
    ordered: Path,
    folder: Path,
    policies: tuple[str, ...],
    numbers: Sequence[str],
    limit: int,
    memory: int,
    bytes_used: int = 0,
) -> SortedLog:
    """Put the rows that :func:`sort_rows` wrote together to lists.

    Parameters
    ----------
    policies
        Their names, by the numbers in the rows.
    limit
        How many contradictory lists may be left out.
    memory
        Of the process, in bytes.
    bytes_used
        How much memory the user of a block takes for an impression, if it is more than putting it together takes.

    Raises
    ------
    Contradiction
        There are more; the message is about the first.
    InputError
        A query does not fit in ``memory``.
    """
    named = sorted(policies, key=str.encode)
    log = SortedLog(tuple(named), LogTotals(), folder, tuple(numbers))
    number_of = np.array([named.index(name) for name in policies], dtype=np.int32)
    wrong: list[str] = []
    lists = (_lists(rows, number_of, log.totals, wrong) for rows in _rows_of_lists(ordered))
    for parts in _whole_queries(lists, memory, max(BYTES_A_ROW, bytes_used) + 24 * len(numbers)):
        if log.totals.left_out > limit:
            more = f" (and more than {spelled('max_rejects')} {limit} allows)" if limit else ""
            raise Contradiction(
                f"{wrong[0]}{more}; if sessions see several lists of a query, name the column of the list's id or "
                f"time with {spelled_with('columns', {'list': NAME})} or time=NAME"
            )
        _add_block(log, parts)
        release_freed()
    ordered.unlink()
    return log


def _rows_of_lists(ordered: Path) -> Iterator[pa.RecordBatch]:
    """Yield the sorted rows, those of a list together."""
    with pa.OSFile(str(ordered), "rb") as file, pa.ipc.open_stream(file) as stream:
        rest: list[pa.RecordBatch] = []  # of the last list
        for batch in stream:
            rows = pa.Table.from_batches([*rest, batch]).combine_chunks().to_batches()[0]
            last = int(np.flatnonzero(_changes(rows, "qid", "session", "within"))[-1])
            rest = [rows[last:]]
            if last:
                yield rows[:last]
    yield from rest


def _changes(rows: pa.RecordBatch, *names: str) -> npt.NDArray[np.bool_]:
    """Return whether each row differs from that before it in one of these columns, (n,); the first does."""
    columns = (rows.column(name) for name in names)
    found = [pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False) for column in columns]
    return np.append(True, np.logical_or.reduce(found))


class _Lists(NamedTuple):
    """Some lists, in order."""

    qid: pa.Array[Any]
    """(lists,)"""
    session: npt.NDArray[np.uint64]
    policy: npt.NDArray[np.int32]
    size: Numbers
    """Impressions."""
    rank: npt.NDArray[np.int32]
    """(impressions,)"""
    clicked: npt.NDArray[np.uint8]
    numbers: npt.NDArray[np.float64]
    """(impressions, k)"""
    doc_id: Any
    """(impressions,) dictionary"""

    def cut(self, first: int, last: int | None = None) -> _Lists:
        """Return the lists from ``first`` to before ``last``."""
        begin, end = (int(self.size[:number].sum()) for number in (first, last))
        return _Lists._make([*(each[first:last] for each in self[:4]), *(each[begin:end] for each in self[4:])])


def _lists(
    rows: pa.RecordBatch, policy_numbers: npt.NDArray[np.int32], totals: LogTotals, complaints: list[str]
) -> _Lists:
    """Return the lists in ``rows`` without those that contradict themselves.

    The problem of the first such list is recorded.
    """
    new_list = _changes(rows, "qid", "session", "within")
    impression = np.flatnonzero(new_list | _changes(rows, "position", "doc_id"))  # rows that agree are one
    first, list_of = np.flatnonzero(new_list), np.cumsum(new_list)[impression] - 1
    rank = rows.column("position").to_numpy()[impression]
    doc_id: Any = rows.column("doc_id").take(as_array(impression)).dictionary_encode()
    policy = rows.column("policy").to_numpy()
    least, most = np.minimum.reduceat(policy, first), np.maximum.reduceat(policy, first)
    qid = rows.column("qid").take(as_array(first))
    wrong = _contradictory(list_of, rank, doc_id.indices.to_numpy()) | (least != most)
    if wrong.any():
        worst = int(np.argmax(wrong))
        here = list_of == worst
        texts = doc_id.filter(pa.array(here)).to_pylist()
        what = _contradiction(rank[here].tolist(), texts, several=bool(least[worst] != most[worst]))
        complaints.append(f"a result list of query {qid[worst].as_py()!r} contradicts itself: {what}")
    keep, good = ~wrong[list_of], np.flatnonzero(~wrong)
    totals.rows += len(rows)
    totals.merged += int((np.diff(np.append(impression, len(rows))) - 1)[keep].sum())
    totals.left_out += int(wrong.sum())
    further = [np.fmax.reduceat(column.to_numpy(), impression)[keep] for column in rows.columns[len(_names(())) :]]
    return _Lists(
        qid=qid.take(as_array(good)),
        session=rows.column("session").to_numpy()[first[good]],
        policy=policy_numbers[least[good]],
        size=np.bincount(list_of, minlength=len(first))[good],
        rank=rank[keep],
        clicked=np.maximum.reduceat(rows.column("clicked").to_numpy(), impression)[keep],
        numbers=np.stack(further, axis=1) if further else np.empty((int(keep.sum()), 0)),
        doc_id=doc_id.filter(pa.array(keep)),
    )


def _whole_queries(pieces: Iterator[_Lists], memory: int, bytes_a_row: int) -> Iterator[list[_Lists]]:
    """Yield the lists of some queries, about ``_BLOCK_ROWS`` rows or one larger query at a time.

    InputError if it needs too much memory.
    """
    most = max((memory - RESIDENT) // bytes_a_row, 1)
    whole: list[_Lists] = []
    last: list[_Lists] = []  # of the last query, of which more may come
    query, n_whole, n_last = None, 0, 0
    for piece in (piece for piece in pieces if len(piece.qid)):
        other = pc.not_equal(piece.qid[1:], piece.qid[:-1]).to_numpy(zero_copy_only=False)
        starts = np.flatnonzero(np.append(piece.qid[0].as_py() != query, other))
        ends = np.append(0, np.cumsum(piece.size))
        sizes = np.diff(np.concatenate([[-n_last], ends[starts], ends[-1:]]))
        if sizes.max() > most:
            largest = int(np.argmax(sizes))
            query = piece.qid[int(starts[largest - 1])].as_py() if largest else query
            same = (each.size[pc.equal(each.qid, cast("Any", query)).to_numpy(zero_copy_only=False)] for each in pieces)
            n = int(sizes[largest]) + sum(int(size.sum()) for size in same)
            needed = RESIDENT + n * bytes_a_row
            raise InputError(
                f"query {query!r} has {n:,} impressions, which take {needed / 1e6:,.0f} MB to put together; give"
                f" {spelled('memory')} {-(-needed // 10**8) * 100}MB"
            )
        query = piece.qid[-1].as_py()
        cut = int(starts[-1]) if len(starts) else 0
        if len(starts):
            whole, last = [*whole, *last, piece.cut(0, cut)], []
            n_whole += n_last + int(ends[cut])
        last.append(piece.cut(cut))
        n_last = int(sizes[-1])
        if n_whole and n_whole + n_last > min(most, _BLOCK_ROWS):
            yield whole
            whole, n_whole = [], 0
    yield [*whole, *last]


def _add_block(log: SortedLog, parts: list[_Lists]) -> None:
    """Write the lists of whole queries as a block of ``log``; ``parts`` is cleared."""
    if not parts:
        return
    qids, *columns, doc_id = map(list, zip(*parts, strict=True))
    parts.clear()
    chunks: Any = pa.chunked_array(doc_id).unify_dictionaries()
    del doc_id
    documents, document = _by_bytes(chunks)
    del chunks
    session, policy, size, rank, clicked, numbers = map(np.concatenate, columns)
    del columns
    qid = pa.concat_arrays(qids)
    new_query = _changes(pa.record_batch({"qid": qid}), "qid")
    query, start = np.cumsum(new_query) - 1, np.append(0, np.cumsum(size))
    pair = np.repeat(query * len(documents), size)
    pair += document
    pairs = np.unique(pair)
    document = np.searchsorted(pairs, pair).astype(np.int32)
    del pair
    document_start = np.searchsorted(pairs, np.arange(query[-1] + 2) * len(documents))
    totals = log.totals
    totals.lists += len(query)
    totals.impressions += len(rank)
    totals.clicks += int(clicked.sum())
    totals.queries += int(query[-1]) + 1
    totals.documents += len(pairs)
    totals.deepest = max(totals.deepest, int(rank.max()))
    _count_divided(totals, query, session, start, rank)
    queries, ids = qid.filter(pa.array(new_query)), documents.take(as_array(pairs % len(documents)))
    log.stored.append(log.folder / f"block{len(log.stored)}")
    with log.stored[-1].open("wb") as file:
        for array in (start, query, session, policy, document, rank, clicked, document_start):
            np.save(file, array)
        for array in (*_text(queries), *_text(ids), *numbers.T):
            np.save(file, array)


def _contradictory(
    list_of: Numbers, rank: npt.NDArray[np.int32], document: npt.NDArray[np.int32]
) -> npt.NDArray[np.bool_]:
    """Return whether a list has two documents at a rank, or a document at two, (lists,)."""
    wrong = np.zeros(int(list_of[-1]) + 1, dtype=np.bool_)
    for key in (rank, document):
        pair = np.sort(list_of * (int(key.max()) + 1) + key)
        wrong[pair[1:][pair[1:] == pair[:-1]] // (int(key.max()) + 1)] = True
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


def _count_divided(
    totals: LogTotals,
    query: Numbers,
    session: npt.NDArray[np.uint64],
    start: Numbers,
    rank: npt.NDArray[np.int32],
) -> None:
    pair = np.flatnonzero(np.append(True, (query[1:] != query[:-1]) | (session[1:] != session[:-1])))
    lists, rows = np.diff(np.append(pair, len(query))), np.diff(np.append(start[pair], start[-1]))
    top = rank[start[:-1]]
    apart = np.minimum.reduceat(top, pair) < np.maximum.reduceat(top, pair)
    totals.several += int((rows > 1).sum())
    totals.divided += int(((rows > 1) & (lists == rows) & apart).sum())


def _text(texts: pa.Array[Any]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    offsets, data = parts_of(texts)
    return offsets - offsets[0], data[offsets[0] : offsets[-1]]


def _by_bytes(ids: Any) -> tuple[pa.Array[Any], npt.NDArray[np.int32]]:
    """Return the ids of a dictionary, ascending byte by byte, and the number of each element among them."""
    distinct = ids.chunk(0).dictionary
    order = pc.sort_indices(distinct).to_numpy()
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return distinct.take(as_array(order)), np.concatenate([place[chunk.indices.to_numpy()] for chunk in ids.chunks])
