"""``rankmill models promote|rollback``: decide what an alias means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from registry.cli_options import DEFAULT_FOLDER, AsJson, Reason, RegistryFolder, bare_name
from registry.errors import InvalidName
from registry.names import PRODUCTION
from registry.printing import entry_json, print_json, what_of, when_of

if TYPE_CHECKING:
    from registry.entry import Entry
    from registry.promotion import Expected

app = typer.Typer()

Alias = Annotated[str, typer.Option("--alias", help="Which alias to move.")]
Expect = Annotated[
    str | None,
    typer.Option("--expect", metavar="VERSION|none", help="Move only if the alias means this now; else exit with 75."),
]


@app.command()
def promote(
    model: Annotated[str, typer.Argument(help="The version to promote: NAME@7 or NAME@latest.")],
    alias: Alias = PRODUCTION,
    expect: Expect = None,
    reason: Reason = "",
    force: Annotated[
        bool, typer.Option("--force", help="Move a protected alias without a passed gate; the log tells so.")
    ] = False,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Let an alias mean this version from now on, in one step.

    A protected alias, such as production, moves only to what has passed the gate (rankmill models gate).

    Example: rankmill models promote web@7 --reason "won the test of May"
    """
    from registry import Registry

    if "@" not in model:
        raise InvalidName(f"{model!r}: say which version to promote, such as {model}@7 or {model}@latest")
    store = Registry(registry)
    version = store.resolve(model, bare="latest")
    name, before = version.name, version.state.head
    entry = store.promote(name, version.number, alias=alias, expect=_expected(expect), reason=reason, force=force)
    _report_move(name, alias, entry, changed=entry.number > before, as_json=as_json)


@app.command()
def rollback(
    name: Annotated[str, typer.Argument(help="Name of the model.")],
    alias: Alias = PRODUCTION,
    to: Annotated[int | None, typer.Option("--to", min=1, help="A version that the alias meant once.")] = None,
    expect: Expect = None,
    reason: Reason = "",
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Let an alias mean again what it last meant before; the log keeps both moves.

    Example: rankmill models rollback web --reason "slow on phones"
    """
    from registry import Registry

    store = Registry(registry)
    before = store.state(bare_name(name)).head
    entry = store.rollback(name, alias=alias, to=to, expect=_expected(expect), reason=reason)
    _report_move(name, alias, entry, changed=entry.number > before, as_json=as_json)


def _expected(text: str | None) -> Expected:
    if text is None:
        return ...
    if text == "none":
        return None
    if not text.isdecimal():
        raise InvalidName(f"--expect {text!r}: expected the number of a version, or 'none' for an alias never set")
    return int(text)


def _report_move(name: str, alias: str, entry: Entry, *, changed: bool, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "changed": changed, "entry": entry_json(entry)})
    elif changed:
        typer.echo(f"{name}: {what_of(entry)} (entry {entry.number} of the log)")
    else:
        typer.echo(f"{name}@{alias} is so already, since {when_of(entry)} UTC: {what_of(entry)}")
