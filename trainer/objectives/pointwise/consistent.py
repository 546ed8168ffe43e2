"""Losses whose minimum ranks by NDCG best.

Source: Ravikumar, Tewari & Yang 2011, "On NDCG consistency of listwise ranking methods".
"""

from __future__ import annotations

from math import fsum
from typing import Any, ClassVar

import numpy as np

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.scorer.metrics.arrangement import queries_of
from rankmill.scorer.metrics.discount import discounts, gains
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.pointwise import _kernels as kernels
from rankmill.trainer.objectives.pointwise.document_loss import Floats, Pointwise
from rankmill.trainer.objectives.pointwise.regression import Poisson, SquaredError
from rankmill.trainer.objectives.protocol import OF_GRADIENTS, QUERIES, Learns, NoOptions, Objective, Splits
from rankmill.trainer.objectives.query_shares import QueryShares
from rankmill.trainer.objectives.weights import list_weights, sums_of_lists
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.team import Team

_LEAST_LISTED = 16_384  # rows of queries a worker


def normalised_gains(rows: RankedRows, parameters: TrainParameters) -> Floats:
    """Return each document's gain over the ideal DCG of its list, without cutoff, (n_rows,); 0 if that is 0.

    Gain ``linear`` uses labels of 0 or more if there are labels; ``exp`` and tables need grades.

    Raises
    ------
    TrainingDataRejected
        A label is below 0, or there are labels only and gain is not ``linear``.
    """
    if parameters.gain != "linear" and rows.labels is not None and not rows.grades.any():
        raise TrainingDataRejected(
            f"the data have labels and no grades, but gain {parameters.gain!r} needs grades; set gain to linear"
        )
    if parameters.gain != "linear" or rows.labels is None:
        of_row = gains(rows.grades, parameters.gain)
    else:
        of_row = np.ascontiguousarray(rows.labels, dtype=np.float64)
        if not (of_row >= 0.0).all():
            row = int(np.argmin(of_row >= 0.0))
            raise TrainingDataRejected(f"gains must be 0 or more, found the label {of_row[row]} in row {row}")
    sizes, best_first = np.diff(rows.starts), np.lexsort((-of_row, queries_of(rows.starts)))
    ranks = np.arange(rows.n_rows) - np.repeat(rows.starts[:-1], sizes)
    discounted = of_row[best_first] * discounts(int(sizes.max(initial=0)))[ranks]
    ideal = np.repeat(sums_of_lists(discounted, rows.starts), sizes)
    return np.divide(of_row, ideal, out=np.zeros(rows.n_rows), where=ideal > 0.0)


def _check_gains(gains: Floats) -> None:
    """Raise TrainingDataRejected if all are 0."""
    if not gains.any():
        raise TrainingDataRejected(
            "no query has a relevant document, so there is nothing to learn; check the grades and"
            " weights (for real labels set gain to linear)"
        )


class _NormalisedGains(Pointwise):
    """Learns gains divided by the list's ideal DCG."""

    def _targets_of(self, rows: RankedRows, parameters: TrainParameters) -> Floats:
        return normalised_gains(rows, parameters)


class ConsistentL2(_NormalisedGains, SquaredError):
    """Minimise ``w (t - s)^2 / 2``, t the gain over the list's ideal DCG.

    A list in which nothing is relevant has targets 0.  Otherwise as :class:`SquaredError`.
    """

    name: ClassVar[str] = "consistent_l2"

    def start(self) -> float:
        """Return the mean, after a check of the gains."""
        _check_gains(self._targets)
        return super().start()


class ConsistentKL(_NormalisedGains, Poisson):
    """Minimise the generalised Kullback-Leibler divergence ``w (e^s - t s)``, t as for :class:`ConsistentL2`.

    It is Poisson's loss of other targets, so start, leaves and the limits of scores are those of :class:`Poisson`.
    """

    name: ClassVar[str] = "consistent_kl"

    def start(self) -> float:
        """Return Poisson's start, after a check of the gains."""
        _check_gains(self._targets)
        return super().start()


class ConsistentCosine(Objective):
    """Minimise ``W (|t| - <s, t> / |s|)`` of every list, t as for :class:`ConsistentL2`.

    This is ``|t|`` times (1 - cosine).  The expected loss of scores s is a constant minus ``<s, E[t]> / |s|``, so it is
    minimal if s points along E[t], which gives the order with the best expected NDCG.  The cosine alone divides t by
    |t| instead of the list's ideal DCG: its minimum need not be that order.

    With a = s / |s|: ``g_i = -W (t_i - <a, t> a_i) / |s|``.  The true second derivative
    ``W (<a, t> + 2 a_i t_i - 3 <a, t> a_i^2) / |s|^2`` may be below 0.  The h written is ``W |t| / |s|^2``, no less
    than that of Gauss and Newton.  (With ``b = t / |t|`` the loss is ``|t| |a - b|^2 / 2``, whose h is
    ``W |t| (1 - a_i^2) / |s|^2``.) The step of one document is |s| (b_i - <a, b> a_i).  Only the direction of s counts,
    and s = 0 has none, so scores start from 1 each.  For a list whose scores are all 0, which offsets can cause,
    ``|s|`` counts as 1.  A list in which nothing is relevant has no loss.

    W is the mean of the list's document weights times its query weight, relative to the mean.  Criterion ``ole`` is
    not permitted: the Hessian's entries have either sign, a group of documents may have a hessian of 0 or less,
    so there is no best step.  Deviance: the weighted mean of |t| - <s, t> / |s| over the lists that have a loss.
    """

    name: ClassVar[str] = "consistent_cosine"
    sums_over: ClassVar[str] = QUERIES
    splits: ClassVar[Splits] = OF_GRADIENTS
    learns: ClassVar[Learns] = Learns(labels=True)
    Options: ClassVar[type[Any]] = NoOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: NoOptions) -> None:
        self._starts = rows.starts
        self._targets = normalised_gains(rows, parameters)
        self._weights = np.where(sums_of_lists(self._targets, rows.starts) > 0.0, list_weights(rows), 0.0)
        self._shares = QueryShares(np.diff(rows.starts), _LEAST_LISTED)

    def start(self) -> float:
        """Return 1: the direction in which all documents are alike."""
        _check_gains(self._weights)
        return 1.0

    def gradients(self, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> None:
        """Write g and h, queries divided among the workers."""

        def share(first: int, last: int, _: int) -> None:
            kernels.cosine(scores, self._targets, self._starts, self._weights, first, last, g, h)

        self._shares.each(team, share)

    def losses(self, scores: Floats) -> Floats:
        """Return W (|t| - <s, t> / |s|) of every list, (n_queries,)."""
        out = np.empty(len(self._starts) - 1, dtype=np.float64)
        kernels.cosine_losses(scores, self._targets, self._starts, self._weights, out)
        return out

    def deviance(self, scores: Floats) -> float:
        """Return the weighted mean of |t| - <s, t> / |s| over the lists that have a loss."""
        return fsum(self.losses(scores).tolist()) / (fsum(self._weights.tolist()) or 1.0)
