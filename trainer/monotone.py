"""Directions in which scores may move with a feature, as people write them and as the grower takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.scalars import whole_number


def parse_monotone(texts: Iterable[str]) -> dict[str, int]:
    """Read ``NAME:1`` (scores never fall with the feature) and ``NAME:-1`` (they never rise).

    >>> parse_monotone(["bm25:1", "age:days:-1"])
    {'bm25': 1, 'age:days': -1}

    Raises
    ------
    InvalidParameter
        A text is neither, or a feature comes twice.
    """
    found: dict[str, int] = {}
    for text in texts:
        name, _, direction = text.rpartition(":")
        if not name or direction.strip() not in {"1", "+1", "-1", "0"}:
            raise InvalidParameter(f"monotone: expected NAME:1 or NAME:-1, found {text!r}")
        if name in found:
            raise InvalidParameter(f"monotone: the feature {name!r} is given twice")
        found[name] = int(direction)
    return found


def without_zeros(monotone: Any) -> dict[str, int]:
    """Return the directions by feature name that say something, as plain numbers.

    >>> without_zeros({"bm25": 1, "age": 0})
    {'bm25': 1}

    Raises
    ------
    InvalidParameter
        It is no mapping from names to -1, 0 or 1.
    """
    if not isinstance(monotone, Mapping) or not all(isinstance(name, str) for name in monotone):
        raise InvalidParameter("monotone must hold a direction by feature name, such as {'bm25': 1}")
    found = {str(name): whole_number(f"monotone[{name!r}]", direction) for name, direction in monotone.items()}
    for name, direction in found.items():
        if direction not in {-1, 0, 1}:
            raise InvalidParameter(f"monotone[{name!r}] must be -1, 0 or 1, got {direction}")
    return {name: direction for name, direction in found.items() if direction}


def directions_of(monotone: Mapping[str, int], feature_names: Sequence[str]) -> npt.NDArray[np.int8]:
    """Return the direction of every feature, (n_features,): 1, -1 or 0; InvalidParameter for an unknown name."""
    directions = np.zeros(len(feature_names), dtype=np.int8)
    for name, direction in monotone.items():
        if name not in feature_names:
            near = get_close_matches(name, feature_names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidParameter(f"monotone: the data have no feature {name!r}{hint}")
        directions[list(feature_names).index(name)] = direction
    return directions
