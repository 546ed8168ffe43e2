"""Convert NumPy, Polars, Arrow and pandas input to NumPy arrays of features, queries and vectors."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.foundation.scalars import whole_number
from rankmill.pipeline.sources.batch import shorten
from rankmill.pipeline.sources.column_roles import HABITS

NUMBERS = "biuf"  # NumPy's kinds of numeric types


def array(values: Any, name: str) -> npt.NDArray[Any]:
    """Return ``values`` as an array of any type; TrainingDataRejected if rows have different lengths."""
    try:
        return np.asarray(values)
    except ValueError:  # NumPy's message is about inhomogeneous shapes
        raise TrainingDataRejected(f"{name} is ragged; give rows of equal length") from None


def vector(values: Any, name: str) -> npt.NDArray[Any]:
    """Return numbers as a NumPy array; pandas' extension types and lists with None become objects."""
    found = array(values, name)
    if found.dtype != object:
        return found
    try:
        return found.astype(np.float64)
    except (TypeError, ValueError):
        return found


Matrix = npt.NDArray[np.float32]

_QUERIES = "qid"
_CURE = "leave out such columns, or convert them to numbers"


def names_of(frame: object) -> tuple[str, ...] | None:
    """Return the column names of a frame or an Arrow table; None for an array, and for a pandas frame with numbered columns.

    Raises
    ------
    TrainingDataRejected
        It is a lazy frame, which has no rows.
    """
    if _library(frame) == "polars" and hasattr(frame, "collect"):
        raise TrainingDataRejected("X is a lazy frame; give X.collect()")
    if _library(frame) == "pyarrow":
        found = getattr(getattr(frame, "schema", None), "names", None)
    else:
        found = getattr(frame, "columns", None)
    if found is None or (len(found) and list(found) == list(range(len(found)))):
        return None
    return tuple(str(name) for name in found)


def _are_numbered(names: tuple[str, ...]) -> bool:
    """Whether ``names`` are just numbers of columns: from f0 (arrays), f1 (LETOR text) or 0."""
    n = len(names)
    return names in {made_up_names(n), made_up_names(n + 1)[1:], tuple(map(str, range(n)))}


def made_up_names(n: int) -> tuple[str, ...]:
    """Return names for ``n`` unnamed columns."""
    return tuple(f"f{i}" for i in range(n))


def with_queries(values: Any, qid: Any, group: Any, where: str = "") -> tuple[tuple[str, ...] | None, Any]:
    """Return the names of the features in ``values`` (None if columns have no names), and the query of each row, if given.

    A column ``qid`` of a frame is not a feature but has the queries, so that scikit-learn's cross-validation, which selects
    rows of the frame, selects them too.

    Raises
    ------
    InvalidParameter
        There is such a column, and ``qid`` or ``group`` is given too.
    """
    names = names_of(values)
    if names is None or _QUERIES not in names:
        return names, qid
    if qid is not None or group is not None:
        given = "group" if qid is None else "qid"
        raise InvalidParameter(
            f"{where}found query ids twice, in the column {_QUERIES!r} of X and in {given}=; drop the column, or leave out {given}="
        )
    column = values.column(_QUERIES) if _library(values) == "pyarrow" else values[_QUERIES]
    return tuple(name for name in names if name != _QUERIES), column


def check_same_rows(given: Mapping[str, Any], where: str = "") -> None:
    """Raise TrainingDataRejected if two of the pandas objects ``given`` have the same length but different indexes.

    Rows are matched by position, so different indexes suggest that they do not belong together.
    """
    indexed = {name: v.index for name, v in given.items() if _library(v) == "pandas" and hasattr(v, "index")}
    for name, index in indexed.items():
        first = next(iter(indexed))
        if len(index) == len(indexed[first]) and not index.equals(indexed[first]):
            raise TrainingDataRejected(
                f"{where}{first} and {name} have different pandas indexes, but rows are matched by position; give "
                f"{name}.loc[{first}.index] to match by index, or {name}.to_numpy() to match by position"
            )


