r"""Make judgments from clicks: how relevant each document of a log is, how sure that is, and which documents are preferred.

A document d was shown n times, at ranks k_i, with the value c_i of its click (0: none).  Examination is alpha_k, the trust in a rank is
beta_k, and a and m are the strength and the mean of a prior: a impressions of an average document.  The estimates are

    dctr    (sum c_i + a m) / (n + a): the click-through rate of the document
    coec    (sum c_i + a m) / (sum r_i + a m): clicks over expected clicks, r_k the click-through rate of all documents at rank k
    pbm     the gamma with the greatest posterior probability under P(c_i = 1) = alpha_i gamma, prior Beta(a m + 1, a (1 - m) + 1)
    ips     (1 / n) sum (c_i - beta_i) / max(alpha_i, tau): inverse propensity, clipped at tau
    snips   ips, divided by the mean weight of a click of the query, so that it does not depend on the scale of alpha
    dr      y + (1 / n) sum (c_i - beta_i - alpha_i y) / max(alpha_i, tau), with the shrunken estimate
            y = (sum (c_i - beta_i) + a m) / (sum alpha_i + a): what clipping takes from ips is filled in by y (Oosterhuis 2022)

Each has a variance, from that of the clicks given the estimate.  The weight of a judgment is v / (v + variance), v being the variance that
the prior gives to relevance: the share of the variance of estimates that is not noise.  It is below 1, the weight of a person's judgment.

Sources: Zhang and Jones 2007 (coec), Joachims et al. 2017 (ips), Swaminathan and Joachims 2015 (snips), Vardasbi et al. 2020 (beta).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rankmill.foundation.errors import DataRejected, InputError
from rankmill.foundation.options import spelled
from rankmill.foundation.records import as_json, left_out, not_in_json
from rankmill.foundation.storage.publish import publish_file
from rankmill.foundation.storage.staging import staging_folder
from rankmill.pipeline.arrow import as_array, schema_of
from rankmill.pipeline.clicks.judge_options import WITHOUT_PROPENSITIES, ClickEstimate, JudgeOptions, JudgmentForm
from rankmill.pipeline.clicks.models import _kernels as kernels
from rankmill.pipeline.clicks.propensities import Propensities
from rankmill.pipeline.clicks.result_lists import ClickLog, LogBlock
from rankmill.pipeline.clicks.weighted_clicks import ClickTotals, Counts, Floats, log_totals, summed_by, weighted_clicks
from rankmill.pipeline.grouping.shard_writer import open_writer

_ROW_GROUP_ROWS = 1 << 18
_QUANTILES = (0.5, 0.75, 0.9, 0.97)
_LABELS = schema_of(
    [
        ("qid", pa.string(), False),
        ("doc_id", pa.string(), False),
        ("label", pa.float64(), False),
        ("weight", pa.float64(), False),
        ("impressions", pa.int64(), False),
        ("clicks", pa.int64(), False),
        ("variance", pa.float64(), False),
    ]
)


class JudgedDocuments(NamedTuple):
    """Estimates for the documents of a block, in its order; NaN for documents that were never shown."""

    label: Floats
    """(documents,)"""
    variance: Floats
    """(documents,)"""
    weight: Floats
    """(documents,) from 0 to below 1."""
    impressions: Counts
    """(documents,)"""
    clicks: Counts
    """(documents,) also those that count nothing."""


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
                f"left out: {self.too_few.documents:,} documents with fewer than {self.options.min_impressions:,} impressions"
            )
        if self.thresholds is not None and self.per_grade is not None:
            bounds = ", ".join(f"{bound:.4g}" for bound in self.thresholds)
            counts = ", ".join(f"{grade}: {count:,}" for grade, count in enumerate(self.per_grade))
            lines.append(f"grades begin at labels {bounds}; documents by grade: {counts}")
        if self.uncertain is not None and self.uncertain.documents:
            lines.append(f"left out: {self.uncertain.documents:,} documents whose grade is uncertain")
        return "\n".join(lines)

    def to_json(self) -> Any:
        """Return the report as JSON values."""
        return as_json(self)


def estimate_of(options: JudgeOptions, propensities: Propensities | None) -> ClickEstimate:
    """Return the estimate that ``options`` choose; InputError if it does not go with the propensities."""
    estimate = options.estimate or ("dctr" if propensities is None else "pbm")
    if estimate in WITHOUT_PROPENSITIES and propensities is not None:
        raise InputError(
            f"{spelled('estimate')} {estimate} does not use {spelled('propensities')}; leave it out, or estimate pbm"
        )
    if estimate == "pbm" and options.weighting.conversion_weight > 0.0:
        raise InputError(
            f"{spelled('estimate')} pbm models clicks, which happen or not; {spelled('conversion_weight')} goes with ips, snips or dr"
        )
    if estimate == "pbm" and propensities is not None and propensities.trust is not None:
        raise InputError(
            f"{spelled('estimate')} pbm has no trust in ranks, which these propensities have; use ips, snips or dr"
        )
    return estimate


def judge_documents(
    log: ClickLog, options: JudgeOptions | None = None, propensities: Propensities | None = None
) -> Iterator[tuple[LogBlock, JudgedDocuments]]:
    """Yield each block of ``log`` with the estimates for its documents; the log is read twice.

    Raises
    ------
    InputError
        Options do not go together, or with the log.
    DataRejected
        No click of the log counts.
    """
    options = options or JudgeOptions()
    estimate = estimate_of(options, propensities)
    corrected = estimate not in WITHOUT_PROPENSITIES
    totals = log_totals(log, options.weighting, propensities, corrected=corrected)
    for block in log.blocks():
        yield block, _judged(block, options, propensities, estimate, totals)


def _judged(
    block: LogBlock,
    options: JudgeOptions,
    propensities: Propensities | None,
    estimate: ClickEstimate,
    totals: ClickTotals,
) -> JudgedDocuments:
    document, n = block.lists.document, len(block.documents)
    weighted = weighted_clicks(block, options.weighting, propensities, corrected=estimate not in WITHOUT_PROPENSITIES)
    impressions = np.bincount(document, minlength=n)
    clicks = np.bincount(document[block.lists.clicked > 0], minlength=n)
    shown = impressions.astype(np.float64)
    value, a = summed_by(document, weighted.value, n), options.shrinkage
    prior: Floats | float
    noisy = max(a, 1.0)  # a document without clicks is not certainly irrelevant
    with np.errstate(divide="ignore", invalid="ignore"):
        if estimate in WITHOUT_PROPENSITIES:
            m = totals.mean
            label = (value + a * m) / (shown + a)
            variance = totals.spreads((value + noisy * m) / (shown + noisy)) / (shown + a + 1.0)
            prior = totals.spread(m) / (a + 1.0)
            if estimate == "coec":
                rate = np.append(totals.rate, 0.0)[np.minimum(block.lists.rank, len(totals.rate)) - 1]
                expected = summed_by(document, rate, n) + a * m
                variance *= ((shown + a) / expected) ** 2
                label = (value + a * m) / expected
                prior /= m * m
        else:
            m = totals.relevance
            examined = summed_by(document, weighted.alpha, n)
            trusted = summed_by(document, weighted.beta, n)
            y = np.maximum((value - trusted + a * m) / (examined + a), 0.0)
            prior = totals.spread(m) / (a + 1.0)
            if estimate == "pbm":
                label, variance = _position_based(document, weighted.alpha, weighted.value, (a * m, a * (1.0 - m)), n)
            else:
                likely = np.maximum((value - trusted + noisy * m) / (examined + noisy), 0.0)
                chance = np.clip(weighted.alpha * likely[document] + weighted.beta, 0.0, 1.0)
                noise = totals.spreads(chance) / weighted.divisor**2
                variance = summed_by(document, noise, n) / (shown * shown)
                label = summed_by(document, weighted.corrected, n) / shown
                if estimate == "dr":
                    label += y * (1.0 - summed_by(document, weighted.alpha / weighted.divisor, n) / shown)
                if estimate == "snips":
                    scale = _mean_weight(block, weighted.value - weighted.beta, weighted.corrected, totals)
                    label, variance, prior = label / scale, variance / scale**2, prior / scale**2
    label = np.where(impressions > 0, label, np.nan)
    return JudgedDocuments(label, variance, prior / (prior + variance), impressions, clicks)


def _position_based(
    document: Counts, alpha: Floats, clicked: Floats, prior: tuple[float, float], n: int
) -> tuple[Floats, Floats]:
    """Return the mode of each document's posterior and its variance, the inverse of the curvature there, (n,)."""
    order = np.lexsort((alpha, document))
    of, theta, clicks = document[order], alpha[order], (clicked[order] > 0.0).astype(np.float64)
    first = np.flatnonzero(np.concatenate([[True], (np.diff(of) != 0) | (np.diff(theta) != 0)])) if len(of) else order
    shown = np.diff(np.append(first, len(of))).astype(np.float64)
    of, theta, clicks = of[first], theta[first], np.add.reduceat(clicks, first) if len(first) else clicks
    gamma = np.full(n, np.nan)
    kernels.relevance_given(of, theta, shown, clicks, np.array(prior), gamma)
    skipped = (shown - clicks) * (theta / (1.0 - theta * gamma[of])) ** 2
    curvature = (summed_by(of, clicks, n) + prior[0]) / gamma**2 + summed_by(of, skipped, n)
    return gamma, 1.0 / (curvature + prior[1] / (1.0 - gamma) ** 2)


