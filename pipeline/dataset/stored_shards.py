"""The files of a dataset, shard by shard, for all splits.

A file is compared with the digest in its name when it is first read, so that no model is trained on damaged data.  All
functions need memory for their result and one row group.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ValidationError

from rankmill.foundation.cures import SRC, command
from rankmill.foundation.errors import DatasetFormatError, InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.records import other_format
from rankmill.foundation.storage.publish import file_digest
from rankmill.pipeline.arrow import open_parquet
from rankmill.pipeline.bins.vocabulary import Vocabulary
from rankmill.pipeline.dataset.manifest import (
    BINS_FORMAT,
    CATEGORIES,
    FEATURES,
    FORMAT,
    MANIFEST_NAME,
    PAIRS,
    QUERIES,
    SPLITS,
    STATISTICS,
    UNJUDGED,
    Manifest,
    PairShard,
    Shard,
    UnjudgedShard,
    read_even_if_replaced,
)
from rankmill.pipeline.read.times import TIME

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_TRANSPOSE_ROWS = 512  # rows transposed at a time, so that the output tile stays in cache


@contextmanager
def decoding(file: Path) -> Iterator[None]:
    """Add the name of ``file`` to errors of reading it.

    Errors of the disk have an errno, those of a decoder have none.
    """
    try:
        yield
    except FileNotFoundError:
        raise DatasetFormatError(f"{file}: shard is missing; ingest the data again") from None
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror or str(error), str(file)) from error
        what = str(error).split("\n", 1)[0].rstrip(".")
        raise DatasetFormatError(f"{file}: cannot be decoded ({what}); ingest the data again") from error


def row_major(batch: pa.RecordBatch, names: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return the columns ``names`` of ``batch``, numbers without nulls, as a matrix (rows, columns)."""
    columns = [batch.column(name).to_numpy(zero_copy_only=True) for name in names]
    out = np.empty((batch.num_rows, len(names)), dtype=np.float32)
    for top in range(0, batch.num_rows, _TRANSPOSE_ROWS):
        tile = out[top : top + _TRANSPOSE_ROWS]
        for number, column in enumerate(columns):
            tile[:, number] = column[top : top + _TRANSPOSE_ROWS]
    return out


QUERY_WEIGHT = "query_weight"


