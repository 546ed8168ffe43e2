"""Tables and labelled lines that fit the width of the terminal."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Iterator
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Literal, TextIO

from rankmill.foundation.shown import shown, shown_in_line, unwrapped

if TYPE_CHECKING:
    from rich.segment import Segment

LEAST_COLUMNS = 40
_PAGE, _LABEL = 100, 16  # columns of a line of notes, and of the words it starts with
_WIDE = 10_000  # without a terminal, a table is as wide as its cells
_EDGES, _GAP = 2, 3  # columns around a table, and between two of its columns


def page_width(elsewhere: int) -> int:
    """Return the columns of the terminal that stdout is, or ``COLUMNS``; ``elsewhere`` if neither is known."""
    return max(LEAST_COLUMNS, get_terminal_size((elsewhere, 24)).columns)


def labelled(label: str, words: str) -> str:
    """Wrap ``words`` in a column of their own beside ``label``."""
    width = min(_PAGE, page_width(_PAGE))
    return textwrap.fill(words, width, initial_indent=f"{label:<{_LABEL}}", subsequent_indent=" " * _LABEL)


def text_table(header: list[str], rows: list[list[str]]) -> str:
    """Lay out a table as text, the first column and those without a name to the left, as wide as its cells.

    On a narrower terminal, the columns that do not fit follow in a table below, which repeats the first column. A cell
    that is wider than the terminal is folded.
    """
    from rich.cells import cell_len

    header, rows = [*map(shown_in_line, header)], [[*map(shown_in_line, row)] for row in rows]
    width = page_width(_WIDE)
    needed = [max(map(cell_len, column)) for column in zip(header, *rows, strict=True)]
    first = min(needed[0], width // 2)
    parts: list[list[int]] = [[]]
    room = width - first - _EDGES
    for column, wide in enumerate(needed[1:], start=1):
        if parts[-1] and wide + _GAP > room:
            parts.append([])
            room = width - first - _EDGES
        parts[-1].append(column)
        room -= wide + _GAP
    return "\n\n".join(
        _one_table([header[i] for i in (0, *part)], [[row[i] for i in (0, *part)] for row in rows], first, width)
        for part in parts
    )


def console_on(stream: TextIO, **options: Any) -> Any:
    """Return a console of rich on ``stream``.

    Its styles are printed; text is passed through :func:`~rankmill.foundation.shown.shown`.
    """
    from rich.console import Console
    from rich.segment import Segment

    class ShownConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(shown(segment.text), segment.style)

    return ShownConsole(file=unwrapped(stream), **options)


def _one_table(header: list[str], rows: list[list[str]], first: int, width: int) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(header):
        justify: Literal["left", "right"] = "right" if i and name else "left"  # bars have no name
        table.add_column(Text(name), justify=justify, overflow="fold", min_width=None if i else first)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: names must not be read as markup
    page = io.StringIO()
    Console(file=page, width=width, color_system=None, force_terminal=False, force_jupyter=False).print(table)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines() if line.strip())


def plain_table(first: str, numbers: Iterable[str], rows: Iterable[Iterable[str]], last: str | None = None) -> Any:
    """Return a table of rich: a column of names, ``numbers`` to the right, and perhaps a ``last`` one of words."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(first, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right")
    if last is not None:
        table.add_column(last, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def printed(*parts: Any, width: int) -> list[str]:
    """Return the lines of ``parts``, text and tables of rich, as printed.

    They are ``width`` columns wide, without colours.
    """
    from rich.console import Console

    out = io.StringIO()
    console = Console(
        file=out, width=width, color_system=None, markup=False, emoji=False, highlight=False, force_jupyter=False
    )
    for part in parts:
        console.print(part)
    return [line.rstrip() for line in out.getvalue().splitlines()]
