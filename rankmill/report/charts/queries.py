"""Query by query: how many won and lost, by how much, and what became of a list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankmill.report.charts.drawing import Drawing, Scale, ticks, widest
from rankmill.report.words import count, counted, percent, short, signed

if TYPE_CHECKING:
    from markupsafe import Markup

SLOT = 28.0  # height of a row of a list, the same in the style sheet


def shares(found: dict[str, Any], width: float) -> Markup:
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


def gaps(found: dict[str, Any], width: float) -> Markup:
    """Draw how far queries moved, those that did: one bar a step of the difference."""
    data = found["histogram"]
    edges, counts = data["edges"], data["counts"]
    highest = max([*counts, 1])
    left, bottom, height = 40.0, 196.0, 236.0
    x = Scale(edges[0], edges[-1], left, width - 12)
    y = Scale(0.0, highest * 1.05, bottom, 14.0)
    moved = f"of {counted(found['n_queries'], 'query')}; {counted(data['ties'], 'tie')} not drawn"
    told = ", ".join(
        f"{short(low)} to {short(high)}: {k}" for low, high, k in zip(edges, edges[1:], counts, strict=False) if k
    )
    art = Drawing(width, height, f"Differences {moved}. {told}")
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


def moves(documents: list[dict[str, Any]], max_grade: int, names: tuple[str, str], width: float = 116.0) -> Markup:
    """Draw the documents of a list in two orders, each called as in ``names``: a line from the left rank to the right one."""
    before = sorted(range(len(documents)), key=lambda i: documents[i]["rank_before"])
    slot_before = {i: at for at, i in enumerate(before)}
    told = "; ".join(f"{row['doc_id']} from {row['rank_before']} to {row['rank']}" for row in documents)
    art = Drawing(width, SLOT * len(documents), f"Ranks {names[0]} and {names[1]}: {told}")
    left, right = 28.0, width - 28.0
    order = sorted(range(len(documents)), key=lambda i: documents[i]["grade"])  # the relevant ones on top
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


def grades(splits: list[dict[str, Any]], width: float) -> Markup:
    """Draw the mix of grades of each split: a bar each, from the lowest grade to the highest."""
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
