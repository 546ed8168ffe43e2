"""Find the keys of the objects of a file, in one pass before the rows are read.

As keys are optional, the columns are known only after the whole file was read.  The pass does not parse values, so it takes a
fraction of the time of reading the rows.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import DataRejected
from rankmill.pipeline.options import MAX_FEATURES
from rankmill.pipeline.read import _line_kernels as _kernels
from rankmill.pipeline.read.blocks import Block, read_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from rankmill.foundation.records import JSON

FEATURES = "features"
_BLOCK_BYTES = 4 << 20
_MOST_KEYS = 2 * MAX_FEATURES  # features and ignored keys
_TABLE = 4 * _MOST_KEYS

Positions = npt.NDArray[np.int64]
Form = Literal["flat", "object", "array"]


@dataclass(frozen=True, slots=True)
class Lines:
    """The non-blank lines of a block."""

    block: Block
    number: Positions
    """(n,) line number in the block, from 0."""
    start: Positions
    stop: Positions
    """(n,) start and end without surrounding blanks."""
    wrong: Positions
    """(n,) position of the error if the line is not a single object, else -1."""

    def __len__(self) -> int:
        return len(self.number)

    def text(self, k: int) -> str:
        """Return line ``k``."""
        return self.block.text(int(self.start[k]), int(self.stop[k]))


def lines_of(block: Block) -> Lines:
    """Find the lines of ``block``."""
    most = block.lines
    number, start, stop, wrong = (np.empty(most, dtype=np.int64) for _ in range(4))
    n = _kernels.find_objects(block.bytes_view, block.start, block.stop, number, start, stop, wrong)
    return Lines(block, number[:n], start[:n], stop[:n], wrong[:n])


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a file.

    Attributes
    ----------
    top
        Keys of the objects themselves, in order of appearance.
    form
        Where the features are: next to the ids (``flat``), or in an ``object`` or ``array`` at the key ``features``.
    features
        The keys of that object, or ``f1``, .. for an array.
    first
        The first object, parsed; None if there is none.
    """

    top: tuple[str, ...]
    form: Form
    features: tuple[str, ...]
    first: Mapping[str, JSON] | None


def read_keys(path: Path) -> Keys:
    """Find all keys of the file ``path``.

    Raises
    ------
    DataRejected
        It is not text, or has too many keys.
    """
    word = np.frombuffer(FEATURES.encode(), dtype=np.uint8)
    table = np.zeros(_TABLE, dtype=np.uint64)
    state = np.zeros(_kernels.STATE_CELLS, dtype=np.int64)
    key_from, key_to, level = (np.empty(_MOST_KEYS, dtype=np.int64) for _ in range(3))
    keys: dict[tuple[int, str], None] = {}
    form: Form = "flat"
    width = 0
    first: Mapping[str, JSON] | None = None
    for block in read_blocks(path, _BLOCK_BYTES):
        lines = lines_of(block)
        room = _MOST_KEYS - len(keys)
        _kernels.find_keys(
            block.bytes_view, lines.start, lines.stop, lines.wrong, word, table, key_from[:room], key_to, level, state
        )
        found = int(state[_kernels.KEYS])
        if found > room:
            raise DataRejected(f"{path}: more than {_MOST_KEYS} different keys; keys must not contain values")
        for k in range(found):
            name = _unquoted(bytes(block.data[key_from[k] : key_to[k]]))
            if name is not None:
                keys[int(level[k]), name] = None
        if form == "flat" and state[_kernels.FORM]:
            form = "object" if state[_kernels.FORM] == _kernels.OBJECT else "array"
            if form == "array":
                width = _width(lines.text(int(state[_kernels.FORM_LINE])))
        if first is None:
            first = next(
                (read for k in np.flatnonzero(lines.wrong < 0).tolist() if (read := as_object(lines.text(k)))), None
            )
    top = tuple(name for of, name in keys if of == 1)
    named = tuple(name for of, name in keys if of != 1)
    features = tuple(f"f{k}" for k in range(1, width + 1)) if form == "array" else naturally_sorted(named)
    return Keys(top, form, features, first)


def naturally_sorted(names: Iterable[str]) -> tuple[str, ...]:
    """Sort names, comparing numbers in them by value.

    >>> naturally_sorted(["f10", "f9", "bm25", "F1"])
    ('F1', 'bm25', 'f9', 'f10')
    """

    def key(name: str) -> tuple[list[tuple[str, int, str]], str]:
        parts = re.split("0*([0-9]+)", name)
        return [(text, len(digits), digits) for text, digits in zip(parts[::2], [*parts[1::2], ""], strict=True)], name

    return tuple(sorted(names, key=key))


def as_object(text: str) -> Mapping[str, JSON] | None:
    """Parse ``text`` with Python's json; None if it is not an object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _unquoted(data: bytes) -> str | None:
    if b"\\" not in data:
        return data.decode()
    try:
        name = str(json.loads(b'"' + data + b'"'))
        name.encode()
    except ValueError:
        return None  # invalid JSON, or an unpaired surrogate, which reading the row reports
    return name


def _width(text: str) -> int:
    found = (as_object(text) or {}).get(FEATURES)
    return len(found) if isinstance(found, list) else 0
