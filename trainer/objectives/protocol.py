"""The protocol of objectives: everything that the boosting loop uses of a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import fsum
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import options
from rankmill.foundation.records import JSON

if TYPE_CHECKING:
    from rankmill.trainer.data.rows import RankedRows
    from rankmill.trainer.parameters import TrainParameters
    from rankmill.trainer.team import Team

Floats = npt.NDArray[np.float64]
ROWS, QUERIES = "rows", "queries"
LEAST_LEAF_ROWS = 16_384  # minimum rows of leaves per worker
_PAIRS_AT_ONCE = 1 << 16  # whose leaves are looked up together
ONE_GRADE = (
    "no query has documents of two different grades, so there is nothing to learn; check the grades (for real labels "
    "use objective l2 or query_rmse), and the query ids if every query has one document"
)


@options
class NoOptions:
    """Options of a loss that has none besides the parameters that all losses share."""


@dataclass(frozen=True, slots=True)
class PairHessians:
    """Pairs of rows with a mixed second derivative: off-diagonal entries of the Hessian, each pair once.

    ``hessian`` is ``-d2L / ds_first ds_second``, so that a joint step of the rows of a set D has the hessian
    ``sum of h over D - 2 (sum of the hessians of pairs inside D)`` (docs/objectives/criteria.md).
    """

    first: npt.NDArray[np.int32]  # (m,) rows
    second: npt.NDArray[np.int32]  # (m,) rows of the same queries, second > first
    hessian: npt.NDArray[np.float64]  # (m,)

    def copy(self) -> PairHessians:
        """Return a copy with its own arrays."""
        return PairHessians(self.first.copy(), self.second.copy(), self.hessian.copy())


class Leaves(NamedTuple):
    """The rows that a tree was grown from: leaf l has ``rows[starts[l]:starts[l + 1]]``."""

    rows: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]  # (n_leaves + 1,)
    team: Team  # that may share the work

    def share(self, task: Callable[[int, int], object]) -> None:
        """Run ``task(first_leaf, last_leaf)`` once for every leaf; workers get about the same number of rows."""
        n_leaves, n_rows = len(self.starts) - 1, int(self.starts[-1])
        busy = self.team.busy(n_rows, LEAST_LEAF_ROWS)
        cuts = np.searchsorted(self.starts, n_rows * np.arange(busy + 1) // busy)
        cuts[0], cuts[-1] = 0, n_leaves
        self.team.each(lambda worker: task(int(cuts[worker]), int(cuts[worker + 1])), busy)


@dataclass(frozen=True, slots=True)
class Learns:
    """What a loss learns from."""

    labels: bool = False  # fits ``rows.targets``, which may be any numbers, not only grades
    pairs: bool = False  # sums over ``rows.pairs`` if given, instead of pairs of grades
    order: bool = True  # scores order rows as targets do; if not, training stops by the loss


@dataclass(frozen=True, slots=True)
class Splits:
    """How the splits of a loss may be chosen."""

    criteria: tuple[str, ...]  # of rwse, se and ole, the default first
    additive: bool = False  # a sum of terms with one score each: ole is rwse then (Xia, Zhai & Wang, theorem 1)
    bytes_a_pair: int = 16  # memory while pairs are listed, the list included

    def criterion(self, wanted: str) -> str:
        """Return the criterion of a training, by default the first one; ``ole`` of single terms is ``rwse``."""
        found = wanted or self.criteria[0]
        return "rwse" if found == "ole" and self.additive else found

    def exact_leaves(self, wanted: str, leaf: str) -> bool:
        """Whether the hessian of a leaf leaves out pairs inside it; by default if splits are chosen that way."""
        default = "exact" if self.criterion(wanted) == "ole" else "newton"
        return not self.additive and (leaf or default) == "exact"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a loss does not work with, and why; empty: it does."""

    nets: str = ""  # which learn batch by batch
    cluster: str = ""  # whose workers have a part of the rows each
    averages: str = ""  # of several forests that are boosted with this loss
    replays: str = ""  # of trees without gradients: those depend on the ones of earlier steps


ALL_CRITERIA, OF_GRADIENTS = Splits(("rwse", "se", "ole")), Splits(("rwse", "se"))


