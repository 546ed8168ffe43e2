"""Counts of a click log: how often each document was shown and clicked at each rank.

They are separate for each rank of the last click above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from rankmill.clicks.result_lists import ClickLog, ResultLists, parts_of_lists

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

    Weights are whole numbers, so that sums are exact in any order.  Documents with fewer than ``least_shown``
    impressions have no rows.

    Memory: a block, a part of its lists, and ``24 + 16 * len(weightings)`` bytes a row.
    """
    documents, kinds = (
        0,
        _KEY | {f"{name}{k}": np.float64 for k in range(len(weightings)) for name in ("shown", "clicked")},
    )
    columns = {name: [np.empty(0, dtype=kind)] for name, kind in kinds.items()}
    for block in log.blocks():
        shown = np.bincount(block.lists.document, minlength=len(block.documents)) if least_shown else None
        often = None if shown is None else shown >= least_shown
        weights = [weighting(block.lists).astype(np.int16) for weighting in weightings]  # Polars adds these up in int64
        parts = [_counted(block.lists, part, ranks, weights, often) for part in parts_of_lists(block.lists.start)]
        if parts:
            of_block = _added(parts).with_columns(pl.col("document") + documents)
            for name, kind in kinds.items():
                columns[name].append(of_block[name].to_numpy().astype(kind))
        documents += len(block.documents)
    whole = {name: np.concatenate(columns.pop(name)) for name in kinds}  # one by one: they are most of the memory
    document, rank, last = (whole[name] for name in _KEY)
    return [
        ClickCounts(documents, ranks, document, rank, last, whole[f"shown{k}"], whole[f"clicked{k}"])
        for k in range(len(weightings))
    ]


def deepest_rank(log: ClickLog) -> int:
    """Return the largest rank in ``log``; 0 if it is empty."""
    return max((int(block.lists.rank.max(initial=0)) for block in log.blocks()), default=0)


_KEY: dict[str, type[np.generic]] = {"document": np.int64, "rank": np.int32, "last": np.int32}


def _counted(
    lists: ResultLists,
    part: tuple[int, int],
    ranks: int,
    weights: Sequence[npt.NDArray[np.int16]],
    often: npt.NDArray[np.bool_] | None,
) -> pl.DataFrame:
    """Return the counts of the lists from ``part[0]`` to before ``part[1]``; ``often``: the documents that count."""
    start = lists.start[part[0] : part[1] + 1]
    here = slice(start[0], start[-1])
    document, rank, clicked = lists.document[here], lists.rank[here], lists.clicked[here]
    of_list = np.repeat(np.arange(len(start) - 1), np.diff(start))
    # the greatest of "list, rank if clicked" so far, before each impression; 0 if it is of a list above
    width = int(rank.max()) + 1
    seen = np.maximum.accumulate(of_list * width + rank * (clicked > 0))
    last = np.maximum(np.append(0, seen[:-1]) - of_list * width, 0).astype(np.int32)
    used = rank <= ranks if often is None else (rank <= ranks) & often[document]
    columns: dict[str, npt.NDArray[Any]] = {"document": document[used], "rank": rank[used], "last": last[used]}
    for k, weight in enumerate(weights):
        columns[f"shown{k}"] = weight[part[0] : part[1]][of_list[used]]
        columns[f"clicked{k}"] = columns[f"shown{k}"] * clicked[used]
    return pl.DataFrame(columns).group_by(*_KEY).sum()


def _added(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the sums of counts, ascending by document, rank and last click."""
    rows = parts[0] if len(parts) == 1 else pl.concat(parts).group_by(*_KEY).sum()
    return rows.sort(*_KEY)
