"""Losses on differences within a query: CatBoost's QueryRMSE and QueryCrossEntropy."""

from __future__ import annotations

from math import fsum
from typing import ClassVar

import numpy as np

from rankmill.foundation.options import option, options
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.listwise import _kernels, _query_logit_kernels
from rankmill.trainer.objectives.listwise.list_loss import ListLoss, mixed_lists
from rankmill.trainer.objectives.pointwise.document_loss import TwoClasses, check_both_classes, classes_of
from rankmill.trainer.objectives.protocol import Floats, Learns, NoOptions, PairHessians
from rankmill.trainer.objectives.query_shares import QueryShares
from rankmill.trainer.objectives.weights import document_weights, sums_of_lists
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.team import Team

_LEAST_WORK = 100_000  # minimum documents per worker: some 300 us


class QueryRmse(ListLoss):
    """Minimise the sum of ``w (r - mean of r over its query)^2 / 2`` with r = s - y and the weighted mean.

    It is the same as ``w_i w_j (r_i - r_j)^2 / (2 W)`` over the pairs of a query, W the sum of its weights.  So
    documents keep their own weights (a document's times its query's, relative), and gradients still sum to 0.
    ``g = w (r - mean)``, ``h = w (1 - w / W)``, pair hessians ``w_i w_j / W``: all exact.  y is the label, or the grade
    if there are no labels.

    Uses ``seed`` of the parameters for samples of pairs.  TrainingDataRejected for bad weights, or if no query holds
    two grades and there are no labels.
    """

    name: ClassVar[str] = "query_rmse"
    learns: ClassVar[Learns] = Learns(labels=True)

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: NoOptions) -> None:
        if rows.labels is None:
            mixed_lists(rows)  # refuses grades from which nothing can be learnt
        self._starts, self._seed, self._targets = rows.starts, parameters.seed, rows.targets
        weights = document_weights(rows)
        self._of_rows = weights if len(weights) else np.ones(rows.n_rows)
        self.weights = sums_of_lists(self._of_rows, rows.starts)
        self._inverse = np.where(self.weights > 0.0, 1.0 / np.where(self.weights > 0.0, self.weights, 1.0), 0.0)
        self._shares = QueryShares(np.diff(rows.starts), _LEAST_WORK)

    def gradients(self, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> None:
        """Write g and h, both (n_rows,)."""
        self._each(team, _kernels.centred_gradients, scores, self._targets, self._of_rows, g, h)

    def losses(self, scores: Floats) -> Floats:
        """Return half the weighted sum of squares of every query, (n_queries,)."""
        return self._of_lists(_kernels.centred_losses, scores, self._targets, self._of_rows)

    def deviance(self, scores: Floats) -> float:
        """Return the root of the weighted mean of (r - mean of r)^2, as CatBoost does."""
        mean = 2.0 * fsum(self.losses(scores).tolist()) / fsum(self.weights.tolist())
        return float(np.sqrt(mean))

    def pair_hessians(self, step: int, scores: Floats, least: float, team: Team) -> PairHessians:
        """Return w_i w_j / W of all pairs of a query."""
        return self._product_pairs(step, self._of_rows, self._inverse, least, team)


_LEAST_SHIFT_WORK = 2_000  # minimum documents per worker: some 300 us


@options
class QueryCrossEntropyOptions(TwoClasses):
    """Options of ``query_cross_entropy``."""

    alpha: float = option(
        default=0.95, least=0, most=1, help="Weight of the loss within queries; the rest is the plain log-loss."
    )


class QueryCrossEntropy(ListLoss):
    """Minimise the sum of ``w ((1 - alpha) l(s, y) + alpha l(s + c, y))``.

    l is the log-loss, y whether a document is relevant.

    For every query and given scores, c is the shift that minimises its part, so that part depends only on differences
    of scores.  A query of one class has no minimum, and its part is 0.  Documents keep their own weights (theirs times
    their query's, relative).  With p the probability at s + c and d = w p (1 - p): g = w (p - y), which sums to 0 over
    the query, h = d (1 - d / sum of d), pair hessians d d' / sum of d; (1 - alpha) of the plain log-loss is added.  All
    are exact, since the derivative with respect to c is 0.

    The deviance is the weighted mean.  Uses ``seed`` of the parameters for samples of pairs.

    Raises
    ------
    TrainingDataRejected
        Bad weights, or documents of one class only.
    """

    name: ClassVar[str] = "query_cross_entropy"
    learns: ClassVar[Learns] = Learns(labels=True)
    Options: ClassVar[type[QueryCrossEntropyOptions]] = QueryCrossEntropyOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: QueryCrossEntropyOptions) -> None:
        self._starts, self._seed, self._alpha = rows.starts, parameters.seed, options.alpha
        self._classes = classes_of(rows.targets, options.threshold)
        weights = document_weights(rows)
        check_both_classes(self.name, self._classes, weights, options.threshold)
        self._of_rows = weights if len(weights) else np.ones(rows.n_rows)
        self.weights = sums_of_lists(self._of_rows, rows.starts)
        self._slopes, self._scales = np.zeros(rows.n_rows), np.zeros(rows.n_queries)
        self._shares = QueryShares(np.diff(rows.starts), _LEAST_SHIFT_WORK)

    def gradients(self, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> None:
        """Write g and h, both (n_rows,)."""
        of_pairs = self._slopes, self._scales
        kernel = _query_logit_kernels.query_logit_gradients
        self._each(team, kernel, scores, self._classes, self._of_rows, self._alpha, *of_pairs, g, h)

    def losses(self, scores: Floats) -> Floats:
        """Return the loss of every query, (n_queries,)."""
        kernel = _query_logit_kernels.query_logit_losses
        return self._of_lists(kernel, scores, self._classes, self._of_rows, self._alpha)

    def pair_hessians(self, step: int, scores: Floats, least: float, team: Team) -> PairHessians:
        """Return alpha d_i d_j / sum of d of the pairs of the last step."""
        return self._product_pairs(step, self._slopes, self._scales, least, team)
