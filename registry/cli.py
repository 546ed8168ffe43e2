"""``rankmill models``: the commands of the registry.  ``rankmill.cli`` adds those that need to read trees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import rankmill.registry as registries  # which loads its classes when they are asked for
from rankmill.foundation.command_line import Overwrite, takes_options
from rankmill.foundation.errors import InputError, IntegrityError, InvalidName, RankmillError
from rankmill.foundation.options import spelled, values_of
from rankmill.foundation.shown import shown_in_line
from rankmill.foundation.units import parse_span
from rankmill.registry.cli_options import (
    DEFAULT_FOLDER,
    AsJson,
    OtherRegistry,
    PolicyTerms,
    Reason,
    RegistryFolder,
    bare_name,
    existing_registry,
)
from rankmill.registry.names import PRODUCTION
from rankmill.registry.rendering import (
    aliases_text,
    counted,
    entry_json,
    entry_line,
    print_json,
    print_lines,
    print_table,
    size_text,
    stands_out,
    time_text,
    what_of,
)

if TYPE_CHECKING:
    from rankmill.registry.archive import BundleImport
    from rankmill.registry.promotion import Expected
    from rankmill.registry.stored_records import Entry

LATEST_VERSIONS = 20
app = typer.Typer(no_args_is_help=True, help="Manage model versions: list, diff, promote, roll back and verify them.")


@app.command("list")
def list_models(
    name: Annotated[str | None, typer.Argument(help="Model whose versions to list.  Default: list all models.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="List all versions.  Default: the last 20 and those with an alias.")
    ] = False,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """List the models, or the versions of one model.

    Example: rankmill models list web
    """
    store = existing_registry(registry)
    if name is not None:
        _list_versions(store, bare_name(name), every=every, as_json=as_json)
        return
    if every:
        raise InputError("--all chooses versions: name the model, such as rankmill models list NAME --all")
    models = [_summary(store, model) for model in store.names()]
    damaged = [model["fault"] for model in models if "fault" in model]
    if as_json:
        print_json({"registry": str(registry), "models": models})
    elif not models:
        typer.echo(f"No model is registered in {registry} yet: rankmill train DATASET --name NAME")
    else:
        rows = [
            [model["name"], "", f"DAMAGED: {model['fault']}", ""]
            if "fault" in model
            else [model["name"], str(model["versions"]), aliases_text(model["aliases"]), time_text(model["changed"])]
            for model in models
        ]
        print_table(["model", "versions", "aliases", "last change (UTC)"], rows)
    if damaged:  # a scheduler only reads the exit code
        raise IntegrityError(damaged[0])


def _summary(store: registries.Registry, model: str) -> dict[str, Any]:
    """Summarise one model.  A damaged log becomes a fault, so that the other models are still listed."""
    try:
        state = store.state(model)
    except RankmillError as error:
        return {"name": model, "fault": str(error)}
    return {
        "name": model,
        "versions": len(state.versions),
        "aliases": state.set_aliases(),
        "changed": state.entries[-1].time,
    }


def _list_versions(store: registries.Registry, name: str, *, every: bool, as_json: bool) -> None:
    from rankmill.registry import descriptions

    versions = store.versions(name)
    first = 0 if every else len(versions) - LATEST_VERSIONS
    shown = [version for version in versions if version.number > first or version.aliases]
    if as_json:
        rows = [descriptions.version_json(version) for version in shown]
        print_json({"name": name, "of": len(versions), "versions": rows})
        return
    print_table(descriptions.VERSIONS_HEADER, [descriptions.version_row(version) for version in shown])
    if rest := len(versions) - len(shown):
        typer.echo(f"and {rest:,} older versions without an alias: rankmill models list {name} --all")


@app.command()
def show(
    model: Annotated[str, typer.Argument(help="NAME (its latest version), NAME@7 or NAME@production.")],
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Show a version: its data, code, parameters and metrics, and its history: who did what, when and why.

    Example: rankmill models show web@production
    """
    from rankmill.registry.descriptions import detail_rows, version_details

    store = registries.Registry(registry)
    version = store.resolve(model, bare="latest")
    details = version_details(store, version)
    if as_json:
        print_json(details)
    else:
        print_table(["", str(version)], detail_rows(version, details))


