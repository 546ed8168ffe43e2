"""Names for documents without an id: ``(row 12)``, after their row in the whole input, from 1.

No document can have such an id: words of text have no blank, and tables with one are refused.  In ranked lists these
names mean that there is no id, so nothing is joined by them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_FORM = r"^\(row [0-9]+\)$"
EXPECTED = "an id of the document, not the name that ranked lists give to documents without one"


def named_by_row(doc_id: pa.Array[Any] | None, row: npt.NDArray[np.int64]) -> pa.Array[Any]:
    """Return (n,) document ids.

    A missing one becomes the name of its row number ``row`` (n,), from 1 in the whole input.
    """
    if doc_id is not None and doc_id.null_count == 0:
        return doc_id
    parts: list[Any] = [pa.scalar("(row "), pa.array(row).cast(pa.string()), pa.scalar(")"), pa.scalar("")]
    names: Any = pc.binary_join_element_wise(*parts)
    return names if doc_id is None else pc.coalesce(doc_id, names)


def are_made(doc_id: Any) -> Any:
    """Return (n,) which of the ids, an array or a column of strings, are names of rows."""
    return pc.fill_null(pc.match_substring_regex(doc_id, _FORM), pa.scalar(value=False))


def without_made(doc_id: Any) -> Any:
    """Return ids (n,) with null for names of rows and empty ones."""
    return pc.if_else(pc.or_(pc.equal(doc_id, pa.scalar("")), are_made(doc_id)), pa.scalar(None, pa.string()), doc_id)
