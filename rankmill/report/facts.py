"""The facts of a report, from measurement to page.

``report.json`` is a `Report`, which docs/formats/report.md describes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rankmill.foundation.records import left_out
from rankmill.gate.gate_report import GateReport
from rankmill.pipeline.statistics.describe_dataset import SplitSummary
from rankmill.scorer.evaluate.evaluation import EvaluationCounts, Figure
from rankmill.scorer.metrics.significance import Paired

FORMAT = 2
Kind = Literal["candidate", "present", "row order", "best single feature"]
Outcome = Literal["promoted", "not promoted", "passed", "replaced", "registered"]
"""``passed``: the gate, but the alias points to another version; ``replaced``: it had the alias before;
``registered``: there is no gate result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The version of the report."""

    name: str
    version: str
    sha256: str
    bytes: int
    objective: str
    trees: int
    features: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentFacts:
    """The version that it was to replace."""

    version: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingFacts:
    """A ranking of the queries: its metrics, and how much better the version is (None: too few queries)."""

    kind: Kind
    name: str
    words: str
    metrics: Mapping[str, Figure]
    candidate_less_this: Mapping[str, Paired | None]
    """Empty for the version itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsFacts:
    """All rankings of the same queries, that of the version first.

    ``primary`` decides, ``rival`` is the ranking that the version is compared with.
    """

    split: str
    seen: str
    counts: EvaluationCounts
    convention: str
    policy: Mapping[str, Any]
    primary: str
    rival: str
    rankings: tuple[RankingFacts, ...]

    @property
    def against(self) -> RankingFacts:
        """The ranking that the version is compared with."""
        return next(each for each in self.rankings if each.name == self.rival)

    @property
    def difference(self) -> Paired | None:
        """The comparison with it by the deciding metric; None if fewer than two queries count."""
        return self.against.candidate_less_this[self.primary]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedDocument:
    """A document in the lists of a query: its rank by the version and by the rival, from 1."""

    doc_id: str
    grade: int
    rank: int
    rank_before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedQuery:
    """A query, its metric in both rankings, and the documents in the top ten of either."""

    qid: str
    n_documents: int
    candidate: float
    rival: float
    difference: float
    ideal_grades: tuple[int, ...]
    documents: tuple[ListedDocument, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueriesFacts:
    """The differences of queries: ``counts`` between ``edges``, without ties, and those that changed most."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    lost: tuple[ListedQuery, ...]
    gained: tuple[ListedQuery, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceFacts:
    """A slice of the queries; ``limits`` are the least and the greatest value of a slice of numbers."""

    name: str
    limits: tuple[float | None, ...] | None
    n_queries: int
    n_documents: int
    candidate: Figure
    rival: Figure
    difference: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicesFacts:
    """The slices by one column."""

    by: str
    how: str
    slices: tuple[SliceFacts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedCurves:
    """The training of one seed: a metric on each set of queries after ``rounds``, and at the best round."""

    seed: int | None
    chosen: bool
    best_round: int | None
    rounds_trained: int
    rounds: tuple[int, ...]
    curves: Mapping[str, tuple[float | None, ...]]
    at_best: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningFacts:
    """The learning curves; the queries ``deciding`` choose the number of rounds."""

    metric: str
    deciding: str | None
    averaged: bool
    refit: bool
    """The model was trained again with the valid split, after these curves."""
    seeds: tuple[SeedCurves, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFacts:
    """The spread of a metric over the seeds of a training."""

    split: str
    metric: str
    seeds: tuple[int, ...]
    deviation: float
    least: float
    greatest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureShare:
    """A feature: its share of the gains of all splits, that in the current version, and its number of splits."""

    feature: str
    influence: float
    before: float | None
    splits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluenceFacts:
    """The most important features by the gains of trees; none for a model without them."""

    features: tuple[FeatureShare, ...]
    n_used: int
    n_features: int
    shown_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReport:
    """The dataset."""

    digest: str
    documents: int
    queries: int
    features: int
    max_grade: int
    rejected_rows: int
    unjudged_rows: int
    missing_values: int
    missing_share: float
    remarks: tuple[str, ...]
    splits: tuple[SplitSummary, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftedColumn:
    """The population stability index of a feature or of the grades, and the limit of its alarm."""

    name: str
    psi: float
    threshold: float
    alarm: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftReport:
    """The drift since the dataset ``against``; ``shown`` has the grades and the features that drifted most."""

    against: str
    split: str | None
    alarms: tuple[str, ...]
    came: tuple[str, ...]
    went: tuple[str, ...]
    n_features: int
    shown: tuple[DriftedColumn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """The clicks on one rank, and its examination probability with a 95 % interval."""

    rank: int
    impressions: int
    rate: float | None
    examination: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClicksReport:
    """What the click log supports; ``model`` corrects the labels, ``naive`` is the version without correction."""

    why: str
    estimate: str
    judgments: int
    lists: int
    queries: int
    clicks: int
    model: str | None
    naive: str | None
    ranks: tuple[RankFacts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """A file of the training data."""

    name: str
    size: int
    sha256: str
    split: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageFacts:
    """The origin of the version: digests by name, given parameters, and differences from the current version."""

    digests: Mapping[str, str]
    parameters: Mapping[str, Any]
    changed: Mapping[str, tuple[Any, Any]]
    """Parameters with their values in the current version and now."""
    other: tuple[str, ...]
    """Which of data, code and features differ from those of the current version."""
    source_files: int | None
    sources: tuple[SourceFacts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """A command, and what it does."""

    what: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All facts of a report; None for what is unknown or was not done."""

    format: int = FORMAT
    date: str | None
    model: ModelFacts
    present: PresentFacts | None
    alias: str
    outcome: Outcome
    gate: GateReport | None
    metrics: MetricsFacts | None
    queries: QueriesFacts | None
    slices: tuple[SlicesFacts, ...]
    learning: LearningFacts | None
    noise: NoiseFacts | None
    influence: InfluenceFacts
    clicks: ClicksReport | None = left_out()
    data: DataReport
    drift: DriftReport | None
    lineage: LineageFacts
    commands: tuple[CommandLine, ...]
    rollback: str | None
    notes: tuple[str, ...]

    @property
    def difference(self) -> Paired | None:
        """The comparison with the rival by the deciding metric; None if there is none."""
        return None if self.metrics is None else self.metrics.difference

    @property
    def margin(self) -> float | None:
        """The margin of the gate against the current version; None if it judged something else."""
        gate = self.gate
        if self.present is None or gate is None or (self.metrics is not None and self.metrics.primary != gate.metric):
            return None
        return gate.margin
