"""``rankmill models init|gc|fsck|export|import``: make a registry, keep it in order, and copy models between registries."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankmill.foundation.command_line import Overwrite
from rankmill.foundation.errors import InputError, IntegrityError
from rankmill.registry.cli_options import DEFAULT_FOLDER, AsJson, Reason, RegistryFolder, bare_name, existing_registry
from rankmill.registry.rendering import print_json, print_table, safe, size_text

if TYPE_CHECKING:
    from rankmill.registry.garbage import Collected

app = typer.Typer()
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 24 * 3600.0}


@app.command()
def init(
    leave_open: Annotated[
        bool, typer.Option("--open", help="Leave production open: it moves without a passed gate.")
    ] = False,
    protect: Annotated[
        list[str] | None, typer.Option("--protect", metavar="ALIAS", help="Protect this alias, too; may be repeated.")
    ] = None,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Make a registry, whose aliases --protect and production move only to what has passed the gate.

    Says how files appear on its file system, and refuses where none of the safe ways works. A registry that is there stays as it is.

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
    name: Annotated[str | None, typer.Argument(help="Only versions of this model; of all if left out.")] = None,
    keep: Annotated[int, typer.Option(min=1, help="How many of the last versions of a model stay.")] = 10,
    grace: Annotated[
        str,
        typer.Option(
            metavar="7d|36h|..",
            help="How long a version stays before it is marked, then before it is swept, then in the trash."
            " Shorten it only where nobody else uses the registry.",
        ),
    ] = "7d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")] = False,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Let go of versions that no alias means or lately meant, that are not tagged keep=.., in use, young or the last.

    A version is marked first; a time of grace later it is swept, if nothing keeps it meanwhile, and its bytes lie in the trash for
    another; its manifest and history stay. So run it by a schedule, such as once a day.

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
        print_table([f"version of {model}", "", "size", "why"], sorted(rows, key=lambda row: int(row[0])))
    typer.echo(_summary(report))


@app.command()
def fsck(
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Mend what can be mended; damaged files are moved to quarantine/, not deleted."),
    ] = False,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Look at every file and say what is wrong with it, and what cures that; exit with 13 if damage is left.

    A log that is broken in its middle ends, after --repair, before the break; what was lost is said.

    Example: rankmill models fsck
    """
    store = existing_registry(registry)
    report = store.fsck(repair=repair)
    if as_json:
        print_json(report.to_json())
    else:
        for finding in report.findings:
            typer.echo(safe(f"{'damage' if finding.damage else 'remark'}: {finding}"))
        if report.ok:
            counts = f"models {report.models}, entries {report.entries}, blobs {report.blobs}"
            typer.echo(f"No damage in {registry}: {counts}, {size_text(report.bytes_read)} read.")
    left = [finding for finding in report.findings if finding.damage and not finding.repaired]
    if left:
        raise IntegrityError(f"{registry}: damage: {len(left)}; the first: {safe(str(left[0]))}")


def seconds(text: str) -> float:
    """Read a time such as ``7d``, ``36h``, ``90m`` or ``0``; InputError if it is none."""
    parts = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]+)?)([smhd])|0", text.strip())
    if parts is None:
        raise InputError(f"--grace {text!r}: expected a number and a unit, such as 7d, 36h or 90m")
    return float(parts[1]) * SECONDS[parts[2]] if parts[1] else 0.0


def _summary(report: Collected) -> str:
    swept = sum(len(model.swept) for model in report.models.values())
    marked = sum(len(model.marked) for model in report.models.values())
    said = [f"Versions swept: {swept}, marked: {marked}."]
    if unmarked := sum(len(model.unmarked) for model in report.models.values()):
        said.append(f"No longer marked: {unmarked}.")
    if report.put_back:
        said.append(f"Put back from the trash, since they are needed: {len(report.put_back)}.")
    said.append(f"Moved to the trash: {_amount(report.trashed)}. Deleted from it: {_amount(report.deleted)}.")
    if report.waiting:
        said.append(f"Still in it: {_amount(report.waiting)}.")
    if report.leases_reaped:
        said.append(f"Leases of the dead removed: {report.leases_reaped}.")
    if report.dry_run:
        said.append("That is what would be done: nothing was written.")
    return " ".join(said)


def _amount(sizes: dict[str, int]) -> str:
    total = sum(sizes.values())
    return (
        f"{len(sizes)} ({size_text(total)})" if total < 1000 else f"{len(sizes)} ({size_text(total)}, {total:,} bytes)"
    )


@app.command("export")
def export_bundle(
    model: Annotated[str, typer.Argument(help="NAME: its whole history.  NAME@7 or NAME@production: that version.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.tar", dir_okay=False, help="The bundle to write.")],
    overwrite: Overwrite = False,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Write a model, or one version of it, to a tar file that another registry can import.

    The same content gives the same bytes.  A history holds the log, every model that was not swept, manifests and reports;
    a version holds what was registered with it, and the entry that says by whom and when.

    Example: rankmill models export web -o web.tar
    One version: rankmill models export web@production -o web-production.tar
    """
    from rankmill.registry import Registry

    bundle = Registry(registry).bundle(model)
    versions, entries = len(bundle.versions), len(bundle.contents.log)
    holds = f"{_counted(versions, 'version')}, {_counted(entries, 'entry', 'entries')} of the log"
    typer.echo(f"{model}: {holds}, {size_text(bundle.contents.size)}", err=True)
    exported = bundle.write(out, overwrite=overwrite)
    if as_json:
        print_json(exported)
    else:
        typer.echo(f"wrote {out}: {holds}, {size_text(exported.bytes)}")


@app.command("import")
def import_bundle(
    bundle: Annotated[Path, typer.Argument(metavar="FILE.tar", help="A file that models export has written.")],
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Call the model so here; by default as it was called.")
    ] = None,
    reason: Reason = "",
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Take in a model, or one version of it, from the file of an export; all of it or nothing.

    A history comes with its log and aliases, as they were; where the model is here already, what is new follows, and a
    model that went another way is left alone (exit 75).  A single version becomes the next one of the model and takes no
    alias with it.

    Example: rankmill models import web.tar
    By another name: rankmill models import web.tar --as web-of-berlin
    """
    from rankmill.registry import Registry

    done = Registry(registry).import_(bundle, name=name, reason=reason)
    if as_json:
        print_json(done)
    elif done.version is not None:
        here = f"{done.name}@{done.version}"
        typer.echo(
            f"imported {done.origin} as {here}" if done.added else f"nothing to do: {done.origin} is here as {here}"
        )
    elif not done.added:
        did = f"put back {_counted(done.mended, 'lost blob')}" if done.mended else "nothing to do"
        typer.echo(f"{did}: {done.name} has all of it, and {_counted(done.head, 'entry', 'entries')}")
    else:
        typer.echo(
            f"imported {done.origin} as {done.name}: {_counted(done.added, 'new entry', 'new entries')} of {done.head}"
        )


def _counted(n: int, one: str, more: str = "") -> str:
    return f"{n} {one if n == 1 else more or one + 's'}"
