"""ListNet (Cao et al. 2007): cross entropy between two distributions over the documents of a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.trainer.objectives.listwise import _kernels
from rankmill.trainer.objectives.listwise.list_loss import ListLoss, gains_of, list_weights, mixed_lists
from rankmill.trainer.objectives.protocol import PairCurvatures
from rankmill.trainer.objectives.sharing import QueryShares
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.workers import Team

TARGETS = ("gain", "exp_grade")
_LEAST_WORK = 20_000  # documents a worker: some 300 us


@dataclass(frozen=True, slots=True, kw_only=True)
class ListNetOptions:
    """``target``: a document's share of the gains of its list, or of the exp(grade), which ListNet was published with.

    Raises
    ------
    InvalidParameter
        ``target`` is neither ``gain`` nor ``exp_grade``.
    """

    target: str = "gain"

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise InvalidParameter(f"target must be one of {', '.join(TARGETS)}, got {self.target!r}")


class ListNet(ListLoss):
    """Minimise the sum over lists of ``-w sum t_i log p_i``, p the softmax of the scores (METHODS 3.18).

    g = w (p - t), h = w p (1 - p), pairs curve by w p_i p_j: all exact.  Targets t sum to 1 over a list; one without any
    gain has none and does not count.  Uses ``gain`` and, for samples of pairs, ``seed`` of the parameters.

    Raises
    ------
    TrainingDataRejected
        Bad weights, or no query that counts holds two grades.
    """

    name: ClassVar[str] = "listnet"
    Options: ClassVar[type[ListNetOptions]] = ListNetOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: ListNetOptions) -> None:
        self._starts, self._seed = rows.starts, parameters.seed
        mixed_lists(rows)
        self._targets = np.empty(rows.n_rows)
        if options.target == "gain":
            values = gains_of(rows, parameters)
        else:
            values = np.empty(rows.n_rows)
            _kernels.exponentials_of_lists(rows.grades.astype(np.float64), rows.starts, values)
        sums = np.empty(rows.n_queries)
        _kernels.shares_of_lists(values, rows.starts, self._targets, sums)
        self.weights = np.where(sums > 0.0, list_weights(rows), 0.0)
        if not self.weights.any():
            raise TrainingDataRejected("no list with a gain has a weight above 0, so there is nothing to learn")
        self._shares = QueryShares(np.diff(rows.starts), _LEAST_WORK)

    def gradients(
        self,
        step: int,  # noqa: ARG002 - nothing is drawn
        scores: npt.NDArray[np.float64],
        g: npt.NDArray[np.float64],
        h: npt.NDArray[np.float64],
        team: Team,
    ) -> None:
        """Write g and h, both (n_rows,)."""
        self._shares.each(
            team,
            lambda first, last, _: _kernels.softmax_gradients(
                scores, self._starts, first, last, self._targets, self.weights, g, h
            ),
        )

    def losses(self, scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the cross entropy of every list times its weight, (n_queries,)."""
        out = np.empty(len(self.weights))
        _kernels.softmax_losses(scores, self._starts, self._targets, self.weights, out)
        return out

    def pair_curvatures(self, step: int, scores: npt.NDArray[np.float64], least: float, team: Team) -> PairCurvatures:
        """Return w p_i p_j of all pairs of a list."""
        masses, spare = np.empty(len(scores)), np.empty(len(scores))
        self._shares.each(
            team,
            lambda first, last, _: _kernels.softmax_masses(
                scores, self._starts, first, last, self.weights, spare, masses
            ),
        )
        return self._product_pairs(step, masses, self.weights, least, team)


class Softmax(ListNet):
    """:class:`ListNet` under the name that other trainers give it."""

    name: ClassVar[str] = "softmax"
