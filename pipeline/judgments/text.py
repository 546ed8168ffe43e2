"""Judgments as TREC writes them (qrels): ``qid iteration doc_id grade``, one a line.

Words are separated by blanks or tabs, lines without words are skipped, and the iteration means nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import MalformedLine
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.judgments.batch import JudgmentBatch
from rankmill.pipeline.sources import _kernels
from rankmill.pipeline.sources.batch import DEFAULT_BLOCK_BYTES, Quarantine, shorten
from rankmill.pipeline.sources.blocks import Block, copy_tokens, read_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rankmill.pipeline.sources.columns import TableColumns
    from rankmill.pipeline.sources.grades import GradeRules

FORM = "4 words, qid iteration doc_id grade"
_WORDS = 4
_QID, _DOC_ID, _GRADE = 0, 2, 3
_NO_COMMENTS = 10  # a newline begins no word


@dataclass(frozen=True, slots=True)
class JudgmentLines:
    """The lines of a block that have words: any number of them, the fields of a judgment where there are four."""

    qid: pa.Array[Any]
    doc_id: pa.Array[Any]
    grade: pa.Array[Any]
    """(n,) the word as it stands, null where there are too few; so are ``qid`` and ``doc_id``."""
    line: npt.NDArray[np.int64]
    """(n,) numbers in the file, from 1."""
    words: npt.NDArray[np.int64]
    """(n,) how many."""
    _start: npt.NDArray[np.int64]
    _block: Block

    def error(self, path: Path, row: int, word: int, expected: str, cure: str = "") -> tuple[MalformedLine, int, str]:
        """Return what is wrong with one word of a line (its number of words for -1), its column, and the line's text."""
        at = int(self._start[max(word, 0), row])
        first = self._block.data.rfind(b"\n", self._block.start, at) + 1 or self._block.start
        text = self._block.text(first, self._block.data.index(b"\n", at)).removesuffix("\r")
        column = len(self._block.text(first, at)) + 1
        many = "" if self.words[row] == 1 else "s"
        found = f"{self.words[row]} word{many}" if word < 0 else text[column - 1 :].split(maxsplit=1)[0]
        return MalformedLine(path, int(self.line[row]), column, shorten(found), expected, cure), column, text


def judgment_lines(path: Path, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[tuple[JudgmentLines, int]]:
    """Yield (lines, bytes of the file used up) of text, plain or compressed, a block at a time.

    Raises
    ------
    DataRejected
        It is no UTF-8 text, or its compression is damaged.
    """
    for block in read_blocks(path, block_bytes):
        text = block.bytes_view
        most = block.lines
        line, count = (np.empty(most, dtype=np.int64) for _ in range(2))
        start, stop = (np.full((_WORDS, most), -1, dtype=np.int64) for _ in range(2))
        n = _kernels.split_words(text, block.start, block.stop, line, count, start, stop, _NO_COMMENTS)
        qid, doc_id, grade = (copy_tokens(text, start[word, :n], stop[word, :n]) for word in (_QID, _DOC_ID, _GRADE))
        found = JudgmentLines(
            qid=qid,
            doc_id=doc_id,
            grade=grade,
            line=block.first_line + line[:n],
            words=count[:n],
            _start=start[:, :n],
            _block=block,
        )
        yield found, block.position


class TextJudgments:
    """One file of such text, plain or compressed."""

    def __init__(self, path: Path, rules: GradeRules, quarantine: Quarantine) -> None:
        self.path = path
        self.position = 0
        self.table: TableColumns | None = None
        self._rules = rules
        self._quarantine = quarantine

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[JudgmentBatch]:
        """Yield the judgments in the order of the file."""
        for lines, position in judgment_lines(self.path, block_bytes):
            yield self._judgments(lines)
            self.position = position

    def _judgments(self, lines: JudgmentLines) -> JudgmentBatch:
        grade, bad = self._rules.read_words(lines.grade)
        complete = lines.words == _WORDS
        for row in np.flatnonzero(bad | ~complete).tolist():
            if complete[row]:
                expected, cure = self._rules.expected(lines.grade[row].as_py())
                error, column, text = lines.error(self.path, row, _GRADE, expected, cure)
            else:
                error, column, text = lines.error(self.path, row, -1, FORM)
            self._quarantine.add(error, column, text)
        keep = np.flatnonzero(complete & ~bad)
        places = as_array(keep)
        return JudgmentBatch(qid=lines.qid.take(places), doc_id=lines.doc_id.take(places), grade=grade[keep], time=None)
