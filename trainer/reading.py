"""The rows of a dataset's split as the trainer takes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.pipeline.binspec import BinSpec
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.group.hashing import hash_ids
from rankmill.pipeline.pairs.stored_pairs import Pairs
from rankmill.trainer.objectives.registry import learns_labels
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rows import Preferences, RankedRows

_NAMES_SALT = 0x2545F4914F6CDD1D  # says nothing about buckets and splits, which are hashes of the same ids


def read_rows(dataset: Dataset, split: str, binspec: BinSpec, parameters: TrainParameters) -> RankedRows:
    """Return the rows of ``split`` with every column that the dataset has and the objective can use."""
    return replace(read_columns(dataset, split, parameters), bins=bin_batches(dataset, split, binspec))


def read_columns(dataset: Dataset, split: str, parameters: TrainParameters) -> RankedRows:
    """Return the rows of ``split`` without their bins."""
    queries = dataset.queries(split)
    used = [name for name in _COLUMNS if name in dataset.optional_columns]
    if not learns_labels(parameters.objective):
        used = [name for name in used if name != "label"]
    columns = {name: _column(dataset, split, name) for name in used}
    return RankedRows(
        grades=_column(dataset, split, "grade").astype(np.int32, copy=False),
        starts=queries.starts,
        bins=(),
        weights=_telling(columns.get("weight")),
        labels=columns.get("label"),
        events=columns.get("event"),
        offsets=columns.get("offset"),
        query_weights=_telling(queries.weights),
        pairs=_preferences(dataset.pairs(split)),
        names=hash_ids(queries.qid, _NAMES_SALT).view(np.int64),
    )


def bin_batches(dataset: Dataset, split: str, binspec: BinSpec) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the bins of ``split``, (m, n_features) at a time."""
    yield from dataset.bin_batches(split, binspec.digest)
    _give_back()


_COLUMNS = ("label", "event", "weight", "offset")


def _column(dataset: Dataset, split: str, name: str) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = dataset.rows(split, [name]).column(0).to_numpy()
    _give_back()
    return values


def _telling(weights: npt.NDArray[np.float64] | None) -> npt.NDArray[np.float64] | None:
    """Return None where all weights are alike, which says nothing."""
    alike = weights is not None and len(weights) > 0 and weights[0] > 0.0 and bool((weights == weights[0]).all())
    return None if alike else weights


def _preferences(found: Pairs | None) -> Preferences | None:
    if found is None:
        return None
    return Preferences(
        better=found.better, worse=found.worse, weight=found.weight, probability=found.probability, starts=found.starts
    )


def _give_back() -> None:
    """Return what Arrow's readers have freed to the system: some 20 MB that they would keep for more reading."""
    pa.default_memory_pool().release_unused()
