"""Two classes: the logarithm of the odds, Burges' form of it, AdaBoost's exponential, and LogistRank's weighted one."""

from __future__ import annotations

from math import fsum
from typing import Any, ClassVar

import numpy as np

from rankmill.foundation.options import option, options
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.pointwise import _kernels as kernels
from rankmill.trainer.objectives.pointwise.document_loss import (
    Floats,
    Pointwise,
    TwoClasses,
    check_both_classes,
    classes_of,
)
from rankmill.trainer.objectives.protocol import Leaves
from rankmill.trainer.parameters import TrainParameters


class Bernoulli(Pointwise):
    """Minimise ``w (log(1 + e^s) - y s)``, y = 1 from the threshold on, else 0 (gbm guide 4.3).

    g = w (p - y), h = w p (1 - p), p = 1 / (1 + e^-s); leaves are Newton's.  Start: the log odds, with offsets the
    exact minimum by Newton's steps.  Deviance: twice the weighted mean of the loss.
    """

    name: ClassVar[str] = "bernoulli"
    deviance_factor: ClassVar[float] = 2.0
    Options: ClassVar[type[Any]] = TwoClasses

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: TwoClasses) -> None:
        super().__init__(rows, parameters, options)
        self._threshold = options.threshold
        self._classes = classes_of(self._targets, options.threshold)
        self._slope = 1.0  # of the logit in the score

    def start(self) -> float:
        """Return the score that minimises the loss when all rows have it on top of their offsets."""
        check_both_classes(self.name, self._classes, self._weights, self._threshold)
        return float(kernels.logistic_start(self._offsets, self._classes, self._weights, self._slope))

    def _write_gradients(self, scores: Floats, first: int, last: int, g: Floats, h: Floats) -> None:
        kernels.logistic(scores, self._classes, self._weights, self._slope, first, last, g, h)

    def _write_losses(self, scores: Floats, out: Floats) -> None:
        kernels.logistic_losses(scores, self._classes, self._weights, self._slope, out)


@options
class Logistic2Options(TwoClasses):
    """Options of ``logistic2``."""

    balanced: bool = option(default=False, help="Give both classes the same total weight.")


class Logistic2(Bernoulli):
    """Minimise ``w log(1 + exp(-2 y sigma F))``, y = +-1: MART for two classes (Burges 2010, section 6).

    With ``ybar = 2 y sigma / (1 + exp(2 y sigma F))``, g = -w ybar and h = w |ybar| (2 sigma - |ybar|), so Newton's
    leaf is Burges' ``sum ybar / sum |ybar| (2 sigma - |ybar|)``.  It is ``bernoulli`` with the logit 2 sigma F.
    ``balanced`` (6.1, eqn 15) multiplies w by ``I_+ / n_+ + I_- / n_-``, n being sums of weights, scaled to a mean of
    1.  The value of ybar stays as it is.
    """

    name: ClassVar[str] = "logistic2"
    Options: ClassVar[type[Any]] = Logistic2Options

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: Logistic2Options) -> None:
        super().__init__(rows, parameters, options)
        self._slope = 2.0 * parameters.sigma
        if options.balanced:
            self._weights = _balanced(self._classes, self._weights)


def _balanced(classes: Floats, weights: Floats) -> Floats:
    """Return weights (n_rows,) with mean 1 and equal sums of both classes; a single class keeps its weights."""
    if len(weights) == 0:
        weights = np.ones(len(classes))
    ones = fsum(weights[classes > 0.5].tolist())
    zeros = fsum(weights[classes < 0.5].tolist())
    if ones == 0.0 or zeros == 0.0:
        return weights
    n = ones + zeros
    return weights * np.where(classes > 0.5, n / (2.0 * ones), n / (2.0 * zeros))


