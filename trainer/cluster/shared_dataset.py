"""A dataset that workers of a cluster open under the same path."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rankmill.foundation.errors import InputError
from rankmill.pipeline.dataset.dataset import Dataset


@dataclass(frozen=True, slots=True)
class SharedDataset:
    """The path of a binned dataset, and the digests of its rows and bins."""

    path: Path
    digest: str
    binspec: str

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        """Return what workers need to open ``dataset``, whose newest bins are used."""
        return cls(dataset.path.absolute(), dataset.digest, dataset.bin_set().binspec)

    def opened(self) -> Dataset:
        """Return the dataset, in a worker; InputError if another one, or with other bins, is there."""
        dataset = Dataset.open(self.path)
        if SharedDataset.of(dataset) != self:
            raise InputError(
                f"{self.path}: a worker sees another dataset or other bins under this path; share one folder, and bin "
                "before the training"
            )
        return dataset