class StoredShards:
    """The files of a dataset on disk.

    Attributes
    ----------
    path
        The dataset's folder.
    manifest
        Its manifest when it was opened.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._whole: set[Path] = set()  # files whose digest was checked

    @property
    def feature_names(self) -> tuple[str, ...]:
        """All features, in column order."""
        return tuple(self.manifest.features)

    @property
    def optional_columns(self) -> tuple[str, ...]:
        """Optional columns of :meth:`rows` that the dataset has.

        These are label, event, weight, offset, position, and its goals.
        """
        return (*(name for name in self.manifest.columns if name not in {QUERY_WEIGHT, TIME}), *self.goals)

    @property
    def goals(self) -> dict[str, int]:
        """The goals, sorted by name, with their highest allowed grades."""
        return {goal.name: goal.max_grade for goal in self.manifest.goals}

    @property
    def max_grade(self) -> int:
        """The highest allowed grade."""
        return self.manifest.max_grade

    @property
    def digest(self) -> str:
        """Digest of the data: see :meth:`rankmill.pipeline.dataset.manifest.Manifest.data_digest`."""
        return self.manifest.data_digest()

    def features_path(self, shard: Shard) -> Path:
        """Return the file with the rows of ``shard``."""
        return self.path / FEATURES / f"{shard.features}.parquet"

    def queries_path(self, shard: Shard) -> Path:
        """Return the file with the queries of ``shard``."""
        return self.path / QUERIES / f"{shard.queries}.parquet"

    def pairs_path(self, shard: PairShard) -> Path:
        """Return the file with the pairs of ``shard``."""
        return self.path / PAIRS / f"{shard.digest}.parquet"

    def unjudged_path(self, shard: UnjudgedShard) -> Path:
        """Return the file with the unjudged rows of ``shard``: a file of candidates."""
        return self.path / UNJUDGED / f"{shard.digest}.parquet"

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The categories of the categorical features, with their texts and rows; empty if there are none."""
        file = self.vocabulary_path
        return Vocabulary() if file is None else Vocabulary.from_table(self.read(file))

    @property
    def vocabulary_path(self) -> Path | None:
        """The file with the vocabulary; None if there are no categorical features."""
        stored = self.manifest.categories
        return None if stored is None else self.path / CATEGORIES / f"{stored.digest}.parquet"

    def files(self) -> Iterator[tuple[Path, int]]:
        """Yield all files except the bins, with their size in the manifest."""
        for folder, digest, size in self.manifest.files():
            yield self.path / folder / f"{digest}.parquet", size

    def check_sizes(self) -> None:
        """Raise DatasetFormatError unless all these files exist with the right size."""
        for file, size in self.files():
            try:
                found = read_even_if_replaced(file, lambda path: path.stat().st_size)
            except FileNotFoundError:
                found = None
            if found != size:
                what = "is missing" if found is None else f"has {found} bytes instead of {size}"
                raise DatasetFormatError(f"{file}: shard {what}; ingest the data again")

    def check(self, file: Path, cure: str = "ingest the data again") -> None:
        """Compare ``file`` with the digest in its name, once; DatasetFormatError if it is missing or has changed."""
        if file in self._whole:
            return
        try:
            digest = read_even_if_replaced(file, file_digest)
        except FileNotFoundError:
            raise DatasetFormatError(f"{file}: shard is missing; {cure}") from None
        if digest != file.stem:
            raise DatasetFormatError(f"{file}: bytes differ from the digest in the name; {cure}")
        self._whole.add(file)

    def read(self, file: Path, columns: list[str] | None = None) -> pa.Table:
        """Return ``columns`` of ``file`` (None: all)."""
        self.check(file)
        with decoding(file):
            table = read_even_if_replaced(file, lambda path: pq.read_table(path, columns=columns, partitioning=None))
        return table if columns is None else table.select(columns)

    def statistics_table(self, shard: Shard) -> pa.Table:
        """Return the statistics of the features of ``shard``, one row per feature.

        See :mod:`rankmill.pipeline.statistics`.
        """
        return self.read(self.path / STATISTICS / f"{shard.statistics.digest}.parquet")

    def batches(
        self, shard: Shard, names: Sequence[str], keep: npt.NDArray[np.bool_] | None = None, batch_rows: int = 65536
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns ``names`` of the rows of ``shard``, in canonical order.

        ``keep`` selects rows (None: all).
        """
        file, done = self.features_path(shard), 0
        self.check(file)
        with decoding(file), read_even_if_replaced(file, open_parquet) as reader:
            for batch in reader.iter_batches(batch_size=batch_rows, columns=list(names)):
                mask = None if keep is None else keep[done : done + batch.num_rows]
                done += batch.num_rows
                if mask is None:
                    yield batch
                elif mask.any():
                    yield batch.filter(pa.array(mask))

    def shard_batches(self, shard: Shard, batch_rows: int = 65536) -> Iterator[npt.NDArray[np.float32]]:
        """Yield (m, F) float32 blocks of the rows of ``shard``, of all splits, in canonical order."""
        names = self.manifest.features
        for batch in self.batches(shard, names, batch_rows=batch_rows):
            yield row_major(batch, names)

    @cached_property
    def query_sizes(self) -> dict[int, tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]]:
        """For each bucket, the split of its queries (index into SPLITS) and their numbers of documents.

        This takes 5 bytes per query.
        """
        sizes = {}
        for shard in self.manifest.shards:
            table = self.read(self.queries_path(shard), ["split", "n_docs"])
            code = pc.index_in(table.column("split"), value_set=pa.array(SPLITS)).to_numpy()
            sizes[shard.bucket] = (code.astype(np.uint8), table.column("n_docs").to_numpy().astype(np.int32))
        return sizes


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of the dataset at ``path``.

    Raises the errors of :meth:`rankmill.pipeline.dataset.dataset.Dataset.open`.
    """
    file = path / MANIFEST_NAME
    try:
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if path.is_file():
            cure = (
                f"make one from judgments with: {command('data', 'ingest', path, '-o', path.with_suffix('.dataset'))}"
            )
            raise InputError(f"{path}: is a file, not a dataset; {cure}") from None
        what = f"is not a dataset (no {MANIFEST_NAME} in it)" if path.exists() else "no such dataset"
        raise InputError(f"{path}: {what}; make one with: {command('data', 'ingest', SRC, '-o', path)}") from None
    try:
        content = json.loads(data)
        number = content["format"]
    except (ValueError, KeyError, TypeError):
        raise DatasetFormatError(f"{file}: not a manifest of a dataset; ingest the data again") from None
    if number != FORMAT:
        raise DatasetFormatError(other_format(f"{file}: dataset", number, FORMAT, "ingest the data again"))
    for bins in content.get("bins", ()):
        if isinstance(bins, dict) and (number := bins.get("format", 1)) != BINS_FORMAT:
            cure = f"ingest the data again with {spelled('overwrite')}, and bin them"
            raise DatasetFormatError(other_format(f"{file}: bins", number, BINS_FORMAT, cure))
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DatasetFormatError(f"{file}: damaged at {where}: {first['msg']}; ingest the data again") from None
