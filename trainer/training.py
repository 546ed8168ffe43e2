"""Train on a dataset of the pipeline: what it will cost, and then the forest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.binspec import BinSpec
from pipeline.dataset import Dataset
from scorer.metrics import parse_metric
from trainer.boosting import RankedRows, RoundRecord, TrainingResult, boost
from trainer.dtypes import BLOCK_WIDTH
from trainer.errors import TrainingDataRejected
from trainer.growing import Grower
from trainer.histogram import HistogramPool
from trainer.parameters import TrainParameters

_BYTES_A_ROW = 56  # score, gradient, curvature, gain, place in the order, what metrics keep; the grower adds its own


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What a training run will hold in memory, known before it starts."""

    train_rows: int
    train_queries: int
    valid_rows: int
    n_features: int
    max_leaves: int
    n_rounds: int
    bins: str  # which binned copy of the dataset is used

    @property
    def bytes_needed(self) -> int:
        """Bins, about 80 bytes a training row, the histogram pool, and the bins and scores of the valid split."""
        padded = -(-self.n_features // BLOCK_WIDTH) * BLOCK_WIDTH
        training = self.train_rows * (padded + _BYTES_A_ROW + Grower.BYTES_A_ROW)
        watching = self.valid_rows * (self.n_features + 16)
        return training + watching + HistogramPool.bytes_needed(padded, self.max_leaves)

    def render(self) -> str:
        """Return one line for people."""
        return (
            f"training on {self.train_rows:,} documents of {self.train_queries:,} queries, {self.n_features} features;"
            f" {self.bins}; about {self.bytes_needed / 1e6:,.0f} MB beside the interpreter"
            + ("" if self.valid_rows else f"; no valid split, so all {self.n_rounds:,} rounds are kept")
        )


def plan_of(dataset: Dataset, parameters: TrainParameters) -> TrainingPlan:
    """Return what training on ``dataset`` will need.

    Raises
    ------
    TrainingDataRejected
        The train split is empty.
    scorer.errors.InputError
        A metric is unknown.
    pipeline.errors.InputError
        The dataset has not been binned.
    """
    train, valid = dataset.queries("train"), dataset.queries("valid")
    if train.n_rows == 0:
        raise TrainingDataRejected(f"{dataset.path}: the train split is empty; ingest data for it")
    parse_metric(parameters.metric)
    parse_metric(parameters.stop_metric or parameters.metric)
    bins = dataset.bin_set()
    return TrainingPlan(
        train_rows=train.n_rows,
        train_queries=len(train),
        valid_rows=valid.n_rows,
        n_features=len(dataset.feature_names),
        max_leaves=parameters.max_leaves,
        n_rounds=parameters.n_rounds,
        bins=f"{bins.max_bin} bins ({bins.binspec[:12]})",
    )


def train(
    dataset: Dataset,
    parameters: TrainParameters | None = None,
    *,
    n_threads: int = 0,
    on_round: Callable[[RoundRecord], None] | None = None,
) -> TrainingResult:
    """Train on the train split of a binned dataset, watching its valid split if it has one.

    The model depends on the dataset's rows, its bins and ``parameters`` only: not on ``n_threads`` (0: the cores
    this process may use), nor on how the dataset came to be.

    Raises
    ------
    TrainingDataRejected
        The train split is empty, or no query in it has two grades.
    InvalidParameter
        See :class:`TrainParameters`.
    pipeline.errors.InputError
        The dataset has not been binned.
    """
    parameters = parameters or TrainParameters()
    binspec = dataset.binspec()
    train_rows = _rows(dataset, "train", binspec)
    if train_rows.n_rows == 0:
        raise TrainingDataRejected(f"{dataset.path}: the train split is empty; ingest data for it")
    valid_rows = _rows(dataset, "valid", binspec)
    return boost(
        train_rows,
        valid_rows if valid_rows.n_rows else None,
        [feature.edges for feature in binspec.features],
        dataset.feature_names,
        parameters,
        max_grade=dataset.max_grade,
        info={
            "dataset_digest": dataset.digest,
            "binspec_digest": binspec.digest,
            # candidates in text must be read as the judgments were
            "absent": dataset.manifest.meaning.absent,
            "index_base": dataset.manifest.meaning.index_base,
        },
        n_threads=n_threads,
        on_round=on_round,
    )


def _rows(dataset: Dataset, split: str, binspec: BinSpec) -> RankedRows:
    grades: npt.NDArray[np.int32] = dataset.rows(split, ["grade"]).column(0).to_numpy().astype(np.int32)
    return RankedRows(grades, dataset.queries(split).starts, dataset.bin_batches(split, binspec.digest))
