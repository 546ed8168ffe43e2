"""User-defined losses and swap deltas, and a test whether lambdas are the gradient of a loss.

A function is known by its name: ``Ranker(objective=mine)`` and ``Ranker(objective="lambdamart", delta=mine)`` remember
theirs under ``mine``, and the model file says ``user(function=mine)`` or ``lambdamart(delta=mine)``.  A command line
has no such functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import option, options
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.pairwise import _kernels
from rankmill.trainer.objectives.protocol import OF_GRADIENTS, QUERIES, Learns, Limits, Objective, Splits
from rankmill.trainer.objectives.spelling import parse_spelling
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.team import Team

if TYPE_CHECKING:
    from numba.core.ccallback import CFunc

Floats = npt.NDArray[np.float64]
Lambdas = Callable[[Floats, Floats, npt.NDArray[np.int64], Floats, Floats], object]
Delta = Callable[[npt.NDArray[np.int32], int, int], float]

_OBJECTIVES: dict[str, Lambdas] = {}
_DELTAS: dict[str, CFunc] = {}


@options
class UserOptions:
    """Options of ``user``."""

    function: str = option(default="", help="Name under which the user-defined loss is registered.")


class UserObjective(Objective):
    """Follow the gradients of a function ``(scores, targets, starts, g, h)``, plain Python or compiled by Numba.

    It is called once a round with all rows and writes ``g`` and ``h``, both (n_rows,) float64. These are the
    derivatives of the loss by each score, or lambdas that have no loss, and hessians of 0 or more.  ``targets``
    (n_rows,) float64 are the labels, or the grades if there are none; query q has the rows ``starts[q]`` to ``starts[q
    + 1]``.  Scores start from 0.  Weights are not supported.  There is no deviance.

    Examples
    --------
    >>> from rankmill.trainer.team import Team
    >>> def squared(scores, targets, starts, g, h):
    ...     g[:], h[:] = scores - targets, 1.0
    >>> name = remember_objective(squared)
    >>> rows = RankedRows(np.array([2, 0], np.int32), np.array([0, 2]), [])
    >>> mine = UserObjective(rows, TrainParameters(), UserOptions(function=name))
    >>> g, h = np.empty(2), np.empty(2)
    >>> mine.gradients(1, np.zeros(2), g, h, Team(1))
    >>> g.tolist(), h.tolist()
    ([-2.0, 0.0], [1.0, 1.0])

    Raises
    ------
    InvalidParameter
        No function of that name is remembered, rows have weights, or the function did not write all cells.
    """

    name: ClassVar[str] = "user"
    sums_over: ClassVar[str] = QUERIES
    splits: ClassVar[Splits] = OF_GRADIENTS
    learns: ClassVar[Learns] = Learns(labels=True)
    limits: Limits = Limits(*2 * ("a function is called with all documents",))
    Options: ClassVar[type[UserOptions]] = UserOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: UserOptions) -> None:
        if options.function not in _OBJECTIVES:
            raise InvalidParameter(
                f"user({options.function}): unknown function; pass it as"
                f" Ranker(objective={options.function or 'function'})"
            )
        if rows.weights is not None or rows.query_weights is not None:
            raise InvalidParameter(
                "weights are not passed to a user-defined objective; leave them out and apply them inside the function"
            )
        self._function, self._called = _OBJECTIVES[options.function], options.function
        self._targets, self._starts = rows.targets, rows.starts

    def start(self) -> float:
        """Return 0."""
        return 0.0

    def gradients(self, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> None:
        """Let the function write g and h, both (n_rows,)."""
        g[:] = h[:] = np.nan
        self._function(scores, self._targets, self._starts, g, h)
        bad = ~(np.isfinite(g) & np.isfinite(h) & (h >= 0.0))
        if bad.any():
            row = int(np.argmax(bad))
            raise InvalidParameter(
                f"objective {self._called}: row {row}: expected a finite g and an h of 0 or more, found {g[row]} and "
                f"{h[row]}"
            )

    def losses(self, scores: Floats) -> Floats:
        """Refuse: the function knows derivatives only."""
        raise InvalidParameter(f"objective {self._called} has no loss to measure; use a metric")


def remember_objective(function: Lambdas) -> str:
    """Register a function as :class:`UserObjective` takes it, and return its name.

    A later one of that name replaces it.
    """
    name = _name_of(function)
    try:
        signature(getattr(function, "py_func", function)).bind(*"12345")
    except TypeError:  # as LightGBM's (y_true, y_pred) would
        raise InvalidParameter(
            f"objective {name}: expected a function (scores, targets, starts, g, h) that writes g and h, got"
            f" {name}{signature(function)}"
        ) from None
    _OBJECTIVES[name] = function
    return name


def remember_delta(function: Delta) -> str:
    """Remember ``delta(grades, i, j)`` for ``lambdamart(delta=..)``, and return its name.

    ``grades`` (n,) int32 are those of one query in the order of the ranks; i < j are ranks from 0.  The absolute value
    of the result is the change of the metric when the two swap; it must be finite.  Numba compiles the function once
    per process. It is called by its address for every pair, which costs some 30 ns besides its own work; no kernel is
    recompiled.

    Examples
    --------
    >>> from rankmill.trainer.objectives.registry import objective_of
    >>> from rankmill.trainer.team import Team
    >>> def top_heavy(grades, i, j):
    ...     return (grades[i] - grades[j]) * (1.0 / (i + 1) - 1.0 / (j + 1))
    >>> remember_delta(top_heavy)
    'top_heavy'
    >>> rows = RankedRows(np.array([2, 0], np.int32), np.array([0, 2]), [])
    >>> plain = TrainParameters(objective="lambdamart(delta=top_heavy)", lambda_normalisation=False)
    >>> g, h = np.empty(2), np.empty(2)
    >>> objective_of(rows, plain).gradients(1, np.zeros(2), g, h, Team(1))
    >>> g.tolist()
    [-0.5, 0.5]

    Raises
    ------
    InvalidParameter
        Numba cannot compile it.
    """
    from numba import cfunc, types
    from numba.core.errors import NumbaError

    name, plain = _name_of(function), getattr(function, "py_func", function)
    signature = types.float64(types.int32[::1], types.int64, types.int64)
    try:
        _DELTAS[name] = cfunc(signature, error_model="numpy")(plain)
    except (NumbaError, TypeError) as error:
        raise InvalidParameter(f"delta {name}: Numba cannot compile delta(grades, i, j): {error}") from None
    return name


def delta_of(name: str) -> Any:
    """Return the compiled swap delta of that name; InvalidParameter if none is remembered."""
    if name not in _DELTAS:
        raise InvalidParameter(f"lambdamart(delta={name}): unknown function; pass it as Ranker(delta={name})")
    return _DELTAS[name]


def spelled(objective: Any, delta: Any) -> Any:
    """Return the objective as text, after remembering the functions among the two; other values are returned unchanged.

    >>> def mine(scores, targets, starts, g, h): ...
    >>> spelled(mine, None), spelled("ranknet", None)
    ('user(function=mine)', 'ranknet')

    Raises
    ------
    InvalidParameter
        ``delta`` is no function, or comes with another objective than lambdamart.
    """
    if callable(objective):
        objective = f"user(function={remember_objective(objective)})"
    if delta is None:
        return objective
    objective = "lambdamart" if objective is None else objective
    name, options = parse_spelling(objective) if isinstance(objective, str) else ("", {})
    if name != "lambdamart" or "delta" in options or not callable(delta):
        raise InvalidParameter(
            f"delta must be a function delta(grades, i, j) for the objective lambdamart, got {delta!r} for "
            f"{objective!r}"
        )
    options["delta"] = remember_delta(delta)
    return f"{name}({', '.join(f'{key}={value}' for key, value in options.items())})"


@dataclass(frozen=True, slots=True)
class LambdaCheck:
    """The result of :func:`check_lambdas`.

    Attributes
    ----------
    from_a_loss
        Whether the derivatives are symmetric to within the error of the differences.
    asymmetry
        Largest ``|dg_i/ds_j - dg_j/ds_i|`` over the largest ``|dg_i/ds_j|``.
    worst
        The rows i and j where it is.
    """

    from_a_loss: bool
    asymmetry: float
    worst: tuple[int, int]


def check_lambdas(
    function: Lambdas,
    targets: npt.ArrayLike,
    starts: npt.ArrayLike | None = None,
    scores: npt.ArrayLike | None = None,
    *,
    tolerance: float = 1e-4,
    seed: int = 0,
) -> LambdaCheck:
    """Check whether lambdas are the gradient of some loss (Burges 2010, 4.3).

    The order of the scores does not change.

    By Poincare's lemma they are if and only if ``dg_i/ds_j = dg_j/ds_i`` everywhere; this checks one point, by central
    differences too small to change the order.

    Parameters
    ----------
    function
        As for :class:`UserObjective`.
    targets
        (n,) labels of a few documents: the function is called 2 n times.
    starts
        Offsets of the queries; by default there is one query.
    scores
        (n,) scores at which to check, at least 0.001 apart within a query; by default random, by ``seed``.
    tolerance
        Maximum asymmetry of a gradient.

    Examples
    --------
    >>> def ranknet(scores, targets, starts, g, h):
    ...     d = scores[:, None] - scores
    ...     rho = (targets[:, None] > targets) / (1 + np.exp(d))
    ...     g[:], h[:] = rho.sum(axis=0) - rho.sum(axis=1), 1.0
    >>> check_lambdas(ranknet, [2, 0, 1, 0]).from_a_loss
    True
    >>> def one_sided(scores, targets, starts, g, h):
    ...     ranknet(scores, targets, starts, g, h)
    ...     g[g > 0] *= 0.5  # push down by half
    >>> check_lambdas(one_sided, [2, 0, 1, 0]).from_a_loss
    False
    """
    labels = np.ascontiguousarray(targets, dtype=np.float64)
    n = len(labels)
    limits = np.array([0, n]) if starts is None else np.asarray(starts)
    bounds = np.ascontiguousarray(limits, dtype=np.int64)
    rng = np.random.default_rng(seed)
    at = rng.permutation(n) * 0.3 + rng.uniform(0.0, 0.1, n) if scores is None else np.asarray(scores, dtype=np.float64)
    jacobian = _jacobian(function, labels, bounds, at)
    differences = np.abs(jacobian - jacobian.T)
    largest = float(np.abs(jacobian).max(initial=0.0))
    i, j = (int(k) for k in np.unravel_index(int(differences.argmax()), differences.shape)) if n else (0, 0)
    asymmetry = float(differences.max(initial=0.0)) / largest if largest > 0.0 else 0.0
    return LambdaCheck(asymmetry <= tolerance, asymmetry, (i, j))


def _jacobian(function: Lambdas, labels: Floats, bounds: npt.NDArray[np.int64], at: Floats) -> Floats:
    """Return dg_i/ds_j (n, n) at the scores ``at``, by central differences."""
    n, step = len(labels), 1e-5
    jacobian = np.empty((n, n))
    for j in range(n):
        sides = []
        for sign in (1.0, -1.0):
            moved, g, h = at.copy(), np.empty(n), np.empty(n)
            moved[j] += sign * step
            function(moved, labels, bounds, g, h)
            sides.append(g)
        jacobian[:, j] = (sides[0] - sides[1]) / (2.0 * step)
    return jacobian


def swap_filler(function: Any, grades: npt.NDArray[np.int32], starts: npt.NDArray[np.int64]) -> Callable[..., None]:
    """Return the function that writes a table of weights from a compiled delta: see ``Weighing.fill``."""

    def fill(
        order: npt.NDArray[np.uint32], first: int, last: int, depth: int, cells: npt.NDArray[np.int64], table: Floats
    ) -> None:
        longest = int(np.diff(starts[first : last + 1]).max(initial=0))
        bad = _kernels.user_swaps(
            function, order, starts, first, last, grades, depth, cells, np.empty(longest, np.int32), table
        )
        if bad >= 0:
            raise InvalidParameter(
                f"delta: expected a finite number for every pair, found another value in query {bad}"
            )

    return fill


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", "")
    if not callable(function) or not name.isidentifier():
        raise InvalidParameter(f"expected a named function (def, not lambda), got {function!r}")
    return str(name)
