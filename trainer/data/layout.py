"""Data types of the trainer, and the binned matrix in its layout (`rankmill.pipeline.bins.layout`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.pipeline.bins.layout import (
    BIN,
    BINS_A_FEATURE,
    BLOCK_WIDTH,
    WORD,
    blocks_shape,
    lanes_of,
    n_lanes,
)
from rankmill.trainer import _kernels
from rankmill.trainer._kernels import LANE, PLACE

PACKED = np.int64  # gradient in the high, hessian in the low 32 bits: one add a (row, lane)
ROW = np.int32  # row numbers inside one training set
SCORE = np.float64  # scores, gradients before rounding, leaf values: bits must not depend on the order of sums
EDGE = np.float32  # bin edges, so that every exported threshold compares exactly

_LINE_BYTES = 128  # two lines: the processor fetches them in pairs
_BATCH_ROWS = 65_536  # rows that are reassembled at a time
_JOINED_ROWS = 8_192  # rows that are laid out at a time


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an uninitialised array whose first cell begins a cache line.

    Workers that write neighbouring ranges then share no line.  One line shared by two cores made counting up to twice
    as slow (measured), by chance of where the allocator put the array.

    >>> aligned_empty((3, 2), np.int64).ctypes.data % 128
    0
    """
    size = prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + _LINE_BYTES, dtype=np.uint8)
    start = -memory.ctypes.data % _LINE_BYTES
    return memory[start : start + size].view(dtype).reshape(shape)


@dataclass(frozen=True, slots=True)
class BlockedBins:
    """Bins as ``[block][row][lane]``.

    Parameters
    ----------
    words
        Shape (n_blocks, n_rows, width / 8), uint64; the first lane of a word is its lowest byte.
    n_bins
        Bins of each feature, the missing one included, shape (n_features,) int32.
    """

    words: npt.NDArray[np.uint64]
    n_bins: npt.NDArray[np.int32]
    lanes: npt.NDArray[np.int32] = field(init=False)
    """See :func:`lanes_of`."""
    digits: npt.NDArray[np.uint8] = field(init=False)
    """Shape (n_features, 256): the bin of a feature for each code of its lane."""
    by_lane: npt.NDArray[np.int32] = field(init=False)
    """Shape (n_features,): the features in the order of their lanes."""
    block_starts: npt.NDArray[np.int32] = field(init=False)
    """Shape (n_blocks + 1,): where those of each block begin in ``by_lane``."""

    def __post_init__(self) -> None:
        lanes = lanes_of(self.n_bins)
        places, n_bins = lanes[:, PLACE, None], np.maximum(self.n_bins, 1)[:, None]
        object.__setattr__(self, "lanes", lanes)
        object.__setattr__(self, "digits", (np.arange(BINS_A_FEATURE) // places % n_bins).astype(BIN))
        order = np.argsort(lanes[:, LANE], kind="stable")
        first_lanes = self.width * np.arange(len(self.words) + 1)
        object.__setattr__(self, "by_lane", order.astype(np.int32))
        object.__setattr__(self, "block_starts", np.searchsorted(lanes[order, LANE], first_lanes).astype(np.int32))

    @property
    def n_features(self) -> int:
        """Features of the matrix."""
        return len(self.n_bins)

    @property
    def n_rows(self) -> int:
        """Rows of the matrix."""
        return int(self.words.shape[1])

    @property
    def width(self) -> int:
        """Lanes that share a block."""
        return int(self.words.shape[2]) * 8

    @property
    def used_words(self) -> npt.NDArray[np.int64]:
        """Words of a row that hold lanes, by block, shape (n_blocks,)."""
        of_block = np.minimum(self.width, n_lanes(self.lanes) - np.arange(len(self.words)) * self.width)
        return -(-of_block // 8)

    @classmethod
    def from_batches(
        cls,
        batches: Iterable[npt.NDArray[np.uint8]],
        n_rows: int,
        n_bins: npt.NDArray[np.int32],
        width: int = BLOCK_WIDTH,
    ) -> BlockedBins:
        """Fill the blocks from row-major ``batches`` (m, n_features) uint8 that hold ``n_rows`` rows together.

        ``n_bins`` (n_features,) counts each feature's bins, the missing one included.

        Raises
        ------
        InvalidParameter
            ``width`` is not a multiple of 8.
        TrainingDataRejected
            There are more rows than ``MOST_ROWS``, or the batches hold another number of rows or features, or a bin at
            or above ``n_bins``.
        """
        lanes = lanes_of(n_bins)
        blocks = np.zeros(blocks_shape(n_lanes(lanes), n_rows, width), dtype=BIN)
        for filled, batch in checked(batches, n_rows, n_bins):
            for first in range(0, len(batch), _JOINED_ROWS):
                part = batch[first : first + _JOINED_ROWS]
                codes, at = np.zeros((len(part), n_lanes(lanes)), dtype=BIN), filled + first
                _kernels.join_lanes(part, lanes, codes)
                for block, left in enumerate(range(0, codes.shape[1], width)):
                    of_block = codes[:, left : left + width]
                    blocks[block, at : at + len(part), : of_block.shape[1]] = of_block
        return cls(words=blocks.view(WORD), n_bins=n_bins)

    def of_rows(self, rows: npt.NDArray[np.int64]) -> BlockedBins:
        """Return a copy with only these rows."""
        return BlockedBins(np.take(self.words, rows, axis=1), self.n_bins)

    def with_columns(self, columns: Sequence[npt.NDArray[np.uint8]]) -> BlockedBins:
        """Return a copy in which the features are followed by ``columns`` (n_rows,) of bins, of up to 256 each."""
        counts = np.array([int(column.max(initial=0)) + 1 for column in columns], dtype=np.int32)
        batches = self.batches(np.arange(self.n_rows))
        added = (
            np.column_stack([column[first : first + _BATCH_ROWS] for column in columns])
            for first in range(0, self.n_rows, _BATCH_ROWS)
        )
        wider = (np.hstack(both) for both in zip(batches, added, strict=True))
        return BlockedBins.from_batches(wider, self.n_rows, np.concatenate([self.n_bins, counts]), self.width)

    def batches(self, rows: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield these rows as row-major batches (m, n_features)."""
        for first in range(0, len(rows), _BATCH_ROWS):
            words = self.words[:, rows[first : first + _BATCH_ROWS]]
            codes = np.ascontiguousarray(words.view(BIN).transpose(1, 0, 2)).reshape(words.shape[1], -1)
            bins = np.empty((len(codes), self.n_features), dtype=BIN)
            _kernels.part_lanes(codes, self.lanes, self.digits, bins)
            yield bins


def checked(
    batches: Iterable[npt.NDArray[np.uint8]], n_rows: int, n_bins: npt.NDArray[np.int32]
) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Yield the number of rows before each row-major batch, and the batch.

    Raises the errors of :meth:`BlockedBins.from_batches`.
    """
    n_features = len(n_bins)
    filled = 0
    for batch in batches:
        if batch.shape[1] != n_features or filled + len(batch) > n_rows:
            raise TrainingDataRejected(
                f"bins of shape {batch.shape} at row {filled} do not fit ({n_rows}, {n_features})"
            )
        if not len(batch):
            continue
        above = batch.max(axis=0) >= n_bins
        if above.any():
            feature = int(np.argmax(above))
            raise TrainingDataRejected(f"feature {feature}: bin above its {n_bins[feature]} bins; bin the data again")
        yield filled, batch
        filled += len(batch)
    if filled != n_rows:
        raise TrainingDataRejected(f"expected the bins of {n_rows} rows, found {filled}")
