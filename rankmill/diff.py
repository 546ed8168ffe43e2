"""What is different between two models: parameters, features, data, code, metrics, shape, influence, scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.records import as_json
from rankmill.foundation.training_facts import CIRCUMSTANCES, Circumstances
from rankmill.registry import Registry
from rankmill.registry.names import MODEL_SUFFIX
from rankmill.scorer.forest import Forest, feature_importance

Values = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two: its forest, None if retention has taken the bytes, and the facts that were registered with them.

    Of a model file the facts are those that the file itself holds.
    """

    name: str
    sha256: str
    size: int
    forest: Forest | None
    facts: Mapping[str, Any] = field(repr=False)
    circumstances: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, reference: str, registry: Path) -> Side:
        """Look up a model file, NAME (its latest version), NAME@7 or NAME@alias.

        Raises
        ------
        rankmill.foundation.errors.RankmillError
            There is no such version, or its bytes are damaged.
        rankmill.foundation.errors.RankmillError
            There is no such file, or it is no sound model.
        """
        if reference.endswith(MODEL_SUFFIX) or Path(reference).is_file():
            of_file = Forest.load(reference)
            size = len(of_file.to_bytes())
            return cls(name=reference, sha256=of_file.sha256, size=size, forest=of_file, facts=_facts_in(of_file))
        version = Registry(registry).resolve(reference, bare="latest")
        forest = None if version.swept_in is not None else Forest.from_bytes(version.read(), str(version))
        return cls(
            name=str(version),
            sha256=version.sha256,
            size=version.size,
            forest=forest,
            facts=version.manifest,
            circumstances=as_json(Circumstances.of(version.attachment(CIRCUMSTANCES)) or {}),
        )


def _facts_in(forest: Forest) -> Values:
    splits = {name: forest.info.get(name) for name in ("train", "valid")}
    facts = {name: forest.info.get(name) for name in ("dataset_digest", "binspec_digest", "best_round")}
    return {
        "features": list(forest.feature_names),
        "parameters": dict(forest.parameters),
        "metrics": {name: metrics for name, metrics in splits.items() if isinstance(metrics, dict) and metrics},
        **facts,
    }


def diff(old: Side, new: Side) -> Values:
    """Return what is different, as plain values; the same for the same two models.

    Whatever is not known of one of them (a fact that its registration did not tell) is None there.
    """
    report = {
        "old": {"model": old.name, "sha256": old.sha256, "size": old.size},
        "new": {"model": new.name, "sha256": new.sha256, "size": new.size},
        "same_bytes": old.sha256 == new.sha256,
        "parameters": changes(old.facts["parameters"], new.facts["parameters"]),
        "features": _features(old, new),
        "data": _data(old.facts, new.facts),
        "code": _pair(old.facts, new.facts, "code_digest"),
        "made_with": changes(_made_with(old), _made_with(new)),
        "base_model": _pair(old.facts, new.facts, "base_model"),
        "metrics": _metrics(old.facts, new.facts),
        "scores": None,
        "shape": None,
        "influence": None,
    }
    if old.forest is not None and new.forest is not None:
        report["scores"] = {
            "same": same_scores(old.forest, new.forest),
            "same_start": same_start(old.forest, new.forest),
            "same_first_trees": same_trees(old.forest, new.forest),
        }
        report["shape"] = {"old": shape_of(old.forest), "new": shape_of(new.forest)}
        report["influence"] = _influence(old.forest, new.forest)
    return report


def _made_with(side: Side) -> Values:
    known = {name: side.circumstances[name] for name in ("python", "system", "machine") if name in side.circumstances}
    return known | _mapping(side.circumstances.get("libraries"))


