"""Results of a training: metrics of every round, and the forest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, isfinite, nan, sqrt
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rankmill.foundation.options import spelled
from rankmill.foundation.records import JSON, left_out
from rankmill.scorer.forest.forest import Forest

if TYPE_CHECKING:
    from rankmill.scorer.nets.net import Net

TRAIN = "train"  # name of the training rows in a record
REFIT = "refit"  # key in the model: what it was trained on again
HOLDOUT = "holdout"  # name of held-out queries in a record


@dataclass(frozen=True, slots=True)
class TrainingStage:
    """One of several trainings of a model, as progress names it."""

    name: str  # "ranking trees, fold 1 of 3"
    n_rounds: int  # at most
    unit: str = "round"


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """Mean metrics after one round: ``metrics[set][metric]``, the train split first, then the eval sets as given."""

    round_number: int  # 1, 2, ..
    metrics: Mapping[str, Mapping[str, float]]
    # decrease of the mean out-of-bag loss by the trees of this round, if requested
    oob_improvement: float | None = None
    fold: int = field(default=0, compare=False)  # 1, 2, .. in a cross-validation; 0: training on all rows
    seed: int = field(default=0, compare=False)  # of the training
    stage: TrainingStage | None = field(default=None, compare=False)  # of the training of a blend

    @property
    def train(self) -> Mapping[str, float]:
        """The metrics of the training rows."""
        return self.metrics[TRAIN]


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """Performance on unseen queries after every round: one history per fold, equally long."""

    histories: tuple[tuple[RoundRecord, ...], ...] = field(repr=False)  # measures of the fold under ``holdout``
    stop_metric: str
    best_round: int  # rounds to take: those with the best mean of the stop metric
    # the stop metric of each query after the best round, as a fold that it was held out from measures it, if asked for
    by_query: npt.NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    unit: str = field(default="round", repr=False)  # what a round is called
    note: str = field(default="", repr=False, compare=False)  # that no tree of any fold has a split
    # of nets, if asked for: that of every epoch, by the number of the fold
    nets: Mapping[int, Sequence[Net]] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        found = f"{self.stop_metric} {self.mean(self.stop_metric):.4f} +- {self.deviation(self.stop_metric):.4f}"
        rounds = f"{self.best_round:,} of {len(self.histories[0]):,} {self.unit}s"
        return f"<CrossValidation: {found} in {len(self.histories)} folds, best after {rounds}>"

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the measures, the stop metric first."""
        return tuple(self.histories[0][0].metrics[HOLDOUT])

    def values(self, measure: str, round_number: int | None = None) -> list[float]:
        """Return the measure of every fold on its held-out queries after a round, by default the best one."""
        at = (round_number or self.best_round) - 1
        return [history[at].metrics[HOLDOUT][measure] for history in self.histories]

    def mean(self, measure: str, round_number: int | None = None) -> float:
        """Return the mean over the folds."""
        values = self.values(measure, round_number)
        return fsum(values) / len(values)

    def deviation(self, measure: str, round_number: int | None = None) -> float:
        """Return the standard deviation over the folds, with n - 1 degrees of freedom."""
        values, mean = self.values(measure, round_number), self.mean(measure, round_number)
        return sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1))

    def to_dict(self) -> dict[str, JSON]:
        """Return the best round, its metrics and the curves over all rounds, as plain values."""
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
            **({"note": self.note} if self.note else {}),
        }

    def render(self) -> str:
        """Return the best round with means and deviations, for people."""
        lines = [
            f"{measure:<12} {self.mean(measure):.4f} +- {self.deviation(measure):.4f}   "
            + " ".join(f"{value:.4f}" for value in self.values(measure))
            for measure in self.measures
        ]
        lines.insert(
            0, f"best after {self.best_round} of {len(self.histories[0])} {self.unit}s, by {self.stop_metric}:"
        )
        return "\n".join(lines + [f"note: {self.note}"] * bool(self.note))


@dataclass(frozen=True, slots=True, eq=False)
class QueryValues:
    """A metric per query; a record has its mean."""

    values: npt.NDArray[np.float64]  # (n_queries,) NaN if a query does not count
    weights: (
        npt.NDArray[np.float64] | None
    )  # (n_queries,) see rankmill.scorer.metrics.per_query.PreparedQueries.weights


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The forest up to its best round, and the history of its training."""

    forest: Forest
    best_round: int
    history: tuple[RoundRecord, ...] = field(repr=False)
    cross_validation: CrossValidation | None = field(default=None, repr=False)  # chose the number of rounds
    # the metrics of the best round per query, by set and metric, without the deviance, which has no queries
    by_query: Mapping[str, Mapping[str, QueryValues]] = field(default_factory=dict, repr=False, compare=False)
    # their 95 % intervals over queries by set and metric, if computed
    intervals: Mapping[str, Mapping[str, tuple[float, float]]] | None = field(default=None, repr=False, compare=False)


def note_without_splits(forest: Forest) -> str:
    """Return why no tree of a trained forest has a split, and the option that helps. It is empty if a tree has one."""
    if forest.n_trees == 0 or forest.used_features:
        return ""
    least = int(str(forest.parameters.get("min_rows_in_leaf", 1)))
    rows = int(forest.node_rows[forest.tree_starts[:-1]].max())
    option = spelled("min_rows_in_leaf")
    why = f"leaves need {least:,} rows, and the trees learnt from {rows:,}; lower {option}"
    if rows >= 2 * least:
        why = (
            f"no split of two leaves of {least:,} rows ({option}) of {rows:,} gains anything; check that the features "
            f"vary, or lower {option}"
        )
    return f"no tree has a split, so all documents tie: {why}"


@dataclass(frozen=True, slots=True)
class Curves:
    """What every round of a training measured, as lists over the rounds."""

    metrics: Mapping[str, Mapping[str, tuple[float | None, ...]]]  # by set and metric; None: no value
    oob_improvement: tuple[float | None, ...] | None = left_out()

    @classmethod
    def of(cls, history: Sequence[RoundRecord]) -> Curves:
        """Return the curves of one round or more."""
        oob = tuple(record.oob_improvement for record in history)
        return cls(
            {
                name: {metric: tuple(_plain(record.metrics[name][metric]) for record in history) for metric in metrics}
                for name, metrics in history[0].metrics.items()
            },
            None if oob[0] is None else oob,
        )

    def history(self) -> tuple[RoundRecord, ...]:
        """Return the records of the rounds: the reverse of :meth:`of`."""
        n_rounds = len(next(iter(next(iter(self.metrics.values())).values())))
        return tuple(
            RoundRecord(
                i + 1,
                {
                    name: {metric: nan if (value := values[i]) is None else value for metric, values in metrics.items()}
                    for name, metrics in self.metrics.items()
                },
                None if self.oob_improvement is None else self.oob_improvement[i],
            )
            for i in range(n_rounds)
        )


def _plain(value: float) -> float | None:
    """Return None for NaN and infinities, which JSON cannot express."""
    return value if isfinite(value) else None
