"""``rankmill doctor``: facts about the machine for bug reports."""

from __future__ import annotations

import typer

from rankmill.registry.cli_options import DEFAULT_FOLDER, AsJson, RegistryFolder

app = typer.Typer()


@app.command()
def doctor(registry: RegistryFolder = DEFAULT_FOLDER, as_json: AsJson = False) -> None:
    """Check this installation: versions, cores, memory, compiled kernels, and the file system of a registry.

    Add the output to a bug report. It has no host name and no user name, and the home folder is shown as ~. The file system is
    tested with a few small files, which are removed again. Exit code: 0, or 74 if the folder cannot hold a registry.

    Example: rankmill doctor --registry registry-data
    """
    from rankmill.doctor import Doctor

    found = Doctor.of(registry)
    typer.echo(found.render(json=as_json))
    found.require()