def matrix_of(values: Any, names: tuple[str, ...] | None = None) -> Matrix:
    """Return (n, n_features) float32, row-major; NaN if a value is missing.

    Parameters
    ----------
    values
        Numbers or booleans: an array, a list of rows, a frame, an Arrow table or record batch.
    names
        The expected features; columns of a frame are found by name, an array must have the same number.

    Raises
    ------
    TrainingDataRejected
        Columns are missing or not numeric, or the shape is wrong.

    Warns
    -----
    UserWarning
        The columns have no names, but the expected features do.
    """
    own = names_of(values)
    if own is not None:
        repeated = next((name for i, name in enumerate(own) if name in own[:i]), None)
        if repeated is not None:
            raise TrainingDataRejected(f"X has two columns {repeated!r}; give every feature a unique name")
        return _from_frame(values, own, own if names is None else names)
    if _library(values) == "pandas" and hasattr(values, "columns"):
        counted = tuple(str(i) for i in range(values.shape[1]))
        matrix = _from_frame(values, counted, counted)
    else:
        matrix = _numbers(values)
    if matrix.ndim != 2 or matrix.shape[1] == 0:
        raise TrainingDataRejected(f"X must have shape (n, n_features) with at least one feature, got {matrix.shape}")
    if names is not None and matrix.shape[1] != len(names):
        raise TrainingDataRejected(f"X has {matrix.shape[1]} features, the ranker was fitted on {len(names)}")
    if names is not None and not _are_numbered(names):
        shown = ", ".join(names[:4]) + (", .." if len(names) > 4 else "")
        warnings.warn(
            f"X has no column names; its {len(names)} columns are used as the features of the ranker, in order: {shown}",
            UserWarning,
            stacklevel=3,
        )
    return np.ascontiguousarray(matrix)


def queries_of(qid: Any, group: Any, n_rows: int, where: str = "") -> npt.NDArray[Any]:
    """Return the query of each row (n_rows,), from ids or from sizes of groups.

    Raises
    ------
    InvalidParameter
        Both or neither are given; the message begins with ``where``.
    TrainingDataRejected
        An id is missing, or the sizes do not add up to the number of rows.
    """
    if (qid is None) == (group is None):
        cure = (
            "; in scikit-learn's searches give them as a column 'qid' of a frame X, or by metadata routing"
            if where
            else ""
        )
        raise InvalidParameter(
            f"{where}needs either qid, the query of each row, or group, the sizes of the queries{cure}"
        )
    if qid is None:
        sizes = array(group, f"{where}group")
        if sizes.ndim != 1 or sizes.dtype.kind not in ("iu" if sizes.size else "iuf") or np.any(sizes < 0):
            raise TrainingDataRejected(f"{where}group must hold the sizes of the queries, whole numbers of 0 or more")
        if sizes.sum() != n_rows:
            raise TrainingDataRejected(
                f"{where}group must hold the sizes of the queries: they sum to {sizes.sum()} for {n_rows} rows"
                " (query ids go to qid)"
            )
        return np.repeat(np.arange(len(sizes)), sizes.astype(np.int64))
    ids = array(qid, f"{where}qid")
    if ids.dtype.kind in "fO":
        for row, of_row in enumerate(ids.ravel().tolist()):
            if _is_missing(of_row):
                raise TrainingDataRejected(f"{where}row {row}: expected a query id, found {of_row}")
    return ids


def directions_by_name(monotone: Any, names: Sequence[str]) -> dict[str, int]:
    """Return directions by feature name; they may be given by name, by column number, or as a list for all columns.

    >>> directions_by_name({1: -1}, ["a", "b"]), directions_by_name([1, 0], ["a", "b"])
    ({'b': -1}, {'a': 1, 'b': 0})

    Raises
    ------
    InvalidParameter
        A column is unknown, the list has the wrong length, or a direction is not a whole number.
    """
    if monotone is None:
        return {}
    if isinstance(monotone, Mapping):
        given = [(key if isinstance(key, str) else _name_of_column(key, names), way) for key, way in monotone.items()]
    else:
        ways = _items(monotone)
        if len(ways) != len(names):
            raise InvalidParameter(f"monotone has {len(ways)} directions for {len(names)} features")
        given = list(zip(names, ways, strict=True))
    found: dict[str, int] = {}
    for name, direction in given:
        if name in found:
            raise InvalidParameter(f"monotone: the feature {name!r} is given twice")
        found[name] = whole_number(f"monotone[{name!r}]", direction)
    return found


def _items(monotone: Any) -> list[Any]:
    try:
        if not isinstance(monotone, str):  # a string is a sequence too
            return list(monotone)
    except TypeError:
        pass
    raise InvalidParameter(
        f"monotone must be a mapping such as {{'bm25': 1}}, or a number for every column, got {monotone!r}"
    )


