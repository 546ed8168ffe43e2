"""Queries of one set of rows, measured by their grades, by the grades of goals, and by means over both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum, nan
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.pipeline.dataset.goals import check_goal
from rankmill.scorer.metrics import Metric, Policy
from rankmill.scorer.metrics.per_query import PreparedQueries, mean_of
from rankmill.trainer.rounds.early_stopping import GoalMean, Measure
from rankmill.trainer.rounds.training_result import QueryValues

if TYPE_CHECKING:
    from rankmill.trainer.data.rows import RankedRows
    from rankmill.trainer.parameters import TrainParameters

Floats = npt.NDArray[np.float64]


class MeasuredQueries:
    """Metrics of rows by their grades and goals.

    Parameters
    ----------
    rows
        With all goals that are measured.
    measures
        Metrics and means over goals; the deviance is passed over.
    parameters
        ``gain``, and the weights of ``goals``.
    scale
        Highest grade of each goal, for ERR, and of the main grade, whose name is empty.

    Raises
    ------
    rankmill.foundation.errors.InputError
        The rows lack a goal.
    """

    def __init__(
        self, rows: RankedRows, measures: Sequence[Measure], parameters: TrainParameters, scale: Mapping[str, int]
    ) -> None:
        self._parts = {
            measure: {metric: weight for metric, weight in measure.parts(parameters).items() if weight > 0.0}
            for measure in measures
            if isinstance(measure, GoalMean)
        }
        of_means = [metric for parts in self._parts.values() for metric in parts]
        metrics = dict.fromkeys([*(each for each in measures if isinstance(each, Metric)), *of_means])
        self.metrics = sorted(metrics, key=lambda metric: metric.goal)  # those of a goal together, else as given
        for metric in self.metrics:
            check_goal(metric, metric.goal, rows.goals, "the data")
        self.n_queries, self.n_rows = rows.n_queries, rows.n_rows
        self._queries: dict[str, tuple[slice, PreparedQueries]] = {}
        goals = [metric.goal for metric in self.metrics]
        for goal in dict.fromkeys(goals):
            first = goals.index(goal)
            own = slice(first, first + goals.count(goal))
            policy = policy_of(self.metrics[own], parameters, scale[goal])
            self._queries[goal] = own, PreparedQueries(rows.graded_by(goal), rows.starts, policy)

    def evaluate_into(self, scores: Floats, first: int, last: int, out: Floats) -> None:
        """Fill ``out[:, first:last]`` of ``out`` (n_metrics, n_queries) as `PreparedQueries` does.

        Rows are in the order of ``metrics``.
        """
        for own, queries in self._queries.values():
            queries.evaluate_into(self.metrics[own], scores, first, last, out[own])

    def evaluate(self, scores: Floats) -> Floats:
        """Return every metric of every query, (n_metrics, n_queries)."""
        out = np.empty((len(self.metrics), self.n_queries), dtype=np.float64)
        for own, queries in self._queries.values():
            values = queries.evaluate(self.metrics[own], scores)
            out[own] = [values[metric] for metric in self.metrics[own]]
        return out

    def means(self, values: Floats) -> dict[str, float]:
        """Return the means of ``values`` (n_metrics, n_queries), and the means over goals."""
        found = {str(metric): mean_of(row) for metric, row in zip(self.metrics, values, strict=True)}
        for mean, parts in self._parts.items():
            found[str(mean)] = fsum(weight * found[str(metric)] for metric, weight in parts.items())
        return found

    def by_query(self, values: Floats) -> dict[str, QueryValues]:
        """Return ``values`` (n_metrics, n_queries) by metric, and those of the means over goals.

        A query's value of such a mean is its share of it, times the number of queries that count for a part of it.  So
        the plain mean of the values is the mean over goals.
        """
        found = {
            str(metric): QueryValues(row, self._queries[metric.goal][1].weights(metric))
            for metric, row in zip(self.metrics, values, strict=True)
        }
        for mean, parts in self._parts.items():
            found[str(mean)] = QueryValues(self._shares({str(m): w for m, w in parts.items()}, found), None)
        return found

    @staticmethod
    def _shares(weights: Mapping[str, float], found: Mapping[str, QueryValues]) -> Floats:
        rows = np.stack([found[name].values for name in weights])
        counted = ~np.isnan(rows)
        any_counted = counted.any(axis=0)
        total = np.zeros(rows.shape[1], dtype=np.float64)
        for weight, row, counts in zip(weights.values(), rows, counted, strict=True):
            if not counts.any():
                return np.full(rows.shape[1], nan)
            total += weight * np.where(counts, row, 0.0) * (int(any_counted.sum()) / int(counts.sum()))
        return np.where(any_counted, total, nan)

    def check_decides(self, measure: Measure, split: str, use: str, *, constant: bool = False) -> None:
        """Raise TrainingDataRejected if the measure is the same for all rankings of these queries, those of ``split``.

        ``use`` ends the message: what it cannot do, and what helps.  With ``constant`` it may be the same, but must
        have a value.
        """
        mean = isinstance(measure, GoalMean)
        metrics = [*self._parts[measure]] if isinstance(measure, GoalMean) else [measure]
        queries = [(each, self._queries[each.goal][1]) for each in metrics if isinstance(each, Metric)]
        lacking = [str(each) for each, prepared in queries if prepared.nothing_relevant(each).all()]
        none = f"no query of the {split} split has"
        if lacking:
            by = f" by {', '.join(lacking)}" * mean
            raise TrainingDataRejected(f"{none} a relevant document{by}, so {measure} {use}")
        differ = (prepared.can_differ([each])[each].any() for each, prepared in queries)
        if queries and not constant and not any(differ):
            raise TrainingDataRejected(
                f"{none} two documents whose order matters, such as two of different grades, so {measure} {use}"
            )


def check_decides(
    rows: RankedRows,
    measure: Measure,
    parameters: TrainParameters,
    scale: Mapping[str, int],
    split: str,
    use: str = "cannot compare models; use a split with such queries",
) -> None:
    """Do what `MeasuredQueries.check_decides` does, for a measure of ``rows``."""
    MeasuredQueries(rows, [measure], parameters, scale).check_decides(measure, split, use)


def policy_of(metrics: Sequence[Metric], parameters: TrainParameters, max_grade: int) -> Policy:
    """Return the metric conventions of a training; ``max_grade`` is the highest grade of the scale, for ERR."""
    return Policy(
        gain=parameters.gain,
        max_grade=max(max_grade, 1) if any(metric.name == "err" for metric in metrics) else None,
    )
