"""How the registry's commands print: tables, lines, JSON, sizes; nothing that was stored steers a terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

import typer


def size_text(n: int) -> str:
    """Say a number of bytes with a fitting unit."""
    size, unit = float(n), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{n} B" if unit == "B" else f"{size:.1f} {unit}"


def flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    """Name each leaf of nested mappings by its path: {"valid": {"ndcg@10": 0.5}} is ("valid ndcg@10", "0.5")."""
    if isinstance(value, dict) and value:
        return [pair for key, inner in value.items() for pair in flat(inner, f"{path} {key}".strip())]
    text = f"{value:.6g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    return [(safe(path), safe(text))]


def lines_of(value: Any) -> str:
    """Write nested mappings as lines of a name and a value."""
    pairs = flat(value)
    width = max(len(path) for path, _ in pairs)
    return "\n".join(f"{path:<{width}}  {text or '(left out)'}".strip() for path, text in pairs)


def safe(text: str) -> str:
    r"""Write every character that does not print (control codes, changes of direction, ends of lines) as ``?``.

    >>> safe("a\x1b[31mb")
    'a?[31mb'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object on one line; characters that do not print are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    typer.echo(text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text))


def print_lines(lines: Iterable[tuple[str, str]]) -> None:
    """Print (text, style) a line each, however long; styles such as ``bold red`` show on a terminal only."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for text, style in lines:
        console.print(Text(safe(text), style=style), soft_wrap=True)


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Print a table; nothing in a cell is taken for markup or sent to the terminal as a control code."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in header:
        table.add_column(Text(title), overflow="fold")
    for row in rows:  # as plain text: what came from a manifest or a reason is neither markup nor control codes
        table.add_row(*(Text("\n".join(map(safe, cell.split("\n")))) for cell in row))
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 160  # lines of a file need not fold where a terminal would
    console.print(table)