class Objective(ABC):
    """A loss L over the scores of one set of rows, to be minimised.

    Trees fit ``-g`` and leaves take Newton steps, so ``h`` must be 0 or more. If the true second derivative is
    negative, the objective writes a surrogate, which its docstring names.  Arrays have shape (n_rows,), or (n_outputs,
    n_rows) if there are several outputs.  Scores include offsets.

    Parameters
    ----------
    rows
        The rows to learn from, or to measure the loss on.
    parameters
        The parameters that losses share: ``metric``, ``gain``, ``sigma``, ``truncation``, ``lambda_normalisation``,
        ``seed``.
    options
        An instance of the class's ``Options``, a group of options (``rankmill.foundation.options``).

    Raises
    ------
    InvalidParameter, TrainingDataRejected
        The loss does not accept the parameters or the rows.
    """

    name: ClassVar[str]  # stable: written into the model file
    sums_over: ClassVar[str]  # ROWS or QUERIES: the terms of the loss, and the unit of sampling
    splits: ClassVar[Splits]
    learns: ClassVar[Learns] = Learns()
    limits: Limits = Limits()
    Options: ClassVar[type[Any]] = NoOptions
    n_outputs: int = 1  # scores per row: a step grows a tree for each
    steps_a_round: int = 1  # gradient steps that make up one round
    link: str = "identity"  # how outputs become one score: see rankmill.scorer.forest.links
    _shares: Any  # QueryShares, of losses over pairs and lists

    @abstractmethod
    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: Any) -> None: ...

    @cached_property
    def starting_score(self) -> float:
        """The result of :meth:`start`, computed once, since it may sort all rows."""
        return self.start()

    @abstractmethod
    def start(self) -> float:
        """Return the score that every row starts from, besides its offset; 0 if there are several outputs."""

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

    def limit_to(self, first_query: int, last_query: int) -> None:
        """Let later calls of :meth:`gradients` write the rows of these queries only: a batch of a net.

        Raises
        ------
        InvalidParameter
            The loss is not a sum over queries, each of which depends on its own scores only, or needs more than one
            score.
        """
        if self.limits.nets:
            raise InvalidParameter(
                f"{self.name} does not work with nets, which learn from batches of queries: {self.limits.nets}; use "
                "another objective, such as lambdamart, softmax or l2"
            )
        self.write_only(first_query, last_query)

    def write_only(self, first_query: int, last_query: int) -> None:
        """Let later calls of :meth:`gradients` write the rows of these queries only, whatever the loss of others is."""
        self._shares.limit_to(first_query, last_query)

    def in_order(self, queries: npt.NDArray[np.intp], rows: npt.NDArray[np.int64]) -> Objective | None:
        """Return the loss of the same rows with their ``queries`` in this order, as it would be made of them.

        ``rows`` (n_rows,) are their rows one after another.  None: it must be made anew.
        """
        return None

    @abstractmethod
    def losses(self, scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the weighted parts of L; g differentiates their sum.

        The shape is (n_rows,) or (n_queries,), by ``sums_over``.
        """

    def deviance(self, scores: npt.NDArray[np.float64]) -> float:
        """Return the loss as it is usually reported; by default the mean of its parts."""
        parts = self.losses(scores)
        return fsum(parts.tolist()) / max(1, len(parts))

    def leaf_steps(
        self, output: int, scores: npt.NDArray[np.float64], leaves: Leaves
    ) -> npt.NDArray[np.float64] | None:
        """Return the step (n_leaves,) of each leaf before shrinkage, or None for Newton's.

        ``scores`` are those of the gradients, but earlier outputs have already been updated.
        """
        return None

    @classmethod
    def has_own_leaves(cls) -> bool:
        """Whether :meth:`leaf_steps` returns other steps than Newton's."""
        return cls.leaf_steps is not Objective.leaf_steps

    def pair_hessians(self, step: int, scores: npt.NDArray[np.float64], least: float, team: Team) -> PairHessians:
        """Return the pairs of the gradients of this step, for ``ole``.

        Pairs with a hessian below ``least`` are kept with probability hessian / least, keyed by seed, step and rows,
        and then have the hessian ``least``: sums are unbiased.  0: all pairs.  The next call may overwrite the arrays.
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

        ``leaf_of_row`` (n_rows,) is -1 for rows in no leaf, ``whole`` the sum over all pairs.
        """
        pairs = self.pair_hessians(step, scores, 0.0, team)
        inside = np.zeros(n_leaves)
        for begin in range(0, len(pairs.first), _PAIRS_AT_ONCE):
            some = slice(begin, begin + _PAIRS_AT_ONCE)
            leaf = leaf_of_row[pairs.first[some]]
            within = (leaf >= 0) & (leaf == leaf_of_row[pairs.second[some]])
            np.add.at(inside, leaf[within], pairs.hessian[some][within])  # pair by pair, as in one go
        return inside

    @property
    def most_pairs(self) -> int:
        """Maximum number of pairs that :meth:`pair_hessians` lists."""
        return 0

    @property
    def most_leaf_pairs(self) -> int:
        """Maximum number of pairs that :meth:`hessian_inside` lists."""
        return self.most_pairs

    def bytes_held(self, rows: RankedRows) -> int:
        """Return the bytes of the arrays that it holds besides those of ``rows``."""
        return array_bytes(self, rows)

    def learnt(self, n_rounds: int) -> dict[str, JSON]:
        """Return what it has learnt besides trees in the first ``n_rounds`` rounds, for the facts of the model."""
        return {}

    def final_weights(self, n_rounds: int) -> tuple[float, float]:
        """Return the factors of every tree and of the start after ``n_rounds`` rounds."""
        return 1.0, 1.0


def array_bytes(owner: object, but_for: object = None) -> int:
    """Return the bytes of all arrays that ``owner`` holds, each once, without those that ``but_for`` holds too.

    Follows attributes of our own classes, mappings, tuples, lists and the objects of bound methods, but not closures.

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
