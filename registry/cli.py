"""``rankmill models``: the registry's commands, composed.  ``rankmill.cli`` adds those that need trees."""

from __future__ import annotations

import typer

from rankmill.registry import cli_look, cli_maintain, cli_move

app = typer.Typer(no_args_is_help=True, help="Versions of models: look at them, promote them, roll back, check them.")
for part in (cli_look, cli_move, cli_maintain):
    app.registered_commands += part.app.registered_commands
