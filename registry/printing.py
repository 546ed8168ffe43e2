"""Tables, JSON lines and words for what the registry holds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from registry.entry import Entry


def entry_json(entry: Entry) -> dict[str, Any]:
    """Give an entry of a log as JSON values, with the digest that names it."""
    return entry.to_json() | {"sha256": entry.digest}


def what_of(entry: Entry) -> str:
    """Say what an entry did."""
    from registry import changes  # here, so that the command line starts without pydantic

    match entry.change:
        case changes.Register() as change:
            return f"registered version {change.version}"
        case changes.Move() as change:
            before = "not set before" if change.previous is None else f"before: {change.previous}"
            if change.op == "rollback":
                return f"rolled {change.alias} back to version {change.version} ({before})"
            how = "FORCED" if change.op == "force" else "promoted"
            return f"{how} version {change.version} to {change.alias} ({before})"
        case changes.Unset() as change:
            return f"unset {change.alias} (before: {change.previous})"
        case changes.Tag() as change:
            what = f"without {change.key}" if change.value is None else f"{change.key}={change.value}"
            return f"tagged version {change.version}: {what}"
        case changes.Protect() as change:
            return f"{'opened' if change.policy is None else 'protected'} {change.alias}"
        case changes.Gate() as change:
            return f"gate for {change.alias}: version {change.version} {'passed' if change.passed else 'did not pass'}"
        case changes.Mark() as change:
            return f"marked versions {', '.join(map(str, change.versions)) or 'none'} to be swept"
        case changes.Sweep() as change:
            return f"swept versions {', '.join(map(str, change.versions))}"


def when_of(entry: Entry) -> str:
    """Say when an entry was written: UTC, to the second."""
    return entry.time[:19].replace("T", " ")


def who_of(entry: Entry) -> str:
    """Say who wrote an entry, and where."""
    return f"{entry.actor} on {entry.host}"


def why_of(entry: Entry) -> str:
    """Say why, as the end of a sentence; nothing where no reason was given."""
    return f": {entry.reason}" if entry.reason else ""


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
    if isinstance(value, float):
        return [(path, f"{value:.6g}")]
    return [(path, value if isinstance(value, str) else json.dumps(value))]


def lines_of(value: Any) -> str:
    """Write nested mappings as lines of a name and a value."""
    pairs = flat(value)
    width = max(len(path) for path, _ in pairs)
    return "\n".join(f"{path:<{width}}  {text or '(left out)'}".strip() for path, text in pairs)


def metrics_of(facts: dict[str, Any]) -> str:
    """Say the first few metrics of a manifest."""
    return ", ".join(f"{path} {text}" for path, text in flat(facts["metrics"])[:3])


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object on one line."""
    typer.echo(json.dumps(value, ensure_ascii=False))


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
        table.add_row(*(Text("".join(c if c.isprintable() or c == "\n" else "?" for c in cell)) for cell in row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160  # lines of a file need not fold where a terminal would
    console.print(table)
