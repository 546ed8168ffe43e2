"""Runs and judgments (qrels) in the text formats of TREC, as trec_eval reads them: fields between any white space."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from scorer.errors import CandidatesRejected, InputError

_RUN_FIELDS = 6
_QRELS_FIELDS = 4
_GRADE_LIMIT = 2**31


def read_run(path: Path) -> pa.Table:
    """Read a run, ``qid Q0 doc_id rank score tag`` a line, into columns qid, doc_id (string) and score (float64).

    As in trec_eval the second field, the rank and the tag are ignored, and so is whatever follows the tag.  Empty lines
    are passed over.  Scores keep double precision, where trec_eval rounds them to float32: doubles that differ by less
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

    A grade may be below 0: such a document counts as not relevant (see `scorer.metrics.Policy`).

    Raises
    ------
    InputError
        There is no such file.
    CandidatesRejected
        A line breaks the format or judges a document again (named as file:line), or the file has no line.
    """
    qids: list[str] = []
    doc_ids: list[str] = []
    grades: list[int] = []
    line_of: dict[tuple[str, str], int] = {}
    for number, fields in _lines(path):
        if len(fields) != _QRELS_FIELDS:
            raise _malformed(path, number, "4 fields, 'qid iteration doc_id grade'", f"{len(fields)} fields")
        try:
            grade = int(fields[3])
        except ValueError:
            grade = _GRADE_LIMIT
        if not -_GRADE_LIMIT < grade < _GRADE_LIMIT:
            raise _malformed(path, number, "a whole number as grade in field 4", repr(fields[3]))
        first = line_of.setdefault((fields[0], fields[2]), number)
        if first != number:
            found = f"{fields[2]!r} of query {fields[0]!r} again (first in line {first})"
            raise _malformed(path, number, "each document judged once a query", found)
        qids.append(fields[0])
        doc_ids.append(fields[2])
        grades.append(grade)
    if not qids:
        raise CandidatesRejected(f"{path}: expected lines 'qid iteration doc_id grade', found an empty file")
    return pa.table(
        {
            "qid": pa.array(qids, pa.string()),
            "doc_id": pa.array(doc_ids, pa.string()),
            "grade": pa.array(grades, pa.int32()),
        }
    )


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number from 1, fields) of the lines that are not empty."""
    try:
        lines = path.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: expected a file, found a folder") from None
    with lines:
        for number, line in enumerate(lines, start=1):
            try:
                fields = [field.decode("utf-8") for field in line.split()]
            except UnicodeDecodeError:
                raise _malformed(path, number, "UTF-8 text", "other bytes") from None
            if fields:
                yield number, fields


def _malformed(path: Path, line: int, expected: str, found: str) -> CandidatesRejected:
    return CandidatesRejected(f"{path}:{line}: expected {expected}, found {found}")
