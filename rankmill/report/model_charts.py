"""Charts of the model: learning curves, feature importance, dependence and scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankmill.report import Facts
from rankmill.report.formatting import count, metric_name, number, percent, short
from rankmill.report.svg import Drawing, Scale, clipped, tick_words, widest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

BAR = 26.0
ROW = 17.0  # height of a category
MOST_CATEGORIES = 10
_NAMES = {"train": "train", "valid": "valid", "holdout": "held out", "cv": "cross-validation"}


def curves(learning: Facts, width: float) -> Markup:
    """Draw the metric after every round for each seed on the deciding queries.

    The chosen seed is also drawn on the training queries.
    """
    runs, deciding = learning["seeds"], learning["deciding"]
    chosen = next((run for run in runs if run["chosen"]), runs[0])
    taken = [run for run in runs if run["chosen"]] or [chosen]
    lines = [
        (run, name) for run in runs for name in run["curves"] if name == deciding or run is chosen or deciding is None
    ]
    known = [(run["rounds"], run["curves"][name]) for run, name in lines]
    values = [value for _, row in known for value in row if value is not None]
    left, right, bottom, height = 46.0, 48.0, 236.0, 276.0
    last = max(run["rounds"][-1] for run in runs)
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.06 * (high - low) or 0.01
    x, y = Scale(1, last, left, width - right), Scale(low - room, high + room, bottom, 12.0)
    best = chosen["best_round"]
    description = f"{metric_name(learning['metric'])} by round; " + ", ".join(
        f"seed {run['seed']}: {run['best_round']} of {run['rounds_trained']} rounds kept" for run in runs
    )
    art = Drawing(width, height, description)
    marks = y.ticks(5)
    for value, words in zip(marks, tick_words(marks), strict=True):
        art.line(left, y(value), width - right, y(value), "grid")
        art.text(left - 6, y(value) + 4, words, "tick", anchor="end")
    art.axis(x, max(3, int(width / 140)), bottom + 16)
    art.text((left + width - right) / 2, bottom + 36, "rounds", "axis-word", anchor="middle")
    ends: list[tuple[float, float, str, str]] = []
    for run, name in sorted(lines, key=lambda each: (each[0] is chosen, each[1] == deciding)):
        row = run["curves"][name]
        css = "line train" if name != deciding else ("line main" if run in taken else "line other")
        points = [(x(n), y(v)) for n, v in zip(run["rounds"], row, strict=True) if v is not None]
        art.path(points, css, f"seed {run['seed']}, {_NAMES.get(name, name)}")
        if points and run is chosen:
            ends.append(
                (points[-1][1], points[-1][0], _NAMES.get(name, name), "main-word" if name == deciding else "soft-word")
            )
    if best is not None and len(taken) == 1:
        art.line(x(best), 12, x(best), bottom, "chosen-round", f"round {best} was taken")
        side = "end" if x(best) > 0.5 * (left + width - right) else "start"
        art.text(x(best) + (-6 if side == "end" else 6), bottom - 8, f"round {count(best)}", "main-word", anchor=side)
    for run in taken:
        at = run["at_best"].get(deciding)
        if at is not None:
            title = f"seed {run['seed']}: {number(at)} after round {run['best_round']}"
            art.circle(x(run["best_round"]), y(at), 4.5, "dot candidate", title)
    for at, end, words, css in _without_overlaps(ends):
        art.text(end + 8, at + 4, words, css)
    return art.svg()


def influence(found: Facts, width: float) -> Markup:
    """Draw the shares of features in the gains, the largest first; a mark shows the share in the current version."""
    rows = found["features"]
    left = min(0.36 * width, widest([row["feature"] for row in rows]) + 14)
    most = max([row["influence"] for row in rows] + [row["before"] or 0.0 for row in rows], default=1.0) or 1.0
    x = Scale(0.0, most, left, width - 56)
    description = "; ".join(f"{row['feature']} {percent(row['influence'])}" for row in rows)
    art = Drawing(width, BAR * len(rows) + 4, f"Relative influence: {description}")
    for i, row in enumerate(rows):
        y = BAR * i
        art.text(left - 8, y + 17, clipped(row["feature"], left - 10), "name", anchor="end")
        before = "" if row["before"] is None else f", {percent(row['before'])} before"
        art.rect(
            left,
            y + 5,
            max(1.0, x(row["influence"]) - left),
            BAR - 10,
            "bar gain",
            f"{row['feature']}: {percent(row['influence'])}{before}",
        )
        end = x(row["influence"])
        if row["before"]:
            end = x(row["before"]) if 0.0 < x(row["before"]) - end < 50.0 else end
            art.line(
                x(row["before"]),
                y + 2,
                x(row["before"]),
                y + BAR - 2,
                "tick-mark rival",
                f"{row['feature']}: {percent(row['before'])} before",
            )
        art.text(end + 8, y + 17, percent(row["influence"]), "figure")
    return art.svg()


def dependence(row: Facts, width: float) -> Markup:
    """Draw the score by the values of one feature, minus its mean over the rows.

    Marks below are the deciles of the rows.

    The ranges of both axes depend on the feature.  A categorical feature has a dot for each category.
    """
    values, now, then = row["values"], row["candidate"], row["before"]
    if then and ("categories" in now) != ("categories" in then):  # it was of another kind before
        row, then = {**row, "before": None}, None
    if "categories" in now:
        return _dots(row, width)
    points = [*now["points"], *(then["points"] if then else [])]
    low, high = min(points, default=0.0), max(points, default=1.0)
    beyond = 0.08 * (high - low)  # the curve is constant outside its points
    low, high = low - beyond, high + beyond
    if values is not None:  # limited to the range with most rows
        low, high = max(values["minimum"], low), min(values["maximum"], high)
        first, last = values["deciles"][0], values["deciles"][-1]
        if last > first:
            low, high = max(low, first - (last - first)), min(high, last + (last - first))
        low, high = min(low, first), max(high, last)
    bottom, height = 166.0, 222.0
    y = Scale(*_dependence_limits(row), bottom, 26.0)
    marks = y.ticks(4)
    left = widest(tick_words(marks)) + 8
    x = Scale(low, high, left, width - 10)
    span = max(now["outputs"], default=0.0) - min(now["outputs"], default=0.0)
    art = Drawing(
        width, height, f"{row['feature']}: the score moves by {number(span, 3)} from {short(low)} to {short(high)}"
    )
    art.text(0, 12, "score", "axis-word")
    for value, words in zip(marks, tick_words(marks), strict=True):
        art.line(left, y(value), width - 10, y(value), "zero" if value == 0 else "grid")
        art.text(left - 6, y(value) + 4, words, "tick", anchor="end")
    for curve, css in ((then, "line other"), (now, "line main")):
        if curve:
            steps = centred(curve, values)
            art.path([(x(a), y(b)) for a, b in _steps(curve["points"], steps, x.low, x.high)], css)
    for decile in [] if values is None else values["deciles"]:
        art.line(x(decile), bottom + 2, x(decile), bottom + 9, "rug")
    art.axis(x, max(3, int(width / 70)), bottom + 25)
    feature = clipped(row["feature"], width - left - 10)
    art.text((left + width - 10) / 2, bottom + 44, feature, "axis-word", anchor="middle")
    return art.svg("small")


def _dots(row: Facts, width: float) -> Markup:
    """Draw the score by the category of a feature, minus its mean over the categories, those that move it most."""
    now, then = row["candidate"], row["before"]
    outputs = dict(zip(now["categories"], centred(now, None), strict=True))
    before = dict(zip(then["categories"], centred(then, None), strict=True)) if then else {}
    shown = sorted(outputs, key=lambda text: (-abs(outputs[text]), text))[:MOST_CATEGORIES]
    shown.sort(key=lambda text: (-outputs[text], text))
    left = min(0.4 * width, widest(shown) + 14)
    x = Scale(*_dependence_limits(row), left, width - 10)
    description = "; ".join(f"{text} {short(outputs[text])}" for text in shown)
    bottom = ROW * len(shown) + 4
    art = Drawing(width, bottom + 36, f"{row['feature']}: {description}")
    for value in art.axis(x, max(3, int(width / 70)), bottom + 14):
        art.line(x(value), 0, x(value), bottom, "zero" if value == 0 else "grid")
    for i, text in enumerate(shown):
        y = ROW * (i + 0.5)
        art.text(left - 8, y + 4, clipped(text, left - 10), "name", anchor="end")
        if text in before:
            art.circle(x(before[text]), y, 3.0, "dot rival", f"{text}: {short(before[text])} before")
        art.circle(x(outputs[text]), y, 4.5, "dot candidate", f"{text}: {short(outputs[text])}")
    more = len(outputs) - len(shown)
    words = f"score; {more} more categories move it less" if more else "score"
    art.text((left + width - 10) / 2, bottom + 31, clipped(words, width - left - 10), "axis-word", anchor="middle")
    return art.svg("small")


def centred(curve: Facts, values: Facts | None) -> list[float]:
    """Return the outputs of a curve minus their mean at the deciles of the rows.

    If these are unknown, it is the mean over its points.
    """
    outputs = curve["outputs"]
    if not outputs:
        return []
    at = outputs if values is None else [_value(curve["points"], outputs, decile) for decile in values["deciles"]]
    mean = sum(at) / len(at)
    return [output - mean for output in outputs]


def _dependence_limits(row: Facts) -> tuple[float, float]:
    """Return the range of the scores of one feature."""
    ends = [0.0]
    for curve in (row["candidate"], row["before"]):
        ends += centred(curve, row["values"]) if curve else []
    low, high = min(ends), max(ends)
    room = 0.08 * (high - low) or 0.01
    return low - room, high + room


def scores(found: Facts, width: float) -> Markup:
    """Draw the distribution of the scores of each grade, the highest grade on top; the line is the median."""
    rows, edges = list(reversed(found["grades"])), found["edges"]
    words = [f"grade {row['grade']}" for row in rows]
    counts = [f"{count(row['documents'])} docs" for row in rows]
    left, ridge = widest([*words, *counts]) + 16, 58.0
    x = Scale(edges[0], edges[-1], left, width - 12)
    bottom = ridge * len(rows) + 6
    label = "; ".join(
        f"grade {row['grade']}: {count(row['documents'])} documents, median {short(row['median'] or 0.0)}"
        for row in rows
    )
    art = Drawing(width, bottom + 42, f"Scores by grade. {label}")
    for value in art.axis(x, max(3, int(width / 120)), bottom + 16):
        art.line(x(value), 0, x(value), bottom, "grid")
    art.text((left + width - 12) / 2, bottom + 36, "score", "axis-word", anchor="middle")
    for i, row in enumerate(rows):
        base = ridge * (i + 1)
        top = max([*row["counts"], 1])
        art.text(0, base - 22, words[i], "name")
        art.text(0, base - 6, counts[i], "tick")
        outline = [(x(edges[0]), base)]
        for low, high, k in zip(edges, edges[1:], row["counts"], strict=False):
            y = base - (ridge - 10) * k / top
            outline += [(x(low), y), (x(high), y)]
        outline.append((x(edges[-1]), base))
        art.path(outline, "ridge", f"grade {row['grade']}: {count(row['documents'])} documents", closed=True)
        if row["median"] is not None:
            at = x(row["median"])
            art.line(
                at, base - ridge + 10, at, base, "median", f"median of grade {row['grade']}: {short(row['median'])}"
            )
    return art.svg()


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of `bars`: ``figure`` is the value as text; ``alarm``: whether ``limit`` is exceeded."""

    label: str
    value: float
    figure: str
    limit: float | None = None
    alarm: bool = False