def _mean_weight(block: LogBlock, value: Floats, corrected: Floats, totals: ClickTotals) -> Floats:
    """Return for each document the mean weight of a click of its query; of the log for queries without clicks."""
    sizes = np.diff(block.document_start)
    query = np.repeat(np.arange(len(sizes)), sizes)
    sums = [summed_by(query[block.lists.document], column, len(sizes)) for column in (corrected, value)]
    usable = (sums[0] > 0.0) & (sums[1] > 0.0)
    whole = max(totals.corrected, 1e-9) / max(totals.value - totals.trusted, 1e-9)
    scale: Floats = np.where(usable, sums[0] / np.where(usable, sums[1], 1.0), whole)
    return scale[query]


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
    check_table_path(out, overwrite=overwrite)
    if options.form == "pairs":
        from rankmill.pipeline.clicks.preferences import write_pairs

        return write_pairs(log, out, options, propensities)
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
                    f"the grade of no document is certain; raise {spelled('shrinkage')}, lower {spelled('certainty')}, or use fewer grades"
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
                f"{spelled('quantiles')}: several have the label {bounds[np.flatnonzero(np.diff(bounds) <= 0)[0]]:.4g}, so grades between them are"
                f" empty; use fewer, or {spelled('thresholds')}"
            )
    per_grade, uncertain = np.zeros(len(bounds) + 1, dtype=np.int64), LeftOut()
    schema = pa.schema([*list(_LABELS)[:2], pa.field("grade", pa.int32(), nullable=False), *list(_LABELS)[2:]])
    with TableWriter(out, schema) as writer, pq.ParquetFile(labels) as file:
        for batch in file.iter_batches(_ROW_GROUP_ROWS):
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


class TableWriter:
    """Writes tables to a Parquet file in row groups of a fixed size, so that its bytes do not depend on how the rows arrive."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._writer = open_writer(path, schema)
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None and self._rows:
            self._writer.write_table(pa.concat_tables(self._waiting).combine_chunks())
        self._writer.close()

    def write(self, table: pa.Table) -> None:
        """Add rows."""
        self._waiting.append(table)
        self._rows += len(table)
        if self._rows >= _ROW_GROUP_ROWS:
            whole = pa.concat_tables(self._waiting)
            full = self._rows // _ROW_GROUP_ROWS * _ROW_GROUP_ROWS
            for first in range(0, full, _ROW_GROUP_ROWS):
                self._writer.write_table(whole.slice(first, _ROW_GROUP_ROWS).combine_chunks())
            self._waiting, self._rows = [whole.slice(full).combine_chunks()], self._rows - full


def check_table_path(path: Path, *, overwrite: bool) -> None:
    """Raise InputError if no Parquet file can be written to ``path``."""
    if path.suffix != ".parquet":
        raise InputError(f"{path}: the file is Parquet; name it .parquet")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file")
    if path.exists() and not overwrite:
        raise InputError(f"{path}: already exists; choose another name, or replace it with {spelled('overwrite')}")
