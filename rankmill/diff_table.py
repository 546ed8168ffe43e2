"""How a person reads the difference between two models: one table, first what matters most."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MOST_NAMES = 12
Row = list[str]


def rows_of(report: Mapping[str, Any], top: int = 10) -> list[Row]:
    """Return rows of (what, old, new, difference) for the result of `rankmill.diff.diff`; ``top`` features by influence."""
    rows = [
        *_of_scores(report),
        *_of_metrics(report["metrics"]),
        *_of_parameters(report["parameters"]),
        *_of_data(report["data"]),
        *_of_sides("code", report["code"]),
        *_of_circumstances(report["made_with"]),
        *_of_sides("base model", report["base_model"], one="only one has one"),
        *_of_features(report["features"]),
        *_of_shape(report["shape"]),
        *_of_influence(report["influence"], top),
    ]
    sizes = [report[side]["size"] for side in ("old", "new")]
    return [*rows, ["bytes", *(f"{size:,}" for size in sizes), _signed(sizes[1] - sizes[0])]]


def _of_scores(report: Mapping[str, Any]) -> Iterator[Row]:
    digests = [report[side]["sha256"][:12] for side in ("old", "new")]
    yield ["sha256", *digests, "the same bytes" if report["same_bytes"] else "other bytes"]
    scores = report["scores"]
    if scores is None:
        yield ["scores", "", "", "not known: the bytes of a model are not there any more"]
    elif scores["same"]:
        yield ["scores", "", "", "the same for every document"]
    else:
        first = scores["same_first_trees"]
        trees = f"the first {first:,} trees are the same" if first else "other trees"
        yield ["scores", "", "", trees + ("" if scores["same_start"] else "; they begin at another number")]


def _of_metrics(metrics: Mapping[str, Any]) -> Iterator[Row]:
    other = {True: "", False: "; OTHER DATA: no comparison", None: "; of data not known"}[metrics["same_data"]]
    for split, found in metrics["splits"].items():
        for metric, both in found.items():
            cells = [_with_interval(both[side], both[f"{side}_interval"]) for side in ("old", "new")]
            yield [f"{split} {metric}", *cells, f"{both['difference']:+.4f}{other}"]


def _of_parameters(parameters: Mapping[str, Any]) -> Iterator[Row]:
    if not parameters:
        yield ["parameters", "", "", "the same"]
    for name, sides in parameters.items():
        yield [name, *(_plain(sides[side]) if side in sides else "-" for side in ("old", "new")), ""]


def _of_data(data: Mapping[str, Any]) -> Iterator[Row]:
    yield from _of_sides("dataset", data["dataset_digest"])
    yield from _of_sides("bins", data["binspec_digest"])
    for name in ("rows", "queries"):
        old, new = data[name]["old"], data[name]["new"]
        if old != new and isinstance(old, int) and isinstance(new, int):
            yield [name, f"{old:,}", f"{new:,}", _signed(new - old)]
    for name, words in (("split_by", "splits drawn by"), ("splits", "splits")):
        if _differ(data[name]):
            yield [words, *(_plain(data[name][side]) for side in ("old", "new")), "other splits"]
    sources = data["sources"]
    said = [
        f"{what} {_names([file['name'] for file in sources[what]])}"
        for what in ("added", "removed")
        if sources.get(what)
    ]
    if said or _differ(sources):
        yield ["files", *(_plain(sources[side]) for side in ("old", "new")), "; ".join(said)]


def _of_circumstances(made_with: Mapping[str, Any]) -> Iterator[Row]:
    for name, sides in made_with.items():
        if len(sides) == 2:
            yield [
                name,
                *(_plain(sides[side]) for side in ("old", "new")),
                "another version" if name not in {"system", "machine"} else "another",
            ]


def _of_sides(words: str, pair: Mapping[str, Any], one: str = "not known of one") -> Iterator[Row]:
    old, new = pair["old"], pair["new"]
    if old is None and new is None:
        return
    same = "the same" if old == new else one if old is None or new is None else "another"
    yield [words, _short(old), _short(new), same]


def _of_features(features: Mapping[str, Any]) -> Iterator[Row]:
    said = [
        f"{words} {_names(features[what])}"
        for what, words in (
            ("added", "added"),
            ("removed", "removed"),
            ("used_now", "used now"),
            ("unused_now", "unused now"),
        )
        if features.get(what)
    ]
    if features["reordered"]:
        said.append("in another order")
    cells = [
        f"{features[side]:,}" + (f", {features[f'{side}_used']:,} used" if f"{side}_used" in features else "")
        for side in ("old", "new")
    ]
    yield ["features", *cells, "; ".join(said) or "the same"]


def _of_shape(shape: Mapping[str, Any] | None) -> Iterator[Row]:
    if shape is None:
        return
    for name, old in shape["old"].items():
        new, words = shape["new"][name], name.replace("_", " ")
        if isinstance(old, int):
            yield [words, f"{old:,}", f"{new:,}", _signed(new - old)]
        elif old != new:
            yield [words, old, new, "another"]


def _of_influence(influence: Sequence[Mapping[str, Any]] | None, top: int) -> Iterator[Row]:
    moved = [row for row in influence or () if row["difference"]]
    for row in moved[:top]:
        cells = ["-" if row[side] is None else f"{row[side]:.2%}" for side in ("old", "new")]
        yield [f"influence of {row['feature']}", *cells, f"{100 * row['difference']:+.2f}"]
    if len(moved) > top:
        yield ["", "", "", f"and {len(moved) - top} features whose influence moved less"]


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


def _differ(sides: Mapping[str, Any]) -> bool:
    """Whether both are known, and differ."""
    return sides["old"] != sides["new"] and None not in (sides["old"], sides["new"])


def _plain(value: object) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _short(value: object) -> str:
    """Say a digest, or a model with its digest, in a few letters."""
    if isinstance(value, dict):
        return str(value.get("model") or value.get("sha256"))[:64]
    return "-" if value is None else str(value)[:12]