def bars(rows: Sequence[Bar], width: float, *, what: str) -> Markup:
    """Draw ``rows`` as bars with marks at their limits."""
    left = min(0.4 * width, widest([row.label for row in rows]) + 14)
    most = max([row.value for row in rows] + [row.limit or 0.0 for row in rows], default=1.0) or 1.0
    x = Scale(0.0, most, left, width - 64)
    art = Drawing(width, BAR * len(rows) + 4, f"{what}: " + "; ".join(f"{row.label} {row.figure}" for row in rows))
    for i, row in enumerate(rows):
        y = BAR * i
        css = "bar loss" if row.alarm else "bar quiet"
        art.text(left - 8, y + 17, clipped(row.label, left - 10), "name", anchor="end")
        art.rect(left, y + 5, max(1.0, x(row.value) - left), BAR - 10, css, f"{row.label}: {row.figure}")
        if row.limit is not None:
            art.line(x(row.limit), y + 2, x(row.limit), y + BAR - 2, "tick-mark rival")
        art.text(max(x(row.value), x(row.limit or 0.0)) + 8, y + 17, row.figure, "figure")
    return art.svg()


def _steps(points: Sequence[float], outputs: Sequence[float], low: float, high: float) -> list[tuple[float, float]]:
    """Return the corners of a step curve from ``low`` to ``high``.

    Each output holds down to the previous point.
    """
    corners: list[tuple[float, float]] = []
    start = low
    for i, (point, output) in enumerate(zip(points, outputs, strict=True)):
        end = high if i == len(points) - 1 else min(point, high)
        if end > start or (i == len(points) - 1 and not corners):
            corners += [(start, output), (end, output)]
            start = end
        if start >= high:
            break
    return corners


def _value(points: Sequence[float], outputs: Sequence[float], at: float) -> float:
    """Return the output for a value: that of the first point that is not below it."""
    return next((output for point, output in zip(points, outputs, strict=True) if at <= point), outputs[-1])


def _without_overlaps(labels: list[tuple[float, float, str, str]]) -> list[tuple[float, float, str, str]]:
    """Move labels, tuples that begin with a height, down so that none overlap."""
    placed: list[tuple[float, float, str, str]] = []
    for at, end, words, css in sorted(labels):
        placed.append((max(at, placed[-1][0] + 15.0) if placed else at, end, words, css))
    return placed
