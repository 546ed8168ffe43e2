"""Losses that grow several trees a round, as plain as they can be, for the tests of this folder."""

from __future__ import annotations

import numpy as np

from rankmill.trainer.objectives.pointwise.regression import SquaredError
from rankmill.trainer.objectives.protocol import ROWS, Objective


class Multinomial(Objective):
    """Minus log likelihood of the grade under a softmax of as many outputs as there are grades."""

    name = "multinomial"
    sums_over = ROWS
    criteria = ("rwse",)
    link = "softmax_grade"

    def __init__(self, rows, parameters, options):
        self._grades = rows.grades
        self.n_outputs = 5

    def start(self):
        return 0.0

    def _probabilities(self, scores):
        masses = np.exp(scores - scores.max(axis=0))
        return masses / masses.sum(axis=0)

    def gradients(self, step, scores, g, h, team):
        p = self._probabilities(scores)
        g[:] = p - (np.arange(self.n_outputs)[:, None] == self._grades)
        h[:] = p * (1.0 - p)

    def losses(self, scores):
        return -np.log(self._probabilities(scores)[self._grades, np.arange(len(self._grades))])


class Averaged(SquaredError):
    """Two steps a round; in the end everything is divided by one more than the rounds, as GBRank averages them."""

    name = "averaged"
    steps_a_round = 2

    def final_weights(self, n_rounds):
        return 1.0 / (n_rounds + 1), 1.0 / (n_rounds + 1)
