r"""Test whether the weights of a net or the leaf values of a forest are a local maximum of a metric.

It is a one-sided Monte Carlo test.

Burges 2010, section 4.2 (and Donmez, Svore & Burges 2009).  The parameters are the weights, biases and embeddings of a
net, or the contributions of all leaves of a forest (the tree's weight times the leaf's value). They are one vector,
which is moved a little along directions drawn from a spherical Gaussian.  Let p be the share of directions along which
the mean metric M rises.  If it falls along all of n directions, then

.. math:: P(\text{no ascent in n directions}) = (1 - p)^n \le \delta \quad\text{for every}\quad p \ge 1 - \delta^{1/n},

so that p is below that bound with confidence 1 - delta: n = 459 directions for p0 = 1 % at 99 %.  Otherwise p is
estimated, with Clopper and Pearson's interval.  M is a step function: directions along which it does not change at all
are counted separately, and do not prove a maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InputError
from rankmill.foundation.threads import results_in_order
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.forest.links import apply_link
from rankmill.scorer.inspect import _kernels
from rankmill.scorer.inspect.paths import Paths, leaf_paths
from rankmill.scorer.metrics import Metric
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.scorer.nets.net import Net
from rankmill.scorer.nets.predict import NetPredictor
from rankmill.scorer.options import MoveOptions
from rankmill.scorer.scaling import without_exponent

MAX_BYTES = 1 << 30  # of the table of leaves, four bytes a document and tree
CURVE = tuple(round(-3.0 + 0.25 * i, 2) for i in range(25))


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves(MoveOptions):
    """How the parameters are moved; InputError if a number is out of range."""

    seed: int = 0
    """Direction j is drawn by the key (seed, j)."""

    def check_together(self) -> None:
        """Raise InputError if a number is out of range."""
        directions_needed(self.p0, self.delta)
        if not (math.isfinite(self.step) and self.step > 0.0):
            raise InputError(f"the step must be a number above 0, got {self.step:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafCurve:
    """The mean metric as one leaf's contribution is moved."""

    tree: int
    """From 1."""
    leaf: int
    """The leaf as a node of its tree, from 0."""
    n_documents: int
    """Documents that reach it."""
    value: float
    """Its unchanged contribution."""
    means: tuple[float, ...]
    """The metric at each of ``Optimality.moves``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes of the metric along the directions."""

    least: float
    mean: float
    greatest: float

    @classmethod
    def of(cls, changes: npt.NDArray[np.float64]) -> Changes:
        """Sum up ``changes`` (n,)."""
        mean = math.fsum(changes.tolist()) / len(changes)
        return cls(least=float(changes.min()), mean=mean, greatest=float(changes.max()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimality:
    """The result of `local_optimality`."""

    metric: str
    moved: str
    """What was moved: ``leaf values`` or ``weights``."""
    value: float
    """The mean of the unchanged model."""
    n_queries: int
    passed: bool
    """Whether the metric falls along every direction."""
    n_directions: int
    n_rising: int
    n_unchanged: int
    p: float
    """Share of the directions along which it rises."""
    interval: tuple[float, float]
    """Interval of that share, with this ``confidence``; from 0 to the bound if it is 0."""
    confidence: float
    step: float
    changes: Changes
    moves: tuple[float, ...]
    """Moves of the leaves of ``curves``, in units of the root mean square of all leaf contributions."""
    curves: tuple[LeafCurve, ...]


def directions_needed(p0: float, delta: float) -> int:
    """Return the least n with ``(1 - p0)^n <= delta``.

    >>> directions_needed(0.01, 0.01)
    459

    Raises
    ------
    InputError
        One of them is not between 0 and 1.
    """
    for name, value in (("p0", p0), ("delta", delta)):
        if not 0.0 < value < 1.0:
            raise InputError(f"{name} must be between 0 and 1, both excluded, got {value:g}")
    return math.ceil(math.log(delta) / math.log1p(-p0) - 1e-12)


def local_optimality(
    model: Forest | Paths | Net,
    values: npt.NDArray[np.float32],
    queries: PreparedQueries,
    metric: Metric,
    moves: Moves = Moves(),
    *,
    n_threads: int = 1,
) -> Optimality:
    """Test whether the parameters of ``model`` are a local maximum of ``metric`` on these documents.

    Parameters
    ----------
    model
        The trained forest, or its paths, or a net.
    values
        Documents (n, n_used) with the features that the model uses; a maximum is to be expected on those it was trained
        on.
    queries, metric
        Their grades with the conventions of the metric, and the metric to test.
    moves
        How far the parameters are moved, along how many directions.
    n_threads
        Threads to divide the directions among; the result does not depend on it.

    Raises
    ------
    InputError
        No query counts, the forest has no split, the table of leaves is too large, or there are curves of leaves of a
        net.
    ValueError
        Shapes do not fit together.
    """
    moved: _MovedForest | _MovedNet
    if isinstance(model, Net):
        if moves.n_curves:
            raise InputError("curves are of the leaves of trees; a net has none")
        moved = _MovedNet(model, values)
    else:
        moved = _MovedForest(leaf_paths(model), values)
    trial = _Trial(moved, queries, metric)
    value = trial.mean(moved.parameters)
    if math.isnan(value):
        raise InputError(f"no query counts in {metric}: none has a relevant document")
    small, exponent = without_exponent(moved.parameters)
    length = math.ldexp(math.sqrt(math.fsum((small**2).tolist())), exponent)
    n_directions = directions_needed(moves.p0, moves.delta)
    means = _means_along(trial, moves.step * length, moves.seed, n_directions, n_threads)
    changes = (1.0 if metric.higher_is_better else -1.0) * (means - value)
    n_rising, n_unchanged = int(np.count_nonzero(changes > 0.0)), int(np.count_nonzero(changes == 0.0))
    return Optimality(
        metric=str(metric),
        moved="weights" if isinstance(model, Net) else "leaf values",
        value=value,
        n_queries=trial.n_queries,
        passed=n_rising == 0 and n_unchanged == 0,
        n_directions=n_directions,
        n_rising=n_rising,
        n_unchanged=n_unchanged,
        p=n_rising / n_directions,
        interval=share_interval(n_rising, n_directions, moves.delta),
        confidence=1.0 - moves.delta,
        step=moves.step,
        changes=Changes.of(changes),
        moves=CURVE if moves.n_curves else (),
        curves=()
        if isinstance(moved, _MovedNet)
        else _leaf_curves(trial, moved, length / math.sqrt(len(moved.parameters)), moves, n_directions, n_threads),
    )


def _means_along(trial: _Trial, far: float, seed: int, n_directions: int, n_threads: int) -> npt.NDArray[np.float64]:
    """Move all parameters by ``far`` along each of ``n_directions``, and return the means of the metric."""
    parameters = trial.moved.parameters

    def along(direction: int) -> float:
        change = _gaussian(seed, direction, len(parameters))
        change *= far / np.sqrt(math.fsum((change**2).tolist()))
        return trial.mean(parameters + change)

    found = results_in_order(range(n_directions), along, n_threads, 2 * n_threads)
    return np.array([mean for _, mean in found])


def _leaf_curves(
    trial: _Trial, forest: _MovedForest, unit: float, moves: Moves, n_directions: int, n_threads: int
) -> tuple[LeafCurve, ...]:
    """Move some of the leaves that documents reach one at a time, by ``CURVE`` times ``unit``."""
    reached = np.unique(forest.leaves)
    order = np.argsort(_gaussian(moves.seed, n_directions, len(reached)), kind="stable")
    chosen = reached[np.sort(order[: moves.n_curves])].tolist()

    def with_leaf(cell: tuple[int, float]) -> float:
        path, move = cell
        changed = forest.parameters.copy()
        changed[path] += move * unit
        return trial.mean(changed)

    means = [mean for _, mean in results_in_order(product(chosen, CURVE), with_leaf, n_threads, 2 * n_threads)]
    return tuple(forest.curve(path, means[i * len(CURVE) : (i + 1) * len(CURVE)]) for i, path in enumerate(chosen))


class _Moved(Protocol):
    """A model of some documents whose parameters can be changed."""

    parameters: npt.NDArray[np.float64]

    def scores(self, parameters: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the scores of the documents with other parameters."""
        ...


class _MovedForest:
    """A forest and documents with known leaves; parameter p is what the leaf of path p adds."""

    def __init__(self, paths: Paths, values: npt.NDArray[np.float32]) -> None:
        if not paths.features:
            raise InputError("the model has no splits, so there are no leaf values to move")
        n, n_trees = len(values), paths.forest.n_trees
        if n * n_trees * 4 > MAX_BYTES:
            raise InputError(
                f"{n:,} documents in {n_trees:,} trees need {n * n_trees * 4 / 1e6:,.0f} MB, at most "
                f"{MAX_BYTES / 1e6:,.0f} are taken; choose fewer queries or rounds"
            )
        self._paths, self.parameters = paths, paths.value
        self.leaves = paths.leaf_finder()(values)

    def scores(self, parameters: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the scores if the leaf of path p adds ``parameters[p]``."""
        forest = self._paths.forest
        outputs = np.empty((forest.n_outputs, len(self.leaves)), dtype=np.float64)
        _kernels.move_outputs(self.leaves, parameters, forest.n_outputs, outputs)
        outputs += forest.base_score
        return apply_link(forest.link, outputs)

    def curve(self, path: int, means: list[float]) -> LeafCurve:
        """Return the curve of a path's leaf."""
        paths = self._paths
        tree = int(paths.tree[path])
        return LeafCurve(
            tree=tree + 1,
            leaf=int(paths.leaf[path] - paths.forest.tree_starts[tree]),
            n_documents=int(np.count_nonzero(self.leaves == path)),
            value=float(paths.value[path]),
            means=tuple(means),
        )


class _MovedNet:
    """A net and documents.

    Its parameters are all weights, biases and embeddings, rounded to float32 where they are used.
    """

    def __init__(self, net: Net, values: npt.NDArray[np.float32]) -> None:
        self._net, self._values = net, values
        self.parameters = net.all_weights.astype(np.float64)

    def scores(self, parameters: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the scores of the net with other weights."""
        moved = NetPredictor(self._net.with_weights(parameters))
        return moved.scores(self._values, columns=np.arange(len(moved.features)))


class _Trial:
    """The mean metric of some queries by the parameters of a model."""

    def __init__(self, moved: _Moved, queries: PreparedQueries, metric: Metric) -> None:
        self.moved, self._queries, self._metric = moved, queries, metric
        first = queries.evaluate([metric], np.zeros(int(queries.starts[-1])))[metric]
        self.n_queries = int(np.count_nonzero(~np.isnan(first)))

    def mean(self, parameters: npt.NDArray[np.float64]) -> float:
        """Return the mean metric with these parameters."""
        return self._queries.means([self._metric], self.moved.scores(parameters))[self._metric]


def _gaussian(seed: int, number: int, n: int) -> npt.NDArray[np.float64]:
    """Return (n,) draws that depend on (seed, number) alone."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, number], dtype=np.uint64)))
    return generator.standard_normal(n)


def share_interval(successes: int, trials: int, delta: float) -> tuple[float, float]:
    """Clopper and Pearson's interval (1934) of a share with confidence 1 - ``delta``; one-sided if there is no success.

    >>> low, high = share_interval(0, 459, 0.01)
    >>> low, round(high, 5)
    (0.0, 0.00998)
    """
    if successes == 0:
        return 0.0, 1.0 - delta ** (1.0 / trials)
    if successes == trials:
        return delta ** (1.0 / trials), 1.0
    half = delta / 2.0
    low = _turning_point(lambda p: 1.0 - _at_most(successes - 1, trials, p) < half)
    high = _turning_point(lambda p: _at_most(successes, trials, p) > half)
    return low, high


def _at_most(k: int, n: int, p: float) -> float:
    """Probability of at most ``k`` successes in ``n``, 0 < p < 1."""
    terms = (
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * math.log(p) + (n - i) * math.log1p(-p)
        for i in range(k + 1)
    )
    return min(1.0, math.fsum(map(math.exp, terms)))


def _turning_point(is_below: Callable[[float], bool]) -> float:
    """Return where ``is_below`` turns from true to false in (0, 1)."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2.0
