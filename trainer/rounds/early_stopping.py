"""Early stopping by a metric or by the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import spelled
from rankmill.pipeline.dataset.goals import ALL_GOALS
from rankmill.scorer.metrics import Metric, parse_metric
from rankmill.trainer.objectives.registry import stops_by_deviance
from rankmill.trainer.parameters import TrainParameters


@dataclass(frozen=True, slots=True)
class Deviance:
    """The loss of the objective, as its ``deviance`` reports it."""

    higher_is_better: bool = False

    def __str__(self) -> str:
        return "deviance"


@dataclass(frozen=True, slots=True)
class GoalMean:
    """The mean of a metric over the grade and all goals, with the weights of the training."""

    metric: Metric  # by the grade

    def __str__(self) -> str:
        return f"{self.metric}:{ALL_GOALS}"

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value means better rankings."""
        return self.metric.higher_is_better

    def parts(self, parameters: TrainParameters) -> dict[Metric, float]:
        """Return the weight of the metric by the grade, and by each goal.

        >>> parameters = TrainParameters(goals={"bought": 0.25})
        >>> {str(metric): weight for metric, weight in GoalMean(Metric("ndcg", 10)).parts(parameters).items()}
        {'ndcg@10': 0.75, 'ndcg@10:bought': 0.25}
        """
        of_goals = {replace(self.metric, goal=name): weight for name, weight in parameters.goals.items()}
        return {self.metric: parameters.grade_weight, **of_goals}


DEVIANCE = Deviance()
Measure: TypeAlias = Metric | GoalMean | Deviance


def parse_measure(text: str) -> Measure:
    """Read a metric such as ``ndcg@10`` or ``ndcg@10:bought``, its mean ``ndcg@10:goals``, or ``deviance``.

    >>> str(parse_measure("deviance")), parse_measure("ndcg@10:goals")
    ('deviance', GoalMean(metric=Metric(name='ndcg', k=10, parameter=None, goal='')))

    Raises
    ------
    rankmill.foundation.errors.InputError
        The metric is unknown.
    """
    if text.strip() == str(DEVIANCE):
        return DEVIANCE
    metric = parse_metric(text)
    return GoalMean(replace(metric, goal="")) if metric.goal == ALL_GOALS else metric


def stop_measure(parameters: TrainParameters, *, graded: bool = True) -> Measure:
    """Return what early stopping watches: the stop metric; by default the metric, its mean over goals, or the deviance.

    The deviance is the default if no document is ``graded``, and for objectives that do not order rows by grade.

    >>> str(stop_measure(TrainParameters(objective="coxph"))), str(stop_measure(TrainParameters(objective="l2")))
    ('deviance', 'ndcg@10')
    >>> str(stop_measure(TrainParameters(objective="l2", goals={"bought": 0.25})))
    'ndcg@10:goals'

    Raises
    ------
    InvalidParameter
        The stop metric is a mean over goals, and there are none.
    rankmill.foundation.errors.InputError
        The metric is unknown.
    """
    if not parameters.stop_metric and (not graded or stops_by_deviance(parameters.objective)):
        return DEVIANCE
    if parameters.goals and not parameters.stop_metric:
        return GoalMean(parse_metric(parameters.metric))
    measure = parse_measure(parameters.stop_metric or parameters.metric)
    if isinstance(measure, GoalMean):
        check_mean(measure, parameters)
    return measure


def check_mean(mean: GoalMean, parameters: TrainParameters) -> None:
    """Raise InvalidParameter if there are no goals to have a mean over."""
    if not parameters.goals:
        raise InvalidParameter(
            f"metric {mean} is a mean over goals, but the training has none; leave out ':{ALL_GOALS}', or set "
            f"{spelled('goals')}"
        )


def measures_of(parameters: TrainParameters, eval_metrics: Sequence[str] = (), *, graded: bool = True) -> list[Measure]:
    """Return all that a training measures: what it stops by first, then its parts by goal, and the ``eval_metrics``.

    With goals the metric by the grade and by each of them is measured, whatever the training stops by.

    >>> [str(each) for each in measures_of(TrainParameters(objective="l2", goals={"bought": 0.25}), ["map"])]
    ['ndcg@10:goals', 'ndcg@10', 'ndcg@10:bought', 'map']

    Errors as :func:`stop_measure`.
    """
    stop = stop_measure(parameters, graded=graded)
    found: list[Measure] = [stop]
    if parameters.goals:
        found += goal_metrics(parameters)
    for measure in map(parse_measure, eval_metrics):
        found.append(measure)
        if isinstance(measure, GoalMean):
            check_mean(measure, parameters)
            found += measure.parts(parameters)
    return list(dict.fromkeys(found))


def goal_metrics(parameters: TrainParameters) -> list[Metric]:
    """Return the metric that goals are compared by: the stop metric, or the metric, by the grade and by each goal."""
    stop = parse_measure(parameters.stop_metric or parameters.metric)
    metric = stop.metric if isinstance(stop, GoalMean) else parse_metric(parameters.metric)
    if isinstance(stop, Metric):
        metric = replace(stop, goal="")
    return [metric, *(replace(metric, goal=name) for name in parameters.goals)]


@dataclass(slots=True)
class EarlyStopping:
    """Find the best round by one value per round, such as a metric on the valid split.

    Of equal values the earliest is the best.

    With a ``window`` of more than one round the values compared are exponential moving means ``m += (value - m) * 2 /
    (window + 1)``, from the first value on.  They weigh a round by its age: on average by ``(window - 1) / 2`` rounds,
    as the plain mean of ``window`` rounds does.
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
