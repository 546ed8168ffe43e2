"""Directions in which scores may move with a feature, as the grower takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter


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
