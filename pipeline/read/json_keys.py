"""Find the lines of JSON lines, and the keys of all objects of a file in one pass before the rows are read.

As keys are optional, the columns are known only after the whole file was read.  The pass does not convert numbers.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import DataRejected
from rankmill.pipeline.options import MAX_FEATURES
from rankmill.pipeline.read.blocks import Block, read_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from rankmill.foundation.records import JSON

FEATURES = "features"
DEEPEST = 64  # nested brackets
_BLOCK_BYTES = 4 << 20
_MOST_FORMS = 4  # orders of keys that are known by a pattern
_MOST_KEYS = 2 * MAX_FEATURES  # features and ignored keys
_BLANKS = b" \t\r"
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?')
_BRACKET = re.compile(rb"[\[\]{}]")
_HALF_PAIR = re.compile("[\ud800-\udfff]")

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
    wrong: npt.NDArray[np.bool_]
    """(n,) whether the line cannot be an object: by its first or last character, or as its brackets are nested too
    deeply."""

    def __len__(self) -> int:
        return len(self.number)

    def text(self, k: int) -> str:
        """Return line ``k``."""
        return self.block.text(int(self.start[k]), int(self.stop[k]))


def lines_of(block: Block) -> Lines:
    """Find the lines of ``block``."""
    text = block.bytes_view
    stop = block.start + np.flatnonzero(text[block.start : block.stop] == ord("\n"))
    start = np.concatenate([[block.start], stop[:-1] + 1])
    stop = stop - ((stop > start) & (text[stop - 1] == ord("\r")))
    wrong = _unlike_objects(text, start, stop)
    for k in np.flatnonzero(wrong).tolist():  # perhaps with blanks around
        line = bytes(block.data[start[k] : stop[k]])
        start[k] += len(line) - len(line.lstrip(_BLANKS))
        stop[k] = start[k] + len(line.strip(_BLANKS))
    wrong[wrong] = _unlike_objects(text, start[wrong], stop[wrong])
    opened = block.start + np.flatnonzero((text[block.start : block.stop] | 0x20) == ord("{"))  # or [
    counts = np.searchsorted(opened, stop) - np.searchsorted(opened, start)
    for k in np.flatnonzero(counts > DEEPEST).tolist():
        wrong[k] |= _is_too_deep(bytes(block.data[start[k] : stop[k]]))
    (number,) = np.nonzero(stop > start)
    return Lines(block, number, start[number], stop[number], wrong[number])


def _unlike_objects(text: npt.NDArray[np.uint8], start: Positions, stop: Positions) -> npt.NDArray[np.bool_]:
    unlike: npt.NDArray[np.bool_] = (text[start] != ord("{")) | (text[stop - 1] != ord("}")) | (stop - start < 2)
    return unlike


def _is_too_deep(line: bytes) -> bool:
    """Whether more than DEEPEST brackets are open at once in ``line``."""
    if line.count(b"{") + line.count(b"[") <= DEEPEST:
        return False
    brackets = _BRACKET.findall(_STRING.sub(b"", line))
    return max(itertools.accumulate(1 if bracket in b"[{" else -1 for bracket in brackets)) > DEEPEST


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
    top: dict[str, None] = {}
    nested: dict[str, None] = {}
    form: Form = "flat"
    width = 0
    first: Mapping[str, JSON] | None = None
    for text, found in _objects(path):
        if not found.keys() <= top.keys():
            top |= _names(found)
        features = found.get(FEATURES)
        if form == "flat" and isinstance(features, (dict, list)):
            form, width = ("object", 0) if isinstance(features, dict) else ("array", len(features))
        if isinstance(features, dict) and not features.keys() <= nested.keys():
            nested |= _names(features)
        if first is None and found:
            first = as_object(text.decode())
        if len(top) + len(nested) > _MOST_KEYS:
            raise DataRejected(f"{path}: more than {_MOST_KEYS} different keys; keys must not contain values")
    names = tuple(f"f{k}" for k in range(1, width + 1)) if form == "array" else naturally_sorted(nested)
    return Keys(tuple(top), form, names, first)


def _objects(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the text and the object of each line that is an object.

    Lines with the same keys in the same order as an earlier line are skipped.

    In the object, numbers are replaced by others: converting them would take most of the time.
    """
    decode = json.JSONDecoder(parse_float=len, parse_int=len).decode
    forms: list[bytes] = []
    usual = re.compile(b"")
    for block in read_blocks(path, _BLOCK_BYTES):
        at = block.start
        while (at := cast("re.Match[bytes]", usual.match(block.data, at, block.stop)).end()) < block.stop:
            end = block.data.index(b"\n", at)
            line, at = bytes(block.data[at:end]).strip(_BLANKS), end + 1
            try:
                found = decode(line.decode()) if line.startswith(b"{") and not _is_too_deep(line) else None
            except ValueError:  # reading the row reports it
                continue
            if isinstance(found, dict):
                yield line, found
                if len(forms) < _MOST_FORMS:  # a pattern takes milliseconds
                    forms.append(_form_of(found))
                    usual = re.compile(rb"(?:(?:%b)[ \t\r]*+\n)*+" % b"|".join(forms))


def _form_of(found: Any) -> bytes:
    """Return the pattern of values with the keys of ``found``, and no others, in its order."""
    blanks = b"[ \t]*+"
    if isinstance(found, dict):
        names = (re.escape(json.dumps(key, ensure_ascii=False).encode("utf-8", "surrogatepass")) for key in found)
        pairs = (
            name + blanks + b":" + blanks + _form_of(value) for name, value in zip(names, found.values(), strict=True)
        )
        return rb"\{" + blanks + (b"," + blanks).join(pairs) + rb"\}"
    if isinstance(found, list):
        return rb'\[[^"{}\[\]]*+\]'
    return rb'(?:"[^"\\]*+"' + blanks + rb'|[^"{}\[\],]*+)'


def _names(found: Iterable[str]) -> dict[str, None]:
    """Return the keys that are Unicode; an object with half a surrogate pair in a key has no such column."""
    return {name: None for name in found if not _HALF_PAIR.search(name)}


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
