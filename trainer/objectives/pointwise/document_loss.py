"""Base class of pointwise losses."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from math import fsum, inf
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.foundation.options import option, options
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.protocol import ALL_CRITERIA, ROWS, Learns, Objective, Splits
from rankmill.trainer.objectives.weights import document_weights
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.team import Team

LEAST_ROWS = 32_768  # minimum rows per worker, for passes of some nanoseconds per row

Floats = npt.NDArray[np.float64]


class Pointwise(Objective):
    """A sum over documents of terms with one score each; ``ole`` is ``rwse`` for them (Xia, Zhai & Wang, theorem 1).

    The weight of a document is its own times that of its query; only ratios of weights matter.  The target y is the
    label, or the grade where there are no labels.  Deviance is ``deviance_factor`` times the weighted mean of the
    terms: 2 if twice the negative log-likelihood is usual.
    """

    sums_over: ClassVar[str] = ROWS
    splits: ClassVar[Splits] = replace(ALL_CRITERIA, additive=True)
    learns: ClassVar[Learns] = Learns(labels=True)
    deviance_factor: ClassVar[float] = 1.0

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: Any) -> None:
        self._targets = self._targets_of(rows, parameters)
        self._weights = document_weights(rows)  # empty: all 1
        self._starts, self._limits = rows.starts, (0, rows.n_rows)  # the rows whose gradients are written
        self._offsets = np.empty(0) if rows.offsets is None else np.ascontiguousarray(rows.offsets, dtype=np.float64)

    def _targets_of(self, rows: RankedRows, parameters: TrainParameters) -> Floats:
        """Return the targets, (n_rows,)."""
        return np.ascontiguousarray(rows.targets, dtype=np.float64)

    def _weighted(self, values: Floats | float) -> Floats | float:
        """Return ``values`` times the weights, (n_rows,)."""
        return self._weights * values if len(self._weights) else values

    @abstractmethod
    def _write_gradients(self, scores: Floats, first: int, last: int, g: Floats, h: Floats) -> None:
        """Write g and h of the rows first .. last."""

    @abstractmethod
    def _write_losses(self, scores: Floats, out: Floats) -> None:
        """Write the terms of all rows, weighted."""

    def gradients(self, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> None:
        """Write g and h, rows divided among the workers."""
        begin, end = self._limits

        def share(first: int, last: int, _: int) -> None:
            self._write_gradients(scores, begin + first, begin + last, g, h)

        team.share(end - begin, LEAST_ROWS, share)

    def write_only(self, first_query: int, last_query: int) -> None:
        """Limit the rows that :meth:`gradients` writes to those of these queries."""
        self._limits = int(self._starts[first_query]), int(self._starts[last_query])

    def losses(self, scores: Floats) -> Floats:
        """Return the weighted terms, (n_rows,)."""
        out = np.empty(len(self._targets), dtype=np.float64)
        self._write_losses(scores, out)
        return out

    def deviance(self, scores: Floats) -> float:
        """Return ``deviance_factor`` times the weighted mean of the terms; the mean weight is 1."""
        return self.deviance_factor * fsum(self.losses(scores).tolist()) / max(1, len(self._targets))


@options
class TwoClasses:
    """Options of a loss over two classes."""

    threshold: float = option(default=1.0, above=-inf, below=inf, help="Minimum label or grade of the positive class.")


def classes_of(targets: Floats, threshold: float) -> Floats:
    """Return 1 if the target reaches the threshold, else 0; same shape."""
    return (targets >= threshold).astype(np.float64)


def check_both_classes(name: str, classes: Floats, weights: Floats, threshold: float) -> None:
    """Raise TrainingDataRejected unless documents of positive weight are on both sides of the threshold."""
    weighed = classes if len(weights) == 0 else classes[weights > 0.0]
    if weighed.all() or not weighed.any():
        side = "none" if not weighed.any() else "every one"
        raise TrainingDataRejected(
            f"{name} expects documents of two classes, found {side} with a label or grade of {threshold:g} or more; "
            f"set a threshold between the classes, such as {name}(threshold=2)"
        )
