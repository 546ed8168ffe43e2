"""Reports of model inspection, as JSON and as text."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import NoTrees
from rankmill.foundation.records import as_json
from rankmill.foundation.terminal import text_table
from rankmill.scorer.evaluate.train_test_overlap import Scope
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.inspect.any_model import PermutationLoss
from rankmill.scorer.inspect.combine import Combination
from rankmill.scorer.inspect.contributions import Explained, Why
from rankmill.scorer.inspect.dependence import Dependence, Interaction
from rankmill.scorer.inspect.optimality import Optimality
from rankmill.scorer.metrics import Metric
from rankmill.scorer.models.identity import ModelIdentity
from rankmill.scorer.models.loading import importance_of, kind_of, splits_of
from rankmill.scorer.models.model import Model

BAR = 30  # characters of the longest bar
MAX_PIECES = 500  # of a combination's curve in its JSON
RowT = TypeVar("RowT")


@dataclass(frozen=True, slots=True)
class InspectionReport:
    """A result of an inspection: records by name, and lines of text."""

    facts: Mapping[str, object]
    lines: Sequence[str]

    def render(self, scope: Scope | None = None, *, json_line: bool) -> str:
        """Return one JSON object in one line, or the text; ``scope``: which queries of a dataset this is about."""
        if json_line:
            facts = {**self.facts} if scope is None else {**self.facts, "scope": scope}
            return json.dumps(_numbers(as_json(facts)), ensure_ascii=False, allow_nan=False)
        return "\n".join([*self.lines, *([] if scope is None else ["", f"splits: {scope.words()}"])])


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedDocument:
    """One of the two documents that are compared."""

    doc_id: str
    rank: int
    score: float
    output: float

    def __str__(self) -> str:
        return f"{self.doc_id} (rank {self.rank}, score {self.score:.6g})"


def influence_report(found: Model, model: ModelIdentity, top: int) -> InspectionReport:
    """Report the features by importance, the ``top`` first ones (0: all that the trees use).

    NoTrees if there are none with gains.
    """
    shares, splits = importance_of(found), splits_of(found)
    if shares is None:
        raise NoTrees(f"{kind_of(found)} has no gains; permute features on documents: --on CANDIDATES")
    used = [f for f in np.argsort(-shares, kind="stable").tolist() if splits[f]]
    shown = [(found.feature_names[f], float(shares[f]), int(splits[f])) for f in _first(used, top)]
    features = [{"feature": name, "influence": share, "splits": count} for name, share, count in shown]
    facts = {"model": model, "features": features, "n_used": len(used), "n_features": found.n_features}
    rows = _with_bars([[name, f"{share:.2%}", f"{n:,}"] for name, share, n in shown], [share for _, share, _ in shown])
    return InspectionReport(
        facts,
        [
            f"{model}: {len(used):,} of {found.n_features:,} features are used"
            + ("" if isinstance(found, Forest) else " by its trees, whose mean this is"),
            text_table(["feature", "influence", "splits", ""], rows),
            *_more(len(shown), len(used), "features"),
        ],
    )


def permutation_report(
    metric: Metric,
    value: float,
    losses: Sequence[PermutationLoss],
    model: ModelIdentity,
    *,
    repeats: int,
    top: int,
    conventions: str,
) -> InspectionReport:
    """Report the features by how much worse the metric gets without them, the ``top`` first ones (0: all)."""
    shown = _first(losses, top)
    facts = {"model": model, "metric": str(metric), "value": value, "repeats": repeats, "features": shown}
    cells = [[row.feature, f"{row.loss:+.4f}", f"{row.deviation:.4f}"] for row in shown]
    rows = _with_bars(cells, [max(row.loss, 0.0) for row in shown])
    return InspectionReport(
        facts,
        [
            f"{model}: {metric} {value:.4f}, and how much worse it gets if a feature is permuted within queries, "
            f"{repeats} times",
            text_table(["feature", "loss", "+-", ""], rows),
            *_more(len(shown), len(losses), "features"),
            conventions,
        ],
    )


def dependence_report(result: Dependence, model: ModelIdentity) -> InspectionReport:
    """Report the partial dependence at its points."""
    counted = "" if result.n_documents is None else f"{result.n_documents:,} "
    lines = [f"{model}: partial dependence on {' and '.join(result.features)}, mean over {counted}{result.over}"]
    known = result.categories or {}
    places = [
        list(known[name]) if name in known else _places(axis)
        for name, axis in zip(result.features, result.points, strict=True)
    ]
    for k, outputs in enumerate(result.outputs):
        if len(result.outputs) > 1:
            lines += ["", f"output {k}"]
        if len(result.features) == 1:
            header = [result.features[0], "output", ""]
            cells = _with_bars([[f"{y:.6g}"] for y in outputs.tolist()], (outputs - outputs.min()).tolist())
        else:
            header = [" \\ ".join(result.features), *places[1]]
            cells = [[f"{y:.4g}" for y in row] for row in outputs.tolist()]
        lines.append(text_table(header, [[x, *row] for x, row in zip(places[0], cells, strict=True)]))
    return InspectionReport({"model": model} | as_json(result), lines)


def _places(points: npt.NDArray[np.float32]) -> list[str]:
    """Return labels of points of a feature: short, but different for neighbours.

    Points just above a threshold have labels that say so.
    """
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
    result: Sequence[Interaction], model: ModelIdentity, *, over: str, output: int, n_documents: int, top: int
) -> InspectionReport:
    """Report H of features with all others, and of pairs, the ``top`` strongest of each (0: all)."""
    facts = {"model": model, "over": over, "output": output, "n_documents": n_documents, "interactions": result}
    lines = [f"{model}: Friedman's H at {n_documents:,} documents, dependences over {over}"]
    for size, title in ((1, "feature, with any other"), (2, "pair")):
        some = [one for one in result if len(one.features) == size]
        if some:
            shown = _first(some, top)
            rows = [[" x ".join(one.features), f"{one.h:.4f}", f"{one.strength:.4g}"] for one in shown]
            lines += ["", text_table([title, "H", "strength"], rows), *_more(len(shown), len(some), "rows")]
    return InspectionReport(facts, lines)


def shap_report(result: Explained, model: ModelIdentity, *, top: int, out: str | None) -> InspectionReport:
    """Report the features by the mean size of their contributions."""
    outputs: list[Mapping[str, object]] = []
    tables: list[str] = []
    for k, sizes in enumerate(result.mean_size):
        tables += [f"output {k}"] if len(result.mean_size) > 1 else []
        shown, table = _largest("feature", result, k, np.argsort(-sizes, kind="stable").tolist(), top, "features")
        features = [{"feature": names[0], "mean_size": mean, "greatest": most} for names, mean, most in shown]
        outputs.append({"output": k, "features": features})
        tables += table
    facts = {"model": model, **result.facts, "outputs": outputs, "out": out}
    lines = [_head("contributions", result, model), *tables, *([] if out is None else [f"wrote {out}"])]
    return InspectionReport(facts, lines)


def pairs_report(result: Explained, model: ModelIdentity, *, top: int) -> InspectionReport:
    """Report the features alone, and the pairs of features, by the mean size of their SHAP interaction values."""
    outputs: list[Mapping[str, object]] = []
    tables: list[str] = []
    n = len(result.features)
    singles, pairs = [(i, i) for i in range(n)], [(j, i) for i in range(n) for j in range(i)]
    for k, sizes in enumerate(result.mean_size):
        tables += [f"output {k}"] if len(result.mean_size) > 1 else []
        facts: dict[str, object] = {"output": k}
        for kind, title, cells in (("features", "feature alone", singles), ("pairs", "pair", pairs)):
            order = sorted(cells, key=lambda cell: -sizes[cell])
            shown, table = _largest(title, result, k, order, top, "rows")
            facts[kind] = [{"features": names, "mean_size": mean, "greatest": most} for names, mean, most in shown]
            tables += ["", *table] if shown else []
        outputs.append(facts)
    facts_of = {"model": model, **result.facts, "outputs": outputs}
    return InspectionReport(facts_of, [_head("SHAP interactions", result, model), *tables])


def _head(what: str, result: Explained, model: ModelIdentity) -> str:
    less = " less the mean of their query" if result.centred else ""
    return f"{model}: {what}{less}, {result.n_documents:,} documents of {result.n_queries:,} queries"


def _largest(
    title: str, result: Explained, output: int, order: Sequence[int | tuple[int, ...]], top: int, what: str
) -> tuple[list[tuple[tuple[str, ...], float, float]], list[str]]:
    """Return names, mean and maximum size of the ``top`` first slots in ``order``, and a table of them.

    Slots may be pairs of slots.
    """
    mean, greatest = result.mean_size[output], result.greatest[output]
    shown = []
    for at in _first(order, top):
        slots = at if isinstance(at, tuple) else (at,)
        names = tuple(dict.fromkeys(result.features[slot] for slot in slots))
        shown.append((names, float(mean[at]), float(greatest[at])))
    cells = [[" x ".join(names), f"{size:.6g}", f"{most:.6g}"] for names, size, most in shown]
    rows = _with_bars(cells, [size for _, size, _ in shown])
    header = [title, "mean |contribution|", "greatest", ""]
    return shown, [text_table(header, rows), *_more(len(shown), len(order), what)]


def leaves_report(forest: Forest, model: ModelIdentity, *, n_documents: int, out: str) -> InspectionReport:
    """Report that the leaves of documents were written."""
    facts = {"model": model, "n_documents": n_documents, "n_trees": forest.n_trees, "out": out}
    return InspectionReport(
        facts, [f"{model}: wrote {out}, the leaves of {n_documents:,} documents in {forest.n_trees:,} trees"]
    )


def why_report(
    result: Why,
    model: ModelIdentity,
    *,
    qid: str,
    doc_ids: tuple[str, str],
    ranks: tuple[int, int],
    top: int,
    n_outputs: int,
) -> InspectionReport:
    """Report the differences between two documents."""
    shown = _first(result.differences, top)
    rest = [one.difference for one in result.differences[len(shown) :] if one.difference]
    others, gap = math.fsum(rest), result.outputs[0] - result.outputs[1]
    above, below = (
        RankedDocument(doc_id=doc_ids[i], rank=ranks[i], score=result.scores[i], output=result.outputs[i])
        for i in (0, 1)
    )
    facts = {
        "model": model,
        "qid": qid,
        "output": result.output,
        "above": above,
        "below": below,
        "difference": gap,
        "features": shown,
        "others": others,
    }
    place = "above" if above.score > below.score else "level with" if above.score == below.score else "below"
    lines = [f"{model}, query {qid}: {above} is ranked {place} {below}"]
    if n_outputs > 1:
        lines.append(f"explains output {result.output} of {n_outputs}, before the link")
    rows = [
        [
            one.feature,
            *(one.categories or map(_shown, one.values)),
            *("" if x is None else f"{x:+.6g}" for x in (*(one.contributions or (None, None)), one.difference)),
        ]
        for one in shown
    ]
    rows = _with_bars(rows, [abs(one.difference) for one in shown])
    if rest:
        rows.append([f"{len(rest):,} others", *[""] * 4, f"{others:+.6g}", ""])
    rows.append(["all", *[""] * 4, f"{gap:+.6g}", ""])
    header = ["feature", "its value", "the other's", "contributes", "to the other", "difference", ""]
    return InspectionReport(facts, [*lines, text_table(header, rows)])


def combination_report(
    result: Combination, rankers: tuple[ModelIdentity | str, ModelIdentity | str], conventions: str
) -> InspectionReport:
    """Report the best mixture of two rankers, models or the names of scored lists."""
    pieces = list(zip(itertools.pairwise(result.borders.tolist()), result.means.tolist(), strict=True))
    best = sorted(pieces, key=lambda piece: -piece[1])[:MAX_PIECES]
    facts = {
        "rankers": [{"list": one} if isinstance(one, str) else one for one in rankers],
        "metric": str(result.metric),
        "weight": result.weight,
        "interval": result.interval,
        "value": result.value,
        "range": result.range,
        "at_ends": result.at_ends,
        "n_pieces": len(pieces),
        "n_queries": result.n_queries,
        "best_pieces": [{"from": low, "to": high, "mean": mean} for (low, high), mean in sorted(best)],
    }
    low, high = result.range
    rows = [[f"(1 - a) {rankers[0]} + a {rankers[1]}", f"{result.weight:.6g}", f"{result.value:.6f}"]]
    for weight, value in zip(result.range, result.at_ends, strict=True):
        name = f"{rankers[int(weight)]} alone" if weight in (0.0, 1.0) else "end of the range"
        rows.append([name, f"{weight:g}", f"{value:.6f}"])
    lines = [
        text_table(["scores", "a", str(result.metric)], rows),
        "",
        f"the best for all a between {result.interval[0]!r} and {result.interval[1]!r}"
        if result.interval[0] < result.interval[1]
        else "an end of the range is better than all values between",
        f"{len(pieces):,} different means between a = {low:g} and {high:g}, {result.n_queries:,} queries count",
        conventions,
    ]
    return InspectionReport(facts, lines)


def optimality_report(result: Optimality, model: ModelIdentity, conventions: str) -> InspectionReport:
    """Report whether the leaf values, or the weights of a net, are a local maximum."""
    falling = result.n_directions - result.n_rising - result.n_unchanged
    verdict = "undecided: some directions change nothing; try a larger step or more queries"
    if result.passed:
        verdict = "a local maximum in all tested directions"
    elif result.n_rising:
        verdict = "not a local maximum: it rises in some directions"
    lines = [
        f"{model}: {result.metric} {result.value:.6f}, mean of {result.n_queries:,} queries",
        f"along {result.n_directions:,} random directions of the {result.moved}, {result.step:g} of their length "
        f"away, it falls along {falling:,}, rises along {result.n_rising:,} and stays along {result.n_unchanged:,}",
        f"changes from {result.changes.least:+.6f} to {result.changes.greatest:+.6f}, {result.changes.mean:+.6f} on "
        "average",
        f"share of directions along which it rises: p = {result.p:.4f}, {result.interval[0]:.4f} to "
        f"{result.interval[1]:.4f} with confidence {result.confidence:g}",
        verdict,
        conventions,
    ]
    rows = []
    for curve in result.curves:
        best = int(np.lexsort((np.abs(result.moves), -np.array(curve.means)))[0])
        moved, gain = f"{result.moves[best]:+g}", f"{curve.means[best] - result.value:+.6f}"
        leaf = f"tree {curve.tree}, node {curve.leaf}"
        rows.append([leaf, f"{curve.n_documents:,}", f"{curve.value:.4g}", moved, gain])
    if rows:
        lines += ["", text_table(["leaf", "documents", "adds", "best moved by (RMS)", "gain"], rows)]
    return InspectionReport({"model": model} | as_json(result), lines)


def _first(rows: Sequence[RowT], top: int) -> Sequence[RowT]:
    return rows if top == 0 else rows[:top]


def _more(shown: int, there: int, what: str) -> list[str]:
    return [] if shown == there else [f"{there - shown:,} more {what}; --top 0 shows all"]


def _with_bars(rows: Sequence[list[str]], sizes: Sequence[float]) -> list[list[str]]:
    """Return ``rows`` with a bar for the size of each, all of equal width.

    The greatest has the longest bar; there are no bars if it is 0.
    """
    longest = max(sizes, default=0.0)
    bars = [f"{'#' * round(BAR * size / longest):<{BAR}}" if longest > 0.0 else "" for size in sizes]
    return [[*row, bar] for row, bar in zip(rows, bars, strict=True)]


def _shown(x: float) -> str:
    return "missing" if math.isnan(x) else f"{x:.6g}"


def _numbers(value: Any) -> Any:
    """Return values as JSON allows them: None for a missing number, a word for an infinite one."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
