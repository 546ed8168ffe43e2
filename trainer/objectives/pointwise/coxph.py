"""Times until an event, some of them censored: Cox's proportional hazards."""

from __future__ import annotations

from math import fsum
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.pointwise import _kernels as kernels
from rankmill.trainer.objectives.pointwise.document_loss import Floats
from rankmill.trainer.objectives.protocol import (
    OF_GRADIENTS,
    ROWS,
    Learns,
    Leaves,
    Limits,
    NoOptions,
    Objective,
    Splits,
)
from rankmill.trainer.objectives.weights import document_weights
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.team import Team

LEAST_RIDGE = 1e-9  # of the largest diagonal element, added to the joint Newton system


class CoxPH(Objective):
    """Minimise Cox's negative partial log-likelihood over all rows (gbm guide 4.6, corrected).

    A row has a time t, its label (or grade), and an event d: 1 if it was observed, 0 if the time is censored.  With
    R_i = the sum of w_j e^s_j over the risk set {j: t_j >= t_i}::

        L   = sum_i w_i d_i (log R_i - s_i)
        g_i = -w_i d_i + sum_{j: t_j <= t_i} w_j d_j p_ji          p_ji = w_i e^s_i / R_j
        h_i = sum_{j: t_j <= t_i} w_j d_j p_ji (1 - p_ji)

    Events of one time share one risk set (Breslow's way with ties, as in the guide and in XGBoost; not Efron's).  Rows
    are sorted by time once, then every gradient takes O(n).  A high score is an early event.  Queries play no part.

    Leaves: one Newton step for all leaves of a tree together, over the rows that the tree was grown from, with their
    own risk sets.  The system is singular, since a constant changes no risk: ``lambda_l2`` and 1e-9 of its largest
    diagonal element are added to the diagonal, so that a leaf in no risk set does not move.

    Criterion ``ole`` is not permitted: every two rows share risk sets, whatever their queries, so the exact hessian of
    a group needs n^2 pairs.  Start: 0.  Deviance: ``2 / sum w`` times L with log(R_i / w_i) for log R_i.
    """

    name: ClassVar[str] = "coxph"
    sums_over: ClassVar[str] = ROWS
    splits: ClassVar[Splits] = OF_GRADIENTS
    # the highest scores have the earliest times, which are the lowest targets
    learns: ClassVar[Learns] = Learns(labels=True, order=False)
    limits: Limits = Limits(*2 * ("documents of all queries share risk sets",))

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: NoOptions) -> None:
        self._times = np.ascontiguousarray(rows.targets, dtype=np.float64)
        self._weights = document_weights(rows)
        n = len(self._times)
        self._events = np.ones(n, dtype=np.uint8) if rows.events is None else np.ascontiguousarray(rows.events)
        self._ridge = parameters.lambda_l2
        self._order = np.argsort(-self._times, kind="stable").astype(np.int32)
        self._space = np.empty((4, n), dtype=np.float64)

    def start(self) -> float:
        """Return 0: a constant changes no risk."""
        weighed = self._events != 0
        if len(self._weights):
            weighed &= self._weights > 0.0
        if not weighed.any():
            raise TrainingDataRejected(
                "coxph: no row has an event, so there is nothing to learn; set the column event to 1"
                " where the event happened"
            )
        return 0.0

    def gradients(self, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> None:
        """Write g and h in two passes over the rows by time."""
        hazards, _, slopes, bends, _ = self._risks(scores, self._order)
        kernels.hazard(self._events, self._weights, self._order, hazards, slopes, bends, g, h)

    def losses(self, scores: Floats) -> Floats:
        """Return w d (log R - s), (n_rows,)."""
        out = np.empty(len(self._times), dtype=np.float64)
        _, risk, _, _, top = self._risks(scores, self._order)
        kernels.hazard_losses(scores, self._events, self._weights, self._order, risk, top, out)
        return out

    def deviance(self, scores: Floats) -> float:
        """Return twice the mean loss, with log(R / w) for log R."""
        entropy = float(kernels.event_entropy(self._events, self._weights))
        return 2.0 * (fsum(self.losses(scores).tolist()) - entropy) / max(1, len(self._times))

    def leaf_steps(self, output: int, scores: Floats, leaves: Leaves) -> Floats:
        """Return the joint Newton step of all leaves."""
        rows, starts, _ = leaves
        leaf_of = np.full(len(scores), -1, dtype=np.int32)
        leaf_of[rows[: starts[-1]]] = np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))
        order = np.ascontiguousarray(self._order[leaf_of[self._order] >= 0])
        hazards, _, slopes, bends, _ = self._risks(scores, order)
        n_leaves = len(starts) - 1
        out = np.empty(n_leaves, dtype=np.float64)
        kernels.hazard_steps(
            self._events, self._weights, order, leaf_of, hazards, slopes, bends, self._ridge, LEAST_RIDGE,
            np.empty((n_leaves, n_leaves)), np.empty(n_leaves), out,
        )  # fmt: skip
        return out

    def _risks(self, scores: Floats, order: npt.NDArray[np.int32]) -> tuple[Floats, Floats, Floats, Floats, float]:
        """Return hazards, risks, slopes and bends by the places in ``order``, and the score that hazards count from."""
        hazards, risk, slopes, bends = self._space
        top = kernels.risks(
            scores, self._times, self._events, self._weights, order, hazards, risk, slopes, bends
        )  # fmt: skip
        return hazards, risk, slopes, bends, float(top)
