"""Interaction groups and weights of features, by column: features and after them the columns that are made from some.

Monotone constraints are in `_gain_kernels.gains_bounded` (search), `_growth_kernels` (ranges of children) and `leaves`
(values).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankmill.foundation.cures import named
from rankmill.foundation.errors import InvalidParameter, name_hint
from rankmill.foundation.options import spelled
from rankmill.trainer.parameters import TrainParameters

_BITS = 64  # of a word of groups


@dataclass(frozen=True, slots=True)
class Controls:
    """Controls of columns; what holds for a feature holds for the columns that are made from it.

    Attributes
    ----------
    sources
        (n_columns,) int32, the feature that a column is made from; of a feature itself.
    groups
        (n_columns, n_words) uint64, bits of the groups that have the feature; no words: all features may occur
        together.
    weights
        (n_columns,), factors of gains.
    """

    sources: npt.NDArray[np.int32]
    groups: npt.NDArray[np.uint64]
    weights: npt.NDArray[np.float64]

    @classmethod
    def none(cls, n_columns: int) -> Controls:
        """Return controls that allow everything."""
        return cls(
            np.arange(n_columns, dtype=np.int32),
            np.zeros((n_columns, 0), dtype=np.uint64),
            np.ones(n_columns),
        )

    @property
    def weighed(self) -> bool:
        """Whether gains are compared after weights."""
        return bool((self.weights != 1.0).any())

    @classmethod
    def of(cls, parameters: TrainParameters, names: Sequence[str], made_from: Sequence[int] = ()) -> Controls:
        """Return the controls of features with these ``names``, and of columns after them that are ``made_from`` some.

        InvalidParameter for an unknown name.
        """
        sources = np.array([*range(len(names)), *made_from], dtype=np.int32)
        weights = _weights(parameters.feature_weights, names)
        groups = _groups(parameters.interaction_constraints, names)
        return cls(sources, groups[sources], weights[sources])


def _weights(values: Mapping[str, float], names: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return the weight of each feature, (n_features,); InvalidParameter for an unknown name."""
    for name in values:
        if name not in names:
            raise InvalidParameter(f"{spelled('feature_weights')}: unknown feature {name!r}; {name_hint(name, names)}")
    return np.array([values.get(name, 1.0) for name in names], dtype=np.float64)


def _groups(groups: Sequence[Sequence[str]], names: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return the bits of the groups of each feature, (n_features, n_words).

    A feature in no group has one of its own.
    """
    places = {name: place for place, name in enumerate(names)}
    if not groups:
        return np.zeros((len(names), 0), dtype=np.uint64)
    groups = [group if {*group} <= {*names} else named([",".join(group)], names) for group in groups]
    for group in groups:
        for name in group:
            if name not in places:
                raise InvalidParameter(
                    f"{spelled('interaction_constraints')}: unknown feature {name!r}; {name_hint(name, names)}"
                )
    members = [[places[name] for name in group] for group in groups]
    grouped = {place for group in members for place in group}
    members += [[place] for place in range(len(names)) if place not in grouped]
    bits = np.zeros((len(names), -(-len(members) // _BITS)), dtype=np.uint64)
    for number, places_of_group in enumerate(members):
        bits[places_of_group, number // _BITS] |= np.uint64(1) << np.uint64(number % _BITS)
    return bits
