"""Models that combine other models, merged or blended; each is registered as a new version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import cast

from rankmill.foundation.cores import available_cores
from rankmill.foundation.records import JSON
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.group.sketch import TRAIN_QUERIES, QuerySketch
from rankmill.registry import Registry
from rankmill.registry.names import check_name
from rankmill.scorer.evaluate.train_test_overlap import scope_of
from rankmill.scorer.models.model_service import find_model, trained_model
from rankmill.trainer.candidates.blending import blended
from rankmill.trainer.candidates.combined_forests import merged
from rankmill.trainer.candidates.version_facts import shape_of, sketch_of_training
from rankmill.trainer.options import BlendOptions, MergeOptions
from rankmill.trainer.rounds.resuming import MERGED
from rankmill.trainer.training_facts import MergedModel, TrainingFacts
from rankmill.trainer.training_service import registered, starting_model


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeReport:
    """What ``rankmill models merge`` prints."""

    model: str  # both@1
    new: bool  # false: a version with the same bytes and facts existed
    sha256: str
    merged: tuple[MergedModel, ...]
    trees: int
    features: int
    registry: str

    def render(self) -> str:
        """Return a few lines for people."""
        parts = [f"{each.weight:g} * {each.model or each.sha256[:12]}" for each in self.merged]
        return (
            f"{'registered' if self.new else 'the same as'} {self.model} in {self.registry}: {self.trees} trees of"
            f" {self.features} features; score = {' + '.join(parts)}\nsha256 {self.sha256}"
        )


def merge_and_register(
    models: Sequence[str], name: str, registry: Registry, rules: MergeOptions, *, reason: str = ""
) -> MergeReport:
    """Merge ``models``, files or versions, and register the result as the next version of ``name``.

    Errors are those of :func:`rankmill.trainer.candidates.combined_forests.merged` and of the registry.
    """
    check_name(name)
    parts = [
        part for part in (starting_model(model, registry.root, "models merge") for model in models) if part is not None
    ]
    forest = merged([part.forest for part in parts], rules.weights or None, mean=rules.how == "mean")
    weights = [float(str(each["weight"])) for each in cast("list[dict[str, JSON]]", forest.info[MERGED])]
    names = [
        MergedModel(sha256=part.sha256, model=part.facts().model, weight=weight)
        for part, weight in zip(parts, weights, strict=True)
    ]
    facts = TrainingFacts(
        features=forest.feature_names,
        dataset_digest=None if forest.info.get("dataset_digest") is None else str(forest.info["dataset_digest"]),
        parameters={"objective": forest.objective, **forest.parameters},
        metrics={},
        merged=tuple(names),
        **shape_of(forest),
    )
    sketches = [part.queries for part in parts]
    attachments = {}
    if all(sketch is not None for sketch in sketches):
        queries = reduce(lambda one, other: one.union(other), [sketch for sketch in sketches if sketch is not None])
        attachments[TRAIN_QUERIES] = queries.to_bytes()
    version, is_new = registered(registry, name, forest, facts, attachments, reason)
    return MergeReport(
        model=str(version), new=is_new, sha256=version.sha256, merged=tuple(names),
        trees=forest.n_trees, features=forest.n_features, registry=str(registry.root),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendReport:
    """What ``rankmill models blend`` prints."""

    model: str  # both@1
    new: bool  # false: a version with the same bytes and facts existed
    sha256: str
    parts: tuple[MergedModel, ...]
    metric: str
    split: str
    together: float
    remarks: tuple[str, ...]  # on the queries of the split: which models have seen or were chosen by them
    registry: str

    def render(self) -> str:
        """Return a few lines for people."""
        lines = [
            f"{'registered' if self.new else 'the same as'} {self.model} in {self.registry}: {self.split} {self.metric}"
            f" {self.together:.4f}",
            *(
                f"{part.share:6.1%} {part.model or part.sha256[:12]}, alone {part.alone:.4f}; its scores times "
                f"{part.weight:.4g}"
                for part in self.parts
            ),
            f"{self.split} queries: {'; '.join(self.remarks)}",
            f"sha256 {self.sha256}",
        ]
        return "\n".join(lines)


def blend_and_register(
    dataset: Dataset,
    models: Sequence[str],
    name: str,
    registry: Registry,
    options: BlendOptions,
    *,
    reason: str = "",
    attached: Mapping[str, bytes] | None = None,
) -> BlendReport:
    """Blend ``models``, files or versions, with the weights that are best on ``dataset``, and register the blend.

    ``attached`` is added to the registration.  Errors are those of :func:`rankmill.trainer.candidates.blending.blended`
    and of the registry.
    """
    check_name(name)
    found = [find_model(model, registry.root) for model in models]
    known = [
        (model, trained_model(model, identity, registry.root, reference))
        for reference, (model, identity) in zip(models, found, strict=True)
    ]
    blend, found_weights = blended(known, dataset, options, available_cores())
    parts = tuple(
        MergedModel(
            sha256=identity.sha256,
            model=None if identity.name is None else str(identity),
            weight=weight,
            share=share,
            alone=alone,
        )
        for (_, identity), weight, share, alone in zip(
            found, found_weights.weights, found_weights.shares, found_weights.alone, strict=True
        )
    )
    facts = TrainingFacts(
        features=blend.feature_names,
        dataset_digest=dataset.digest,
        parameters={"objective": blend.objective, **blend.parameters},
        metrics={options.split: {options.metric: found_weights.together}},
        max_grade=dataset.max_grade,
        merged=parts,
    )
    splits = [options.split] if options.split != "valid" else []
    sketches = [trained.queries for _, trained in known if trained.queries is not None]
    sketches += [sketch_of_training(dataset, splits)] if splits else []
    complete = len(sketches) == len(known) + len(splits)
    attachments = {TRAIN_QUERIES: reduce(QuerySketch.union, sketches).to_bytes()} if complete else {}
    version, is_new = registered(registry, name, blend, facts, {**attachments, **(attached or {})}, reason)
    return BlendReport(
        model=str(version), new=is_new, sha256=version.sha256, parts=parts, metric=options.metric, split=options.split,
        together=found_weights.together,
        remarks=scope_of(dataset, options.split, [trained for _, trained in known]).remarks,
        registry=str(registry.root),
    )  # fmt: skip
