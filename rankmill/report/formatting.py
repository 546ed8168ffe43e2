"""Format numbers and names for the page, the charts and the Markdown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rankmill.report.facts import SliceFacts

_UPPER = {"ndcg", "dcg", "err", "map", "mrr", "rbp", "wta"}
MINUS = "\u2212"
MOST_DECIMALS = 9  # smaller differences are ties: `rankmill.scorer.metrics.significance.TIED`


def metric_name(metric: str) -> str:
    """Format the name of a metric.

    >>> metric_name("ndcg@10"), metric_name("map:bought"), metric_name("precision@5")
    ('NDCG@10', 'MAP:bought', 'precision@5')
    """
    head = re.split("[@(:]", metric, maxsplit=1)[0]
    return (head.upper() if head in _UPPER else head) + metric.removeprefix(head)


def number(x: float | None, digits: int = 4) -> str:
    """Format a number with a number of decimals and a real minus sign.

    >>> number(-0.01234), number(None)
    ('\u22120.0123', 'none')
    """
    if x is None:
        return "none"
    text = f"{x:.{digits}f}"
    if float(text) == 0.0:
        text = text.removeprefix("-")
    return text.replace("-", MINUS)


def decimals(values: Iterable[float], least: int, marks: Sequence[float] = (0.0,)) -> int:
    """Return the fewest decimals, at least ``least``, that show on which side of each of ``marks`` every value is.

    >>> decimals([0.0123, -0.00004], 3), decimals([-0.00496], 3, (0.0, -0.005))
    (5, 5)
    """
    pairs = [(value, mark) for value in values for mark in marks if value != mark]
    for digits in range(least, MOST_DECIMALS):
        if all(float(f"{value:.{digits}f}") != float(f"{mark:.{digits}f}") for value, mark in pairs):
            return digits
    return max(least, MOST_DECIMALS)


def signed(x: float | None, digits: int = 4) -> str:
    """Format a number with its sign, and with more decimals if it would be rounded to 0.

    >>> signed(0.01), signed(-0.5, 2), signed(0.0, 1), signed(-0.00002)
    ('+0.0100', '\u22120.50', '0.0', '\u22120.00002')
    """
    text = number(x, digits if x is None else decimals([x], digits))
    return text if x is None or text.startswith(MINUS) or float(text) == 0.0 else f"+{text}"


def count(n: float) -> str:
    """Format a count with thousands separators.

    >>> count(1234567)
    '1,234,567'
    """
    return f"{n:,}"


def counted(n: int, what: str) -> str:
    """Format a count with its noun in singular or plural.

    >>> counted(1, "query"), counted(1200, "query"), counted(2, "feature")
    ('1 query', '1,200 queries', '2 features')
    """
    several = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{n:,} {what if n == 1 else several}"


def percent(share: float | None, digits: int = 1) -> str:
    """Format a share as a percentage.

    >>> percent(0.123), percent(None)
    ('12.3%', 'none')
    """
    return "none" if share is None else f"{100.0 * share:.{digits}f}%"


def short(x: float) -> str:
    """Format a number with few digits, as on an axis.

    >>> short(0.25), short(-1500.0), short(1e-7), short(12345678.0)
    ('0.25', '\u22121,500', '1e\u22127', '1.235e+07')
    """
    if x == int(x) and abs(x) < 1e7:
        return f"{int(x):,}".replace("-", MINUS)
    text = f"{x:.4g}".replace("e-0", "e-")
    return text.replace("-", MINUS)


def interval(limits: Sequence[float] | None, digits: int = 4, *, sign: bool = False) -> str:
    """Format the ends of an interval; with ``sign`` only 0 is shown as 0.

    >>> interval([0.1, 0.25], 2), interval(None), interval([-0.0004, 0.012], 3, sign=True)
    ('0.10 to 0.25', '', '\u22120.0004 to +0.0120')
    """
    if limits is None:
        return ""
    digits = decimals(limits, digits) if sign else digits
    return " to ".join((signed if sign else number)(limit, digits) for limit in limits)


_SLICES = {
    "query_size": "documents per query",
    "n_relevant": "relevant documents per query",
    "share_relevant": "share of relevant documents",
}


def slice_title(by: str) -> str:
    """Return the title of a kind of slices.

    >>> slice_title("query_size"), slice_title("language")
    ('documents per query', 'language')
    """
    return _SLICES.get(by, by)


def slice_name(row: SliceFacts, by: str) -> str:
    """Return the name of a slice: its limits with few digits, or the common value of its queries."""
    if row.limits is None:
        return row.name
    ends = [limit for limit in row.limits if limit is not None]
    if len(ends) < 2:
        return row.name
    low, high = ((percent(limit) if by == "share_relevant" else short(limit)) for limit in ends)
    return low if low == high else f"{low} to {high}"
