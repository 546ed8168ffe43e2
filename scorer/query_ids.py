"""Query ids from Python: arrays, columns of frames and lists, whose ids stay what they are, or are refused.

Two ids that differ never become one: whole numbers do not pass through floats, and floats are ids only where
neighbouring whole numbers are different floats.
"""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected

_NARROW = {"float": "float32", "halffloat": "float16", "Float32": "float32", "Float16": "float16"}
_CURE = "give ids as whole numbers or text, as they were before anything made them floats"


def query_ids(given: Any, where: str = "") -> npt.NDArray[Any]:
    """Return the ids ``given``, an array, a column or a list: whole numbers, text, or other values that can be sorted.

    Whole numbers of any kind (floats and decimals too) become int64, uint64, or Python's integers where neither has
    room.

    Raises
    ------
    TrainingDataRejected
        An id is missing, infinite, empty or a boolean; a number is not whole, or a float is so large that it may stand
        for several whole numbers; ids are of several kinds; or ``given`` is no list of ids.  The message begins with
        ``where``.
    """
    found = _as_array(given, where)
    if np.ma.is_masked(given):
        _refuse(int(np.argmax(np.ma.getmaskarray(given).ravel())), "a masked value", where)
    if found.ndim != 1:
        return found  # the caller knows which shape it needs
    kind = found.dtype.kind
    if kind == "f":
        return _whole_floats(found, where)
    if kind == "O":
        return _of_objects(found, where)
    if kind in "mM":
        _check(~np.isnat(found), found, where)
    elif kind in "US":
        _check(np.char.str_len(found) > 0, found, where)
    elif kind not in "iu":
        kinds = {"b": "booleans", "V": "records"}
        raise TrainingDataRejected(
            f"{where}qid holds {kinds.get(kind, found.dtype)}; query ids are whole numbers or text"
        )
    return found


def _as_array(given: Any, where: str) -> npt.NDArray[Any]:
    """Return ``given`` without a change of any value: NumPy would make floats or text of lists of several kinds."""
    dtype = getattr(given, "dtype", None)
    if str(dtype) in {"Int128", "UInt128"}:  # of Polars, which NumPy lacks
        given, dtype = given.to_list(), None
    try:
        if dtype is None and isinstance(given, list | tuple):
            found = np.empty(len(given), dtype=object)
            found[:] = given
            return np.asarray(given) if any(isinstance(one, list | tuple | np.ndarray) for one in given) else found
        narrow = _NARROW.get(str(dtype).removesuffix("[pyarrow]"))
        found = np.asarray(given)
        return found if narrow is None or found.dtype == narrow else given.to_numpy(dtype=narrow, na_value=np.nan)
    except ValueError:  # NumPy's message is about inhomogeneous shapes
        raise TrainingDataRejected(f"{where}qid is ragged; give one id for each row") from None


def _whole_floats(ids: npt.NDArray[Any], where: str) -> npt.NDArray[np.int64]:
    """Return floats (n,) as whole numbers."""
    _check(~np.isnan(ids), ids, where)  # first: a column with nulls becomes floats only because of them
    with np.errstate(invalid="ignore"):
        good = (ids == np.floor(ids)) & (np.abs(ids) < _exact_below(ids.dtype))
    _check(good, ids, where)
    return ids.astype(np.int64)


def _exact_below(dtype: np.dtype[Any]) -> float:
    """Return the bound below which this type of floats represents every whole number: 2^53 for float64."""
    return float(2 ** min(np.finfo(dtype).nmant + 1, 53))


def _of_objects(ids: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
    """Return Python's objects (n,) as ids of one kind."""
    values = ids.tolist()
    kinds = {"number"} if {*map(type, values)} == {int} else set()
    for row, value in enumerate(() if kinds else values):
        kind, values[row] = _identity(row, value, where)
        kinds.add(kind)
    if len(kinds) > 1:
        names = sorted({type(value).__name__ for value in ids.tolist()})
        raise TrainingDataRejected(
            f"{where}qid must hold ids of one kind, numbers or text, found {' and '.join(names)}"
        )
    if kinds == {"number"}:
        for dtype in (np.int64, np.uint64):
            limits = np.iinfo(dtype)
            if limits.min <= min(values) and max(values) <= limits.max:
                return np.array(values, dtype=dtype)
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def _identity(row: int, value: Any, where: str) -> tuple[str, Any]:
    """Return the kind of an id, and the value that is compared."""
    if isinstance(value, bool | np.bool_):
        raise TrainingDataRejected(f"{where}row {row}: qid holds booleans; query ids are whole numbers or text")
    if isinstance(value, Integral):
        return "number", int(value)
    if isinstance(value, float | np.floating):
        limit = _exact_below(value.dtype) if isinstance(value, np.floating) else 2.0**53
        if not (math.isfinite(value) and value == math.floor(value) and -limit < value < limit):
            _refuse(row, value, where)
        return "number", int(value)
    if isinstance(value, Decimal):
        if not value.is_finite() or value != value.to_integral_value():
            _refuse(row, value, where)
        return "number", int(value)
    if _is_missing(value) or (isinstance(value, str | bytes) and not value):
        _refuse(row, value, where)
    if isinstance(value, str | bytes):
        return ("text", str.__str__(value)) if isinstance(value, str) else ("bytes", bytes(value))
    if isinstance(value, datetime.date):
        return "time", value
    return type(value).__name__, value


def _is_missing(value: object) -> bool:
    """Whether ``value`` is None, pandas.NA, NaT or their like."""
    try:
        return value is None or bool(value != value)  # noqa: PLR0124 - NaT is not itself
    except (TypeError, ValueError):  # pandas.NA has no truth value
        return True


def _check(good: npt.NDArray[np.bool_], ids: npt.NDArray[Any], where: str) -> None:
    if not good.all():
        row = int(np.argmin(good))
        _refuse(row, ids[row], where)


def _refuse(row: int, found: Any, where: str) -> None:
    """Raise the error of an id that is none."""
    number = isinstance(found, float | np.floating | Decimal) and not _is_missing(found)
    reason = ""
    if number and math.isfinite(found):
        reason = ", which is not whole" if found != math.floor(found) else ", a float that several whole numbers share"
        reason += f"; {_CURE}"
        if found != math.floor(found):
            reason += " (a step of a Pipeline that scales columns must leave out qid)"
    shown = "an empty one" if isinstance(found, str | bytes) and not found else str(found)
    raise TrainingDataRejected(f"{where}row {row}: expected a query id, found {shown}{reason}")
