"""Data types of the trainer, and its layout of the binned matrix: blocks of features, each in row-major order."""

from __future__ import annotations

import mmap
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected

BIN = np.uint8  # 0 is "missing", 1..255 are value bins
WORD = np.uint64  # eight bins of one row, read by one load
PACKED = np.int64  # gradient in the high, hessian in the low 32 bits: one add a (row, feature)
ROW = np.int32  # row numbers inside one training set
SCORE = np.float64  # scores, gradients before rounding, leaf values: bits must not depend on the order of sums
EDGE = np.float32  # bin edges, so that every exported threshold compares exactly

BINS_A_FEATURE = 256  # stride of one feature in a histogram; a bin is one byte
MOST_ROWS = 2**30  # with more, the mean |gradient| would be less than one step of a packed sum
BLOCK_WIDTH = 16  # features that share a block: 16 histograms of 2 KiB stay in a 32 KiB L1 cache
# Python before 3.13 has no name for the flag; these architectures use the generic number
NO_RESERVE: int = getattr(
    mmap,
    "MAP_NORESERVE",
    0x4000 if sys.platform == "linux" and platform.machine() in {"x86_64", "aarch64", "riscv64"} else 0,
)
_LINE_BYTES = 128  # two lines: the processor fetches them in pairs
_BATCH_ROWS = 65_536  # rows that are reassembled at a time

Put = Callable[[int, int, npt.NDArray[np.uint8]], object]


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an uninitialised array whose first cell begins a cache line.

    Workers that write neighbouring ranges then share no line: one line shared by two cores made counting up to
    twice as slow (measured), by chance of where the allocator put the array.

    >>> aligned_empty((3, 2), np.int64).ctypes.data % 128
    0
    """
    size = prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + _LINE_BYTES, dtype=np.uint8)
    start = -memory.ctypes.data % _LINE_BYTES
    return memory[start : start + size].view(dtype).reshape(shape)


@dataclass(frozen=True, slots=True)
class BlockedBins:
    """Bins as ``[block][row][feature]``, read eight at a time.

    Parameters
    ----------
    words
        Shape (n_blocks, n_rows, width / 8), uint64; the first feature of a word is its lowest byte.
    n_bins
        Bins of each feature, the missing one included, shape (n_blocks * width,) int32; 1 for the columns that pad
        the last block.
    n_features
        Features without padding.
    """

    words: npt.NDArray[np.uint64]
    n_bins: npt.NDArray[np.int32]
    n_features: int

    @property
    def n_rows(self) -> int:
        """Rows of the matrix."""
        return int(self.words.shape[1])

    @property
    def width(self) -> int:
        """Features that share a block."""
        return int(self.words.shape[2]) * 8

    @property
    def used_words(self) -> npt.NDArray[np.int64]:
        """Words of a row that hold features, by block, shape (n_blocks,)."""
        of_block = np.minimum(self.width, self.n_features - np.arange(len(self.words)) * self.width)
        return -(-of_block // 8)

    @classmethod
    def from_batches(
        cls,
        batches: Iterable[npt.NDArray[np.uint8]],
        n_rows: int,
        n_bins: npt.NDArray[np.int32],
        width: int = BLOCK_WIDTH,
        own: tuple[int, int] | None = None,
    ) -> BlockedBins:
        """Fill the blocks from row-major ``batches`` (m, n_features) uint8 that hold ``n_rows`` rows together.

        ``n_bins`` (n_features,) counts each feature's bins, the missing one included.  ``own``: the batches hold only these rows,
        first .. last; the others take no memory.

        Raises
        ------
        InvalidParameter
            ``width`` is not a multiple of 8.
        TrainingDataRejected
            There are more rows than ``MOST_ROWS``, or the batches hold another number of rows or features, or a bin at or above ``n_bins``.
        """
        bins = _zeros(blocks_shape(len(n_bins), n_rows, width))
        before, last = own or (0, n_rows)

        def put(block: int, first: int, columns: npt.NDArray[np.uint8]) -> None:
            bins[block, before + first : before + first + len(columns), : columns.shape[1]] = columns

        fill_blocks(batches, last - before, n_bins, width, put)
        return cls(words=bins.view(WORD), n_bins=padded(n_bins, width), n_features=len(n_bins))

    def of_rows(self, rows: npt.NDArray[np.int64]) -> BlockedBins:
        """Return a copy with only these rows."""
        return BlockedBins(np.take(self.words, rows, axis=1), self.n_bins, self.n_features)

    def with_columns(self, columns: Sequence[npt.NDArray[np.uint8]]) -> BlockedBins:
        """Return a copy in which the features are followed by ``columns`` (n_rows,) of bins, of up to 256 each."""
        n_features = self.n_features + len(columns)
        words = np.zeros((-(-n_features // self.width), *self.words.shape[1:]), dtype=WORD)
        words[: len(self.words)] = self.words
        bins = words.view(BIN)
        for f, column in enumerate(columns, start=self.n_features):
            bins[f // self.width, :, f % self.width] = column
        counts = [*self.n_bins[: self.n_features].tolist(), *(int(column.max(initial=0)) + 1 for column in columns)]
        return BlockedBins(words, padded(np.array(counts, dtype=np.int32), self.width), n_features)

    def batches(self, rows: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield these rows as row-major batches (m, n_features)."""
        for first in range(0, len(rows), _BATCH_ROWS):
            words = self.words[:, rows[first : first + _BATCH_ROWS]]
            bins = words.view(BIN).transpose(1, 0, 2).reshape(words.shape[1], -1)
            yield np.ascontiguousarray(bins[:, : self.n_features])


def _zeros(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Return zeros that take memory only where they are written, and of which there may be more than memory."""
    pages = mmap.mmap(-1, max(1, prod(shape)), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    return np.frombuffer(pages, dtype=BIN, count=prod(shape)).reshape(shape)


def blocks_shape(n_features: int, n_rows: int, width: int) -> tuple[int, int, int]:
    """Return the shape of the blocks in bytes, (n_blocks, n_rows, width); errors as :meth:`BlockedBins.from_batches`."""
    if width < 8 or width % 8:
        raise InvalidParameter(f"the block width must be a multiple of 8, got {width}")
    if n_rows > MOST_ROWS:
        raise TrainingDataRejected(f"{n_rows:,} rows are too many; the maximum of a training is {MOST_ROWS:,}")
    return -(-n_features // width), n_rows, width


def padded(n_bins: npt.NDArray[np.int32], width: int) -> npt.NDArray[np.int32]:
    """Return ``n_bins`` with a 1 for each column that pads the last block, shape (n_blocks * width,)."""
    filled = np.ones(-(-len(n_bins) // width) * width, dtype=np.int32)
    filled[: len(n_bins)] = n_bins
    return filled


def fill_blocks(
    batches: Iterable[npt.NDArray[np.uint8]], n_rows: int, n_bins: npt.NDArray[np.int32], width: int, put: Put
) -> None:
    """Check row-major ``batches`` and pass them on cut into blocks, a block's rows in ascending order.

    ``put(block, first, columns)`` takes ``columns`` (m, width or fewer in the last block) of the rows from ``first``.
    Errors as :meth:`BlockedBins.from_batches`.
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
        for block, left in enumerate(range(0, n_features, width)):
            put(block, filled, batch[:, left : left + width])
        filled += len(batch)
    if filled != n_rows:
        raise TrainingDataRejected(f"expected the bins of {n_rows} rows, found {filled}")
