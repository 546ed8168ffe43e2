"""Correct position bias while training on impressions.

Lists are as they were shown; clicked documents have grade 1, the others 0.

Both corrections wrap the loss of the train split, learn one number or two for each position beside the trees, and leave
them out of predictions:

``additive``
    Gradients are those of the scores s_d + b_k, where k is the position of the document d.  After every round b takes a
    Newton step, ``b_k += learning_rate (-G_k - l2 n_k b_k) / (H_k + l2 n_k + 0.001)``, with the sums G and H of
    gradients and hessians over the n_k documents at k.  It is what LightGBM does with the field ``position``.
``unbiased``
    Unbiased LambdaMART (Hu, Wang, Peng & Li, WWW 2019): the pair of a clicked document at i and another at j is
    weighted by 1 / (t+_i t-_j).  After every round t+_k is (L+_k / L+_1)^(1 / (1 + norm)), where L+_k is the loss of
    the pairs whose clicked document is at k, times 1 / t-_j (equation 30 of the paper); t- is the same for the other
    document (31).  Ratios start at 1, and positions without loss keep theirs.

    The loss in L+ and L- is that of equal scores: log 2, times the weight of the pair in an order drawn anew each
    round.  The paper takes the loss at the scores of the round, log(1 + exp(s_j - s_i)).  But trees soon rank clicks as
    the log did, so pairs in the order of the log lose little: t+ becomes too flat, and t- of the last positions so
    small that its weights undo those of t+.  XGBoost takes log(1 + exp(s_i - s_j)), which grows instead: t+ becomes too
    steep, also on clicks without position bias.  After the first round all three are the same.
    docs/benchmarks/clicks.md compares them.

Steps are computed from sums in the order of the rows, so that they do not depend on threads.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.foundation.options import spelled
from rankmill.foundation.records import JSON
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.pairwise.pair_loss import PairObjective
from rankmill.trainer.objectives.protocol import Floats, Leaves, Limits, Objective, PairHessians
from rankmill.trainer.objectives.weights import relative_weights
from rankmill.trainer.parameters import ADDITIVE, TrainParameters
from rankmill.trainer.team import Team

POSITION_BIAS = "position_bias"  # in the facts of a model

_RIDGE = 0.001  # added to the hessian of an additive step
_LEAST_RATIO = 1e-3  # of the unbiased weights, so that no pair outweighs a thousand others


def with_position_bias(loss: Objective, rows: RankedRows, parameters: TrainParameters) -> Objective:
    """Return ``loss`` over ``rows`` with the correction ``parameters.position_bias``.

    Raises
    ------
    InvalidParameter
        The correction does not go with the loss.
    TrainingDataRejected
        There are no positions, or ``unbiased`` finds grades other than 0 and 1.
    """
    here = f"{spelled('position_bias')} {parameters.position_bias!r}"
    if rows.positions is None:
        raise TrainingDataRejected(
            f"{here} needs the position at which each document was shown; add a column 'position' to the data (in "
            "Python: position= of Ranker.fit)"
        )
    if parameters.position_bias == ADDITIVE:
        return _wrapper_of(type(loss), _Additive)(loss, rows, parameters)
    if not isinstance(loss, PairObjective):
        raise InvalidParameter(
            f"{here} weighs pairs of a clicked document and another, but {loss.name} has none; use lambdamart, "
            "ranknet or additive"
        )
    if rows.pairs is not None:
        raise InvalidParameter(f"{here} needs the pairs of clicks; set {spelled('learn_from')} to grades")
    if rows.grades.max(initial=0) > 1:
        raise TrainingDataRejected(
            f"{here}: expected the grades 1 (clicked) and 0, found {int(rows.grades.max())}; use additive, or a "
            "dataset of impressions"
        )
    return _wrapper_of(type(loss), _Unbiased)(loss, rows, parameters)


class _Wrapper(Objective):
    """A loss whose scores, or weights, depend on numbers by position, which change after every step.

    The numbers of a step are those learnt up to the step before, for all that is asked about the step.
    """

    limits: Limits = Limits(*2 * ("position bias is learnt once a round",), replays="numbers are learnt step by step")

    def __init__(self, loss: Objective, rows: RankedRows, parameters: TrainParameters) -> None:  # noqa: ARG002 - of subclasses
        assert rows.positions is not None  # noqa: S101 - the caller's check
        self.loss = loss
        self._names, numbers = np.unique(rows.positions, return_inverse=True)
        self._number = numbers.reshape(-1).astype(np.int32)
        self._learnt = [self._begin(len(self._names))]  # after each step; (kinds of numbers, positions)

    def start(self) -> float:
        """Return the start of the loss."""
        return self.loss.starting_score

    def gradients(self, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> None:
        """Write g and h with the numbers of this step, and estimate those of the next.

        Steps come in order, each once or more.
        """
        numbers = self._learnt[step - 1]
        self._use(numbers)
        self._learnt[step:] = [self._next(numbers, step, scores, g, h, team)]

    def losses(self, scores: Floats) -> Floats:
        """Return the parts of the loss with the numbers of the last step."""
        return self.loss.losses(self._seen(scores))

    def deviance(self, scores: Floats) -> float:
        """Return the loss as it is usually reported, with the numbers of the last step."""
        return self.loss.deviance(self._seen(scores))

    def leaf_steps(self, output: int, scores: Floats, leaves: Leaves) -> Floats | None:
        """Return the steps of the loss."""
        return self.loss.leaf_steps(output, self._seen(scores), leaves)

    def pair_hessians(self, step: int, scores: Floats, least: float, team: Team) -> PairHessians:
        """Return the pairs of the loss."""
        return self.loss.pair_hessians(step, self._seen(scores), least, team)

    def hessian_inside(
        self, step: int, scores: Floats, leaf_of_row: npt.NDArray[np.int32], n_leaves: int, whole: float, team: Team
    ) -> Floats:
        """Return the hessians of the pairs inside each leaf of the loss."""
        return self.loss.hessian_inside(step, self._seen(scores), leaf_of_row, n_leaves, whole, team)

    @property
    def most_pairs(self) -> int:
        """That of the loss."""
        return self.loss.most_pairs

    @property
    def most_leaf_pairs(self) -> int:
        """That of the loss."""
        return self.loss.most_leaf_pairs

    def learnt(self, n_rounds: int) -> dict[str, JSON]:
        """Return what was learnt up to the end of this round, by position."""
        found = self._facts(self._learnt[min(n_rounds, len(self._learnt) - 1)])
        return {POSITION_BIAS: {"position": self._names.tolist(), **found}}

    def _sums(self, values: Floats) -> Floats:
        """Return the sums of ``values`` (n_rows,) by position, added up in the order of the rows."""
        return np.bincount(self._number, weights=values, minlength=len(self._names)).astype(np.float64, copy=False)

    def _begin(self, n: int) -> Floats:
        raise NotImplementedError

    def _use(self, numbers: Floats) -> None:
        raise NotImplementedError

    def _next(self, numbers: Floats, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> Floats:
        raise NotImplementedError

    def _facts(self, numbers: Floats) -> dict[str, JSON]:
        raise NotImplementedError

    def _seen(self, scores: Floats) -> Floats:
        return scores


class _Additive(_Wrapper):
    """Scores are shifted by a number for each position."""

    def __init__(self, loss: Objective, rows: RankedRows, parameters: TrainParameters) -> None:
        super().__init__(loss, rows, parameters)
        self._rate = parameters.learning_rate
        self._penalty = parameters.position_bias_l2 * np.bincount(self._number, minlength=len(self._names))
        self._shift = np.zeros(rows.n_rows)
        self._shifted = np.empty(rows.n_rows)

    def _begin(self, n: int) -> Floats:
        return np.zeros((1, n))

    def _use(self, numbers: Floats) -> None:
        np.take(numbers[0], self._number, out=self._shift)

    def _seen(self, scores: Floats) -> Floats:
        return np.add(scores, self._shift, out=self._shifted)

    def _next(self, numbers: Floats, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> Floats:
        self.loss.gradients(step, self._seen(scores), g, h, team)
        bias, penalty = numbers, self._penalty
        slope, curve = -self._sums(g) - penalty * bias, self._sums(h) + penalty
        found: Floats = bias + self._rate * slope / (curve + _RIDGE)
        return found

    def _facts(self, numbers: Floats) -> dict[str, JSON]:
        return {"additive": (numbers[0] - numbers[0, 0]).tolist()}  # only differences are identified


class _Unbiased(_Wrapper):
    """Pairs are weighted by a ratio for the position of the clicked document, and by one for that of the other."""

    loss: PairObjective

    def __init__(self, loss: Objective, rows: RankedRows, parameters: TrainParameters) -> None:
        super().__init__(loss, rows, parameters)
        self._power = 1.0 / (1.0 + parameters.position_bias_norm)
        self._clicked = rows.grades > 0
        given = relative_weights(rows.weights, rows.n_rows)
        self._given = given if len(given) else np.ones(rows.n_rows)
        self._weights, self._shares_of_rows = self._given.copy(), np.zeros(rows.n_rows)
        self._equal = np.zeros(rows.n_rows)  # scores before the first tree

    def _begin(self, n: int) -> Floats:
        return np.ones((2, n))

    def _use(self, numbers: Floats) -> None:
        ratio = np.where(self._clicked, numbers[0][self._number], numbers[1][self._number])
        np.divide(self._given, ratio, out=self._weights)
        self.loss.weigh(self._weights)

    def _next(self, numbers: Floats, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> Floats:
        self.loss.gradients(step, scores, g, h, team)
        self.loss.shares(step, self._equal, self._shares_of_rows, team)
        found = numbers.copy()
        for ratios, counted in zip(found, (self._clicked, ~self._clicked), strict=True):
            # the weights have 1 / (t+ t-): taking out the factor of the own side leaves that of equations 30 and 31
            of_position = self._sums(np.where(counted, self._shares_of_rows, 0.0)) * ratios
            there = of_position > 0.0
            if there.any():
                first = float(of_position[there][0])
                ratios[there] = np.maximum((of_position[there] / first) ** self._power, _LEAST_RATIO)
        return found

    def _facts(self, numbers: Floats) -> dict[str, JSON]:
        return {"clicked": numbers[0].tolist(), "not_clicked": numbers[1].tolist()}


def _wrapper_of(kind: type[Objective], how: type[_Wrapper]) -> type[_Wrapper]:
    """Return the class ``how`` for losses of this kind: with its name, and summing over the same."""
    said = {name: getattr(kind, name) for name in ("name", "sums_over", "splits")}
    return type(how.__name__, (how,), {"__module__": __name__, **said})  # so that its memory is counted as ours
