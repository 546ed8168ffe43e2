"""Integer histograms: gradients and hessians packed into one integer, and the pool of histograms.

They are counted in `_histogram_kernels`, and added up between the machines of a cluster by `Grower`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import frexp
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankmill.pipeline.bins.layout import BINS_A_FEATURE
from rankmill.trainer import _kernels
from rankmill.trainer.data.layout import PACKED, aligned_empty
from rankmill.trainer.data.shard import Span
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.team import Team

DEFAULT_POOL_BYTES = 512 * 2**20
FEWEST_SLOTS = 3  # a node, its smaller child, and one waiting node
HISTOGRAM_BITS = 31  # |sum| of a histogram cell stays below 2 ** 31: one half of a packed word
_LEAF_BITS = 62  # |sum| of a leaf stays below 2 ** 62
_BLOCK = 4096  # rows per partial sum: fixed, so that the scale does not depend on threads


class PackingScale(NamedTuple):
    """Steps per unit, powers of two: ``packed = round(g * gradient)`` and ``round(h * hessian)``."""

    gradient: float
    hessian: float


def scales_of(
    gradients: npt.NDArray[np.float64], hessians: npt.NDArray[np.float64], team: Team, span: Span | None = None
) -> tuple[PackingScale, PackingScale]:
    """Return the scales (of histograms, of leaf sums) for one round; g and h have shape (n_rows,), h >= 0.

    The scale is the largest power of two ``s`` with ``s * sum|g| + n/2 < 2 ** bits``, so that no partial sum of rounded
    values overflows.  Rounding changes a value by at most 1/2 step, so a sum over m rows is off by at most
    ``m / (2 s)``.  Gains that this can explain are checked with the scale of leaf sums.  With n rows the mean ``|g|``
    has about ``2 ** 31 / n`` steps: 256 at 8 million rows, 2 at a billion.  A second word would add precision for twice
    the work, but NDCG showed no loss down to 2 steps (docs/benchmarks/quality.md): rounding is to nearest, and errors
    cancel in sums.  Leaf sums keep 62 bits.
    """
    n = len(gradients)
    g, h = totals_of([gradients, hessians], team, span)
    return (
        PackingScale(_scale(g, n, HISTOGRAM_BITS), _scale(h, n, HISTOGRAM_BITS)),
        PackingScale(_scale(g, n, _LEAF_BITS), _scale(h, n, _LEAF_BITS)),
    )


def total_of(values: npt.NDArray[np.float64], team: Team, span: Span | None = None) -> float:
    """Return the sum of |values|: see :func:`totals_of`."""
    return totals_of([values], team, span)[0]


def totals_of(arrays: Sequence[npt.NDArray[np.float64]], team: Team, span: Span | None = None) -> list[float]:
    """Return the sum of |values| of each array.

    Sums over fixed blocks of rows are added in order: the same bits for any team.

    With a ``span`` only its part of the arrays (n_rows,) is read. Other processes send the rest: the sums of whole
    blocks, and the rows of blocks that belong to several processes.
    """
    n_rows = len(arrays[0])
    if n_rows <= _BLOCK and (span is None or span.peers is None):  # small data, where every call counts
        found = np.empty((len(arrays), 1), dtype=np.float64)
        for values, own in zip(arrays, found, strict=True):
            _kernels.absolute_sums(values, _BLOCK, 0, 1, own)
        return [float(total) for total in found[:, 0]]
    n_blocks = -(-n_rows // _BLOCK)
    sums = np.zeros((len(arrays), n_blocks), dtype=np.float64)
    first_row, last_row = (0, n_rows) if span is None else (span.first, span.last)
    first_whole = -(-first_row // _BLOCK)
    last_whole = max(first_whole, n_blocks if last_row == n_rows else last_row // _BLOCK)

    def share(first: int, last: int, _: int) -> None:
        for values, own in zip(arrays, sums, strict=True):
            _kernels.absolute_sums(values, _BLOCK, first_whole + first, first_whole + last, own)

    team.share(last_whole - first_whole, 4, share)
    if span is not None and span.peers is not None:
        before = slice(first_row, min(last_row, first_whole * _BLOCK))
        after = slice(min(last_row, last_whole * _BLOCK), last_row)
        facts = [np.array([first_whole, last_whole, first_row, before.stop - first_row], dtype=np.float64)]
        for values, own in zip(arrays, sums, strict=True):
            facts += [own[first_whole:last_whole], values[before], values[after]]
        _join_sums(span.peers.gather(np.concatenate(facts)), sums)
    totals = []
    for own in sums:
        total = 0.0
        for block_sum in own.tolist():
            total += block_sum
        totals.append(total)
    return totals


def _join_sums(parts: Sequence[npt.NDArray[np.float64]], sums: npt.NDArray[np.float64]) -> None:
    """Write the sums of all blocks, (n_arrays, n_blocks), from what every process has of each array.

    A part begins with the first and the last whole block, the first row, and the number of rows before these blocks.
    Then follow, for each array, the sums of the whole blocks and the values of the rows before and after them.
    """
    sums[:] = 0.0
    for part in parts:  # in the order of their rows
        first_whole, last_whole, first, n_before = map(int, part[:4])
        for own, values in zip(sums, np.split(part[4:], len(sums)), strict=True):
            n_whole = last_whole - first_whole
            before, after = values[n_whole : n_whole + n_before], values[n_whole + n_before :]
            if n_before:
                own[first // _BLOCK] = _kernels.add_absolute(own[first // _BLOCK], before)
            own[first_whole:last_whole] = values[:n_whole]
            if len(after):
                own[last_whole] = _kernels.add_absolute(own[last_whole], after)


def _scale(total: float, n_rows: int, bits: int) -> float:
    room = float(2**bits) - n_rows
    if total == 0.0 or room <= 0.0:
        return 1.0
    _, exponent = frexp(room / total)  # room / total = m * 2 ** exponent, m in [1/2, 1)
    return float(2.0 ** max(min(exponent - 1, 1000), -1000))


class HistogramPool:
    """``cells`` of shape (n_slots, n_features, 256) int64, for trees of ``parameters``.

    Fewer ``n_slots`` than nodes cost time, but do not change the result: the histogram of the waiting node with the
    lowest priority is evicted and counted again later.  Memory is used when a slot is first written.
    """

    def __init__(self, n_features: int, parameters: TrainParameters, most_bytes: int = DEFAULT_POOL_BYTES) -> None:
        self.n_slots = self.bytes_needed(n_features, parameters, most_bytes) // _bytes_of_one(n_features)
        self.cells: npt.NDArray[np.int64] = aligned_empty((self.n_slots, n_features, BINS_A_FEATURE), PACKED)

    @staticmethod
    def bytes_needed(n_features: int, parameters: TrainParameters, most_bytes: int = DEFAULT_POOL_BYTES) -> int:
        """Return the bytes of the pool: at most ``most_bytes``.

        Oblivious trees are an exception, as they search a whole level at once.
        """
        one = _bytes_of_one(n_features)
        if parameters.grow == "oblivious":
            return one * max(FEWEST_SLOTS, parameters.leaves // 2)
        return one * max(FEWEST_SLOTS, min(parameters.leaves, most_bytes // one))


def _bytes_of_one(n_features: int) -> int:
    return n_features * BINS_A_FEATURE * np.dtype(PACKED).itemsize