def _mapping(value: object) -> Values:
    """Return facts of facts; nothing where a manifest, which may hold anything, has something else there."""
    return value if isinstance(value, dict) else {}


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Values:
    """Return ``{name: {"old": .., "new": ..}}`` of what differs, by name; what one side does not have is left out there.

    >>> changes({"a": 1, "b": 2, "c": 3}, {"b": 2.5, "c": 3, "d": 4})
    {'a': {'old': 1}, 'b': {'old': 2, 'new': 2.5}, 'd': {'new': 4}}
    """
    found: Values = {}
    for name in sorted({*old, *new}):
        sides = {side: facts[name] for side, facts in (("old", old), ("new", new)) if name in facts}
        if len(sides) == 1 or sides["old"] != sides["new"]:
            found[name] = sides
    return found


def shape_of(forest: Forest) -> Values:
    """Return how many trees, leaves and levels there are."""
    leaves = np.add.reduceat(forest.node_feature < 0, forest.tree_starts[:-1]) if forest.n_trees else np.zeros(0)
    return {
        "trees": forest.n_trees,
        "rounds": forest.n_rounds,
        "leaves": int(leaves.sum()),
        "most_leaves": int(leaves.max(initial=0)),
        "depth": int(depths_of(forest).max(initial=0)),
        "objective": forest.objective,
        "outputs": forest.n_outputs,
    }


def depths_of(forest: Forest) -> npt.NDArray[np.int64]:
    """Return how many splits lie above each node (n_nodes,)."""
    depth = np.zeros(len(forest.node_feature), dtype=np.int64)
    start = np.repeat(forest.tree_starts[:-1].astype(np.int64), np.diff(forest.tree_starts))
    level = forest.tree_starts[:-1].astype(np.int64)  # all nodes of a level, of all trees
    below = 0
    while len(level := level[forest.node_feature[level] >= 0]):
        level = np.concatenate([start[level] + forest.node_left[level], start[level] + forest.node_right[level]])
        below += 1
        depth[level] = below
    return depth


def _pair(old: Mapping[str, Any], new: Mapping[str, Any], name: str) -> Values:
    return {"old": old.get(name), "new": new.get(name)}


def _features(old: Side, new: Side) -> Values:
    before, after = list(old.facts["features"]), list(new.facts["features"])
    had, has = set(before), set(after)
    report: Values = {
        "old": len(before),
        "new": len(after),
        "added": [name for name in after if name not in had],
        "removed": [name for name in before if name not in has],
        "reordered": [name for name in before if name in has] != [name for name in after if name in had],
    }
    if old.forest is not None and new.forest is not None:
        was, now = _used(old.forest), _used(new.forest)
        report |= {
            "old_used": len(was),
            "new_used": len(now),
            "used_now": sorted(now - was),
            "unused_now": sorted(was - now),
        }
    return report


def _used(forest: Forest) -> set[str]:
    return {forest.feature_names[place] for place in forest.used_features}


def _data(old: Mapping[str, Any], new: Mapping[str, Any]) -> Values:
    report = {name: _pair(old, new, name) for name in ("dataset_digest", "binspec_digest")}
    was, now = _mapping(old.get("dataset")), _mapping(new.get("dataset"))
    report |= {name: _pair(was, now, name) for name in ("rows", "queries", "splits", "split_by")}
    files = [_files(facts) for facts in (was, now)]
    listed = None not in files
    before, after = (set(found or ()) for found in files)
    listed_changes = {"added": sorted(after - before), "removed": sorted(before - after)} if listed else {}
    counts = {side: _mapping(facts.get("sources")).get("files") for side, facts in (("old", was), ("new", now))}
    return report | {
        "sources": counts
        | {what: [{"name": name, "sha256": sha256} for name, sha256 in found] for what, found in listed_changes.items()}
    }


