"""Write judgments and preference pairs from clicks to a file that `data ingest` reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rankmill.clicks.judge import JudgedDocuments, estimate_of, judge_documents
from rankmill.clicks.options import ClickEstimate, JudgeOptions, JudgmentForm
from rankmill.clicks.preferences import block_pairs
from rankmill.clicks.result_lists import ClickLog, LogBlock
from rankmill.clicks.table_files import ROW_GROUP_ROWS, TableWriter, columns_of
from rankmill.clicks.weighted_clicks import Counts, log_totals
from rankmill.foundation.errors import DataRejected
from rankmill.foundation.options import spelled
from rankmill.foundation.records import left_out, not_in_json
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
class LeftOut:
    """Documents of a log that have no judgment."""

    documents: int = 0
    impressions: int = 0
    clicks: int = 0

    def __add__(self, other: LeftOut) -> LeftOut:
        return LeftOut(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


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
    too_few
        Documents that were shown less often than required.
    uncertain
        Documents whose grade is not certain.
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
    too_few: LeftOut
    uncertain: LeftOut | None = left_out()
    thresholds: tuple[float, ...] | None = left_out()
    per_grade: tuple[int, ...] | None = left_out()
    options: JudgeOptions = not_in_json(default_factory=JudgeOptions)

    def render(self) -> str:
        """Return the report as text."""
        what = "pairs" if self.form == "pairs" else f"judgments ({self.estimate})"
        lines = [
            f"{self.path}: {self.rows:,} {what} of {self.queries:,} queries, from {self.clicks:,} clicks on"
            f" {self.impressions:,} impressions in {self.lists:,} result lists"
        ]
        if self.too_few.documents:
            lines.append(
                f"left out: {self.too_few.documents:,} documents with fewer than {self.options.min_impressions:,} "
                "impressions"
            )
        if self.thresholds is not None and self.per_grade is not None:
            bounds = ", ".join(f"{bound:.4g}" for bound in self.thresholds)
            counts = ", ".join(f"{grade}: {count:,}" for grade, count in enumerate(self.per_grade))
            lines.append(f"grades begin at labels {bounds}; documents by grade: {counts}")
        if self.uncertain is not None and self.uncertain.documents:
            lines.append(f"left out: {self.uncertain.documents:,} documents whose grade is uncertain")
        return "\n".join(lines)


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
        No click of the log counts, or nothing is left to write.
    """
    options = options or JudgeOptions()
    check_new_file(out, overwrite=overwrite, suffixes=(".parquet",))
    if options.form == "pairs":
        return _write_pairs(log, out, options, propensities)
    estimate = estimate_of(options, propensities)
    queries = lists = rows = 0
    too_few, impressions, clicks = LeftOut(), 0, 0
    with staging_folder(out) as staging:
        staged = staging / out.name
        with TableWriter(staged, _LABELS) as writer:
            for block, judged in judge_documents(log, options, propensities):
                queries, lists = queries + len(block.queries), lists + len(block.lists.query)
                impressions, clicks = impressions + len(block.lists.rank), clicks + int(judged.clicks.sum())
                seen = judged.impressions > 0
                kept = judged.impressions >= options.min_impressions
                too_few += _counted(judged.impressions, judged.clicks, seen & ~kept)
                writer.write(_table(block, judged, np.flatnonzero(kept)))
                rows += int(kept.sum())
        if rows == 0:
            raise DataRejected(
                f"no document was shown {options.min_impressions:,} times; lower {spelled('min_impressions')}"
            )
        facts: dict[str, Any] = {}
        if options.form == "grades":
            graded = staging / f"graded {out.name}"
            facts = _grade(staged, graded, options)
            staged, rows = graded, sum(facts["per_grade"])
            if rows == 0:
                raise DataRejected(
                    f"the grade of no document is certain; raise {spelled('shrinkage')}, lower "
                    f"{spelled('certainty')}, or use fewer grades"
                )
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
        too_few=too_few,
        options=options,
        **facts,
    )


