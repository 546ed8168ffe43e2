"""The results of each stage, for later stages, the report and the log.

They are stored as JSON in the records of stages, in the order of the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rankmill.foundation.records import left_out
from rankmill.scorer.evaluate.evaluation import Figure

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClicksFacts:
    """What the click log has, and what became of it."""

    lists: int
    queries: int
    impressions: int
    clicks: int
    judgments: int
    estimate: str
    model: str | None
    """The click model that corrects the labels; None: the log supports no correction."""
    why: str
    """What the log supports, on one line."""
    judged: tuple[str, ...]
    """Splits whose queries people judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NaiveFacts:
    """The version learnt from the same clicks without correction."""

    model: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestFacts:
    """The size and digest of the dataset."""

    dataset: str
    rows: int
    queries: int
    features: int
    rejected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftFacts:
    """Which features drifted since the dataset ``against``, None for none; ``psi_max`` includes the grades."""

    against: str | None
    psi_max: float | None
    alarms: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BinFacts:
    """The digest of the bins; ``sampled_rows``: the number of sampled rows for the edges, if they are not exact."""

    binspec: str
    max_bin: int
    sampled_rows: int | None
    drift: DriftFacts | None = left_out()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainFacts:
    """The registered version (``NAME@7``), and its metrics on the queries of train and valid."""

    model: str
    sha256: str
    trees: int
    rounds: int
    train: Mapping[str, float | None]
    valid: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateFacts:
    """What `rankmill.scorer.evaluate.evaluation.Evaluation.record` returns for the candidate on ``split``."""

    split: str
    metrics: Mapping[str, Figure]
    convention: Mapping[str, Any]
    policy: Mapping[str, Any]
    ideal: str
    counts: Mapping[str, Any]
    scope: Mapping[str, Any] | None = left_out()


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFacts:
    """The verdict, and the difference from the first rival in the deciding metric."""

    alias: str
    passed: bool
    carries: bool
    report_sha256: str
    metric: str
    against: str
    difference: float
    interval: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteFacts:
    """The aliases that were moved to ``model``, each with its previous version."""

    model: str
    moved: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedBy:
    """The version that ranked the lists."""

    name: str | None
    number: int | None
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankFacts:
    """The counts of `rankmill.scorer.rerank.rerank.RerankReport`; ``out`` is relative to the work folder."""

    columns_guessed: Mapping[str, str]
    files: tuple[str, ...]
    lacking: int
    model: RankedBy
    out: str
    queries: int
    rows: int
    rows_written: int
    top_k: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFacts:
    """The page, relative to the work folder, its title, version and logical date."""

    title: str
    page: str
    model: str
    date: str | None


Facts = (
    ClicksFacts
    | IngestFacts
    | BinFacts
    | NaiveFacts
    | TrainFacts
    | EvaluateFacts
    | GateFacts
    | PromoteFacts
    | RerankFacts
    | ReportFacts
)


@dataclass(slots=True, kw_only=True)
class RunFacts:
    """The facts of the completed stages, in this run or an earlier one; None for the others."""

    clicks: ClicksFacts | None = None
    ingest: IngestFacts | None = None
    bin: BinFacts | None = None
    naive: NaiveFacts | None = None
    train: TrainFacts | None = None
    evaluate: EvaluateFacts | None = None
    gate: GateFacts | None = None
    promote: PromoteFacts | None = None
    rerank: RerankFacts | None = None
    report: ReportFacts | None = None

    @property
    def drift(self) -> DriftFacts | None:
        """The drift of the data, found by the stage bin."""
        return None if self.bin is None else self.bin.drift
