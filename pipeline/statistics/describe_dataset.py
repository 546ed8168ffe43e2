"""Describe a dataset: sizes, grades, queries without training signal, and every feature."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from rankmill.foundation.records import as_json, infinite_as_words, left_out
from rankmill.foundation.terminal import plain_table, printed
from rankmill.pipeline.bins.quantiles import cumulative_counts, sort_values
from rankmill.pipeline.bins.write import columns_of
from rankmill.pipeline.dataset.manifest import SPLITS, JudgmentSet, Meaning, Repeats, SourceFile
from rankmill.pipeline.dataset.stored_shards import QUERY_WEIGHT
from rankmill.pipeline.ingest_report import GRADES_SHOWN, repeated, several
from rankmill.pipeline.statistics.feature_statistics import statistics_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankmill.pipeline.dataset.dataset import Dataset
    from rankmill.pipeline.dataset.manifest import SplitName


_FEW_GRADES = 10  # shown even if no row has them
_MOST_COUNTED = 300_000_000  # values; distinct values are counted up to this size, as it takes reading all of them
_MOST_LISTED, _MOST_NAMED = 20, 5  # categories of a feature as JSON and in the table
_MAX_FEATURES_SHOWN = 200  # above, only features with remarks are shown


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """Summary of an optional column in one split; all numbers are 0 if there are no rows."""

    minimum: float
    mean: float
    maximum: float

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> ColumnSummary:
        """Summarise ``values`` (n,); the mean does not depend on the order of summation."""
        if not len(values):
            return cls(0.0, 0.0, 0.0)
        return cls(float(values.min()), math.fsum(values.tolist()) / len(values), float(values.max()))


@dataclass(frozen=True, slots=True)
class PairSummary:
    """The preference pairs of one split."""

    pairs: int
    queries: int
    """Queries with pairs."""
    contradicted: int
    """Pairs whose reverse occurs too."""


@dataclass(frozen=True, slots=True)
class SplitSummary:
    """One split."""

    name: str
    queries: int
    rows: int
    documents_min: int
    documents_median: float
    documents_max: int
    nothing_relevant: int
    """Queries whose grades are all 0."""
    one_grade: int
    """Queries of two or more documents that all have the same grade: no pair to learn from."""
    one_document: int
    grades: dict[int, int]
    """Rows by grade, ascending: all grades of the dataset, and the first few even without rows."""
    columns: dict[str, ColumnSummary]
    """The optional columns of the rows, and the weights of the queries."""
    pairs: PairSummary | None
    """The preference pairs; None if the dataset has none."""
    goals: dict[str, dict[int, int]] | None = left_out()
    """Rows by grade of each goal: all its grades in the dataset, ascending."""


@dataclass(frozen=True, slots=True)
class Category:
    """A category and the number of rows that have it."""

    text: str
    rows: int


@dataclass(frozen=True, slots=True)
class CategorySummary:
    """The categories of one feature."""

    number: int
    most_frequent: tuple[Category, ...]
    """The first few, from many rows to few."""
    other_rows: int
    """Rows that have other categories."""


@dataclass(frozen=True, slots=True)
class FeatureSummary:
    """One feature over all splits."""

    name: str
    minimum: float | None
    """None if all values are missing, or the feature is categorical."""
    maximum: float | None
    missing: int
    zeros: int
    distinct: int | None
    """Number of distinct values without missing ones; None: too many to count."""
    bins: int | None
    """Value bins of the newest binned copy; None if there is none."""
    constant_in_query: bool
    """Whether no query has two values: useful only together with other features."""
    same_as: str | None
    """The first feature with the same value in every row."""
    categories: CategorySummary | None = left_out()
    """None: it is a number."""

    @property
    def remarks(self) -> list[str]:
        """Remarks for users."""
        only = self.categories.number <= 1 if self.categories is not None else self.minimum == self.maximum
        if self.categories.number == 0 if self.categories is not None else self.minimum is None:
            return ["all missing"]
        remarks = []
        if self.same_as is not None:
            remarks.append(f"same as {self.same_as}")
        if only and self.missing == 0:
            remarks.append("constant")
        elif self.constant_in_query:
            remarks.append("constant in each query")
        if not (np.isfinite(self.minimum or 0.0) and np.isfinite(self.maximum or 0.0)):
            remarks.append("has infinite values")
        return remarks


@dataclass(frozen=True, slots=True)
class Binned:
    """A binned copy: the digest of its bins, and the maximum number of bins per feature."""

    binspec: str
    max_bin: int


@dataclass(frozen=True, slots=True)
class Description:
    """The result of `describe`."""

    digest: str
    rows: int
    queries: int
    max_grade: int
    missing_values: int
    rejected_rows: int
    buckets: int
    meaning: Meaning
    sources: Sequence[SourceFile]
    binned: Sequence[Binned]
    pair_sources: Sequence[SourceFile]
    rejected_pairs: int
    judgments: JudgmentSet | None
    """Counts of separate files of judgments; None if there were none."""
    repeats: Repeats | None
    """Counts of documents with several rows; None if there are none."""
    unjudged_rows: int
    splits: tuple[SplitSummary, ...]
    features: tuple[FeatureSummary, ...]

    def to_json(self) -> str:
        """Return one JSON object; infinite values become strings."""
        return json.dumps(infinite_as_words(as_json(self)), ensure_ascii=False, allow_nan=False)

    def render(self, width: int = 120) -> str:
        """Return the description as text, ``width`` characters wide."""
        few = f"Features with a remark ({len(self._shown)} of {len(self.features)}; --json lists all)"
        notes = [few] if len(self._shown) < len(self.features) else []
        tables = [self._feature_table()] if self._shown else []
        return "\n".join(printed(self._head(), self._split_table(), *notes, *tables, width=width))

    @property
    def _shown(self) -> tuple[FeatureSummary, ...]:
        if len(self.features) <= _MAX_FEATURES_SHOWN:
            return self.features
        return tuple(feature for feature in self.features if feature.remarks)

    def _head(self) -> str:
        cells = self.rows * len(self.features)
        lists = [("sources   ", self.sources)]
        if self.pair_sources:
            lists.append(("pairs     ", self.pair_sources))
        return "\n".join(
            [
                f"{self.rows:,} documents, {self.queries:,} queries, {len(self.features):,} features,"
                f" grades 0 to {self.max_grade}",
                f"digest    {self.digest}",
                f"missing   {self.missing_values:,} values ({_share(self.missing_values, cells)}),"
                f" rejected rows {self.rejected_rows:,}",
                f"read as   absent = {self.meaning.absent}, index base {self.meaning.index_base}; split "
                f"{_split_rule(self.meaning)}",
                "binned    " + (", ".join(f"{b.max_bin} bins ({b.binspec[:12]})" for b in self.binned) or "not yet"),
                *(heading + _files(files) for heading, files in lists),
                *([f"          {self.rejected_pairs:,} pairs rejected"] if self.rejected_pairs else []),
                *self._judged(),
            ]
        )

    def _judged(self) -> list[str]:
        lines = []
        if self.judgments is not None:
            found = self.judgments
            lines.append(
                f"judgments {found.judgments:,}, {found.without_row:,} of them of documents that have no row;"
                f" {several(found.repeated, found.conflicting, 'judged more than once')}"
            )
            lines.append("          " + _files(found.sources))
        if self.repeats is not None:
            lines.append(f"repeated  {repeated(self.repeats)}")
        if self.unjudged_rows:
            lines.append(f"unjudged  {self.unjudged_rows:,} rows without a judgment, kept for re-ranking")
        return lines

    def _split_table(self) -> Any:
        facts = [_facts_of(split) for split in self.splits]
        rows = ((line[0][0], *(text for _, text in line)) for line in zip(*facts, strict=True))
        return plain_table("split", [split.name for split in self.splits], rows)

    def _feature_table(self) -> Any:
        rows = []
        for f in self._shown:
            low, high = ("-" if x is None else f"{x:.6g}" for x in (f.minimum, f.maximum))
            bins = "-" if f.bins is None else str(f.bins)
            shares = (_share(f.missing, self.rows), "-" if f.categories else _share(f.zeros, self.rows))
            distinct = "-" if f.distinct is None else f"{f.distinct:,}"
            remarks = filter(None, (self._most_frequent(f), *f.remarks))
            rows.append((f.name, low, high, *shares, distinct, bins, ", ".join(remarks)))
        return plain_table("feature", ("min", "max", "missing", "zero", "distinct", "bins"), rows, last="remark")

    def _most_frequent(self, feature: FeatureSummary) -> str:
        """Return the most frequent categories of a ``feature``; empty for one of numbers."""
        if feature.categories is None:
            return ""
        frequent = feature.categories.most_frequent
        rest = self.rows - feature.missing - sum(each.rows for each in frequent[:_MOST_NAMED])
        shown = [f"{each.text} {_share(each.rows, self.rows)}" for each in frequent[:_MOST_NAMED]]
        return "categories: " + ", ".join([*shown, *([f"others {_share(rest, self.rows)}"] if rest else [])])


def describe(dataset: Dataset) -> Description:
    """Describe ``dataset`` from its stored statistics.

    If it is not too large, its feature columns are read too, a few at a time.
    """
    manifest = dataset.manifest
    return Description(
        digest=dataset.digest,
        rows=manifest.rows,
        queries=manifest.queries,
        max_grade=manifest.max_grade,
        missing_values=manifest.missing_values,
        rejected_rows=manifest.rejected_rows,
        buckets=manifest.buckets,
        meaning=manifest.meaning,
        sources=manifest.sources,
        binned=[Binned(entry.binspec, entry.max_bin) for entry in manifest.bins],
        pair_sources=() if manifest.pairs is None else manifest.pairs.sources,
        rejected_pairs=0 if manifest.pairs is None else manifest.pairs.rejected,
        judgments=manifest.judgments,
        repeats=manifest.repeats,
        unjudged_rows=manifest.unjudged_rows,
        splits=tuple(split_summary(dataset, name) for name in SPLITS if name in manifest.splits),
        features=_features(dataset),
    )


def split_summary(dataset: Dataset, name: SplitName) -> SplitSummary:
    """Count the queries, documents and grades of one split; its narrow columns are held in memory."""
    rows = pl.LazyFrame(dataset.rows(name, ["qid", "grade"]))
    documents, lowest, highest = pl.col("documents"), pl.col("lowest"), pl.col("highest")
    queries = rows.group_by("qid").agg(documents=pl.len(), lowest=pl.col("grade").min(), highest=pl.col("grade").max())
    sizes = queries.select(
        queries=pl.len(),
        rows=documents.sum(),
        documents_min=documents.min().fill_null(0),  # null if there are no queries
        documents_median=documents.median().fill_null(0.0),
        documents_max=documents.max().fill_null(0),
        nothing_relevant=(highest == 0).sum(),
        one_grade=((lowest == highest) & (documents > 1)).sum(),
        one_document=(documents == 1).sum(),
    )
    summary, counted = pl.collect_all([sizes, rows.group_by("grade").len()])
    rows_of = dict(counted.iter_rows())
    # not every possible grade: the highest may be in the billions
    shown = {*range(min(dataset.max_grade, _FEW_GRADES) + 1), *(count.grade for count in dataset.manifest.grades)}
    grades = {grade: rows_of.get(grade, 0) for grade in sorted(shown)}
    columns = {
        column: ColumnSummary.of(dataset.rows(name, [column]).column(0).to_numpy())
        for column in dataset.optional_columns
        if column not in dataset.goals
    }
    goals = {}
    for goal in dataset.manifest.goals:
        counts = dict(pl.Series(dataset.rows(name, [goal.name]).column(0)).value_counts().iter_rows())
        goals[goal.name] = {each.grade: counts.get(each.grade, 0) for each in goal.grades}
    weights = dataset.queries(name).weights
    if weights is not None:
        columns[QUERY_WEIGHT] = ColumnSummary.of(weights)
    found = dataset.pairs(name)
    pairs = None
    if found is not None:
        pairs = PairSummary(len(found), int(np.count_nonzero(np.diff(found.starts))), found.contradicted())
    return SplitSummary(
        name=name, grades=grades, columns=columns, pairs=pairs, goals=goals or None, **summary.row(0, named=True)
    )


def _features(dataset: Dataset) -> tuple[FeatureSummary, ...]:
    bins: dict[str, int] = {}
    if dataset.manifest.bins:
        bins = {feature.name: feature.n_bins - 1 for feature in dataset.binspec().features}
    known = statistics_of(dataset).features
    distinct = _distinct(dataset) if dataset.manifest.rows * len(known) <= _MOST_COUNTED else {}
    categories = {name: _categories(dataset, name) for name in dataset.manifest.categorical}
    distinct |= {name: found.number for name, found in categories.items()}
    return tuple(
        FeatureSummary(
            name=fact.name,
            minimum=None if fact.name in categories else fact.minimum,
            maximum=None if fact.name in categories else fact.maximum,
            missing=fact.missing,
            zeros=0 if fact.name in categories else fact.zeros,
            distinct=distinct.get(fact.name),
            categories=categories.get(fact.name),
            bins=bins.get(fact.name),
            constant_in_query=not fact.varied_queries,
            same_as=fact.same_as,
        )
        for fact in known
    )


def _distinct(dataset: Dataset) -> dict[str, int]:
    """Count the distinct values of each feature that is a number."""
    numbers = [name for name in dataset.feature_names if name not in set(dataset.manifest.categorical)]
    columns = columns_of(dataset, features=numbers) if numbers else ()
    return {name: len(cumulative_counts(sort_values(values)[0])) - 1 for name, values in columns}


def _categories(dataset: Dataset, feature: str) -> CategorySummary:
    """Return the categories of a categorical ``feature`` from the vocabulary."""
    found = dataset.vocabulary.most_frequent(feature)
    first = tuple(Category(text, rows) for text, rows in found[:_MOST_LISTED])
    return CategorySummary(len(found), first, sum(rows for _, rows in found[_MOST_LISTED:]))


def _files(sources: Sequence[SourceFile]) -> str:
    shown = [f"{source.name} ({source.size:,} bytes)" for source in sources]
    if len(shown) > 10:
        shown = [*shown[:9], f"and {len(shown) - 9} more"]
    return "\n          ".join(shown)


def _facts_of(split: SplitSummary) -> list[tuple[str, str]]:
    """Return what the table of splits says of ``split``; the names are the same for all splits of a dataset."""
    sizes = f"{split.documents_min:,} / {split.documents_median:,g} / {split.documents_max:,}"
    facts = [
        ("queries", f"{split.queries:,}"),
        ("documents", f"{split.rows:,}"),
        ("documents per query, min / median / max", sizes),
        ("queries with nothing relevant", f"{split.nothing_relevant:,}"),
        ("queries with one grade only", f"{split.one_grade:,}"),
        ("queries with one document", f"{split.one_document:,}"),
    ]
    for name, c in split.columns.items():
        facts.append((f"{name}, min / mean / max", f"{c.minimum:g} / {c.mean:.4g} / {c.maximum:g}"))
    if split.pairs is not None:
        pairs, contradicted = split.pairs.pairs, split.pairs.contradicted
        facts += [("preference pairs", f"{pairs:,}"), ("queries with pairs", f"{split.pairs.queries:,}")]
        facts.append(("pairs that another contradicts", f"{contradicted:,} ({_share(contradicted, pairs)})"))
    for what, counts in {"grade": split.grades, **(split.goals or {})}.items():
        rows = {f"{what} {grade}": count for grade, count in [*counts.items()][:GRADES_SHOWN]}
        if len(counts) > GRADES_SHOWN:
            rows[f"and {len(counts) - GRADES_SHOWN:,} more grades"] = sum([*counts.values()][GRADES_SHOWN:])
        facts += [(name, f"{count:,} ({_share(count, split.rows)})") for name, count in rows.items()]
    return facts


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _split_rule(meaning: Meaning) -> str:
    """Describe how the splits were made."""
    shares, bounds, folds = meaning.split, meaning.split_time, meaning.folds
    if shares is not None:
        return ", ".join(f"{name} {shares[name]:g}" for name in SPLITS if name in shares)
    if bounds is not None:
        return "by time, " + ", ".join(f"{name} from {bounds[name]}" for name in SPLITS if name in bounds)
    return "by file" if folds is None else f"fold {folds.fold} of {folds.folds}"
