"""The parts that columns of a table can play, and what the field calls them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rankmill.foundation.errors import InputError
from rankmill.pipeline.sources.optional import OPTIONAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ID_COLUMNS = ("qid", "doc_id", "grade")
PARTS = (*ID_COLUMNS, *OPTIONAL)
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
            raise InputError(f"--columns: expected qid=query_id,grade=rel, found {piece.strip()!r}")
        if part in found:
            raise InputError(f"--columns names {part!r} twice")
        found[part] = name
    return found


def parse_ignored(texts: Iterable[str]) -> tuple[str, ...]:
    """Read texts such as ``title,debug_*``.

    >>> parse_ignored(["title, debug_*", "brand"])
    ('title', 'debug_*', 'brand')
    """
    return tuple(name for text in texts for piece in text.split(",") if (name := piece.strip()))


def check_columns(columns: Mapping[str, str], ignore: Sequence[str]) -> None:
    """Raise InputError if ``columns`` has an unknown part or gives one column two parts, or ``ignore`` an empty name."""
    for part in columns:
        if part not in PARTS:
            raise InputError.unknown("part in --columns", part, PARTS)
    several = [name for name, count in Counter(columns.values()).items() if count > 1 and name]
    if several:
        parts = " and ".join(part for part, name in columns.items() if name == several[0])
        raise InputError(f"--columns gives {several[0]!r} two parts, {parts}; a column has one")
    if "" in ignore:
        raise InputError("--ignore: a name is empty")
