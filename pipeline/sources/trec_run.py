"""TREC runs: ``qid Q0 doc_id rank score tag``, one document a line; ``score`` and ``rank`` are its features.

Words are separated by blanks or tabs, lines without words are skipped.  The second word, the tag and what follows it mean
nothing.  A run has no grades.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import DataRejected, InputError, MalformedLine
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.sources import _kernels
from rankmill.pipeline.sources.batch import DEFAULT_BLOCK_BYTES, Quarantine, ReadOptions, RowBatch, shorten
from rankmill.pipeline.sources.blocks import copy_tokens, read_blocks
from rankmill.pipeline.sources.columns import TableColumns
from rankmill.pipeline.sources.parts import read_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from rankmill.pipeline.sources.blocks import Block

FEATURES = ("score", "rank")
_FORM = "6 words, qid Q0 doc_id rank score tag"
_WORDS = 6
_QID, _DOC_ID = 0, 2
_PLACES = {"score": 4, "rank": 3}
_NO_COMMENTS = 10  # a newline begins no word


class RunSource:
    """One run, plain or compressed."""

    columns: tuple[str, ...] | None = FEATURES
    fields: tuple[str, ...] = ()

    def __init__(self, path: Path, options: ReadOptions, quarantine: Quarantine | None = None) -> None:
        if options.grade_required and not options.ungraded:
            raise DataRejected(f"{path}: a run has no grades; --qrels FILE names the judgments that have them")
        if options.time_column is not None and not options.time_optional:
            raise InputError(f"--time-column is for tables; {path} is a run, which has no times")
        self.path = path
        self.position = 0
        self.table: TableColumns | None = TableColumns({"qid": "qid", "doc_id": "doc_id"}, FEATURES)
        self._quarantine = Quarantine() if quarantine is None else quarantine

    def names(self, width: int) -> tuple[str, ...]:
        """Return the names of the features."""
        if width != len(FEATURES):
            raise ValueError(f"{len(FEATURES)} features, not {width}")
        return FEATURES

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[RowBatch]:
        """Yield the rows in the order of the file."""
        for batch, _ in self.with_lines(block_bytes):
            yield batch

    def with_lines(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[tuple[RowBatch, npt.NDArray[np.int64]]]:
        """Yield the rows in the order of the file, and their lines (n,), from 1."""
        for block in read_blocks(self.path, block_bytes):
            yield self._rows(block)
            self.position = block.position

    def _rows(self, block: Block) -> tuple[RowBatch, npt.NDArray[np.int64]]:
        text = block.bytes_view
        lines = block.lines
        line, count = (np.empty(lines, dtype=np.int64) for _ in range(2))
        start, stop = (np.full((_WORDS, lines), -1, dtype=np.int64) for _ in range(2))
        n = _kernels.split_words(text, block.start, block.stop, line, count, start, stop, _NO_COMMENTS)
        words = [copy_tokens(text, start[word, :n], stop[word, :n]) for word in range(_WORDS)]
        problems = dict.fromkeys(np.flatnonzero(count[:n] < _WORDS).tolist(), (0, _FORM))
        values = np.empty((n, len(FEATURES)), dtype=np.float32)
        for column, name in enumerate(FEATURES):
            numbers = read_numbers(words[_PLACES[name]])
            for row in np.flatnonzero(np.isnan(numbers)).tolist():
                problems.setdefault(row, (_PLACES[name], f"a number as {name}"))
            with np.errstate(over="ignore"):
                values[:, column] = numbers
        for row, (word, expected) in sorted(problems.items()):
            self._reject(block, block.first_line + int(line[row]), int(start[word, row]), int(count[row]), expected)
        keep = np.ones(n, dtype=np.bool_)
        keep[list(problems)] = False
        kept: pa.Array[Any] = as_array(np.flatnonzero(keep))
        rows = RowBatch(
            qid=words[_QID].take(kept),
            doc_id=words[_DOC_ID].take(kept),
            grade=None,
            values=values[keep],
        )
        return rows, block.first_line + line[:n][keep]

    def _reject(self, block: Block, line: int, at: int, words: int, expected: str) -> None:
        line_start = max(block.start, block.data.rfind(b"\n", block.start, at) + 1)
        text = block.text(line_start, block.data.index(b"\n", at)).removesuffix("\r")
        column = len(block.text(line_start, at)) + 1
        many = "" if words == 1 else "s"
        found = f"{words} word{many}" if expected == _FORM else text[column - 1 :].split(maxsplit=1)[0]
        self._quarantine.add(MalformedLine(self.path, line, column, shorten(found), expected), column, text)
