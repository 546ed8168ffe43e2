"""Facts about columns besides their types.

These are the index of pandas, and categories whose type the format does not keep.
"""

from __future__ import annotations

import json
import re
from binascii import a2b_base64
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import ipc

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_INDEX_NAME = re.compile(r"__index_level_\d+__|Unnamed: \d+(?:\.\d+)?(?:_level_\d+)?")
_ARROW_SCHEMA = b"ARROW:schema"  # in the metadata of a Parquet file: the schema of the table that was written


def index_columns(names: Collection[str], schema: pa.Schema | None = None) -> tuple[str, ...]:
    """Return those of ``names`` that are the index of a pandas frame.

    The metadata of ``schema`` or the name that pandas gives shows it.

    >>> index_columns(["a", "__index_level_0__", "Unnamed: 0", "Unnamed: 0.1", "index"])
    ('__index_level_0__', 'Unnamed: 0', 'Unnamed: 0.1')
    """
    marked = {name for name in _of_pandas(schema).get("index_columns", ()) if isinstance(name, str)}
    return tuple(name for name in names if name in marked or _INDEX_NAME.fullmatch(name))


def with_categories(schema: pa.Schema, metadata: Mapping[bytes, bytes] | None = None) -> pa.Schema:
    """Return ``schema`` with the type of a dictionary for each column that was one before it was written.

    Parquet keeps dictionaries of text alone.  That of others is in the Arrow schema within the ``metadata`` of the
    file, and in what pandas writes.
    """
    columns = _of_pandas(schema).get("columns", ())
    found = {
        each.get("field_name", each.get("name"))
        for each in columns
        if isinstance(each, dict) and each.get("pandas_type") == "categorical"
    }
    if (written := (metadata or {}).get(_ARROW_SCHEMA)) is not None:
        with suppress(ValueError, pa.ArrowException, OSError):  # what others write there is not ours to check
            before = ipc.read_schema(pa.py_buffer(a2b_base64(written)))
            found |= {field.name for field in before if isinstance(field.type, pa.DictionaryType)}
    for place, field in enumerate(schema):
        if field.name in found and not isinstance(field.type, pa.DictionaryType):
            schema = schema.set(place, field.with_type(pa.dictionary(pa.int32(), field.type)))
    return schema


def _of_pandas(schema: pa.Schema | None) -> Mapping[str, Any]:
    """Return the metadata of pandas; nothing if there are none, or they are malformed."""
    text = (schema.metadata or {}).get(b"pandas") if schema is not None else None
    with suppress(ValueError):
        found = json.loads(text) if text else None
        return found if isinstance(found, dict) else {}
    return {}