def _write_pairs(log: ClickLog, out: Path, options: JudgeOptions, propensities: Propensities | None) -> JudgeReport:
    """Write the preference pairs of ``log``."""
    totals = log_totals(log, options.weighting, propensities, corrected=propensities is not None)
    rows = queries = 0
    too_few = LeftOut()
    with staging_folder(out) as staging:
        staged = staging / out.name
        with TableWriter(staged, _PAIRS) as writer:
            for block in log.blocks():
                queries += len(block.queries)
                document = block.lists.document
                shown = np.bincount(document, minlength=len(block.documents))
                rare = (shown > 0) & (shown < options.min_impressions)
                too_few += LeftOut(
                    documents=int(rare.sum()),
                    impressions=int(shown[rare].sum()),
                    clicks=int(block.lists.clicked[rare[document]].sum()),
                )
                pairs = block_pairs(block, options, propensities)
                query = np.searchsorted(block.document_start, pairs.better, side="right") - 1
                columns = [
                    block.queries.take(as_array(query)),
                    block.documents.take(as_array(pairs.better)),
                    block.documents.take(as_array(pairs.worse)),
                    as_array(pairs.weight),
                    as_array(pairs.probability),
                ]
                writer.write(pa.Table.from_arrays(columns, schema=_PAIRS))
                rows += len(pairs.better)
        if rows == 0:
            raise DataRejected("no list has a clicked document and one that was not clicked, so there are no pairs")
        publish_file(staged, out)
    return JudgeReport(
        path=out,
        form="pairs",
        estimate=None,
        rows=rows,
        queries=queries,
        lists=totals.lists,
        impressions=totals.impressions,
        clicks=totals.clicks,
        too_few=too_few,
        options=options,
    )


def _counted(impressions: Counts, clicks: Counts, which: npt.NDArray[np.bool_]) -> LeftOut:
    return LeftOut(
        documents=int(which.sum()), impressions=int(impressions[which].sum()), clicks=int(clicks[which].sum())
    )


def _table(block: LogBlock, judged: JudgedDocuments, kept: npt.NDArray[np.int64]) -> pa.Table:
    query = np.searchsorted(block.document_start, kept, side="right") - 1
    columns = [block.queries.take(as_array(query)), block.documents.take(as_array(kept))]
    found = (judged.label, judged.weight, judged.impressions, judged.clicks, judged.variance)
    return pa.Table.from_arrays([*columns, *(as_array(column[kept]) for column in found)], schema=_LABELS)


def _grade(labels: Path, out: Path, options: JudgeOptions) -> dict[str, Any]:
    """Write the labels with grades, without uncertain ones; return the facts about grades."""
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
    per_grade, uncertain = np.zeros(len(bounds) + 1, dtype=np.int64), LeftOut()
    schema = pa.schema([*list(_LABELS)[:2], pa.field("grade", pa.int32(), nullable=False), *list(_LABELS)[2:]])
    with TableWriter(out, schema) as writer, pq.ParquetFile(labels) as file:
        for batch in file.iter_batches(ROW_GROUP_ROWS):
            label, variance, impressions, clicks = (
                batch.column(name).to_numpy() for name in ("label", "variance", "impressions", "clicks")
            )
            reach = options.certainty * np.sqrt(variance)
            lowest, grade, highest = (
                np.searchsorted(bounds, each, side="right") for each in (label - reach, label, label + reach)
            )
            sure = highest - lowest <= 1
            uncertain += _counted(impressions, clicks, ~sure)
            per_grade += np.bincount(grade[sure], minlength=len(per_grade))
            table = pa.Table.from_batches([batch])
            table = table.add_column(2, schema.field(2), as_array(grade.astype(np.int32)))
            writer.write(table.take(as_array(np.flatnonzero(sure))).cast(schema))
    return {"thresholds": tuple(bounds.tolist()), "per_grade": tuple(per_grade.tolist()), "uncertain": uncertain}
