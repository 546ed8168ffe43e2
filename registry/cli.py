"""``rankmill models``: the registry's commands, composed.  ``rankmill.cli`` adds those that need trees."""

from __future__ import annotations

import typer

from rankmill.registry import cli_bundles, cli_gc, cli_keep, cli_look, cli_move

app = typer.Typer(no_args_is_help=True, help="Versions of models: look at them, promote them, roll back, check them.")
for part in (cli_look, cli_move, cli_keep, cli_gc, cli_bundles):
    app.registered_commands += part.app.registered_commands
