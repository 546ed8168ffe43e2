"""Check and convert training rows in memory: features, grades, queries, weights, labels, events, offsets and pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InputError, InvalidParameter, TrainingDataRejected
from rankmill.pipeline.bins.spec import BinSpec, apply_bins
from rankmill.pipeline.dataset.goals import checked_goals
from rankmill.pipeline.group.query_splits import digest_of_rows
from rankmill.pipeline.pairs.stored_pairs import PreferencePairs
from rankmill.pipeline.read.grades import HIGHEST_LABEL_AS_GRADE
from rankmill.python.arrays import NUMBERS, Matrix, vector
from rankmill.python.spilled_values import SpilledValues
from rankmill.seen_queries import DigestedQueries
from rankmill.trainer.data.rows import COLUMNS, RankedRows
from rankmill.trainer.objectives.weights import check_weights

Floats = npt.NDArray[np.float64]


def _weights(found: Floats) -> Floats | None:
    """Return weights (n_rows,), None if all are equal, since only ratios matter; TrainingDataRejected below 0."""
    check_weights(found)  # before rows are reordered, so that the message has the user's row number
    return None if len(found) and found[0] > 0.0 and (found == found[0]).all() else found


def _labels(found: Floats) -> Floats:
    """Return labels (n_rows,); TrainingDataRejected if one is not finite."""
    check_finite("label", found)
    return found


def _events(found: Floats) -> npt.NDArray[np.uint8] | None:
    """Return 0 or 1 for each row, None if all are 1; TrainingDataRejected for other values."""
    bad = (found != 0.0) & (found != 1.0)
    if bad.any():
        row = int(np.argmax(bad))
        raise TrainingDataRejected(f"row {row}: expected an event, 1 (seen) or 0 (censored), found {found[row]}")
    return None if found.all() else found.astype(np.uint8)


def _offsets(found: Floats) -> Floats | None:
    """Return start values of scores (n_rows,), None if all are 0; TrainingDataRejected if one is not finite."""
    check_finite("offset", found)
    return found + 0.0 if found.any() else None


def _positions(found: Floats) -> npt.NDArray[np.int32]:
    """Return positions at which documents were shown (n_rows,); TrainingDataRejected unless whole numbers from 1 on."""
    bad = ~((found >= 1.0) & (found < 2.0**31) & (found == np.floor(found)))
    if bad.any():
        row = int(np.argmax(bad))
        raise TrainingDataRejected(f"row {row}: expected a position, a whole number from 1 on, found {found[row]:g}")
    return found.astype(np.int32)


_OF_ROWS: Mapping[str, tuple[str, Callable[[Floats], npt.NDArray[Any] | None]]] = {
    "label": ("label", _labels),
    "event": ("event", _events),
    "offset": ("offset", _offsets),
    "weight": ("sample_weight", _weights),
    "position": ("position", _positions),
}
"""The columns with a number for each row, by their names in datasets: the argument of ``fit``, and its check."""


def _grades_of_goals(given: Any, n_rows: int) -> dict[str, npt.NDArray[np.int32]]:
    """Return the grades of the goals (n_rows,) by name, sorted by it.

    Raises
    ------
    InvalidParameter
        They are no mapping, or a name is malformed.
    TrainingDataRejected
        The number of grades is wrong, or one is negative, fractional or not a number.
    """
    if not isinstance(given, Mapping):
        raise InvalidParameter(f"goals must be grades by name, {{'bought': ..}}, got {type(given).__name__}")
    try:
        names = checked_goals(given)
    except InputError as error:
        raise InvalidParameter(str(error)) from None
    found = {}
    for name in names:
        what = f"the goal {name!r}"
        column = vector(given[name], what)
        if column.shape != (n_rows,):
            raise TrainingDataRejected(
                f"{what} must have a grade for each of the {n_rows} rows, got shape {column.shape}"
            )
        found[name] = _grades(column, what)
    return found


def _query_weights(given: Any, queries: npt.NDArray[Any], number: npt.NDArray[np.int64]) -> Floats | None:
    """Return the ``given`` weight for each query in the order of ``number``; None if all are equal.

    Parameters
    ----------
    queries
        (n,) query of each row as given by the user.
    number
        (n,) index of the query of each row among the sorted queries.

    Raises
    ------
    TrainingDataRejected
        A query has no weight or two, or a weight is negative or not a number.
    """
    n_queries = int(number.max(initial=-1)) + 1
    first = np.full(n_queries, len(number), dtype=np.int64)
    np.minimum.at(first, number, np.arange(len(number)))
    if isinstance(given, Mapping):
        ids = queries[first].tolist()
        lacking = next((one for one in ids if one not in given), None)
        if lacking is not None:
            raise TrainingDataRejected(f"query_weight has no weight for the query {lacking!r}")
        given = [given[one] for one in ids]
        found = _numbers("query_weight", given, n_queries)
    elif np.shape(vector(given, "query_weight")) == (n_queries,) != (len(number),):
        found = np.empty(n_queries)
        found[np.argsort(first)] = _numbers("query_weight", given, n_queries)
    else:
        of_rows = _numbers("query_weight", given, len(number), f", or for each of the {n_queries} queries")
        found = of_rows[first]
        other = of_rows != found[number]
        if other.any():
            row = int(np.argmax(other))
            raise TrainingDataRejected(
                f"row {row}: its query has the weight {found[number[row]]} in another row, found {of_rows[row]};"
                " a query has one weight (use sample_weight for weights of documents)"
            )
    bad = ~(np.isfinite(found) & (found >= 0.0))
    if bad.any():
        worst = int(np.argmax(bad))
        raise TrainingDataRejected(
            f"query {queries[first[worst]]}: expected a weight of 0 or more, found {found[worst]}"
        )
    return None if found[0] > 0.0 and (found == found[0]).all() else found


def _preferences(
    columns: Mapping[str, Any],
    number: npt.NDArray[np.int64],
    order: npt.NDArray[np.intp],
    starts: npt.NDArray[np.int64],
) -> PreferencePairs | None:
    """Return the pairs for the trainer, sorted by query and row, or None.

    Parameters
    ----------
    number
        (n,) index of the query of each row among the sorted ones, rows in the user's order.
    order
        (n,) rows in the trainer's order.
    starts
        (n_queries + 1,) offsets of the queries in that order.

    Raises
    ------
    InvalidParameter
        Weights or probabilities without pairs.
    TrainingDataRejected
        A pair has an unknown row, the same row twice, or rows of two queries; a weight is negative, or a probability is
        outside [0, 1].
    """
    if columns.get("pairs") is None:
        if columns.get("pair_weight") is not None or columns.get("pair_probability") is not None:
            raise InvalidParameter("pair_weight and pair_probability need pairs; give pairs too")
        return None
    n_rows, pairs = len(number), vector(columns["pairs"], "pairs")
    if pairs.size == 0:
        pairs = pairs.reshape(0, 2)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or (pairs.size and pairs.dtype.kind not in NUMBERS):
        raise TrainingDataRejected(
            f"pairs must have shape (p, 2), row numbers better and worse, got {pairs.dtype} of {pairs.shape}"
        )
    with np.errstate(invalid="ignore"):
        rows = pairs.astype(np.int64)
    bad = (rows != pairs).any(axis=1) | (rows < 0).any(axis=1) | (rows >= n_rows).any(axis=1)
    _no_pair(bad, pairs, f"expected two rows, 0 .. {n_rows - 1}")
    _no_pair(rows[:, 0] == rows[:, 1], pairs, "expected two rows, found one twice")
    _no_pair(number[rows[:, 0]] != number[rows[:, 1]], pairs, "expected two rows of one query")
    weight, probability = (
        np.ones(len(rows)) if columns.get(name) is None else _numbers(name, columns[name], len(rows), what="pairs")
        for name in ("pair_weight", "pair_probability")
    )
    _no_pair(~(np.isfinite(weight) & (weight >= 0.0)), pairs, "expected a weight of 0 or more")
    _no_pair(~((probability >= 0.0) & (probability <= 1.0)), pairs, "expected a probability in [0, 1]")
    place = np.empty(n_rows, dtype=np.int32)
    place[order] = np.arange(n_rows, dtype=np.int32)
    better, worse = place[rows[:, 0]], place[rows[:, 1]]
    by = np.lexsort((probability, weight, worse, better))
    return PreferencePairs(
        better=better[by],
        worse=worse[by],
        weight=weight[by],
        probability=probability[by],
        starts=np.searchsorted(better[by], starts).astype(np.int64),
    )


def check_finite(name: str, values: Floats) -> None:
    """Raise TrainingDataRejected, naming the first row, unless all of ``values`` (n,) are finite."""
    bad = ~np.isfinite(values)
    if bad.any():
        row = int(np.argmax(bad))
        raise TrainingDataRejected(f"row {row}: expected a finite {name}, found {values[row]}")


def _numbers(name: str, given: Any, n: int, also: str = "", what: str = "rows") -> Floats:
    found = vector(given, name)
    if found.shape != (n,) or (n and found.dtype.kind not in NUMBERS):
        raise TrainingDataRejected(
            f"{name} must hold a number for each of the {n} {what}{also}, got {found.dtype} of shape {found.shape}"
        )
    numbers: Floats = found.astype(np.float64)
    return numbers


def _no_pair(bad: npt.NDArray[np.bool_], pairs: npt.NDArray[Any], expected: str) -> None:
    if bad.any():
        at = int(np.argmax(bad))
        raise TrainingDataRejected(f"pair {at}, rows {pairs[at, 0]} and {pairs[at, 1]}: {expected}")


@dataclass(frozen=True, slots=True)
class ArrayRows:
    """Rows in an order that depends only on their content, and their digest."""

    values: Matrix | SpilledValues  # (n, n_features)
    rows: RankedRows  # without bins
    digest: str
    queries: DigestedQueries

    def ranked(self, binspec: BinSpec, n_threads: int) -> RankedRows:
        """Return the rows for the trainer, with their bins."""
        values, categorical = (
            self.values,
            [(f, name) for f, name in enumerate(binspec.feature_names) if name in binspec.categories],
        )
        if isinstance(values, SpilledValues):
            codes = {name: values.column(f) for f, name in categorical}
            return replace(self.rows, bins=values.blocked(binspec, n_threads), codes=codes)
        codes = {name: values[:, f].copy() for f, name in categorical}
        return replace(self.rows, bins=[apply_bins(values, binspec, n_threads=n_threads)], codes=codes)


def rows_of(
    values: Matrix | SpilledValues,
    y: Any,
    queries: npt.NDArray[Any],
    columns: Mapping[str, Any] | None = None,
    *,
    regression: bool = False,
) -> ArrayRows:
    """Check the rows and group them by query.

    Parameters
    ----------
    values
        (n, n_features).
    y
        (n,) grades, whole numbers of 0 or more.
    queries
        (n,) query of each row.
    columns
        Optional ones by name as :class:`rankmill.python.given_rows.FitColumns`, unchecked.
    regression
        ``y`` may have any finite numbers.  If one is not a whole number from 0 to 31, all are labels; then no document
        is known to be relevant, and ranking metrics are undefined.

    Raises
    ------
    InvalidParameter
        Weights of pairs without pairs.
    TrainingDataRejected
        There are no rows, shapes do not match, a grade or one of the ``columns`` is invalid, or ids have different
        types.
    """
    columns = {name: column for name, column in (columns or {}).items() if column is not None}
    given = vector(y, "y")
    if given.ndim != 1 or queries.ndim != 1:
        raise TrainingDataRejected(f"y and qid must have shape (n,), got {given.shape} and {queries.shape}")
    n_rows = len(values)
    if not n_rows == len(given) == len(queries):
        raise TrainingDataRejected(f"X, y and qid have {n_rows}, {len(given)} and {len(queries)} rows")
    if not n_rows:
        raise TrainingDataRejected("X, y and qid have no rows; give at least one")
    checked = {
        role: check(_numbers(name, columns[name], n_rows))
        for role, (name, check) in _OF_ROWS.items()
        if name in columns
    }
    grades, labels = _grades_and_labels(given, checked.pop("label", None), regression=regression)
    ids, number = _query_numbers(queries)
    digest = values.digests(grades) if isinstance(values, SpilledValues) else digest_of_rows(values, grades)
    of_goals = _grades_of_goals(columns["goals"], n_rows) if "goals" in columns else {}
    goals = {f"goal {name}": column for name, column in of_goals.items()}
    known = {name: column for name, column in ({"label": labels} | checked | goals).items() if column is not None}
    order = np.lexsort([*known.values(), digest[:, 1], digest[:, 0], number])
    starts = np.concatenate(([0], np.cumsum(np.bincount(number)))).astype(np.int64)
    known = {name: column[order] for name, column in known.items()}
    weight = columns.get("query_weight")
    query_weights = None if weight is None else _query_weights(weight, queries, number)
    pairs = _preferences(columns, number, order, starts)
    named = [
        ("", (starts, digest[order], *((known["weight"],) if "weight" in known else ()))),
        *((column, (known[column],)) for column in ("label", "event", "offset", "position", *goals) if column in known),
    ]
    of_rows: dict[str, Any] = {field: known[column.name] for field, column in COLUMNS.items() if column.name in known}
    return ArrayRows(
        values=values[order],
        rows=RankedRows(
            grades=grades[order],
            starts=starts,
            bins=(),
            query_weights=query_weights,
            pairs=pairs,
            goals={name.removeprefix("goal "): known[name] for name in goals},
            **of_rows,
        ),
        digest=_digest(named, query_weights, pairs),
        queries=DigestedQueries.of(ids, starts, digest[order]),
    )


def _grades_and_labels(
    given: npt.NDArray[Any], labels: Floats | None, *, regression: bool
) -> tuple[npt.NDArray[np.int32], Floats | None]:
    """Return the grades in ``y`` and the labels; for regression, ``y`` are the labels if they are not grades."""
    if not regression or labels is not None or _are_grades(given):
        return _grades(given), labels
    labels = given.astype(np.float64)
    check_finite("label in y", labels)
    return np.zeros(len(given), dtype=np.int32), labels


def _are_grades(given: npt.NDArray[Any]) -> bool:
    """Whether all values can be grades; also true for values that are not numbers, which :func:`_grades` rejects."""
    if given.dtype.kind not in NUMBERS:
        return True
    with np.errstate(invalid="ignore"):
        whole = given.astype(np.int32)
    return bool(
        np.equal(whole, given).all() and whole.min(initial=0) >= 0 and whole.max(initial=0) <= HIGHEST_LABEL_AS_GRADE
    )


def _digest(
    named: Sequence[tuple[str, tuple[npt.NDArray[Any], ...]]],
    query_weights: Floats | None,
    pairs: PreferencePairs | None,
) -> str:
    """Return the SHA-256 of arrays, each kind under its name.

    Omitted arrays do not affect it, so that the digest stays the same when a new optional argument is added.
    """
    weights = [] if query_weights is None else [("query_weight", (query_weights,))]
    preferences = [] if pairs is None else [("pairs", (pairs.better, pairs.worse, pairs.weight, pairs.probability))]
    digest = hashlib.sha256()
    for name, arrays in [*named, *weights, *preferences]:
        digest.update(name.encode())
        for each in arrays:
            digest.update(np.ascontiguousarray(each).data.cast("B") if each.size else b"")
    return digest.hexdigest()


def _query_numbers(queries: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return the sorted queries, and (n,) the index of the query of each row among them."""
    try:
        return np.unique(queries, return_inverse=True)
    except (TypeError, ValueError):  # objects that cannot be compared
        kinds = sorted({type(query).__name__ for query in queries.tolist()})
        raise TrainingDataRejected(
            f"qid must hold ids of one kind, numbers or text, found {' and '.join(kinds)}"
        ) from None


def _grades(grades: npt.NDArray[Any], what: str = "y") -> npt.NDArray[np.int32]:
    if grades.dtype.kind not in NUMBERS:
        raise TrainingDataRejected(f"{what} holds {grades.dtype}; grades are whole numbers of 0 or more")
    with np.errstate(invalid="ignore"):  # NaN becomes an integer that is not equal to it
        whole = grades.astype(np.int32)
    if len(grades) and not (np.equal(whole, grades).all() and whole.min() >= 0):
        row = int(np.argmin(np.equal(whole, grades) & (whole >= 0)))
        of, cure = ("", "") if what == "y" else (f" of {what}", "; cut amounts into a few levels")
        raise TrainingDataRejected(
            f"row {row}: expected a grade{of}, a whole number of 0 or more, found {grades[row]}{cure}"
        )
    return whole
