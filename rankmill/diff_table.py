"""The difference between two models as a table, most important rows first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rankmill.foundation.training_facts import with_option_names

if TYPE_CHECKING:
    from rankmill.diff import (
        DataChanges,
        FeatureChanges,
        InfluenceChange,
        MetricChanges,
        ModelDifference,
        Pair,
        Shapes,
        SourceChanges,
    )

MOST_NAMES = 12
Row = list[str]


def rows_of(found: ModelDifference, top: int = 10) -> list[Row]:
    """Return rows of (what, old, new, difference); ``top`` features by influence."""
    rows = [
        *_score_rows(found),
        *_metric_rows(found.metrics),
        *_parameter_rows(found.parameters),
        *_data_rows(found.data),
        *_of_sides("code", found.code),
        *_circumstance_rows(found.made_with),
        *_of_sides("base model", found.base_model, one="only one has a base model"),
        *_feature_rows(found.features),
        *_shape_rows(found.shape),
        *_importance_rows(found.influence, top),
    ]
    old, new = found.old.size, found.new.size
    return [*rows, ["bytes", f"{old:,}", f"{new:,}", _signed(new - old)]]


def _score_rows(found: ModelDifference) -> Iterator[Row]:
    same_bytes = "the same bytes" if found.same_bytes else "different bytes"
    yield ["sha256", found.old.sha256[:12], found.new.sha256[:12], same_bytes]
    scores = found.scores
    if scores is None:
        yield ["scores", "", "", "unknown: the file of a model was swept"]
    elif scores.same:
        yield ["scores", "", "", "the same for every document"]
    else:
        first = scores.same_first_trees
        trees = f"the first {first:,} trees are the same" if first else "other trees"
        yield ["scores", "", "", trees + ("" if scores.same_start else "; their base scores differ")]


def _metric_rows(metrics: MetricChanges) -> Iterator[Row]:
    other = {True: "", False: "; OTHER DATA: not comparable", None: "; data unknown"}[metrics.same_data]
    for split, found in metrics.splits.items():
        for metric, both in found.items():
            old, new = _with_interval(both.old, both.old_interval), _with_interval(both.new, both.new_interval)
            yield [f"{split} {metric}", old, new, f"{both.difference:+.4f}{other}"]


def _parameter_rows(parameters: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    if not parameters:
        yield ["parameters", "", "", "the same"]
    for name, stored in parameters.items():
        sides = {side: with_option_names({name: value})[name] for side, value in stored.items()}
        yield [name, *(_plain(sides[side]) if side in sides else "-" for side in ("old", "new")), ""]


def _data_rows(data: DataChanges) -> Iterator[Row]:
    yield from _of_sides("dataset", data.dataset_digest)
    yield from _of_sides("bins", data.binspec_digest)
    for name, pair in (("rows", data.rows), ("queries", data.queries)):
        if pair.old != pair.new and isinstance(pair.old, int) and isinstance(pair.new, int):
            yield [name, f"{pair.old:,}", f"{pair.new:,}", _signed(pair.new - pair.old)]
    for words, pair in (("splits drawn by", data.split_by), ("splits", data.splits)):
        if _differ(pair):
            yield [words, _plain(pair.old), _plain(pair.new), "other splits"]
    sources = data.sources
    changes = [
        f"{what} {_names([file.name for file in files])}"
        for what, files in (("added", sources.added), ("removed", sources.removed))
        if files
    ]
    if changes or _differ(sources):
        yield ["files", _plain(sources.old), _plain(sources.new), "; ".join(changes)]


def _circumstance_rows(made_with: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    for name, sides in made_with.items():
        if len(sides) == 2:
            another = "another version" if name not in {"system", "machine"} else "another"
            yield [name, _plain(sides["old"]), _plain(sides["new"]), another]


def _of_sides(words: str, pair: Pair, one: str = "unknown for one") -> Iterator[Row]:
    old, new = pair.old, pair.new
    if old is None and new is None:
        return
    same = "the same" if old == new else one if old is None or new is None else "another"
    yield [words, _short(old), _short(new), same]


def _feature_rows(features: FeatureChanges) -> Iterator[Row]:
    changed = (
        ("added", features.added),
        ("removed", features.removed),
        ("used now", features.used_now),
        ("unused now", features.unused_now),
    )
    parts = [f"{words} {_names(names)}" for words, names in changed if names]
    if features.reordered:
        parts.append("in another order")
    cells = [
        f"{n:,}" if used is None else f"{n:,}, {used:,} used"
        for n, used in ((features.old, features.old_used), (features.new, features.new_used))
    ]
    yield ["features", *cells, "; ".join(parts) or "the same"]


def _shape_rows(shape: Shapes | None) -> Iterator[Row]:
    if shape is None:
        return
    for each in fields(shape.old):
        old, new, words = getattr(shape.old, each.name), getattr(shape.new, each.name), each.name.replace("_", " ")
        if isinstance(old, int):
            yield [words, f"{old:,}", f"{new:,}", _signed(new - old)]
        elif old != new:
            yield [words, old, new, "another"]


def _importance_rows(influence: Sequence[InfluenceChange] | None, top: int) -> Iterator[Row]:
    moved = [row for row in influence or () if row.difference]
    for row in moved[:top]:
        cells = ["-" if share is None else f"{share:.2%}" for share in (row.old, row.new)]
        yield [f"influence of {row.feature}", *cells, f"{100 * row.difference:+.2f}"]
    if len(moved) > top:
        yield ["", "", "", f"and {len(moved) - top} features whose influence changed less"]


def _with_interval(value: float, interval: object) -> str:
    match interval:
        case [float() as low, float() as high]:
            return f"{value:.4f} [{low:.4f}, {high:.4f}]"
    return f"{value:.4f}"


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_NAMES])
    return shown + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")


def _signed(n: int) -> str:
    return f"{n:+,}" if n else "the same"


def _differ(sides: Pair | SourceChanges) -> bool:
    """Whether both are known, and differ."""
    return sides.old != sides.new and None not in (sides.old, sides.new)


def _plain(value: object) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _short(value: object) -> str:
    """Shorten a digest, or a model with its digest."""
    if isinstance(value, dict):
        return str(value.get("model") or value.get("sha256"))[:64]
    return "-" if value is None else str(value)[:12]
