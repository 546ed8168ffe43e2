"""The bytes of protobuf messages, as far as a model needs them: a message is the bytes of its fields, one after the other.

A field is a key (its number and the kind of what follows) and its value: a varint, or a length and so many bytes
(protobuf.dev, Encoding).  Repeated numbers are packed into one field.
"""

from __future__ import annotations

from collections.abc import Iterable

_VARINT, _BYTES = 0, 2


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first, the high bit set where more follow; negative numbers as 64-bit two's complement.

    >>> varint(300).hex(), len(varint(-1))
    ('ac02', 10)
    """
    left = value & (1 << 64) - 1
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def integer(field: int, value: int) -> bytes:
    """Return the field ``field`` that holds a whole number."""
    return varint(field << 3 | _VARINT) + varint(value)


def chunk(field: int, value: bytes | str) -> bytes:
    """Return the field ``field`` that holds bytes, text or a message."""
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | _BYTES) + varint(len(data)) + data


def chunks(field: int, values: Iterable[bytes | str]) -> bytes:
    """Return the repeated field ``field``, each value on its own."""
    return b"".join(chunk(field, value) for value in values)


def integers(field: int, values: Iterable[int]) -> bytes:
    """Return the repeated field ``field`` of whole numbers, packed."""
    return chunk(field, b"".join(map(varint, values)))
