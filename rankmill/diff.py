"""Compare two models: parameters, features, data, code, metrics, shape, influence, scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rankmill.forest_likeness import ForestShape, ScoreLikeness, likeness_of, shape_of
from rankmill.foundation.records import as_json, left_out
from rankmill.foundation.storage.location import Location
from rankmill.foundation.training_facts import CIRCUMSTANCES, Circumstances
from rankmill.registry import Registry
from rankmill.registry.names import MODEL_SUFFIX
from rankmill.scorer.forest import Forest, feature_importance
from rankmill.scorer.model import Model
from rankmill.scorer.model_service import model_of
from rankmill.scorer.models import load_model_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two models: its model (None if the bytes were swept) and its registered facts.

    For a model file, the facts are those in the file.
    """

    name: str
    sha256: str
    size: int
    model: Model | None
    facts: Mapping[str, Any] = field(repr=False)
    circumstances: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, reference: str, registry: Location) -> Side:
        """Look up a model file, NAME (its latest version), NAME@7 or NAME@alias.

        Raises
        ------
        rankmill.foundation.errors.RankmillError
            The version does not exist or is damaged.
        rankmill.foundation.errors.RankmillError
            The file does not exist or is not a valid model.
        """
        if reference.endswith(MODEL_SUFFIX) or Path(reference).is_file():
            of_file = load_model_file(reference)
            size = len(of_file.to_bytes())
            return cls(name=reference, sha256=of_file.sha256, size=size, model=of_file, facts=_facts_in(of_file))
        version = Registry(registry).resolve(reference, bare="latest")
        model = None if version.swept_in is not None else model_of(version)
        return cls(
            name=str(version),
            sha256=version.sha256,
            size=version.size,
            model=model,
            facts=version.manifest,
            circumstances=as_json(Circumstances.of(version.attachment(CIRCUMSTANCES)) or {}),
        )


