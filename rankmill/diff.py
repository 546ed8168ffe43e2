"""Two models side by side: their parameters, features, data and metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankmill.foundation.shown import few
from rankmill.foundation.storage.location import Location
from rankmill.registry import Registry
from rankmill.registry.names import MODEL_SUFFIX
from rankmill.trainer.training_facts import parameters_in_words

Changes = Mapping[str, Mapping[str, Any]]
"""``{name: {"old": .., "new": ..}}`` of the values that differ; what one side does not have is left out."""

_MOST_NAMES = 12
_OF_DATA = ("dataset_digest", "binspec_digest", "code_digest", "base_model")  # and all facts of ``dataset``


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two models, with its registered facts; of a model file, the facts in the file."""

    name: str
    sha256: str
    facts: Mapping[str, Any]

    @classmethod
    def of(cls, reference: str, registry: Location) -> Side:
        """Look up a model file, NAME (its latest version), NAME@7 or NAME@alias.

        RankmillError if there is none, or it is damaged.
        """
        if reference.endswith(MODEL_SUFFIX) or Path(reference).is_file():
            from rankmill.scorer.models.loading import load_model_file

            model = load_model_file(reference)
            facts = {name: model.info.get(name) for name in ("dataset_digest", "binspec_digest")}
            metrics = {name: model.info[name] for name in ("train", "valid") if model.info.get(name)}
            own = {"features": list(model.feature_names), "parameters": dict(model.parameters), "metrics": metrics}
            return cls(name=reference, sha256=model.sha256, facts=facts | own)
        version = Registry(registry).resolve(reference, bare="latest")
        return cls(name=str(version), sha256=version.sha256, facts=version.manifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDifference:
    """What differs between two models; of ``metrics``, by split, what both have."""

    old: str
    new: str
    same_bytes: bool
    parameters: Changes
    features: Mapping[str, Sequence[str]]
    """``added``, ``removed``."""
    data: Changes
    same_data: bool | None
    """None: unknown."""
    metrics: Mapping[str, Changes]

    def rows(self) -> list[list[str]]:
        """Return rows of (what, old, new, remark)."""
        return [["bytes", "", "", "the same" if self.same_bytes else "different"], *self._rows()]

    def _rows(self) -> Iterator[list[str]]:
        other = {True: "", False: "OTHER DATA: not comparable", None: "data unknown"}[self.same_data]
        for split, found in self.metrics.items():
            for metric, values in found.items():
                yield [f"{split} {metric}", *(f"{values[side]:.4f}" for side in ("old", "new")), other]
        for name, stored in self.parameters.items():
            sides = {side: parameters_in_words({name: value}) for side, value in stored.items()}
            for word in dict.fromkeys(word for words in sides.values() for word in words):
                yield [word, *_cells({side: words[word] for side, words in sides.items() if word in words}), ""]
        for name, names in self.features.items():
            if names:
                yield ["features", "", "", f"{name} {few(names, _MOST_NAMES)}"]
        for name, values in self.data.items():
            yield [name.replace("_", " "), *_cells(values), ""]


def diff(old: Side, new: Side) -> ModelDifference:
    """Return the differences, which depend only on the two models; what a registration did not state is left out."""
    before, after = list(old.facts["features"]), list(new.facts["features"])
    digests = old.facts.get("dataset_digest"), new.facts.get("dataset_digest")
    metrics = [_mapping(side.facts.get("metrics")) for side in (old, new)]
    both = {split: _numbers(metrics[0][split], metrics[1].get(split)) for split in metrics[0]}
    return ModelDifference(
        old=old.name,
        new=new.name,
        same_bytes=old.sha256 == new.sha256,
        parameters=changes(old.facts["parameters"], new.facts["parameters"]),
        features={
            "added": [name for name in after if name not in set(before)],
            "removed": [name for name in before if name not in set(after)],
        },
        data=changes(_data(old.facts), _data(new.facts)),
        same_data=None if None in digests else digests[0] == digests[1],
        metrics={split: found for split, found in both.items() if found},
    )


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Changes:
    """Return the differences, by name.

    >>> changes({"a": 1, "b": 2, "c": 3}, {"b": 2.5, "c": 3, "d": 4})
    {'a': {'old': 1}, 'b': {'old': 2, 'new': 2.5}, 'd': {'new': 4}}
    """
    sides = {name: _sides(old, new, name) for name in sorted({*old, *new})}
    return {name: found for name, found in sides.items() if len(found) == 1 or found["old"] != found["new"]}


def _sides(old: Mapping[str, Any], new: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {side: facts[name] for side, facts in (("old", old), ("new", new)) if name in facts}


def _mapping(value: object) -> Mapping[str, Any]:
    """Return a nested mapping; empty if the manifest has another type there."""
    return value if isinstance(value, dict) else {}


def _data(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: facts[name] for name in _OF_DATA if facts.get(name) is not None} | dict(
        _mapping(facts.get("dataset"))
    )


def _numbers(old: object, new: object) -> Changes:
    """Return the numbers that both have."""
    was, now = ({k: v for k, v in _mapping(of).items() if type(v) in {int, float}} for of in (old, new))
    return {name: {"old": was[name], "new": now[name]} for name in was if name in now}


def _cells(sides: Mapping[str, Any]) -> list[str]:
    """Return both values as texts of one line; digests and lists are cut."""
    return [_short(sides[side]) if side in sides else "-" for side in ("old", "new")]


def _short(value: object) -> str:
    text = value if isinstance(value, str) and value else json.dumps(value, sort_keys=True, ensure_ascii=False)
    is_digest = len(text) == 64 and not set(text) - set("0123456789abcdef")
    return text[:12] if is_digest else text if len(text) <= 60 else f"{text[:59]}…"