@app.command()
def log(
    name: Annotated[str, typer.Argument(help="Name of the model.")],
    last: Annotated[int | None, typer.Option("--last", min=1, help="Show only the newest N entries.")] = None,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Show the log of a model, newest last: who registered, promoted, rolled back, gated or swept what, and why.

    Example: rankmill models log web --last 20
    """
    entries = registries.Registry(registry).log(bare_name(name))[-(last or 0) :]
    if as_json:
        print_json({"name": name, "entries": [entry_json(entry) for entry in entries]})
        return
    width = len(str(entries[-1].number))
    print_lines((f"{e.number:>{width}}  {entry_line(e)}", "bold red" if stands_out(e) else "") for e in entries)


@app.command()
def verify(
    name: Annotated[str | None, typer.Argument(help="Name of a model.  Default: all models.")] = None,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Check every log entry and every blob against its digest.  Exit with 13 if something is wrong.

    Example: rankmill models verify
    """
    store = existing_registry(registry)
    report = store.verify(None if name is None else bare_name(name))
    if as_json:
        print_json(report.to_json())
    else:
        for finding in report.findings:
            typer.echo(shown_in_line(finding))
        if report.ok:
            counts = f"models {report.models}, entries {report.entries}, versions {report.versions}"
            typer.echo(f"No problems in {registry}: {counts}, {size_text(report.bytes_read)} read.")
    if report.ok:
        return
    if len(report.unread) == len(report.findings):  # only unreadable files, no damage
        first = report.unread[0]
        message = f"{first.strerror}; files that could not be read and were not checked: {len(report.unread)}"
        raise OSError(first.errno, message, str(first.filename))
    raise IntegrityError(
        f"{registry}: problems found: {len(report.findings)}; the first: {shown_in_line(report.findings[0])}"
    )


metric_checks: list[Callable[[str], object]] = []
"""Functions that reject unknown metrics.  Another package adds them, as the registry knows no metrics."""

Alias = Annotated[str, typer.Option("--alias", help="Alias to move.")]
Expect = Annotated[
    str | None,
    typer.Option(
        "--expect",
        metavar="VERSION|none",
        help="Move only if the alias points to this version now; otherwise exit with 75.",
    ),
]


@app.command()
def promote(
    model: Annotated[str, typer.Argument(help="Version to promote: NAME@7 or NAME@latest.")],
    alias: Alias = PRODUCTION,
    expect: Expect = None,
    reason: Reason = "",
    force: Annotated[
        bool, typer.Option("--force", help="Move a protected alias without a passed gate.  The log records this.")
    ] = False,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Point an alias at this version, atomically.

    A protected alias, such as production, moves only to a version that has passed the gate (rankmill models gate).

    Example: rankmill models promote web@7 --reason "won the test of May"
    """
    if "@" not in model:
        raise InvalidName(f"{model!r}: say which version to promote, such as {model}@7 or {model}@latest")
    store = registries.Registry(registry)
    version = store.resolve(model, bare="latest")
    name, before = version.name, version.state.head
    entry = store.promote(name, version.number, alias=alias, expect=_expected(expect), reason=reason, force=force)
    _report_move(name, alias, entry, changed=entry.number > before, as_json=as_json)
    gate = getattr(entry.change, "gate", None)
    if gate is not None and getattr(store.log(name)[gate - 1].change, "worse", False):
        typer.echo(
            f"note: {version} is SIGNIFICANTLY WORSE, which an option of the gate allowed (entry {gate})", err=True
        )


@app.command()
def rollback(
    name: Annotated[str, typer.Argument(help="Name of the model.")],
    alias: Alias = PRODUCTION,
    to: Annotated[
        int | None,
        typer.Option(
            "--to",
            min=1,
            help="Version to return to; the alias must have pointed to it before.  Default: the one before, unless "
            "the last move was a rollback.",
        ),
    ] = None,
    expect: Expect = None,
    reason: Reason = "",
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Point an alias at the version before again. The log keeps both moves.

    Versions that were rolled back from are passed over. A second rollback in a row needs --to (rankmill models log NAME
    lists the versions).

    Example: rankmill models rollback web --reason "slow on phones"
    """
    store = registries.Registry(registry)
    state = store.state(bare_name(name))
    entry = store.rollback(name, alias=alias, to=to, expect=_expected(expect), reason=reason)
    _report_move(name, alias, entry, changed=entry.number > state.head, as_json=as_json)


@app.command()
@takes_options
def alias(
    *,
    name: Annotated[str, typer.Argument(help="Name of the model.")],
    chosen: Annotated[
        str | None, typer.Argument(metavar="[ALIAS]", help="Alias to show or change.  Default: show all.")
    ] = None,
    unset: Annotated[bool, typer.Option("--unset", help="Remove the alias.")] = False,
    protect: Annotated[
        bool, typer.Option("--protect", help="Protect the alias: it moves only to versions that passed the gate.")
    ] = False,
    asked: PolicyTerms,
    open_: Annotated[
        bool, typer.Option("--open", help="Remove the protection: the alias moves without a gate.")
    ] = False,
    expect: Expect = None,
    reason: Reason = "",
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Show the aliases of a model and their protection; or remove, protect or open one alias.

    The first promotion creates an alias (rankmill models promote).

    Example: rankmill models alias web

    Example: rankmill models alias web shadow --unset --reason "the test is over"

    Example: rankmill models alias web production --protect --metric ndcg@10 --margin 0.002
    """
    from rankmill.registry import descriptions

    bare_name(name)
    changes = [f"--{word}" for word, given in (("unset", unset), ("protect", protect), ("open", open_)) if given]
    if len(changes) > 1:
        raise InputError(f"{changes[0]} and {changes[1]} exclude each other; use one at a time")
    if changes and chosen is None:
        raise InputError(f"{changes[0]}: name the alias, such as rankmill models alias {name} production {changes[0]}")
    terms = values_of(asked)
    for word, term in terms.items():
        if term not in {None, False} and not protect:
            raise InputError(f"{spelled(word)} is part of a protection; use it with --protect")
    if asked.metric is not None:
        for check in metric_checks:
            check(asked.metric)
    if expect is not None and not unset:
        raise InputError("--expect can only be used with --unset here")
    store = registries.Registry(registry)
    if chosen is None or not changes:
        found = descriptions.aliases_json(store, name, chosen)
        if as_json:
            print_json({"name": name, "aliases": found})
        elif not found:
            typer.echo(f"no alias of {name} was ever set: rankmill models promote {name}@latest")
        else:
            print_table(descriptions.ALIASES_HEADER, [descriptions.alias_row(each) for each in found])
        return
    before = store.state(name).head
    entry: Entry | None
    if unset:
        entry = store.unset(name, chosen, expect=_expected(expect), reason=reason)
    else:
        entry = store.protect(name, chosen, descriptions.policy_of(terms) if protect else None, reason=reason)
    _report_move(name, chosen, entry, changed=entry is not None and entry.number > before, as_json=as_json)


def _expected(text: str | None) -> Expected:
    if text is None:
        return ...
    if text == "none":
        return None
    if not text.isdecimal():
        raise InvalidName(f"--expect {text!r}: expected the number of a version, or 'none' if the alias is not set")
    return int(text)


def _report_move(name: str, alias: str, entry: Entry | None, *, changed: bool, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "changed": changed, "entry": None if entry is None else entry_json(entry)})
    elif entry is not None and changed:
        before, _, rest = what_of(entry).partition(")")
        text = f"{before}; " if "(" in before else f"{before} ("
        typer.echo(shown_in_line(f"{name}: {text}logged as entry {entry.number}){rest}"))
    else:
        since = "" if entry is None else f", already so since {time_text(entry.time)} UTC: {what_of(entry)}"
        typer.echo(shown_in_line(f"{name}@{alias}: no change needed{since}"))


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

    A protected alias moves only to a version that has passed the gate. Checks that the file system can keep a registry
    safely, and prints how; fails if it cannot. An existing registry is not changed.

    Example: rankmill models init --registry /srv/models --protect staging
    """
    store = registries.Registry(registry)
    made, protected = store.initialise(leave_open=leave_open, protect=protect or []), store.protected
    if as_json:
        print_json({"registry": str(store.root), "made": made, "protected": protected})
    else:
        typer.echo(f"{'Created a registry in' if made else 'A registry exists already:'} {store.root}")
        only = " (moves only to versions that passed the gate)" if protected else ""
        typer.echo(f"Protected: {', '.join(protected) or 'nothing'}{only}")


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
            help="Time for which nothing must have kept a version before its bytes are deleted."
            " Shorten it only if no other process uses the registry.",
        ),
    ] = "7d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")] = False,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Delete old versions that nothing needs.

    Kept are the last three versions that each alias pointed to, and the --keep newest. Any other version is swept once
    nothing has kept it for --grace: its bytes are deleted, while its manifest and history stay. An alias of its own
    keeps a version forever. Run this command on a schedule, for example once a day.

    Example: rankmill models gc --dry-run
    """
    from rankmill.registry.retention import RetentionRules

    store = existing_registry(registry)
    rules = RetentionRules(keep=keep, grace=parse_span(grace, "--grace", zero=True).total_seconds())
    report = store.gc(None if name is None else bare_name(name), rules=rules, dry_run=dry_run)
    if as_json:
        print_json(report.to_json())
        return
    for model, found in report.models.items():
        rows = [[str(v), "swept", size_text(size), "nothing keeps it"] for v, size in found.swept.items()]
        rows += [[str(v), "stays", "", why] for v, why in found.kept.items()]
        if rows:
            print_table([f"version of {model}", "", "size", "why"], sorted(rows, key=lambda row: int(row[0])))
    swept, deleted = (sum(len(getattr(m, what)) for m in report.models.values()) for what in ("swept", "deleted"))
    dry = " This was a dry run: nothing was changed." if dry_run else ""
    typer.echo(f"Versions swept: {swept}. Files deleted: {deleted} ({size_text(report.freed)}).{dry}")


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

    The same content gives the same bytes.  A history includes the log, all models that were not swept, manifests and
    reports. A version includes what was registered with it, and its log entry.

    Example: rankmill models export web -o web.tar
    One version: rankmill models export web@production -o web-production.tar
    """
    exported = registries.Registry(registry).export(model, out, overwrite=overwrite)
    if as_json:
        print_json(exported)
    else:
        holds = (
            f"{counted(len(exported.versions), 'version')}, {counted(exported.entries, 'entry', 'entries')} of the log"
        )
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
    """Import a model, or one version of it, from a bundle.  A killed import continues when it is repeated.

    A whole history keeps its log and aliases.  If that moves an alias that is protected here, such as production,
    nothing is imported without --move-aliases.  Every move is printed.  If the model exists here already, only new
    entries are added; if the two histories have diverged, nothing is changed (exit 75).  A single version becomes the
    next version of the model and gets no alias.

    Example: rankmill models import web.tar
    By another name: rankmill models import web.tar --as web-of-berlin
    """
    done = registries.Registry(registry).import_(bundle, name=name, reason=reason, move_aliases=move_aliases)
    if as_json:
        print_json(done)
        return
    _print_import(done)


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

    A new registry gets the protected aliases of this one. What is there already is not copied again, so that a killed
    copy is continued by the same command. If a model has another history there, nothing of it is changed (exit 75).

    Example: rankmill models copy --registry /srv/models --to s3://bucket/models
    """
    done = existing_registry(registry).copy(
        registries.Registry(to), None if not names else [bare_name(name) for name in names]
    )
    if as_json:
        print_json({"registry": str(registry), "to": str(to), "models": done})
        return
    for model in done:
        _print_import(model)
    if not done:
        typer.echo(f"No model is registered in {registry} yet")


def _print_import(done: BundleImport) -> None:
    what = done.name if done.version is None else f"{done.name}@{done.version}"
    typer.echo(f"{what}: {counted(done.added, 'new entry', 'new entries')} of {done.head}")
    for move in done.moves:
        typer.echo(shown_in_line(f"{done.name}: {move}"))
