"""The position-based click model with relevance by trees: regression EM (Wang et al., WSDM 2018)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.foundation.kernels.elementary import log_positive
from rankmill.foundation.records import JSON
from rankmill.trainer.clicks.position_bias import POSITION_BIAS
from rankmill.trainer.objectives.pointwise import _position_kernels as kernels
from rankmill.trainer.objectives.pointwise.document_loss import Floats, Pointwise
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.workers import Team

_LEAST = 1e-4  # examination probability


class PositionBased(Pointwise):
    r"""Minimise ``-w (y log(theta_k gamma) + (1 - y) log(1 - theta_k gamma))``, gamma = 1 / (1 + e^-s), y a click or a click-through rate.

    theta_k is the probability that users examine position k, 1 at the first one, and is left out of predictions.  Each step is one of
    regression EM: with the probabilities of relevance r and of examination given what happened, g = w (gamma - r), h = w gamma (1 -
    gamma), and theta_k becomes the weighted mean of the examinations at k.  Wang et al. fit new trees in every step; here each adds a
    round, which is still EM (a generalised one), as g is also the gradient of the loss itself; h, a surrogate, is that of the expected complete loss.

    theta starts at the click-through rates relative to that of the first position, as if relevance were alike everywhere.
    Without positions theta is 1, and this is `bernoulli` with targets between 0 and 1.  Labels or grades above 1 count as 1.
    Start: the log odds of the rate at the first position.  Deviance: twice the weighted mean of the loss, with the newest theta.

    Raises
    ------
    TrainingDataRejected
        A label is negative, or nothing or everything was clicked at the first position.
    """

    name: ClassVar[str] = "position_based"
    deviance_factor: ClassVar[float] = 2.0
    takes_positions: ClassVar[bool] = True
    remembers: ClassVar[bool] = True
    needs_trees: ClassVar[str] = "it learns from step to step how likely users examine each position"
    needs_all_rows: str = needs_trees

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: Any) -> None:
        super().__init__(rows, parameters, options)
        if (self._targets < 0.0).any():
            row = int(np.argmax(self._targets < 0.0))
            raise TrainingDataRejected(
                f"{self.name} expects clicks or click-through rates, found {self._targets[row]} in row {row}"
            )
        self._targets = np.minimum(self._targets, 1.0)
        self._known = rows.positions is not None
        positions = np.ones(rows.n_rows, dtype=np.int32) if rows.positions is None else rows.positions
        self._positions, places = np.unique(positions, return_inverse=True)
        self._place = places.reshape(-1).astype(np.int32)
        weights = self._weights if len(self._weights) else np.ones(rows.n_rows)
        shown = self._sums(weights)
        self._shown = np.where(shown > 0.0, shown, 1.0)
        rates = self._sums(weights * self._targets) / self._shown
        self._rate = float(rates[0]) if len(rates) else 0.0
        # of each step, those of all members in turn
        first = np.clip(rates / (self._rate or 1.0), _LEAST, 1.0 - _LEAST)
        first[:1] = 1.0
        self._members = parameters.members
        self._learnt = [first] * self._members
        self._theta, self._examined = first, np.empty(rows.n_rows)

    def start(self) -> float:
        """Return the log odds of a click at the first position."""
        if not 0.0 < self._rate < 1.0:
            found = "no click" if self._rate == 0.0 else "nothing but clicks"
            raise TrainingDataRejected(
                f"{self.name}: the first position has {found}, so that examination cannot be told from relevance"
            )
        return float(log_positive(self._rate / (1.0 - self._rate)))

    def gradients(self, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> None:
        """Write g and h with the examination of this step, and learn that of the next.

        A step may come again; one that is not the next takes the newest examination.
        """
        at = min(step, len(self._learnt)) - 1
        self._theta = self._learnt[at]
        super().gradients(step, scores, g, h, team)
        following = np.clip(self._sums(self._examined) / self._shown, _LEAST, 1.0)
        following[:1] = 1.0
        self._learnt[at + self._members :] = [following]

    def _write_gradients(self, scores: Floats, first: int, last: int, g: Floats, h: Floats) -> None:
        kernels.examined_clicks(
            scores, self._place, self._theta, self._targets, self._weights, first, last, g, h, self._examined
        )

    def _write_losses(self, scores: Floats, out: Floats) -> None:
        kernels.examined_losses(scores, self._place, self._learnt[-1], self._targets, self._weights, out)

    def learnt(self, n_rounds: int) -> dict[str, JSON]:
        """Return the examination probability of each position after these rounds, averaged over members."""
        if not self._known:
            return {}
        last = min((n_rounds + 1) * self._members, len(self._learnt))
        theta = np.mean(self._learnt[last - self._members : last], axis=0)
        return {POSITION_BIAS: {"position": self._positions.tolist(), "examination": theta.tolist()}}

    def _sums(self, values: Floats) -> Floats:
        """Return the sums of ``values`` (n_rows,) by position, added up in the order of the rows."""
        return np.bincount(self._place, weights=values, minlength=len(self._positions)).astype(np.float64, copy=False)
