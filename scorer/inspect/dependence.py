r"""Partial dependence, the mean output for each value of one or two features; and interactions of features.

.. math:: PD_S(x_S) = E_{X_C} F(x_S, X_C), \quad C = N \setminus S

Source: Friedman 2001, section 8.2.  The expectation is one of two:

- over the *training rows*, by weighted traversal (ibid.; ``plot.gbm``): a split on a feature in S sends all weight
  to one child, any other split divides it in proportion to the training rows of its children;
- over *documents* that are given: the mean of F over them, each with its features in S replaced (`brute force`).

Both are sums over paths of the leaf's value times the share of rows that follow the path in the other features. So one
pass over the documents is enough for any number of points.

Friedman's H measures how much of the joint effect of features is no sum of their single effects.  With partial
dependences centred over the n documents (Friedman & Popescu 2008, equations 44 and 45; ``interact.gbm``),

.. math::

    H_{jk}^2 = \frac{\sum_i (PD_{jk}(x_{ij}, x_{ik}) - PD_j(x_{ij}) - PD_k(x_{ik}))^2}
                    {\sum_i PD_{jk}(x_{ij}, x_{ik})^2},
    \quad
    H_j^2 = \frac{\sum_i (F(x_i) - PD_j(x_{ij}) - PD_{\setminus j}(x_{i \setminus j}))^2}{\sum_i F(x_i)^2}.

H is 0 if the features do not interact (also if both sums are 0), and may exceed 1 if their effects cancel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.records import left_out
from rankmill.scorer.forest.forest import Forest, feature_importance
from rankmill.scorer.inspect import _kernels
from rankmill.scorer.inspect.paths import Codes, Paths, in_spans, leaf_paths, require_rows
from rankmill.scorer.scaling import without_exponent

MOST_IMPORTANT = 10  # features to test for interactions if none are named
MAX_CELLS = 1 << 22  # points of a grid
_Array: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependence:
    """Partial dependence of the outputs on one feature or two.

    For a forest with one output and no link, the output is the score; otherwise outputs are those before the link.
    """

    features: tuple[str, ...]
    over: str
    """What it is the mean over: ``training rows``, by weighted traversal, or ``documents``."""
    n_documents: int | None
    """Number of these documents."""
    points: tuple[npt.NDArray[np.float32], ...]
    """Values of each feature, (m,) each; NaN stands for a missing value."""
    outputs: npt.NDArray[np.float64]
    """(n_outputs, m), or (n_outputs, m of the first, m of the second)."""
    categories: Mapping[str, tuple[str, ...]] | None = left_out()
    """The text of each point of the categorical features among these: "missing", a category, or "other" for one that no
    split knows."""


def partial_dependence(
    forest: Forest | Paths,
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
        The trained model, or its paths.
    features
        One or two names.
    points
        For each feature the values to look at, NaN for missing.  None: the whole function, which is constant between
        thresholds (see `steps_of`).
    values
        Documents to take the mean over, as `Paths.codes` takes them.  None: the training rows.
    n_rounds
        Look at the first ``n_rounds`` rounds; None: all.
    n_threads
        Threads to share the documents among; the result does not depend on it.

    Raises
    ------
    InputError
        A feature is unknown, there are none or more than two or one twice, the grid has more than ``MAX_CELLS`` points,
        or the training rows are needed and the forest has no counts of them.
    ValueError
        ``values`` or ``points`` has another shape, or ``values`` no row.
    """
    paths = leaf_paths(forest, n_rounds=n_rounds)
    if not 1 <= len(features) <= 2:
        raise InputError(f"expected one or two features for partial dependence, got {len(features)}")
    if len(set(features)) < len(features):
        raise InputError(f"the feature {features[0]!r} is given twice; name two different features")
    slots = [paths.slot_of(name) for name in features]
    axes = _axes(paths, slots, points)
    shape = tuple(len(axis) for axis in axes)
    axis_codes = [
        np.zeros(len(x), np.uint16) if s is None else paths.codes_of(s, x) for s, x in zip(slots, axes, strict=True)
    ]
    grid = [np.ascontiguousarray(axis.ravel()) for axis in np.meshgrid(*axis_codes, indexing="ij")]
    known = tuple(-1 if slot is None else slot for slot in slots)
    codes = None if values is None else paths.codes(values)
    outputs = sum_at(paths, known, grid, path_weights(paths, known, codes, n_threads=n_threads))
    return Dependence(
        features=tuple(features),
        over="training rows" if codes is None else "documents",
        n_documents=None if codes is None else len(codes),
        points=tuple(axes),
        outputs=outputs.reshape(-1, *shape) + paths.forest.base_score,
        categories={
            name: tuple(texts)
            for name, slot, axis in zip(features, slots, axes, strict=True)
            if slot is not None and (texts := paths.value_names(slot, axis)) is not None
        }
        or None,
    )


