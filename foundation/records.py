"""Convert typed records (frozen dataclasses) to JSON and back, in the same way for every file.

A record is a frozen dataclass.  Its fields may be plain values, other records, tuples, lists, mappings, enums, paths,
dates and NumPy's numbers and arrays.  A field made by :func:`left_out` has no key in the JSON while it is None; one
made by :func:`not_in_json` never has one.  Reading is strict (the text ``"7"`` is no number), takes defaults for keys
that are not there and ignores unknown keys.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, field, fields, is_dataclass
from datetime import date, datetime
from enum import Enum
from functools import cache
from math import isinf
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from rankmill.foundation.errors import IntegrityError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
T = TypeVar("T")
_LEFT_OUT, _NEVER = "left out while None", "not in JSON"


def left_out() -> Any:
    """Declare a field whose default is None and which is not in the JSON while it is None."""
    return field(default=None, metadata={_LEFT_OUT: True})


def not_in_json(*, default: Any = MISSING, default_factory: Any = MISSING) -> Any:
    """Declare a field that the JSON does not have."""
    declared: Any = field(default=default, default_factory=default_factory, metadata={_NEVER: True})
    return declared


def as_json(value: object) -> Any:
    """Return ``value``, a record or a container of records, as values that :mod:`json` can write.

    These are dicts, lists, text, numbers and None.

    Keys come in the order of the fields.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Split:
    ...     feature: int
    ...     gains: tuple[float, ...] = ()
    ...     note: str | None = left_out()
    >>> as_json(Split(3, (0.5,)))
    {'feature': 3, 'gains': [0.5]}
    """
    if value is None or type(value) in {bool, int, float, str}:
        return value
    if is_dataclass(value):
        return {name: as_json(item) for name, item in fields_in(value).items()}
    if isinstance(value, Enum):
        return as_json(value.value)
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list | frozenset | set):
        return [as_json(item) for item in (sorted(value) if isinstance(value, frozenset | set) else value)]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy's arrays and single numbers
        return as_json(value.tolist())
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def fields_in(record: Any) -> Mapping[str, Any]:
    """Return the values of the fields of a record by name, as they are, without those that are left out."""
    items = ((each, getattr(record, each.name)) for each in fields(record) if _NEVER not in each.metadata)
    return {each.name: value for each, value in items if value is not None or _LEFT_OUT not in each.metadata}


def infinite_as_words(content: Any) -> Any:
    """Return ``content``, plain JSON values, with infinite numbers, for which JSON has no form, as text.

    >>> infinite_as_words({"least": float("-inf"), "counts": [1, 2.5]})
    {'least': '-inf', 'counts': [1, 2.5]}
    """
    if isinstance(content, float):
        return str(content) if isinf(content) else content
    if isinstance(content, dict):
        return {key: infinite_as_words(item) for key, item in content.items()}
    return [infinite_as_words(item) for item in content] if isinstance(content, list) else content


def to_line(value: object) -> str:
    """Return ``value`` as one line of JSON, keys sorted: the same bytes for the same record."""
    return json.dumps(as_json(value), sort_keys=True, ensure_ascii=False, allow_nan=False)


def other_format(what: str, found: object, known: int, cure: str, *, first: int | None = None) -> str:
    """Return a message that ``what`` (its path and kind) has the format ``found``.

    It names the known format, or the formats ``first`` to ``known``, and what reads it.
    """
    own = sys.modules[__name__.partition(".")[0]].__version__
    reads = f"format {known}" if first is None else f"formats {first} to {known}"
    later = f"use the version after {own} that wrote it, or " if isinstance(found, int) and found > known else ""
    return f"{what} of format {found!r}, but rankmill {own} reads {reads}; {later}{cure}"


def canonical_json(value: object) -> bytes:
    """Return plain values as UTF-8 JSON with sorted keys and no spaces: equal values have equal bytes.

    ValueError for NaN and infinity, TypeError for other types.

    >>> canonical_json({"b": [1, 0.5], "a": None})
    b'{"a":null,"b":[1,0.5]}'
    """
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def from_json(kind: type[T], data: bytes | str | Mapping[str, Any], what: str) -> T:
    """Return the record of ``kind`` in ``data``: JSON text, or values read from it.

    Raises
    ------
    IntegrityError
        It is not JSON, or a field is missing or of another type; one line that begins with ``what``, such as a path.
    """
    from pydantic import ValidationError

    text = data if isinstance(data, bytes | str) else json.dumps(data)
    try:
        record: T = _reader(kind).validate_json(text, strict=True)  # type: ignore[arg-type]  # types are hashable
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        reason = first["msg"][:1].lower() + first["msg"][1:]
        raise IntegrityError(f"{what}: {place + ': ' if place else ''}{reason}") from None
    return record


@cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
