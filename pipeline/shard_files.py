"""Reading the Parquet files of shards: their columns as batches or row-major blocks, and what goes wrong with them."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import DatasetFormatError
from rankmill.pipeline.arrow import open_parquet
from rankmill.pipeline.places import wherever

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRANSPOSE_ROWS = 512  # rows turned at a time, so that the tile written to stays in cache


@contextmanager
def decoding(file: Path) -> Iterator[None]:
    """Name ``file`` in what goes wrong while it is read: a disk's own errors have a number, a decoder's have none."""
    try:
        yield
    except FileNotFoundError:
        raise DatasetFormatError(f"{file}: shard is missing; ingest the data again") from None
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror or str(error), str(file)) from error
        what = str(error).split("\n", 1)[0].rstrip(".")
        raise DatasetFormatError(f"{file}: cannot be decoded ({what}); make the dataset anew") from error


def blocks(
    file: Path, names: list[str], keep: npt.NDArray[np.bool_] | None, batch_rows: int, dtype: type[np.generic]
) -> Iterator[npt.NDArray]:  # type: ignore[type-arg]
    """Yield the columns ``names`` of ``file`` as row-major blocks, only rows where ``keep``."""
    for batch in batches(file, names, keep, batch_rows):
        yield row_major(batch, names, dtype)


def batches(
    file: Path, names: list[str], keep: npt.NDArray[np.bool_] | None, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield the columns ``names`` of ``file``, only rows where ``keep``."""
    done = 0
    with decoding(file), wherever(file, open_parquet) as reader:
        for batch in reader.iter_batches(batch_size=batch_rows, columns=names):
            mask = None if keep is None else keep[done : done + batch.num_rows]
            done += batch.num_rows
            if mask is None:
                yield batch
            elif mask.any():
                yield batch.filter(pa.array(mask))


def row_major(batch: pa.RecordBatch, names: list[str], dtype: type[np.generic]) -> npt.NDArray:  # type: ignore[type-arg]
    """Return the columns ``names`` of ``batch``, numbers without nulls, side by side: (rows, columns)."""
    columns = [batch.column(name).to_numpy(zero_copy_only=True) for name in names]
    out = np.empty((batch.num_rows, len(names)), dtype=dtype)
    for top in range(0, batch.num_rows, _TRANSPOSE_ROWS):
        tile = out[top : top + _TRANSPOSE_ROWS]
        for number, column in enumerate(columns):
            tile[:, number] = column[top : top + _TRANSPOSE_ROWS]
    return out
