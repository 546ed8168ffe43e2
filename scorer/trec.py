"""Runs and judgments (qrels) in the text formats of TREC, as trec_eval reads them: fields between any white space."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.errors import CandidatesRejected, DataRejected, InputError
from rankmill.pipeline.arrow import schema_of
from rankmill.pipeline.judgments.judgment_files import FORM, judgment_lines
from rankmill.pipeline.sources.batch import DEFAULT_BLOCK_BYTES
from rankmill.pipeline.sources.blocks import read_blocks

if TYPE_CHECKING:
    from rankmill.pipeline.judgments.judgment_files import JudgmentLines

_RUN_FIELDS = 6
_QRELS_FIELDS = 4
_GRADE_FIELD = 3
_JUDGED = schema_of([("qid", pa.string(), True), ("doc_id", pa.string(), True), ("grade", pa.int32(), True)])
_GRADE_LIMIT = 2**31


def read_run(path: Path) -> pa.Table:
    """Read a run, ``qid Q0 doc_id rank score tag`` a line, into columns qid, doc_id (string) and score (float64).

    As in trec_eval the second field, the rank and the tag are ignored, and so is whatever follows the tag.  Empty lines
    are passed over, and the text may be compressed.  Scores keep double precision, where trec_eval rounds them to float32: doubles that differ by less
    tie there and not here.

    Raises
    ------
    InputError
        There is no such file.
    CandidatesRejected
        A line breaks the format (named as file:line), or the file has no line.
    """
    qids: list[str] = []
    doc_ids: list[str] = []
    scores: list[float] = []
    for number, fields in _lines(path):
        if len(fields) < _RUN_FIELDS:
            raise _malformed(path, number, "6 fields, 'qid Q0 doc_id rank score tag'", f"{len(fields)} fields")
        try:
            score = float(fields[4])
        except ValueError:
            raise _malformed(path, number, "a score in field 5", repr(fields[4])) from None
        if math.isnan(score):
            raise _malformed(path, number, "a score that is a number in field 5", repr(fields[4]))
        qids.append(fields[0])
        doc_ids.append(fields[2])
        scores.append(score)
    if not qids:
        raise CandidatesRejected(f"{path}: expected lines 'qid Q0 doc_id rank score tag', found an empty file")
    return pa.table(
        {
            "qid": pa.array(qids, pa.string()),
            "doc_id": pa.array(doc_ids, pa.string()),
            "score": pa.array(scores, pa.float64()),
        }
    )


def read_qrels(path: Path) -> pa.Table:
    """Read judgments, ``qid iteration doc_id grade`` a line, into columns qid, doc_id (string) and grade (int32).

    The text may be compressed.  A grade may be below 0: such a document counts as not relevant (see `rankmill.scorer.metrics.Policy`).

    Raises
    ------
    InputError
        There is no such file.
    CandidatesRejected
        A line breaks the format or judges a document again (named as file:line:column), or the file has no line.
    """
    _check_file(path)
    parts = []
    try:
        for lines, _ in judgment_lines(path):
            parts.append(_judgments(path, lines))
    except DataRejected as error:
        raise CandidatesRejected(str(error)) from None
    judged = pl.concat(parts) if parts else pl.DataFrame()
    if judged.is_empty():
        raise CandidatesRejected(f"{path}: expected lines 'qid iteration doc_id grade', found an empty file")
    again = judged.filter(pl.struct("qid", "doc_id").is_duplicated())
    if len(again):
        again = again.with_columns(first=pl.col("line").min().over("qid", "doc_id")).filter(
            pl.col("line") > pl.col("first")
        )
        qid, doc_id, _, line, first = again.sort("line").row(0)
        found = f"{doc_id!r} of query {qid!r} again (first in line {first})"
        raise _malformed(path, line, "each document judged once a query", found)
    return judged.select("qid", "doc_id", "grade").to_arrow().cast(_JUDGED)


def _judgments(path: Path, lines: JudgmentLines) -> pl.DataFrame:
    """Return qid, doc_id, grade and line of each of some lines; MalformedLine names the first that is no judgment."""
    complete = lines.words == _QRELS_FIELDS
    whole = pc.match_substring_regex(lines.grade, r"^[+-]?[0-9]+$").fill_null(fill_value=False)
    grade = pc.if_else(whole, lines.grade, pa.scalar(str(_GRADE_LIMIT))).cast(pa.float64()).to_numpy()
    good = complete & (np.abs(grade) < _GRADE_LIMIT)
    for row in np.flatnonzero(~good)[:1].tolist():
        if complete[row]:
            raise lines.error(path, row, _GRADE_FIELD, "a whole number as grade")[0]
        raise lines.error(path, row, -1, FORM)[0]
    return pl.DataFrame(
        {
            "qid": pl.Series(lines.qid, dtype=pl.String),
            "doc_id": pl.Series(lines.doc_id, dtype=pl.String),
            "grade": grade.astype(np.int32),
            "line": lines.line,
        }
    )


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path}: expected a file, found a folder")
    if not path.is_file():
        raise InputError(f"{path}: no such file")


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number from 1, fields) of the lines that are not empty."""
    _check_file(path)
    try:
        for block in read_blocks(path, DEFAULT_BLOCK_BYTES):
            lines = bytes(block.data[block.start : block.stop]).split(b"\n")
            for number, line in enumerate(lines, start=block.first_line):
                if fields := [field.decode() for field in line.split()]:
                    yield number, fields
    except DataRejected as error:
        raise CandidatesRejected(str(error)) from None


def _malformed(path: Path, line: int, expected: str, found: str) -> CandidatesRejected:
    return CandidatesRejected(f"{path}:{line}: expected {expected}, found {found}")
