"""Grades as classes: McRank's softmax, and cumulative probabilities one by one."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.foundation.options import option, options
from rankmill.scorer.forest.links import link_fault
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.pointwise import _kernels as kernels
from rankmill.trainer.objectives.pointwise.document_loss import Floats, Pointwise
from rankmill.trainer.objectives.protocol import Learns, Limits
from rankmill.trainer.parameters import TrainParameters


@options
class GradeOptions:
    """Options of losses whose outputs are probabilities of grades."""

    score: str = option(
        default="grade",
        choices=("grade", "gain"),
        help="Predict the expected grade, or the expected gain 2^k - 1.",
    )
    max_grade: int = option(default=0, least=0, help="Maximum grade of the scale; 0: the highest grade in the data.")


@options
class McRankOptions(GradeOptions):
    """Options of ``mcrank``."""

    friedman_factor: bool = option(
        default=False, help="Multiply leaf values by (K - 1) / K, where K is the number of grades."
    )


class _Grades(Pointwise):
    """Base class of losses over the probabilities of grades, which use neither labels nor offsets."""

    learns: ClassVar[Learns] = Learns()
    limits: Limits = Limits(nets="it has a score for every grade")
    _link: ClassVar[str]

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: GradeOptions) -> None:
        super().__init__(rows, parameters, options)
        self._grades = np.ascontiguousarray(rows.grades, dtype=np.int32)
        self._highest = options.max_grade or max(1, int(self._grades.max(initial=0)))
        self.link = f"{self._link}_{options.score}"

    def start(self) -> float:
        """Return 0 for every output, after a check of the grades."""
        least, highest = int(self._grades.min()), int(self._grades.max())
        if least == highest:
            raise TrainingDataRejected(
                f"{self.name} expects documents of two grades or more, found {least} everywhere, so"
                " there is nothing to learn; for real labels use objective l2"
            )
        if least < 0 or highest > self._highest:
            raise TrainingDataRejected(
                f"{self.name} expects grades from 0 to {self._highest}, found {least} to {highest}; to"
                f" allow higher grades use {self.name}(max_grade={highest})"
            )
        fault = link_fault(self.link, self.n_outputs)
        if fault is not None:
            raise TrainingDataRejected(f"{self.name} does not support so many grades: {fault}")
        return 0.0


class McRank(_Grades):
    """Minimise ``-w log p_y``, p = softmax of K = L + 1 outputs, one for each grade.

    Source: Li, Burges & Wu 2007.  g_k = w (p_k - [y = k]), h_k = w p_k (1 - p_k): with criterion ``rwse`` (the same as
    ``wse``) this is robust LogitBoost (Li 2010), with ``se`` McRank as published.  ``friedman_factor`` divides h by
    (K - 1) / K, so that every leaf is Friedman's (2001, algorithm 6) ``(K - 1) / K sum(-g) / sum(p (1 - p))`` and all
    gains shrink alike; h is then not the derivative.  All outputs start from 0.  The score is the expected grade or
    gain. A grade above the outputs, in eval sets, counts as the highest.  Deviance: the weighted mean loss.
    """

    name: ClassVar[str] = "mcrank"
    Options: ClassVar[type[Any]] = McRankOptions
    _link: ClassVar[str] = "softmax"

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: McRankOptions) -> None:
        super().__init__(rows, parameters, options)
        self.n_outputs = k = self._highest + 1
        self._factor = k / (k - 1) if options.friedman_factor else 1.0

    def _write_gradients(self, scores: Floats, first: int, last: int, g: Floats, h: Floats) -> None:
        kernels.softmax(scores, self._grades, self._weights, self._factor, first, last, g, h)

    def _write_losses(self, scores: Floats, out: Floats) -> None:
        kernels.softmax_losses(scores, self._grades, self._weights, out)


class Ordinal(_Grades):
    """Minimise the sum over k of ``w (log(1 + e^f_k) - [y <= k] f_k)``: L separate models of P(y <= k).

    Source: Li, Burges & Wu 2007, section 4.  Output k = 0 .. L - 1 is the logit of P(y <= k); each is
    ``bernoulli`` started from 0: g_k = w (p_k - [y <= k]), h_k = w p_k (1 - p_k).  The probability of a grade is the
    difference of neighbours, clipped at 0 (:mod:`rankmill.scorer.forest.links`).  Deviance: the weighted mean loss, all
    outputs together.
    """

    name: ClassVar[str] = "ordinal"
    Options: ClassVar[type[Any]] = GradeOptions
    _link: ClassVar[str] = "ordinal"

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: GradeOptions) -> None:
        super().__init__(rows, parameters, options)
        self.n_outputs = self._highest

    def _write_gradients(self, scores: Floats, first: int, last: int, g: Floats, h: Floats) -> None:
        part = slice(first, last)
        outputs = zip(*map(self._outputs, (scores, g, h)), strict=True)
        for k, (scores_k, g_k, h_k) in enumerate(outputs):
            reached = (self._grades[part] <= k).astype(np.float64)
            kernels.logistic(
                scores_k[part], reached, self._weights[part], 1.0, 0, last - first, g_k[part], h_k[part]
            )  # fmt: skip

    def _write_losses(self, scores: Floats, out: Floats) -> None:
        out[:] = 0.0
        part = np.empty_like(out)
        for k, of_output in enumerate(self._outputs(scores)):
            kernels.logistic_losses(of_output, (self._grades <= k).astype(np.float64), self._weights, 1.0, part)
            out += part

    @staticmethod
    def _outputs(values: Floats) -> Floats:
        """Return ``values`` as (n_outputs, n_rows).

        The single output of grades 0 and 1 comes without the first axis.
        """
        return values if values.ndim == 2 else values[None]
