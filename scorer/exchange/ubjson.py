"""Universal Binary JSON (draft 12, ubjson.org), as far as XGBoost writes it, into Python values; numeric lists become arrays.

A value is a marker and its bytes, big-endian.  A list or an object may say ``$`` and the marker of all its values, then
``#`` and how many there are; lists of numbers like that are read in one step.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from rankmill.foundation.errors import ModelFormatError
from rankmill.scorer.models.model_file import shortened

NUMBERS = {"i": ">i1", "U": ">u1", "I": ">i2", "l": ">i4", "L": ">i8", "d": ">f4", "D": ">f8"}
CONSTANTS = {"Z": None, "T": True, "F": False}
MAX_DEPTH = 64


def is_ubjson(data: bytes) -> bool:
    """Whether ``data``, an object, is binary: in JSON a key or a blank follows the brace, here a length or a marker."""
    return len(data) > 1 and data[:1] == b"{" and data[1:2] in b"iUIlL#$"


def decode(data: bytes, where: str) -> Any:
    """Return the value of ``data``; ModelFormatError, which begins with ``where``, if it is damaged or truncated."""
    reader = _Reader(data)
    try:
        found = reader.value(reader.marker(), 0)
    except (struct.error, ValueError, IndexError) as error:
        raise ModelFormatError(
            f"{where}: expected UBJSON, found something else at byte {reader.position}: {shortened(error)}"
        ) from error
    if reader.position != len(data):
        raise ModelFormatError(f"{where}: {len(data) - reader.position} bytes too many after the model")
    return found


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data) - self.position:
            raise ValueError(f"{size} bytes expected, {len(self.data) - self.position} left")
        start, self.position = self.position, self.position + size
        return self.data[start : self.position]

    def marker(self) -> str:
        return chr(self.take(1)[0])

    def numbers(self, kind: str, count: int) -> Any:
        dtype = np.dtype(NUMBERS[kind])
        return np.frombuffer(self.take(count * dtype.itemsize), dtype=dtype)

    def count(self) -> int:
        kind = self.marker()
        if kind not in NUMBERS or kind in "dD":
            raise ValueError(f"the marker {kind!r} in the place of a length")
        count = int(self.numbers(kind, 1)[0])
        if count < 0:
            raise ValueError(f"the length {count}")
        return count

    def text(self) -> str:
        return self.take(self.count()).decode()

    def value(self, kind: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"values nest deeper than {MAX_DEPTH} levels")
        if kind in NUMBERS:
            return self.numbers(kind, 1)[0].item()
        if kind in CONSTANTS:
            return CONSTANTS[kind]
        if kind == "S":
            return self.text()
        if kind == "[":
            return self.items(depth)
        if kind == "{":
            return self.pairs(depth)
        raise ValueError(f"the unknown marker {kind!r}")

    def size(self) -> tuple[str | None, int | None]:
        """Return the type marker and the number of values, each None if not given."""
        kind = count = None
        if self.data[self.position : self.position + 1] == b"$":
            self.take(1)
            kind = self.marker()
        if self.data[self.position : self.position + 1] == b"#":
            self.take(1)
            count = self.count()
        if kind is not None and count is None:
            raise ValueError("a list of one kind without a length")
        return kind, count

    def items(self, depth: int) -> Any:
        kind, count = self.size()
        if kind is not None and kind in NUMBERS and count is not None:
            return self.numbers(kind, count)
        found: list[Any] = []
        while count is None or len(found) < count:
            marker = kind or self.marker()
            if count is None and marker == "]":
                break
            if kind in CONSTANTS:
                raise ValueError("a list of values that take no bytes")
            found.append(self.value(marker, depth + 1))
        return found

    def pairs(self, depth: int) -> dict[str, object]:
        kind, count = self.size()
        found: dict[str, object] = {}
        seen = 0
        while count is None or seen < count:
            if count is None and self.data[self.position : self.position + 1] == b"}":
                self.take(1)
                break
            key = self.text()
            found[key] = self.value(kind or self.marker(), depth + 1)
            seen += 1
        return found
