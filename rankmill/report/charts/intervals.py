"""Figures with their intervals: where several rankings stand, and how far apart two of them are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankmill.report.charts.drawing import NORMAL, Drawing, Scale, clipped, widest
from rankmill.report.words import interval, metric_name, number, signed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

ROW, LANE = 30.0, 13.0
_AXIS = 26.0
_MARKS = {"candidate": "candidate", "present": "rival", "row order": "bar-order", "best single feature": "bar-feature"}


def levels(metrics: dict[str, Any], width: float) -> Markup:
    """Draw the mean of each metric under each ranking, from 0 on: a row a metric, in it a lane a ranking."""
    rankings = metrics["rankings"]
    names = list(rankings[0]["metrics"])
    means = [found["mean"] for each in rankings for found in each["metrics"].values() if found["mean"] is not None]
    tops = [found["interval"][1] for each in rankings for found in each["metrics"].values() if found["interval"]]
    left = min(0.34 * width, widest([metric_name(name) for name in names], NORMAL) + 22)
    high = max([*means, *tops, 0.0]) or 1.0
    x = Scale(min(0.0, *means), high, left, width - 14)
    row = LANE * len(rankings) + 18
    height = row * len(names) + _AXIS
    label = "; ".join(
        f"{metric_name(name)}: "
        + ", ".join(f"{each['name']} {number(each['metrics'][name]['mean'])}" for each in rankings)
        for name in names
    )
    art = Drawing(width, height, label)
    for value in art.axis(x, max(2, int((x.stop - x.start) / 90)), height - _AXIS + 16):
        art.line(x(value), 0, x(value), height - _AXIS, "grid")
    for i, name in enumerate(names):
        if i:
            art.line(0, row * i, width, row * i, "thread")
        art.text(0, row * i + 9 + LANE / 2 + 4, clipped(metric_name(name), left - 6), "name")
        for lane, each in enumerate(rankings):
            y = row * i + 9 + LANE * (lane + 0.5)
            found = each["metrics"][name]
            if found["mean"] is None:
                continue
            title = f"{each['name']}: {number(found['mean'])} ({interval(found['interval'])})"
            css = _MARKS[each["kind"]]
            if found["interval"]:
                art.line(x(found["interval"][0]), y, x(found["interval"][1]), y, f"whisker {css}", title)
            _mark(art, each["kind"], x(found["mean"]), y, title)
    return art.svg()


def _mark(art: Drawing, kind: str, x: float, y: float, title: str) -> None:
    css = _MARKS[kind]
    if kind == "row order":
        art.line(x, y - 5, x, y + 5, f"tick-mark {css}", title)
    elif kind == "best single feature":
        art.diamond(x, y, 5.5, f"dot {css}", title)
    else:
        art.circle(x, y, 5.0, f"dot {css}", title)


def forest(
    rows: Sequence[dict[str, Any]],
    width: float,
    *,
    what: str,
    limits: tuple[float, float],
    margin: float | None = None,
    labels: float | None = None,
) -> Markup:
    """Draw differences with their intervals around 0, a row each.

    Parameters
    ----------
    rows
        With ``label``, ``note``, ``value`` and ``interval``; either of the last two may be None.
    what
        What the difference is, for who cannot see it.
    limits
        The ends of the axis, so that several of them can be compared.
    margin
        Where a line of its own stands, if that is within the axis.
    labels
        Pixels for the labels, so that several drawings stand under one another; None: as they need.
    """
    narrow = width < 500
    figures = ["none counts" if row["value"] is None else signed(row["value"]) for row in rows]
    notes = widest([row["note"] for row in rows], NORMAL) + 12
    left = 0.0 if narrow else min(0.34 * width, labels or label_width(rows))
    right = 0.0 if narrow else notes + widest(figures, NORMAL) + 12
    x = Scale(*limits, left + 10, width - right - 10)
    row_height = ROW + 16 if narrow else ROW
    top = 18.0
    height = top + row_height * len(rows) + _AXIS
    told = "; ".join(f"{row['label']}: {signed(row['value'])} ({interval(row['interval'], sign=True)})" for row in rows)
    art = Drawing(width, height, f"{what}. {told}")
    bottom = height - _AXIS
    if x(0.0) > 60.0:
        art.text(x(0.0) - 8, 11, "worse", "axis-word", anchor="end")
    if x(0.0) < width - 60.0:
        art.text(x(0.0) + 8, 11, "better", "axis-word")
    heights = [top + row_height * i + (row_height - 12 if narrow else row_height / 2) for i in range(len(rows))]
    spans = [(y - 9, y + 9) for y in heights] if narrow else [(top, bottom)]  # on a phone no line crosses the words
    upright = [
        (value, "grid", "") for value in art.axis(x, max(2, int((x.stop - x.start) / 90)), bottom + 16, signs=True)
    ]
    upright.append((0.0, "zero", ""))
    if margin is not None and limits[0] < -margin < 0.0 and x(0.0) - x(-margin) > 2.0:
        upright.append((-margin, "margin", f"margin {signed(-margin)}"))
    for value, css, title in upright:
        for start, stop in spans:
            art.line(x(value), start, x(value), stop, css, title)
    for row, y, figure in zip(rows, heights, figures, strict=True):
        note = row["note"]
        if narrow:
            told = figure + (f", {note}" if note else "")
            art.text(0, y - 14, clipped(row["label"], width - widest([told], NORMAL) - 8), "name")
            art.text(width, y - 14, told, "figure", anchor="end")
        else:
            art.text(0, y + 4, clipped(row["label"], left - 8), "name")
            art.text(width - notes, y + 4, figure, "figure strong", anchor="end")
            art.text(width, y + 4, note, "figure", anchor="end")
        if row["value"] is None:
            continue
        found = row["interval"]
        css = "even" if found is None or found[0] <= 0.0 <= found[1] else ("gain" if found[0] > 0.0 else "loss")
        title = f"{row['label']}: {signed(row['value'])} ({interval(found, sign=True)})"
        if found is not None:
            art.line(x(found[0]), y, x(found[1]), y, f"whisker {css}", title)
        art.circle(x(row["value"]), y, 4.5, f"dot {css}", title)
    return art.svg()


def limits_of(rows: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return the ends of an axis that holds all ``rows`` and 0, about as far to both sides as the figures go."""
    ends = [0.0]
    for row in rows:
        ends += row["interval"] or ([] if row["value"] is None else [row["value"]])
    low, high = min(ends), max(ends)
    room = 0.06 * (high - low) or 0.01
    return low - room, high + room


def label_width(rows: Sequence[dict[str, Any]]) -> float:
    """Return how many pixels the labels of ``rows`` need."""
    return widest([row["label"] for row in rows]) + 16