def _facts_in(model: Model) -> Mapping[str, Any]:
    splits = {name: model.info.get(name) for name in ("train", "valid")}
    facts = {name: model.info.get(name) for name in ("dataset_digest", "binspec_digest", "best_round")}
    return {
        "features": list(model.feature_names),
        "parameters": dict(model.parameters),
        "metrics": {name: metrics for name, metrics in splits.items() if isinstance(metrics, dict) and metrics},
        **facts,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBytes:
    """The name, digest and size of a model."""

    model: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A fact of both models, as in their manifests; None if unknown."""

    old: Any
    new: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureChanges:
    """Numbers of features and the names of those that changed, including those used by trees if both models exist."""

    old: int
    new: int
    added: tuple[str, ...]
    removed: tuple[str, ...]
    reordered: bool
    old_used: int | None = left_out()
    new_used: int | None = left_out()
    used_now: tuple[str, ...] | None = left_out()
    unused_now: tuple[str, ...] | None = left_out()


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file that a dataset was made from."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceChanges:
    """Numbers of files, and the added and removed ones if both manifests list them."""

    old: Any
    new: Any
    added: tuple[DataFile, ...] | None = left_out()
    removed: tuple[DataFile, ...] | None = left_out()


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChanges:
    """The data of both models."""

    dataset_digest: Pair
    binspec_digest: Pair
    rows: Pair
    queries: Pair
    splits: Pair
    split_by: Pair
    sources: SourceChanges


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChange:
    """A metric of both models, with the intervals in the manifests."""

    old: float
    old_interval: Any
    new: float
    new_interval: Any
    difference: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChanges:
    """The metrics of both models on splits with the same name, and whether the data were the same (None: unknown)."""

    same_data: bool | None
    splits: Mapping[str, Mapping[str, MetricChange]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """The sizes of both models."""

    old: ForestShape
    new: ForestShape


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluenceChange:
    """The share of a feature in the gains of both models; None if a model does not have the feature."""

    feature: str
    old: float | None
    new: float | None
    difference: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDifference:
    """The differences between two models; the last three fields are None if one model was swept.

    ``parameters`` and ``made_with`` are results of `changes`.
    """

    old: ModelBytes
    new: ModelBytes
    same_bytes: bool
    parameters: Mapping[str, Mapping[str, Any]]
    features: FeatureChanges
    data: DataChanges
    code: Pair
    made_with: Mapping[str, Mapping[str, Any]]
    base_model: Pair
    metrics: MetricChanges
    scores: ScoreLikeness | None
    shape: Shapes | None
    influence: tuple[InfluenceChange, ...] | None


def diff(old: Side, new: Side) -> ModelDifference:
    """Return the differences; the result depends only on the two models.

    Facts that a registration did not state are None.
    """
    scores = shape = influence = None
    if isinstance(old.model, Forest) and isinstance(new.model, Forest):
        scores = likeness_of(old.model, new.model)
        shape = Shapes(old=shape_of(old.model), new=shape_of(new.model))
        influence = _influence(old.model, new.model)
    return ModelDifference(
        old=ModelBytes(model=old.name, sha256=old.sha256, size=old.size),
        new=ModelBytes(model=new.name, sha256=new.sha256, size=new.size),
        same_bytes=old.sha256 == new.sha256,
        parameters=changes(old.facts["parameters"], new.facts["parameters"]),
        features=_features(old, new),
        data=_data(old.facts, new.facts),
        code=_pair(old.facts, new.facts, "code_digest"),
        made_with=changes(_made_with(old), _made_with(new)),
        base_model=_pair(old.facts, new.facts, "base_model"),
        metrics=_metrics(old.facts, new.facts),
        scores=scores,
        shape=shape,
        influence=influence,
    )


def _made_with(side: Side) -> Mapping[str, Any]:
    known = {name: side.circumstances[name] for name in ("python", "system", "machine") if name in side.circumstances}
    return {**known, **_mapping(side.circumstances.get("libraries"))}


def _mapping(value: object) -> Mapping[str, Any]:
    """Return a nested mapping; empty if the manifest has another type there."""
    return value if isinstance(value, dict) else {}


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return ``{name: {"old": .., "new": ..}}`` of the differences, by name; missing values are omitted.

    >>> changes({"a": 1, "b": 2, "c": 3}, {"b": 2.5, "c": 3, "d": 4})
    {'a': {'old': 1}, 'b': {'old': 2, 'new': 2.5}, 'd': {'new': 4}}
    """
    found = {}
    for name in sorted({*old, *new}):
        sides = {side: facts[name] for side, facts in (("old", old), ("new", new)) if name in facts}
        if len(sides) == 1 or sides["old"] != sides["new"]:
            found[name] = sides
    return found


def _pair(old: Mapping[str, Any], new: Mapping[str, Any], name: str) -> Pair:
    return Pair(old=old.get(name), new=new.get(name))


def _features(old: Side, new: Side) -> FeatureChanges:
    before, after = list(old.facts["features"]), list(new.facts["features"])
    had, has = set(before), set(after)
    found = FeatureChanges(
        old=len(before),
        new=len(after),
        added=tuple(name for name in after if name not in had),
        removed=tuple(name for name in before if name not in has),
        reordered=[name for name in before if name in has] != [name for name in after if name in had],
    )
    if old.model is None or new.model is None:
        return found
    was, now = _used(old.model), _used(new.model)
    return replace(
        found,
        old_used=len(was),
        new_used=len(now),
        used_now=tuple(sorted(now - was)),
        unused_now=tuple(sorted(was - now)),
    )


def _used(model: Model) -> set[str]:
    return {model.feature_names[place] for place in model.used_features}


def _data(old: Mapping[str, Any], new: Mapping[str, Any]) -> DataChanges:
    was, now = _mapping(old.get("dataset")), _mapping(new.get("dataset"))
    before, after = _files(was), _files(now)
    listed = before is not None and after is not None
    return DataChanges(
        dataset_digest=_pair(old, new, "dataset_digest"),
        binspec_digest=_pair(old, new, "binspec_digest"),
        rows=_pair(was, now, "rows"),
        queries=_pair(was, now, "queries"),
        splits=_pair(was, now, "splits"),
        split_by=_pair(was, now, "split_by"),
        sources=SourceChanges(
            old=_mapping(was.get("sources")).get("files"),
            new=_mapping(now.get("sources")).get("files"),
            added=_only_in(after, before) if listed else None,
            removed=_only_in(before, after) if listed else None,
        ),
    )


def _files(facts: Mapping[str, Any]) -> set[tuple[str, str]] | None:
    listed = _mapping(facts.get("sources")).get("list")
    if not isinstance(listed, list):
        return None
    return {(str(file.get("name")), str(file.get("sha256"))) for file in map(_mapping, listed)}


def _only_in(files: set[tuple[str, str]] | None, others: set[tuple[str, str]] | None) -> tuple[DataFile, ...]:
    return tuple(DataFile(name=name, sha256=sha256) for name, sha256 in sorted((files or set()) - (others or set())))


def _metrics(old: Mapping[str, Any], new: Mapping[str, Any]) -> MetricChanges:
    was, now = _mapping(old.get("metrics")), _mapping(new.get("metrics"))
    one, other = old.get("dataset_digest"), new.get("dataset_digest")
    intervals = [_mapping(facts.get("intervals")) for facts in (old, new)]
    splits = {}
    for split in [name for name in was if isinstance(was[name], dict) and isinstance(now.get(name), dict)]:
        before, after = was[split], now[split]
        found = {
            metric: MetricChange(
                old=before[metric],
                old_interval=_mapping(intervals[0].get(split)).get(metric),
                new=after[metric],
                new_interval=_mapping(intervals[1].get(split)).get(metric),
                difference=after[metric] - before[metric],
            )
            for metric in before
            if _is_number(before[metric]) and _is_number(after.get(metric))
        }
        if found:
            splits[split] = found
    return MetricChanges(same_data=None if one is None or other is None else one == other, splits=splits)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _influence(old: Forest, new: Forest) -> tuple[InfluenceChange, ...]:
    """Return the shares of each feature in both models, the largest changes first."""
    was, now = (
        dict(zip(forest.feature_names, feature_importance(forest).tolist(), strict=True)) for forest in (old, new)
    )
    rows = [
        InfluenceChange(
            feature=name, old=was.get(name), new=now.get(name), difference=now.get(name, 0.0) - was.get(name, 0.0)
        )
        for name in {**was, **now}
    ]
    return tuple(sorted(rows, key=lambda row: (-abs(row.difference), row.feature)))
