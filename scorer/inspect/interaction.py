r"""Friedman's H: how much of what two features do together neither does alone.

With partial dependences centred over the n documents (Friedman & Popescu 2008, equations 44 and 45; ``interact.gbm``),

.. math::

    H_{jk}^2 = \frac{\sum_i (PD_{jk}(x_{ij}, x_{ik}) - PD_j(x_{ij}) - PD_k(x_{ik}))^2}{\sum_i PD_{jk}(x_{ij}, x_{ik})^2},
    \quad
    H_j^2 = \frac{\sum_i (F(x_i) - PD_j(x_{ij}) - PD_{\setminus j}(x_{i \setminus j}))^2}{\sum_i F(x_i)^2}.

H is 0 where the features do not interact (also where both sums are 0), and may exceed 1 where their effects cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InputError
from rankmill.scorer.forest import Forest
from rankmill.scorer.inspect import _kernels
from rankmill.scorer.inspect.dependence import path_weights, sum_at
from rankmill.scorer.inspect.influence import relative_influence
from rankmill.scorer.inspect.paths import Codes, Paths, in_spans, leaf_paths, require_rows

MOST_INFLUENTIAL = 10
_Weights: TypeAlias = dict[int, npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Interaction:
    """How features interact in one output."""

    features: tuple[str, ...]
    """Two names; one: with any of the others."""
    h: float
    strength: float
    """Root of the mean square of the numerator, in units of the output."""


def interactions(
    forest: Forest,
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
        The trained model.
    values
        (n, n_features) documents at which the dependences are compared, NaN where missing.
    features
        Names; None: the ``MOST_INFLUENTIAL`` with the greatest relative influence.
    over
        What the partial dependences are expectations over: the ``training`` rows by weighted traversal, as in gbm, or the
        ``documents`` themselves, as Friedman & Popescu have it.
    output
        Which output of a forest with several, from 0.
    n_rounds, n_threads
        Rounds to look at, threads to use; the result does not depend on the threads.

    Raises
    ------
    InputError
        A feature is unknown or named twice, ``over`` or ``output`` is none that there is, or the forest does not know its
        training rows.
    ValueError
        ``values`` has another shape, or no row.
    """
    paths = leaf_paths(forest, n_rounds=n_rounds)
    return interactions_at(
        paths, paths.codes(values), features=features, over=over, output=output, n_threads=n_threads
    )  # fmt: skip


def interactions_at(
    paths: Paths,
    codes: Codes,
    *,
    features: Sequence[str] | None = None,
    over: str = "training",
    output: int = 0,
    n_threads: int = 1,
) -> list[Interaction]:
    """As `interactions`, for a forest already laid out and the ``codes`` of the documents."""
    if over not in {"training", "documents"}:
        raise InputError.unknown("value of --over", over, ("training", "documents"))
    if not 0 <= output < paths.forest.n_outputs:
        raise InputError(f"output must be in 0..{paths.forest.n_outputs - 1}, got {output}")
    if not len(codes):
        raise ValueError("there are no documents to compare at")
    names = list(features) if features is not None else most_influential(paths)
    if len(set(names)) < len(names):
        raise InputError("a feature was named twice; name different ones")
    slots = [paths.slot_of(name) for name in names]
    over_codes = codes if over == "documents" else None
    if over_codes is None:
        require_rows(paths, "take the means over the documents (--over documents)")
    alone = {
        slot: path_weights(paths, (slot,), over_codes, chosen=paths.holding(slot), n_threads=n_threads)
        for slot in slots
        if slot is not None
    }
    ratios = _with_any(paths, codes, slots, alone, output, over_codes, n_threads)
    found = [Interaction((name,), *ratio) for name, ratio in zip(names, ratios, strict=True)]
    pairs = []
    for i, first in enumerate(slots):
        for j in range(i):
            second = slots[j]
            ratio = (0.0, 0.0)
            if first is not None and second is not None:
                ratio = _of_pair(paths, codes, (second, first), alone, output, over_codes, n_threads)
            pairs.append(Interaction((names[j], names[i]), *ratio))
    found.sort(key=lambda one: -one.h)
    pairs.sort(key=lambda one: -one.h)
    return found + pairs


def most_influential(paths: Paths, n: int = MOST_INFLUENTIAL) -> list[str]:
    """Return the names of up to ``n`` features that the forest asks for, those of greatest influence first."""
    influence = relative_influence(paths.forest)
    order = np.argsort(-influence, kind="stable")[:n]
    return [paths.forest.feature_names[f] for f in order if f in paths.features]


