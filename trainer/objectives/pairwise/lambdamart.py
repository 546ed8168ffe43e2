"""Pairs weighted by the change of a metric: LambdaMART (Burges 2010) and LambdaLoss (Wang et al., CIKM 2018)."""

from __future__ import annotations

from copy import copy
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import option, option_like, options
from rankmill.scorer.metrics.discount import discounts, gains
from rankmill.scorer.metrics.metric import Metric, parse_metric
from rankmill.scorer.metrics.metric_options import Policy
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.scorer.metrics.swaps import SWAPPABLE, swap_deltas
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.pairwise import _kernels
from rankmill.trainer.objectives.pairwise.pair_loss import PER_PAIR, PairObjective, PairOptions, Weighing
from rankmill.trainer.objectives.user import delta_of, swap_filler
from rankmill.trainer.parameters import TrainParameters


@options
class LambdaMartOptions:
    """Options of ``lambdamart``."""

    normalise: str = option_like(PairOptions, "normalise", default="none")
    tail: bool = option(
        default=True,
        help="For ndcg@k and dcg@k: continue the discounts below rank k, as LightGBM does. The ideal"
        " DCG stays that of rank k.",
    )
    max_grade: int = option(
        default=0, least=0, most=52, help="Maximum grade of the scale, for err; 0: the highest grade in the data."
    )
    pair_fraction: float = option_like(PairOptions, "pair_fraction", default=1.0)
    delta: str = option(
        default="", help="Name of a user-defined swap delta (see Ranker) that replaces that of the metric."
    )


def policy_of(metric: Metric, rows: RankedRows, parameters: TrainParameters, max_grade: int) -> Policy:
    """Return the conventions by which a loss over ``rows`` optimises ``metric``.

    ``max_grade`` 0: the highest grade of the rows.
    """
    highest = max_grade or max(1, int(rows.grades.max(initial=0)))
    return Policy(gain=parameters.gain, max_grade=highest if metric.name == "err" else None)


class LambdaMart(PairObjective):
    r"""Minimise the sum of ``|dZ_ij| log(1 + exp(-sigma (s_i - s_j)))`` over pairs with y_i > y_j.

    Source: Burges 2010, sections 4 and 7.  dZ_ij is the change of the metric when i and j swap ranks: see
    :mod:`rankmill.scorer.metrics.swaps`.
    Only pairs with at least one document in the top ``truncation`` by score count.  dZ and the order are fixed within a
    round, so h is the derivative of g at fixed dZ.  The factors of ``lambda_normalisation`` are fixed too, and also
    weight :meth:`losses`.

    Uses ``metric``, ``gain``, ``sigma``, ``truncation``, ``lambda_normalisation`` and ``seed`` of the parameters.

    Raises
    ------
    InvalidParameter
        The metric has no swap deltas.
    TrainingDataRejected
        No query holds two grades.
    """

    name: ClassVar[str] = "lambdamart"
    Options: ClassVar[type[LambdaMartOptions]] = LambdaMartOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: LambdaMartOptions) -> None:
        self._set_up(
            rows,
            self._weighing_of(rows, parameters, options),
            _kernels.PairRules(
                sigma=parameters.sigma,
                truncation=parameters.truncation,
                normalise=parameters.lambda_normalisation,
                per_pair=options.normalise == PER_PAIR,
                fraction=options.pair_fraction,
                seed=parameters.seed,
            ),
        )

    def in_order(self, queries: npt.NDArray[np.intp], rows: npt.NDArray[np.int64]) -> LambdaMart | None:
        """Return the loss of the same queries in this order; None for given pairs, samples and weights by place."""
        if not self._quick or self._weighing.shape == _kernels.BY_PLACE:
            return None

        def moved(ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            return np.concatenate(([0], np.cumsum(np.diff(ends)[queries])))

        w, n_queries = self._weights, len(queries)
        weights = w._replace(
            values=w.values[rows],
            scales=w.scales[queries],
            documents=w.documents[rows] if len(w.documents) else w.documents,
            queries=w.queries[queries] if len(w.queries) else w.queries,
        )
        found = copy(self)
        vars(found).update(
            _grades=self._grades[rows], _starts=moved(self._starts), _weights=weights, _room=moved(self._room),
            _cells=moved(self._cells), _shares=self._shares.in_order(queries), _factors=np.zeros(n_queries),
            _order=np.arange(len(rows), dtype=np.uint32), _workspaces={}, _found=None,
        )  # fmt: skip
        return found

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
                f"metric {parameters.metric!r} cannot be optimised by lambdamart; expected one of"
                f" {', '.join(SWAPPABLE)} (any metric can be the stop metric)"
            )
        policy = policy_of(metric, rows, parameters, options.max_grade)
        deltas = swap_deltas(metric, rows.grades, rows.starts, policy, tail=options.tail, spare=_kernels.LANES)
        return Weighing.of_swaps(deltas)


@options
class LambdaLossOptions:
    """Options of ``lambdaloss``."""

    normalise: str = option_like(PairOptions, "normalise", default="none")
    pair_fraction: float = option_like(PairOptions, "pair_fraction", default=1.0)


class LambdaLoss(PairObjective):
    r"""Minimise the sum of ``delta |G_i - G_j| log(1 + exp(-sigma (s_i - s_j)))`` over pairs with y_i > y_j.

    With d = |r_i - r_j|, D(r) = log2(r + 1) and G the gain over the ideal DCG@k: delta = |1/D(d) - 1/D(d + 1)| (eqn 17
    of the paper, with base 2).  Unlike in ``lambdamart`` the weight of a pair grows as its ranks get closer, wherever
    they are. ``truncation``, ``sigma`` and fixed ranks are as there; ``lambda_normalisation`` is not used: it is not in
    the published loss, and cost 2 points of NDCG@10 on MQ2008.

    Raises
    ------
    InvalidParameter
        The metric is not ``ndcg`` or ``ndcg@k``, whose k affects only the ideal.
    TrainingDataRejected
        No query holds two grades.
    """

    name: ClassVar[str] = "lambdaloss"
    Options: ClassVar[type[LambdaLossOptions]] = LambdaLossOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: LambdaLossOptions) -> None:
        metric = parse_metric(parameters.metric)
        if metric.name != "ndcg":
            raise InvalidParameter(f"lambdaloss supports the metrics ndcg and ndcg@k, got {parameters.metric!r}")
        ideal = PreparedQueries(rows.grades, rows.starts, Policy(gain=parameters.gain)).divisor(metric)
        longest = int(np.diff(rows.starts).max(initial=0))
        inverse = discounts(longest + 1)
        steps = np.zeros(2 * longest + _kernels.LANES)  # index longest + d holds distance d
        steps[longest + 1 : 2 * longest + 1] = inverse[1:] - inverse[:-1]
        weighing = Weighing(
            shape=_kernels.BY_STEP,
            values=gains(rows.grades, parameters.gain),
            scales=np.where(ideal > 0.0, 1.0 / np.where(ideal > 0.0, ideal, 1.0), 0.0),
            upper=np.zeros(longest + _kernels.LANES),
            lower=steps,
        )
        rules = _kernels.PairRules(
            sigma=parameters.sigma,
            truncation=parameters.truncation,
            per_pair=options.normalise == PER_PAIR,
            fraction=options.pair_fraction,
            seed=parameters.seed,
        )
        self._set_up(rows, weighing, rules)
