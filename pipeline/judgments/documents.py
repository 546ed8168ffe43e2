"""Numbers for the documents of a bucket, so that they are looked up and sorted as numbers and not as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents by their numbers.

    Attributes
    ----------
    qid, doc_id
        The different ids; document q * len(doc_id) + d is ``doc_id[d]`` of query ``qid[q]``.
    """

    qid: pa.Array[Any]
    doc_id: pa.Array[Any]

    def ids(self, number: int) -> tuple[str, str]:
        """Return qid and doc_id of a document."""
        query, document = divmod(number, len(self.doc_id))
        return self.qid[query].as_py(), self.doc_id[document].as_py()

    def first(self, numbers: npt.NDArray[np.int64]) -> int:
        """Return the one of ``numbers`` whose ids come first in the order of text."""
        return int(min(numbers.tolist(), key=lambda number: tuple(part.encode() for part in self.ids(number))))


def number_documents(
    *ids: tuple[pa.Array[Any], pa.Array[Any]],
) -> tuple[Documents, list[npt.NDArray[np.int64]]]:
    """Give the documents of some lists of (qid, doc_id) numbers, the same in all of them; a row without doc_id has -1.

    Memory: a copy of the ids, and about 50 bytes a row.
    """
    qid, doc_id = (pa.concat_arrays([part[which] for part in ids]).dictionary_encode() for which in (0, 1))
    known = doc_id.indices.is_valid().to_numpy(zero_copy_only=False)
    number = qid.indices.to_numpy().astype(np.int64) * len(doc_id.dictionary)
    number += doc_id.indices.fill_null(0).to_numpy()
    number[~known] = -1
    ends = np.cumsum([len(part[0]) for part in ids])
    return Documents(qid.dictionary, doc_id.dictionary), np.split(number, ends[:-1])
