"""What every source of judgments hands over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.pipeline.sources.batch import DEFAULT_BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rankmill.pipeline.sources.columns import TableColumns


@dataclass(frozen=True, slots=True)
class JudgmentBatch:
    """Some judgments, in the order of the file."""

    qid: pa.Array[Any]
    """(n,) the query; as ``doc_id`` never null or empty."""
    doc_id: pa.Array[Any]
    """(n,) the document that is judged."""
    grade: npt.NDArray[np.int32]
    """(n,) 0 or more, or `rankmill.pipeline.sources.batch.UNKNOWN_GRADE` where the judgment says that there is none."""
    time: npt.NDArray[np.int64] | None
    """(n,) microseconds since 1970 UTC; None where the file has no times."""

    def __len__(self) -> int:
        return len(self.grade)


class JudgmentSource(Protocol):
    """One file of judgments."""

    path: Path
    table: TableColumns | None
    """Which of its columns plays which part; None for text."""

    @property
    def position(self) -> int:
        """Bytes of the file used up so far; may stay 0 where that is not known."""
        ...

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[JudgmentBatch]:
        """Yield the judgments in the order of the file."""
        ...
