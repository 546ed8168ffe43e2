"""The sections and keys of ``rankmill.toml``, the configuration of ``rankmill run``.

Relative paths start at the folder of the configuration file, so that a scheduler may start the run anywhere.  The keys
of ``[train]`` and ``[evaluate]`` are the names of the training parameters and of the fields of a metric policy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from rankmill.clicks.options import ClickFitOptions, ClickLogOptions, ClickModelName, JudgeOptions
from rankmill.foundation.cluster.options import ClusterOptions, local_workers
from rankmill.foundation.errors import ConfigError, InvalidParameter
from rankmill.foundation.options import ChangesOf, Without
from rankmill.foundation.storage.url_arguments import url_of
from rankmill.gate.gate_rules import GateOptions
from rankmill.pipeline.options import BinOptions, IngestOptions
from rankmill.registry.names import PRODUCTION, check_name
from rankmill.scorer.metrics import DEFAULT_METRICS, Policy, parse_metric
from rankmill.scorer.metrics.conventions import OURS
from rankmill.scorer.options import RerankOptions
from rankmill.trainer.nets.options import FROM, NET, SHARED, ModelOptions
from rankmill.trainer.options import BlendOptions, MachineOptions, SeedOptions
from rankmill.trainer.parameters import ALL, NONE, TrainParameters

STRICT = ConfigDict(strict=True, extra="forbid")
PREVIOUS = "previous"  # instead of the path of an older dataset
RANKED = "ranked"
OTHERS_IN_WORK = frozenset({"", "dataset", "model", "stages", "report", "drift", "lease", "clicks", "cache"})

ClusterStage = Literal["ingest", "bin", "train", "rerank"]

Texts = Annotated[tuple[str, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class IngestSection:
    """``[ingest]``: where judgments come from.  Names and defaults are those of ``rankmill data ingest``."""

    sources: Texts
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    qrels: tuple[str, ...] = ()
    options: Annotated[IngestOptions, Without("overwrite")] = Field(default_factory=IngestOptions)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class ClicksSection:
    """``[clicks]``: a click log that becomes judgments of the rows in ``[ingest]``.

    They are corrected as far as the log supports it.

    Names and defaults are those of ``rankmill clicks fit`` and ``rankmill clicks judge``.  Left out, ``model`` is the
    click model that predicts held-out clicks best.
    """

    sources: Texts
    model: ClickModelName | None = None
    reading: ClickLogOptions = Field(default_factory=ClickLogOptions)
    fit: ClickFitOptions = Field(default_factory=ClickFitOptions)
    judge: JudgeOptions = Field(default_factory=JudgeOptions)

    def check_judge(self) -> None:
        """Raise ConfigError if judgments cannot be made in the same way with and without correction."""
        if self.judge.form == "pairs":
            raise ConfigError('form: a run makes "labels" or "grades" from clicks, found "pairs"')
        if self.judge.estimate == "dctr":
            raise ConfigError(
                "estimate: dctr uses no click model, and the naive model learns from it anyway; leave it out"
            )
        if self.judge.thresholds:
            raise ConfigError(
                "thresholds: labels with and without correction have other scales, so that grades begin elsewhere; "
                "use quantiles"
            )


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class BinSection:
    """``[bin]``: how features are binned."""

    options: BinOptions = Field(default_factory=BinOptions)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class TrainSection:
    """``[train]``: the name of the model, and all training parameters; with ``model = "net"``, those of a net."""

    name: str
    parameters: TrainParameters = Field(default_factory=TrainParameters)
    machine: MachineOptions = Field(default_factory=MachineOptions)
    base_model: str | None = None  # a model of the registry, or a file
    where: ClusterOptions = Field(default_factory=ClusterOptions)
    kind: Annotated[ModelOptions, Without(*SHARED, *FROM)] = Field(default_factory=ModelOptions)
    seeds: SeedOptions = Field(default_factory=SeedOptions)

    def check_kind(self) -> None:
        """Raise InvalidParameter if an option belongs to another kind of model than ``model``."""
        if self.kind.model != NET:
            self.kind.check_trees()
            return
        self.kind.net_options(self.parameters)
        for name, given in (
            ("base_model", self.base_model), ("seeds", self.seeds.seeds),
            ("cluster", self.where.cluster),
        ):  # fmt: skip
            if given:
                raise InvalidParameter(f'{name} is an option of trees; leave it out with model = "net"')


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class BlendSection:
    """``[blend]``: models of the registry with which the trained one is blended. Later stages use the blend."""

    name: str
    models: Texts  # NAME means production
    options: Annotated[BlendOptions, Without("weights")] = Field(default_factory=BlendOptions)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class EvaluateSection:
    """``[evaluate]``: metrics to report on queries that were not used in training, and their conventions.

    ``convention`` names one; the keys after it are the fields of `rankmill.scorer.metrics.Policy`, and override it.
    """

    metrics: Texts = DEFAULT_METRICS
    convention: str = OURS
    policy: Annotated[Mapping[str, Any], ChangesOf(Policy)] = Field(default_factory=dict)

    @property
    def conventions(self) -> dict[str, Any]:
        """The conventions by name, as `rankmill.scorer.evaluate.evaluate.evaluate` takes them."""
        return {"convention": self.convention, **self.policy}


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class GateSection:
    """``[gate]``: the alias that the new version takes over if it passes, and the limits.

    Conventions are those of ``[evaluate]``.

    Names and defaults are those of ``rankmill models gate``, but for the split: test, or valid where there is no test.
    """

    options: GateOptions = Field(default_factory=GateOptions)
    split: Literal["test", "valid"] | None = None

    @property
    def alias(self) -> str:
        """The alias that the new version takes over."""
        return self.options.alias


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class PromoteSection:
    """``[promote]``: an alias to move to the new version without a gate; the registry must not protect it."""

    alias: str = PRODUCTION


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class RerankSection:
    """``[rerank]``: candidates to rank with the new version.  Without this section nothing is ranked.

    ``absent`` and ``index_base`` are those of ``[ingest]``, since the model was trained on data that was read in this
    way.  With TREC runs in ``run``, only the documents that they list are ranked.
    """

    candidates: Texts
    out: str = RANKED
    run: tuple[str, ...] = ()
    options: Annotated[
        RerankOptions,
        Without(
            "absent",
            "index_base",
            "n_features",
            "n_rounds",
            "start_round",
            "n_threads",
            "announce",
            "run",
            "overwrite",
            "fresh",
        ),
    ] = Field(default=RerankOptions())

    @property
    def in_work(self) -> bool:
        """Whether ``out`` is in the work folder; otherwise it is absolute, leads out of it, or is a URL."""
        return self._begins not in {os.sep, os.pardir} and url_of(self.out) is None

    def check_out(self) -> None:
        """Raise ConfigError if ``out`` is the work folder, or a folder that the run uses for other files."""
        if self.in_work and (self._begins in OTHERS_IN_WORK or self._begins.startswith(".")):
            raise ConfigError(
                f"out: {self.out!r} is used for other files in the work folder; expected a name such as {RANKED!r}"
            )

    @property
    def _begins(self) -> str:
        return next(iter(Path(os.path.normpath(self.out)).parts), "")


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class ReportSection:
    """``[report]``: columns of the dataset to group the queries by, besides query size and mix of grades.

    ``out`` is a URL to which the report is put, too.
    """

    by: tuple[str, ...] = ()
    out: str = ""

    def check_out(self) -> None:
        """Raise ConfigError if ``out`` is no URL."""
        if self.out and url_of(self.out) is None:
            raise ConfigError(f"out: expected a URL such as s3://bucket/report, found {self.out!r}")


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class DriftSection:
    """``[drift]``: an older dataset to compare with before training; ``previous`` is that of the last complete run.

    Features that drifted, appeared or disappeared raise an alarm: the run continues and exits with 12; with ``stop`` it
    ends at once.
    """

    against: Annotated[str, Field(min_length=1)] = PREVIOUS
    stop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class ClusterSection:
    """``[cluster]``: workers for all ``stages`` that have no ``cluster`` of their own.

    A training on a cluster is one if it is asked for: many options refuse it, and it pays for large data alone.
    """

    address: str
    stages: tuple[ClusterStage, ...] = ("ingest", "bin", "rerank")


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Config:
    """The content of ``rankmill.toml``."""

    work: str = "work"
    cluster: ClusterSection | None = None
    clicks: ClicksSection | None = None
    ingest: IngestSection
    bin: BinSection = Field(default_factory=BinSection)
    train: TrainSection
    blend: BlendSection | None = None
    evaluate: EvaluateSection = Field(default_factory=EvaluateSection)
    gate: GateSection | None = None
    promote: PromoteSection | None = None
    rerank: RerankSection | None = None
    report: ReportSection = Field(default_factory=ReportSection)
    drift: DriftSection | None = None

    def on_cluster(self) -> Config:
        """Return the same with ``[cluster]`` in all stages that use it.

        InvalidParameter if its address names no cluster.
        """
        if self.cluster is None:
            return self
        local_workers(self.cluster.address, "address")
        found = self
        for stage in self.cluster.stages:
            section, field = getattr(self, stage), "where" if stage == "train" else "options"
            if section is not None and getattr(section, field).cluster is None:
                options = replace(getattr(section, field), cluster=self.cluster.address)
                found = replace(found, **{stage: replace(section, **{field: options})})
        return found

    def for_blend(self) -> Config:
        """Return the same with ``refit = "none"``, if it is left out and ``[blend]`` finds its weights on valid."""
        train = self.train
        if not self._weighs_on_valid or train.kind.model == NET or train.parameters.refit is not None:
            return self
        return replace(self, train=replace(train, parameters=replace(train.parameters, refit=NONE)))

    @property
    def _weighs_on_valid(self) -> bool:
        return self.blend is not None and self.blend.options.split == "valid"

    @property
    def name(self) -> str:
        """The name in the registry of what the run makes: the blend, or the trained model."""
        return self.train.name if self.blend is None else self.blend.name

    def check_blend(self) -> None:
        """Raise ConfigError if the blend has the name of one of its models, no valid name or metric, or a refit."""
        if self.blend is None:
            return
        if self._weighs_on_valid and self.train.parameters.refit == ALL:
            raise ConfigError(
                'refit = "all" in [train] learns from the valid split, on which the weights are found; leave it out'
            )
        check_name(self.blend.name)
        parse_metric(self.blend.options.metric)
        if self.blend.name in {self.train.name, *(model.partition("@")[0] for model in self.blend.models)}:
            raise ConfigError(
                f"name: {self.blend.name!r} is one of the models to blend; give the blend a name of its own"
            )
