"""What every source of pairs hands over, and what a pair must be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.pipeline.arrow import as_array, parts_of
from rankmill.pipeline.sources.batch import DEFAULT_BLOCK_BYTES
from rankmill.pipeline.sources.optional import OptionalColumn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

IDS = ("qid", "better", "worse")
NUMBERS = {
    "weight": OptionalColumn("a weight: a number, 0 or more", "write 1 where there is none", 0.0),
    "probability": OptionalColumn("a probability: a number from 0 to 1", "write 1 where it is not known", 0.0, 1.0),
}
COLUMNS = (*IDS, *NUMBERS)


@dataclass(frozen=True, slots=True)
class PairBatch:
    """Some pairs, in the order of the file."""

    qid: pa.Array[Any]
    """(n,) the query; as ``better`` and ``worse`` never null or empty."""
    better: pa.Array[Any]
    """(n,) id of the document that is to stand higher."""
    worse: pa.Array[Any]
    """(n,) id of the other one."""
    weight: npt.NDArray[np.float64]
    """(n,) 0 or more."""
    probability: npt.NDArray[np.float64]
    """(n,) that ``better`` is the better one."""
    place: npt.NDArray[np.int64]
    """(n,) ascending: where in the file the pair is, for :meth:`PairSource.refuse`."""

    def __len__(self) -> int:
        return len(self.place)

    def kept(self, keep: npt.NDArray[np.bool_]) -> PairBatch:
        """Return the pairs where ``keep`` (n,), their numbers as they are stored."""
        rows = as_array(np.flatnonzero(keep))
        return PairBatch(
            qid=self.qid.take(rows),
            better=self.better.take(rows),
            worse=self.worse.take(rows),
            weight=NUMBERS["weight"].stored(self.weight[keep]),
            probability=NUMBERS["probability"].stored(self.probability[keep]),
            place=self.place[keep],
        )


class PairSource(Protocol):
    """One file of pairs."""

    path: Path
    position: int
    """Bytes of the file used up so far; may stay 0 where that is not known."""

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[PairBatch]:
        """Yield the pairs in the order of the file."""
        ...

    def refuse(self, mismatches: Mapping[int, Mismatch]) -> None:
        """Put the pairs at these places aside, which do not fit the judgments; reads the file again."""
        ...


class Mismatch(IntEnum):
    """Why a pair has no two rows."""

    NO_QUERY = 1
    NO_BETTER = 2
    NO_WORSE = 3
    MANY_BETTER = 4
    MANY_WORSE = 5
    NO_IDS = 6

    def complaint(self, qid: str) -> Complaint:
        """Say what was expected of a pair of query ``qid``."""
        where = {self.NO_QUERY: 0, self.NO_WORSE: 2, self.MANY_WORSE: 2}.get(self, 1)
        if self is self.NO_QUERY:
            return Complaint(where, "a query of the judgments", "")
        if self is self.NO_IDS:
            cure = "its rows have no document ids: add a column doc_id (in LETOR text: #docid = X)"
            return Complaint(where, f"a document of query {qid!r}", cure)
        if self in {self.MANY_BETTER, self.MANY_WORSE}:
            return Complaint(where, f"a document that query {qid!r} has once", "it has several rows of it")
        return Complaint(where, f"a document of query {qid!r}", "")


class Complaint(NamedTuple):
    """What is wrong with one word or cell: its number among :data:`IDS`, and what the message says."""

    column: int
    expected: str
    cure: str


class Check(NamedTuple):
    """One rule for all pairs of a batch: which break it, (n,), in which column, and what the message says."""

    bad: npt.NDArray[np.bool_]
    column: str
    expected: str
    if_empty: str


def checks(batch: PairBatch) -> Iterator[Check]:
    """Yield the rules in the order in which they are checked; NaN stands for what is no number."""
    empty = {name: np.diff(parts_of(getattr(batch, name))[0]) == 0 for name in IDS}
    yield Check(empty["qid"], "qid", "an id of the query", "")
    yield Check(empty["better"], "better", "the id of the better document", "")
    yield Check(empty["worse"], "worse", "the id of the worse document", "")
    same = pc.equal(batch.better, batch.worse).to_numpy(zero_copy_only=False)
    yield Check(same, "worse", "another document than the better one", "")
    for name, rule in NUMBERS.items():
        yield Check(~rule.fits(getattr(batch, name)), name, rule.expected, rule.if_empty)
