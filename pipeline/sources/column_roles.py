"""Roles of table columns: their meaning, their allowed values, and their usual names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


LARGEST = float(np.finfo(np.float32).max)  # of a label or weight: their squares and sums stay finite in float64


@dataclass(frozen=True, slots=True)
class OptionalColumn:
    """One such column.

    Attributes
    ----------
    expected
        What a cell must hold, for messages.
    if_empty
        What to do about an empty cell, for messages.
    lowest, highest
        The range of its numbers.
    whole
        How they are stored if they must be whole; None: as float64.
    """

    expected: str
    if_empty: str
    lowest: float = -LARGEST
    highest: float = LARGEST
    whole: pa.DataType | None = None

    @property
    def type(self) -> pa.DataType:
        """How it is stored."""
        return pa.float64() if self.whole is None else self.whole

    def fits(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Return which of ``values`` (n,) may stand in the column; NaN may not."""
        with np.errstate(invalid="ignore"):
            good: npt.NDArray[np.bool_] = (values >= self.lowest) & (values <= self.highest)
            return good if self.whole is None else good & (values == np.floor(values))

    def stored(self, values: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """Return good ``values`` (n,) as they are stored; a zero has no sign, so that equal rows have equal bytes."""
        return values + 0.0 if self.whole is None else values.astype(self.whole.to_pandas_dtype())


OPTIONAL = {
    "label": OptionalColumn("a label: a number of at most 3.4e38 in size", "remove rows without it"),
    "event": OptionalColumn(
        "an event: 1 or 0", "1 if the label is when it happened, 0 if it had not by then", 0.0, 1.0, pa.uint8()
    ),
    "weight": OptionalColumn("a weight: a number, 0 or more", "write 1 if there is none", 0.0),
    "offset": OptionalColumn("an offset: a number of at most 3.4e38 in size", "write 0 if there is none"),
    "position": OptionalColumn(
        "a position: a whole number, 1 or more", "to ignore the column: --ignore position", 1.0, 2.0**31 - 1, pa.int32()
    ),
    "query_weight": OptionalColumn("a query weight: a number, 0 or more", "write 1 if there is none", 0.0),
}
"""By name, in the order in which they are stored."""

NUMBERS = OPTIONAL | {
    "probability": OptionalColumn("a probability: a number from 0 to 1", "write 1 if it is unknown", 0.0, 1.0),
    "score": OptionalColumn("a number as score", "", -np.inf, np.inf),
    "rank": OptionalColumn("a number as rank", "", -np.inf, np.inf),
}
"""All columns of numbers that are no features: those of pairs and runs, too."""

TYPES = {name: column.type for name, column in OPTIONAL.items()} | {"time": pa.int64()}
"""How the extras of a row travel; ``time`` is the column that the caller named."""


def optional_columns(names: Collection[str]) -> tuple[str, ...]:
    """Return those of ``names`` that are optional columns, in the order of :data:`OPTIONAL`."""
    return tuple(name for name in OPTIONAL if name in names)


IDS = {
    "qid": "an id of the query",
    "doc_id": "an id of the document",
    "better": "the id of the better document",
    "worse": "the id of the worse document",
}
"""Columns of ids, in judgments and in pairs, and what a row without one lacks."""
ID_COLUMNS = ("qid", "doc_id", "grade")
PARTS = (*ID_COLUMNS, *OPTIONAL)
PAIR_PARTS = ("qid", "better", "worse", "weight", "probability")
RESERVED = ("split",)  # of the dataset's own
HABITS = {
    "qid": ("qid", "queryid", "query", "groupid", "group", "topicid", "topic", "searchid"),
    "doc_id": ("docid", "doc", "docno", "documentid", "document", "url", "itemid", "item", "productid", "product"),
    "grade": (
        "grade", "relevance", "rel", "relevancegrade", "relevancelabel", "rating", "judgment", "judgement", "target", "y",
    ),
}  # fmt: skip
"""How others call these columns, small letters and digits only; capitals, blanks and underscores do not count."""


def parse_columns(texts: Iterable[str]) -> dict[str, str]:
    """Read texts such as ``qid=query_id,grade=rel``; a part without a name is played by no column.

    >>> parse_columns(["qid=query_id, grade=rel", "doc_id="])
    {'qid': 'query_id', 'grade': 'rel', 'doc_id': ''}

    Raises
    ------
    InputError
        One is not of this form, or a part is named twice.
    """
    found: dict[str, str] = {}
    for piece in (piece for text in texts for piece in text.split(",")):
        part, equals, name = (word.strip() for word in piece.partition("="))
        if not equals or not part:
            raise InputError(f"{spelled('columns')}: expected qid=query_id,grade=rel, found {piece.strip()!r}")
        if part in found:
            raise InputError(f"{spelled('columns')} names {part!r} twice")
        found[part] = name
    return found


def check_columns(columns: Mapping[str, str], ignore: Sequence[str]) -> None:
    """Raise InputError if ``columns`` has an unknown part or gives one column two parts, or ``ignore`` an empty name."""
    for part in columns:
        if part not in PARTS:
            raise InputError.unknown(f"part in {spelled('columns')}", part, PARTS)
    several = [name for name, count in Counter(columns.values()).items() if count > 1 and name]
    if several:
        parts = " and ".join(part for part, name in columns.items() if name == several[0])
        raise InputError(f"{spelled('columns')} gives {several[0]!r} two roles, {parts}; a column has one role")
    if "" in ignore:
        raise InputError(f"{spelled('ignore')}: a name is empty")
