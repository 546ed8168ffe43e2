"""Write judgments and preference pairs from clicks to a file that `data ingest` reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rankmill.clicks.judge import estimate_of, judge_documents
from rankmill.clicks.options import ClickEstimate, JudgeOptions, JudgmentForm
from rankmill.clicks.preferences import block_pairs
from rankmill.clicks.result_lists import ClickLog, LogBlock
from rankmill.clicks.table_files import ROW_GROUP_ROWS, TableWriter, columns_of
from rankmill.foundation.errors import DataRejected
from rankmill.foundation.options import spelled
from rankmill.foundation.records import left_out
from rankmill.foundation.storage.publish import check_new_file, publish_file
from rankmill.foundation.storage.staging import staging_folder
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.judgments.propensities import Propensities

# for an impression of a block; lists of 10 have 5 to 10 pairs for an impression at most
BYTES_OF_LABELS, BYTES_OF_PAIRS = 110, 400
_QUANTILES = (0.5, 0.75, 0.9, 0.97)
_TEXT, _REAL, _COUNT = pa.string(), pa.float64(), pa.int64()
_LABELS = columns_of(
    qid=_TEXT, doc_id=_TEXT, label=_REAL, weight=_REAL, impressions=_COUNT, clicks=_COUNT, variance=_REAL
)
_PAIRS = columns_of(qid=_TEXT, better=_TEXT, worse=_TEXT, weight=_REAL, probability=_REAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReport:
    """The result of :func:`write_judgments`.

    Attributes
    ----------
    form
        What was written.
    estimate
        How relevance was estimated; None for pairs.
    rows
        Judgments or pairs.
    queries, lists, impressions, clicks
        Of the log.
    thresholds
        Lowest labels of the grades from 1 on.
    per_grade
        Documents of each grade from 0 on.
    """

    path: Path
    form: JudgmentForm
    estimate: ClickEstimate | None
    rows: int
    queries: int
    lists: int
    impressions: int
    clicks: int
    thresholds: tuple[float, ...] | None = left_out()
    per_grade: tuple[int, ...] | None = left_out()

    def render(self) -> str:
        """Return the report as text."""
        what = "pairs" if self.form == "pairs" else f"judgments ({self.estimate})"
        text = (
            f"{self.path}: {self.rows:,} {what} of {self.queries:,} queries, from {self.clicks:,} clicks on"
            f" {self.impressions:,} impressions in {self.lists:,} result lists"
        )
        if self.thresholds is None or self.per_grade is None:
            return text
        bounds = ", ".join(f"{bound:.4g}" for bound in self.thresholds)
        counts = ", ".join(f"{grade}: {count:,}" for grade, count in enumerate(self.per_grade))
        return f"{text}\ngrades begin at labels {bounds}; documents by grade: {counts}"


def write_judgments(
    log: ClickLog,
    out: Path,
    options: JudgeOptions | None = None,
    propensities: Propensities | None = None,
    *,
    overwrite: bool = False,
) -> JudgeReport:
    """Write judgments or preference pairs to the Parquet file ``out``, in the order of the log.

    Memory: a block of the log and its pairs; for grades by quantiles 8 bytes a document more.

    Raises
    ------
    InputError
        As :func:`judge_documents`; or ``out`` does not end with .parquet, or exists and may not be replaced.
    DataRejected
        The log has no click, or nothing to write.
    """
    options = options or JudgeOptions()
    check_new_file(out, overwrite=overwrite, suffixes=(".parquet",))
    pairs = options.form == "pairs"
    estimate = None if pairs else estimate_of(options, propensities)
    tables = _pairs(log, options, propensities) if pairs else _labels(log, options, propensities)
    queries = lists = impressions = clicks = rows = 0
    grades: dict[str, Any] = {}
    with staging_folder(out) as staging:
        staged = staging / out.name
        with TableWriter(staged, _PAIRS if pairs else _LABELS) as writer:
            for block, table in tables:
                writer.write(table)
                rows += len(table)
                queries, lists = queries + len(block.queries), lists + len(block.lists.query)
                impressions += len(block.lists.rank)
                clicks += int(block.lists.clicked.sum())
        if rows == 0:
            raise DataRejected("no list has a clicked document and one that was not clicked, so there are no pairs")
        if options.form == "grades":
            staged, grades = staging / f"graded {out.name}", _grade(staged, staging / f"graded {out.name}", options)
        publish_file(staged, out)
    return JudgeReport(
        path=out,
        form=options.form,
        estimate=estimate,
        rows=rows,
        queries=queries,
        lists=lists,
        impressions=impressions,
        clicks=clicks,
        **grades,
    )


def _labels(
    log: ClickLog, options: JudgeOptions, propensities: Propensities | None
) -> Iterator[tuple[LogBlock, pa.Table]]:
    for block, judged in judge_documents(log, options, propensities):
        kept = np.flatnonzero(judged.impressions)
        query = np.searchsorted(block.document_start, kept, side="right") - 1
        columns = [block.queries.take(as_array(query)), block.documents.take(as_array(kept))]
        found = (judged.label, judged.weight, judged.impressions, judged.clicks, judged.variance)
        yield block, pa.Table.from_arrays([*columns, *(as_array(column[kept]) for column in found)], schema=_LABELS)


def _pairs(
    log: ClickLog, options: JudgeOptions, propensities: Propensities | None
) -> Iterator[tuple[LogBlock, pa.Table]]:
    if not any(block.lists.clicked.any() for block in log.blocks()):
        raise DataRejected("the log has no click, so there is nothing to judge by")
    for block in log.blocks():
        pairs = block_pairs(block, options, propensities)
        query = np.searchsorted(block.document_start, pairs.better, side="right") - 1
        columns = [
            block.queries.take(as_array(query)),
            block.documents.take(as_array(pairs.better)),
            block.documents.take(as_array(pairs.worse)),
            as_array(pairs.weight),
            as_array(pairs.probability),
        ]
        yield block, pa.Table.from_arrays(columns, schema=_PAIRS)


def _grade(labels: Path, out: Path, options: JudgeOptions) -> dict[str, Any]:
    """Write the labels with grades; return the facts about grades."""
    bounds = np.array(options.thresholds)
    if not len(bounds):
        every = pq.read_table(labels, columns=["label"]).column(0).to_numpy()
        bounds = np.quantile(every, options.quantiles or _QUANTILES, method="inverted_cdf")
        if (np.diff(bounds) <= 0.0).any():
            raise DataRejected(
                f"{spelled('quantiles')}: several have the label "
                f"{bounds[np.flatnonzero(np.diff(bounds) <= 0)[0]]:.4g}, so grades between them are"
                f" empty; use fewer, or {spelled('thresholds')}"
            )
    per_grade = np.zeros(len(bounds) + 1, dtype=np.int64)
    schema = pa.schema([*list(_LABELS)[:2], pa.field("grade", pa.int32(), nullable=False), *list(_LABELS)[2:]])
    with TableWriter(out, schema) as writer, pq.ParquetFile(labels) as file:
        for batch in file.iter_batches(ROW_GROUP_ROWS):
            grade = np.searchsorted(bounds, batch.column("label").to_numpy(), side="right")
            per_grade += np.bincount(grade, minlength=len(per_grade))
            table = pa.Table.from_batches([batch])
            writer.write(table.add_column(2, schema.field(2), as_array(grade.astype(np.int32))).cast(schema))
    return {"thresholds": tuple(bounds.tolist()), "per_grade": tuple(per_grade.tolist())}
