"""``rankmill models init|gc|fsck``: make a registry and keep it in order."""

from __future__ import annotations

from typing import Annotated

import typer

from rankmill.registry.cli_options import DEFAULT_FOLDER, AsJson, RegistryFolder
from rankmill.registry.telling.printing import print_json

app = typer.Typer()


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
        print_json(done.to_json())
    else:
        typer.echo(done.render())
