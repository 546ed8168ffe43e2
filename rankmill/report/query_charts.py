"""Charts of queries: means and differences with intervals, numbers of wins and losses, and changes of lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankmill.report import Facts
from rankmill.report.formatting import count, counted, interval, metric_name, number, percent, short, signed
from rankmill.report.svg import NORMAL, Drawing, Scale, clipped, ticks, widest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

ROW, LANE = 30.0, 13.0
_AXIS = 26.0
_MARKS = {"candidate": "candidate", "present": "rival", "row order": "bar-order", "best single feature": "bar-feature"}


def levels(metrics: Facts, width: float) -> Markup:
    """Draw the mean of each metric for each ranking, from 0 on: one row per metric, with a lane per ranking."""
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
        art.diamond(x, y, f"dot {css}", title)
    else:
        art.circle(x, y, 5.0, f"dot {css}", title)


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """A row of `forest`: label, note on the right, and the difference with its 95 % interval, if known."""

    label: str
    note: str
    value: float | None
    interval: list[float] | None


def forest(
    rows: Sequence[DifferenceRow],
    width: float,
    *,
    what: str,
    limits: tuple[float, float],
    margin: float | None = None,
    labels: float | None = None,
) -> Markup:
    """Draw differences with their intervals around 0, one per row.

    Parameters
    ----------
    rows
        From top to bottom.
    what
        Description of the difference, for screen readers.
    limits
        The ends of the axis, so that several charts can be compared.
    margin
        Position of an extra line, drawn if it is within the axis.
    labels
        Width of the labels in pixels, to align several charts; None: as needed.
    """
    narrow = width < 500
    figures = ["none counts" if row.value is None else signed(row.value) for row in rows]
    notes = widest([row.note for row in rows], NORMAL) + 12
    left = 0.0 if narrow else min(0.34 * width, labels or label_width(rows))
    right = 0.0 if narrow else notes + widest(figures, NORMAL) + 12
    x = Scale(*limits, left + 10, width - right - 10)
    row_height = ROW + 16 if narrow else ROW
    top = 18.0
    height = top + row_height * len(rows) + _AXIS
    description = "; ".join(f"{row.label}: {signed(row.value)} ({interval(row.interval, sign=True)})" for row in rows)
    art = Drawing(width, height, f"{what}. {description}")
    bottom = height - _AXIS
    if x(0.0) > 60.0:
        art.text(x(0.0) - 8, 11, "worse", "axis-word", anchor="end")
    if x(0.0) < width - 60.0:
        art.text(x(0.0) + 8, 11, "better", "axis-word")
    heights = [top + row_height * i + (row_height - 12 if narrow else row_height / 2) for i in range(len(rows))]
    spans = [(y - 9, y + 9) for y in heights] if narrow else [(top, bottom)]  # on a phone, lines do not cross the text
    ticks_at = art.axis(x, max(2, int((x.stop - x.start) / 90)), bottom + 16, signs=True)
    upright = [*((value, "grid", "") for value in ticks_at), (0.0, "zero", "")]
    if margin is not None and limits[0] < -margin < 0.0 and x(0.0) - x(-margin) > 2.0:
        upright.append((-margin, "margin", f"margin {signed(-margin)}"))
    for value, css, title in upright:
        for start, stop in spans:
            art.line(x(value), start, x(value), stop, css, title)
    for row, y, figure in zip(rows, heights, figures, strict=True):
        if narrow:
            description = figure + (f", {row.note}" if row.note else "")
            art.text(0, y - 14, clipped(row.label, width - widest([description], NORMAL) - 8), "name")
            art.text(width, y - 14, description, "figure", anchor="end")
        else:
            art.text(0, y + 4, clipped(row.label, left - 8), "name")
            art.text(width - notes, y + 4, figure, "figure strong", anchor="end")
            art.text(width, y + 4, row.note, "figure", anchor="end")
        _whisker(art, x, y, row)
    return art.svg()


def _whisker(art: Drawing, x: Scale, y: float, row: DifferenceRow) -> None:
    """Draw one difference with its interval at the height ``y``."""
    if row.value is None:
        return
    found = row.interval
    css = "even" if found is None or found[0] <= 0.0 <= found[1] else ("gain" if found[0] > 0.0 else "loss")
    title = f"{row.label}: {signed(row.value)} ({interval(found, sign=True)})"
    if found is not None:
        art.line(x(found[0]), y, x(found[1]), y, f"whisker {css}", title)
    art.circle(x(row.value), y, 4.5, f"dot {css}", title)


def limits_of(rows: Sequence[DifferenceRow]) -> tuple[float, float]:
    """Return the ends of an axis that contains all ``rows`` and 0."""
    ends = [0.0]
    for row in rows:
        ends += row.interval or ([] if row.value is None else [row.value])
    low, high = min(ends), max(ends)
    room = 0.06 * (high - low) or 0.01
    return low - room, high + room


def label_width(rows: Sequence[DifferenceRow]) -> float:
    """Return the width of the labels of ``rows`` in pixels."""
    return widest([row.label for row in rows]) + 16


SLOT = 28.0  # height of a row of a list, as in the style sheet


def shares(found: Facts, width: float) -> Markup:
    """Draw the queries that lost, tied and won as one bar."""
    n = found["n_queries"]
    parts = [
        (found["losses"], "loss", "worse"),
        (found["ties"], "even", "the same"),
        (found["wins"], "gain", "better"),
    ]
    art = Drawing(width, 62, ", ".join(f"{count(k)} queries {words}" for k, _, words in parts))
    at = 0.0
    for k, css, words in parts:
        wide = width * k / n
        art.rect(
            at,
            22,
            max(0.0, wide - 2 if at + wide < width - 1 else wide),
            22,
            f"share {css}",
            f"{counted(k, 'query')} {words}",
        )
        at += wide
    texts = [f"{count(k)} {words}" for k, _, words in parts]
    art.text(0, 14, texts[0], "name loss-word")
    art.text(width, 14, texts[2], "name gain-word", anchor="end")
    middle = width * (found["losses"] + found["ties"] / 2) / n
    half = widest([texts[1]]) / 2
    art.text(min(max(middle, half), width - half), 59, texts[1], "tick", anchor="middle")
    return art.svg()


def gaps(found: Facts, width: float) -> Markup:
    """Draw a histogram of the differences of queries, without ties."""
    data = found["histogram"]
    edges, counts = data["edges"], data["counts"]
    highest = max([*counts, 1])
    left, bottom, height = 40.0, 196.0, 236.0
    x = Scale(edges[0], edges[-1], left, width - 12)
    y = Scale(0.0, highest * 1.05, bottom, 14.0)
    moved = f"of {counted(found['n_queries'], 'query')}; {counted(data['ties'], 'tie')} not drawn"
    description = ", ".join(
        f"{short(low)} to {short(high)}: {k}" for low, high, k in zip(edges, edges[1:], counts, strict=False) if k
    )
    art = Drawing(width, height, f"Differences {moved}. {description}")
    for value, words in _whole(highest):
        art.line(left, y(value), width - 12, y(value), "grid")
        art.text(left - 6, y(value) + 4, words, "tick", anchor="end")
    for low, high, k in zip(edges, edges[1:], counts, strict=False):
        title = f"{signed(low, 3)} to {signed(high, 3)}: {counted(k, 'query')}"
        art.rect(x(low) + 0.5, y(k), x(high) - x(low) - 1, bottom - y(k), "bar gain" if low >= 0 else "bar loss", title)
    art.line(x(0.0), 6, x(0.0), bottom, "zero")
    art.axis(x, max(3, int(width / 110)), bottom + 16, signs=True)
    art.text((left + width - 12) / 2, bottom + 36, "difference of a query", "axis-word", anchor="middle")
    return art.svg()


def moves(documents: list[Facts], max_grade: int, names: tuple[str, str], width: float = 116.0) -> Markup:
    """Draw the documents of a list in two orders, titled ``names``, with a line from the left rank to the right one."""
    before = sorted(range(len(documents)), key=lambda i: documents[i]["rank_before"])
    slot_before = {i: at for at, i in enumerate(before)}
    description = "; ".join(f"{row['doc_id']} from {row['rank_before']} to {row['rank']}" for row in documents)
    art = Drawing(width, SLOT * len(documents), f"Ranks {names[0]} and {names[1]}: {description}")
    left, right = 28.0, width - 28.0
    order = sorted(range(len(documents)), key=lambda i: documents[i]["grade"])  # draw relevant ones last, on top
    for i in order:
        row = documents[i]
        y1, y2 = SLOT * (slot_before[i] + 0.5), SLOT * (i + 0.5)
        css = "g0" if row["grade"] <= 0 else ("g2" if 2 * row["grade"] > max_grade else "g1")
        title = f"{row['doc_id']}, grade {row['grade']}: rank {row['rank_before']} {names[0]}, {row['rank']} {names[1]}"
        art.line(left, y1, right, y2, f"move {css}", title)
        art.circle(left, y1, 2.5, f"end {css}")
        art.circle(right, y2, 2.5, f"end {css}")
    for i, row in enumerate(documents):
        art.text(left - 8, SLOT * (slot_before[i] + 0.5) + 4, str(row["rank_before"]), "tick", anchor="end")
        art.text(right + 8, SLOT * (i + 0.5) + 4, str(row["rank"]), "figure strong")
    return art.svg("moves")


def _whole(highest: int) -> list[tuple[float, str]]:
    """Return the ticks of an axis of counts."""
    values = [value for value in ticks(0.0, float(highest), 4) if value == int(value)]
    return list(zip(values, [count(int(value)) for value in values], strict=True))


def grades(splits: list[Facts], width: float) -> Markup:
    """Draw the mix of grades of each split as a bar, from the lowest grade to the highest."""
    left = widest([each["name"] for each in splits]) + 12
    art = Drawing(
        width,
        38.0 * len(splits) + 6,
        "; ".join(
            f"{each['name']}: "
            + ", ".join(f"grade {g['grade']} {percent(g['documents'] / max(1, each['rows']))}" for g in each["grades"])
            for each in splits
        ),
    )
    for i, each in enumerate(splits):
        y, at = 38.0 * i + 2, left
        art.text(0, y + 18, each["name"], "name")
        levels = [g for g in each["grades"] if g["documents"]]
        top = max((g["grade"] for g in each["grades"]), default=1) or 1
        for g in levels:
            wide = (width - left) * g["documents"] / max(1, each["rows"])
            share = percent(g["documents"] / max(1, each["rows"]))
            step = 0 if g["grade"] <= 0 else min(4, 1 + int(3.999 * g["grade"] / (top + 1e-9)))
            art.rect(at, y, wide - 1.5, 26, f"grade-{step}", f"{each['name']}, grade {g['grade']}: {share}")
            for words in (f"{g['grade']}: {share}", str(g["grade"])):
                if wide > widest([words]) + 10:
                    art.text(at + 6, y + 18, words, f"on-grade-{step}")
                    break
            at += wide
    return art.svg()
