"""Columns of numbers as users hold them, as NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected

NUMBERS = "biuf"  # kinds of NumPy's types that are numbers


def array(values: Any, name: str) -> npt.NDArray[Any]:
    """Return ``values`` as an array of whatever they are; TrainingDataRejected where rows are of several lengths."""
    try:
        return np.asarray(values)
    except ValueError:  # NumPy's own words speak of inhomogeneous shapes and sequences
        raise TrainingDataRejected(f"{name} is ragged; give rows that are all of one length") from None


def vector(values: Any, name: str) -> npt.NDArray[Any]:
    """Return numbers as NumPy holds them; pandas' own kinds, and lists with None, come as objects."""
    found = array(values, name)
    if found.dtype != object:
        return found
    try:
        return found.astype(np.float64)
    except (TypeError, ValueError):
        return found
