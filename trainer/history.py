"""What a training says about itself: the metrics of every round, and what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, isfinite, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.scorer.forest import Forest
from rankmill.trainer.profile import Profile

TRAIN = "train"  # the name under which the rows that are learnt from stand in a record
HOLDOUT = "holdout"  # and that of queries that are kept apart from them


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """Mean metrics after one round: ``metrics[set][metric]``, the train split first, then the eval sets as given."""

    round_number: int  # 1, 2, ..
    metrics: Mapping[str, Mapping[str, float]]
    # by how much the trees of this round lowered the mean loss of what they were not grown from, where that was asked
    oob_improvement: float | None = None

    @property
    def train(self) -> Mapping[str, float]:
        """The metrics of the rows that are learnt from."""
        return self.metrics[TRAIN]


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """What the rounds of a training are worth on queries that it has not seen: one history a fold, equally long."""

    histories: tuple[tuple[RoundRecord, ...], ...] = field(repr=False)  # measures of the fold under ``holdout``
    stop_metric: str
    best_round: int  # rounds to take: those with the best mean of the stop metric

    @property
    def measures(self) -> tuple[str, ...]:
        """What was measured, the stop metric first."""
        return tuple(self.histories[0][0].metrics[HOLDOUT])

    def values(self, measure: str, round_number: int | None = None) -> list[float]:
        """Return the measure of every fold on its held-out queries after a round, the best one where left out."""
        at = (round_number or self.best_round) - 1
        return [history[at].metrics[HOLDOUT][measure] for history in self.histories]

    def mean(self, measure: str, round_number: int | None = None) -> float:
        """Return the mean over the folds."""
        values = self.values(measure, round_number)
        return fsum(values) / len(values)

    def deviation(self, measure: str, round_number: int | None = None) -> float:
        """Return the standard deviation over the folds, n - 1 below."""
        values, mean = self.values(measure, round_number), self.mean(measure, round_number)
        return sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1))

    def to_dict(self) -> dict[str, Any]:
        """Return the best round, what was measured then, and the curves over all rounds, as plain values."""
        rounds = range(1, len(self.histories[0]) + 1)
        return {
            "folds": len(self.histories),
            "stop_metric": self.stop_metric,
            "best_round": self.best_round,
            "rounds_trained": len(rounds),
            "best": {
                measure: {"mean": _plain(self.mean(measure)), "deviation": _plain(self.deviation(measure))}
                for measure in self.measures
            },
            "curves": {
                measure: {
                    "mean": [_plain(self.mean(measure, n)) for n in rounds],
                    "deviation": [_plain(self.deviation(measure, n)) for n in rounds],
                    "folds": [[_plain(record.metrics[HOLDOUT][measure]) for record in fold] for fold in self.histories],
                }
                for measure in self.measures
            },
        }

    def render(self) -> str:
        """Return the best round with means and deviations, for people."""
        lines = [
            f"{measure:<12} {self.mean(measure):.4f} +- {self.deviation(measure):.4f}   "
            + " ".join(f"{value:.4f}" for value in self.values(measure))
            for measure in self.measures
        ]
        return "\n".join(
            [f"best after {self.best_round} of {len(self.histories[0])} rounds, by {self.stop_metric}:", *lines]
        )


@dataclass(frozen=True, slots=True, eq=False)
class QueryValues:
    """A metric query by query: its mean stands in a record."""

    values: npt.NDArray[np.float64]  # (n_queries,) NaN where a query does not count
    weights: npt.NDArray[np.float64] | None  # (n_queries,) see rankmill.scorer.metrics.queries.PreparedQueries.weights


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The forest up to its best round, and how it got there."""

    forest: Forest
    best_round: int
    history: tuple[RoundRecord, ...] = field(repr=False)
    profile: Profile | None = field(default=None, repr=False)  # where the time went, if that was asked for
    cross_validation: CrossValidation | None = field(default=None, repr=False)  # what said how many rounds, if it did
    # the metrics of the best round by set and metric, as in its record, but for the deviance, which has no queries
    by_query: Mapping[str, Mapping[str, QueryValues]] = field(default_factory=dict, repr=False, compare=False)

    def curves(self) -> dict[str, Any]:
        """Return what every round measured as lists: by set and metric, and the out-of-bag improvement if there is one."""
        return curves_of(self.history)


def curves_of(history: Sequence[RoundRecord]) -> dict[str, Any]:
    """Return what every round of ``history`` measured, as :meth:`TrainingResult.curves` does."""
    return {
        "metrics": {
            name: {metric: [_plain(record.metrics[name][metric]) for record in history] for metric in metrics}
            for name, metrics in history[0].metrics.items()
        },
        **(
            {"oob_improvement": [record.oob_improvement for record in history]}
            if history[0].oob_improvement is not None
            else {}
        ),
    }


def _plain(value: float) -> float | None:
    """Return None for what JSON has no number for."""
    return value if isfinite(value) else None
