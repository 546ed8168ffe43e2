"""Order the documents of each query before scoring: by tie-breaker and by grade."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InputError
from rankmill.foundation.kernels.randoms import random_bits_of
from rankmill.scorer.metrics.metric_options import Policy

Grades = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]
IntegerT = TypeVar("IntegerT", np.int32, np.int64)

_KEY_BITS = 63  # of a nonnegative int64


def tie_order(
    policy: Policy, grades: Grades, starts: Offsets, doc_order: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.int64]:
    """Return the rows of each query in the order for equal scores; the later sort by score is stable.

    ``grades`` (n,), ``starts`` (q + 1,), ``doc_order`` (n,) ascending with the document id, or None; returns (n,).
    With ``expected`` the order is by grade, so that sums inside a tie group do not depend on the order of rows.

    Raises
    ------
    InputError
        Ties by document id without ``doc_order``.
    ValueError
        ``doc_order`` has another shape.
    """
    query_of_row = queries_of(starts)
    if policy.ties == "row_order":
        return np.arange(grades.shape[0], dtype=np.int64)
    if policy.ties in {"expected", "optimistic"}:
        return rows_by(-grades, starts)
    if policy.ties == "pessimistic":
        return rows_by(grades, starts)
    if doc_order is None:
        if policy.ties != "random":
            raise InputError(f"ties {policy.ties} needs document ids; where there are none, choose ties expected")
        order = np.arange(grades.shape[0], dtype=np.int64)
    else:
        order = whole_numbers("doc_order", doc_order, np.int64)
        if order.shape != grades.shape:
            raise ValueError(f"doc_order {order.shape} and grades {grades.shape} must be equal")
    if policy.ties != "random":
        return np.lexsort((-order if policy.ties == "doc_id_descending" else order, query_of_row))
    by_id = np.lexsort((order, query_of_row))
    place = np.arange(grades.shape[0], dtype=np.int64) - starts[query_of_row]
    return by_id[np.lexsort((place, _shuffle_keys(policy.ties_seed, query_of_row, place), query_of_row))]


def rows_by(values: Grades, starts: Offsets) -> npt.NDArray[np.int64]:
    """Return the rows (n,) of each query by ascending ``values`` (n,) int32; equal ones keep their order.

    If they fit into 63 bits, query, value and position are packed into one number: sorting numbers is several times
    faster than sorting by two keys.
    """
    query_of_row = queries_of(starts)
    if values.shape[0] == 0:
        return np.empty(0, dtype=np.int64)
    least = int(values.min())
    value_bits = (int(values.max()) - least).bit_length()
    place_bits = int(np.diff(starts).max()).bit_length()
    if starts.shape[0].bit_length() + value_bits + place_bits > _KEY_BITS:
        return np.lexsort((values, query_of_row))
    first = starts[query_of_row]
    keys = (query_of_row << value_bits) + (values.astype(np.int64) - least)
    keys = (keys << place_bits) + (np.arange(values.shape[0]) - first)
    keys.sort()
    keys &= (1 << place_bits) - 1
    keys += first
    return keys


def queries_of(starts: Offsets) -> npt.NDArray[np.int64]:
    """Return the number of the query of each row, (n,), for offsets ``starts`` (q + 1,)."""
    return np.repeat(np.arange(starts.shape[0] - 1), np.diff(starts))


def queries_that_differ(grades: Grades, starts: Offsets) -> npt.NDArray[np.bool_]:
    """Return (q,) whether a query has two documents of different ``grades`` (n,); only then does their order matter.

    `PreparedQueries.can_differ` is the same for a metric, which may take different grades for equal ones.

    >>> queries_that_differ(np.array([2, 2, 0, 1, 3], np.int32), np.array([0, 2, 4, 4, 5])).tolist()
    [False, True, False, False]
    """
    changes = np.concatenate([np.zeros(1, np.int64), np.cumsum(grades[1:] != grades[:-1], dtype=np.int64)])
    filled = np.flatnonzero(np.diff(starts) > 0)
    found = np.zeros(starts.shape[0] - 1, dtype=np.bool_)
    found[filled] = changes[starts[filled]] < changes[starts[filled + 1] - 1]
    return found


def grade_levels(grades: Grades, starts: Offsets) -> npt.NDArray[np.int64]:
    """Return the level of each row's grade (n,).

    It is 0 for the best grade of its query, 1 for the second best, and so on.
    """
    query_of_row = queries_of(starts)
    by_grade = np.lexsort((-grades, query_of_row))
    ordered = grades[by_grade]
    steps = np.zeros(grades.shape[0], dtype=np.int64)
    steps[1:] = (ordered[1:] != ordered[:-1]) | (query_of_row[1:] != query_of_row[:-1])
    counted = np.cumsum(steps)
    levels = np.empty_like(counted)
    levels[by_grade] = counted - counted[starts[query_of_row]]
    return levels


def count_pairs(levels: npt.NDArray[np.int64], starts: Offsets) -> npt.NDArray[np.int64]:
    """Count the pairs of different grades of each query, (q,), from its `grade_levels` (n,)."""
    width = int(levels.max(initial=0)) + 1
    groups, together = np.unique(queries_of(starts) * width + levels, return_counts=True)
    sizes = np.diff(starts)
    alike = np.zeros(sizes.shape[0], dtype=np.int64)
    np.add.at(alike, groups // width, together * (together - 1) // 2)
    pairs: npt.NDArray[np.int64] = sizes * (sizes - 1) // 2 - alike
    return pairs


def whole_numbers(name: str, values: npt.ArrayLike, dtype: type[IntegerT]) -> npt.NDArray[IntegerT]:
    """Return ``values`` as one row of ``dtype``; ValueError if they are not whole numbers."""
    array = np.ascontiguousarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"{name} must be one row of integers, got shape {array.shape} of {array.dtype}")
    return array.astype(dtype, copy=False)


def offsets(name: str, values: Offsets, n: int) -> Offsets:
    """Return ``values`` as offsets of ``n`` rows; ValueError if they do not ascend from 0 to n."""
    starts = whole_numbers(name, values, np.int64)
    if starts.shape[0] < 1 or starts[0] != 0 or starts[-1] != n or np.any(np.diff(starts) < 0):
        raise ValueError(f"{name} must ascend from 0 to the number of rows, {n}")
    return starts


def _shuffle_keys(seed: int, query: npt.NDArray[np.int64], place: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return a pseudo-random key per document (three rounds of splitmix64); sorting by it shuffles."""
    one = np.uint64(1)
    key = random_bits_of(np.full(query.shape, seed, dtype=np.uint64), one)
    key = random_bits_of(key ^ query.astype(np.uint64), one)
    return random_bits_of(key ^ place.astype(np.uint64), one)
