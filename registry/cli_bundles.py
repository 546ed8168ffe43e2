"""``rankmill models export|import``: models on their way from one registry to another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankmill.registry.cli_options import DEFAULT_FOLDER, AsJson, Reason, RegistryFolder
from rankmill.registry.telling.printing import print_json, size_text

app = typer.Typer()


@app.command("export")
def export_bundle(
    model: Annotated[str, typer.Argument(help="NAME: its whole history.  NAME@7 or NAME@production: that version.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.tar", dir_okay=False, help="The file to write.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")] = False,
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
        print_json(exported.to_json())
    else:
        typer.echo(f"wrote {out}: {holds}, {size_text(exported.contents.size)}")


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
        print_json(done.to_json())
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
