"""Values of the nodes of a grown tree: Newton steps or others of its leaves, drawn to 0, held, smoothed and shrunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankmill.trainer.data.layout import SCORE
from rankmill.trainer.growing.histogram import PackingScale
from rankmill.trainer.objectives.protocol import Leaves
from rankmill.trainer.parameters import TrainParameters

Floats = npt.NDArray[np.float64]
LeafSteps = Callable[[Leaves], Floats | None]
InsideLeaves = Callable[[npt.NDArray[np.int32], int], Floats]  # leaf of every row, number of leaves


@dataclass(frozen=True, slots=True)
class LeafRules:
    """How leaf values differ from a Newton step over the rows that the tree was grown from.

    Attributes
    ----------
    inside
        For exact steps, -G / (H - 2 C + lambda): called with the leaf of every row (n_rows,) int32, -1 for none, and
        how many leaves there are; returns C of each, the hessian of all pairs inside it.
    steps
        Returns the step of each leaf, or None for Newton's.
    of_all
        (g, h), both (n_rows,), from which leaf values are computed, over all rows; None: those that the tree was grown
        from, over its rows.
    """

    inside: InsideLeaves | None = None
    steps: LeafSteps | None = None
    of_all: tuple[Floats, Floats] | None = None


class GrownNodes(NamedTuple):
    """The nodes of a grown tree, parents before children; every array has shape (n_nodes,)."""

    left: npt.NDArray[np.int64]  # the first child, the other one follows it; -1: a leaf
    feature: npt.NDArray[np.int64]  # that splits the node
    rows: npt.NDArray[np.int64]  # of all processes
    low: Floats  # the range that monotone constraints leave
    high: Floats

    @property
    def split(self) -> list[int]:
        """The nodes that are no leaves, ascending."""
        found: list[int] = np.flatnonzero(self.left >= 0).tolist()
        return found


def values_of(
    grown: GrownNodes,
    leaves: npt.NDArray[np.intp],
    sums: npt.NDArray[np.int64],
    scale: PackingScale,
    added: float,
    parameters: TrainParameters,
    monotone: npt.NDArray[np.int8],
    *,
    by_h: bool,
    inside: Floats | None,
    own: Floats | None,
) -> Floats:
    """Return what each node adds to scores, (n_nodes,), the learning rate included.

    Parameters
    ----------
    leaves
        The leaves in the order of ``inside`` and ``own``.
    sums
        (n_nodes, 2) of gradients and hessians, in steps of ``scale``.
    added
        lambda_l2 in the unit of the hessians.
    monotone
        (n_features,) directions.
    by_h
        Splits were searched by hessians, so that ranges hold values.
    inside
        (n_leaves,) hessians of the pairs inside each leaf, for exact steps; None: plain ones.
    own
        (n_leaves,) steps that the loss computes itself; None: Newton's.
    """
    p, oblivious = parameters, parameters.grow == "oblivious"
    hessian = sums[:, 1] / scale.hessian + added
    # may be false in a tree of one leaf, or in oblivious trees
    enough = sums[:, 1] >= p.min_hessian_in_leaf * scale.hessian
    values = np.zeros(len(sums), dtype=SCORE)
    slopes = shrunk(sums[:, 0] / scale.gradient, p.lambda_l1)
    np.divide(-slopes, hessian, out=values, where=enough & (hessian > 0.0))
    if inside is not None:
        values[leaves] = _exact_steps(sums[leaves], scale, added, p, inside)
        _average_over_children(grown, values)
    if own is not None:
        values[leaves] = own
        _average_over_children(grown, values)
    if p.max_delta_step > 0.0:
        np.clip(values, -p.max_delta_step, p.max_delta_step, out=values)
    if p.path_smooth > 0.0:
        _smooth(grown, values, p.path_smooth, bounded=by_h and not oblivious)
    if oblivious:
        small = (grown.rows < p.min_rows_in_leaf) | ~(enough & (sums[:, 1] > 0))
        for node in np.flatnonzero(small[1:]) + 1:  # those too small for a value of their own have that of their parent
            values[node] = values[(node - 1) // 2]
    if monotone.any():
        if by_h and not oblivious:
            np.clip(values, grown.low, grown.high, out=values)
        else:
            _keep_directions(grown, values, monotone)
    values *= p.learning_rate
    return values


def shrunk(slopes: Floats, lambda_l1: float) -> Floats:
    """Return sums of gradients drawn towards 0 by ``lambda_l1``."""
    return slopes if lambda_l1 == 0.0 else np.sign(slopes) * np.maximum(np.abs(slopes) - lambda_l1, 0.0)


def _exact_steps(
    sums: npt.NDArray[np.int64], scale: PackingScale, added: float, p: TrainParameters, inside: Floats
) -> Floats:
    """Return -G / (H - 2 C + lambda) of leaves; 0 if H - 2 C is too small.

    ``sums`` (n_leaves, 2) are G and H, and ``inside`` is C.
    """
    exact = sums[:, 1] / scale.hessian - 2.0 * inside
    # both are 0 in a leaf of whole queries, except for the rounding of rows and pairs
    sound = (exact > 1e-9 * sums[:, 1] / scale.hessian) & (exact >= p.min_hessian_in_leaf)
    steps = np.zeros(len(sums), dtype=SCORE)
    np.divide(-shrunk(sums[:, 0] / scale.gradient, p.lambda_l1), exact + added, out=steps, where=sound)
    return steps


def _average_over_children(grown: GrownNodes, values: Floats) -> None:
    """Set the value of every split node to the mean over its rows."""
    rows = grown.rows
    for node in reversed(grown.split):
        a, b = grown.left[node], grown.left[node] + 1
        values[node] = (rows[a] * values[a] + rows[b] * values[b]) / rows[node] if rows[node] else 0.0


def _smooth(grown: GrownNodes, values: Floats, smooth: float, *, bounded: bool) -> None:
    """Average the value of each node with that of its parent, as if that had ``smooth`` rows."""
    rows = grown.rows
    for node in grown.split:
        for child in (grown.left[node], grown.left[node] + 1):
            values[child] = (values[child] * rows[child] + values[node] * smooth) / (rows[child] + smooth)
            if bounded:
                values[child] = np.clip(values[child], grown.low[child], grown.high[child])


def _keep_directions(grown: GrownNodes, values: Floats, monotone: npt.NDArray[np.int8]) -> None:
    """Enforce monotone constraints in oblivious trees, and if splits were searched by weights.

    Steps of weights have another scale.

    As in the kernels, the midpoint of the two values bounds the children of a constrained split.
    """
    low, high = np.full(len(values), -np.inf), np.full(len(values), np.inf)
    for node in grown.split:
        both = [int(grown.left[node]), int(grown.left[node]) + 1]
        low[both], high[both] = low[node], high[node]
        direction = monotone[grown.feature[node]]
        if direction == 0:
            continue
        left, right = np.clip(values[both], low[node], high[node])
        lower, upper = both if direction > 0 else both[::-1]
        high[lower] = low[upper] = 0.5 * (left + right)
    np.clip(values, low, high, out=values)
