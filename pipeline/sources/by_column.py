"""Rows of a table whose features come a column at a time: for who needs no more of a column than to look at it once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rankmill.pipeline.sources.batch import RowBatch


class FeaturePart(NamedTuple):
    """Some values of one feature."""

    number: int
    """Which of the source's ``columns`` it is."""
    first: int
    """The row of the first value, from 0 in the batch."""
    values: npt.NDArray[np.float32]
    """(m,) NaN where missing; read only, and gone when the next part is asked for."""


@dataclass(frozen=True, slots=True)
class ColumnBatch:
    """Some rows, in the order of the file."""

    rows: RowBatch
    """The rows, without features: ``values`` is (n, 0)."""
    features: Iterator[FeaturePart]
    """Every value of every feature, once, in any order."""

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class ColumnTask:
    """A part of a file: one thread at a time takes the next from the file, any thread reads its rows."""

    batch: Callable[[], ColumnBatch]
    """Reads the rows; its features must be drawn in the thread that called it.  Must be called, once."""
    position: int
    """Bytes of the file used up after it; may be 0 where that is not known."""


def without_values(n: int) -> npt.NDArray[np.float32]:
    """Return the ``values`` of ``n`` rows without features."""
    return np.empty((n, 0), dtype=np.float32)
