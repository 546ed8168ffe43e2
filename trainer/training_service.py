"""Train and register: what ``rankmill train`` and the scheduled run do with a dataset and a registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from rankmill.foundation.kernels.compiling import compilation_announced
from rankmill.foundation.records import JSON, as_json, left_out
from rankmill.foundation.storage.location import Location
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.registry import Registry, Version
from rankmill.registry.names import check_name
from rankmill.scorer.models.loading import forest_of
from rankmill.scorer.models.model import Model
from rankmill.scorer.models.model_service import find_model, queries_trained_on
from rankmill.trainer.candidates.blend_on_dataset import (
    BlendCandidate,
    plan_of_blend,
    train_blend_on,
    why_trees_alone_on,
)
from rankmill.trainer.candidates.multi_seed_training import Candidate, SeedRecord, plan_candidate, train_candidate
from rankmill.trainer.cluster.cluster_plan import ClusterPlan
from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.nets.plan import plan_net
from rankmill.trainer.nets.train_on_dataset import NetCandidate, train_net_on
from rankmill.trainer.options import CheckpointOptions, SeedOptions
from rankmill.trainer.parameters import BLENDING, TrainParameters
from rankmill.trainer.presets import choices_line
from rankmill.trainer.progress import TrainingProgress, say_of_gains, to_stderr, training_progress
from rankmill.trainer.rounds.training_result import Curves, note_without_splits
from rankmill.trainer.training_facts import BlendFacts, ClickFacts, NoiseFloor, RefitFacts, TrainingFacts
from rankmill.trainer.training_options import StartingModel, TrainingOptions

CandidateT = TypeVar("CandidateT", bound=Candidate | NetCandidate | BlendCandidate)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReport:
    """What ``rankmill train`` prints."""

    model: str  # web@7
    new: bool  # false: a version with the same bytes and facts existed
    sha256: str
    bytes: int
    trees: int = 0  # of a net
    rounds: int
    rounds_trained: int
    rounds_of_base: int = 0
    rounds_resumed: int = 0
    train: Mapping[str, float]
    valid: Mapping[str, float]
    holdout: Mapping[str, float] | None = left_out()
    cv: Mapping[str, float] | None = left_out()
    refit: RefitFacts | None = left_out()  # metrics are those before it
    registry: str
    seeds: tuple[SeedRecord, ...] | None = left_out()  # this and the next three: of several seeds
    choose: str | None = left_out()
    chosen: int | None = None
    weights: int | None = left_out()  # of a net
    blend: BlendFacts | None = left_out()  # what was tried and chosen
    noise_floor: NoiseFloor | None = left_out()
    clicks: ClickFacts | None = left_out()
    curves: Curves | None = left_out()  # of one seed
    note: str | None = left_out()  # that no tree has a split

    def to_dict(self) -> dict[str, JSON]:
        """Return plain values."""
        found: dict[str, JSON] = as_json(self)
        if self.seeds is None:
            del found["chosen"]
        return found

    def render(self) -> str:
        """Return a few lines for people."""
        sets = {"train": self.train, "valid": self.valid, "holdout": self.holdout, "cv": self.cv}
        if self.blend is not None:  # whose line has this metric
            sets = {name: {of: each for of, each in (found or {}).items() if of != self.blend.measured}
                    for name, found in sets.items()}  # fmt: skip
        metrics = "".join(f"; {split} {spelled_metrics(found)}" for split, found in sets.items() if found)
        resumed = f" ({self.rounds_resumed} of them before)" if self.rounds_resumed else ""
        lines = [
            f"{'registered' if self.new else 'the same as'} {self.model} in {self.registry}: "
            f"{self._kept_words()}{resumed}{metrics}",
            f"sha256 {self.sha256}",
        ]
        if self.refit is not None:
            lines.append(
                f"trained again on {self.refit.rows:,} documents of {self.refit.queries:,} queries, the valid split "
                "included; the metrics are those before that"
            )
        if self.note is not None:
            lines.append(f"note: {self.note}")
        if self.clicks is not None:
            lines += self.clicks.lines({"train": self.train, "valid": self.valid})
        if self.seeds is None:
            return "\n".join(lines)
        for each in self.seeds:
            found = each.metrics.get("valid") or each.metrics.get("train", {})
            taken = " (taken)" if self.chosen == each.seed else ""
            rounds = f"{each.best_round} of {each.rounds_trained} rounds"
            lines.append(f"seed {each.seed}: {rounds}; {spelled_metrics(found)}{taken}")
        if self.chosen is None:
            n_seeds, base = len(self.seeds), self.rounds_of_base
            cost = self.rounds / (base + (self.rounds - base) / n_seeds)
            lines.append(
                f"kept: the average of all {n_seeds}; a document is scored by {self.trees:,} trees,"
                f" {cost:.3g} times as many as those of one seed on average"
            )
        lines += [
            f"noise floor across seeds, {split} {metric}: {spread.mean:.4f} +- {spread.deviation:.4f}"
            f" ({spread.least:.4f} to {spread.greatest:.4f})"
            for split, of_split in (self.noise_floor or {}).items()
            for metric, spread in of_split.items()
        ]
        return "\n".join(lines)

    def _kept_words(self) -> str:
        """Describe how many rounds the model keeps."""
        base, trained = self.rounds_of_base, self.rounds_trained
        if self.blend is not None:
            return self.blend.line()
        if self.weights is not None:
            return f"a net of {self.weights:,} weights, epoch {self.rounds} of {trained} trained"
        if base:
            on_top = f"{self.rounds - base} of {trained} trained on top of it"
            return f"{self.trees} trees, {base} rounds of the base model and {on_top}"
        if self.trees == self.rounds:
            return f"{self.trees} trees of {trained} trained"
        return f"{self.trees} trees, {self.rounds} rounds of {trained} trained"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedVersion(Generic[CandidateT]):
    """What :func:`train_and_register` returns, and :func:`train_net_and_register`."""

    version: Version
    candidate: CandidateT
    report: TrainingReport = field(repr=False)


def train_and_register(
    dataset: Dataset,
    name: str,
    registry: Registry,
    parameters: TrainParameters,
    options: TrainingOptions,
    seeds: SeedOptions,
    *,
    log_every: int | None = None,
    reason: str = "",
    attached: Mapping[str, bytes] | None = None,
) -> TrainedVersion[Candidate | BlendCandidate]:
    """Train on ``dataset`` and register the model as the next version of ``name``.

    The model is trees, or a blend if the preset is ``auto-2``.

    Messages and, without a bar, progress go to ``options.on_message``, by default to stderr; ``log_every`` is that of
    :class:`rankmill.trainer.progress.TrainingProgress`, ``reason`` that of the registration, to which ``attached`` is
    added.  Invalid input is refused before the training, with the errors of
    :func:`rankmill.trainer.candidates.multi_seed_training.train_candidate` and of the registry.
    """
    check_name(name)
    say = options.on_message or to_stderr
    plan = plan_candidate(dataset, parameters, options, seeds)
    blends = False
    if parameters.preset == BLENDING:
        alone = why_trees_alone_on(parameters, options, seeds, plan)
        blends, plan = not alone, replace(plan, choices=choices_line(parameters, plan.parameters, alone))
        if blends:
            plan = plan_of_blend(dataset, parameters, options, plan)
    registry.prepare()
    say(plan.render())
    say_of_gains(dataset, plan.parameters.gain, say)
    if options.cluster is not None:
        say(ClusterPlan.of(plan, dataset, options.cluster.workers(), one_machine=options.cluster.is_here).render())
    bar = training_progress(plan.parameters, len(seeds.seeds), log_every=log_every, on_message=options.on_message)
    with compilation_announced(say), bar as progress:
        options = replace(options, on_round=progress.update, on_message=say)
        if blends:
            blend = train_blend_on(dataset, parameters, options, plan)
        else:
            candidate = train_candidate(dataset, parameters, options, seeds, plan)
    if blends:
        found = blend.found
        return _version_of(
            blend, found.model, registry, name, reason, attached, trees=found.model.n_trees, rounds=found.best_round,
            rounds_trained=len(found.history), cv=(blend.facts.metrics or {}).get("cv"), refit=blend.facts.refit,
            blend=found.facts, curves=Curves.of(found.history),
        )  # fmt: skip
    forest, metrics, several = candidate.forest, candidate.facts.metrics or {}, candidate.noise_floor is not None
    of_base = 0 if options.base_model is None else options.base_model.forest.n_rounds
    return _version_of(
        candidate, forest, registry, name, reason, attached,
        trees=forest.n_trees,
        rounds=forest.n_rounds,
        rounds_trained=sum(len(each.result.history) for each in candidate.trainings),
        rounds_of_base=of_base,
        rounds_resumed=0 if options.resume is None else options.resume.forest.n_rounds - of_base,
        holdout=metrics.get("holdout"),
        cv=metrics.get("cv"),
        refit=candidate.facts.refit,
        seeds=candidate.record().seeds if several else None,
        choose=candidate.choose if several else None,
        chosen=candidate.chosen,
        noise_floor=candidate.noise_floor,
        clicks=candidate.facts.clicks,
        curves=None if several else Curves.of(candidate.result.history),
        note=note_without_splits(forest) or None,
    )  # fmt: skip


def train_net_and_register(
    dataset: Dataset,
    name: str,
    registry: Registry,
    options: NetOptions,
    machine: CheckpointOptions,
    *,
    log_every: int | None = None,
    on_message: Callable[[str], object] | None = None,
    reason: str = "",
    attached: Mapping[str, bytes] | None = None,
) -> TrainedVersion[NetCandidate]:
    """Train a net on ``dataset`` and register it as the next version of ``name``.

    Arguments and errors are as for :func:`train_and_register` and
    :func:`rankmill.trainer.nets.train_on_dataset.train_net_on`.
    """
    check_name(name)
    say = on_message or to_stderr
    plan = plan_net(dataset, options, machine)
    registry.prepare()
    say(plan.render())
    say_of_gains(dataset, options.gain, say)
    bar = TrainingProgress(options.epochs, step="epoch", log_every=log_every, on_message=on_message)
    with compilation_announced(say), bar as progress:
        candidate = train_net_on(dataset, options, machine, on_round=progress.update, on_message=say)
    return _version_of(
        candidate, candidate.net, registry, name, reason, attached, rounds=candidate.result.best_epoch,
        rounds_trained=len(candidate.result.history), weights=candidate.net.n_weights,
        curves=Curves.of(candidate.result.history),
    )  # fmt: skip


def _version_of(
    candidate: CandidateT,
    model: Model,
    registry: Registry,
    name: str,
    reason: str,
    attached: Mapping[str, bytes] | None,
    **more: Any,
) -> TrainedVersion[CandidateT]:
    """Register the ``model`` of a candidate; ``more`` are facts of the report that the kind of model has."""
    attachments, metrics = {**candidate.attachments, **(attached or {})}, candidate.facts.metrics or {}
    version, is_new = registered(registry, name, model, candidate.facts, attachments, reason)
    report = TrainingReport(
        model=str(version), new=is_new, sha256=version.sha256, bytes=version.size, train=metrics.get("train", {}),
        valid=metrics.get("valid", {}), registry=str(registry.root), **more,
    )  # fmt: skip
    return TrainedVersion(version=version, candidate=candidate, report=report)


def registered(
    registry: Registry, name: str, model: Model, facts: TrainingFacts, attachments: Mapping[str, bytes], reason: str
) -> tuple[Version, bool]:
    """Register ``model`` as the next version of ``name``; return the version, and whether it is new."""
    registry.prepare()
    known = {version.number for version in registry.versions(name)} if name in registry.names() else set()
    version = registry.register(name, model.to_bytes(), manifest=as_json(facts), attachments=attachments, reason=reason)
    return version, version.number not in known


def starting_model(reference: str | None, registry: Location, use: str) -> StartingModel | None:
    """Find the model of trees that ``use`` needs: a file, or NAME@7 of the registry; None if there is none.

    InputError, such as ``--resume needs a model of trees``, if it is of another kind.
    """
    if reference is None:
        return None
    model, identity = find_model(reference, registry)
    return StartingModel(forest_of(model, use), identity, queries_trained_on(identity, registry))


def spelled_metrics(metrics: Mapping[str, float]) -> str:
    """Return metrics by name for people."""
    return ", ".join(f"{metric} {value:.4f}" for metric, value in metrics.items())
