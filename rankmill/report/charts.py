"""Draw the charts of the report as inline SVG; all text is escaped."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from rankmill.report.formatting import MINUS, count, counted, interval, metric_name, number, percent, short, signed

if TYPE_CHECKING:
    from rankmill.report.facts import InfluenceFacts, LearningFacts, QueriesFacts

LETTER, WIDE_LETTER = 0.6, 1.05  # approximate width of a Latin and an East Asian letter, in font sizes
SMALL, NORMAL = 12.0, 13.0  # font sizes in pixels
ROW, BAR, AXIS = 30.0, 26.0, 26.0  # heights
_SETS = {"holdout": "held out", "cv": "cross-validation"}


class Drawing:
    """A drawing of ``width`` x ``height`` pixels; ``label`` describes it for screen readers."""

    def __init__(self, width: float, height: float, label: str) -> None:
        self.width, self.height, self._label = width, height, label
        self._marks: list[Markup] = []

    def line(self, x1: float, y1: float, x2: float, y2: float, css: str, title: str = "") -> None:
        """Draw a line between two points."""
        self._add("line", css, title, x1=x1, y1=y1, x2=x2, y2=y2)

    def rect(self, x: float, y: float, width: float, height: float, css: str, title: str = "") -> None:
        """Fill a rectangle."""
        self._add("rect", css, title, x=x, y=y, width=max(0.0, width), height=max(0.0, height))

    def circle(self, x: float, y: float, radius: float, css: str, title: str = "") -> None:
        """Draw a circle."""
        self._add("circle", css, title, cx=x, cy=y, r=radius)

    def path(self, points: Sequence[tuple[float, float]], css: str, title: str = "") -> None:
        """Draw a line through ``points``."""
        if points:
            self._add("path", css, title, d="M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in points))

    def text(self, x: float, y: float, words: str, css: str = "", *, anchor: str = "start") -> None:
        """Write ``words``; ``anchor``: start, middle or end."""
        self._marks.append(
            Markup('<text x="{}" y="{}" text-anchor="{}" class="{}">{}</text>').format(
                _short(x), _short(y), anchor, css, words
            )
        )

    def axis(self, scale: Scale, about: int, y: float, *, signs: bool = False, whole: bool = False) -> list[float]:
        """Write the numbers of a horizontal axis at the height ``y`` without overlaps; return their positions.

        ``signs`` puts a plus before numbers above 0; ``whole`` leaves fractions out.
        """
        values, free = ticks(scale.low, scale.high, about), -math.inf
        values = [value for value in values if not whole or value == int(value)]
        for value, words in zip(values, tick_words(values), strict=True):
            text = f"+{words}" if signs and value > 0 else words
            half = widest([text]) / 2
            at = min(max(scale(value), half), self.width - half)
            if at - half >= free:
                self.text(at, y, text, "tick", anchor="middle")
                free = at + half + 4.0
        return values

    def svg(self) -> Markup:
        """Return the drawing."""
        width, height = _short(self.width), _short(self.height)
        return Markup(
            '<svg class="chart" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}">{3}</svg>'
        ).format(width, height, self._label, Markup("").join(self._marks))

    def _add(self, tag: str, css: str, title: str, **numbers: float | str) -> None:
        attributes = Markup("").join(
            Markup(' {}="{}"').format(name, value if isinstance(value, str) else _short(value))
            for name, value in numbers.items()
        )
        inside = Markup("<title>{}</title>").format(title) if title else Markup("")
        self._marks.append(Markup('<{} class="{}"{}>{}</{}>').format(tag, css, attributes, inside, tag))


class Scale(NamedTuple):
    """Maps numbers from ``low`` to ``high`` to pixels from ``start`` to ``stop``."""

    low: float
    high: float
    start: float
    stop: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, stop: float) -> Scale:
        """Return a scale with some space beyond ``values``."""
        low, high = min(values, default=0.0), max(values, default=1.0)
        space = 0.06 * (high - low) if high - low > 1e-9 else 0.01
        return cls(low - space, high + space, start, stop)

    def __call__(self, value: float) -> float:
        """Return the position of ``value``, clipped to the ends."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, share)) * (self.stop - self.start)


