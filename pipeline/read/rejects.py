"""The list of malformed rows that were quarantined."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from rankmill.foundation.errors import TooManyRejects
from rankmill.foundation.storage.publish import write_atomically
from rankmill.pipeline.arrow import schema_of
from rankmill.pipeline.read.batch import Reject

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rankmill.pipeline.read.batch import Quarantine

_SCHEMA = schema_of(
    [
        ("source", pa.string(), False),
        ("line", pa.int64(), False),
        ("column", pa.int64(), False),
        ("reason", pa.string(), False),
        ("text", pa.string(), False),
    ]
)


@contextmanager
def listing_rejects(out: Path, quarantine: Quarantine) -> Iterator[None]:
    """If there are too many rejects, write the list next to ``out`` and mention it in the error."""
    try:
        yield
    except TooManyRejects as error:
        listed = out.with_name(f"{out.name}.rejects.parquet")
        write_rejects(listed, quarantine.rejects)
        raise TooManyRejects(error.first, error.limit, str(listed), error.option) from None


def write_rejects(path: Path, rejects: Sequence[Reject]) -> None:
    """Write ``rejects`` to the Parquet file ``path``: source, line and column (from 1), reason, text of the row."""
    columns = [pa.array([getattr(reject, field.name) for reject in rejects], field.type) for field in _SCHEMA]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_arrays(columns, schema=_SCHEMA), sink, compression="zstd", compression_level=1, store_schema=False
    )
    write_atomically(path, sink.getvalue().to_pybytes())
