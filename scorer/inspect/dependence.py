r"""Partial dependence: what the outputs are on average, by the values of one feature or two.

.. math:: PD_S(x_S) = E_{X_C} F(x_S, X_C), \quad C = N \setminus S

Source: Friedman 2001, section 8.2.  The expectation is one of two:

- over the *training rows*, by weighted traversal (ibid.; ``plot.gbm``): a node that asks for a feature in S sends all its
  weight along, any other node shares it out as the training rows that reached its children;
- over *documents* that are given: the mean of F over them, each with its features in S replaced (`brute force`).

Either is a sum over paths of the leaf's value times the share that goes along by the other features, so the documents are
passed once, whatever the number of points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InputError
from rankmill.scorer.forest import Forest
from rankmill.scorer.inspect import _kernels
from rankmill.scorer.inspect.paths import Codes, Paths, in_spans, leaf_paths, require_rows

MAX_CELLS = 1 << 22  # points of a grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependence:
    """Partial dependence of the outputs on one feature or two.

    Of a forest of one output without a link, the output is the score; other forests have outputs of their own, before the
    link.
    """

    features: tuple[str, ...]
    points: tuple[npt.NDArray[np.float32], ...]
    """Values of each feature, (m,) each; NaN stands for a missing value."""
    outputs: npt.NDArray[np.float64]
    """(n_outputs, m), or (n_outputs, m of the first, m of the second)."""
    n_documents: int | None
    """Documents that it is the mean over; None: the training rows, by weighted traversal."""


def partial_dependence(
    forest: Forest,
    features: Sequence[str],
    *,
    points: Sequence[npt.ArrayLike] | None = None,
    values: npt.NDArray[np.float32] | None = None,
    n_rounds: int | None = None,
    n_threads: int = 1,
) -> Dependence:
    """Return the partial dependence of the outputs of ``forest`` on one feature or two.

    Parameters
    ----------
    forest
        The trained model.
    features
        One or two names.
    points
        For each feature the values to look at, NaN for missing.  None: the whole function, which is constant between
        thresholds (see `steps_of`).
    values
        (n, n_features) documents to take the mean over, NaN where missing.  None: the training rows.
    n_rounds
        Look at the first so many rounds; None: all.
    n_threads
        Threads to share the documents among; the result does not depend on it.

    Raises
    ------
    InputError
        A feature is unknown, there are none or more than two or one twice, the grid has more than ``MAX_CELLS`` points, or
        the training rows are wanted and the forest does not know them.
    ValueError
        ``values`` or ``points`` has another shape, or ``values`` no row.
    """
    paths = leaf_paths(forest, n_rounds=n_rounds)
    codes = None if values is None else paths.codes(values)
    return dependence_at(paths, features, points=points, codes=codes, n_threads=n_threads)


def dependence_at(
    paths: Paths,
    features: Sequence[str],
    *,
    points: Sequence[npt.ArrayLike] | None = None,
    codes: Codes | None = None,
    n_threads: int = 1,
) -> Dependence:
    """As `partial_dependence`, for a forest already laid out and the ``codes`` of the documents."""
    slots = _slots(paths, features)
    if points is None:
        points = [steps_of(paths, slot) for slot in slots]
    if len(points) != len(features):
        raise ValueError(f"points of {len(points)} features, expected those of {len(features)}")
    axes = [np.atleast_1d(np.asarray(axis, dtype=np.float32)) for axis in points]
    if any(axis.ndim != 1 for axis in axes):
        raise ValueError("points of a feature are one row of numbers")
    shape = tuple(len(axis) for axis in axes)
    if np.prod(shape) > MAX_CELLS:
        raise InputError(f"{' x '.join(map(str, shape))} points, at most {MAX_CELLS:,}; ask for fewer points")
    along = [
        np.zeros(len(x), np.uint16) if s is None else paths.codes_of(s, x) for s, x in zip(slots, axes, strict=True)
    ]
    grid = [np.ascontiguousarray(axis.ravel()) for axis in np.meshgrid(*along, indexing="ij")]
    known = tuple(-1 if slot is None else slot for slot in slots)
    outputs = sum_at(paths, known, grid, path_weights(paths, known, codes, n_threads=n_threads))
    return Dependence(
        features=tuple(features),
        points=tuple(axes),
        outputs=outputs.reshape(-1, *shape) + paths.forest.base_score,
        n_documents=None if codes is None else len(codes),
    )


def steps_of(paths: Paths, slot: int | None) -> npt.NDArray[np.float32]:
    """Return the values (m,) of one feature at which the outputs take all the values they can, others as they are.

    NaN, then each threshold (the greatest value of its step), then the next float32 above the last threshold.  A feature
    that is never asked for has NaN and 0.
    """
    if slot is None:
        return np.array([np.nan, 0.0], dtype=np.float32)
    cuts = paths.cuts(slot)
    with np.errstate(over="ignore"):  # above the greatest number is infinity
        above = np.nextafter(cuts[-1:], np.float32(np.inf))
    return np.concatenate([np.array([np.nan], dtype=np.float32), cuts, above[above > cuts[-1]]])


def some_steps(paths: Paths, slot: int | None, n: int) -> npt.NDArray[np.float32]:
    """Return at most ``n`` of the values of `steps_of`, evenly spread over them, and NaN; all of them for 0."""
    steps = steps_of(paths, slot)
    if n == 0 or len(steps) - 1 <= n:
        return steps
    places = np.unique(np.linspace(1.0, len(steps) - 1.0, n).round().astype(np.int64))
    chosen: npt.NDArray[np.float32] = steps[np.concatenate([[0], places])]
    return chosen


def path_weights(
    paths: Paths,
    known: tuple[int, ...],
    codes: Codes | None,
    *,
    chosen: npt.NDArray[np.bool_] | None = None,
    n_threads: int = 1,
) -> npt.NDArray[np.float64]:
    """Return what each path adds, (n_paths,), where the features of the slots ``known`` go along it.

    It is the leaf's value times the share of the training rows, or of the documents ``codes`` (n, n_slots), that go along
    by all other features.  ``chosen`` (n_paths,): only of these paths it is asked for, and may be 0 elsewhere.

    Raises
    ------
    InputError
        The training rows are wanted and the forest does not know them.
    ValueError
        There are no documents.
    """
    if codes is None:
        require_rows(paths, "give documents to take the mean over (--on)")
        return paths.value * paths.reach(*known)
    if not len(codes):
        raise ValueError("there are no documents to take the mean over")
    first, second = (*known, -1)[:2]
    counts = np.zeros((max(1, n_threads), paths.n_paths), dtype=np.int64)
    numbers = np.arange(paths.n_paths) if chosen is None else np.flatnonzero(chosen)

    def work(thread: int, start: int, stop: int) -> None:
        _kernels.count_met(
            codes, start, stop, numbers, paths.starts, paths.slot, paths.low, paths.high, paths.missing, first, second,
            counts[thread],
        )  # fmt: skip

    in_spans(len(codes), n_threads, work)
    weights: npt.NDArray[np.float64] = paths.value * (counts.sum(axis=0) / len(codes))
    return weights


def sum_at(
    paths: Paths,
    known: tuple[int, ...],
    cells: Sequence[Codes],
    weights: npt.NDArray[np.float64],
    chosen: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[np.float64]:
    """Add up ``weights`` (n_paths,) of the paths that go along: (n_outputs, m) for m cells, without the base score.

    ``cells`` has the codes (m,) of each slot in ``known`` (-1: none); ``chosen`` (n_paths,) takes only some of the paths.
    """
    first, second = (*known, -1)[:2]
    numbers = np.arange(paths.n_paths) if chosen is None else np.flatnonzero(chosen)
    out = np.zeros((paths.forest.n_outputs, len(cells[0])), dtype=np.float64)
    _kernels.sum_cells(
        numbers, paths.starts, paths.slot, paths.low, paths.high, paths.missing, weights, paths.output, first, second,
        cells[0], cells[-1], out,
    )  # fmt: skip
    return out


def _slots(paths: Paths, features: Sequence[str]) -> list[int | None]:
    if not 1 <= len(features) <= 2:
        raise InputError(f"partial dependence is on one feature or two, got {len(features)}")
    if len(set(features)) < len(features):
        raise InputError(f"the feature {features[0]!r} was named twice; name two different ones")
    return [paths.slot_of(name) for name in features]