class Difference(NamedTuple):
    """A row of `differences`: label, note on the right, and the difference with its 95 % interval, if known."""

    label: str
    note: str
    value: float | None
    interval: tuple[float, float] | None

    @property
    def ends(self) -> list[float]:
        """The ends of the interval, or the value."""
        return [*(self.interval or ()), *([] if self.value is None else [self.value])]


def differences(
    rows: Sequence[Difference],
    width: float,
    *,
    what: str,
    shared: Sequence[Difference] = (),
    margin: float | None = None,
) -> Markup:
    """Draw differences with their intervals around 0, one per row.

    Parameters
    ----------
    rows
        From top to bottom.
    what
        Description of the difference, for screen readers.
    shared
        The rows of all charts with the same axis and the same width of labels.
    margin
        Position of an extra line, drawn if it is within the axis.
    """
    narrow = width < 500
    together = shared or rows
    figures = ["none counts" if row.value is None else signed(row.value) for row in rows]
    notes = widest([row.note for row in rows], NORMAL) + 12
    left = 0.0 if narrow else min(0.34 * width, widest([row.label for row in together]) + 16)
    right = 0.0 if narrow else notes + widest(figures, NORMAL) + 12
    x = Scale.over([0.0, *(end for row in together for end in row.ends)], left + 10, width - right - 10)
    row_height = ROW + 16 if narrow else ROW
    top = 18.0
    bottom = top + row_height * len(rows)
    description = "; ".join(f"{row.label}: {signed(row.value)} ({interval(row.interval, sign=True)})" for row in rows)
    art = Drawing(width, bottom + AXIS, f"{what}. {description}")
    if x(0.0) > 60.0:
        art.text(x(0.0) - 8, 11, "worse", "axis-word", anchor="end")
    if x(0.0) < width - 60.0:
        art.text(x(0.0) + 8, 11, "better", "axis-word")
    heights = [top + row_height * i + (row_height - 12 if narrow else row_height / 2) for i in range(len(rows))]
    spans = [(y - 9, y + 9) for y in heights] if narrow else [(top, bottom)]  # on a phone, lines do not cross the text
    upright = [(value, "grid") for value in art.axis(x, max(2, int((x.stop - x.start) / 90)), bottom + 16, signs=True)]
    upright.append((0.0, "zero"))
    if margin is not None and x.low < -margin < 0.0 and x(0.0) - x(-margin) > 2.0:
        upright.append((-margin, "margin"))
    for value, css in upright:
        for start, stop in spans:
            art.line(x(value), start, x(value), stop, css, f"margin {signed(value)}" if css == "margin" else "")
    for row, y, figure in zip(rows, heights, figures, strict=True):
        if narrow:
            words = figure + (f", {row.note}" if row.note else "")
            art.text(0, y - 14, clipped(row.label, width - widest([words], NORMAL) - 8), "name")
            art.text(width, y - 14, words, "figure", anchor="end")
        else:
            art.text(0, y + 4, clipped(row.label, left - 8), "name")
            art.text(width - notes, y + 4, figure, "figure strong", anchor="end")
            art.text(width, y + 4, row.note, "figure", anchor="end")
        if row.value is not None:
            low, high = row.interval or (-math.inf, math.inf)
            css = "even" if low <= 0.0 <= high else ("gain" if low > 0.0 else "loss")
            title = f"{row.label}: {signed(row.value)} ({interval(row.interval, sign=True)})"
            if row.interval is not None:
                art.line(x(low), y, x(high), y, f"whisker {css}", title)
            art.circle(x(row.value), y, 4.5, f"dot {css}", title)
    return art.svg()


