"""Labels as numbers: squared, absolute and Huber's error, quantiles, counts."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.foundation.options import option, options
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.pointwise import _kernels as kernels
from rankmill.trainer.objectives.pointwise.document_loss import LEAST_ROWS, Floats, Pointwise
from rankmill.trainer.objectives.protocol import Leaves, Limits, NoOptions, Splits
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.team import Team


class SquaredError(Pointwise):
    """Minimise the sum of ``w (y - s)^2 / 2`` (Friedman 2001, algorithm 2): g = w (s - y), h = w.

    Deviance: the weighted mean of (y - s)^2.
    """

    name: ClassVar[str] = "l2"
    deviance_factor: ClassVar[float] = 2.0

    def start(self) -> float:
        """Return the weighted mean of the targets minus their offsets."""
        rest = self._targets - self._offsets if len(self._offsets) else self._targets
        return float(kernels.weighted_mean(rest, self._weights))

    def _write_gradients(self, scores: Floats, first: int, last: int, g: Floats, h: Floats) -> None:
        kernels.squared_error(scores, self._targets, self._weights, first, last, g, h)

    def _write_losses(self, scores: Floats, out: Floats) -> None:
        residuals = self._targets - scores
        out[:] = self._weighted(0.5) * residuals * residuals


class Residuals:
    """Weighted quantiles of the residuals y - s, in leaves and over all rows; independent of their order."""

    def __init__(self, targets: Floats, weights: Floats, offsets: Floats) -> None:
        self._targets, self._weights = targets, weights
        self._offsets = offsets if len(offsets) else np.zeros(len(targets))
        n = len(targets)
        self._space = np.empty(n), np.empty(n), np.empty(n), np.empty(n)  # take no memory before they are written

    def of_start(self, alpha: float) -> float:
        """Return the quantile of y - o."""
        n = len(self._targets)
        whole = Leaves(np.arange(n, dtype=np.int32), np.array([0, n], dtype=np.int64), Team(1))
        return float(self.of_leaves(alpha, self._offsets, whole)[0])

    def of_leaves(self, alpha: float, scores: Floats, leaves: Leaves, delta: float | None = None) -> Floats:
        """Return the quantile of each leaf's residuals, (n_leaves,).

        With ``delta``, plus the mean of (residual - quantile), clipped to +-delta.
        """
        (rows, starts, _), (values, mass, *spare) = leaves, self._space
        out = np.zeros(len(starts) - 1, dtype=np.float64)

        def share(first: int, last: int) -> None:
            kernels.leaf_quantiles(
                scores, self._targets, self._weights, alpha, rows, starts, first, last, values, mass, *spare, out
            )
            if delta is not None:
                kernels.leaf_clipped_means(starts, first, last, values, mass, delta, out)

        leaves.share(share)
        return out

    def of_sizes(self, alpha: float, scores: Floats) -> float:
        """Return the quantile of |y - s| over all rows."""
        return float(kernels.quantile_of_sizes(scores, self._targets, self._weights, alpha, *self._space))


@options
class QuantileOptions:
    """Options of ``quantile``."""

    alpha: float = option(
        default=0.5,
        above=0,
        below=1,
        help="Quantile to predict; with 0.9, nine of ten labels lie below the prediction.",
    )


class Quantile(Pointwise):
    """Minimise ``w (alpha max(y - s, 0) + (1 - alpha) max(s - y, 0))``: the alpha-quantile of y.

    Source: gbm guide 4.5, where z is the gradient and leaves are quantiles of the residuals, not of z.  g = -w alpha
    if y > s, w (1 - alpha) if y < s, else 0.  The second derivative is 0 where it exists; the h written is the weight
    w.  Only criterion ``se`` is allowed, since the others would be the same.  Start and leaves are weighted quantiles
    of the residuals; if a value reaches exactly alpha of the weight, the midpoint between it and the next one.
    """

    name: ClassVar[str] = "quantile"
    splits: ClassVar[Splits] = Splits(("se",))
    Options: ClassVar[type[Any]] = QuantileOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: QuantileOptions) -> None:
        super().__init__(rows, parameters, options)
        self._alpha = options.alpha
        self._slopes = options.alpha, 1.0 - options.alpha  # of the loss above and below the score
        self._residuals = Residuals(self._targets, self._weights, self._offsets)

    def start(self) -> float:
        """Return the weighted quantile of y - o."""
        return self._residuals.of_start(self._alpha)

    def leaf_steps(self, output: int, scores: Floats, leaves: Leaves) -> Floats:
        """Return the weighted quantile of each leaf's residuals."""
        return self._residuals.of_leaves(self._alpha, scores, leaves)

    def _write_gradients(self, scores: Floats, first: int, last: int, g: Floats, h: Floats) -> None:
        kernels.check_function(scores, self._targets, self._weights, *self._slopes, first, last, g, h)

    def _write_losses(self, scores: Floats, out: Floats) -> None:
        residuals, (above, below) = self._targets - scores, self._slopes
        out[:] = self._weighted(np.where(residuals > 0.0, above, -below)) * residuals


class Laplace(Quantile):
    """Minimise ``w |y - s|`` (gbm guide 4.4, where leaves are medians of the residuals, not of z).

    g = -w sign(y - s).  Start and leaves are weighted medians of the residuals; h and criteria as for
    :class:`Quantile`, which for alpha = 1/2 is half of this loss.
    """

    name: ClassVar[str] = "laplace"
    Options: ClassVar[type[Any]] = NoOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: NoOptions) -> None:
        super().__init__(rows, parameters, QuantileOptions(alpha=0.5))
        self._slopes = 1.0, 1.0


