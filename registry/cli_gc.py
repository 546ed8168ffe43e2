"""``rankmill models gc|fsck``: let go of what nobody needs, and mend what is broken."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from rankmill.foundation.errors import InputError, IntegrityError
from rankmill.registry.cli_options import DEFAULT_FOLDER, AsJson, RegistryFolder, bare_name
from rankmill.registry.telling.printing import print_json, print_table, safe, size_text

if TYPE_CHECKING:
    from rankmill.registry.retention.collecting import Collected

app = typer.Typer()
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 24 * 3600.0}


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
    from rankmill.registry import Registry
    from rankmill.registry.retention.keeping import Rules

    store = Registry(registry)
    if not store.exists():  # a misspelt folder must not look clean
        raise InputError(f"{registry}: no registry; name its folder with --registry or RANKMILL_REGISTRY")
    rules = Rules(keep=keep, grace=seconds(grace))
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
    from rankmill.registry import Registry

    store = Registry(registry)
    if not store.exists():
        raise InputError(f"{registry}: no registry; name its folder with --registry or RANKMILL_REGISTRY")
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
