"""Read judgments from separate files (TREC qrels or tables), spill them by query, and describe them in the manifest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from rankmill.foundation.cures import spelled_with
from rankmill.foundation.errors import InputError
from rankmill.foundation.options import spelled
from rankmill.pipeline.arrow import as_array, schema_of
from rankmill.pipeline.dataset.manifest import JudgmentSet, Tally
from rankmill.pipeline.options import DEFAULT_BLOCK_BYTES, WITH_LABEL, ReadOptions
from rankmill.pipeline.read.batch import Quarantine
from rankmill.pipeline.read.column_roles import OF_JUDGMENTS
from rankmill.pipeline.read.grades import GradeRules, can_be_grades
from rankmill.pipeline.read.open_source import NarrowFile
from rankmill.pipeline.read.role_columns import read_parts
from rankmill.pipeline.read.times import TIME
from rankmill.pipeline.read.words import QRELS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rankmill.pipeline.dataset.manifest import SourceFile
    from rankmill.pipeline.options import Aggregate, ReadOptions
    from rankmill.pipeline.read.batch import Quarantine, Source


SPILLED = schema_of(
    [
        ("qid", pa.string(), False),
        ("doc_id", pa.string(), False),
        ("grade", pa.int32(), False),
        ("time", pa.int64(), True),
    ]
)
"""Schema of spilled judgments without labels and weights."""


def spilled_columns(judgments: Sequence[JudgmentFile]) -> pa.Schema:
    """Return the schema of spilled judgments of these files.

    It has labels and weights if any file has them. A judgment without weight has weight 1.
    """
    schema = SPILLED
    for name in OF_JUDGMENTS:
        if any(name in source.extras for source in judgments):
            schema = schema.append(pa.field(name, pa.float64(), nullable=False))
    return schema


class JudgmentFile:
    """One file of judgments; other columns of a table, such as the name of the judge, are skipped.

    Attributes
    ----------
    table
        The roles of its columns; None for TREC qrels.
    extras
        Its optional columns, of `rankmill.pipeline.read.column_roles.OF_JUDGMENTS`.
    labels_are_grades
        Whether the file has labels without grades, and those read so far can be grades.
    """

    holds = "judgments"

    def __init__(self, path: Path, options: ReadOptions, quarantine: Quarantine) -> None:
        """Open ``path``; ``options`` say how to read grades, and malformed rows go to ``quarantine``.

        Raises
        ------
        InputError
            The file does not exist.
        DataRejected
            The header is invalid; reading the batches raises it for invalid judgments.
        """
        self.path = path
        self._file = NarrowFile(path, QRELS, quarantine, replace(options, judgments_alone=True))
        self._rules = GradeRules.of(options)
        self._max_grade = options.max_grade
        self.table = self._file.table
        columns = () if self.table is None else self.table.column_of
        self.extras = tuple(name for name in OF_JUDGMENTS if name in columns)
        self.labels_are_grades = self.table is not None and "grade" not in columns

    @property
    def position(self) -> int:
        """Number of bytes of the file read so far; may stay 0 if unknown."""
        return self._file.position

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[pa.RecordBatch]:
        """Yield the judgments in the order of the file.

        Columns are ``qid``, ``doc_id``, ``grade``, and ``time``, ``label`` and ``weight`` if it has them.

        Ids are never null or empty; a missing grade is `rankmill.pipeline.read.grades.UNKNOWN_GRADE`; times are
        microseconds since 1970 UTC.
        """
        for rows in self._file.rows(min(block_bytes, _BLOCK_BYTES)):
            found = read_parts(rows.columns, rows.problems, needed=("qid", "doc_id"), rules=self._rules)
            rows.reject(rows.problems)
            keep = rows.problems.keep
            kept = as_array(np.flatnonzero(keep))
            numbers = {name: found[name][keep] for name in ("grade", TIME, *OF_JUDGMENTS) if name in found}
            if "grade" not in found:
                self.labels_are_grades &= bool(can_be_grades(numbers["label"], self._max_grade).all())
                numbers = {"grade": np.zeros(len(kept), dtype=np.int32), **numbers}
            ids = {name: found[name].take(kept) for name in ("qid", "doc_id")}
            yield pa.RecordBatch.from_pydict(ids | {name: as_array(column) for name, column in numbers.items()})


_BLOCK_BYTES = 4 << 20  # small, as parsed judgments take many times the memory of their short lines


def without_grades(read: ReadOptions, *, timed: bool) -> ReadOptions:
    """Return the options for rows whose grades come from judgments: their own grades are optional and ignored.

    ``timed``: whether the column of times that ``read`` names is required in the rows; otherwise it is optional.
    """
    anything = {"max_grade": None, "negative_grades": "zero", "unjudged": "zero"}
    return replace(
        read,
        ungraded=True,
        columns_elsewhere=True,
        time_optional=not timed,
        of_goals=read,
        **cast("Any", anything),
    )


def check_labels_and_weights(
    sources: Sequence[Source], judgments: Sequence[JudgmentFile], how: Aggregate | None
) -> None:
    """Raise InputError if ``how`` does not apply to the labels and weights of judgments and rows.

    Labels belong to all judgments or none, and rows may not have labels or weights too.
    """
    for name in OF_JUDGMENTS:
        having = [source for source in judgments if name in source.extras]
        if having and name in sources[0].fields:
            raise InputError(
                f"{having[0].path} has the column {name}, and {sources[0].path} has it already; remove one of the two"
            )
    with_label = [source for source in judgments if "label" in source.extras]
    without = [source for source in judgments if "label" not in source.extras]
    if with_label and without:
        raise InputError(
            f"{with_label[0].path} has labels, {without[0].path} has none; to use the grades of both: "
            f"{spelled_with('columns', {'label': ''})}"
        )
    if with_label and how == "majority":
        raise InputError(
            f"{spelled('aggregate')} majority counts grades; {with_label[0].path} has labels; to ignore them: "
            f"{spelled_with('columns', {'label': ''})}"
        )


def check_times_and_labels(
    how: Aggregate, sources: Sequence[Source], judgments: Sequence[JudgmentFile], time_column: str | None
) -> None:
    """Raise InputError if the aggregate ``how`` needs missing times, or would replace existing labels."""
    brought = sources[0].fields
    if how in WITH_LABEL and "label" in brought:
        raise InputError(
            f"{spelled('aggregate')} {how} stores the {how} as the column label, and {sources[0].path}"
            " already has labels; remove them, or use another value"
        )
    if not judgments and "grade" not in brought:
        raise InputError(f"{spelled('aggregate')} {how} combines grades; {sources[0].path} has no grades")
    if how != "latest":
        return
    if time_column is None:
        raise InputError(
            f"{spelled('aggregate')} latest needs the times of judgments; name their column with"
            f" {spelled('time_column')}"
        )
    for source in judgments:
        if source.table is None:
            raise InputError(
                f"{source.path}: {spelled('aggregate')} latest needs the times of judgments, and TREC"
                " qrels have none; use a table with times"
            )
        if TIME not in source.table.column_of:
            raise InputError(
                f"{source.path}: no column {time_column!r}, which {spelled('time_column')} names;"
                f" {spelled('aggregate')} latest needs it"
            )


def judgment_set(tally: Tally, files: Sequence[SourceFile], rejected: int) -> JudgmentSet:
    """Return the manifest's entry."""
    names = ("judgments", "ungraded", "without_row", "repeated", "conflicting")
    counts = {name: getattr(tally, name) for name in names}
    return JudgmentSet(**counts, rejected=rejected, sources=sorted(files, key=lambda file: (file.name, file.sha256)))