@options
class HuberOptions:
    """Options of ``huber``."""

    alpha: float = option(
        default=0.9,
        above=0,
        below=1,
        help="Share of the residuals, the smallest ones, with squared loss; the others have linear loss.",
    )


class Huber(Pointwise):
    """Minimise ``w r^2 / 2`` where |r| <= delta, ``w delta (|r| - delta / 2)`` beyond; r = y - s.

    Source: Friedman 2001, algorithm 4 (M-TreeBoost).  delta is the weighted alpha-quantile of |r| over all rows,
    computed for every gradient; ``losses`` and leaves use that of the last gradient (before any, that of the given
    scores), ``deviance`` always that of the given scores, so that it has no history.  g = w clip(s - y, +-delta).  The
    second derivative is w within delta and 0 beyond; the h written is w everywhere, so ``se`` is the only criterion.
    Start: the weighted median of y - o, as there is no delta yet.  Leaves: the weighted median of their residuals plus
    the weighted mean of clip(r - median, +-delta), Friedman's one step towards the minimum.
    """

    name: ClassVar[str] = "huber"
    limits: Limits = Limits(*2 * ("its delta is a quantile over all documents",))
    splits: ClassVar[Splits] = Splits(("se",))
    Options: ClassVar[type[Any]] = HuberOptions

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: HuberOptions) -> None:
        super().__init__(rows, parameters, options)
        self._alpha = options.alpha
        self._residuals = Residuals(self._targets, self._weights, self._offsets)
        self._delta: float | None = None

    def start(self) -> float:
        """Return the weighted median of y - o."""
        return self._residuals.of_start(0.5)

    def gradients(self, step: int, scores: Floats, g: Floats, h: Floats, team: Team) -> None:
        """Compute delta, then write g and h."""
        self._delta = delta = self._residuals.of_sizes(self._alpha, scores)

        def share(first: int, last: int, _: int) -> None:
            kernels.huber(scores, self._targets, self._weights, delta, first, last, g, h)

        team.share(len(scores), LEAST_ROWS, share)

    def deviance(self, scores: Floats) -> float:
        """Return the weighted mean loss, delta being the quantile at these scores."""
        frozen, self._delta = self._delta, None
        try:
            return super().deviance(scores)
        finally:
            self._delta = frozen

    def leaf_steps(self, output: int, scores: Floats, leaves: Leaves) -> Floats:
        """Return Friedman's step of each leaf, with the delta of the last gradient."""
        return self._residuals.of_leaves(0.5, scores, leaves, self._delta_at(scores))

    def _delta_at(self, scores: Floats) -> float:
        return self._residuals.of_sizes(self._alpha, scores) if self._delta is None else self._delta

    def _write_gradients(self, scores: Floats, first: int, last: int, g: Floats, h: Floats) -> None:
        kernels.huber(scores, self._targets, self._weights, self._delta_at(scores), first, last, g, h)

    def _write_losses(self, scores: Floats, out: Floats) -> None:
        sizes = np.abs(self._targets - scores)
        inner = np.minimum(sizes, self._delta_at(scores))
        out[:] = self._weighted(inner) * (sizes - 0.5 * inner)


LIMIT = 19.0  # scores beyond +-19 count as +-19, as in gbm and R's glm


class Poisson(Pointwise):
    """Minimise ``w (e^s - y s)``, y a count or any number of 0 or more (gbm guide 4.7).

    g = w (e^s - y), h = w e^s; beyond +-19 the exponential continues as a straight line.  So g stays the derivative of
    the loss, and h is the one at +-19.  Start and leaves are exact: ``log(sum w y / sum w e^s)``, limited so that no
    score of the leaf passes +-19, where a leaf without counts ends, too.  Deviance: twice the weighted mean of the loss
    (without the term log y!  which does not depend on scores).
    """

    name: ClassVar[str] = "poisson"
    deviance_factor: ClassVar[float] = 2.0

    def __init__(self, rows: RankedRows, parameters: TrainParameters, options: Any) -> None:
        super().__init__(rows, parameters, options)
        bad = ~(self._targets >= 0.0)
        if bad.any():
            row = int(np.argmax(bad))
            raise TrainingDataRejected(
                f"{self.name} expects labels of 0 or more, found {self._targets[row]} in row {row};"
                " for labels of either sign use objective l2"
            )

    def start(self) -> float:
        """Return log(sum w y / sum w e^o), within +-19."""
        seen = self._targets > 0.0
        if not (seen.any() if len(self._weights) == 0 else (seen & (self._weights > 0.0)).any()):
            raise TrainingDataRejected(f"{self.name}: every label is 0, so there is nothing to learn; check the labels")
        n = len(self._targets)
        scores = self._offsets if len(self._offsets) else np.zeros(n)
        whole = Leaves(np.arange(n, dtype=np.int32), np.array([0, n], dtype=np.int64), Team(1))
        return float(self.leaf_steps(0, scores, whole)[0])

    def leaf_steps(self, output: int, scores: Floats, leaves: Leaves) -> Floats:
        """Return the exact step of each leaf."""
        (rows, starts, _), out = leaves, np.empty(len(leaves.starts) - 1)
        given = scores, self._targets, self._weights, LIMIT, rows, starts
        leaves.share(lambda first, last: kernels.counts_steps(*given, first, last, out))
        return out

    def _write_gradients(self, scores: Floats, first: int, last: int, g: Floats, h: Floats) -> None:
        kernels.counts(scores, self._targets, self._weights, LIMIT, first, last, g, h)

    def _write_losses(self, scores: Floats, out: Floats) -> None:
        kernels.counts_losses(scores, self._targets, self._weights, LIMIT, out)
