"""Show the registry to people: log entries in words, tables, lines and JSON.  Control characters are escaped."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from rankmill.foundation.records import as_json
from rankmill.foundation.shown import shown, shown_in_line
from rankmill.foundation.terminal import console_on

if TYPE_CHECKING:
    from rankmill.registry.stored_records import AliasPolicy, Entry, GateRecord


def size_text(n: int) -> str:
    """Format a number of bytes with a suitable unit."""
    size, unit = float(n), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{n} B" if unit == "B" else f"{size:.1f} {unit}"


def flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    """Yield the path and value of each leaf of nested mappings.

    {"valid": {"ndcg@10": 0.5}} gives ("valid ndcg@10", "0.5").
    """
    if isinstance(value, dict) and value:
        return [pair for key, inner in value.items() for pair in flat(inner, f"{path} {key}".strip())]
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        return [(f"{path} {i}".strip(), ", ".join(map(" ".join, flat(each)))) for i, each in enumerate(value, start=1)]
    text = f"{value:.6g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    return [(shown_in_line(path), shown_in_line(text))]


def lines_of(value: Any) -> str:
    """Format nested mappings as lines of a name and a value."""
    pairs = flat(value)
    width = max(len(path) for path, _ in pairs)
    return "\n".join(f"{path:<{width}}  {text or '(left out)'}".strip() for path, text in pairs)


def print_json(value: object) -> None:
    """Print a record, or a mapping that contains records, as a JSON object on one line.

    Non-printable characters are escaped.
    """
    typer.echo(shown(json.dumps(as_json(value), ensure_ascii=False)))


def print_lines(lines: Iterable[tuple[str, str]]) -> None:
    """Print each (text, style) on a line without wrapping.

    Styles such as ``bold red`` have an effect only on a terminal.
    """
    from rich.text import Text

    console = console_on(sys.stdout, highlight=False)
    for text, style in lines:
        console.print(Text(shown_in_line(text), style=style), soft_wrap=True)


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Print a table; markup and control codes in cells have no effect."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in header:
        table.add_column(Text(title), overflow="fold")
    for row in rows:  # plain text: manifests and reasons may contain markup or control codes
        table.add_row(*(Text("\n".join(map(shown_in_line, cell.split("\n")))) for cell in row))
    console = console_on(sys.stdout, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 160  # no wrapping at the terminal's width in a file
    console.print(table)


def entry_json(entry: Entry) -> Mapping[str, object]:
    """Return a log entry with its digest as JSON values."""
    from rankmill.registry.stored_records import record_json

    return record_json(entry) | {"sha256": entry.digest}


def what_of(entry: Entry) -> str:
    """Describe the change of an entry; the text follows the name of the author."""
    from rankmill.registry import stored_records as records

    match entry.change:
        case records.Register() as change:
            return f"registered version {change.version}"
        case records.Move() as change:
            before = "not set before" if change.previous is None else f"before: {change.previous}"
            gate = "" if change.gate is None else f"; gate: entry {change.gate}"
            if change.op == "rollback":
                return f"rolled {change.alias} back to version {change.version} ({before})"
            if change.op == "promote":
                return f"promoted version {change.version} to {change.alias} ({before}{gate})"
            waived = f", waiving: {change.waived}" if change.waived else ""
            return f"FORCED version {change.version} to {change.alias} ({before}){waived}"
        case records.Unset() as change:
            return f"removed {change.alias} (before: {change.previous})"
        case records.Protect() as change:
            if change.policy is None:
                return f"opened {change.alias}: it moves without a gate"
            return f"protected {change.alias}: {policy_text(change.policy)}"
        case records.GateRecord() as change:
            return f"compared version {change.version} at the gate of {change.alias}: {verdict_of(change)}"
        case records.Sweep() as change:
            return (
                f"swept the bytes of {counted(len(change.versions), 'version')}: {', '.join(map(str, change.versions))}"
            )


def stands_out(entry: Entry) -> bool:
    """Whether to highlight an entry in the log.

    These are a forced promotion, a failed gate, and one that let a worse version pass.
    """
    from rankmill.registry.stored_records import GateRecord

    change = entry.change
    return change.op == "force" or (isinstance(change, GateRecord) and (change.worse or not change.passed))


def verdict_of(gate: GateRecord) -> str:
    """Describe a gate result: verdict, metric and data."""
    against = "nothing, a first version" if gate.baseline is None else f"version {gate.baseline}"
    verdict = "PASSED" if gate.passed else "DID NOT PASS"
    verdict += " SIGNIFICANTLY WORSE, as allowed," if gate.worse else ""
    on = f"{gate.metric} on {gate.split} of dataset {gate.dataset[:12]}, margin {gate.margin:g}"
    return f"{verdict} against {against} ({on})"


def policy_text(policy: AliasPolicy | None) -> str:
    """Describe the policy of an alias."""
    if policy is None:
        return "open, it moves without a gate"
    asked = [
        *([] if policy.metric is None else [f"metric {policy.metric}"]),
        *([] if policy.margin is None else [f"a margin of {policy.margin:g} at most"]),
        *([] if policy.convention is None else [f"convention {policy.convention[:12]}"]),
        *([] if policy.dataset is None else [f"dataset {policy.dataset[:12]}"]),
        *(["no significantly worse version"] if policy.never_worse else []),
    ]
    return "only a passed gate promotes to it" + (f", with {', '.join(asked)}" if asked else "")


def aliases_text(aliases: Mapping[str, int]) -> str:
    """List aliases with their versions."""
    return ", ".join(f"{alias} = {version}" for alias, version in aliases.items())


def time_text(time: str) -> str:
    """Format the time of an entry (UTC), without fractions of a second."""
    return time[:19].replace("T", " ")


def author_text(entry: Entry) -> str:
    """Format the time, author, host and reason of an entry."""
    return f"{time_text(entry.time)} UTC by {entry.actor} on {entry.host}{_reason(entry)}"


def entry_line(entry: Entry) -> str:
    """Format an entry as one line: time, author, host, change and reason."""
    return shown_in_line(f"{time_text(entry.time)}  {entry.actor} on {entry.host} {what_of(entry)}{_reason(entry)}")


def _reason(entry: Entry) -> str:
    return f": {entry.reason}" if entry.reason else ""


def counted(n: int, one: str, more: str = "") -> str:
    """Format a number of things."""
    return f"{n} {one if n == 1 else more or one + 's'}"
