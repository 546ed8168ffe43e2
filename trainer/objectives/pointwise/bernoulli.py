"""Two classes by the logarithm of the odds, and the same in the form of Burges."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum
from typing import Any, ClassVar

import numpy as np

from rankmill.trainer.objectives.pointwise import _kernels as kernels
from rankmill.trainer.objectives.pointwise.document_loss import (
    Floats,
    Pointwise,
    TwoClasses,
    check_both_classes,
    classes_of,
)
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rows import RankedRows


class Bernoulli(Pointwise):
    """Minimise ``w (log(1 + e^s) - y s)``, y = 1 from the threshold on, else 0 (METHODS 3.5; gbm guide 4.3).

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

    def _derive(self, scores: Floats, first: int, last: int, g: Floats, h: Floats) -> None:
        kernels.logistic(scores, self._classes, self._weights, self._slope, first, last, g, h)

    def _lose(self, scores: Floats, out: Floats) -> None:
        kernels.logistic_losses(scores, self._classes, self._weights, self._slope, out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logistic2Options(TwoClasses):
    """Options of ``logistic2``; ``balanced``: both classes weigh the same, however many documents they have."""

    balanced: bool = False


class Logistic2(Bernoulli):
    """Minimise ``w log(1 + exp(-2 y sigma F))``, y = +-1: MART for two classes (METHODS 3.9; Burges 2010, section 6).

    With ``ybar = 2 y sigma / (1 + exp(2 y sigma F))``, g = -w ybar and h = w |ybar| (2 sigma - |ybar|), so Newton's leaf
    is Burges' ``sum ybar / sum |ybar| (2 sigma - |ybar|)``.  It is ``bernoulli`` with the logit 2 sigma F.
    ``balanced`` (6.1, eqn 15) multiplies w by (I_+ / n_+ + I_- / n_-), n being sums of weights, scaled to a mean of
    1; ybar itself stays as it is.
    """

    name: ClassVar[str] = "logistic2"
    Options: ClassVar[type[Any]] = Logistic2Options

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: Logistic2Options) -> None:
        super().__init__(rows, parameters, options)
        self._slope = 2.0 * parameters.sigma
        if options.balanced:
            self._weights = _balanced(self._classes, self._weights)


def _balanced(classes: Floats, weights: Floats) -> Floats:
    """Return weights (n_rows,) of mean 1 by which both classes sum up to the same; one class alone keeps its weights."""
    if len(weights) == 0:
        weights = np.ones(len(classes))
    ones = fsum(weights[classes > 0.5].tolist())
    zeros = fsum(weights[classes < 0.5].tolist())
    if ones == 0.0 or zeros == 0.0:
        return weights
    n = ones + zeros
    return weights * np.where(classes > 0.5, n / (2.0 * ones), n / (2.0 * zeros))
