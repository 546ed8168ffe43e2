"""Convert values of users, including NumPy scalars, to plain Python values as stored in model files."""

from __future__ import annotations

from decimal import Decimal
from numbers import Integral, Real
from typing import Any

from rankmill.foundation.errors import InvalidParameter


def whole_number(name: str, value: Any) -> int:
    """Return ``value`` as an int: any kind of integer, or a float that is exactly whole, as searches draw them.

    >>> whole_number("max_leaves", 31.0)
    31

    Raises
    ------
    InvalidParameter
        It is a truth value, text, a fraction, or not a single number.
    """
    plain = _plain(value)
    if isinstance(plain, Integral) and not isinstance(plain, bool):
        return int(plain)
    if isinstance(plain, float) and plain.is_integer():
        return int(plain)
    raise InvalidParameter(f"{name} must be a whole number, got {_shown(value)}")


def real_number(name: str, value: Any) -> float:
    """Return ``value`` as a float, a float32 exactly; InvalidParameter if it is not a number."""
    plain = _plain(value)
    if isinstance(plain, Real | Decimal) and not isinstance(plain, bool):
        try:
            return float(plain) + 0.0  # -0.0 is 0.0, so that both are the same in the model file
        except (OverflowError, ValueError):
            pass
    raise InvalidParameter(f"{name} must be a number, got {_shown(value)}")


def truth(name: str, value: Any) -> bool:
    """Return ``value`` as a bool: true, false, 1 or 0; InvalidParameter for anything else."""
    plain = _plain(value)
    if isinstance(plain, bool | int) and plain in {0, 1}:
        return bool(plain)
    raise InvalidParameter(f"{name} must be true or false, got {_shown(value)}")


def text(name: str, value: Any) -> str:
    """Return ``value``, of ``str`` or a class derived from it, as a plain str; InvalidParameter if it is no text."""
    if isinstance(value, str):
        return str.__str__(value)
    raise InvalidParameter(f"{name} must be text, got {_shown(value)}")


def _plain(value: Any) -> Any:
    """Return the Python value of a NumPy scalar or 0-d array; other values unchanged."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def _shown(value: object) -> str:
    line = " ".join(repr(value).split())
    return line if len(line) <= 60 else f"{line[:57]}..."
