"""The bytes of ONNX models: graphs of operators, and the messages that hold them.

The numbers of fields and types are those of onnx.proto (github.com/onnx/onnx), version 8 of the representation.  A
protobuf message is the bytes of its fields, one after the other. A field is a key (number and kind) and a varint, or a
key, a length and that many bytes (protobuf.dev, Encoding).  Repeated numbers are packed into one field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

REPRESENTATION, OPERATORS, TREE_OPERATORS = 8, 13, 3
FLOAT, INT64, DOUBLE = 1, 7, 11  # TensorProto.DataType
OF_INT, OF_STRING, OF_TENSOR, OF_INTS, OF_STRINGS = 2, 3, 4, 7, 8  # AttributeProto.AttributeType
MACHINE_LEARNING = "ai.onnx.ml"  # operators of trees and categories
_VARINT, _BYTES = 0, 2
_TYPES = {"f8": (DOUBLE, "<f8"), "i8": (INT64, "<i8")}


class Graph:
    """Operators in the order in which they are computed, and constants."""

    def __init__(self) -> None:
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []

    def node(self, kind: str, inputs: Sequence[str], output: str, *attributes: bytes, domain: str = "") -> str:
        """Add an operator, and return the name of its result."""
        self._nodes.append(
            chunks(1, inputs)
            + chunk(2, output)
            + chunk(4, kind)
            + chunks(5, attributes)
            + (chunk(7, domain) if domain else b"")
        )
        return output

    def constant(self, name: str, values: npt.ArrayLike) -> str:
        """Add a constant of float64 or int64, and return its name."""
        self._constants.append(_array(name, np.asarray(values)))
        return name

    def model(self, name: str, n_features: int, metadata: Mapping[str, str]) -> bytes:
        """Return the file: from ``features`` (n, ``n_features``) to ``score`` (n, 1), both float32."""
        graph = (
            chunks(1, self._nodes)
            + chunk(2, name)
            + chunks(5, self._constants)
            + chunk(11, _value("features", ["documents", n_features]))
            + chunk(12, _value("score", ["documents", 1]))
        )
        sets = (("", OPERATORS), (MACHINE_LEARNING, TREE_OPERATORS))
        return (
            integer(1, REPRESENTATION)
            + chunk(2, "rankmill")
            + chunk(7, graph)
            + chunks(8, [chunk(1, domain) + integer(2, version) for domain, version in sets])
            + chunks(14, [chunk(1, key) + chunk(2, value) for key, value in metadata.items()])
        )


def int_attribute(name: str, value: int) -> bytes:
    """Return the attribute ``name`` of an operator: a whole number."""
    return chunk(1, name) + integer(3, value) + integer(20, OF_INT)


def string_attribute(name: str, value: str) -> bytes:
    """Return the attribute ``name`` of an operator: a text."""
    return chunk(1, name) + chunk(4, value) + integer(20, OF_STRING)


def ints_attribute(name: str, values: npt.NDArray[np.generic]) -> bytes:
    """Return the attribute ``name`` of an operator: whole numbers."""
    return chunk(1, name) + integers(8, values.astype(np.int64).tolist()) + integer(20, OF_INTS)


def strings_attribute(name: str, values: list[str]) -> bytes:
    """Return the attribute ``name`` of an operator: texts."""
    return chunk(1, name) + chunks(9, values) + integer(20, OF_STRINGS)


def tensor_attribute(name: str, values: npt.NDArray[np.floating]) -> bytes:
    """Return the attribute ``name`` of an operator: doubles."""
    return chunk(1, name) + chunk(5, _array(name, values.astype(np.float64))) + integer(20, OF_TENSOR)


def _array(name: str, values: npt.NDArray[np.generic]) -> bytes:
    """Return a tensor."""
    kind, dtype = _TYPES[values.dtype.str[1:]]
    shape = integers(1, values.shape) if values.ndim else b""
    return shape + integer(2, kind) + chunk(8, name) + chunk(9, values.astype(dtype).tobytes())


def _value(name: str, shape: list[str | int]) -> bytes:
    """Return the description of an input or output of float32."""
    sizes = [chunk(2, size) if isinstance(size, str) else integer(1, size) for size in shape]
    return chunk(1, name) + chunk(2, chunk(1, integer(1, FLOAT) + chunk(2, chunks(1, sizes))))


def varint(value: int) -> bytes:
    """Encode seven bits per byte, the lowest first; the high bit is set if more follow.

    Negative numbers are 64-bit two's complement.

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
