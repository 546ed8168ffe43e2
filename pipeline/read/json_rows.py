"""Read the values of JSON lines, given the roles of the keys."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.read import _value_kernels as _kernels
from rankmill.pipeline.read._number_kernels import POWERS
from rankmill.pipeline.read.batch import BATCH_BYTES
from rankmill.pipeline.read.blocks import copy_tokens
from rankmill.pipeline.read.column_roles import IDS, KEPT
from rankmill.pipeline.read.columnar import ParsedNumbers
from rankmill.pipeline.read.explain_json import LineExplanation, Values, explain, read_line
from rankmill.pipeline.read.json_keys import FEATURES
from rankmill.pipeline.read.times import TIME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rankmill.pipeline.read.columns import TableColumns
    from rankmill.pipeline.read.json_keys import Keys, Lines

_MOST_ROWS = 1 << 16


class Found(NamedTuple):
    """The rows of some lines."""

    batch: pa.RecordBatch
    """The columns with a role and the categories, by their keys; null if missing."""
    numbers: ParsedNumbers
    lines: npt.NDArray[np.int64]
    """(n,) which of the lines of the block are these rows."""
    malformed: Mapping[int, LineExplanation]
    """Other lines that were looked at, and are no rows."""


@dataclass(frozen=True, slots=True)
class _Cells:
    """The values of some lines; what the kernel writes, and what Python's parser adds."""

    values: npt.NDArray[np.float32]  # (n, features)
    numbers: npt.NDArray[np.float64]  # (columns, n)
    start: npt.NDArray[np.int64]  # (columns, n) where texts begin, -1 if missing
    stop: npt.NDArray[np.int64]
    escaped: npt.NDArray[np.bool_]  # (columns, n)
    words: npt.NDArray[np.bool_]  # (columns,) whether some cell is a string
    texts: dict[tuple[int, int], str]  # other texts, by column and row

    @classmethod
    def empty(cls, columns: int, features: int, rows: int) -> _Cells:
        start, stop = (np.full((columns, rows), -1, dtype=np.int64) for _ in range(2))
        return cls(
            values=np.full((rows, features), np.nan, dtype=np.float32),
            numbers=np.full((columns, rows), np.nan),
            start=start,
            stop=stop,
            escaped=np.zeros((columns, rows), dtype=np.bool_),
            words=np.zeros(columns, dtype=np.bool_),
            texts={},
        )

    def forget(self, row: int) -> None:
        """Discard what was read of ``row``."""
        self.values[row] = np.nan
        self.numbers[:, row] = np.nan
        self.start[:, row] = self.stop[:, row] = -1
        self.escaped[:, row] = False


@dataclass(frozen=True, slots=True)
class _KeyTable:
    """What the kernel needs to know of the keys."""

    names: npt.NDArray[np.uint8]
    name_from: npt.NDArray[np.int64]  # (keys + 1,)
    depths: npt.NDArray[np.int64]  # (keys,)
    kinds: npt.NDArray[np.int64]  # (keys,)
    places: npt.NDArray[np.int64]  # (keys,)
    table: npt.NDArray[np.int64]

    @classmethod
    def of(cls, keys: Mapping[tuple[int, str], tuple[int, int]]) -> _KeyTable:
        """Return the table of ``keys``, the kind and place of each by its depth and name.

        Keys that need escapes are left out: the kernel compares names with the text as it is, and Python's parser reads such lines.
        """
        keys = {key: known for key, known in keys.items() if json.dumps(key[1], ensure_ascii=False) == f'"{key[1]}"'}
        texts = [name.encode() for _, name in keys]
        names = np.frombuffer(b"".join(texts) or b"\0", dtype=np.uint8)
        name_from = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        depths = np.array([depth for depth, _ in keys], dtype=np.int64)
        kinds, places = np.array(list(keys.values()), dtype=np.int64).reshape(-1, 2).T.copy()
        table = np.full(1 << (2 * len(keys)).bit_length(), -1, dtype=np.int64)
        _kernels.enter_keys(names, name_from, depths, table)
        return cls(names, name_from, depths, kinds, places, table)


