"""LogistRank: two classes, of which the best grades pull harder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter
from rankmill.trainer.objectives.pointwise import _kernels as kernels
from rankmill.trainer.objectives.pointwise.document_loss import (
    Floats,
    Pointwise,
    TwoClasses,
    check_both_classes,
    classes_of,
    share_leaves,
)
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.workers import Team

SCALES = 3.0, 2.0, 1.0  # of the top grade, the one below it, all others


@dataclass(frozen=True, slots=True, kw_only=True)
class LogistRankOptions(TwoClasses):
    """Options of ``logistrank``."""

    leaf: str = "paper"  # or newton
    top: int = 0  # the grade that counts three times; 0: the highest of the rows

    def __post_init__(self) -> None:
        TwoClasses.__post_init__(self)
        if self.leaf not in {"paper", "newton"}:
            raise InvalidParameter(f"logistrank: leaf must be paper or newton, got {self.leaf!r}")
        if self.top < 0:
            raise InvalidParameter(f"logistrank: top must be a grade of 0 or more, got {self.top}")


class LogistRank(Pointwise):
    """Minimise ``w scale log(1 + exp(-y F))``, y = +1 from the threshold on, else -1 (METHODS 3.11).

    Source: notes on "Ranking Relevance in Yahoo Search" (Yin et al. 2016), section 2.  scale is 3 for the top grade, 2
    for the next one, 1 for the others, whatever their class.  With ``yb = y / (1 + exp(y F))`` the pseudo-response
    is ``yt = scale yb``: g = -w yt, h = w scale |yb| (1 - |yb|).

    leaf=paper
        ``sum w yt / sum w |yt (2 - |yt|)|`` as printed.  Terms vanish at |yt| = 2, where top documents of a score near
        -0.7 are, and F starts there where few documents are good: so the sum below is never less than Newton's.
    leaf=newton
        ``sum w scale yb / sum w scale |yb| (1 - |yb|)``.

    Start: the weighted mean of y - o, as printed; it is no minimum.  Deviance: the sum of losses over the sum of w.
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

    def leaf_steps(
        self,
        output: int,  # noqa: ARG002 - there is one
        scores: Floats,
        rows: npt.NDArray[np.int32],
        starts: npt.NDArray[np.int64],
        team: Team,
    ) -> Floats | None:
        """Return the printed step of each leaf, or None for Newton's."""
        if self._options.leaf == "newton":
            return None
        out = np.empty(len(starts) - 1, dtype=np.float64)

        def share(first: int, last: int) -> None:
            kernels.paper_steps(
                scores, self._classes, self._scales, self._weights, rows, starts, first, last, out
            )  # fmt: skip

        share_leaves(team, starts, share)
        return out

    def _derive(self, scores: Floats, first: int, last: int, g: Floats, h: Floats) -> None:
        kernels.logistic(scores, self._classes, self._pulls, 1.0, first, last, g, h)

    def _lose(self, scores: Floats, out: Floats) -> None:
        kernels.logistic_losses(scores, self._classes, self._pulls, 1.0, out)
