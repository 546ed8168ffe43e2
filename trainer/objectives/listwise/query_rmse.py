"""Squared error of what differs within a query, as CatBoost's QueryRMSE."""

from __future__ import annotations

from math import fsum
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from rankmill.trainer.objectives.listwise import _kernels
from rankmill.trainer.objectives.listwise.list_loss import ListLoss
from rankmill.trainer.objectives.protocol import NoOptions, PairCurvatures
from rankmill.trainer.objectives.sharing import QueryShares
from rankmill.trainer.objectives.weights import document_weights
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.workers import Team

_LEAST_WORK = 100_000  # documents a worker: some 300 us


class QueryRmse(ListLoss):
    """Minimise the sum of ``w (r - mean of r over its query)^2 / 2`` with r = s - y and the weighted mean.

    The same as ``w_i w_j (r_i - r_j)^2 / (2 W)`` over the pairs of a query, W the sum of its weights: so documents keep
    weights of their own (a document's times its query's, relative) and gradients still sum to 0.  g = w (r - mean),
    h = w (1 - w / W), pairs curve by w_i w_j / W: all exact.  y is the label, or the grade where there are none.

    Uses ``seed`` of the parameters for samples of pairs.  TrainingDataRejected for bad weights.
    """

    name: ClassVar[str] = "query_rmse"
    learns_labels: ClassVar[bool] = True

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: NoOptions) -> None:  # noqa: ARG002
        self._starts, self._seed, self._targets = rows.starts, parameters.seed, rows.targets
        weights = document_weights(rows)
        self._of_rows = weights if len(weights) else np.ones(rows.n_rows)
        shares, self.weights = np.empty(rows.n_rows), np.empty(rows.n_queries)
        _kernels.shares_of_lists(self._of_rows, rows.starts, shares, self.weights)
        self._inverse = np.where(self.weights > 0.0, 1.0 / np.where(self.weights > 0.0, self.weights, 1.0), 0.0)
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
            lambda first, last, _: _kernels.centred_gradients(
                scores, self._starts, first, last, self._targets, self._of_rows, g, h
            ),
        )

    def losses(self, scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return half the weighted sum of squares of every query, (n_queries,)."""
        out = np.empty(len(self.weights))
        _kernels.centred_losses(scores, self._starts, self._targets, self._of_rows, out)
        return out

    def deviance(self, scores: npt.NDArray[np.float64]) -> float:
        """Return the root of the weighted mean of (r - mean of r)^2, as CatBoost does."""
        mean = 2.0 * fsum(self.losses(scores).tolist()) / fsum(self.weights.tolist())
        return float(np.sqrt(mean))

    def pair_curvatures(
        self,
        step: int,
        scores: npt.NDArray[np.float64],  # noqa: ARG002 - they change no curvature
        least: float,
        team: Team,
    ) -> PairCurvatures:
        """Return w_i w_j / W of all pairs of a query."""
        return self._product_pairs(step, self._of_rows, self._inverse, least, team)
