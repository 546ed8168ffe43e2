"""What losses that maximise the mean of DCG or nDCG over random orders have in common."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.scorer.metrics.discount import discounts
from rankmill.scorer.metrics.metric import Metric, parse_metric
from rankmill.scorer.metrics.policy import Policy
from rankmill.scorer.metrics.queries import PreparedQueries
from rankmill.trainer.objectives.listwise.list_loss import ListLoss, gains_of, list_weights, mixed_lists
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rows import RankedRows

_WHOLE_LIST = 2**31 - 1


class ExpectedDcg(ListLoss):
    """``w (1 - E nDCG@k)`` or ``w (ideal DCG@k - E DCG@k)``, as ``metric`` says, summed over the lists of two grades.

    Attributes
    ----------
    gains
        (n_rows,) of the documents.
    rewards
        (n_rows,) gains less the smallest of the list: DCG of these differs from DCG by a constant of the list.
    scales
        (n_queries,) what an ideal DCG less a DCG is multiplied with, 0 where a list does not count.
    ideal
        (n_queries,) DCG@k of the best order.
    """

    criteria: ClassVar[tuple[str, ...]] = ("rwse", "se")  # a surrogate h has no exact second derivative of the loss

    def __init__(self, rows: RankedRows, parameters: TrainParameters) -> None:
        metric = parse_metric(parameters.metric)
        if metric.name not in {"ndcg", "dcg"}:
            raise InvalidParameter(
                f"metric {parameters.metric!r} cannot be optimised by {self.name}; expected ndcg, dcg, ndcg@k or dcg@k"
                " (any metric may be the stop metric)"
            )
        self._starts, self._seed = rows.starts, parameters.seed
        self.cutoff = metric.k or _WHOLE_LIST
        sizes = np.diff(rows.starts)
        self.longest = int(sizes.max(initial=0))
        self.places = min(self.longest, self.cutoff)
        self.discounts = discounts(self.longest + 1)
        self.gains = gains_of(rows, parameters)
        self.rewards = self.gains.copy()
        filled = sizes > 0
        lowest = np.minimum.reduceat(self.gains, rows.starts[:-1][filled])
        self.rewards -= np.repeat(lowest, sizes[filled])
        policy = Policy(gain="exp" if parameters.gain == "exp" else "linear")
        self.ideal = PreparedQueries(rows.grades, rows.starts, policy).divisor(Metric("ndcg", metric.k))
        self.weights = np.where(mixed_lists(rows) & (self.ideal > 0.0), list_weights(rows), 0.0)
        if not self.weights.any():
            raise TrainingDataRejected("no list of two gains has a weight above 0, so there is nothing to learn")
        self.scales = self.weights
        if metric.name == "ndcg":
            self.scales = self.weights / np.where(self.ideal > 0.0, self.ideal, 1.0)
