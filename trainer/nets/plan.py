"""The size and the memory of a training of a net, known before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.foundation.options import spelled, values_of
from rankmill.pipeline.dataset import Dataset
from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.parameters import CheckpointOptions, MachineOptions

_OF_TREES = ("bin_cache", "histogram_memory", "profile")
_BYTES_A_ROW = 160  # grades, weights, scores, gradients of both orders, places, and what losses hold


@dataclass(frozen=True, slots=True, kw_only=True)
class NetPlan:
    """What a training of a net will do, known before it starts."""

    train_rows: int
    train_queries: int
    valid_rows: int
    n_features: int
    options: NetOptions
    folds: int = 0  # of a cross-validation; 0: none

    @property
    def bytes_needed(self) -> int:
        """About the peak of memory: the values of all rows, as they are and as inputs, and a few columns."""
        rows = self.train_rows + self.valid_rows
        inputs = self.n_features * (2 if self.options.missing_indicators else 1)
        return rows * (4 * (self.n_features + inputs) + _BYTES_A_ROW)

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
            f" about {self.bytes_needed / 1e6:,.0f} MB without the interpreter{stop}"
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
    return NetPlan(
        train_rows=train.n_rows, train_queries=len(train), valid_rows=0 if folds else valid.n_rows,
        n_features=len(dataset.feature_names), options=options, folds=folds,
    )  # fmt: skip