def _files(facts: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    listed = _mapping(facts.get("sources")).get("list")
    if not isinstance(listed, list):
        return None
    return [(str(file.get("name")), str(file.get("sha256"))) for file in map(_mapping, listed)]


def _metrics(old: Mapping[str, Any], new: Mapping[str, Any]) -> Values:
    """Return the metrics of both on splits of the same name, and whether the data were the same (None: nobody knows)."""
    was, now = _mapping(old.get("metrics")), _mapping(new.get("metrics"))
    one, other = old.get("dataset_digest"), new.get("dataset_digest")
    splits: Values = {}
    for split in [name for name in was if isinstance(was[name], dict) and isinstance(now.get(name), dict)]:
        both = [
            metric for metric in was[split] if _is_number(was[split][metric]) and _is_number(now[split].get(metric))
        ]
        if both:
            splits[split] = {
                metric: {
                    "old": was[split][metric],
                    "old_interval": _mapping(_mapping(old.get("intervals")).get(split)).get(metric),
                    "new": now[split][metric],
                    "new_interval": _mapping(_mapping(new.get("intervals")).get(split)).get(metric),
                    "difference": now[split][metric] - was[split][metric],
                }
                for metric in both
            }
    return {"same_data": None if one is None or other is None else one == other, "splits": splits}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _influence(old: Forest, new: Forest) -> list[Values]:
    """Return the share of each feature in both, those first whose share moved most."""
    was, now = (
        dict(zip(forest.feature_names, feature_importance(forest).tolist(), strict=True)) for forest in (old, new)
    )
    rows = [
        {
            "feature": name,
            "old": was.get(name),
            "new": now.get(name),
            "difference": now.get(name, 0.0) - was.get(name, 0.0),
        }
        for name in {**was, **now}
    ]
    return sorted(rows, key=lambda row: (-abs(row["difference"]), row["feature"]))


def same_start(old: Forest, new: Forest) -> bool:
    """Whether the scores begin at the same number and come about in the same way."""
    return (old.base_score, old.link, old.n_outputs) == (new.base_score, new.link, new.n_outputs)


def same_trees(old: Forest, new: Forest) -> int:
    """Count the trees from the first on that are the same: shapes, names of features, cuts, leaf values and weights to the bit.

    What a tree knows besides, its gains and training rows, does not count; nor does the order of the features.
    """
    n_trees = min(old.n_trees, new.n_trees)
    sizes = old.tree_starts[1 : n_trees + 1], new.tree_starts[1 : n_trees + 1]
    n_trees = _leading(sizes[0] == sizes[1])
    n_nodes = int(old.tree_starts[n_trees])
    weights = _bits(old.tree_weights[:n_trees]) == _bits(new.tree_weights[:n_trees])
    alike = np.ones(n_nodes, dtype=np.bool_)
    numbers = {name: i for i, name in enumerate(dict.fromkeys((*old.feature_names, *new.feature_names)))}
    for one, other in zip(_parts(old, n_nodes, numbers), _parts(new, n_nodes, numbers), strict=True):
        alike &= one == other
    first_bad = _leading(alike)
    of_nodes = int(np.searchsorted(old.tree_starts[: n_trees + 1], first_bad, side="right")) - 1
    return min(of_nodes, _leading(weights))


def same_scores(old: Forest, new: Forest) -> bool:
    """Whether both give every document the same bits; two forests may do so with different trees, which is not seen."""
    return same_start(old, new) and old.n_trees == new.n_trees == same_trees(old, new)


def _parts(forest: Forest, n_nodes: int, numbers: Mapping[str, int]) -> list[npt.NDArray[Any]]:
    feature = forest.node_feature[:n_nodes]
    leaf = feature < 0
    return [
        np.array([*(numbers[name] for name in forest.feature_names), -1])[feature],  # a leaf's -1 is the last one
        np.where(leaf, 0, forest.thresholds[:n_nodes].view(np.uint32)),
        forest.node_missing_left[:n_nodes],
        forest.node_left[:n_nodes],
        forest.node_right[:n_nodes],
        np.where(leaf, _bits(forest.node_value[:n_nodes]), 0),
    ]


def _bits(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(values).view(np.uint64)


def _leading(true: npt.NDArray[np.bool_]) -> int:
    return len(true) if true.all() else int(np.argmin(true))
