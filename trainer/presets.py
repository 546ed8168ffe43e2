"""Presets: what decides the training options that are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rankmill.pipeline.dataset import Dataset
from rankmill.trainer.parameters import AUTO, DEFAULTS, TrainParameters
from rankmill.trainer.rows import RankedRows

OBLIVIOUS_QUERIES = 5_000  # with more training queries, trees that grow leaf by leaf rank as well and train faster


@dataclass(frozen=True, slots=True)
class DataShape:
    """What a preset may know of the data: counts of the train split."""

    queries: int
    documents: int
    features: int


def shape_of_rows(rows: RankedRows, n_features: int) -> DataShape:
    """Return the shape of a train split in memory."""
    return DataShape(rows.n_queries, rows.n_rows, n_features)


def shape_of_dataset(dataset: Dataset) -> DataShape:
    """Return the shape of the train split of a dataset."""
    queries = dataset.queries("train")
    return DataShape(len(queries), queries.n_rows, len(dataset.feature_names))


def with_preset(parameters: TrainParameters, shape: DataShape) -> TrainParameters:
    """Return ``parameters`` with a value for every option that was left out; those that were given stay."""
    if parameters.preset == DEFAULTS:
        return parameters
    return parameters.completed(_PRESETS[parameters.preset](parameters, shape))


def _auto_1(given: TrainParameters, shape: DataShape) -> Mapping[str, Any]:
    """Small data: oblivious trees of few leaves; see docs/presets.md for the measurements."""
    values: dict[str, Any] = {"n_rounds": 1000, "learning_rate": 0.05}
    leaf_by_leaf = shape.queries > OBLIVIOUS_QUERIES or given.max_leaves is not None or bool(given.monotone)
    grow = given.grow or ("best_first" if leaf_by_leaf else "oblivious")
    if grow == "oblivious":
        values |= {"grow": grow, "max_depth": 4, "objective": "yetirank"}
    return values


_PRESETS: Mapping[str, Callable[[TrainParameters, DataShape], Mapping[str, Any]]] = {AUTO: _auto_1}
