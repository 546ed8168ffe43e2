"""A click log on disk: rows spilled by query, then put together to result lists that can be read several times.

The spill has a part for each range of hashes of the query, so that the order of the queries (by hash, then by id) depends neither on
the number of parts nor on the order of the rows.  A part that does not fit in memory is divided again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.clicks import _log_kernels as kernels
from rankmill.clicks.result_lists import LogBlock, ResultLists
from rankmill.foundation.cures import NAME, spelled_with
from rankmill.foundation.errors import DataRejected, InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.process_memory import release_freed
from rankmill.pipeline.arrow import as_array, bytes_of, parts_of, schema_of, strings_from
from rankmill.pipeline.group.bucket_files import BucketFiles
from rankmill.pipeline.group.query_splits import hash_ids

RESIDENT = 290 * 10**6  # bytes of the process with libraries and kernels, and memory that allocators keep
BYTES_A_ROW = 64  # while a part is put together, with ids of 10 characters; measured: 62
_PARTS = 6  # bits: 64 parts, and 64 parts of a part
_BLOCK_ROWS = 1 << 20  # impressions of a block, unless one query has more
_HASH_BITS = 64

Numbers = npt.NDArray[np.float64]


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


@dataclass(frozen=True, slots=True)
class LogRows:
    """Some rows of a log, in any order, without problems."""

    qid: pa.Array[Any]
    doc_id: pa.Array[Any]
    session: npt.NDArray[np.uint64]
    """(n,) hash of the session."""
    within: npt.NDArray[np.int64]
    """(n,) what tells lists of one session and query apart."""
    policy: npt.NDArray[np.int32]
    position: npt.NDArray[np.int32]
    clicked: npt.NDArray[np.uint8]
    numbers: Sequence[Numbers]
    """(n,) each."""

    def __len__(self) -> int:
        return len(self.position)


class _Runs(NamedTuple):
    """Rows in runs that are alike in query, session, list and policy."""

    qid: pa.ChunkedArray[Any]
    session: npt.NDArray[np.uint64]
    within: npt.NDArray[np.int64]
    policy: npt.NDArray[np.int32]
    first: npt.NDArray[np.int64]
    """(runs + 1,)"""
    doc_id: pa.ChunkedArray[Any]
    position: npt.NDArray[np.int32]
    clicked: npt.NDArray[np.uint8]
    numbers: npt.NDArray[np.float64]
    """(k, rows)"""


class LogSpill:
    """Rows spilled to a folder.  Memory: a few copies of the rows added at once."""

    def __init__(self, folder: Path, numbers: Sequence[str], known_bits: int = 0) -> None:
        self._numbers, self._known = tuple(numbers), known_bits
        row = [("doc_id", pa.string()), ("position", pa.int32()), ("clicked", pa.uint8())]
        row += [(name, pa.float64()) for name in numbers]
        self._row = pa.struct([pa.field(name, kind, nullable=False) for name, kind in row])
        self._schema = schema_of(
            [
                ("qid", pa.string(), False),
                ("session", pa.uint64(), False),
                ("within", pa.int64(), False),
                ("policy", pa.int32(), False),
                ("rows", pa.list_(pa.field("row", self._row, nullable=False)), False),
            ]
        )
        self._files = BucketFiles(folder, 1 << _PARTS, self._schema)
        self.impressions = np.zeros(1 << _PARTS, dtype=np.int64)
        """Rows of each part."""

    def add(self, rows: LogRows) -> None:
        """Append rows."""
        if len(rows):
            starts = np.empty(len(rows), dtype=np.int64)
            offsets, data = parts_of(rows.qid)
            n = kernels.run_starts(offsets, data, rows.session, rows.within, rows.policy, starts)
            first = np.append(starts[:n], len(rows))
            qid = rows.qid if n == len(rows) else rows.qid.take(as_array(starts[:n]))
            alike = (column[starts[:n]] for column in (rows.session, rows.within, rows.policy))
            columns = [as_array(rows.position), as_array(rows.clicked), *map(as_array, rows.numbers)]
            self._add(qid, [as_array(column) for column in alike], first, [rows.doc_id, *columns])

    def _add(
        self,
        qid: pa.Array[Any],
        alike: Sequence[pa.Array[Any]],
        first: npt.NDArray[np.int64],
        columns: Sequence[pa.Array[Any]],
    ) -> None:
        part = (hash_ids(qid) >> np.uint64(_HASH_BITS - self._known - _PARTS)).astype(np.int64) & ((1 << _PARTS) - 1)
        order = np.argsort(part, kind="stable")
        place, new_first = np.empty(int(first[-1]), dtype=np.int64), np.empty(len(first), dtype=np.int64)
        kernels.expand(order, first, place, new_first)
        places, runs = as_array(place), as_array(order)
        flat = pa.StructArray.from_arrays([column.take(places) for column in columns], fields=list(self._row))
        offsets: Any = as_array(new_first.astype(np.int32))
        lists = pa.ListArray.from_arrays(offsets, flat, type=self._schema.field("rows").type)
        batch = pa.record_batch([qid.take(runs), *(column.take(runs) for column in alike), lists], schema=self._schema)
        counts = np.bincount(part, minlength=1 << _PARTS)
        self._files.add(batch, counts)
        ends = new_first[np.append(0, np.cumsum(counts))]
        self.impressions += np.diff(ends)

    def take(self, part: int) -> _Runs:
        """Return and remove the rows of ``part``."""
        batches = list(self._files.batches(part))
        self._files.drop(part)
        rows = [_flat(batch) for batch in batches]
        sizes = [pc.list_value_length(batch.column("rows")).to_numpy() for batch in batches]
        numbers = np.empty((len(self._numbers), sum(map(len, rows))))
        for k, name in enumerate(self._numbers):
            numbers[k] = np.concatenate([each.field(name).to_numpy() for each in rows])

        def of_runs(name: str) -> npt.NDArray[Any]:
            return np.concatenate([batch.column(name).to_numpy() for batch in batches])

        def of_rows(name: str) -> npt.NDArray[Any]:
            return np.concatenate([each.field(name).to_numpy() for each in rows])

        return _Runs(
            qid=pa.chunked_array([batch.column("qid") for batch in batches], pa.string()),
            session=of_runs("session"),
            within=of_runs("within"),
            policy=of_runs("policy"),
            first=np.append(0, np.cumsum(np.concatenate(sizes), dtype=np.int64)),
            doc_id=pa.chunked_array([each.field("doc_id") for each in rows], pa.string()),
            position=of_rows("position"),
            clicked=of_rows("clicked"),
            numbers=numbers,
        )

    def divide(self, part: int, folder: Path) -> LogSpill:
        """Return the rows of ``part``, divided further, and remove them here."""
        divided = LogSpill(folder, self._numbers, self._known + _PARTS)
        for batch in self._files.batches(part):
            alike = [batch.column(name) for name in self._schema.names[1:4]]
            first = np.append(0, np.cumsum(pc.list_value_length(batch.column("rows")).to_numpy(), dtype=np.int64))
            divided._add(batch.column("qid"), alike, first, _flat(batch).flatten())
        self._files.drop(part)
        return divided

    @property
    def can_divide(self) -> bool:
        """Whether hashes have bits left."""
        return self._known + 2 * _PARTS <= _HASH_BITS


def _flat(batch: pa.RecordBatch) -> Any:
    """Return the rows of all runs of ``batch``."""
    rows: Any = batch.column("rows")
    return rows.flatten()


@dataclass(slots=True)
class SpilledLog:
    """A click log in a temporary folder; see :class:`~rankmill.clicks.result_lists.ClickLog`."""

    policies: tuple[str, ...]
    totals: LogTotals
    path: Path
    """Of the file with the blocks."""
    number_names: tuple[str, ...] = ()
    stored: list[dict[str, Stored]] = field(default_factory=list)
    """The arrays of each block."""

    def blocks(self) -> Iterator[LogBlock]:
        """Yield all blocks, in the same order each time; memory: one block."""
        for number in range(len(self.stored)):
            yield self._read(number)

    def _read(self, number: int) -> LogBlock:
        stored = self.stored[number]
        arrays = {name: self._array(place) for name, place in stored.items()}
        return LogBlock(
            lists=ResultLists(
                start=arrays["start"],
                query=arrays["query"].astype(np.int64),
                session=arrays["session"],
                policy=arrays["policy"],
                document=arrays["document"].astype(np.int64),
                rank=arrays["rank"],
                clicked=arrays["clicked"],
            ),
            queries=strings_from(arrays["query_offsets"], arrays["query_bytes"]),
            documents=strings_from(arrays["document_offsets"], arrays["document_bytes"]),
            document_start=arrays["document_start"],
            numbers={name: arrays[f"number {name}"] for name in self.number_names},
        )

    def _array(self, place: Stored) -> npt.NDArray[Any]:
        return np.fromfile(self.path, dtype=place.kind, count=place.length, offset=place.offset)


class Stored(NamedTuple):
    """Where an array is in the file of blocks."""

    offset: int
    kind: np.dtype[Any]
    length: int


class Contradiction(DataRejected):
    """A result list that cannot have been shown as the log says."""


def assemble(
    spill: LogSpill,
    folder: Path,
    policies: tuple[str, ...],
    numbers: Sequence[str],
    limit: int,
    memory: int,
    bytes_used: int = 0,
) -> SpilledLog:
    """Put the spilled rows together to lists.

    Parameters
    ----------
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
    number_of = np.array([named.index(name) for name in policies], dtype=np.int32)
    log = SpilledLog(tuple(named), LogTotals(), folder / "blocks", tuple(numbers))
    bytes_a_row = max(BYTES_A_ROW, bytes_used) + 24 * len(numbers)
    with log.path.open("wb") as file:
        _Assembly(log, file, (memory, bytes_a_row), limit, folder, number_of).add(spill)
    return log


