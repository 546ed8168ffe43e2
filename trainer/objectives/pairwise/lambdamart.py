"""LambdaMART (Burges 2010): pairs of documents, each weighted by what swapping the two would do to the metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rankmill.foundation.errors import InvalidParameter
from rankmill.scorer.metrics.metric import parse_metric
from rankmill.scorer.metrics.policy import Policy
from rankmill.scorer.metrics.swaps import SWAPPABLE, swap_deltas
from rankmill.trainer.objectives.pairwise import _kernels
from rankmill.trainer.objectives.pairwise.pair_loss import (
    PairObjective,
    PairRules,
    Weighing,
    checked_fraction,
    divides_by_pairs,
)
from rankmill.trainer.objectives.user import delta_of, swap_filler
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rows import RankedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class LambdaMartOptions:
    """Options of ``lambdamart``.

    Attributes
    ----------
    normalise
        ``query``: divide the loss of each query by the number of its pairs of different grades (gbm's v_i).
    tail
        Of ``ndcg@k`` and ``dcg@k``: whether discounts go on below rank k, as for LightGBM; the ideal is that of k.
    max_grade
        Highest grade of the scale, for ``err``; 0: that of the rows.
    pair_fraction
        Share of the pairs that is drawn each round.
    delta
        Name of a user's own swap delta, see :func:`rankmill.trainer.objectives.user.remember_delta`; it replaces the metric's.
    """

    normalise: str = "none"
    tail: bool = True
    max_grade: int = 0
    pair_fraction: float = 1.0
    delta: str = ""

    def __post_init__(self) -> None:
        divides_by_pairs("lambdamart(normalise)", self.normalise)
        checked_fraction("lambdamart(pair_fraction)", self.pair_fraction)
        if not 0 <= self.max_grade <= 52:
            raise InvalidParameter(f"lambdamart(max_grade) must be in 0 .. 52, got {self.max_grade}")


class LambdaMart(PairObjective):
    r"""Minimise the sum of ``|dZ_ij| log(1 + exp(-sigma (s_i - s_j)))`` over pairs with y_i > y_j (METHODS 3.15).

    dZ_ij is the change of the metric when i and j swap ranks and nothing else moves: see :mod:`rankmill.scorer.metrics.swaps`.
    Only pairs with at least one document among the first ``truncation`` by score count.  dZ and the order are frozen
    within a round, so h is the derivative of g at fixed dZ; so are the factors of ``lambda_normalisation``, with which
    :meth:`losses` are weighed too.

    Of the parameters ``metric``, ``gain``, ``sigma``, ``truncation``, ``lambda_normalisation`` and ``seed`` count.

    Raises
    ------
    InvalidParameter
        The metric has no swap deltas.
    TrainingDataRejected
        No query holds two grades, so there is nothing to learn.
    """

    name: ClassVar[str] = "lambdamart"
    Options: ClassVar[type[LambdaMartOptions]] = LambdaMartOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: LambdaMartOptions) -> None:
        self._set_up(
            rows,
            self._weighing_of(rows, parameters, options),
            PairRules(
                sigma=parameters.sigma,
                truncation=parameters.truncation,
                normalise=parameters.lambda_normalisation,
                per_pair=divides_by_pairs("lambdamart(normalise)", options.normalise),
                fraction=options.pair_fraction,
                seed=parameters.seed,
            ),
        )

    @staticmethod
    def _weighing_of(rows: RankedRows, parameters: TrainParameters, options: LambdaMartOptions) -> Weighing:
        if options.delta:
            return Weighing(
                shape=_kernels.TABLE,
                values=rows.grades.astype(np.float64),
                scales=np.ones(rows.n_queries),
                fill=swap_filler(delta_of(options.delta), rows.grades, rows.starts),
            )
        metric = parse_metric(parameters.metric)
        if metric.name not in SWAPPABLE:
            raise InvalidParameter(
                f"metric {parameters.metric!r} cannot be optimised by lambdamart; expected one of {', '.join(SWAPPABLE)}"
                " (any metric may be the stop metric)"
            )
        highest = options.max_grade or max(1, int(rows.grades.max(initial=0)))
        policy = Policy(gain=parameters.gain, max_grade=highest if metric.name == "err" else None)
        deltas = swap_deltas(metric, rows.grades, rows.starts, policy, tail=options.tail, spare=_kernels.LANES)
        return Weighing.of_swaps(deltas)
