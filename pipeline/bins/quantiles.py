"""Compute the bin edges of a feature: exact quantiles, frequent values in bins of their own, float32 midpoints."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InputError
from rankmill.pipeline import _kernels
from rankmill.pipeline.options import MAX_BIN

EDGE = np.float32  # so that x <= edge compares exactly
_LARGEST = float(np.finfo(EDGE).max)

Values = npt.NDArray[np.float32]
Masses = npt.NDArray[np.int64]


def checked_max_bin(max_bin: int, least: int) -> int:
    """Return ``max_bin`` if it is ``least`` to 255; InputError if not."""
    if not least <= max_bin <= MAX_BIN:
        raise InputError(f"max_bin must be {least} to {MAX_BIN}, got {max_bin}")
    return max_bin


def sort_values(values: Values) -> tuple[Values, int]:
    """Sort ``values`` (n,) in place; return a view of the ascending values without NaN, and the number of NaN.

    -0.0 becomes 0.0, so that equal values have equal bytes.  Takes no extra memory.
    """
    values += EDGE(0)
    values.sort()  # NaN are last
    n_present = int(np.searchsorted(values, EDGE(np.nan)))
    return values[:n_present], len(values) - n_present


def cumulative_counts(present: Values) -> Masses:
    """Return the number of ``present`` values (n,) before each distinct one, followed by n.

    ``present`` ascends; the result has shape (distinct + 1,).
    """
    begins = np.ones(len(present) + 1, dtype=np.bool_)
    np.not_equal(present[1:], present[:-1], out=begins[1:-1])
    return np.flatnonzero(begins)


def bin_ends(cumulative: Masses, max_bin: int) -> Masses:
    """Return the end of each bin as an index into the distinct values, exclusive.

    ``cumulative`` (distinct + 1,) are the numbers of rows before each distinct value, and the total.
    """
    distinct = len(cumulative) - 1
    if distinct <= max_bin:
        return np.arange(1, distinct + 1, dtype=np.int64)
    low, high = 1, int(cumulative[-1])
    while low < high:  # binary search for the minimum capacity with at most max_bin bins
        middle = (low + high) // 2
        if _kernels.count_bins(cumulative, middle, max_bin) <= max_bin:
            high = middle
        else:
            low = middle + 1
    capacity = low
    ends = np.empty(max_bin, dtype=np.int64)
    used = int(_kernels.fill_bins(cumulative, capacity, ends))
    runs = _runs(cumulative, ends[:used], capacity)
    _distribute(runs, cumulative, max_bin - used)
    parts = []
    for start, stop, bins in runs:
        part = np.empty(bins, dtype=np.int64)
        _kernels.split_run(cumulative, start, stop, capacity, np.empty_like(part), part)
        parts.append(part)
    return np.concatenate(parts)


def _runs(cumulative: Masses, ends: Masses, capacity: int) -> list[list[int]]:
    """Return [start, stop, bins] of every value heavier than ``capacity`` and of every run of values between them."""
    heavy = np.empty(len(ends), dtype=np.int64)  # each has its own bin
    heavy = heavy[: _kernels.heavier(cumulative, capacity, heavy)]
    borders = np.unique(np.concatenate(([0], heavy, heavy + 1, [len(cumulative) - 1])))
    # no bin crosses a heavy value, so every border is the end of a bin
    bins = np.diff(np.searchsorted(ends, borders, side="right"))
    return [[int(a), int(b), int(k)] for a, b, k in zip(borders[:-1], borders[1:], bins, strict=True)]


def _distribute(runs: list[list[int]], cumulative: Masses, spare: int) -> None:
    """Give each remaining bin to the run with the heaviest bins that still has values to divide."""
    mass = [int(cumulative[stop] - cumulative[start]) for start, stop, _ in runs]
    waiting = [(-mass[i] / run[2], i) for i, run in enumerate(runs) if run[2] < run[1] - run[0]]
    heapq.heapify(waiting)
    for _ in range(spare):
        if not waiting:
            return
        _, i = heapq.heappop(waiting)
        start, stop, bins = runs[i]
        runs[i][2] = bins + 1
        if bins + 1 < stop - start:
            heapq.heappush(waiting, (-mass[i] / (bins + 1), i))


def edges_of_sorted(present: Values, cumulative: Masses, ends: Masses) -> Values:
    """Return the edges at the ``ends`` of bins of the ascending values ``present`` (n,) with counts ``cumulative``."""
    behind = cumulative[ends[:-1]]  # the first row of the next bin
    return edges_between(present[behind - 1], present[behind])


def edges_between(low: Values, high: Values) -> Values:
    """Return the float32 midpoints of neighbours ``low < high``: ``low <= edge < high``, finite where possible."""
    below, above = low.astype(np.float64), high.astype(np.float64)
    with np.errstate(invalid="ignore"):  # -inf and +inf as neighbours: the edge is 0
        middle = np.nan_to_num((below + above) / 2.0, nan=0.0, posinf=_LARGEST, neginf=-_LARGEST)
    edges = middle.astype(EDGE) + EDGE(0)
    return np.where((edges >= high) | (edges < low), low, edges)
