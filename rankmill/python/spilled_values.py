"""Features of rows that arrive in pieces, in a temporary file: memory holds a chunk or a few columns of them at a time.

::

    file   [chunk 0: column 0 | column 1 | ..] [chunk 1: column 0 | column 1 | ..] ..     float32
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from itertools import pairwise
from typing import IO

import numpy as np
import numpy.typing as npt
from joblib import Parallel, delayed

from rankmill.pipeline.bins.layout import BIN, BLOCK_WIDTH, WORD, blocks_shape, lanes_of, n_lanes
from rankmill.pipeline.bins.quantiles import EDGE, Values
from rankmill.pipeline.bins.spec import BinSpec, FeatureBins, apply_bins, checked_max_bins, feature_bins
from rankmill.pipeline.group.query_splits import digest_of_rows
from rankmill.python.arrays import Matrix
from rankmill.trainer._kernels import LANE, PLACE
from rankmill.trainer.data.layout import BlockedBins

_CHUNK_BYTES = 16 << 20


class SpilledValues:
    """A matrix (n, n_features) float32 in ``file``, an open and empty one; it takes 4 bytes a value."""

    def __init__(self, n_features: int, file: IO[bytes]) -> None:
        self.n_features = n_features
        self._file = file
        self._starts = [0]  # rows before each chunk, and of all
        self._chunk_rows = max(1, _CHUNK_BYTES // (4 * n_features))
        self._waiting: list[Matrix] = []
        self.order: npt.NDArray[np.intp] | slice = slice(None)

    def __len__(self) -> int:
        return self._starts[-1] + sum(map(len, self._waiting))

    def __getitem__(self, order: npt.NDArray[np.intp]) -> SpilledValues:
        """Return the same rows in another ``order`` (n,)."""
        other = copy(self)
        other.order = order
        return other

    def add(self, values: Matrix) -> None:
        """Append the rows of ``values`` (m, n_features)."""
        for first in range(0, len(values), self._chunk_rows):
            self._waiting.append(values[first : first + self._chunk_rows].copy())
            if sum(map(len, self._waiting)) >= self._chunk_rows:
                self.flush()

    def flush(self) -> None:
        """Write what is in memory; to be called after the last `add`."""
        rows = len(self)
        if self._waiting:
            self._file.write(np.ascontiguousarray(np.concatenate(self._waiting).T).data)
            self._file.flush()
            self._starts.append(rows)
            self._waiting = []

    def digests(self, grades: npt.NDArray[np.int32]) -> npt.NDArray[np.uint64]:
        """Return `digest_of_rows` of the rows as they were added, with their ``grades`` (n,)."""
        found = [np.empty((0, 2), dtype=np.uint64)]
        for first, last in pairwise(self._starts):
            chunk = self._read(first * self.n_features, (last - first) * self.n_features)
            found.append(digest_of_rows(chunk.reshape(self.n_features, -1).T, grades[first:last]))
        return np.concatenate(found)

    def bins(
        self,
        names: Sequence[str],
        max_bin: int,
        *,
        n_threads: int,
        categorical: Collection[str],
        max_bin_of: Mapping[str, int] | None,
    ) -> BinSpec:
        """Return what `rankmill.pipeline.bins.spec.matrix_bins` returns of the whole matrix."""
        most = checked_max_bins(max_bin_of or {}, max_bin, names)

        def find(f: int, name: str) -> FeatureBins:
            values, maximum = self._column(f), most.get(name, max_bin)
            return feature_bins(name, values, maximum, in_place=True, categorical=name in categorical)

        features = Parallel(n_jobs=n_threads, require="sharedmem")(
            delayed(find)(f, name) for f, name in enumerate(names)
        )
        return BinSpec(tuple(features), max_bin, max_bin_of=most)

    def blocked(self, binspec: BinSpec, n_threads: int) -> BlockedBins:
        """Return the bins in the order of the rows, in the trainer's layout."""
        lanes = lanes_of(binspec.n_bins)
        out = np.zeros(blocks_shape(n_lanes(lanes), len(self), BLOCK_WIDTH), dtype=BIN)

        def fill(lane: int) -> None:
            codes = out[lane // BLOCK_WIDTH, :, lane % BLOCK_WIDTH]  # as join_lanes, by column
            for f in np.flatnonzero(lanes[:, LANE] == lane).tolist():
                feature = BinSpec((binspec.features[f],), binspec.max_bin)
                codes += BIN(lanes[f, PLACE]) * apply_bins(self._column(f)[:, None], feature)[self.order, 0]

        Parallel(n_jobs=n_threads, require="sharedmem")(delayed(fill)(lane) for lane in range(n_lanes(lanes)))
        return BlockedBins(out.view(WORD), binspec.n_bins)

    def column(self, f: int) -> Values:
        """Return a column (n,) in the order of the rows."""
        return self._column(f)[self.order]

    def _column(self, f: int) -> Values:
        """Return a column (n,) as its rows were added."""
        return np.concatenate([np.empty(0, dtype=EDGE), *self._parts_of(f)])

    def _parts_of(self, f: int) -> Iterator[Values]:
        for first, last in pairwise(self._starts):
            yield self._read(first * self.n_features + f * (last - first), last - first)

    def _read(self, first: int, n: int) -> Values:
        """Return ``n`` values from the value ``first`` of the file."""
        return np.frombuffer(os.pread(self._file.fileno(), 4 * n, 4 * first), dtype=EDGE)