def _axes(
    paths: Paths, slots: Sequence[int | None], points: Sequence[npt.ArrayLike] | None
) -> list[npt.NDArray[np.float32]]:
    """Return the values of each feature at which to compute the dependence."""
    if points is None:
        points = [steps_of(paths, slot) for slot in slots]
    if len(points) != len(slots):
        raise ValueError(f"points of {len(points)} features, expected those of {len(slots)}")
    axes = [np.atleast_1d(np.asarray(axis, dtype=np.float32)) for axis in points]
    if any(axis.ndim != 1 for axis in axes):
        raise ValueError("points of a feature are one row of numbers")
    if np.prod([len(axis) for axis in axes]) > MAX_CELLS:
        sizes = " x ".join(str(len(axis)) for axis in axes)
        raise InputError(f"{sizes} points, the maximum is {MAX_CELLS:,}; use fewer points")
    return axes


def steps_of(paths: Paths, slot: int | None) -> npt.NDArray[np.float32]:
    """Return one value of a feature for each step of the outputs as functions of it, (m,).

    NaN, then each threshold (the greatest value of its step), then the next float32 above the last threshold.  A
    feature without splits has NaN and 0.  A categorical one has NaN, its categories in the order of their texts, and
    infinity, which is no category and stands for all others.
    """
    if slot is None:
        return np.array([np.nan, 0.0], dtype=np.float32)
    names = paths.category_names(slot)
    if names is not None:
        return np.array([np.nan, *names, np.inf], dtype=np.float32)
    cuts = paths.cuts(slot)
    with np.errstate(over="ignore"):  # the float after the largest is infinite
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
    """Return the weight (n_paths,) of each path for rows that follow it in the features of the slots ``known``.

    It is the leaf's value times the share of the training rows, or of the documents ``codes`` (n, n_slots), that follow
    the path in all other features.  Only the paths ``chosen`` (n_paths,) are needed; the others may have 0.

    Raises
    ------
    InputError
        The training rows are needed and the forest has no counts of them.
    ValueError
        There are no documents.
    """
    if codes is None:
        require_rows(paths, f"give documents to take the mean over ({spelled('on')})")
        return paths.value * paths.reach(*known)
    if not len(codes):
        raise ValueError("there are no documents to take the mean over")
    first, second = (*known, -1)[:2]
    counts = np.zeros((max(1, n_threads), paths.n_paths), dtype=np.int64)
    numbers = np.arange(paths.n_paths) if chosen is None else np.flatnonzero(chosen)

    def work(thread: int, start: int, stop: int) -> None:
        _kernels.count_met(codes, start, stop, numbers, paths.conditions, first, second, counts[thread])

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
    """Sum the ``weights`` (n_paths,) of the paths that each of m cells follows: (n_outputs, m), without the base score.

    ``cells`` has the codes (m,) of each slot in ``known`` (-1: none); ``chosen`` (n_paths,) restricts the paths.
    """
    first, second = (*known, -1)[:2]
    numbers = np.arange(paths.n_paths) if chosen is None else np.flatnonzero(chosen)
    out = np.zeros((paths.forest.n_outputs, len(cells[0])), dtype=np.float64)
    _kernels.sum_cells(numbers, paths.conditions, weights, paths.output, first, second, cells[0], cells[-1], out)
    return out