class AdaBoost(Pointwise):
    """Minimise ``w exp(-(2y - 1) s)``, y = 1 from the threshold on, else 0 (gbm guide 4.2).

    g = -(2y - 1) h and h is the loss itself, so Newton's leaf is the guide's; the sign of the gradient printed there is
    wrong.  Exponents are clamped to +-300.  Start: ``1/2 log(sum y w e^-o / sum (1 - y) w e^o)``.
    """

    name: ClassVar[str] = "adaboost"
    Options: ClassVar[type[Any]] = TwoClasses

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: TwoClasses) -> None:
        super().__init__(rows, parameters, options)
        self._threshold = options.threshold
        self._classes = classes_of(self._targets, options.threshold)

    def start(self) -> float:
        """Return the score that minimises the loss when all rows have it on top of their offsets."""
        check_both_classes(self.name, self._classes, self._weights, self._threshold)
        return float(kernels.exponential_start(self._offsets, self._classes, self._weights))

    def _write_gradients(self, scores: Floats, first: int, last: int, g: Floats, h: Floats) -> None:
        kernels.exponential_loss(scores, self._classes, self._weights, first, last, g, h)

    def _write_losses(self, scores: Floats, out: Floats) -> None:
        kernels.exponential_losses(scores, self._classes, self._weights, out)


SCALES = 3.0, 2.0, 1.0  # of the top grade, the one below it, all others


@options
class LogistRankOptions(TwoClasses):
    """Options of ``logistrank``."""

    leaf: str = option(
        default="paper",
        choices=("paper", "newton"),
        help="How to compute leaf values: as in the paper, or by Newton's method.",
    )
    top: int = option(default=0, least=0, help="Grade with weight 3; 0: the highest grade in the data.")


class LogistRank(Pointwise):
    """Minimise ``w scale log(1 + exp(-y F))``, y = +1 from the threshold on, else -1.

    Source: notes on "Ranking Relevance in Yahoo Search" (Yin et al. 2016), section 2.  scale is 3 for the top grade, 2
    for the next one, 1 for the others, whatever their class.  With ``yb = y / (1 + exp(y F))`` the pseudo-response
    is ``yt = scale yb``: g = -w yt, h = w scale |yb| (1 - |yb|).

    leaf=paper
        ``sum w yt / sum w |yt (2 - |yt|)|`` as printed.  Terms vanish at |yt| = 2, where top documents have a score
        near -0.7, and F starts there if few documents are good: the denominator is therefore at least Newton's.
    leaf=newton
        ``sum w scale yb / sum w scale |yb| (1 - |yb|)``.

    Start: the weighted mean of y - o, as printed; it is not a minimum.  Deviance: the sum of losses over the sum of w.
    """

    name: ClassVar[str] = "logistrank"
    Options: ClassVar[type[Any]] = LogistRankOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: LogistRankOptions) -> None:
        super().__init__(rows, parameters, options)
        self._options = options
        self._classes = classes_of(self._targets, options.threshold)
        top = options.top or float(self._targets.max(initial=0.0))
        self._scales = np.where(self._targets >= top, SCALES[0], np.where(self._targets >= top - 1, *SCALES[1:]))
        self._pulls = self._scales * self._weights if len(self._weights) else self._scales

    def start(self) -> float:
        """Return the weighted mean of y - o, y = +-1."""
        check_both_classes(self.name, self._classes, self._weights, self._options.threshold)
        signs = 2.0 * self._classes - 1.0
        return float(kernels.weighted_mean(signs - self._offsets if len(self._offsets) else signs, self._weights))

    def leaf_steps(self, output: int, scores: Floats, leaves: Leaves) -> Floats | None:
        """Return the printed step of each leaf, or None for Newton's."""
        if self._options.leaf == "newton":
            return None
        (rows, starts, _), out = leaves, np.empty(len(leaves.starts) - 1)
        given = scores, self._classes, self._scales, self._weights, rows, starts
        leaves.share(lambda first, last: kernels.paper_steps(*given, first, last, out))
        return out

    def _write_gradients(self, scores: Floats, first: int, last: int, g: Floats, h: Floats) -> None:
        kernels.logistic(scores, self._classes, self._pulls, 1.0, first, last, g, h)

    def _write_losses(self, scores: Floats, out: Floats) -> None:
        kernels.logistic_losses(scores, self._classes, self._pulls, 1.0, out)
