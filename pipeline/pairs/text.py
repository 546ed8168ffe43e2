"""Pairs as text: ``qid better worse [weight [probability]]``, one pair a line.

Words are separated by blanks or tabs.  Blank lines, and lines that begin with ``#``, are skipped.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rankmill.foundation.errors import MalformedLine
from rankmill.pipeline.pairs.batch import COLUMNS, IDS, NUMBERS, PairBatch, checks
from rankmill.pipeline.sources import _kernels
from rankmill.pipeline.sources.batch import DEFAULT_BLOCK_BYTES, Quarantine, shorten
from rankmill.pipeline.sources.blocks import copy_tokens, read_blocks
from rankmill.pipeline.sources.optional import read_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rankmill.pipeline.pairs.batch import Mismatch
    from rankmill.pipeline.sources.blocks import Block

_FORM = "qid better worse [weight [probability]]"
_COMMENT = ord("#")
_WORD = re.compile("[^ \t]+")


class TextPairs:
    """One file of text, plain or compressed; the place of a pair is the number of its line."""

    def __init__(self, path: Path, quarantine: Quarantine) -> None:
        self.path = path
        self.position = 0
        self._quarantine = quarantine

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[PairBatch]:
        """Yield the pairs in the order of the file."""
        for block in read_blocks(self.path, block_bytes):
            yield self._parse(block)
            self.position = block.position

    def refuse(self, mismatches: Mapping[int, Mismatch]) -> None:
        """Put the pairs in these lines aside."""
        wanted = np.array(sorted(mismatches), dtype=np.int64)
        for block in read_blocks(self.path, DEFAULT_BLOCK_BYTES):
            lines = block.lines
            low, high = np.searchsorted(wanted, [block.first_line, block.first_line + lines])
            texts = block.text(block.start, block.stop).split("\n") if low < high else []
            for line in wanted[low:high].tolist():
                text = texts[line - block.first_line].removesuffix("\r")
                words = list(_WORD.finditer(text))
                complaint = mismatches[line].complaint(words[0].group())
                word = words[complaint.column]
                self._put_aside(line, word.start() + 1, word.group(), complaint.expected, complaint.cure, text)

    def _parse(self, block: Block) -> PairBatch:
        text = block.bytes_view
        lines = block.lines
        line, count = (np.empty(lines, dtype=np.int64) for _ in range(2))
        start, stop = (np.full((len(COLUMNS), lines), -1, dtype=np.int64) for _ in range(2))
        n = _kernels.split_words(text, block.start, block.stop, line, count, start, stop, _COMMENT)
        words = {name: copy_tokens(text, start[w, :n], stop[w, :n]) for w, name in enumerate(COLUMNS)}
        count = count[:n]
        weight, probability = (
            np.where(count > w, read_numbers(words[name]), 1.0) for w, name in enumerate(NUMBERS, start=len(IDS))
        )
        qid, better, worse = (words[name].fill_null("") for name in IDS)
        batch = PairBatch(qid, better, worse, weight, probability, place=block.first_line + line[:n])
        keep = (count >= len(IDS)) & (count <= len(COLUMNS))
        problems = dict.fromkeys(np.flatnonzero(~keep).tolist(), (0, _FORM))
        for check in checks(batch):
            for row in np.flatnonzero(check.bad & keep).tolist():
                problems[row] = (COLUMNS.index(check.column), check.expected)
            keep &= ~check.bad
        for row, (word, expected) in sorted(problems.items()):
            self._reject(
                block, int(batch.place[row]), int(start[0, row]), int(start[word, row]), int(count[row]), expected
            )
        return batch.kept(keep)

    def _reject(self, block: Block, line: int, first_word: int, at: int, words: int, expected: str) -> None:
        line_start = max(block.start, block.data.rfind(b"\n", 0, first_word) + 1)
        text = block.text(line_start, block.data.index(b"\n", at)).removesuffix("\r")
        column = len(block.text(line_start, at)) + 1
        found = f"{words} word{'s' * (words > 1)}" if expected == _FORM else _WORD.findall(text, column - 1)[0]
        self._put_aside(line, column, found, expected, "", text)

    def _put_aside(self, line: int, column: int, found: str, expected: str, cure: str, text: str) -> None:
        error = MalformedLine(self.path, line, column, shorten(found), expected, cure)
        self._quarantine.add(error, column, text)