class _Assembly:
    def __init__(
        self,
        log: SpilledLog,
        file: BinaryIO,
        memory: tuple[int, int],
        limit: int,
        folder: Path,
        policy_numbers: npt.NDArray[np.int32],
    ) -> None:
        self._log, self._file, self._limit, self._folder = log, file, limit, folder
        self._bytes_a_row = memory[1]
        self._most = max((memory[0] - RESIDENT) // self._bytes_a_row, 1)
        self._policy_numbers = policy_numbers
        self._first: str = ""
        self._divided = 0

    def add(self, spill: LogSpill) -> None:
        for part in np.flatnonzero(spill.impressions).tolist():
            rows = int(spill.impressions[part])
            if rows <= self._most:
                self._add_part(spill.take(part))
                release_freed()
            elif spill.can_divide:
                self._divided += 1
                self.add(spill.divide(part, self._folder / f"divided{self._divided}"))
            else:
                needed = RESIDENT + rows * self._bytes_a_row
                query = spill.take(part).qid[0].as_py()
                raise InputError(
                    f"query {query!r} has {rows:,} impressions, which take {needed / 1e6:,.0f} MB to put together; give"
                    f" {spelled('memory')} {-(-needed // 10**8) * 100}MB"
                )

    def _add_part(self, runs: _Runs) -> None:
        queries, query = _queries(runs.qid)
        doc_ids, document = _by_bytes(runs.doc_id)
        runs = runs._replace(doc_id=pa.chunked_array([], pa.string()), qid=pa.chunked_array([], pa.string()))
        release_freed()  # the texts of rows
        totals, n, rows = self._log.totals, len(runs.session), len(runs.position)
        order = np.lexsort((runs.within, runs.session, query)).astype(np.int64)
        place, list_start = np.empty(rows, dtype=np.int32), np.empty(n + 1, dtype=np.int64)
        list_run, mixed = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.uint8)
        columns = (query, runs.session, runs.within, runs.policy, runs.position, document)
        lists = kernels.arrange(order, runs.first, *columns, place, list_start, list_run, mixed)
        out = (
            np.empty(lists + 1, dtype=np.int64),
            np.empty(rows, dtype=np.int32),
            np.empty(rows, dtype=np.int32),
            np.empty(rows, dtype=np.uint8),
            np.empty((len(runs.numbers), rows)),
        )
        kept, counts, conflict = np.empty(lists, dtype=np.int64), np.zeros(2, np.int64), np.zeros(4, np.int64)
        seen = np.full(len(doc_ids), -1, dtype=np.int64)
        cells = (runs.position, document, runs.clicked, runs.numbers)
        lists, rows = kernels.merge_rows(
            list_start[: lists + 1], place, mixed[:lists], *cells, seen, kept, out, counts, conflict
        )
        totals.rows += len(runs.position)
        totals.merged += int(counts[0])
        totals.left_out += int(counts[1])
        if counts[1]:
            named = queries[int(query[list_run[conflict[1]]])].as_py()
            one, other = (doc_ids[int(document[row])].as_py() for row in conflict[2:])
            ranks = runs.position[conflict[2:]].tolist()
            self._check(int(conflict[0]), named, (one, other), ranks)
        run = list_run[kept[:lists]]
        merged = [each[..., :rows] for each in out[1:]]
        of_lists = query[run], runs.session[run], self._policy_numbers[runs.policy[run]], out[0][: lists + 1]
        del runs, columns, cells, document, place, order, out  # a third of the memory, and writing takes as much
        self._write(queries, doc_ids, *of_lists, merged)

    def _check(self, kind: int, query: str, documents: tuple[str, str], ranks: list[int]) -> None:
        one, other = documents
        what = {
            1: f"documents {one!r} and {other!r} are both at position {ranks[0]}",
            2: f"document {one!r} is at positions {ranks[0]} and {ranks[1]}",
            3: "its rows have several policies",
        }[kind]
        self._first = self._first or f"a result list of query {query!r} contradicts itself: {what}"
        if self._log.totals.left_out > self._limit:
            more = f" (and more than {spelled('max_rejects')} {self._limit} allows)" if self._limit else ""
            raise Contradiction(
                f"{self._first}{more}; if sessions see several lists of a query, name the column of the list's id or time with"
                f" {spelled_with('columns', {'list': NAME})} or time=NAME"
            )

    def _write(
        self,
        queries: pa.Array[Any],
        doc_ids: pa.Array[Any],
        query: npt.NDArray[np.int64],
        session: npt.NDArray[np.uint64],
        policy: npt.NDArray[np.int32],
        start: npt.NDArray[np.int64],
        cells: Sequence[npt.NDArray[Any]],
    ) -> None:
        document, rank, clicked, numbers = cells
        used, query = np.unique(query, return_inverse=True)
        document_start = np.zeros(len(used) + 1, dtype=np.int64)
        found = np.empty(len(document), dtype=np.int32)
        n = kernels.number_documents(query, start, document, np.empty(len(doc_ids), np.int64), found, document_start)
        totals = self._log.totals
        totals.lists += len(query)
        totals.impressions += len(document)
        totals.clicks += int(clicked.sum())
        totals.queries += len(used)
        totals.documents += n
        totals.deepest = max(totals.deepest, int(rank.max(initial=0)))
        _count_divided(totals, query, session, start, rank)
        list_of = np.searchsorted(query, np.arange(len(used) + 1))  # first list of each query
        rows_of = start[list_of]
        low = 0
        while low < len(used):
            high = max(int(np.searchsorted(rows_of, rows_of[low] + _BLOCK_ROWS, side="right")) - 1, low + 1)
            of_lists, of_rows = slice(list_of[low], list_of[high]), slice(rows_of[low], rows_of[high])
            of_documents = slice(document_start[low], document_start[high])
            ids = doc_ids.take(as_array(found[of_documents]))
            self._write_block(
                {
                    "start": start[list_of[low] : list_of[high] + 1] - rows_of[low],
                    "query": (query[of_lists] - low).astype(np.int32),
                    "session": session[of_lists],
                    "policy": policy[of_lists],
                    "document": document[of_rows] - np.int32(document_start[low]),
                    "rank": rank[of_rows],
                    "clicked": clicked[of_rows],
                    "document_start": document_start[low : high + 1] - document_start[low],
                    **{f"number {name}": numbers[k, of_rows] for k, name in enumerate(self._log.number_names)},
                    **_stored_text("query", queries.take(as_array(used[low:high]))),
                    **_stored_text("document", ids),
                }
            )
            low = high

    def _write_block(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        stored = {}
        for name, array in arrays.items():
            stored[name] = Stored(self._file.tell(), array.dtype, len(array))
            self._file.write(bytes_of(np.ascontiguousarray(array)))
        self._log.stored.append(stored)


def _count_divided(
    totals: LogTotals,
    query: npt.NDArray[np.int64],
    session: npt.NDArray[np.uint64],
    start: npt.NDArray[np.int64],
    rank: npt.NDArray[np.int32],
) -> None:
    if not len(query):
        return
    pair = np.flatnonzero(np.append(True, (query[1:] != query[:-1]) | (session[1:] != session[:-1])))
    lists, rows = np.diff(np.append(pair, len(query))), np.diff(np.append(start[pair], start[-1]))
    top = rank[start[:-1]]
    apart = np.minimum.reduceat(top, pair) < np.maximum.reduceat(top, pair)
    totals.several += int((rows > 1).sum())
    totals.divided += int(((rows > 1) & (lists == rows) & apart).sum())


def _stored_text(name: str, texts: pa.Array[Any]) -> dict[str, npt.NDArray[Any]]:
    offsets, data = parts_of(texts)
    return {f"{name}_offsets": offsets - offsets[0], f"{name}_bytes": data[offsets[0] : offsets[-1]]}


def _queries(qid: pa.ChunkedArray[Any]) -> tuple[pa.Array[Any], npt.NDArray[np.int64]]:
    """Return the distinct ids, by hash and then byte by byte, and the number of each of ``qid`` (n,) among them."""
    ids, code = _by_bytes(qid)
    order = np.argsort(hash_ids(ids), kind="stable")
    place = np.empty(len(ids), dtype=np.int64)
    place[order] = np.arange(len(ids))
    return ids.take(as_array(order)), place[code]


def _by_bytes(ids: pa.ChunkedArray[Any]) -> tuple[pa.Array[Any], npt.NDArray[np.int32]]:
    """Return the distinct ``ids`` (n,), ascending byte by byte, and the number of each among them."""
    encoded: Any = ids.dictionary_encode()
    distinct = encoded.chunk(encoded.num_chunks - 1).dictionary
    order = pc.sort_indices(distinct).to_numpy()
    place = np.empty(len(distinct), dtype=np.int32)
    place[order] = np.arange(len(distinct), dtype=np.int32)
    code = np.concatenate([place[chunk.indices.to_numpy()] for chunk in encoded.chunks])
    return distinct.take(as_array(order)), code
