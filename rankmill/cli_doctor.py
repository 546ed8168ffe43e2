"""``rankmill doctor``: what a bug report needs to say about the machine."""

from __future__ import annotations

import typer

from rankmill.registry.cli_options import DEFAULT_FOLDER, AsJson, RegistryFolder

app = typer.Typer()


@app.command()
def doctor(registry: RegistryFolder = DEFAULT_FOLDER, as_json: AsJson = False) -> None:
    """Check this installation: versions, cores, memory, compiled kernels, and what the disk of a registry can do.

    Add the output to a bug report. It holds no host name and no user name, and the home folder is shown as ~. The disk is
    tried with a few small files, which are removed again. Exit code: 0, or 74 if the folder cannot keep a registry.

    Example: rankmill doctor --registry registry-data
    """
    from rankmill.doctor import Doctor

    found = Doctor.of(registry)
    typer.echo(found.render(json=as_json))
    found.require()
