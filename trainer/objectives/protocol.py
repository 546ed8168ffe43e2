"""The protocol of objectives: everything that the boosting loop uses of a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import fsum
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import options
from rankmill.trainer import _kernels

if TYPE_CHECKING:
    from rankmill.trainer.parameters import TrainParameters
    from rankmill.trainer.rows import RankedRows
    from rankmill.trainer.workers import Team

Floats = npt.NDArray[np.float64]
ROWS, QUERIES = "rows", "queries"


@options
class NoOptions:
    """Options of a loss that has none besides the parameters that all losses share."""


@dataclass(frozen=True, slots=True)
class PairHessians:
    """Pairs of rows that move each other's gradient: entries of the Hessian off its diagonal, each pair once.

    ``hessian`` is ``-d2L / ds_first ds_second``, so that a step of all rows of a set D together meets
    ``sum of h over D - 2 (sum of the hessians of pairs inside D)`` (METHODS 1).
    """

    first: npt.NDArray[np.int32]  # (m,) rows
    second: npt.NDArray[np.int32]  # (m,) rows of the same queries, second > first
    hessian: npt.NDArray[np.float64]  # (m,)

    def copy(self) -> PairHessians:
        """Return them in arrays of their own."""
        return PairHessians(self.first.copy(), self.second.copy(), self.hessian.copy())


class Objective(ABC):
    """A loss L over the scores of one set of rows, to be minimised; each has a file of its own here.

    Trees fit ``-g`` and leaves take Newton steps, so ``h`` must be 0 or more; where the true second derivative is
    not, the objective writes a surrogate and its docstring says which.  Arrays have shape (n_rows,), or (n_outputs,
    n_rows) where there are several outputs.  Scores are those that the loss sees: offsets included.

    Parameters
    ----------
    rows
        What is learnt from, or what the loss is measured on.
    parameters
        Those that losses share: ``metric``, ``gain``, ``sigma``, ``truncation``, ``lambda_normalisation``, ``seed``.
    options
        Of the class's own ``Options``, a group of options (``rankmill.foundation.options``).

    Raises
    ------
    InvalidParameter, TrainingDataRejected
        The parameters, or the rows, are none that this loss can take.
    """

    name: ClassVar[str]  # stable: written into the model file
    sums_over: ClassVar[str]  # ROWS or QUERIES: what the loss is a sum of, and what a sample leaves out as a whole
    criteria: ClassVar[tuple[str, ...]]  # by which splits may be chosen, the default first: of rwse, se, ole
    additive: ClassVar[bool] = False  # a sum of terms with one score each: ole is rwse then (METHODS 1, Theorem 1)
    learns_labels: ClassVar[bool] = False  # fits ``rows.targets``, which may be any numbers, and not grades alone
    takes_pairs: ClassVar[bool] = False  # sums over ``rows.pairs`` where there are such, and not over pairs of grades
    bytes_a_pair: ClassVar[int] = 16  # while pairs are listed, the list included
    stops_by_deviance: ClassVar[bool] = False  # scores order rows otherwise than targets do: stop by the loss
    Options: ClassVar[type[Any]] = NoOptions
    n_outputs: int = 1  # scores of a row: a step grows a tree for each
    steps_a_round: int = 1  # gradient steps that make up one round
    link: str = "identity"  # how outputs become one score: see rankmill.scorer.links

    @abstractmethod
    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: Any) -> None: ...

    @cached_property
    def starting_score(self) -> float:
        """What :meth:`start` returns, computed once: it may sort all rows, and several places ask for it."""
        return self.start()

    @abstractmethod
    def start(self) -> float:
        """Return the score that every row starts from, besides its offset; 0 where there are several outputs."""

    @abstractmethod
    def gradients(
        self,
        step: int,
        scores: npt.NDArray[np.float64],  # IN
        g: npt.NDArray[np.float64],  # dL/ds, OUT, every cell written
        h: npt.NDArray[np.float64],  # d2L/ds2, OUT, every cell written
        team: Team,
    ) -> None:
        """Write g and h for step 1, 2, ..; the same bits for any team."""

    @abstractmethod
    def losses(self, scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the weighted parts of L, (n_rows,) or (n_queries,) as ``sums_over`` says; g differentiates their sum."""

    def deviance(self, scores: npt.NDArray[np.float64]) -> float:
        """Return the loss as people report it; where a class does not say otherwise, the mean of its parts."""
        parts = self.losses(scores)
        return fsum(parts.tolist()) / max(1, len(parts))

    def leaf_steps(
        self,
        output: int,
        scores: npt.NDArray[np.float64],
        rows: npt.NDArray[np.int32],
        starts: npt.NDArray[np.int64],
        team: Team,
    ) -> npt.NDArray[np.float64] | None:
        """Return the step (n_leaves,) of each leaf before shrinkage, or None for Newton's.

        Leaf l holds ``rows[starts[l]:starts[l + 1]]``, those that the tree was grown from.  ``scores`` are those that
        the gradients saw, but for the outputs before this one, which have moved already.
        """
        return None

    def pair_hessians(self, step: int, scores: npt.NDArray[np.float64], least: float, team: Team) -> PairHessians:
        """Return the pairs of the gradients of this step, for ``ole``.

        Pairs with a hessian below ``least`` are drawn with probability hessian / least, keyed by seed, step and
        rows, and then count ``least``: sums stay right on average.  0: all pairs.  The arrays may be written anew by the
        next call.
        """
        raise InvalidParameter(f"{self.name} has no pair hessians")

    def hessian_inside(
        self,
        step: int,
        scores: npt.NDArray[np.float64],
        leaf_of_row: npt.NDArray[np.int32],
        n_leaves: int,
        whole: float,
        team: Team,
    ) -> npt.NDArray[np.float64]:
        """Return the hessian (n_leaves,) of the pairs of this step that lie inside each leaf.

        ``leaf_of_row`` (n_rows,) is -1 for rows that belong to none, ``whole`` the sum over all pairs.
        """
        pairs = self.pair_hessians(step, scores, 0.0, team)
        inside = np.zeros(n_leaves, dtype=np.float64)
        _kernels.add_inside(pairs.first, pairs.second, pairs.hessian, leaf_of_row, inside)
        return inside

    @property
    def most_pairs(self) -> int:
        """How many pairs :meth:`pair_hessians` lists at most."""
        return 0

    @property
    def most_leaf_pairs(self) -> int:
        """How many pairs :meth:`hessian_inside` lists at most."""
        return self.most_pairs

    def bytes_held(self, rows: RankedRows) -> int:
        """Return the bytes of the arrays that it keeps besides those of ``rows``, which it was made of."""
        return array_bytes(self, rows)

    def final_weights(self, n_rounds: int) -> tuple[float, float]:
        """Return what every tree, and the start, are multiplied with after ``n_rounds`` rounds."""
        return 1.0, 1.0


