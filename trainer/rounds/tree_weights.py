"""Weights of the trees of a forest, where they are not all 1: ``dart`` drops trees, ``rf`` averages them.

**dart** (Vinayak & Gilad-Bachrach 2015, LightGBM).  Each round draws k of the earlier rounds and drops them: its
gradients do not see their trees.  Then the new trees get the weight ``1 / (k + 1)``, and those of the dropped rounds
are multiplied by ``k / (k + 1)``, so that together they weigh as much as the dropped ones did.  With
``xgboost_dart_mode`` the weights are ``1 / (k + eta)`` and ``k / (k + eta)``, eta the learning rate.

**rf** (Breiman 2001).  Every round drops all rounds before it: the gradients are those of the start, and all weights
are ``1 / n``.

What is dropped depends on the seed, the round and the weights before it, and these on nothing else.  So the parameters
and the number of rounds determine the weights of a forest.  A model stores its trees as they were grown, and resumes
without other facts.  Training may cut it at any round, with the weights that its trees had then.  ``Forest.truncated``
and ``predict(n_rounds=k)``, which do not draw, give the trees of rf the weight ``1 / k``, and leave those of dart their
final weights.  Such a model cannot be resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankmill.foundation.kernels.randoms import random_keys
from rankmill.trainer.growing.tree import Tree
from rankmill.trainer.objectives.protocol import Objective
from rankmill.trainer.parameters import DART, RF, TrainParameters
from rankmill.trainer.rounds.sampling import DROPPED, uniforms_of


@dataclass(frozen=True, slots=True)
class Change:
    """What a round does to scores: multiply what trees have added so far by ``factor``, then add ``trees``."""

    trees: Sequence[Tree]
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Dropped:
    """The rounds 0, 1, .. that a round drops, ascending.

    Their weights before and after it, and the weight of the round itself, are beside them.
    """

    rounds: npt.NDArray[np.int64]
    before: npt.NDArray[np.float64]
    after: npt.NDArray[np.float64]
    own: float


class Dropout:
    """Draws what the rounds of a member drop, one after another, and keeps the weights of all rounds so far.

    A round drops nothing with probability ``skip_drop``.  Else each earlier round is dropped with probability
    ``drop_rate``, at most ``max_drop / n`` of n, or unless ``uniform_drop`` that times its weight over the mean weight.
    If these are more than ``max_drop``, those with the smallest random numbers are (LightGBM: the first ones).
    """

    def __init__(self, parameters: TrainParameters, member: int = 0) -> None:
        self._parameters, self._member = parameters, member
        self._weights = np.empty(64, dtype=np.float64)
        self._n = 0

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """The weights of the rounds so far, (n_rounds,)."""
        return self._weights[: self._n]

    def next(self) -> Dropped:
        """Return what the next round drops, and count it."""
        p, weights = self._parameters, self.weights
        rounds = self._drawn()
        k, share = len(rounds), p.learning_rate if p.xgboost_dart_mode else 1.0
        before = weights[rounds]
        after, own = before * (k / (k + share)), 1.0 / (k + share) if k else 1.0
        weights[rounds] = after
        if self._n == len(self._weights):
            self._weights = np.concatenate([self._weights, np.empty(self._n, dtype=np.float64)])
        self._weights[self._n] = own
        self._n += 1
        return Dropped(rounds, before, after, own)

    def _drawn(self) -> npt.NDArray[np.int64]:
        p, n, weights = self._parameters, self._n, self.weights
        turn = n * p.members + self._member + 1
        numbers = uniforms_of(random_keys(p.seed, DROPPED, turn, np.arange(n + 1)))
        if n == 0 or numbers[0] < p.skip_drop:
            return np.empty(0, dtype=np.int64)
        rate = min(p.drop_rate, p.max_drop / n) if p.max_drop else p.drop_rate
        chances = np.full(n, rate) if p.uniform_drop else rate * weights * (n / weights.sum())
        drawn = np.flatnonzero(numbers[1:] < chances)
        if p.max_drop and len(drawn) > p.max_drop:
            order = np.argsort(numbers[1:][drawn], kind="stable")
            drawn = np.sort(drawn[order[: p.max_drop]])
        return drawn


def weights_of_trees(objective: Objective, parameters: TrainParameters, n_rounds: int) -> npt.NDArray[np.float64]:
    """Return the weight of every tree of a forest, (n_trees,): member after member in each round."""
    a_round = objective.n_outputs * objective.steps_a_round * parameters.members
    found = weights_of_boosting(parameters, n_rounds, a_round)
    if found is not None:
        return found
    of_tree, _ = objective.final_weights(n_rounds)
    return np.full(n_rounds * a_round, of_tree / parameters.members, dtype=np.float64)


def weights_of_boosting(parameters: TrainParameters, n_rounds: int, a_round: int) -> npt.NDArray[np.float64] | None:
    """Return the weight of every tree of dart and rf, ``a_round`` in each round. None: the objective decides."""
    p = parameters
    if p.boosting == RF:
        return np.full(n_rounds * a_round, 1.0 / max(1, n_rounds), dtype=np.float64)
    if p.boosting != DART:
        return None
    dropouts = [Dropout(p, member) for member in range(p.members)]
    for dropout in dropouts:
        for _ in range(n_rounds):
            dropout.next()
    of_round = np.stack([dropout.weights for dropout in dropouts], axis=1) / p.members
    return np.repeat(of_round.reshape(-1), a_round // p.members)