def gaps(found: QueriesFacts, width: float) -> Markup:
    """Draw a histogram of the differences of queries, without ties."""
    highest = max([*found.counts, 1])
    left, bottom, height = 40.0, 196.0, 236.0
    x, y = Scale(found.edges[0], found.edges[-1], left, width - 12), Scale(0.0, highest * 1.05, bottom, 14.0)
    bars = list(zip(found.edges, found.edges[1:], found.counts, strict=False))
    description = ", ".join(f"{short(low)} to {short(high)}: {k}" for low, high, k in bars if k)
    art = Drawing(width, height, f"Differences of queries. {description}")
    for value in ticks(0.0, float(highest), 4):
        if value == int(value):
            art.line(left, y(value), width - 12, y(value), "grid")
            art.text(left - 6, y(value) + 4, count(int(value)), "tick", anchor="end")
    for low, high, k in bars:
        title = f"{signed(low, 3)} to {signed(high, 3)}: {counted(k, 'query')}"
        art.rect(x(low) + 0.5, y(k), x(high) - x(low) - 1, bottom - y(k), "bar gain" if low >= 0 else "bar loss", title)
    art.line(x(0.0), 6, x(0.0), bottom, "zero")
    art.axis(x, max(3, int(width / 110)), bottom + 16, signs=True)
    art.text((left + width - 12) / 2, bottom + 36, "difference of a query", "axis-word", anchor="middle")
    return art.svg()


def curves(learning: LearningFacts, width: float) -> Markup:
    """Draw the metric after every round for each seed on the deciding queries.

    The chosen seed is also drawn on the training queries.
    """
    deciding = learning.deciding
    taken = [run for run in learning.seeds if run.chosen] or [learning.seeds[0]]
    chosen = taken[0]
    lines = [
        (run, name)
        for run in learning.seeds
        for name in run.curves
        if name == deciding or run is chosen or deciding is None
    ]
    values = [value for run, name in lines for value in run.curves[name] if value is not None]
    left, right, bottom = 46.0, 76.0, 236.0
    last = max(run.rounds[-1] for run in learning.seeds)
    x, y = Scale(1, max(last, 2), left, width - right), Scale.over(values, bottom, 12.0)
    kept = ", ".join(f"seed {run.seed}: {run.best_round} of {run.rounds_trained} rounds kept" for run in learning.seeds)
    art = Drawing(width, bottom + 40, f"{metric_name(learning.metric)} by round; {kept}")
    marks = ticks(y.low, y.high, 5)
    for value, words in zip(marks, tick_words(marks), strict=True):
        art.line(left, y(value), width - right, y(value), "grid")
        art.text(left - 6, y(value) + 4, words, "tick", anchor="end")
    art.axis(x, max(3, int(width / 140)), bottom + 16, whole=True)
    art.text((left + width - right) / 2, bottom + 36, "rounds", "axis-word", anchor="middle")
    ends: list[tuple[float, str, str]] = []
    for run, name in sorted(lines, key=lambda each: (each[0] is chosen, each[1] == deciding)):
        css = "train" if name != deciding else ("main" if run in taken else "other")
        points = [(x(n), y(v)) for n, v in zip(run.rounds, run.curves[name], strict=True) if v is not None]
        art.path(points, f"line {css}", f"seed {run.seed}, {_SETS.get(name, name)}")
        if points and run is chosen:
            ends.append((points[-1][1], _SETS.get(name, name), "main-word" if css == "main" else "soft-word"))
    if chosen.best_round is not None and len(taken) == 1:
        at = x(chosen.best_round)
        art.line(at, 12, at, bottom, "chosen-round", f"round {chosen.best_round} was taken")
        side = "end" if at > 0.5 * (left + width - right) else "start"
        words = f"round {count(chosen.best_round)}"
        art.text(at + (-6 if side == "end" else 6), bottom - 8, words, "main-word", anchor=side)
    for run in taken:
        best = run.at_best.get(deciding or "")
        if best is not None and run.best_round is not None:
            title = f"seed {run.seed}: {number(best)} after round {run.best_round}"
            art.circle(x(run.best_round), y(best), 4.5, "dot gain", title)
    free = -math.inf
    for height, words, css in sorted(ends):  # labels move down so that none overlap
        free = max(height, free + 15.0)
        art.text(width - right + 8, free + 4, clipped(words, right - 8), css)
    return art.svg()


