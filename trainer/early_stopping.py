"""Early stopping by a metric or by the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from rankmill.scorer.metrics import Metric, parse_metric
from rankmill.trainer.objectives.registry import stops_by_deviance
from rankmill.trainer.parameters import TrainParameters


@dataclass(frozen=True, slots=True)
class Deviance:
    """The loss of the objective, as its ``deviance`` reports it."""

    higher_is_better: bool = False

    def __str__(self) -> str:
        return "deviance"


DEVIANCE = Deviance()
Measure: TypeAlias = Metric | Deviance


def parse_measure(text: str) -> Measure:
    """Read a metric such as ``ndcg@10``, or ``deviance``.

    >>> str(parse_measure("deviance"))
    'deviance'

    Raises
    ------
    rankmill.foundation.errors.InputError
        The metric is unknown.
    """
    return DEVIANCE if text.strip() == str(DEVIANCE) else parse_metric(text)


def stop_measure(parameters: TrainParameters, *, graded: bool = True) -> Measure:
    """Return what early stopping watches: the stop metric; by default the metric or the deviance.

    The deviance is the default if no document is ``graded``, and for objectives that do not order rows by grade.

    >>> str(stop_measure(TrainParameters(objective="coxph"))), str(stop_measure(TrainParameters(objective="l2")))
    ('deviance', 'ndcg@10')

    Raises
    ------
    rankmill.foundation.errors.InputError
        The metric is unknown.
    """
    if not parameters.stop_metric and (not graded or stops_by_deviance(parameters.objective)):
        return DEVIANCE
    return parse_measure(parameters.stop_metric or parameters.metric)


@dataclass(slots=True)
class EarlyStopping:
    """Find the best round by one value per round, such as a metric on the valid split.  Of equal values the earliest is the best.

    With a ``window`` of more than one round the values compared are exponential moving means ``m += (value - m) * 2 / (window + 1)``,
    from the first value on.  They weigh a round by its age: on average by ``(window - 1) / 2`` rounds, as the plain mean of ``window`` rounds does.
    """

    patience: int  # rounds without a better value before stopping; 0: never stop
    higher_is_better: bool = True
    best_round: int = 0
    best_value: float = float("nan")  # smoothed, with a window
    min_improvement: float = 0.0  # how much better a value must be; must be exceeded
    window: int = 1
    _mean: float = float("nan")

    @classmethod
    def of(cls, parameters: TrainParameters, *, higher_is_better: bool, patience: int | None = None) -> EarlyStopping:
        """Return the stopping that ``parameters`` describe; ``patience`` overrides theirs."""
        return cls(
            parameters.early_stopping_rounds if patience is None else patience,
            higher_is_better,
            min_improvement=parameters.min_improvement,
            window=parameters.stop_window,
        )

    def update(self, round_number: int, value: float) -> bool:
        """Take the value after round 1, 2, ..; return whether to stop.  NaN is never better, and no part of a mean."""
        if self.window > 1 and value == value:  # noqa: PLR0124 - false for NaN only
            unknown = self._mean != self._mean
            value = self._mean = value if unknown else self._mean + (value - self._mean) * (2.0 / (self.window + 1))
        gained = value - self.best_value if self.higher_is_better else self.best_value - value
        better = gained > self.min_improvement
        if better or (self.best_round == 0 and value == value):  # noqa: PLR0124 - false for NaN only
            self.best_round, self.best_value = round_number, value
        return self.patience > 0 and round_number - self.best_round >= self.patience
