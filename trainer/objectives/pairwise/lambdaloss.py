"""LambdaLoss (Wang, Li, Golbandi, Bendersky & Najork, CIKM 2018): NDCG-Loss2, a bound of NDCG that lambdas can follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rankmill.foundation.errors import InvalidParameter
from rankmill.scorer.metrics.discount import discounts, gains
from rankmill.scorer.metrics.metric import parse_metric
from rankmill.scorer.metrics.policy import Policy
from rankmill.scorer.metrics.queries import PreparedQueries
from rankmill.trainer.objectives.pairwise import _kernels
from rankmill.trainer.objectives.pairwise.pair_loss import (
    PairObjective,
    PairRules,
    Weighing,
    checked_fraction,
    divides_by_pairs,
)
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rows import RankedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class LambdaLossOptions:
    """Options of ``lambdaloss``: ``normalise`` and ``pair_fraction`` as for ``lambdamart``."""

    normalise: str = "none"
    pair_fraction: float = 1.0

    def __post_init__(self) -> None:
        divides_by_pairs("lambdaloss(normalise)", self.normalise)
        checked_fraction("lambdaloss(pair_fraction)", self.pair_fraction)


class LambdaLoss(PairObjective):
    r"""Minimise the sum of ``delta |G_i - G_j| log(1 + exp(-sigma (s_i - s_j)))`` over pairs with y_i > y_j.

    With d = |r_i - r_j|, D(r) = log2(r + 1) and G the gain over the ideal DCG@k: delta = |1/D(d) - 1/D(d + 1)| (eqn 17 of
    the paper, where the logarithm is to the base 2).  Unlike in ``lambdamart`` a pair weighs the more the nearer its
    ranks are, whatever they are.  ``truncation``, ``sigma`` and frozen ranks are as there; ``lambda_normalisation`` is not
    looked at: it is no part of the published loss, and cost 2 points of NDCG@10 on MQ2008.

    Raises
    ------
    InvalidParameter
        The metric is not ``ndcg`` or ``ndcg@k``, of which k rules the ideal only.
    TrainingDataRejected
        No query holds two grades.
    """

    name: ClassVar[str] = "lambdaloss"
    Options: ClassVar[type[LambdaLossOptions]] = LambdaLossOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: LambdaLossOptions) -> None:
        metric = parse_metric(parameters.metric)
        if metric.name != "ndcg":
            raise InvalidParameter(f"lambdaloss bounds ndcg or ndcg@k, got the metric {parameters.metric!r}")
        ideal = PreparedQueries(rows.grades, rows.starts, Policy(gain=parameters.gain)).divisor(metric)
        longest = int(np.diff(rows.starts).max(initial=0))
        inverse = discounts(longest + 1)
        steps = np.zeros(2 * longest + _kernels.LANES)  # of d at longest + d
        steps[longest + 1 : 2 * longest + 1] = inverse[1:] - inverse[:-1]
        weighing = Weighing(
            shape=_kernels.BY_STEP,
            values=gains(rows.grades, parameters.gain),
            scales=np.where(ideal > 0.0, 1.0 / np.where(ideal > 0.0, ideal, 1.0), 0.0),
            upper=np.zeros(longest + _kernels.LANES),
            lower=steps,
        )
        rules = PairRules(
            sigma=parameters.sigma,
            truncation=parameters.truncation,
            per_pair=divides_by_pairs("lambdaloss(normalise)", options.normalise),
            fraction=options.pair_fraction,
            seed=parameters.seed,
        )
        self._set_up(rows, weighing, rules)
