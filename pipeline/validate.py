"""Consistency checks of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import DataRejected
from rankmill.foundation.options import spelled
from rankmill.pipeline.dataset.manifest import SPLITS

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_one_split(
    qid: pa.Array[Any],
    starts: npt.NDArray[np.int64],
    split: npt.NDArray[np.int64],
    source: npt.NDArray[np.int32],
    source_name: Sequence[str],
) -> None:
    """Raise DataRejected if the rows of a query belong to more than one split.

    Parameters
    ----------
    qid, starts
        The queries (n_queries,) and the first row of each; rows of a query are adjacent.
    split, source
        Split and input file of each row, (n_rows,).
    source_name
        Name of each input file, for error messages.
    """
    low, high = np.minimum.reduceat(split, starts), np.maximum.reduceat(split, starts)
    mixed = np.flatnonzero(low != high)
    if not len(mixed):
        return
    query = int(mixed[0])
    end = starts[query + 1] if query + 1 < len(starts) else len(split)
    rows = slice(starts[query], end)
    files = [source_name[int(source[rows][split[rows] == side].min())] for side in (low[query], high[query])]
    raise DataRejected(
        f"query {qid[query].as_py()!r} is in {SPLITS[low[query]]} ({files[0]}) and in"
        f" {SPLITS[high[query]]} ({files[1]}): a query must be in one split; remove it from one of"
        f" the files, or assign queries with {spelled('split')}"
    )


def check_one_weight(
    qid: pa.Array[Any],
    starts: npt.NDArray[np.int64],
    weight: npt.NDArray[np.float64],
    source: npt.NDArray[np.int32],
    source_name: Sequence[str],
) -> None:
    """Raise DataRejected if the rows of a query have different values of ``weight`` (n_rows,); otherwise like `check_one_split`."""
    low, high = np.minimum.reduceat(weight, starts), np.maximum.reduceat(weight, starts)
    mixed = np.flatnonzero(low != high)
    if not len(mixed):
        return
    query = int(mixed[0])
    rows = slice(starts[query], starts[query + 1] if query + 1 < len(starts) else len(weight))
    files = [source_name[int(source[rows][weight[rows] == side].min())] for side in (low[query], high[query])]
    raise DataRejected(
        f"query {qid[query].as_py()!r} has query_weight {low[query]:g} ({files[0]}) and"
        f" {high[query]:g} ({files[1]}): it must be the same in all rows of a query; weights of"
        " documents go into the column weight"
    )


def sources_disagree(
    first: tuple[str, ...], first_name: str, other: tuple[str, ...], other_name: str, what: str = "features"
) -> str:
    """Describe in which columns, called ``what``, two tables differ; empty if they have the same columns."""
    lacking = sorted(set(first) - set(other))
    added = sorted(set(other) - set(first))
    if lacking:
        return f"{other_name}: no column {lacking[0]!r}, which {first_name} has; all files must have the same {what}"
    if added:
        return f"{other_name}: column {added[0]!r} is not in {first_name}; all files must have the same {what}"
    return ""
