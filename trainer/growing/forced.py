"""The table of forced splits that the kernels read: features and bins instead of names and thresholds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter, name_hint
from rankmill.foundation.options import spelled
from rankmill.pipeline.categories import category_code
from rankmill.trainer.forced_splits import ForcedSplit, first_of_depths, listed
from rankmill.trainer.growing._state_kernels import FORCED_BELOW, FORCED_BIN, FORCED_FEATURE, FORCED_FIELDS, FORCED_SET
from rankmill.trainer.parameters import TrainParameters


def check_forced_splits(parameters: TrainParameters, names: Sequence[str]) -> list[int]:
    """Return the features of the forced splits, breadth first.

    Raises
    ------
    InvalidParameter
        A feature is unknown, features on a path may not occur together, or trees are too small for all splits.
    """
    option, splits = spelled("forced_splits"), listed(parameters.forced_splits)
    groups = [set(group) for group in parameters.interaction_constraints]
    features: list[int] = []
    for split in splits:
        features.append(_place_of(split.feature, names))
        path = {names[features[number]] for number in (*split.above, len(features) - 1)}
        if groups and len(path) > 1 and not any(path <= group for group in groups):
            together = " and ".join(map(repr, sorted(path)))
            raise InvalidParameter(
                f"{option}: by {spelled('interaction_constraints')} {together} may not occur together"
            )
    deepest = max((1 + len(split.above) for split in splits), default=0)
    if deepest > (parameters.depth or deepest):
        raise InvalidParameter(f"{option} have a depth of {deepest}, but {spelled('max_depth')} is {parameters.depth}")
    if parameters.grow != "oblivious" and len(splits) >= parameters.leaves:
        raise InvalidParameter(
            f"{option} give a tree {len(splits) + 1} leaves, but {spelled('max_leaves')} is {parameters.leaves}"
        )
    return features


def _place_of(feature: str | int, names: Sequence[str]) -> int:
    """Return the number of a feature."""
    if isinstance(feature, int):
        if feature < len(names):
            return feature
        raise InvalidParameter(
            f"{spelled('forced_splits')}: unknown feature {feature}; there are {len(names)}, numbered from 0"
        )
    if feature not in names:
        raise InvalidParameter(f"{spelled('forced_splits')}: unknown feature {feature!r}; {name_hint(feature, names)}")
    return list(names).index(feature)


def forced_table(
    parameters: TrainParameters,
    names: Sequence[str],
    edges: Sequence[npt.NDArray[np.float32]],
    categorical: npt.NDArray[np.bool_],
) -> npt.NDArray[np.int64]:
    """Return the forced splits as the kernels read them, (n_splits, FORCED_FIELDS) int64, the root first.

    ``edges`` are those of each feature, of a ``categorical`` one the codes of its categories.  A threshold between two edges
    means the upper one, as in LightGBM.  Of an oblivious tree, whose nodes of a depth share a split, there is one of each.

    Raises
    ------
    InvalidParameter
        As :func:`check_forced_splits`; or a threshold is no number, or no category that has a bin.
    """
    splits, features = listed(parameters.forced_splits), check_forced_splits(parameters, names)
    table = np.zeros((len(splits), FORCED_FIELDS), dtype=np.int64)
    table[:, FORCED_BELOW : FORCED_BELOW + 2] = -1
    for number, (split, feature) in enumerate(zip(splits, features, strict=True)):
        table[number, FORCED_FEATURE] = feature
        if categorical[feature]:
            for b in _bins_of(split, names[feature], edges[feature]):
                table.view(np.uint64)[number, FORCED_SET + b // 64] |= np.uint64(1) << np.uint64(b % 64)
        elif isinstance(split.threshold, float):
            above = np.searchsorted(edges[feature].astype(np.float64), split.threshold, side="left")
            table[number, FORCED_BIN] = 1 + above
        else:
            raise InvalidParameter(
                f"{spelled('forced_splits')}: {names[feature]!r} is not categorical, and its threshold must be a number, got"
                f" {split.threshold!r}"
            )
        if split.above:
            table[split.above[-1], FORCED_BELOW + split.side] = number
    if parameters.grow != "oblivious":
        return table
    table = table[first_of_depths(parameters.forced_splits)]
    for depth in range(len(table) - 1):
        table[depth, FORCED_BELOW : FORCED_BELOW + 2] = depth + 1
    return table


def _bins_of(split: ForcedSplit, name: str, codes: npt.NDArray[np.float32]) -> list[int]:
    """Return the bins of the categories of a split; ``codes`` are those with a bin, ascending."""
    found = []
    for category in split.threshold if isinstance(split.threshold, list) else [split.threshold]:
        code = np.float32(category_code(category) if isinstance(category, str) else category)
        place = int(np.searchsorted(codes, code))
        if place == len(codes) or codes[place] != code:
            shown = category if isinstance(category, str) else f"{category:g}"
            raise InvalidParameter(
                f"{spelled('forced_splits')}: feature {name!r} has no category {shown!r} with a bin of its own; leave it out,"
                f" or bin the data with a higher {spelled('max_bin_of')}"
            )
        found.append(place + 1)
    return found