def array_bytes(owner: object, but_for: object = None) -> int:
    """Return the bytes of all arrays that ``owner`` holds, each once, without those that ``but_for`` holds too.

    Looks into attributes of our own classes, into mappings, tuples and lists, and at what methods are bound to; not into
    closures.

    >>> shared = np.zeros(10)
    >>> array_bytes((shared[2:], np.zeros(3), [shared]), but_for=[shared])
    24
    """
    seen: set[int] = set()
    _array_bytes(but_for, seen)
    return _array_bytes(owner, seen)


def _array_bytes(thing: object, seen: set[int]) -> int:
    while isinstance(thing, np.ndarray) and isinstance(thing.base, np.ndarray):
        thing = thing.base
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    if isinstance(thing, np.ndarray):
        return thing.nbytes
    parts: list[object] = []
    if isinstance(thing, Mapping):
        parts = list(thing.values())
    elif isinstance(thing, tuple | list):
        parts = list(thing)
    elif isinstance(thing, MethodType):
        parts = [thing.__self__]
    elif type(thing).__module__.partition(".")[0] == "rankmill":
        names = {name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())}
        parts = [*getattr(thing, "__dict__", {}).values(), *(getattr(thing, name, None) for name in names)]
    return sum(_array_bytes(part, seen) for part in parts)
