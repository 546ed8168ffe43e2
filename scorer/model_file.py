"""Bytes of a model file: magic, format number, JSON header, aligned arrays, sha256 of all of it.

Layout, little-endian::

    0    8 bytes   magic  b"RANKMILL"
    8    u32       format number (one of FORMATS)
    12   u32       zero
    16   u64       length of the JSON header in bytes
    24   header    canonical JSON: sorted keys, no blanks, UTF-8, no NaN
         zeros     up to the next multiple of 64
         arrays    each raw and C-contiguous, each starting at a multiple of 64, zeros between them
    -32  32 bytes  sha256 of everything before

The header's key ``arrays`` lists ``[name, dtype, length]`` in the order of the bytes; offsets follow from the lengths,
so two arrays cannot overlap.  This module knows no trees: ``rankmill.scorer.forest`` says which arrays there are.
What format 1 can say is written as format 1; ``rankmill.scorer.forest`` says what needs 2.  A new number goes in ``FORMATS`` when
old readers would misread new files: a reader names the number that it found and those that it knows, and stops.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import ModelFormatError

MAGIC = b"RANKMILL"
FORMATS = (1, 2)
ALIGNMENT = 64
DIGEST_BYTES = 32
MAX_HEADER_BYTES = 64 * 1024 * 1024
MAX_NESTING = 64  # levels of lists and mappings: nobody's recursion ends there
MAX_FOUND = 400  # characters of a message
_PREFIX = struct.Struct("<8sIIQ")

Array = npt.NDArray[Any]


def is_model_file(path: Path) -> bool:
    """Whether the file at ``path`` begins as models do."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def canonical_json(value: object) -> bytes:
    """Serialise ``value`` with sorted keys and no blanks; ValueError for NaN and infinity, TypeError for foreign types."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def nesting(value: object) -> int:
    """Return how many levels of lists and mappings ``value`` has, itself included; 0 for anything else.

    >>> nesting({"a": [1, {"b": 2}]}), nesting("text")
    (3, 0)
    """
    depth, level = 0, [value]
    while containers := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [part for item in containers for part in (item.values() if isinstance(item, dict) else item)]
    return depth


def shortened(found: object) -> str:
    """Return what was found as one line that fits a message: a forged header may hold a book.

    >>> shortened(ValueError("two lines" + chr(10) + "of it"))
    'two lines of it'
    """
    text = " ".join(str(found).split())
    return text if len(text) <= MAX_FOUND else f"{text[:MAX_FOUND]}.."


def encode(number: int, header: Mapping[str, object], arrays: Mapping[str, Array]) -> bytes:
    """Build the bytes of format ``number`` from the ``header`` (without ``arrays``) and one-dimensional ``arrays``."""
    listed = [[name, array.dtype.newbyteorder("<").str, len(array)] for name, array in arrays.items()]
    text = canonical_json({**header, "arrays": listed})
    parts = bytearray(_PREFIX.pack(MAGIC, number, 0, len(text)))
    parts += text
    for array in arrays.values():
        parts += bytes(-len(parts) % ALIGNMENT)
        parts += np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
    parts += hashlib.sha256(parts).digest()
    return bytes(parts)


def decode(
    data: bytes, where: str, expected: Sequence[tuple[str, np.dtype[Any]]]
) -> tuple[int, dict[str, Any], dict[str, Array]]:
    """Take ``data`` apart into format number, header and arrays; ``expected`` lists the arrays' names and dtypes in order.

    Every length is checked before anything is read through it.  The arrays are read-only views of ``data``.

    Raises
    ------
    ModelFormatError
        Not a model file, another format number, cut short, changed, or with bytes that should not be there; the
        message begins with ``where``.
    """
    if len(data) < _PREFIX.size + DIGEST_BYTES:
        raise ModelFormatError(f"{where}: expected a rankmill model, found only {len(data)} bytes")
    magic, number, zero, header_bytes = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise ModelFormatError(f"{where}: not a rankmill model: the first bytes are {magic!r}, expected {MAGIC!r}")
    if number not in FORMATS:
        raise ModelFormatError(
            f"{where}: model format number {number}, this version reads {' and '.join(map(str, FORMATS))}; "
            f"use the version of rankmill that wrote it, or train again"
        )
    if hashlib.sha256(memoryview(data)[:-DIGEST_BYTES]).digest() != data[-DIGEST_BYTES:]:
        raise ModelFormatError(f"{where}: the model is damaged or cut short: its sha256 does not match its bytes")
    end = len(data) - DIGEST_BYTES
    if zero != 0 or header_bytes > min(MAX_HEADER_BYTES, end - _PREFIX.size):
        raise ModelFormatError(f"{where}: the model's header length {header_bytes} does not fit its {len(data)} bytes")
    header = _header(data[_PREFIX.size : _PREFIX.size + header_bytes], where)
    lengths = _lengths(header.pop("arrays", None), where, expected, number)
    arrays: dict[str, Array] = {}
    position = _PREFIX.size + header_bytes
    for (name, dtype), length in zip(expected, lengths, strict=True):
        start = position + -position % ALIGNMENT
        stop = start + length * dtype.itemsize
        if stop > end or any(data[position:start]):
            raise ModelFormatError(
                f"{where}: array {name!r} of {shortened(length)} values does not fit the model's bytes"
            )
        arrays[name] = np.frombuffer(data, dtype=dtype, count=length, offset=start)
        position = stop
    if position != end:
        raise ModelFormatError(f"{where}: {end - position} bytes too many after the last array")
    return number, header, arrays


def _header(text: bytes, where: str) -> dict[str, Any]:
    try:
        header = json.loads(text)
        same = isinstance(header, dict) and canonical_json(header) == text
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{where}: the model's header is not JSON: {shortened(error)}") from error
    if not same:
        raise ModelFormatError(f"{where}: the model's header is not canonical JSON")
    return dict(header)


def _lengths(listed: object, where: str, expected: Sequence[tuple[str, np.dtype[Any]]], number: int) -> list[int]:
    names = [[name, dtype.newbyteorder("<").str] for name, dtype in expected]
    if (
        not isinstance(listed, list)
        or not all(isinstance(item, list) and len(item) == 3 for item in listed)
        or [item[:2] for item in listed] != names
    ):
        raise ModelFormatError(f"{where}: the model's arrays are not those of format {number}")
    lengths = [item[2] for item in listed]
    for name, length in zip(names, lengths, strict=True):
        if type(length) is not int or length < 0:
            raise ModelFormatError(f"{where}: array {name[0]!r} has length {shortened(repr(length))}")
    return lengths
