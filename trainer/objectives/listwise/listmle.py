"""ListMLE (Xia et al. 2008): the likelihood of the order of grades under Plackett and Luce's model."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.listwise import _kernels
from rankmill.trainer.objectives.listwise.list_loss import (
    AT_REST,
    DRAWS,
    PAIRS,
    ListLoss,
    key_of,
    mixed_lists,
)
from rankmill.trainer.objectives.protocol import Floats, NoOptions, PairHessians
from rankmill.trainer.objectives.query_shares import QueryShares
from rankmill.trainer.objectives.weights import list_weights
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.team import Team

_LEAST_WORK = 10_000  # minimum documents per worker: some 300 us


class ListMle(ListLoss):
    """Minimise the sum over lists of ``-w log P(order)`` under Plackett-Luce with strengths exp(s) (Xia et al. 2008).

    The order is that of the grades, the highest first; documents of equal grade are shuffled again at every step, keyed
    by (seed, step, query, place).  The shuffle depends on the order of rows, the loss of lists without ties does not.
    A list of one grade has no order and does not count.  g, h and the hessians of pairs are exact for the order drawn::

        g_i = sum x_p - 1,  h_i = sum x_p (1 - x_p),  c_ij = sum x_p(i) x_p(j)

    The sums are over the places p up to that of i (of both); x_p(i) is the probability of i among the documents left at
    place p.  ``losses`` use the order of the last step, the deviance an order that is the same for all steps.  Uses
    ``seed`` of the parameters.

    Raises
    ------
    TrainingDataRejected
        Bad weights, or no query that counts holds two grades.
    """

    name: ClassVar[str] = "listmle"

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: NoOptions) -> None:
        self._starts, self._grades, self._seed = rows.starts, rows.grades, parameters.seed
        self.weights = np.where(mixed_lists(rows), list_weights(rows), 0.0)
        if not self.weights.any():
            raise TrainingDataRejected(
                "no query with a weight above 0 has documents of two different grades,"
                " so there is nothing to learn; check the grades and weights"
            )
        queries = np.repeat(np.arange(rows.n_queries), np.diff(rows.starts))
        self._sorted = np.lexsort((-rows.grades.astype(np.int64), queries)).astype(np.int32)
        self._order = np.empty(rows.n_rows, dtype=np.int32)
        self._chosen, self._left = np.empty(rows.n_rows), np.empty(rows.n_rows)
        self._shares = QueryShares(np.diff(rows.starts), _LEAST_WORK)
        self._draw(AT_REST, self._order)

    def gradients(self, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> None:
        """Write g and h, both (n_rows,), for the order of this step."""
        key = key_of(self._seed, step, DRAWS)

        def share(first: int, last: int, _: int) -> None:
            _kernels.shuffle_ties(self._sorted, self._grades, self._starts, first, last, key, self._order)
            _kernels.likelihood_gradients(
                scores, self._starts, first, last, self._order, self.weights, self._chosen, self._left, g, h
            )

        self._shares.each(team, share)

    def losses(self, scores: Floats) -> Floats:
        """Return -w log P of the order of the last step, (n_queries,)."""
        return self._of_lists(_kernels.likelihood_losses, scores, self._order, self.weights)

    def losses_at_rest(self, scores: Floats) -> Floats:
        """Return -w log P of the order that is the same for all steps, (n_queries,)."""
        order = np.empty_like(self._order)
        self._draw(AT_REST, order)
        return self._of_lists(_kernels.likelihood_losses, scores, order, self.weights)

    def pair_hessians(self, step: int, scores: Floats, least: float, team: Team) -> PairHessians:
        """Return the hessians of the pairs of the last step."""
        key = key_of(self._seed, step, PAIRS)
        return self._shares.pairs(
            team,
            lambda first, last, *out: _kernels.likelihood_pairs(
                self._starts, first, last, self._order, self._chosen, self._left, self.weights, least, key, *out
            ),
        )

    def _draw(self, step: int, order: npt.NDArray[np.int32]) -> None:
        key = key_of(self._seed, step, DRAWS)
        n_queries = len(self.weights)
        _kernels.shuffle_ties(self._sorted, self._grades, self._starts, 0, n_queries, key, order)
