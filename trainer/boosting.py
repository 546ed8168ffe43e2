"""The boosting loop: gradients, a tree, new scores, metrics, until early stopping or the last round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.cores import available_cores
from scorer.forest import Forest
from scorer.metrics import Metric, Policy, parse_metric
from scorer.metrics.queries import PreparedQueries, mean_of
from trainer import _kernels
from trainer.assembly import forest_of
from trainer.errors import InvalidParameter, TrainingDataRejected
from trainer.growing.grower import Grower
from trainer.growing.tree import Tree
from trainer.layout import BlockedBins
from trainer.objectives.lambdamart import LambdaMart
from trainer.objectives.protocol import Objective
from trainer.parameters import TrainParameters
from trainer.stopping import EarlyStopping
from trainer.workers import Team, with_team

Bins = npt.NDArray[np.uint8]

_LEAST_WALKED = 2048  # rows a worker that walk down a tree
_LEAST_RANKED = 4096  # rows a worker that are ranked for a metric


@dataclass(frozen=True, slots=True)
class RankedRows:
    """Rows of one split: query q has rows ``starts[q]`` to ``starts[q + 1]``.

    ``bins`` yields row-major batches (m, n_features) uint8 in row order and is read once.
    """

    grades: npt.NDArray[np.int32]  # (n_rows,)
    starts: npt.NDArray[np.int64]  # (n_queries + 1,)
    bins: Iterable[Bins]

    @property
    def n_rows(self) -> int:
        """Documents of all queries."""
        return len(self.grades)


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """Mean metrics after one round, by split and metric name."""

    round_number: int  # 1, 2, ..
    train: Mapping[str, float]
    valid: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The forest up to its best round, and how it got there."""

    forest: Forest
    best_round: int
    history: tuple[RoundRecord, ...] = field(repr=False)


def boost(
    train: RankedRows,
    valid: RankedRows | None,
    edges: Sequence[npt.NDArray[np.float32]],
    feature_names: Sequence[str],
    parameters: TrainParameters,
    *,
    max_grade: int,
    info: Mapping[str, Any] | None = None,
    n_threads: int = 0,
    on_round: Callable[[RoundRecord], None] | None = None,
) -> TrainingResult:
    """Train a forest; the same bytes for every ``n_threads`` (0: the cores this process may use).

    Parameters
    ----------
    train, valid
        Without ``valid`` there is no early stopping and all rounds are kept.
    edges
        One ascending float32 array a feature; bin b >= 1 holds ``edges[b - 2] < x <= edges[b - 1]``, bin 0 the missing.
    feature_names
        As many as ``edges``; written into the model.
    parameters
        See :class:`TrainParameters`.
    max_grade
        Highest grade of the scale, for ERR; written into the model.
    info
        Facts to keep in the model file (dataset digest ..); no times, no paths.
    on_round
        Called after every round, in the caller's thread.

    Raises
    ------
    InvalidParameter
        ``n_threads`` is negative, or the metric cannot be optimised or evaluated.
    TrainingDataRejected
        No rows, no query with two grades, or a valid split in which nothing is relevant.
    """
    if n_threads < 0:
        raise InvalidParameter(f"n_threads must be 0 or more, got {n_threads}")
    if train.n_rows == 0:
        raise TrainingDataRejected("the train split holds no rows")
    stop_metric = parse_metric(parameters.stop_metric or parameters.metric)
    policy = Policy(
        gain="exp" if parameters.gain == "exp" else "linear",
        max_grade=max(max_grade, 1) if stop_metric.name == "err" else None,
    )
    objective = LambdaMart(train.grades, train.starts, parameters)
    n_bins = np.array([len(cuts) + 2 for cuts in edges], dtype=np.int32)
    bins = BlockedBins.from_batches(train.bins, train.n_rows, n_bins)
    train_queries = PreparedQueries(train.grades, train.starts, policy)
    watched = None if valid is None or valid.n_rows == 0 else _Watched(valid, policy, objective.start())
    if watched is not None and watched.queries.nothing_relevant(stop_metric).all():
        raise TrainingDataRejected(
            f"no query of the valid split has a relevant document, so {stop_metric} cannot tell when to stop;"
            " put other queries into it, or leave it out"
        )
    run = _Run(parameters, objective, bins, train_queries, watched, stop_metric, on_round)
    trees, history, best_round = with_team(n_threads or available_cores(), run)
    facts = {
        **(info or {}),
        "best_round": best_round,
        "max_grade": max_grade,
        "rounds_trained": len(history),
        "train": dict(history[best_round - 1].train),
        "valid": dict(history[best_round - 1].valid),
    }
    forest = forest_of(trees[:best_round], edges, feature_names, objective, parameters, facts)
    return TrainingResult(forest=forest, best_round=best_round, history=tuple(history))


class _Watched:
    """The valid split: its bins, its scores so far, its metrics."""

    def __init__(self, rows: RankedRows, policy: Policy, start: float) -> None:
        self.bins = np.concatenate(list(rows.bins))
        self.scores = np.full(rows.n_rows, start, dtype=np.float64)
        self.queries = PreparedQueries(rows.grades, rows.starts, policy)

    def add(self, tree: Tree, team: Team) -> None:
        """Add ``tree`` to the scores, rows shared out among the workers."""

        def share(first: int, last: int, _: int) -> None:
            _kernels.add_tree(
                self.bins, tree.feature, tree.threshold, tree.missing_left, tree.left, tree.right, tree.value,
                first, last, self.scores,
            )  # fmt: skip

        team.share(len(self.scores), _LEAST_WALKED, share)


@dataclass(frozen=True, slots=True)
class _Run:
    """All rounds of one training, called with the team that works on them."""

    parameters: TrainParameters
    objective: Objective
    bins: BlockedBins
    queries: PreparedQueries
    valid: _Watched | None
    stop_metric: Metric
    on_round: Callable[[RoundRecord], None] | None

    def __call__(self, team: Team) -> tuple[list[Tree], list[RoundRecord], int]:
        n, p = self.bins.n_rows, self.parameters
        scores = np.full(n, self.objective.start(), dtype=np.float64)
        g, h = np.empty(n, dtype=np.float64), np.empty(n, dtype=np.float64)
        grower = Grower(self.bins, p, team)
        stopping = EarlyStopping(p.early_stopping_rounds, self.stop_metric.higher_is_better)
        trees: list[Tree] = []
        history: list[RoundRecord] = []
        for round_number in range(1, p.n_rounds + 1):
            self.objective.gradients(round_number, scores, g, h, team)
            tree = grower.grow(g, h, scores)
            trees.append(tree)
            if self.valid is not None:
                self.valid.add(tree, team)
            record = RoundRecord(
                round_number,
                train=_means(self.queries, self.stop_metric, scores, team),
                valid={}
                if self.valid is None
                else _means(self.valid.queries, self.stop_metric, self.valid.scores, team),
            )
            history.append(record)
            if self.on_round is not None:
                self.on_round(record)
            if record.valid and stopping.update(round_number, record.valid[str(self.stop_metric)]):
                break
        return trees, history, stopping.best_round or len(trees)


def _means(queries: PreparedQueries, metric: Metric, scores: npt.NDArray[np.float64], team: Team) -> dict[str, float]:
    values = np.empty((1, queries.n_queries), dtype=np.float64)
    least = max(1, _LEAST_RANKED * queries.n_queries // max(1, queries.n_rows))
    team.share(
        queries.n_queries, least, lambda first, last, _: queries.evaluate_into([metric], scores, first, last, values)
    )
    return {str(metric): mean_of(values[0])}
