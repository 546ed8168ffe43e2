"""The five folds of a LETOR folder as binned rows in memory, built once for many trainings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.letor import PARTS, Split, make_fold
from rankmill.pipeline.bins.spec import BinSpec, apply_bins, matrix_bins
from rankmill.scorer.forest.predict import predict
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries, mean_of
from rankmill.trainer.data.layout import BlockedBins
from rankmill.trainer.data.rows import RankedRows, TrainingData
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rounds.boosting import boost
from rankmill.trainer.rounds.training_result import TrainingResult
from rankmill.trainer.training_options import TrainingOptions

METRICS = tuple(parse_metric(name) for name in ("ndcg@1", "ndcg@3", "ndcg@10", "err@10", "map"))
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class BinnedFold:
    """One fold: training rows, validation rows (None: all rounds are kept), and test queries."""

    spec: BinSpec
    train: RankedRows
    valid: RankedRows | None
    test: Split
    queries: PreparedQueries  # of the test part
    columns: npt.NDArray[np.uint8]  # (n_features, n_rows) bins of the training rows

    def boost(self, parameters: TrainParameters, **options: Any) -> TrainingResult:
        """Train; ``options`` are those of :class:`rankmill.trainer.training_options.TrainingOptions`."""
        eval_sets = [("valid", self.valid)] if self.valid is not None else []
        return boost(self.data(*eval_sets), parameters, TrainingOptions(**options))

    def data(self, *eval_sets: tuple[str, RankedRows]) -> TrainingData:
        """Return the training data, with ``eval_sets``."""
        return TrainingData(
            train=self.train,
            eval_sets=eval_sets,
            edges=[feature.edges for feature in self.spec.features],
            feature_names=self.spec.feature_names,
            max_grade=self.queries.policy.max_grade or 1,
        )

    def evaluate(self, scores: Scores) -> npt.NDArray[np.float64]:
        """Return the mean of each of ``METRICS`` over the queries of the test part."""
        found = self.queries.evaluate(METRICS, scores)
        return np.array([mean_of(found[metric]) for metric in METRICS])

    def predict(self, result: TrainingResult, n_rounds: int | None = None) -> Scores:
        """Score the test part."""
        return predict(result.forest, self.test.x, n_rounds=n_rounds)


def binned(train: Split, valid: Split | None, test: Split, policy: Policy) -> BinnedFold:
    """Bin ``train`` and ``valid`` by the quantiles of ``train``."""
    names = [f"f{i}" for i in range(train.x.shape[1])]
    spec = matrix_bins(names, train.x)
    bins = apply_bins(train.x, spec)
    blocked = BlockedBins.from_batches([bins], len(train.grades), spec.n_bins)
    valid_rows = None if valid is None else RankedRows(valid.grades, valid.starts, [apply_bins(valid.x, spec)])
    queries = PreparedQueries(test.grades, test.starts, policy)
    return BinnedFold(
        spec, RankedRows(train.grades, train.starts, blocked), valid_rows, test, queries, np.ascontiguousarray(bins.T)
    )


def letor_folds(folder: Path, work: Path, policy: Callable[[int], Policy], *, stopped: bool = True) -> list[BinnedFold]:
    """Read the five folds; without ``stopped`` the valid part is not used and all rounds are kept."""
    folds = []
    for number in range(PARTS):
        fold = make_fold(folder, number, work)
        folds.append(binned(fold.train, fold.valid if stopped else None, fold.test, policy(fold.dataset.max_grade)))
    return folds


def mean_over(folds: Sequence[BinnedFold], system: Callable[[BinnedFold], Scores]) -> npt.NDArray[np.float64]:
    """Return the mean of each of ``METRICS`` over the folds."""
    found: npt.NDArray[np.float64] = np.mean([fold.evaluate(system(fold)) for fold in folds], axis=0)
    return found