@dataclass(frozen=True, slots=True)
class Interaction:
    """How features interact in one output."""

    features: tuple[str, ...]
    """Two names, or one for its interaction with all others."""
    h: float
    strength: float
    """Root of the mean square of the numerator, in units of the output."""


def interactions(
    forest: Forest | Paths,
    values: npt.NDArray[np.float32],
    *,
    features: Sequence[str] | None = None,
    over: str = "training",
    output: int = 0,
    n_rounds: int | None = None,
    n_threads: int = 1,
) -> list[Interaction]:
    """Return H of each feature with all others, then of each pair of ``features``; strongest first within both.

    Parameters
    ----------
    forest
        The trained model, or its paths.
    values
        Documents at which the dependences are compared, as `Paths.codes` takes them.
    features
        Names; None: the ``MOST_IMPORTANT`` with the greatest feature importance.
    over
        What the partial dependences are expectations over: the ``training`` rows by weighted traversal, as in gbm, or
        the ``documents`` themselves, as Friedman & Popescu have it.
    output
        Which output of a forest with several, from 0.
    n_rounds, n_threads
        Rounds to look at, threads to use; the result does not depend on the threads.

    Raises
    ------
    InputError
        A feature is unknown or named twice, ``over`` or ``output`` is invalid, or the forest has no counts of its
        training rows.
    ValueError
        ``values`` has another shape, or no row.
    """
    paths = leaf_paths(forest, n_rounds=n_rounds)
    if over not in {"training", "documents"}:
        raise InputError.unknown(f"value of {spelled('over')}", over, ("training", "documents"))
    if not 0 <= output < paths.forest.n_outputs:
        raise InputError(f"output must be in 0..{paths.forest.n_outputs - 1}, got {output}")
    if not len(values):
        raise ValueError("there are no documents to compare at")
    names = list(features) if features is not None else _most_important(paths)
    if len(set(names)) < len(names):
        raise InputError("a feature is given twice; name each once")
    slots = [paths.slot_of(name) for name in names]
    compared = _Compared.of(paths, values, slots, over=over, output=output, n_threads=n_threads)
    singles = [Interaction((name,), *ratio) for name, ratio in zip(names, compared.with_any_other(slots), strict=True)]
    pairs = []
    for i, first in enumerate(slots):
        for j, second in enumerate(slots[:i]):
            ratio = (0.0, 0.0) if first is None or second is None else compared.of_pair((second, first))
            pairs.append(Interaction((names[j], names[i]), *ratio))
    return sorted(singles, key=lambda each: -each.h) + sorted(pairs, key=lambda each: -each.h)


def _most_important(paths: Paths) -> list[str]:
    """Return the names of the most important features among those that the forest uses."""
    order = np.argsort(-feature_importance(paths.forest), kind="stable")[:MOST_IMPORTANT]
    return [paths.forest.feature_names[f] for f in order if f in paths.features]


