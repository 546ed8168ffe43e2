"""Two classes by AdaBoost's exponential loss."""

from __future__ import annotations

from typing import Any, ClassVar

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


class AdaBoost(Pointwise):
    """Minimise ``w exp(-(2y - 1) s)``, y = 1 from the threshold on, else 0 (METHODS 3.6; gbm guide 4.2).

    g = -(2y - 1) h and h is the loss itself, so Newton's leaf is the guide's; the sign of the gradient printed there is
    wrong.  Exponents beyond +-300 count as that much.  Start: ``1/2 log(sum y w e^-o / sum (1 - y) w e^o)``.
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

    def _derive(self, scores: Floats, first: int, last: int, g: Floats, h: Floats) -> None:
        kernels.exponential_loss(scores, self._classes, self._weights, first, last, g, h)

    def _lose(self, scores: Floats, out: Floats) -> None:
        kernels.exponential_losses(scores, self._classes, self._weights, out)
