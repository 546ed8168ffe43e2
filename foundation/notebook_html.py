"""HTML representations for notebooks: a title, a line of facts and short tables, without scripts or external files.

Text, lines and bars take their colours from the page, so that light and dark themes both work.  Everything is escaped
here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape as html_escape

from rankmill.foundation.shown import shown

MOST_ROWS = 10

_STYLE = """
div.rankmill { font-size: 13px; line-height: 1.45; max-width: 60em; overflow-x: auto; }
div.rankmill p { margin: 0 0 6px; }
div.rankmill p > b { font-size: 14px; }
div.rankmill span { margin-right: 1.4em; white-space: nowrap; }
div.rankmill i, div.rankmill caption, div.rankmill summary { font-style: normal; opacity: .65; }
div.rankmill i { margin-right: .4em; }
div.rankmill table { border-collapse: collapse; margin: 8px 0 12px; border: 0; }
div.rankmill table { font-size: inherit; font-variant-numeric: tabular-nums; }
div.rankmill caption { text-align: left; caption-side: top; padding: 0 0 3px; white-space: nowrap; }
div.rankmill th,
div.rankmill td { text-align: right; padding: 3px 0 3px 18px; border: 0; background: none; white-space: nowrap; }
div.rankmill table tr:nth-child(n) { border: 0; border-bottom: 1px solid rgba(128, 128, 128, .3); background: none; }
div.rankmill th { font-weight: 600; }
div.rankmill tr > :first-child { text-align: left; padding-left: 0; }
"""


def escape(text: str) -> str:
    """Return ``text`` for HTML."""
    return html_escape(shown(text))


@dataclass(frozen=True, slots=True)
class ShareCell:
    """A cell that holds a part of 1, shown as a bar and as per cent."""

    part: float


@dataclass(frozen=True, slots=True)
class HtmlTable:
    """A table of text and `ShareCell` cells. It shows the first ``MOST_ROWS`` rows and the number of the others."""

    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ""

    def render(self) -> str:
        """Return the table."""
        caption = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.header)
        rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in self.rows[:MOST_ROWS])
        more = len(self.rows) - MOST_ROWS
        foot = f'<tr><td colspan="{len(self.header)}"><i>and {more:,} more</i></td></tr>' if more > 0 else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}{foot}</tbody></table>"


def card(title: str, facts: Mapping[str, object], tables: Iterable[HtmlTable] = (), notes: Iterable[str] = ()) -> str:
    """Return HTML for ``_repr_html_``: ``title``, the ``facts`` by label, ``tables``, and ``notes`` of a sentence each.

    >>> "<b>a&lt;b</b>" in card("a<b", {"trees": 3})
    True
    """
    line = "".join(f"<span><i>{escape(label)}</i>{escape(str(value))}</span>" for label, value in facts.items())
    parts = [f"<p><b>{escape(title)}</b></p>", f"<p>{line}</p>" if line else ""]
    parts += [table.render() for table in tables]
    parts += [f"<p><i>{escape(note)}</i></p>" for note in notes]
    return f'<div class="rankmill"><style>{_STYLE}</style>{"".join(parts)}</div>'


def _cell(value: object) -> str:
    if isinstance(value, ShareCell):
        size = f"calc((100% - 12px) * {value.part:.4f}) 100%"
        bar = f"linear-gradient(rgba(60, 130, 220, .35) 0 0) no-repeat 12px 0 / {size}"
        return f'<td style="background: {bar}; min-width: 10em">{value.part:.1%}</td>'
    return f"<td>{escape(str(value))}</td>"
