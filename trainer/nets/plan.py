"""The size and the memory of a training of a net, known before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.foundation.kernels.dense import PANEL
from rankmill.foundation.options import spelled, values_of
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.statistics.feature_statistics import statistics_of
from rankmill.scorer.nets._kernels import FIRST_CATEGORY
from rankmill.trainer.nets.options import ADAMW, NetOptions
from rankmill.trainer.options import CheckpointOptions, MachineOptions
from rankmill.trainer.team import workers_for

_OF_TREES = ("histogram_memory",)
_BYTES_A_ROW = 160  # grades, weights, scores, gradients of both orders, places, and what losses hold
_BYTES_OF_FITTING = 18  # a row and worker: a column, and its known values in order
_BYTES_OF_READING = 24 << 20  # readers' buffers, and freed memory that the allocator keeps
_COPIES = (
    9  # of all weights, at the most: the net of an epoch, the best one as bytes, and a checkpoint with both moments
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetPlan:
    """What a training of a net will do, known before it starts."""

    train_rows: int
    train_queries: int
    valid_rows: int
    n_features: int
    n_categorical: int
    n_missing: int  # numeric features with missing values, in any split
    longest_query: int  # documents
    n_threads: int
    options: NetOptions
    folds: int = 0  # of a cross-validation; 0: none
    keeps_nets: bool = False  # whether the cross-validation keeps the net of every epoch

    @property
    def bytes_needed(self) -> int:
        """Peak memory in bytes: the values of all rows as they are and as inputs, or the inputs, weights and a batch.

        A cross-validation also keeps the values, and a checkpoint of each fold, or its net of every epoch.  It is a
        bound: batches are seldom the largest that they can be.  Measured, the peak of the process grows by 55 to 100 %
        of it.
        """
        rows = self.train_rows + self.valid_rows
        values = 4 * self.n_features * rows
        inputs = 4 * (self._n_numbers + self.n_categorical) * rows
        weights, held = self._weight_bytes()
        reading = values + inputs + _BYTES_OF_FITTING * self.n_threads * self.train_rows
        training = inputs + _BYTES_A_ROW * rows + held + self._batch_bytes() + _COPIES * weights
        kept = values + self.folds * (6 + self.options.epochs * self.keeps_nets) * weights if self.folds else 0
        return _BYTES_OF_READING + kept + max(reading, training)

    @property
    def _n_numbers(self) -> int:
        """Inputs of a row that are no embeddings."""
        return self.n_features - self.n_categorical + self.n_missing * self.options.missing_indicators

    @property
    def _widths(self) -> tuple[int, ...]:
        return (self._n_numbers + self.n_categorical * self.options.embedding_width, *self.options.layers)

    def _weight_bytes(self) -> tuple[int, int]:
        """Return the bytes of all weights, and those that a training holds.

        These are also gradients, moments, and transposed layers.
        """
        layers = [n * _padded(m) for n, m in pairwise(self._widths)]
        categories = self.n_categorical * (min(self.options.max_categories, self.train_rows) + FIRST_CATEGORY)
        weights = 4 * (sum(layers) + self._widths[-1] + categories * self.options.embedding_width)
        transposed = layers if self.n_categorical else layers[1:]
        return weights, weights * (4 if self.options.optimiser == ADAMW else 2) + 4 * sum(transposed)

    def _batch_bytes(self) -> int:
        """Return the bytes of inputs, sums, outputs and slopes of a batch."""
        documents = self.options.batch_documents
        rows = min(self.train_rows, documents + documents // 2 + self.longest_query)
        inputs = self._widths[0] * (2 if self.n_categorical else 1)
        return 4 * rows * (inputs + 3 * sum(map(_padded, self.options.layers)))

    def render(self) -> str:
        """Return a line for people."""
        widths = " x ".join(map(str, self.options.layers)) or "no hidden layer"
        stop = "" if self.valid_rows or self.folds else "; no valid split, so the last epoch is kept"
        what = (
            f"cross-validating a net ({widths}) in {self.folds} folds" if self.folds else f"training a net ({widths})"
        )
        return (
            f"{what} on {self.train_rows:,} documents of {self.train_queries:,} queries,"
            f" {self.n_features} features; {self.options.objective}; at most {self.options.epochs} epochs;"
            f" at most about {self.bytes_needed / 1e6:,.0f} MB without the interpreter{stop}"
        )


def plan_net(dataset: Dataset, options: NetOptions, machine: MachineOptions, folds: int = 0) -> NetPlan:
    """Return the size of a training on ``dataset``, or of a cross-validation on its train split in so many ``folds``.

    Raises
    ------
    InvalidParameter
        ``machine`` has an option that only trees have.
    TrainingDataRejected
        The train split is empty.
    """
    usual = values_of(MachineOptions()) | values_of(CheckpointOptions())
    for name in _OF_TREES:
        if getattr(machine, name, usual[name]) != usual[name]:
            raise InvalidParameter(f"{spelled(name)} is an option of trees; leave it out with {spelled('model')} net")
    train, valid = dataset.queries("train"), dataset.queries("valid")
    if train.n_rows == 0:
        raise TrainingDataRejected(f"{dataset.path}: the train split is empty; ingest data for it")
    categorical = set(dataset.manifest.categorical)
    missing = {feature.name for feature in statistics_of(dataset).features if feature.missing}
    return NetPlan(
        train_rows=train.n_rows, train_queries=len(train), valid_rows=0 if folds else valid.n_rows,
        n_features=len(dataset.feature_names), n_categorical=len(categorical),
        n_missing=len(missing - categorical),
        longest_query=int(np.diff(train.starts).max(initial=0)), n_threads=workers_for(machine.n_threads),
        options=options,
        folds=folds,
    )  # fmt: skip


def _padded(width: int) -> int:
    return -(-width // PANEL) * PANEL