@dataclass(frozen=True, slots=True)
class _Compared:
    """The documents at which dependences are compared, in one output of a forest."""

    paths: Paths
    values: npt.NDArray[np.float32]
    codes: Codes
    over: Codes | None  # documents that dependences are means over; None: the training rows
    output: int
    alone: dict[int, _Array]  # path_weights of each slot
    n_threads: int

    @classmethod
    def of(
        cls,
        paths: Paths,
        values: npt.NDArray[np.float32],
        slots: Sequence[int | None],
        *,
        over: str,
        output: int,
        n_threads: int,
    ) -> _Compared:
        """Compute the path weights of each slot alone."""
        codes = paths.codes(values)
        over_codes = codes if over == "documents" else None
        if over_codes is None:
            require_rows(paths, f"take the means over the documents ({spelled('over')} documents)")
        alone = {
            slot: path_weights(paths, (slot,), over_codes, chosen=paths.holding(slot), n_threads=n_threads)
            for slot in slots
            if slot is not None
        }
        return cls(paths, values, codes, over_codes, output, alone, n_threads)

    def of_pair(self, pair: tuple[int, int]) -> tuple[float, float]:
        """Return H and strength of two slots.

        Paths without both features add only constants to the numerator, and have the same weight if both are known.
        """
        paths, output = self.paths, self.output
        cells, counts = np.unique(self.codes[:, pair], axis=0, return_counts=True)
        both_known = [np.ascontiguousarray(cells[:, i]) for i in (0, 1)]
        holding = [paths.holding(slot) for slot in pair]
        joint = holding[0] & holding[1]
        weights = path_weights(paths, pair, self.over, chosen=joint, n_threads=self.n_threads)
        together = sum_at(paths, pair, both_known, weights, joint)[output]
        numerator, denominator = together.copy(), together
        for i, slot in enumerate(pair):
            steps, place = np.unique(both_known[i], return_inverse=True)
            numerator -= sum_at(paths, (slot,), [steps], self.alone[slot], joint)[output][place]
            rest = sum_at(paths, (slot,), [steps], self.alone[slot], holding[i] & ~joint)
            denominator = denominator + rest[output][place]
        return self._ratio(numerator, denominator, counts.astype(np.float64))

    def with_any_other(self, slots: Sequence[int | None]) -> list[tuple[float, float]]:
        """Return H and strength of each slot with all the others."""
        paths, codes, output = self.paths, self.codes, self.output
        share = paths.share if self.over is None else self._shares(self.over)
        n_outputs, n_slots = paths.forest.n_outputs, max(len(paths.features), 1)
        effects: dict[int, tuple[Codes, _Array]] = {}
        for slot in slots:
            if slot is not None:
                steps = np.unique(codes[:, slot])
                effects[slot] = steps, sum_at(paths, (slot,), [steps], self.alone[slot], paths.holding(slot))[output]
        numerators = np.zeros((len(slots), len(codes)))
        whole, leaves_of = np.zeros(len(codes)), paths.leaf_finder()

        def work(_thread: int, first: int, last: int) -> None:
            tile = np.ascontiguousarray(codes[first:last])
            without = np.zeros((last - first, n_outputs, n_slots))
            _kernels.add_without_one(tile, 0, last - first, paths.conditions, share, paths.value, paths.output, without)
            leaves = leaves_of(self.values[first:last])
            whole[first:last] = paths.value[leaves[:, output::n_outputs]].sum(axis=1)
            for i, slot in enumerate(slots):
                if slot is not None:
                    steps, effect = effects[slot]
                    numerators[i, first:last] = without[:, output, slot] + effect[np.searchsorted(steps, tile[:, slot])]

        in_spans(len(codes), self.n_threads, work)
        once = np.ones(len(codes))
        return [self._ratio(numerator, whole, once) for numerator in numerators]

    def _shares(self, over: Codes) -> _Array:
        """Return the share of the documents that meet each element, (n_elements,)."""
        conditions = self.paths.conditions
        counts = np.zeros((max(1, self.n_threads), len(conditions.slot)), dtype=np.int64)

        def work(thread: int, first: int, last: int) -> None:
            _kernels.count_elements(over, first, last, conditions, counts[thread])

        in_spans(len(over), self.n_threads, work)
        shares: _Array = counts.sum(axis=0) / len(over)
        return shares

    def _ratio(self, numerator: _Array, denominator: _Array, counts: _Array) -> tuple[float, float]:
        """Return H, from both centred with ``counts`` as weights, and the root mean square of the numerator.

        Values that rounding alone could cause, a small share of the sum of all leaves, count as 0.
        """
        highest = np.zeros(self.paths.forest.n_trees)
        np.maximum.at(highest, self.paths.tree, np.abs(self.paths.value))
        rounding = float(1e-12 * highest[self.output :: self.paths.forest.n_outputs].sum())
        (numerator, exponent), (denominator, other) = without_exponent(numerator), without_exponent(denominator)
        n = counts.sum()
        above = numerator - (numerator * counts).sum() / n
        below = denominator - (denominator * counts).sum() / n
        spread = np.ldexp(np.sqrt((above**2 * counts).sum() / n), exponent)
        scale = np.ldexp(np.sqrt((below**2 * counts).sum() / n), other)
        if min(spread, scale) <= rounding:
            return 0.0, 0.0
        return float(spread / scale), float(spread)
