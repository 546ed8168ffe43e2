"""``rankmill models``: the commands of the registry.  ``rankmill.cli`` adds those that need to read trees."""

from __future__ import annotations

import typer

from rankmill.registry import cli_look, cli_maintain, cli_move

app = typer.Typer(no_args_is_help=True, help="Manage model versions: list, diff, promote, roll back and verify them.")
for part in (cli_look, cli_move, cli_maintain):
    app.registered_commands += part.app.registered_commands