def influence(found: InfluenceFacts, width: float) -> Markup:
    """Draw the shares of features in the gains, the largest first; a mark shows the share in the current version."""
    rows = found.features
    left = min(0.36 * width, widest([row.feature for row in rows]) + 14)
    most = max([row.influence for row in rows] + [row.before or 0.0 for row in rows], default=1.0) or 1.0
    x = Scale(0.0, most, left, width - 56)
    description = "; ".join(f"{row.feature} {percent(row.influence)}" for row in rows)
    art = Drawing(width, BAR * len(rows) + 4, f"Relative influence: {description}")
    for i, row in enumerate(rows):
        y, end = BAR * i, x(row.influence)
        before = "" if row.before is None else f", {percent(row.before)} before"
        art.text(left - 8, y + 17, clipped(row.feature, left - 10), "name", anchor="end")
        title = f"{row.feature}: {percent(row.influence)}{before}"
        art.rect(left, y + 5, max(1.0, end - left), BAR - 10, "bar gain", title)
        if row.before:
            mark = x(row.before)
            end = mark if 0.0 < mark - end < 50.0 else end
            art.line(mark, y + 2, mark, y + BAR - 2, "tick-mark", title)
        art.text(end + 8, y + 17, percent(row.influence), "figure")
    return art.svg()


def ticks(low: float, high: float, about: int) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten between two numbers: about ``n``, at least two.

    >>> ticks(0.0, 1.0, 5), ticks(-0.4, 0.9, 2)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 0.5])
    """
    raw = (high - low) / max(1, about)
    base = 10.0 ** math.floor(math.log10(raw))
    steps = [k * base for k in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)]
    coarsest = next(i for i, step in enumerate(steps) if step >= raw * 0.999 or i == len(steps) - 1)
    found: list[float] = []
    for step in reversed(steps[: coarsest + 1]):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        found = [float(f"{i * step:.12g}") for i in range(first, last + 1)]
        if len(found) > 1:
            break
    return found


def tick_words(values: Sequence[float]) -> list[str]:
    """Format the numbers of an axis with as many decimals as their distance needs.

    >>> tick_words([0.0, 0.05, 0.1])
    ['0', '0.05', '0.10']
    """
    step = abs(values[1] - values[0]) if len(values) > 1 else 1.0
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    if digits > 6 or max(map(abs, values)) >= 1e7:
        return [f"{value:g}".replace("-", MINUS) for value in values]
    return ["0" if value == 0 else f"{value:,.{digits}f}".replace("-", MINUS) for value in values]


def widest(words: Sequence[str], size: float = SMALL) -> float:
    """Return the approximate width of the longest of ``words``."""
    return max((sum(map(_letter, each)) for each in words), default=0.0) * size


def clipped(words: str, width: float) -> str:
    """Shorten ``words`` to a width in pixels.

    >>> clipped("a_rather_long_name", 70)
    'a_rather…'
    """
    if widest([words]) <= width:
        return words
    free, kept = width / SMALL - LETTER, ""
    for letter in words:
        free -= _letter(letter)
        if free < 0.0 and len(kept) > 1:
            break
        kept += letter
    return f"{kept}…"


def _letter(letter: str) -> float:
    return WIDE_LETTER if unicodedata.east_asian_width(letter) in "WF" else LETTER


def _short(x: float) -> str:
    """Format a coordinate with few digits."""
    text = f"{x:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
