"""Counts of a click log: how often each document was shown and clicked at each rank, by the rank of the last click above."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankmill.clicks.models import _kernels as kernels
from rankmill.clicks.result_lists import ClickLog, ResultLists

Weighting = Callable[[ResultLists], npt.NDArray[np.float64]]
"""Returns how often each list counts, (lists,)."""


@dataclass(frozen=True, slots=True)
class ClickCounts:
    """What click models are fitted to: rows in ascending order of document, rank and last click."""

    documents: int
    """Number of documents of all queries; documents are numbered block by block, in the order of the log."""
    ranks: int
    document: npt.NDArray[np.int64]
    """(rows,)"""
    rank: npt.NDArray[np.int32]
    """(rows,) from 1 to ``ranks``."""
    last: npt.NDArray[np.int32]
    """(rows,) the rank of the last click above in the same list, 0 if there is none."""
    shown: npt.NDArray[np.float64]
    """(rows,) impressions, weighted."""
    clicked: npt.NDArray[np.float64]
    """(rows,) of these, clicked."""

    def by_document(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the sums of ``values`` (rows,) by document."""
        return summed(self.document, values, self.documents)

    def by_rank(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the sums of ``values`` (rows,) by rank, of rank 1 first."""
        return summed(self.rank - 1, values, self.ranks)


def summed(number: npt.NDArray[np.signedinteger], values: npt.NDArray[np.float64], n: int) -> npt.NDArray[np.float64]:
    """Return the sums of ``values`` (rows,) by ``number`` (rows,), (n,)."""
    sums: npt.NDArray[np.float64] = np.bincount(number, weights=values, minlength=n).astype(np.float64, copy=False)
    return sums


def equally(lists: ResultLists) -> npt.NDArray[np.float64]:
    """Count each list once."""
    return np.ones(len(lists.query))


def count_clicks(
    log: ClickLog, ranks: int, weightings: Sequence[Weighting] = (equally,), *, least_shown: int = 0
) -> list[ClickCounts]:
    """Return the counts of ``log`` down to rank ``ranks``, once for each of ``weightings``; the log is read once.

    Documents with fewer than ``least_shown`` impressions have no rows.

    Memory: a block, 12 to 28 bytes an impression of it, and ``20 + 16 * len(weightings)`` bytes a row.
    """
    rows: list[list[npt.NDArray[np.signedinteger]]] = []
    sums: list[list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]] = []
    documents = 0
    for block in log.blocks():
        lists = block.lists
        row_of, found = _rows_of(lists, len(block.documents), ranks, least_shown)
        n = len(found[0])
        of_block = []
        for weighting in weightings:
            shown, clicked = np.zeros(n), np.zeros(n)
            kernels.add_lists(lists.start, row_of, lists.clicked, weighting(lists), shown, clicked)
            of_block.append((shown, clicked))
        rows.append([found[0] + documents, found[1], found[2]])
        sums.append(of_block)
        documents += len(block.documents)
    if not rows:
        rows, sums = (
            [[np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int32)]],
            [[(np.empty(0), np.empty(0))] * len(weightings)],
        )
    document, rank, last = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    return [
        ClickCounts(
            documents, ranks, document, rank, last, *(np.concatenate(parts) for parts in zip(*each, strict=True))
        )
        for each in zip(*sums, strict=True)
    ]


def deepest_rank(log: ClickLog) -> int:
    """Return the largest rank in ``log``; 0 if it is empty."""
    return max((int(block.lists.rank.max(initial=0)) for block in log.blocks()), default=0)


def _rows_of(
    lists: ResultLists, documents: int, ranks: int, least_shown: int
) -> tuple[npt.NDArray[np.signedinteger], tuple[npt.NDArray[np.signedinteger], ...]]:
    n = len(lists.document)
    last, order = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int32)
    kernels.last_clicks(lists.start, lists.rank, lists.clicked, last)
    offsets = np.zeros(documents + 1, dtype=np.int64)
    kernels.by_document(lists.document, offsets, order)
    row_of, most = np.empty(n, dtype=np.int32), min(n, documents * ranks * ranks)
    rows = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int32), np.empty(most, dtype=np.int32)
    seen = np.full((ranks + 1) ** 2, -1, dtype=np.int64)
    used = kernels.number_rows(offsets, order, lists.rank, last, np.int64(ranks), seen, row_of, rows)
    if least_shown:
        kept = np.bincount(lists.document, minlength=documents)[rows[0][:used]] >= least_shown
        number = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1)  # the last is that of impressions without a row
        return number[row_of], tuple(column[:used][kept] for column in rows)
    return row_of, tuple(column[:used].copy() for column in rows)
