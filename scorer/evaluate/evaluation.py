"""The result of an evaluation, as text, HTML and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.notebook_html import HtmlTable, card
from rankmill.foundation.records import as_json
from rankmill.foundation.terminal import labelled, text_table
from rankmill.pipeline.read.grades import note_on_gains
from rankmill.scorer.evaluate.train_test_overlap import Scope
from rankmill.scorer.metrics import Metric, Policy
from rankmill.scorer.metrics.conventions import Convention
from rankmill.scorer.metrics.per_query import mean_of

IDEAL_WORDS = {
    "list": "the scored documents of the query",
    "qrels": "all judged documents of the query, retrieved or not",
    "grade counts": "the whole candidate list of the query, of which the top was kept",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationCounts:
    """Counts of unusual queries that a mean over queries hides."""

    n_queries: int
    n_documents: int
    n_nothing_relevant: int  # queries without a grade above 0
    n_below_relevant_from: int  # queries without a grade of at least the policy's relevant_from
    n_single_document: int
    n_one_grade: int  # queries of two documents or more that all have the same grade
    n_tied_documents: int  # documents that share their score with another one of the query
    n_unjudged_documents: int  # scored documents without a grade, counted as grade 0
    n_unjudged_queries: int  # scored queries without judgments, left out
    n_missing_queries: int  # judged queries that were not scored
    n_cut_queries: int = 0  # queries cut to the top k, whose other documents are known by grade counts
    fewest_kept: int | None = None  # documents kept of the shortest such query
    tied_share: float  # of all documents


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgedQueries:
    """Facts about each query besides its metrics, (q,) each.

    Attributes
    ----------
    n_documents
        int64: documents of the whole known list, including those cut off.
    n_known, n_relevant
        int64: documents in the query's ideal list; those of them with a grade of at least the policy's
        ``relevant_from``.
    ideal
        uint64: a digest of these documents' grades above 0, equal for equal ideal lists.
    grades
        (g,) int32: the different grades of all these documents.
    """

    n_documents: npt.NDArray[np.int64]
    n_known: npt.NDArray[np.int64]
    n_relevant: npt.NDArray[np.int64]
    ideal: npt.NDArray[np.uint64]
    grades: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean, None if no query counts, its 95 % interval (or None), and the number of queries that count."""

    mean: float | None
    interval: tuple[float, float] | None
    n_queries: int

    def cell(self) -> str:
        """Return it for a table."""
        if self.mean is None:
            return "none counts"
        limits = f" ({self.interval[0]:.4f} to {self.interval[1]:.4f})" if self.interval else ""
        return f"{self.mean:.4f}{limits}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The queries of one slice. ``limits`` are the minimum and maximum of a slice of numbers, None if infinite."""

    name: str
    limits: tuple[float | None, ...] | None
    n_queries: int
    n_documents: int
    metrics: Mapping[Metric, Figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """All slices by one column.  ``how`` says in words how the queries were grouped."""

    by: str
    how: str
    slices: tuple[Slice, ...]

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the header and the rows of a table: the mean of each metric, and its interval."""
        metrics = list(self.slices[0].metrics) if self.slices else []
        rows = [
            [each.name, f"{each.n_queries:,}", f"{each.n_documents:,}"]
            + [each.metrics[metric].cell() for metric in metrics]
            for each in self.slices
        ]
        return [self.by, "queries", "documents", *map(str, metrics)], rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """Metrics of scored lists.

    ``values`` has one float64 per query in the order of ``qids``, NaN if the policy skips the query. ``weights`` are
    the query weights, or None if they are equal. ``can_differ``: another ranking could have another value in the query.
    ``intervals`` has the 95 % bootstrap interval of each mean, or None. ``slices`` has the same for groups of queries,
    if requested. ``scope`` says which queries of a dataset these are and which of them the model has seen, None if
    unknown. ``goal_scales`` has the highest grades by which ERR of goals is computed.
    """

    metrics: tuple[Metric, ...]
    convention: Convention
    ideal: str
    qids: tuple[str, ...]
    values: Mapping[Metric, npt.NDArray[np.float64]]
    weights: Mapping[Metric, npt.NDArray[np.float64] | None]
    can_differ: Mapping[Metric, npt.NDArray[np.bool_]]
    facts: JudgedQueries
    intervals: Mapping[Metric, tuple[float, float] | None]
    counts: EvaluationCounts
    slices: tuple[Slices, ...] = ()
    scope: Scope | None = None
    goal_scales: Mapping[str, int] = field(default_factory=dict)

    @property
    def policy(self) -> Policy:
        """The conventions by field, but for the metrics that are exceptions."""
        return self.convention.policy

    @property
    def means(self) -> dict[Metric, float]:
        """Mean of each metric over the queries that count; NaN if none does."""
        return {metric: mean_of(self.values[metric]) for metric in self.metrics}

    @property
    def figures(self) -> dict[Metric, Figure]:
        """Each metric over the queries that count."""
        return {
            metric: Figure(_number(mean), self.intervals[metric], self.n_counted(metric))
            for metric, mean in self.means.items()
        }

    def n_counted(self, metric: Metric) -> int:
        """Count the queries in the mean of this metric."""
        return int(np.count_nonzero(~np.isnan(self.values[metric])))

    @property
    def note_on_gains(self) -> str:
        """Remark on grades that count next to nothing by the gains of these metrics; empty if none does."""
        by_gain = any(metric.measure.counts == "gain" and not metric.goal for metric in self.metrics)
        return note_on_gains(self.facts.grades.tolist(), self.policy.gain) if by_gain else ""

    def _needs_cut_ranks(self, metric: Metric) -> bool:
        """Whether the metric needs ranks that were cut off."""
        kept = self.counts.fewest_kept
        return kept is not None and not metric.measure.of_top and (metric.k is None or metric.k > kept)

    def record(self, *, per_query: bool = False) -> dict[str, Any]:
        """Return the JSON form, with the values of each query if ``per_query``.

        NaN is None; an unknown value has no key.
        """
        facts = {
            "metrics": self.figures,
            "convention": self.convention,
            "policy": self.policy,
            "goal_scales": self.goal_scales or None,
            "ideal": self.ideal,
            "counts": self.counts,
            "scope": self.scope,
            "slices": self.slices or None,
            "per_query": self._values_per_query() if per_query else None,
        }
        return {name: as_json(value) for name, value in facts.items() if value is not None}

    def _values_per_query(self) -> tuple[Mapping[str, str | float | None], ...]:
        columns = [(str(metric), self.values[metric].tolist()) for metric in self.metrics]
        return tuple(
            {"qid": qid} | {name: _number(column[i]) for name, column in columns} for i, qid in enumerate(self.qids)
        )

    def to_json(self, *, per_query: bool = False) -> str:
        """Return `record` as one JSON object in one line; numbers keep all their digits."""
        return json.dumps(self.record(per_query=per_query), ensure_ascii=False, allow_nan=False)

    def render(self, *, per_query: bool = False) -> str:
        """Return the report as text: a table of means, the conventions, and counts of unusual queries."""
        parts = [self._table_of_queries(), ""] if per_query else []
        parts += [text_table(*self._cells_of_means()), ""]
        for each in self.slices:
            parts += [text_table(*each.cells()), labelled("slices", f"{each.by}: {each.how}"), ""]
        parts += self._notes()
        return "\n".join(parts) + "\n"

    def __repr__(self) -> str:
        means = ", ".join(f"{metric} {_cell(mean)}" for metric, mean in self.means.items())
        return f"<Evaluation of {self.counts.n_queries:,} queries: {means}>"

    def _repr_html_(self) -> str:
        """Return the means, the slices and the conventions for a notebook."""
        counts = self.counts
        facts = {"queries": f"{counts.n_queries:,}", "documents": f"{counts.n_documents:,}"}
        tables = [
            HtmlTable(*self._cells_of_means()),
            *(HtmlTable(*each.cells()) for each in self.slices),
        ]
        scope = [] if self.scope is None else [f"splits: {self.scope.words()}"]
        return card("Evaluation", facts, tables, [*scope, f"conventions: {self.convention.describe()}"])

    def _cells_of_means(self) -> tuple[list[str], list[list[str]]]:
        rows = []
        for metric, mean in self.means.items():
            interval = self.intervals[metric]
            limits = f"{interval[0]:.4f} to {interval[1]:.4f}" if interval else ""
            rows.append([str(metric), _cell(mean), limits, f"{self.n_counted(metric):,}"])
        return ["metric", "mean", "95 % interval", "queries"], rows

    def _table_of_queries(self) -> str:
        rows = [[qid, *(_cell(self.values[metric][i]) for metric in self.metrics)] for i, qid in enumerate(self.qids)]
        return text_table(["qid", *map(str, self.metrics)], rows)

    def _notes(self) -> list[str]:
        counts = self.counts
        oddities = [
            f"nothing relevant: {_share(counts.n_nothing_relevant, counts.n_queries)}",
            f"a single document: {_share(counts.n_single_document, counts.n_queries)}",
            f"one grade only: {_share(counts.n_one_grade, counts.n_queries)}",
        ]
        if counts.n_below_relevant_from != counts.n_nothing_relevant:
            some = _share(counts.n_below_relevant_from, counts.n_queries)
            oddities.insert(1, f"no grade of {self.policy.relevant_from} or more: {some}")
        notes = [
            ("conventions", self.convention.describe()),
            *(("", remark) for remark in self.convention.remarks),
            ("ideal list", IDEAL_WORDS[self.ideal]),
            *([] if self.scope is None else [("splits", self.scope.words())]),
            ("data", f"{counts.n_queries:,} queries, {counts.n_documents:,} documents"),
            ("of the queries", "; ".join(oddities)),
            ("tied documents", _share(counts.n_tied_documents, counts.n_documents)),
        ]
        deeper = [str(metric) for metric in self.metrics if self._needs_cut_ranks(metric)]
        if deeper:
            notes.append(("note", f"{', '.join(deeper)}: documents below the top that was kept count as not retrieved"))
        foreign = [str(metric) for metric in self.metrics if metric.name not in self.convention.metrics]
        if foreign:
            notes.append(
                ("note", f"{self.convention.name} has no {', '.join(foreign)}: computed under its conventions")
            )
        if self.note_on_gains:
            notes.append(("note", self.note_on_gains))
        for count, words in (
            (counts.n_unjudged_documents, "scored documents have no grade: counted as grade 0"),
            (counts.n_unjudged_queries, "scored queries are not judged: left out"),
            (counts.n_missing_queries, "judged queries were not scored"),
        ):
            if count:
                notes.append(("note", f"{count:,} {words}"))
        return [labelled(label, words) for label, words in notes]


def _cell(value: float) -> str:
    return "skipped" if math.isnan(value) else f"{value:.4f}"


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({part / whole:.1%})" if part else "none"