def _name_of_column(key: object, names: Sequence[str]) -> str:
    column = whole_number("monotone: a column", key)
    if not 0 <= column < len(names):
        raise InvalidParameter(f"monotone: there is no column {column}, only 0 .. {len(names) - 1}")
    return names[column]


def _is_missing(of_row: object) -> bool:
    try:
        return of_row is None or bool(of_row != of_row)  # noqa: PLR0124 - NaN and its like are not themselves
    except (TypeError, ValueError):  # pandas.NA has no truth value
        return True


def _library(values: object) -> str:
    return type(values).__module__.partition(".")[0]


def _from_frame(frame: Any, own: tuple[str, ...], names: tuple[str, ...]) -> Matrix:
    lacking = [name for name in names if name not in own]
    if lacking and names == made_up_names(len(names)):
        raise TrainingDataRejected(
            f"X is a frame without the column {lacking[0]!r}, and the ranker was fitted on columns without names; give "
            "X.to_numpy(), columns in the order of fit, or fit on a frame"
        )
    if lacking:
        raise TrainingDataRejected(f"X has no column {lacking[0]!r}, a feature that the ranker was fitted on")
    if not names:
        raise TrainingDataRejected("X must have shape (n, n_features) with at least one feature, got no columns")
    out = np.empty((len(frame), len(names)), dtype=np.float32)
    library, place = _library(frame), {name: i for i, name in enumerate(own)}
    for i, name in enumerate(names):
        if library == "polars":
            out[:, i] = _arrow_column(name, frame.to_series(place[name]).to_arrow())
        elif library == "pyarrow":
            out[:, i] = _arrow_column(name, frame.column(place[name]))
        else:
            out[:, i] = _pandas_column(name, frame.iloc[:, place[name]])
    return out


def _arrow_column(name: str, column: Any) -> Matrix:
    kind, known = column.type, pa.types
    number = (known.is_integer, known.is_floating, known.is_boolean, known.is_decimal, known.is_null)
    if not any(is_of(kind) for is_of in number):  # dictionary types, text, times
        raise TrainingDataRejected(_no_numbers(name, str(kind), column.to_pylist()))
    through = column.cast(pa.float64(), safe=False) if known.is_decimal(kind) else column
    chunks = through.cast(pa.float32(), safe=False)
    whole = chunks.combine_chunks() if isinstance(chunks, pa.ChunkedArray) else chunks
    found: Matrix = whole.to_numpy(zero_copy_only=False)
    return found


def _no_numbers(name: str, kind: str, values: Iterable[object], convert: str = "a cast") -> str:
    """Say that the column ``name`` of type ``kind`` holds no numbers, with the first of its ``values`` that is none."""
    if name in HABITS["qid"]:
        return f"column {name!r} holds {kind}; if it is the query, give qid=X[{name!r}] and leave it out of X"
    odd = next(
        ((row, value) for row, value in enumerate(values) if isinstance(value, str) and not _is_number(value)), None
    )
    what = kind if odd is None else f"text, for example {shorten(odd[1])!r} in row {odd[0]}"
    return f"column {name!r} holds {what}; leave it out, or make it numbers, for example with {convert}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _pandas_column(name: str, column: Any) -> Matrix:
    kind = getattr(column.dtype, "kind", "O")
    if kind not in NUMBERS or str(column.dtype) == "category":
        raise TrainingDataRejected(_no_numbers(name, str(column.dtype), column, "pd.to_numeric(.., errors='coerce')"))
    with np.errstate(over="ignore"):
        found: Matrix = column.to_numpy(dtype=np.float32, na_value=np.nan)
    return found


def _numbers(values: Any) -> Matrix:
    if hasattr(values, "toarray"):
        raise TrainingDataRejected("X is a sparse matrix; give X.toarray(), a dense array")
    found = array(values, "X")
    if found.dtype.kind not in NUMBERS + "O":
        raise TrainingDataRejected(
            f"X holds {'text' if found.dtype.kind in 'SU' else 'values'} ({found.dtype}); {_CURE}"
        )
    try:
        with np.errstate(over="ignore"):  # values beyond float32 become infinite
            return found.astype(np.float32)
    except (TypeError, ValueError) as error:
        raise TrainingDataRejected(f"X holds a value that is not a number ({error}); {_CURE}") from None