class LineReader:
    """Parses lines, given the roles of the keys.  Keeps no state between blocks."""

    def __init__(self, columns: TableColumns, keys: Keys) -> None:
        self._columns = columns
        self._keys = keys if columns.features else replace(keys, form="flat")  # judgments have no features
        roles = {key: _kind_of(part, columns) for part, key in columns.column_of.items()}
        categories = {key: _kernels.TEXT for key in columns.features if key in columns.categorical}
        self._of = {**roles, **categories}  # what is read apart from the features that are numbers
        self._place = {key: place for place, key in enumerate(columns.features)}
        apart = {key: (kind, p) for p, (key, kind) in enumerate(self._of.items())}
        features = {key: apart.get(key, (_kernels.FEATURE, place)) for key, place in self._place.items()}
        form, ignored = self._keys.form, (_kernels.IGNORED, 0)
        top = {key: apart[key] for key in roles}
        top = features | top if form == "flat" else top | {FEATURES: (_kernels.NESTED, 0)}
        known = {(1, key): top.get(key, ignored) for key in keys.top}
        known |= {(2, key): features.get(key, ignored) for key in keys.features} if form == "object" else {}
        self._table = _KeyTable.of(known)
        # of an array the kernel reads float32, which is not enough for categories: Python's parser reads those
        array = keys.features if form == "array" and not categories else ()
        self._array = np.array([self._place.get(key, -1) for key in array], dtype=np.int64)
        self._rows = max(1, min(_MOST_ROWS, BATCH_BYTES // (8 * max(1, len(columns.features)))))

    def read(self, lines: Lines) -> Iterator[Found]:
        """Yield the rows among ``lines``, in order, some at a time."""
        following = np.full(len(self._table.depths) + 2, -1, dtype=np.int64)
        for first in range(0, len(lines), self._rows):
            yield self._read(lines, np.arange(first, min(first + self._rows, len(lines))), following)

    def _read(self, lines: Lines, here: npt.NDArray[np.int64], following: npt.NDArray[np.int64]) -> Found:
        """Read the lines ``here``; ``following`` is the usual order of the keys so far."""
        unusual = lines.wrong[here] >= 0
        malformed = {k: explain(lines.text(k), self._columns, self._keys) for k in here[unusual].tolist()}
        here, table = here[~unusual], self._table
        cells = _Cells.empty(len(self._of), len(self._place), len(here))
        known, seen = np.empty(len(here), dtype=np.bool_), np.empty(len(table.depths), dtype=np.int64)
        _kernels.parse_objects(
            lines.block.bytes_view, lines.start[here], lines.stop[here], table.names, table.name_from, table.depths,
            table.kinds, table.places, table.table, following, seen, self._array, self._keys.form != "flat", POWERS,
            cells.values, cells.numbers, cells.start, cells.stop, cells.escaped, cells.words, known,
        )  # fmt: skip
        for p, row in np.argwhere(cells.escaped & known).tolist():
            text = _unescaped(lines.block.text(cells.start[p, row], cells.stop[p, row]))
            if text is None:
                known[row] = False
            else:
                cells.texts[p, row] = text
        keep = np.ones(len(here), dtype=np.bool_)
        for row in np.flatnonzero(~known).tolist():
            line = read_line(lines.text(here[row]), self._columns, self._keys)
            if isinstance(line, LineExplanation):
                malformed[int(here[row])], keep[row] = line, False
            else:
                self._write(line, cells, row)
        batch = pa.RecordBatch.from_arrays(
            [self._column(p, kind, lines, cells) for p, kind in enumerate(self._of.values())], list(self._of)
        )
        if keep.all():
            return Found(batch, ParsedNumbers(cells.values, ()), here, malformed)
        return Found(batch.filter(as_array(keep)), ParsedNumbers(cells.values[keep], ()), here[keep], malformed)

    def _write(self, line: Values, cells: _Cells, row: int) -> None:
        """Write the values that Python's parser found instead of those that the kernel did."""
        cells.forget(row)
        for p, (key, kind) in enumerate(self._of.items()):
            value = (line.top if key not in self._columns.categorical else line.features).get(key)
            if value is None:
                continue
            if kind == _kernels.GRADED and isinstance(value, bool):
                value = str(value).lower()  # a word, as in other formats
            if kind != _kernels.TEXT and not isinstance(value, str):
                cells.numbers[p, row] = _as_float(value)
            cells.words[p] |= isinstance(value, str)
            cells.texts[p, row] = _as_text(value)
        for key, place in self._place.items():
            value = line.features.get(key)
            if value is not None and key not in self._of:
                with np.errstate(over="ignore"):
                    cells.values[row, place] = _as_float(value)

    def _column(self, p: int, kind: int, lines: Lines, cells: _Cells) -> pa.Array[Any]:
        if kind == _kernels.PRECISE or (kind == _kernels.GRADED and not cells.words[p]):
            return as_array(cells.numbers[p])
        texts = copy_tokens(lines.block.bytes_view, cells.start[p], cells.stop[p])
        others = {row: text for (of, row), text in cells.texts.items() if of == p}
        if not others:
            return texts
        every = texts.to_pylist()
        for row, text in others.items():
            every[row] = text
        return pa.array(every, pa.string())


def _kind_of(part: str, columns: TableColumns) -> int:
    if part in IDS or part == TIME or part.startswith(KEPT):
        return _kernels.TEXT
    return _kernels.GRADED if part in columns.graded else _kernels.PRECISE


def _unescaped(text: str) -> str | None:
    """Return what the string ``text`` of JSON means; None if it is invalid."""
    try:
        found = str(json.loads(f'"{text}"'))
        found.encode()
    except ValueError:
        return None
    return found


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return float("inf") if value > 0 else float("-inf")


def _as_text(value: str | float) -> str:
    """Return an id, a time, a grade or a category as text."""
    if isinstance(value, bool):
        return str(int(value))  # as in other formats
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else str(value)
    return str(value)
