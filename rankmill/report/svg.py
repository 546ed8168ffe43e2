"""Draw lines, rectangles, circles and text as inline SVG; all text is escaped."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence

from markupsafe import Markup

from rankmill.report.formatting import MINUS

LETTER, WIDE_LETTER = 0.6, 1.05  # approximate width of a Latin and an East Asian letter, in font sizes
SMALL, NORMAL = 12.0, 13.0  # font sizes in pixels


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

    def diamond(self, x: float, y: float, css: str, title: str) -> None:
        """Draw a square on its corner."""
        points = [(x, y - 5.5), (x + 5.5, y), (x, y + 5.5), (x - 5.5, y)]
        self.path(points, f"{css} closed", title, closed=True)

    def path(self, points: Sequence[tuple[float, float]], css: str, title: str = "", *, closed: bool = False) -> None:
        """Draw a line through ``points``."""
        if not points:
            return
        (x, y), *rest = points
        steps = f"M{_short(x)} {_short(y)}" + "".join(f"L{_short(x)} {_short(y)}" for x, y in rest)
        self._add("path", css, title, d=steps + ("Z" if closed else ""))

    def text(self, x: float, y: float, words: str, css: str = "", *, anchor: str = "start") -> None:
        """Write ``words``; ``anchor``: start, middle or end."""
        where = Markup("") if anchor == "start" else Markup(' text-anchor="{}"').format(anchor)
        kind = Markup(' class="{}"').format(css) if css else Markup("")
        self._marks.append(Markup('<text x="{}" y="{}"{}{}>{}</text>').format(_short(x), _short(y), where, kind, words))

    def axis(self, scale: Scale, about: int, y: float, *, signs: bool = False) -> list[float]:
        """Write the numbers of a horizontal axis at the height ``y`` without overlaps.

        Return the positions of the ticks.
        """
        values, free = scale.ticks(about), -math.inf
        for value, words in zip(values, tick_words(values), strict=True):
            text = f"+{words}" if signs and value > 0 else words
            half = widest([text]) / 2
            at = min(max(scale(value), half), self.width - half)
            if at - half >= free:
                self.text(at, y, text, "tick", anchor="middle")
                free = at + half + 4.0
        return values

    def svg(self, css: str = "") -> Markup:
        """Return the drawing."""
        return Markup(
            '<svg class="chart {}" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">{}</svg>'
        ).format(
            css, _short(self.width), _short(self.height), _short(self.width), _short(self.height), self._label,
            Markup("").join(self._marks),
        )  # fmt: skip

    def _add(self, tag: str, css: str, title: str, **numbers: float | str) -> None:
        attributes = Markup("").join(
            Markup(' {}="{}"').format(name, value if isinstance(value, str) else _short(value))
            for name, value in numbers.items()
        )
        inside = Markup("<title>{}</title>").format(title) if title else Markup("")
        self._marks.append(Markup('<{} class="{}"{}>{}</{}>').format(tag, css, attributes, inside, tag))


class Scale:
    """Maps numbers from ``low`` to ``high`` to pixels from ``start`` to ``stop``."""

    def __init__(self, low: float, high: float, start: float, stop: float) -> None:
        if not high > low:
            low, high = low - 0.5, high + 0.5
        self.low, self.high, self.start, self.stop = low, high, start, stop

    def __call__(self, value: float) -> float:
        """Return the position of ``value``, clipped to the ends."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, share)) * (self.stop - self.start)

    def ticks(self, about: int) -> list[float]:
        """Return about ``n`` round numbers within the scale."""
        return ticks(self.low, self.high, about)


def ticks(low: float, high: float, about: int) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten between two numbers: about ``n``, at least two.

    >>> ticks(0.0, 1.0, 5), ticks(-0.4, 0.9, 2)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 0.5])
    """
    if not high > low:
        return [low]
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
    if len(values) < 2:
        return [f"{value:g}" for value in values]
    step = abs(values[1] - values[0])
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step else 0
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
    room, kept = width / SMALL - LETTER, ""
    for letter in words:
        room -= _letter(letter)
        if room < 0.0 and len(kept) > 1:
            break
        kept += letter
    return f"{kept}…"


def _letter(letter: str) -> float:
    return WIDE_LETTER if unicodedata.east_asian_width(letter) in "WF" else LETTER


def _short(x: float) -> str:
    """Format a coordinate with few digits."""
    text = f"{x:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
