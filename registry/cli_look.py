"""``rankmill models list|show|log|verify``: the commands that only read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from rankmill.foundation.errors import InputError, IntegrityError, RankmillError
from rankmill.foundation.records import left_out
from rankmill.foundation.shown import shown_in_line
from rankmill.registry.cli_options import DEFAULT_FOLDER, AsJson, RegistryFolder, bare_name, existing_registry
from rankmill.registry.rendering import print_json, print_lines, print_table, size_text, time_text

if TYPE_CHECKING:
    from rankmill.registry import Registry
    from rankmill.registry.model_state import State

app = typer.Typer()


@app.command("list")
def list_models(
    name: Annotated[str | None, typer.Argument(help="Model whose versions to list.  Default: list all models.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="List all versions.  Default: the last 20 and those with an alias.")
    ] = False,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="List only versions with this tag; repeat for several."),
    ] = None,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """List the models, or the versions of one model.

    Example: rankmill models list web
    """
    store = existing_registry(registry)
    if name is not None:
        _list_versions(store, bare_name(name), tag or [], every=every, as_json=as_json)
        return
    if tag or every:
        raise InputError("--tag and --all choose versions: name the model, such as rankmill models list NAME --all")
    models = [_summary(store, model) for model in store.names()]
    if as_json:
        print_json({"registry": str(registry), "models": models})
    elif not models:
        typer.echo(f"No model is registered in {registry} yet: rankmill train DATASET --name NAME")
    else:
        print_table(["model", "versions", "aliases", "last change (UTC)"], [model.row() for model in models])
    if damaged := next((model.fault for model in models if model.fault), None):  # a scheduler only reads the exit code
        raise IntegrityError(damaged)


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """A model in a list; if its log is damaged, only the fault."""

    name: str
    fault: str | None = left_out()
    versions: int | None = left_out()
    aliases: dict[str, int] | None = left_out()
    changed: str | None = left_out()

    def row(self) -> list[str]:
        """Return a row of the list."""
        if self.fault is not None:
            return [self.name, "", f"DAMAGED: {self.fault}", ""]
        aliases = ", ".join(f"{alias} = {version}" for alias, version in sorted((self.aliases or {}).items()))
        return [self.name, str(self.versions), aliases, time_text(self.changed or "")]


def _summary(store: Registry, model: str) -> ModelSummary:
    """Summarise one model.  A damaged log becomes a fault, so that the other models are still listed."""
    try:
        state = store.state(model)
        last = store.entry(model, state.head)
    except RankmillError as error:
        return ModelSummary(model, fault=str(error))
    return ModelSummary(model, versions=len(state.versions), aliases=state.set_aliases(), changed=last.time)


def _list_versions(store: Registry, name: str, tags: list[str], *, every: bool, as_json: bool) -> None:
    from rankmill.registry import listings

    wanted, total = listings.parse_tags(tags), 0

    def choose(state: State) -> list[int]:
        nonlocal total
        total = len(state.versions)
        return listings.chosen(state, wanted, every=every)

    shown = store.versions(name, choose)
    if as_json:
        print_json({"name": name, "of": total, "versions": [listings.version_json(version) for version in shown]})
        return
    if wanted and not shown:
        typer.echo(f"no version of {name} has {' and '.join(f'the tag {key}={text}' for key, text in wanted.items())}")
        return
    print_table(listings.VERSIONS_HEADER, [listings.version_row(version) for version in shown])
    rest = total - len(shown)
    if rest and not wanted:
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
    from rankmill.registry import Registry
    from rankmill.registry.show_version import VersionDetails

    store = Registry(registry)
    version = store.resolve(model, bare="latest")
    details = VersionDetails(store, version)
    if as_json:
        print_json(details.to_json())
    else:
        print_table(["", str(version)], details.rows())


@app.command()
def log(
    name: Annotated[str, typer.Argument(help="Name of the model.")],
    last: Annotated[int | None, typer.Option("--last", min=1, help="Show only the newest N entries.")] = None,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Show the log of a model, newest last: who registered, promoted, rolled back, gated, tagged or swept what, and why.

    Example: rankmill models log web --last 20
    """
    from rankmill.registry import Registry
    from rankmill.registry.rendering import entry_json, entry_line, stands_out

    store = Registry(registry)
    after = 0 if last is None else max(0, store.state(bare_name(name)).head - last)
    entries = store.log(bare_name(name), after=after)
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
