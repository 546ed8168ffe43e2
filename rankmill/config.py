"""``rankmill.toml``: what one run of the whole chain reads, makes and writes.

Relative paths are taken from the folder of the configuration file, so that a scheduler may start the run anywhere.  The
keys of ``[train]`` and ``[evaluate]`` are the parameters of the training and of the metrics' policy by their own names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from rankmill.foundation.errors import ConfigError
from rankmill.foundation.options import ChangesOf, Without
from rankmill.foundation.units import parse_size
from rankmill.gate.gate_rules import GateOptions
from rankmill.pipeline.options import BinOptions, IngestOptions
from rankmill.registry.names import PRODUCTION
from rankmill.scorer.metrics import DEFAULT_METRICS, Policy
from rankmill.scorer.metrics.conventions import OURS
from rankmill.scorer.options import RerankOptions
from rankmill.trainer.parameters import MachineOptions, SeedOptions, TrainParameters

STRICT = ConfigDict(strict=True, extra="forbid")
PREVIOUS = "previous"  # in place of the path of a former dataset
LEAST_KEPT = 64_000  # bytes of a log: less than a run may write
RANKED = "ranked"
OTHERS_IN_WORK = frozenset({"", "dataset", "model", "stages", "report", "drift", "dry-run", "lease"})

Texts = Annotated[tuple[str, ...], Field(min_length=1)]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class IngestSection:
    """``[ingest]``: where judgments come from.  Names and defaults are those of ``rankmill data ingest``."""

    sources: Texts
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    qrels: tuple[str, ...] = ()
    options: Annotated[IngestOptions, Without("overwrite", "append")] = Field(default_factory=IngestOptions)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class BinSection:
    """``[bin]``: how finely features are cut."""

    options: BinOptions = Field(default_factory=BinOptions)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class TrainSection:
    """``[train]``: the name to register under, and every parameter of the training."""

    name: str
    parameters: TrainParameters = Field(default_factory=TrainParameters)
    machine: Annotated[MachineOptions, Without("bin_cache")] = Field(default_factory=MachineOptions)
    base_model: str | None = None  # a model of the registry, or a file
    seeds: SeedOptions = Field(default_factory=SeedOptions)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class EvaluateSection:
    """``[evaluate]``: what is reported on queries that the training has not seen, and under which conventions.

    ``convention`` names one; the keys after it are the fields of `rankmill.scorer.metrics.Policy`, and rule over it where given.
    """

    metrics: Texts = DEFAULT_METRICS
    convention: str = OURS
    policy: Annotated[Mapping[str, Any], ChangesOf(Policy)] = Field(default_factory=dict)

    @property
    def conventions(self) -> dict[str, Any]:
        """The conventions by name, as `rankmill.scorer.evaluate.evaluate` takes them."""
        return {"convention": self.convention, **self.policy}


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class GateSection:
    """``[gate]``: whose place the new version takes if it passes, and what it must hold.  Conventions are those of ``[evaluate]``.

    Names and defaults are those of ``rankmill models gate``, but for the split: test, or valid where there is no test.
    """

    options: GateOptions = Field(default_factory=GateOptions)
    split: Literal["test", "valid"] | None = None
    against: str | None = None

    @property
    def alias(self) -> str:
        """Whose place the new version takes."""
        return self.options.alias


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class PromoteSection:
    """``[promote]``: an alias that the new version takes without a gate; the registry must not protect it."""

    alias: str = PRODUCTION


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class RerankSection:
    """``[rerank]``: the candidate lists that the new version ranks.  Without this section none are.

    Text is read as ``[ingest]`` says of ``absent`` and ``index_base``: the model has learnt from such numbers.  With TREC runs
    in ``run`` only the documents that they list are ranked.
    """

    candidates: Texts
    out: str = RANKED
    run: tuple[str, ...] = ()
    options: Annotated[
        RerankOptions,
        Without("absent", "index_base", "n_features", "n_rounds", "n_threads", "announce", "run", "overwrite", "fresh"),
    ] = Field(default=RerankOptions())

    @property
    def in_work(self) -> bool:
        """Whether ``out`` lies in the work folder; else it is an absolute path, or one that leads out again."""
        return self._begins not in {os.sep, os.pardir}

    def check_out(self) -> None:
        """Raise ConfigError if ``out`` is the work folder, or what something else of the run is in."""
        if self.in_work and (self._begins in OTHERS_IN_WORK or self._begins.startswith(".")):
            raise ConfigError(
                f"out: {self.out!r} is not for ranked lists in the work folder; expected a name such as {RANKED!r}"
            )

    @property
    def _begins(self) -> str:
        return next(iter(Path(os.path.normpath(self.out)).parts), "")


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class ReportSection:
    """``[report]``: columns of the dataset to slice the queries by, besides their size and the mix of their grades."""

    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class DriftSection:
    """``[drift]``: a former dataset to compare with before the training; ``previous`` is that of the last run that went through.

    What moved, came or went is an alarm: the run goes on and leaves with 12, or ends there where it is told to ``stop``.
    """

    against: Annotated[str, Field(min_length=1)] = PREVIOUS
    stop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Tell:
    """``[tell]``: where the run is told of besides stderr, for machines.  By default in the work folder; ``""`` is nowhere.

    A ``prometheus`` that does not end in ``.prom`` is a folder.
    """

    log: str | None = None
    lineage: str | None = None
    prometheus: str | None = None
    keep: str = "16MB"

    @property
    def keep_bytes(self) -> int:
        """How large the log and the lineage may grow before their oldest runs go."""
        size = parse_size(self.keep, "keep")
        if size < LEAST_KEPT:
            raise ConfigError(f"keep must be at least 64KB, got {self.keep}")
        return size


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Config:
    """All of the file."""

    work: str = "work"
    ingest: IngestSection
    bin: BinSection = Field(default_factory=BinSection)
    train: TrainSection
    evaluate: EvaluateSection = Field(default_factory=EvaluateSection)
    gate: GateSection | None = None
    promote: PromoteSection | None = None
    rerank: RerankSection | None = None
    report: ReportSection = Field(default_factory=ReportSection)
    drift: DriftSection | None = None
    tell: Tell = Field(default_factory=Tell)
