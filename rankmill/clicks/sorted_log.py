"""A click log on disk: DuckDB sorts its rows, and they are put together to result lists that can be read several times.

Rows are in the order of the hash of the query, the query, the session, the list, the rank and the document, so that the lists and their
order depend neither on the order in which rows were read nor on the memory.
"""

from __future__ import annotations

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
from rankmill.foundation.cures import NAME, spelled_with
from rankmill.foundation.database import open_database
from rankmill.foundation.errors import DataRejected, InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.process_memory import release_freed
from rankmill.pipeline.arrow import as_array, parts_of, schema_of, strings_from
from rankmill.pipeline.group.query_splits import hash_ids

RESIDENT = 290 * 10**6  # bytes of the process with libraries, and memory that allocators keep
BYTES_A_ROW = 64  # of a block while it is put together
_SORTING = 100 * 10**6  # bytes of DuckDB, beside which no block is in memory
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

    ``columns`` are ``qid`` and ``doc_id`` (text), ``session`` (uint64 hash), ``within`` (int64, what tells lists of one session and query
    apart), ``policy`` (int32), ``position`` (int32), ``clicked`` (uint8) and each of ``numbers`` (float64).
    """
    cells = [
        each if isinstance(each, pa.Array) else as_array(each) for each in (columns[name] for name in _names(numbers))
    ]
    return pa.record_batch([as_array(hash_ids(cells[0])), *cells], schema=_schema(numbers))


def _names(numbers: Sequence[str]) -> tuple[str, ...]:
    return ("qid", "session", "within", "policy", "position", "doc_id", "clicked", *numbers)


def _schema(numbers: Sequence[str]) -> pa.Schema:
    kinds: list[pa.DataType] = [
        pa.uint64(),
        pa.string(),
        pa.uint64(),
        pa.int64(),
        pa.int32(),
        pa.int32(),
        pa.string(),
        pa.uint8(),
    ]
    kinds += [pa.float64()] * len(numbers)
    return schema_of([(name, kind, False) for name, kind in zip(("hash", *_names(numbers)), kinds, strict=True)])


def sort_rows(batches: Iterable[pa.RecordBatch], numbers: Sequence[str], folder: Path) -> Path | None:
    """Write the rows of ``batches`` (:func:`log_rows`) to a file in ``folder``, sorted; return its path, None if there are none."""
    read, ordered, n = folder / "rows", folder / "sorted", 0
    packed = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(str(read), _schema(numbers), options=packed) as out:
        for batch in batches:
            out.write_batch(batch)
            n += len(batch)
    if not n:
        return None
    release_freed()
    with (
        closing(
            open_database(memory=_SORTING, threads=1, spill=folder / "sort", preserve_insertion_order=False)
        ) as database,
        pa.OSFile(str(read), "rb") as file,
        pa.ipc.open_stream(file) as rows,
    ):
        database.register("log_rows", rows)
        columns = ", ".join(_names(numbers))
        by = "hash, qid, session, within, position, doc_id"
        sorted_rows = database.sql(f"SELECT {columns} FROM log_rows ORDER BY {by}").to_arrow_reader(_BATCH_ROWS)  # noqa: S608
        with pa.ipc.new_stream(str(ordered), sorted_rows.schema, options=packed) as out:
            for batch in sorted_rows:
                out.write_batch(batch)
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
    first = ""
    for parts in _whole_queries(ordered, memory, max(BYTES_A_ROW, bytes_used) + 24 * len(numbers)):
        complaint = _add(log, _joined(parts), number_of)
        first = first or complaint
        if log.totals.left_out > limit:
            more = f" (and more than {spelled('max_rejects')} {limit} allows)" if limit else ""
            raise Contradiction(
                f"{first}{more}; if sessions see several lists of a query, name the column of the list's id or time with"
                f" {spelled_with('columns', {'list': NAME})} or time=NAME"
            )
        release_freed()
    ordered.unlink()
    return log


class _Rows(NamedTuple):
    """Some sorted rows, for each of which the first arrays have an element."""

    new_query: npt.NDArray[np.bool_]
    """Whether it is the first row of its query."""
    new_list: npt.NDArray[np.bool_]
    """Whether it is the first row of its list."""
    policy: npt.NDArray[np.int32]
    position: npt.NDArray[np.int32]
    clicked: npt.NDArray[np.uint8]
    numbers: npt.NDArray[np.float64]
    """(k, rows)"""
    doc_id: Any
    """Array of a dictionary."""
    session: npt.NDArray[np.uint64]
    """Of the lists that begin here."""
    queries: pa.Array[Any]
    """Ids of the queries that begin here."""


def _whole_queries(ordered: Path, memory: int, bytes_a_row: int) -> Iterator[list[_Rows]]:
    """Yield the rows of some queries, of about ``_BLOCK_ROWS`` rows or of one that has more; InputError if it takes too much."""
    most = max((memory - RESIDENT) // bytes_a_row, 1)
    whole: list[_Rows] = []
    last: list[_Rows] = []  # of the last query, of which more may come
    query, session, within, n_whole, n_last = None, 0, 0, 0, 0  # of the row before; rows
    with pa.OSFile(str(ordered), "rb") as file, pa.ipc.open_stream(file) as stream:
        for batch in stream:
            qid = batch.column("qid")
            other = pc.not_equal(qid[1:], qid[:-1]).to_numpy(zero_copy_only=False)
            new_query = np.append(qid[0].as_py() != query, other)
            new_list = new_query | _changes(batch.column("session"), session) | _changes(batch.column("within"), within)
            starts = np.flatnonzero(new_query)
            sizes = np.diff(np.concatenate([[-n_last], starts, [len(batch)]]))
            largest = int(np.argmax(sizes))
            if sizes[largest] > most:
                query = qid[int(starts[largest - 1])].as_py() if largest else query
                same: Any = (pc.equal(rest.column("qid"), cast("Any", query)) for rest in stream)
                n = int(sizes[largest]) + sum(each.true_count for each in same)
                needed = RESIDENT + n * bytes_a_row
                raise InputError(
                    f"query {query!r} has {n:,} impressions, which take {needed / 1e6:,.0f} MB to put together; give"
                    f" {spelled('memory')} {-(-needed // 10**8) * 100}MB"
                )
            query, session, within = (batch.column(name)[-1].as_py() for name in ("qid", "session", "within"))
            cut = int(starts[-1]) if len(starts) else 0
            if len(starts):
                whole, last = [*whole, *last, _copied(batch[:cut], new_query[:cut], new_list[:cut])], []
                n_whole += n_last + cut
            last.append(_copied(batch[cut:], new_query[cut:], new_list[cut:]))
            n_last = int(sizes[-1])
            if n_whole and n_whole + n_last > min(most, _BLOCK_ROWS):
                yield whole
                whole, n_whole = [], 0
    yield [*whole, *last]


def _changes(column: pa.Array[Any], before: int) -> npt.NDArray[np.bool_]:
    """Return whether each value differs from that before it, (n,)."""
    values = column.to_numpy()
    return np.append(values[0] != before, values[1:] != values[:-1])


def _copied(batch: pa.RecordBatch, new_query: npt.NDArray[np.bool_], new_list: npt.NDArray[np.bool_]) -> _Rows:
    """Return what is needed of ``batch``, which can be freed then."""
    column = {name: batch.column(name) for name in batch.schema.names}
    numbers = [each.to_numpy() for each in batch.columns[len(_names(())) :]]
    return _Rows(
        new_query,
        new_list,
        policy=np.array(column["policy"]),
        position=np.array(column["position"]),
        clicked=np.array(column["clicked"]),
        numbers=np.stack(numbers) if numbers else np.empty((0, len(batch))),
        doc_id=column["doc_id"].dictionary_encode(),
        session=column["session"].to_numpy()[new_list],
        queries=column["qid"].filter(pa.array(new_query)),
    )


def _joined(parts: list[_Rows]) -> _Rows:
    """Return the rows of all ``parts``, which are cleared."""
    *arrays, numbers, doc_id, session, queries = zip(*parts, strict=True)
    parts.clear()
    dictionary: Any = pa.chunked_array(doc_id).unify_dictionaries()
    texts = dictionary.combine_chunks(), np.concatenate(session), pa.concat_arrays(queries)
    return _Rows._make([*map(np.concatenate, arrays), np.concatenate(numbers, axis=1), *texts])


def _add(log: SortedLog, rows: _Rows, policy_numbers: npt.NDArray[np.int32]) -> str:
    """Put ``rows`` together to a block of ``log``; return what is wrong with the first list that contradicts itself."""
    totals = log.totals
    totals.rows += len(rows.position)
    documents, document = _by_bytes(rows.doc_id)
    new = rows.new_list.copy()
    new[1:] |= (rows.position[1:] != rows.position[:-1]) | (document[1:] != document[:-1])
    impression = np.flatnonzero(new)  # rows that agree are one
    list_of = (np.cumsum(rows.new_list) - 1)[impression]
    rank, document = rows.position[impression], document[impression]
    clicked = np.maximum.reduceat(rows.clicked, impression)
    numbers = np.fmax.reduceat(rows.numbers, impression, axis=1)
    merged, first_row = np.diff(np.append(impression, len(new))) - 1, np.flatnonzero(rows.new_list)
    policies = np.array([np.minimum.reduceat(rows.policy, first_row), np.maximum.reduceat(rows.policy, first_row)])
    query = (np.cumsum(rows.new_query) - 1)[first_row]
    wrong = _contradictory(list_of, rank, document) | (policies[0] != policies[1])
    complaint = ""
    if wrong.any():
        worst = int(np.argmax(wrong))
        here = list_of == worst
        texts = documents.take(as_array(document[here])).to_pylist()
        what = _contradiction(rank[here].tolist(), texts, several=bool(policies[0, worst] != policies[1, worst]))
        complaint = f"a result list of query {rows.queries[int(query[worst])].as_py()!r} contradicts itself: {what}"
        keep = ~wrong[list_of]
        list_of, rank, document, clicked, merged = (each[keep] for each in (list_of, rank, document, clicked, merged))
        numbers = numbers[:, keep]
    totals.left_out += int(wrong.sum())
    totals.merged += int(merged.sum())
    used, query = np.unique(query[~wrong], return_inverse=True)
    if not len(used):
        return complaint
    start = np.searchsorted(list_of, np.append(np.flatnonzero(~wrong), len(wrong)))
    pair = np.repeat(query, np.diff(start)) * len(documents) + document
    pairs = np.unique(pair)
    session = rows.session[~wrong]
    document_start = np.searchsorted(pairs, np.arange(len(used) + 1) * len(documents))
    totals.lists += len(query)
    totals.impressions += len(rank)
    totals.clicks += int(clicked.sum())
    totals.queries += len(used)
    totals.documents += len(pairs)
    totals.deepest = max(totals.deepest, int(rank.max()))
    _count_divided(totals, query, session, start, rank)
    log.stored.append(log.folder / f"block{len(log.stored)}")
    with log.stored[-1].open("wb") as file:
        for array in (
            start, query, session, policy_numbers[policies[0][~wrong]],
            np.searchsorted(pairs, pair).astype(np.int32), rank, clicked, document_start,
            *_text(rows.queries.take(as_array(used))), *_text(documents.take(as_array(pairs % len(documents)))), *numbers,
        ):  # fmt: skip
            np.save(file, array)
    return complaint


def _contradictory(
    list_of: Numbers, rank: npt.NDArray[np.int32], document: npt.NDArray[np.int32]
) -> npt.NDArray[np.bool_]:
    """Return whether a list has two documents at a rank, or a document at two, (lists,)."""
    wrong = np.zeros(int(list_of[-1]) + 1, dtype=np.bool_)
    wrong[list_of[1:][(list_of[1:] == list_of[:-1]) & (rank[1:] == rank[:-1])]] = True
    n = int(document.max()) + 1
    pair = list_of * n + document
    pair.sort()
    wrong[pair[1:][pair[1:] == pair[:-1]] // n] = True
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
    order = pc.sort_indices(ids.dictionary).to_numpy()
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return ids.dictionary.take(as_array(order)), place[ids.indices.to_numpy()]