def _of_pair(
    paths: Paths,
    codes: Codes,
    pair: tuple[int, int],
    alone: _Weights,
    output: int,
    over: Codes | None,
    n_threads: int,
) -> tuple[float, float]:
    """H and strength of two slots, each with its `path_weights`.

    Paths that do not ask for both add nothing to the numerator but constants, and weigh the same where both are known.
    """
    cells, counts = np.unique(codes[:, pair], axis=0, return_counts=True)
    both_known = [np.ascontiguousarray(cells[:, i]) for i in (0, 1)]
    holding = [paths.holding(slot) for slot in pair]
    joint = holding[0] & holding[1]
    weights = path_weights(paths, pair, over, chosen=joint, n_threads=n_threads)
    together = sum_at(paths, pair, both_known, weights, joint)[output]
    numerator, denominator = together.copy(), together
    for i, slot in enumerate(pair):
        steps, place = np.unique(both_known[i], return_inverse=True)
        numerator -= sum_at(paths, (slot,), [steps], alone[slot], joint)[output][place]
        denominator = denominator + sum_at(paths, (slot,), [steps], alone[slot], holding[i] & ~joint)[output][place]
    return _ratio(numerator, denominator, counts.astype(np.float64), _rounding(paths, output))


def _with_any(
    paths: Paths,
    codes: Codes,
    slots: Sequence[int | None],
    alone: _Weights,
    output: int,
    over: Codes | None,
    n_threads: int,
) -> list[tuple[float, float]]:
    """H and strength of each slot, with its `path_weights`, with all the others."""
    share = paths.share if over is None else _shares_of(paths, over, n_threads)
    n_outputs, n_slots = paths.forest.n_outputs, max(len(paths.features), 1)
    effects: dict[int, tuple[Codes, npt.NDArray[np.float64]]] = {}
    for slot in slots:
        if slot is not None:
            steps = np.unique(codes[:, slot])
            effects[slot] = steps, sum_at(paths, (slot,), [steps], alone[slot], paths.holding(slot))[output]
    numerators = np.zeros((len(slots), len(codes)))
    whole = np.zeros(len(codes))

    def work(_thread: int, first: int, last: int) -> None:
        here = np.ascontiguousarray(codes[first:last])
        without = np.zeros((last - first, n_outputs, n_slots))
        _kernels.add_without_one(
            here, 0, last - first, paths.starts, paths.slot, paths.low, paths.high, paths.missing, share, paths.value,
            paths.output, without,
        )  # fmt: skip
        leaves = np.zeros((last - first, paths.forest.n_trees), dtype=np.int32)
        _kernels.find_leaves(
            here, 0, last - first, paths.starts, paths.slot, paths.low, paths.high, paths.missing, paths.tree, leaves
        )
        whole[first:last] = paths.value[leaves[:, output::n_outputs]].sum(axis=1)
        for i, slot in enumerate(slots):
            if slot is not None:
                steps, effect = effects[slot]
                numerators[i, first:last] = without[:, output, slot] + effect[np.searchsorted(steps, here[:, slot])]

    in_spans(len(codes), n_threads, work)
    each = np.ones(len(codes))
    rounding = _rounding(paths, output)
    return [_ratio(numerator, whole, each, rounding) for numerator in numerators]


def _shares_of(paths: Paths, codes: Codes, n_threads: int) -> npt.NDArray[np.float64]:
    """Return the share of the documents that meet each element, (n_elements,)."""
    counts = np.zeros((max(1, n_threads), len(paths.slot)), dtype=np.int64)

    def work(thread: int, first: int, last: int) -> None:
        _kernels.count_elements(
            codes, first, last, paths.slot, paths.low, paths.high, paths.missing, counts[thread]
        )  # fmt: skip

    in_spans(len(codes), n_threads, work)
    shares: npt.NDArray[np.float64] = counts.sum(axis=0) / len(codes)
    return shares


def _rounding(paths: Paths, output: int) -> float:
    """Return what sums over trees may be off by: a share of all that their leaves could add up to."""
    highest = np.zeros(paths.forest.n_trees)
    np.maximum.at(highest, paths.tree, np.abs(paths.value))
    return float(1e-12 * highest[output :: paths.forest.n_outputs].sum())


def _ratio(
    numerator: npt.NDArray[np.float64],
    denominator: npt.NDArray[np.float64],
    counts: npt.NDArray[np.float64],
    rounding: float,
) -> tuple[float, float]:
    """H of both, each centred, with cells that count so often; and the root of the mean square of the numerator.

    What is left of either by ``rounding`` alone is nothing.
    """
    n = counts.sum()
    above = numerator - (numerator * counts).sum() / n
    below = denominator - (denominator * counts).sum() / n
    spread = np.sqrt((above**2 * counts).sum() / n)
    scale = np.sqrt((below**2 * counts).sum() / n)
    if min(spread, scale) <= rounding:
        return 0.0, 0.0
    return float(spread / scale), float(spread)
