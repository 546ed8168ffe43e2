"""``rankmill models init|gc|export|import|copy``: create and maintain a registry, and copy models between registries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankmill.foundation.command_line import Overwrite
from rankmill.foundation.errors import InputError
from rankmill.foundation.shown import shown_in_line
from rankmill.registry.cli_options import (
    DEFAULT_FOLDER,
    AsJson,
    OtherRegistry,
    Reason,
    RegistryFolder,
    bare_name,
    existing_registry,
)
from rankmill.registry.rendering import print_json, print_table, size_text

if TYPE_CHECKING:
    from rankmill.registry.garbage import Collected

app = typer.Typer()
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 24 * 3600.0}


@app.command()
def init(
    leave_open: Annotated[
        bool, typer.Option("--open", help="Do not protect production: it may move without a passed gate.")
    ] = False,
    protect: Annotated[
        list[str] | None,
        typer.Option("--protect", metavar="ALIAS", help="Also protect this alias; repeat for several."),
    ] = None,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Create a registry with protected aliases: production and those of --protect.

    A protected alias moves only to a version that has passed the gate. Checks that the file system can keep a registry safely, and
    prints how; fails if it cannot. An existing registry is not changed.

    Example: rankmill models init --registry /srv/models --protect staging
    """
    from rankmill.registry import Registry

    done = Registry(registry).initialise(leave_open=leave_open, protect=protect or [])
    if as_json:
        print_json(done)
    else:
        typer.echo(done.render())


@app.command()
def gc(
    name: Annotated[
        str | None, typer.Argument(help="Collect only versions of this model.  Default: of all models.")
    ] = None,
    keep: Annotated[int, typer.Option(min=1, help="Number of newest versions of each model to keep.")] = 10,
    grace: Annotated[
        str,
        typer.Option(
            metavar="7d|36h|..",
            help="Waiting time before a version is marked, and again before it is swept and its bytes are deleted."
            " Shorten it only if nobody else uses the registry.",
        ),
    ] = "7d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")] = False,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Delete old versions that nothing needs.

    Kept are the last three versions that each alias pointed to, versions with a tag keep=.., younger than --grace, or among the
    --keep newest. Any other version is marked first. It is swept --grace later, if nothing needs it by then: its bytes are
    deleted, while its manifest and history are kept. Run this command on a schedule, for example once a day.

    Example: rankmill models gc --dry-run
    """
    from rankmill.registry.retention_rules import RetentionRules

    store = existing_registry(registry)
    rules = RetentionRules(keep=keep, grace=seconds(grace))
    report = store.gc(None if name is None else bare_name(name), rules=rules, dry_run=dry_run)
    if as_json:
        print_json(report.to_json())
        return
    for model, found in report.models.items():
        rows = [[str(v), "swept", size_text(size), "marked long enough"] for v, size in found.swept.items()]
        rows += [[str(v), "marked", size_text(size), "nothing keeps it"] for v, size in found.marked.items()]
        rows += [[str(v), "stays", "", why] for v, why in found.kept.items()]
        if rows:
            print_table([f"version of {model}", "", "size", "why"], sorted(rows, key=lambda row: int(row[0])))
    typer.echo(_summary(report))


def seconds(text: str) -> float:
    """Return a duration such as ``7d``, ``36h``, ``90m`` or ``0`` in seconds; InputError if it is malformed."""
    parts = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]+)?)([smhd])|0", text.strip())
    if parts is None:
        raise InputError(f"--grace {text!r}: expected a number and a unit, such as 7d, 36h or 90m")
    return float(parts[1]) * SECONDS[parts[2]] if parts[1] else 0.0


def _summary(report: Collected) -> str:
    models = report.models.values()
    swept, marked, unmarked = (
        sum(len(part) for part in parts)
        for parts in ([m.swept for m in models], [m.marked for m in models], [m.unmarked for m in models])
    )
    sentences = [f"Versions swept: {swept}, marked: {marked}."]
    if unmarked:
        sentences.append(f"No longer marked: {unmarked}.")
    exactly = f", {report.freed:,} bytes" if report.freed >= 1000 else ""
    files = sum(len(model.deleted) for model in models)
    sentences.append(f"Files deleted: {files} ({size_text(report.freed)}{exactly}).")
    if report.dry_run:
        sentences.append("This was a dry run: nothing was changed.")
    return " ".join(sentences)


@app.command("export")
def export_bundle(
    model: Annotated[
        str, typer.Argument(help="NAME: the whole history of a model.  NAME@7 or NAME@production: one version.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.tar", dir_okay=False, help="Bundle file to write.")],
    overwrite: Overwrite = False,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Write a model, or one version of it, to a tar file that another registry can import.

    The same content gives the same bytes.  A history includes the log, all models that were not swept, manifests and reports.
    A version includes what was registered with it, and its log entry.

    Example: rankmill models export web -o web.tar
    One version: rankmill models export web@production -o web-production.tar
    """
    from rankmill.registry import Registry

    exported = Registry(registry).export(model, out, overwrite=overwrite)
    if as_json:
        print_json(exported)
    else:
        versions, entries = len(exported.versions), exported.entries
        holds = f"{_counted(versions, 'version')}, {_counted(entries, 'entry', 'entries')} of the log"
        typer.echo(f"wrote {out}: {holds}, {size_text(exported.bytes)}")


