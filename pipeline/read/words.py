"""Read lines of words separated by blanks or tabs: TREC runs and qrels, pairs as text, and query sizes.

Blank lines are skipped, and comment lines if the format has a comment mark.  Lines may end with CR LF; the last line
end is optional; the text may be compressed and begin with a byte-order mark.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import MalformedLine
from rankmill.pipeline.options import DEFAULT_BLOCK_BYTES
from rankmill.pipeline.read import _text_kernels as _kernels
from rankmill.pipeline.read.batch import Problems, Quarantine, TableRows, shorten
from rankmill.pipeline.read.blocks import Block, copy_tokens, read_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

Positions = npt.NDArray[np.int64]


class WordForm(NamedTuple):
    """The words of a line in some format."""

    expected: str
    """Description for the message about a wrong number of words."""
    fields: tuple[str, ...]
    """Names of the words in order; empty for words that are ignored."""
    least: int
    most: float
    """Minimum and maximum number of words."""
    comments: bool = False
    """Whether there are lines of comment: ``#`` and a blank, or ``#`` and words that are no row."""


RUN = WordForm(
    "6 words, qid Q0 doc_id rank score tag", ("qid", "", "doc_id", "rank", "score", ""), least=6, most=np.inf
)
"""TREC runs: the second word, the tag and any words after it are ignored."""
QRELS = WordForm("4 words, qid iteration doc_id grade", ("qid", "", "doc_id", "grade"), least=4, most=4)
"""TREC qrels; the iteration is ignored."""
PAIRS = WordForm(
    "qid better worse [weight [probability]]",
    ("qid", "better", "worse", "weight", "probability"),
    least=3,
    most=5,
    comments=True,
)

_MARKED = "put a blank after the # of a comment; pairs whose ids begin with # are read from CSV"

SIZES = WordForm("the number of rows of a query: a whole number, 1 or more", ("size",), least=1, most=1)


def word_lines(
    path: Path, form: WordForm, quarantine: Quarantine, block_bytes: int = DEFAULT_BLOCK_BYTES
) -> Iterator[tuple[TableRows, int]]:
    """Yield (lines, bytes of the file read) of the text ``path``, a block at a time; ``place`` is the line number.

    Lines with too few or too many words get a problem; missing words are null.

    Raises
    ------
    DataRejected
        It is not UTF-8 text, or its compression is damaged.
    """
    for block in read_blocks(path, block_bytes):
        text, most = block.bytes_view, block.lines
        line, count = (np.empty(most, dtype=np.int64) for _ in range(2))
        start, stop = (np.full((len(form.fields), most), -1, dtype=np.int64) for _ in range(2))
        n = _kernels.split_words(text, block.start, block.stop, line, count, start, stop)
        line, count, start, stop = line[:n], count[:n], start[:, :n], stop[:, :n]
        marked = text[start[0]] == ord("#") if form.comments else np.zeros(n, dtype=np.bool_)
        fits = (count >= form.least) & (count <= form.most)
        comment = marked & (~fits | (stop[0] - start[0] == 1))
        if comment.any():
            line, count, start, stop, marked = (a[..., ~comment] for a in (line, count, start, stop, marked))
        words = {name: copy_tokens(text, start[w], stop[w]) for w, name in enumerate(form.fields) if name}
        lines = _Lines(form, block, block.first_line + line, count, start, quarantine)
        problems = Problems(len(line))
        problems.refuse((lines.words < form.least) | (lines.words > form.most), "", form.expected)
        problems.refuse(
            marked, form.fields[0], "a comment, whose # a blank follows, or an id without # in front", _MARKED
        )
        yield TableRows(words, lines.line, problems, lines.reject), block.position


class _Lines(NamedTuple):
    """Positions of the words in a block."""

    form: WordForm
    block: Block
    line: Positions
    words: Positions  # number of words per line
    start: Positions  # start of the w-th word, (fields, n)
    quarantine: Quarantine

    def reject(self, problems: Problems) -> None:
        for row, part, _, expected, cure in problems.sorted():
            block = self.block
            at = int(self.start[self.form.fields.index(part) if part else 0, row])
            text, column = block.line_at(at)
            words = f"{self.words[row]} word{'' if self.words[row] == 1 else 's'}"
            found = re.split("[ \t]", text[column - 1 :], maxsplit=1)[0] if part else words
            error = MalformedLine(block.path, int(self.line[row]), column, shorten(found), expected, cure)
            self.quarantine.add(error, column, text)
