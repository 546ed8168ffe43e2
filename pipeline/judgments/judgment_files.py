"""Judgments from files of their own, TREC's text or tables: opened, read and spilled, and what the manifest says of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import DataRejected, InputError, MalformedLine
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.dataset_manifest import JudgmentSet
from rankmill.pipeline.judgments.rules import WITH_LABEL
from rankmill.pipeline.sources import _kernels
from rankmill.pipeline.sources.batch import DEFAULT_BLOCK_BYTES, Quarantine, ReadOptions, shorten
from rankmill.pipeline.sources.blocks import Block, copy_tokens, read_blocks
from rankmill.pipeline.sources.files import check_file, format_of
from rankmill.pipeline.sources.open_source import open_source
from rankmill.pipeline.sources.times import TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from rankmill.pipeline.dataset_manifest import SourceFile
    from rankmill.pipeline.judgments.rules import Aggregate
    from rankmill.pipeline.judgments.spill import JudgmentSpill
    from rankmill.pipeline.judgments.tally import Tally
    from rankmill.pipeline.sources.batch import Quarantine, ReadOptions, Source
    from rankmill.pipeline.sources.columns import TableColumns
    from rankmill.pipeline.sources.grades import GradeRules


@dataclass(frozen=True, slots=True)
class JudgmentBatch:
    """Some judgments, in the order of the file."""

    qid: pa.Array[Any]
    """(n,) the query; as ``doc_id`` never null or empty."""
    doc_id: pa.Array[Any]
    """(n,) the document that is judged."""
    grade: npt.NDArray[np.int32]
    """(n,) 0 or more, or `rankmill.pipeline.sources.batch.UNKNOWN_GRADE` where the judgment says that there is none."""
    time: npt.NDArray[np.int64] | None
    """(n,) microseconds since 1970 UTC; None where the file has no times."""

    def __len__(self) -> int:
        return len(self.grade)


class JudgmentSource(Protocol):
    """One file of judgments."""

    path: Path
    table: TableColumns | None
    """Which of its columns plays which part; None for text."""

    @property
    def position(self) -> int:
        """Bytes of the file used up so far; may stay 0 where that is not known."""
        ...

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[JudgmentBatch]:
        """Yield the judgments in the order of the file."""
        ...


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


class TableJudgments:
    """One file of a table: rows without features."""

    def __init__(self, path: Path, format: str, options: ReadOptions, quarantine: Quarantine) -> None:  # noqa: A002
        self.path = path
        self._rows = open_source(path, format, replace(options, judgments_alone=True), quarantine)
        self.table: TableColumns | None = self._rows.table

    @property
    def position(self) -> int:
        """Bytes of the file used up so far."""
        return self._rows.position

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[JudgmentBatch]:
        """Yield the judgments in the order of the file."""
        for rows in self._rows.batches(block_bytes):
            if not len(rows):
                continue
            if rows.doc_id is None or rows.doc_id.null_count or rows.grade is None:
                raise DataRejected(f"{self.path}: a judgment needs qid, doc_id and grade; some have no doc_id")
            yield JudgmentBatch(
                qid=cast("pa.Array[pa.StringScalar]", rows.qid),
                doc_id=cast("pa.Array[pa.StringScalar]", rows.doc_id),
                grade=rows.grade,
                time=rows.extras.get(TIME),
            )


def open_judgments(path: Path, options: ReadOptions, quarantine: Quarantine) -> JudgmentSource:
    """Open one file of judgments; its suffix says whether it is a table, else it is TREC's text.

    Parameters
    ----------
    path
        The file.  Text may be compressed.
    options
        How grades are read, and how a table calls its columns.
    quarantine
        Where bad lines go.

    Raises
    ------
    InputError
        There is no such file.
    DataRejected
        The header breaks the rules; the batches raise it for judgments.
    """
    check_file(path)
    chosen = format_of(path)
    if chosen not in {"letor", "run"}:
        from rankmill.pipeline.judgments.judgment_files import TableJudgments

        return TableJudgments(path, chosen, options, quarantine)
    from rankmill.pipeline.judgments.judgment_files import TextJudgments

    return TextJudgments(path, options.grade_rules, quarantine)


_BLOCK_BYTES = 4 << 20  # a judgment is a short line: many at once take many times their text


def without_grades(read: ReadOptions, *, timed: bool) -> ReadOptions:
    """Return how to read rows whose grades come from judgments: theirs need not be there, and mean nothing.

    ``timed`` says whether the rows must have the times that ``read`` names a column for; else it may be there.
    """
    anything = {"max_grade": None, "negative_grades": "zero", "unjudged": "zero"}
    return replace(read, ungraded=True, time_optional=not timed, **cast("Any", anything))


def check_times_and_labels(
    how: Aggregate, sources: Sequence[Source], judgments: Sequence[JudgmentSource], time_column: str | None
) -> None:
    """Raise InputError if there is not what the aggregate ``how`` needs, or if it would make what is there already."""
    brought = sources[0].fields
    if how in WITH_LABEL and "label" in brought:
        raise InputError(
            f"--aggregate {how} stores the {how} as the column label, and {sources[0].path} has labels; leave them out, or take"
            " another aggregate"
        )
    if not judgments and "grade" not in brought:
        raise InputError(f"--aggregate {how} makes one grade of several; {sources[0].path} has no grades")
    if how != "latest":
        return
    if time_column is None:
        raise InputError("--aggregate latest goes by the times of judgments; name their column with --time-column")
    for source in judgments:
        if source.table is None:
            raise InputError(
                f"{source.path}: --aggregate latest goes by the times of judgments, and TREC's text has none; give a table"
            )
        if TIME not in source.table.column_of:
            raise InputError(
                f"{source.path}: no column {time_column!r}, which --time-column names; --aggregate latest goes by it"
            )


def read_judgments(
    sources: Sequence[JudgmentSource],
    spill: JudgmentSpill,
    block_bytes: int,
    done: Callable[[int, int], None] | None = None,
) -> None:
    """Spill the judgments of all files; calls ``done`` with (number of the file, bytes read of it) now and then."""
    for number, source in enumerate(sources):
        judgments = 0
        for batch in source.batches(min(block_bytes, _BLOCK_BYTES)):
            judgments += len(batch)
            spill.add(batch)
            if done is not None:
                done(number, source.position)
        if not judgments:
            raise DataRejected(f"{source.path}: no judgments in it")


def judgment_set(tally: Tally, files: Sequence[SourceFile], rejected: int) -> JudgmentSet:
    """Return the manifest's entry."""
    return JudgmentSet(
        judgments=tally.judgments,
        ungraded=tally.ungraded,
        without_row=tally.without_row,
        repeated=tally.repeated,
        conflicting=tally.conflicting,
        rejected=rejected,
        sources=sorted(files, key=lambda file: (file.name, file.sha256)),
    )