@app.command("import")
def import_bundle(
    bundle: Annotated[Path, typer.Argument(metavar="FILE.tar", help="Bundle file, written by models export.")],
    name: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="NAME", help="Name of the model in this registry.  Default: its name in the bundle."
        ),
    ] = None,
    move_aliases: Annotated[
        bool,
        typer.Option(
            "--move-aliases", help="Let the history move aliases that are protected here, such as production."
        ),
    ] = False,
    reason: Reason = "",
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Import a model, or one version of it, from a bundle; on a disk all of it or nothing.

    In a bucket, the entries of a history appear one by one; a killed import continues when it is repeated.

    A whole history keeps its log and aliases.  If that moves an alias that is protected here, such as production, nothing is
    imported without --move-aliases.  Every move is printed.  If the model exists here already, only new entries are added; if the two
    histories have diverged, nothing is changed (exit 75).  A single version becomes the next version of the model and gets no
    alias.

    Example: rankmill models import web.tar
    By another name: rankmill models import web.tar --as web-of-berlin
    """
    from rankmill.registry import Registry

    done = Registry(registry).import_(bundle, name=name, reason=reason, move_aliases=move_aliases)
    if as_json:
        print_json(done)
    elif done.version is not None:
        here = f"{done.name}@{done.version}"
        typer.echo(
            f"imported {done.origin} as {here}" if done.added else f"nothing to do: {done.origin} exists here as {here}"
        )
    elif not done.added:
        did = f"restored {_counted(done.mended, 'lost blob')}" if done.mended else "nothing to do"
        typer.echo(f"{did}: {done.name} has all of it, and {_counted(done.head, 'entry', 'entries')}")
    else:
        typer.echo(
            f"imported {done.origin} as {done.name}: {_counted(done.added, 'new entry', 'new entries')} of {done.head}"
        )
    if not as_json:
        _print_moves(done.name, done.moves)


@app.command("copy")
def copy(
    to: OtherRegistry,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Models to copy.  Default: all.")
    ] = None,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Copy models with their whole history to another registry, on a disk or in a bucket.

    A new registry gets the protected aliases of this one. What is there already is not copied again, so that a killed copy is
    continued by the same command. If a model has another history there, nothing of it is changed (exit 75).

    Example: rankmill models copy --registry /srv/models --to s3://bucket/models
    """
    from rankmill.registry import Registry

    done = existing_registry(registry).copy(Registry(to), None if not names else [bare_name(name) for name in names])
    if as_json:
        print_json({"registry": str(registry), "to": str(to), "models": done})
        return
    for model in done:
        typer.echo(f"{model.name}: {_counted(model.added, 'new entry', 'new entries')} of {model.head}")
        _print_moves(model.name, model.moves)
    if not done:
        typer.echo(f"No model is registered in {registry} yet")


def _print_moves(name: str, moves: Sequence[str]) -> None:
    for move in moves:
        typer.echo(shown_in_line(f"{name}: {move}"))


def _counted(n: int, one: str, more: str = "") -> str:
    return f"{n} {one if n == 1 else more or one + 's'}"
