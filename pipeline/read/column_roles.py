"""Roles of table columns: their meaning, their allowed values, and their usual names."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


LARGEST = float(
    np.finfo(np.float32).max
)  # maximum of a label or weight, so that squares and sums stay finite in float64


@dataclass(frozen=True, slots=True)
class OptionalColumn:
    """An optional column.

    Attributes
    ----------
    expected
        What a cell must contain, for error messages.
    if_empty
        How to fix an empty cell, for error messages; ``{ignored}`` stands for the option that ignores the column.
    lowest, highest
        The allowed range.
    whole
        The stored type if numbers must be whole; None: float64.
    words
        Whether ``true`` and ``false`` mean 1 and 0.
    """

    expected: str
    if_empty: str
    lowest: float = -LARGEST
    highest: float = LARGEST
    whole: pa.DataType | None = None
    words: bool = False

    @property
    def type(self) -> pa.DataType:
        """The stored type."""
        return pa.float64() if self.whole is None else self.whole

    def fits(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Return which of ``values`` (n,) are allowed in the column; NaN is not."""
        with np.errstate(invalid="ignore"):
            good: npt.NDArray[np.bool_] = (values >= self.lowest) & (values <= self.highest)
            return good if self.whole is None else good & (values == np.floor(values))

    def stored(self, values: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """Convert valid ``values`` (n,) to the stored type; -0.0 becomes 0.0, so that equal rows have equal bytes."""
        return values + 0.0 if self.whole is None else values.astype(self.whole.to_pandas_dtype())


OPTIONAL = {
    "label": OptionalColumn("a label: a number of at most 3.4e38 in size", "remove rows without it"),
    "event": OptionalColumn(
        "an event: 1 or 0", "1 if the label is when it happened, 0 if it had not by then", 0.0, 1.0, pa.uint8()
    ),
    "weight": OptionalColumn("a weight: a number, 0 or more", "write 1 if there is none", 0.0),
    "offset": OptionalColumn("an offset: a number of at most 3.4e38 in size", "write 0 if there is none"),
    "position": OptionalColumn(
        "a position: a whole number, 1 or more", "to ignore the column: {ignored}", 1.0, 2.0**31 - 1, pa.int32()
    ),
    "query_weight": OptionalColumn("a query weight: a number, 0 or more", "write 1 if there is none", 0.0),
}
"""Optional columns by name, in stored order."""

NUMBERS = OPTIONAL | {
    "probability": OptionalColumn("a probability: a number from 0 to 1", "write 1 if it is unknown", 0.0, 1.0),
    "score": OptionalColumn("a number as score", "", -np.inf, np.inf),
    "rank": OptionalColumn("a number as rank", "", -np.inf, np.inf),
}
"""All columns of numbers that are not features, including those of pairs and runs."""

CLICK_NUMBERS = {
    "position": OptionalColumn(
        "a position: a whole number, 1 (the top) or more",
        "a log has the position of every document shown, clicked or not",
        1.0,
        2.0**31 - 1,
        pa.int32(),
    ),
    "clicked": OptionalColumn("1 (clicked) or 0", "write 0 if there was no click", 0.0, 1.0, pa.uint8(), words=True),
}
"""Columns of numbers of a click log."""
TRUTHS = frozenset(name for name, column in CLICK_NUMBERS.items() if column.words)
"""Roles whose cells may be ``true`` and ``false``."""

TYPES = {name: column.type for name, column in OPTIONAL.items()} | {"time": pa.int64()}
"""Types of the extras of rows; ``time`` is the column that the caller named."""


def type_of(name: str) -> pa.DataType:
    """Return the stored type of an optional column or a goal."""
    return TYPES.get(name, pa.int32())


IDS = {
    "qid": "an id of the query",
    "doc_id": "an id of the document",
    "better": "the id of the better document",
    "worse": "the id of the worse document",
    "session": "an id of the session",
    "list": "an id of the result list",
    "policy": "the name of a ranking policy",
}
"""Columns of ids in judgments, pairs and click logs, with their description for error messages."""
KEPT = "keep "
"""Begins the roles of columns that are copied as they are."""
OF_DOCUMENTS = ("doc_id", "better", "worse")
ID_COLUMNS = ("qid", "doc_id", "grade")
PARTS = (*ID_COLUMNS, *OPTIONAL)
OF_JUDGMENTS = ("label", "weight")
"""Optional columns of separate judgments."""
PAIR_PARTS = ("qid", "better", "worse", "weight", "probability")
CLICK_PARTS = ("qid", "doc_id", "session", "list", "policy", *CLICK_NUMBERS)
RESERVED = ("split",)  # used by the dataset itself
HABITS = {
    "qid": ("qid", "queryid", "query", "groupid", "group", "topicid", "topic", "searchid"),
    "doc_id": ("docid", "doc", "docno", "documentid", "document", "url", "itemid", "item", "productid", "product"),
    "grade": (
        "grade", "relevance", "rel", "relevancegrade", "relevancelabel", "rating", "judgment", "judgement", "target",
        "y",
    ),
}  # fmt: skip
"""Usual names of these columns, in lower case without blanks and underscores."""
HABITS_OF_JUDGMENTS = {"doc_id": ("corpusid",), "grade": ("score",)}
"""More of them in separate judgments, such as those of BEIR: query-id, corpus-id, score."""


def parse_columns(texts: Iterable[str]) -> dict[str, str]:
    """Parse texts such as ``qid=query_id,grade=rel``; an empty name means that no column has the role.

    A comma ends a name only where a role follows it, so that names may have commas.

    >>> parse_columns(["qid=query, id, grade=rel", "doc_id="])
    {'qid': 'query, id', 'grade': 'rel', 'doc_id': ''}

    Raises
    ------
    InputError
        A text is malformed, or a role occurs twice.
    """
    roles = "|".join({*PARTS, *PAIR_PARTS, *CLICK_PARTS})
    found: dict[str, str] = {}
    for piece in (piece for text in texts for piece in re.split(rf",(?=\s*(?:{roles})\s*=)", text)):
        part, equals, name = (word.strip() for word in piece.partition("="))
        if not equals or not part:
            raise InputError(f"{spelled('columns')}: expected qid=query_id,grade=rel, found {piece.strip()!r}")
        if part in found:
            raise InputError(f"{spelled('columns')} names {part!r} twice")
        found[part] = name
    return found


def check_columns(columns: Mapping[str, str], ignore: Sequence[str]) -> None:
    """Raise InputError for an unknown role, a column with two roles, or an empty name in ``ignore``."""
    for part in columns:
        if part not in PARTS:
            raise InputError.unknown(f"part in {spelled('columns')}", part, PARTS)
    several = [name for name, count in Counter(columns.values()).items() if count > 1 and name]
    if several:
        parts = " and ".join(part for part, name in columns.items() if name == several[0])
        raise InputError(f"{spelled('columns')} gives {several[0]!r} two roles, {parts}; a column has one role")
    if "" in ignore:
        raise InputError(f"{spelled('ignore')}: a name is empty")
