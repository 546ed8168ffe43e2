"""``rankmill models promote|rollback|alias|tag``: move and protect aliases, and tag versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from rankmill.foundation.command_line import takes_options
from rankmill.foundation.errors import InputError, InvalidName
from rankmill.foundation.options import spelled, values_of
from rankmill.foundation.shown import shown_in_line
from rankmill.registry.cli_options import DEFAULT_FOLDER, AsJson, PolicyTerms, Reason, RegistryFolder, bare_name
from rankmill.registry.names import PRODUCTION, check_tag
from rankmill.registry.rendering import entry_json, print_json, print_table, time_text, what_of

if TYPE_CHECKING:
    from rankmill.registry.promotion import Expected
    from rankmill.registry.stored_records import Entry

app = typer.Typer()

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
    from rankmill.registry import Registry

    if "@" not in model:
        raise InvalidName(f"{model!r}: say which version to promote, such as {model}@7 or {model}@latest")
    store = Registry(registry)
    version = store.resolve(model, bare="latest")
    name, before = version.name, version.state.head
    entry = store.promote(name, version.number, alias=alias, expect=_expected(expect), reason=reason, force=force)
    _report_move(name, alias, entry, changed=entry.number > before, as_json=as_json)
    gate = getattr(entry.change, "gate", None)
    if gate is not None and getattr(store.entry(name, gate).change, "worse", False):
        typer.echo(f"note: {version} is SIGNIFICANTLY WORSE, which the gate was told to allow (entry {gate})", err=True)


@app.command()
def rollback(
    name: Annotated[str, typer.Argument(help="Name of the model.")],
    alias: Alias = PRODUCTION,
    to: Annotated[
        int | None,
        typer.Option(
            "--to",
            min=1,
            help="Version to return to; the alias must have pointed to it before.  Default: the one before, unless the last move was a rollback.",
        ),
    ] = None,
    expect: Expect = None,
    reason: Reason = "",
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Point an alias at the version before again. The log keeps both moves.

    Versions that were rolled back from are passed over. A second rollback in a row needs --to (rankmill models alias NAME lists the versions).

    Example: rankmill models rollback web --reason "slow on phones"
    """
    from rankmill.registry import Registry

    store = Registry(registry)
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
    """Show the aliases of a model, their history and protection; or remove, protect or open one alias.

    The first promotion creates an alias (rankmill models promote).

    Example: rankmill models alias web

    Example: rankmill models alias web shadow --unset --reason "the test is over"

    Example: rankmill models alias web production --protect --metric ndcg@10 --margin 0.002
    """
    from rankmill.registry import Registry, listings

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
    store = Registry(registry)
    if chosen is None or not changes:
        histories = listings.alias_histories(store, name, chosen)
        if as_json:
            print_json({"name": name, "aliases": histories})
        elif not histories:
            typer.echo(f"no alias of {name} was ever set: rankmill models promote {name}@latest")
        else:
            print_table(listings.ALIASES_HEADER, [history.row() for history in histories])
        return
    before = store.state(name).head
    entry: Entry | None
    if unset:
        entry = store.unset(name, chosen, expect=_expected(expect), reason=reason)
    else:
        entry = store.protect(name, chosen, listings.policy_of(terms) if protect else None, reason=reason)
    _report_move(name, chosen, entry, changed=entry is not None and entry.number > before, as_json=as_json)


@app.command()
def tag(
    model: Annotated[str, typer.Argument(help="Version: NAME@7, NAME@latest or NAME@production.")],
    tags: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Tags to set.")] = None,
    remove: Annotated[list[str] | None, typer.Option(metavar="KEY", help="Tag to remove; repeat for several.")] = None,
    reason: Reason = "",
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Set or remove tags of a version; without tags, show them.  Each change is an entry of the log.

    Example: rankmill models tag web@7 owner=search-team season=autumn
    """
    from rankmill.registry import Registry
    from rankmill.registry.listings import parse_tags

    if "@" not in model:
        raise InvalidName(f"{model!r}: say which version to tag, such as {model}@7 or {model}@latest")
    store = Registry(registry)
    version = store.resolve(model, bare="latest")
    wanted: dict[str, str | None] = dict(parse_tags(tags or []))
    for key in remove or []:
        if key in wanted:
            raise InputError(f"tag {key!r} is both given and removed")
        wanted[key] = None
    for key, value in wanted.items():  # check all before writing the first
        check_tag(key, value)
    found = [store.tag(version.name, version.number, key, value, reason=reason) for key, value in wanted.items()]
    written = [entry for entry in found if entry is not None]
    now = store.resolve(str(version), bare="latest").tags
    if as_json:
        entries = [entry_json(entry) for entry in written]
        print_json({"name": version.name, "version": version.number, "tags": now, "entries": entries})
        return
    for entry in written:
        typer.echo(shown_in_line(f"{version.name}: {what_of(entry)} (entry {entry.number} of the log)"))
    if not written:
        shown = ", ".join(f"{key}={value}" for key, value in sorted(now.items()))
        typer.echo(shown_in_line(f"{version}: {shown or 'no tags'}"))


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
    elif entry is None:
        typer.echo(f"{name}@{alias}: no change needed")
    elif changed:
        before, _, rest = what_of(entry).partition(")")
        text = f"{before}; " if "(" in before else f"{before} ("
        typer.echo(shown_in_line(f"{name}: {text}logged as entry {entry.number}){rest}"))
    else:
        typer.echo(
            shown_in_line(
                f"{name}@{alias}: no change needed, already so since {time_text(entry.time)} UTC: {what_of(entry)}"
            )
        )
