"""Read a LETOR folder with parts S1 .. S5 through our ingest once, as the same arrays for every system."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions

PARTS = 5


@dataclass(frozen=True)
class Split:
    x: npt.NDArray[np.float32]  # (n_rows, n_features)
    grades: npt.NDArray[np.int32]  # (n_rows,)
    starts: npt.NDArray[np.int64]  # (n_queries + 1,)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        return np.diff(self.starts)

    def followed_by(self, other: Split) -> Split:
        """Return the queries of both."""
        return Split(
            np.concatenate([self.x, other.x]),
            np.concatenate([self.grades, other.grades]),
            np.concatenate([self.starts, self.starts[-1] + other.starts[1:]]),
        )


@dataclass(frozen=True)
class Parts:
    train: Split
    valid: Split
    test: Split
    categorical: tuple[int, ...] = ()  # columns


@dataclass(frozen=True, kw_only=True)
class Fold(Parts):
    dataset: Dataset


def missing_parts(folder: Path) -> list[str]:
    return [f"S{i + 1}.txt" for i in range(PARTS) if not (folder / f"S{i + 1}.txt").is_file()]


def make_fold(folder: Path, number: int, work: Path, read: ReadOptions | None = None) -> Fold:
    """Ingest fold ``number`` (from 0): three parts for training, the next for validation, the last for testing.

    Parts are cyclic.
    """
    part = [folder / f"S{(number + i) % PARTS + 1}.txt" for i in range(PARTS)]
    path = work / f"fold{number + 1}"
    ingest(part[:3], path, valid=part[3:4], test=part[4:], options=IngestOptions(read=read or ReadOptions()))
    bin_dataset(Dataset.open(path))
    dataset = Dataset.open(path)
    return Fold(*(_read_split(dataset, split) for split in ("train", "valid", "test")), dataset=dataset)


def _read_split(dataset: Dataset, split: str) -> Split:
    grades = dataset.rows(split, ["grade"]).column(0).to_numpy().astype(np.int32)
    return Split(np.concatenate(list(dataset.feature_batches(split))), grades, dataset.queries(split).starts)
