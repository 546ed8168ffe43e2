"""Compare trainings with several weights of the goals, and choose one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.foundation.options import spelled
from rankmill.foundation.training_facts import GoalPoint, GoalSweepFacts, OneOfSeveral
from rankmill.pipeline.goals import ALL_GOALS
from rankmill.scorer.metrics import Metric, parse_metric
from rankmill.trainer.early_stopping import goal_metrics
from rankmill.trainer.goal_fronts import choose, dominated_by, grid_of, shortfall
from rankmill.trainer.goal_options import GoalSweepOptions
from rankmill.trainer.measured_queries import MeasuredQueries
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.training_options import TrainingOptions

VALID = "valid"


def check_sweep(
    parameters: TrainParameters, sweep: GoalSweepOptions, *, several_seeds: bool = False, resumes: bool = False
) -> None:
    """Raise InvalidParameter if such a sweep makes no sense."""
    here = spelled("goal_steps")
    if not parameters.goals:
        raise InvalidParameter(f"{here} needs the names of goals; give {spelled('goals')}, too, such as bought,fresh")
    if isinstance(parameters.goals, Mapping):
        raise InvalidParameter(
            f"{here} tries weights of its own; give {spelled('goals')} by name alone, such as"
            f" {','.join(parameters.goals)}, or leave {here} out"
        )
    if several_seeds:
        raise InvalidParameter(f"{here} and {spelled('seeds')} both choose among several models; use one of the two")
    if resumes:
        raise InvalidParameter(
            f"{here} trains several models, and {spelled('resume')} goes on with one; leave out one of the two"
        )
    grid_of(list(parameters.goals), sweep.goal_steps)
    for name in sweep.goal_floors:
        metric = parse_metric(name)
        if metric.goal not in {"", *parameters.goals}:
            known = f"the goals are {', '.join(parameters.goals)}"
            if metric.goal == ALL_GOALS:
                known = "the mean has other weights in each model; name the metric by a goal"
            raise InvalidParameter(f"{spelled('goal_floors')}: {name!r} is measured by no goal of the sweep; {known}")


def check_comparable(
    valid: RankedRows, parameters: TrainParameters, sweep: GoalSweepOptions, scale: Mapping[str, int]
) -> None:
    """Raise TrainingDataRejected if a metric that points are compared by has no value on the valid split.

    ``scale``: as :class:`rankmill.trainer.measured_queries.MeasuredQueries` takes it.
    """
    metrics = measures_of_sweep(parameters, sweep)
    queries = MeasuredQueries(valid, metrics, parameters, scale)
    for metric in metrics:
        if not queries.has_value(metric):
            raise TrainingDataRejected(
                f"{spelled('goal_steps')}: no query of the valid split has a relevant document by {metric}, so models cannot be"
                " compared by it; ingest a valid split in which there are some"
            )


def even_weights(parameters: TrainParameters) -> dict[str, float]:
    """Return equal weights of all goals, above 0 and below 1 together: such a training needs the most memory."""
    return dict.fromkeys(parameters.goals, 1.0 / (len(parameters.goals) + 1))


def measures_of_sweep(parameters: TrainParameters, sweep: GoalSweepOptions) -> list[Metric]:
    """Return what points are compared by: the metric by the grade and by each goal, and others that have floors."""
    return list(dict.fromkeys([*goal_metrics(parameters), *map(parse_metric, sweep.goal_floors)]))


def with_measures(options: TrainingOptions, metrics: Sequence[Metric]) -> TrainingOptions:
    """Return the options with ``metrics`` among the eval metrics."""
    more = [str(metric) for metric in metrics if str(metric) not in options.eval_metrics]
    return replace(options, eval_metrics=[*options.eval_metrics, *more])


def words_of(weights: Mapping[str, float]) -> str:
    """Return weights for people.

    >>> words_of({"bought": 0.25, "fresh": 1 / 3})
    'bought 0.25, fresh 0.333'
    """
    return ", ".join(f"{name} {weight:.3g}" for name, weight in weights.items())


def front_of(
    grid: Sequence[Mapping[str, float]],
    trainings: Sequence[OneOfSeveral],
    parameters: TrainParameters,
    sweep: GoalSweepOptions,
) -> GoalSweepFacts:
    """Return the facts of a sweep, with its Pareto front and the choice; see :func:`rankmill.trainer.goal_fronts.choose`.

    Parameters
    ----------
    grid, trainings
        (n_points,) weights, and what came of them.
    parameters
        Of the trainings, apart from the weights.
    sweep
        The floors.

    Raises
    ------
    InvalidParameter
        No point meets all floors; the message has the values of the closest one.
    """
    metrics = measures_of_sweep(parameters, sweep)
    names = [str(metric) for metric in metrics]
    floors = {str(parse_metric(name)): floor for name, floor in sweep.goal_floors.items()}
    measured = [each.metrics.get(VALID, {}) for each in trainings]
    sign = {str(metric): 1.0 if metric.higher_is_better else -1.0 for metric in metrics}
    values = [{name: sign[name] * found[name] for name in names} for found in measured]
    limits = {name: sign[name] * floor for name, floor in floors.items()}
    chosen = choose(values, names[: 1 + len(parameters.goals)], names, limits)
    if chosen is None:
        nearest = min(range(len(values)), key=lambda place: (shortfall(values[place], limits), place))
        reached = ", ".join(f"{name} {measured[nearest][name]:.4f}" for name in floors)
        wanted = ", ".join(f"{name} {floor:g}" for name, floor in floors.items())
        raise InvalidParameter(
            f"{spelled('goal_floors')}: none of the {len(values)} models reaches {wanted} on the valid split; the closest, with the"
            f" weights {words_of(grid[nearest])}, has {reached}; lower the floors, or give more {spelled('goal_steps')}"
        )
    beaten = dominated_by([tuple(found.values()) for found in values])
    points = [
        GoalPoint(
            goals=dict(weights),
            dominated_by=None if by is None else by + 1,
            meets_floors=shortfall(found, limits) == 0.0,
            sha256=training.sha256,
            best_round=training.best_round,
            rounds_trained=training.rounds_trained,
            metrics=training.metrics,
        )
        for weights, by, found, training in zip(grid, beaten, values, trainings, strict=True)
    ]
    return GoalSweepFacts(metrics=tuple(names), floors=floors, chosen=chosen + 1, points=tuple(points))
