"""What was found in a model, as plain values for a program and as text for a person."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.scorer.evaluation import text_table
from rankmill.scorer.forest import Forest
from rankmill.scorer.inspect.combine import Combination
from rankmill.scorer.inspect.dependence import Dependence
from rankmill.scorer.inspect.influence import relative_influence
from rankmill.scorer.inspect.interaction import Interaction
from rankmill.scorer.inspect.optimality import Optimality
from rankmill.scorer.inspect.shap_file import Explained
from rankmill.scorer.inspect.why import Why
from rankmill.scorer.model_service import ModelIdentity
from rankmill.scorer.seen import Scope

BAR = 30  # characters of the longest bar
_CURVE_SHOWN = 500  # pieces of a combination's curve in its JSON


class Report:
    """A report with two faces: ``facts`` and ``text``."""

    def __init__(self, facts: Mapping[str, Any], text: str) -> None:
        self.facts = dict(facts)
        self.text = text

    def at(self, scope: Scope | None) -> Report:
        """Say which queries of a dataset this is about, and whether the models have seen them; nothing for None."""
        if scope is None:
            return self
        return Report({**self.facts, "scope": scope.to_dict()}, f"{self.text}\n\nsplits: {scope.words()}")

    def render(self, *, as_json: bool) -> str:
        """Return the facts as one JSON object in one line, or the text."""
        return json.dumps(self.facts, ensure_ascii=False, allow_nan=False) if as_json else self.text


def influence_report(forest: Forest, model: ModelIdentity, top: int) -> Report:
    """Tell the features by relative influence, the ``top`` first ones (0: all that are asked for)."""
    shares = relative_influence(forest)
    inner = forest.node_feature[forest.node_feature >= 0]
    splits = np.bincount(inner, minlength=forest.n_features)
    used = [int(f) for f in np.argsort(-shares, kind="stable") if splits[f]]
    shown = _first(used, top)
    rows = [
        {"feature": forest.feature_names[f], "influence": float(shares[f]), "splits": int(splits[f])} for f in shown
    ]
    facts = {"model": asdict(model), "features": rows, "n_used": len(used), "n_features": forest.n_features}
    longest = max((row["influence"] for row in rows), default=0.0)
    table = text_table(
        ["feature", "influence", "splits", ""],
        [
            [row["feature"], f"{row['influence']:.2%}", f"{row['splits']:,}", _bar(row["influence"], longest)]
            for row in rows
        ],
    )
    words = [f"{model}: {len(used):,} of {forest.n_features:,} features are asked for", table]
    return Report(facts, "\n".join([*words, *_more(len(shown), len(used), "features")]))


def dependence_report(found: Dependence, model: ModelIdentity) -> Report:
    """Tell the partial dependence at its points."""
    over = "training rows" if found.n_documents is None else "documents"
    facts = {
        "model": asdict(model),
        "features": found.features,
        "over": over,
        "n_documents": found.n_documents,
        "points": [[_value(x) for x in axis.tolist()] for axis in found.points],
        "outputs": found.outputs.tolist(),
    }
    counted = "" if found.n_documents is None else f"{found.n_documents:,} "
    parts = [f"{model}: partial dependence on {' and '.join(found.features)}, mean over {counted}{over}"]
    for k, outputs in enumerate(found.outputs):
        if len(found.outputs) > 1:
            parts += ["", f"output {k}"]
        parts.append(_curve(found, outputs) if len(found.features) == 1 else _surface(found, outputs))
    return Report(facts, "\n".join(parts))


def _curve(found: Dependence, outputs: npt.NDArray[np.float64]) -> str:
    low, high = float(outputs.min()), float(outputs.max())
    rows = [
        [x, f"{y:.6g}", _bar(y - low, high - low)]
        for x, y in zip(_places(found.points[0]), outputs.tolist(), strict=True)
    ]
    return text_table([found.features[0], "output", ""], rows)


def _surface(found: Dependence, outputs: npt.NDArray[np.float64]) -> str:
    first, second = found.features
    header = [f"{first} \\ {second}", *_places(found.points[1])]
    rows = [[x, *(f"{y:.4g}" for y in row)] for x, row in zip(_places(found.points[0]), outputs.tolist(), strict=True)]
    return text_table(header, rows)


def _places(points: npt.NDArray[np.float32]) -> list[str]:
    """Return points of a feature in words: as short as tells neighbours apart, and what is just above a threshold as above."""
    places: list[str] = []
    for before, x in zip([np.float32(np.nan), *points[:-1]], points, strict=True):
        place = _shown(float(x))
        if not np.isnan(before) and x == np.nextafter(before, np.float32(np.inf)):
            place = "above"
        elif places and place == places[-1]:
            place = str(x)
        places.append(place)
    return places


def interaction_report(
    found: Sequence[Interaction], model: ModelIdentity, *, over: str, output: int, n_documents: int, top: int
) -> Report:
    """Tell H of features with all others, and of pairs, the ``top`` strongest of each (0: all)."""
    rows = [{"features": one.features, "h": one.h, "strength": one.strength} for one in found]
    facts = {"model": asdict(model), "over": over, "output": output, "n_documents": n_documents, "interactions": rows}
    parts = [f"{model}: Friedman's H at {n_documents:,} documents, dependences over {over}"]
    for size, title in ((1, "feature, with any other"), (2, "pair")):
        some = [one for one in found if len(one.features) == size]
        if some:
            shown = _first(some, top)
            table = [[" x ".join(one.features), f"{one.h:.4f}", f"{one.strength:.4g}"] for one in shown]
            parts += ["", text_table([title, "H", "strength"], table), *_more(len(shown), len(some), "rows")]
    return Report(facts, "\n".join(parts))


def shap_report(found: Explained, model: ModelIdentity, *, top: int, out: str | None) -> Report:
    """Tell the features by the mean size of their contributions."""
    outputs, tables = [], []
    for k, sizes in enumerate(found.mean_size):
        order = np.argsort(-sizes, kind="stable")
        shown = _first([int(i) for i in order], top)
        rows = [
            {
                "feature": found.features[i],
                "mean_size": float(sizes[i]),
                "greatest": float(found.greatest[k, i]),
            }
            for i in shown
        ]
        outputs.append({"output": k, "features": rows})
        longest = max((row["mean_size"] for row in rows), default=0.0)
        table = [
            [row["feature"], f"{row['mean_size']:.6g}", f"{row['greatest']:.6g}", _bar(row["mean_size"], longest)]
            for row in rows
        ]
        title = [f"output {k}"] if len(found.mean_size) > 1 else []
        header = ["feature", "mean |contribution|", "greatest", ""]
        tables += [*title, text_table(header, table), *_more(len(shown), len(order), "features")]
    facts = {
        "model": asdict(model),
        "n_documents": found.n_documents,
        "n_queries": found.n_queries,
        "centred": found.centred,
        "outputs": outputs,
        "out": out,
    }
    what = "contributions less the mean of their query" if found.centred else "contributions"
    head = f"{model}: {what}, {found.n_documents:,} documents of {found.n_queries:,} queries"
    return Report(facts, "\n".join([head, *tables, *([] if out is None else [f"wrote {out}"])]))


def why_report(
    found: Why,
    model: ModelIdentity,
    *,
    qid: str,
    doc_ids: tuple[str, str],
    ranks: tuple[int, int],
    top: int,
    n_outputs: int,
) -> Report:
    """Tell what sets two documents apart."""
    shown = _first(list(found.differences), top)
    rest = [one for one in found.differences[len(shown) :] if one.difference]
    gap = found.outputs[0] - found.outputs[1]
    documents = [
        {"doc_id": name, "rank": rank, "score": score, "output": output}
        for name, rank, score, output in zip(doc_ids, ranks, found.scores, found.outputs, strict=True)
    ]
    facts = {
        "model": asdict(model),
        "qid": qid,
        "output": found.output,
        "above": documents[0],
        "below": documents[1],
        "difference": gap,
        "features": [
            {
                "feature": one.feature,
                "values": [_value(x) for x in one.values],
                "contributions": one.contributions,
                "difference": one.difference,
            }
            for one in shown
        ],
        "others": math.fsum(one.difference for one in rest),
    }
    place = (
        "above"
        if found.scores[0] > found.scores[1]
        else "level with"
        if found.scores[0] == found.scores[1]
        else "below"
    )
    head = [
        f"{model}, query {qid}: {doc_ids[0]} (rank {ranks[0]}, score {found.scores[0]:.6g}) stands {place} {doc_ids[1]} "
        f"(rank {ranks[1]}, score {found.scores[1]:.6g})"
    ]
    if n_outputs > 1:
        head.append(f"explained is output {found.output} of {n_outputs}, before the link")
    longest = max((abs(one.difference) for one in shown), default=0.0)
    rows = [
        [
            one.feature,
            *map(_shown, one.values),
            *(f"{x:+.6g}" for x in one.contributions),
            f"{one.difference:+.6g}",
            _bar(abs(one.difference), longest),
        ]
        for one in shown
    ]
    if rest:
        rows.append([f"{len(rest):,} others", *[""] * 4, f"{facts['others']:+.6g}", ""])
    rows.append(["all", "", "", "", "", f"{gap:+.6g}", ""])
    header = ["feature", "its value", "the other's", "contributes", "to the other", "difference", ""]
    return Report(facts, "\n".join([*head, text_table(header, rows)]))


def combination_report(
    found: Combination, rankers: tuple[ModelIdentity | str, ModelIdentity | str], conventions: str
) -> Report:
    """Tell the best mixture of two rankers, models or the names of scored lists."""
    pieces = list(zip(itertools.pairwise(found.borders.tolist()), found.means.tolist(), strict=True))
    best = sorted(pieces, key=lambda piece: -piece[1])[:_CURVE_SHOWN]
    facts = {
        "rankers": [{"list": one} if isinstance(one, str) else asdict(one) for one in rankers],
        "metric": str(found.metric),
        "weight": found.weight,
        "interval": found.interval,
        "value": found.value,
        "range": found.range,
        "at_ends": found.at_ends,
        "n_pieces": len(pieces),
        "n_queries": found.n_queries,
        "best_pieces": [{"from": low, "to": high, "mean": mean} for (low, high), mean in sorted(best)],
    }
    low, high = found.range
    rows = [
        [f"(1 - a) {rankers[0]} + a {rankers[1]}", f"{found.weight:.6g}", f"{found.value:.6f}"],
        [_alone(low, rankers), f"{low:g}", f"{found.at_ends[0]:.6f}"],
        [_alone(high, rankers), f"{high:g}", f"{found.at_ends[1]:.6f}"],
    ]
    words = [
        text_table(["scores", "a", str(found.metric)], rows),
        "",
        f"the best for every a between {found.interval[0]!r} and {found.interval[1]!r}"
        if found.interval[0] < found.interval[1]
        else "an end of the range is better than all between",
        f"{len(pieces):,} different means between a = {low:g} and {high:g}, {found.n_queries:,} queries count",
        conventions,
    ]
    return Report(facts, "\n".join(words))


def _alone(weight: float, rankers: tuple[ModelIdentity | str, ModelIdentity | str]) -> str:
    if weight in (0.0, 1.0):
        return f"{rankers[int(weight)]} alone"
    return "end of the range"


def optimality_report(found: Optimality, model: ModelIdentity, conventions: str) -> Report:
    """Tell whether the leaf values are a local maximum."""
    facts = {
        "model": asdict(model),
        "metric": str(found.metric),
        "value": found.value,
        "n_queries": found.n_queries,
        "passed": found.passed,
        "n_directions": found.n_directions,
        "n_rising": found.n_rising,
        "n_unchanged": found.n_unchanged,
        "p": found.p,
        "interval": found.interval,
        "confidence": 1.0 - found.delta,
        "step": found.step,
        "changes": dict(zip(("least", "mean", "greatest"), found.changes, strict=True)),
        "moves": found.moves,
        "curves": [asdict(curve) for curve in found.curves],
    }
    falling = found.n_directions - found.n_rising - found.n_unchanged
    words = [
        f"{model}: {found.metric} {found.value:.6f}, mean of {found.n_queries:,} queries",
        f"along {found.n_directions:,} random directions of the leaf values, {found.step:g} of their length away, it falls "
        f"along {falling:,}, rises along {found.n_rising:,} and stays along {found.n_unchanged:,}",
        f"changes from {found.changes[0]:+.6f} to {found.changes[2]:+.6f}, {found.changes[1]:+.6f} on average",
        f"share of directions along which it rises: p = {found.p:.4f}, {found.interval[0]:.4f} to {found.interval[1]:.4f} "
        f"with confidence {1.0 - found.delta:g}",
        "a local maximum, as far as these directions tell" if found.passed else _not_a_maximum(found),
        conventions,
    ]
    if found.curves:
        rows = []
        for curve in found.curves:
            at = int(np.lexsort((np.abs(found.moves), -np.array(curve.means)))[0])
            rows.append(
                [
                    f"tree {curve.tree}, node {curve.leaf}",
                    f"{curve.n_documents:,}",
                    f"{curve.value:.4g}",
                    f"{found.moves[at]:+g}",
                    f"{curve.means[at] - found.value:+.6f}",
                ]
            )
        words += ["", text_table(["leaf", "documents", "adds", "best moved by (RMS)", "gain"], rows)]
    return Report(facts, "\n".join(words))


def _not_a_maximum(found: Optimality) -> str:
    if found.n_rising:
        return "not a local maximum: there are directions along which it rises"
    return "no proof of a maximum: along some directions nothing changes; try a greater step or more queries"


def _first(rows: list[Any], top: int) -> list[Any]:
    return rows if top == 0 else rows[:top]


def _more(shown: int, there: int, what: str) -> list[str]:
    return [] if shown == there else [f"{there - shown:,} more {what}; --top 0 shows all"]


def _bar(value: float, longest: float) -> str:
    return "" if not longest > 0.0 else f"{'#' * round(BAR * value / longest):<{BAR}}"


def _shown(x: float) -> str:
    return "missing" if math.isnan(x) else f"{x:.6g}"


def _value(x: float) -> float | str | None:
    """Return a float32 as JSON has it: None where missing, a word where infinite."""
    if math.isnan(x):
        return None
    return float(x) if math.isfinite(x) else ("inf" if x > 0 else "-inf")
