"""``rankmill doctor``: facts about the machine for bug reports; ``rankmill warm``: compile every kernel for it."""

from __future__ import annotations

import typer

from rankmill.registry.cli_options import DEFAULT_FOLDER, AsJson, RegistryFolder

app = typer.Typer()


@app.command()
def doctor(registry: RegistryFolder = DEFAULT_FOLDER, as_json: AsJson = False) -> None:
    """Check this installation: versions, cores, memory, kernel cache, and the file system of a registry.

    Add the output to a bug report. It has no host name and no user name, and the home folder is shown as ~. The file system is
    tested with a small file, which is removed again. Exit code: 0, or 74 if the folder cannot hold a registry.

    Example: rankmill doctor --registry registry-data
    """
    import errno
    import json

    from rankmill.doctor import facts_of
    from rankmill.foundation.terminal import labelled

    facts = facts_of(registry)
    problem = facts.pop("problem")
    typer.echo(json.dumps(facts) if as_json else "\n".join(labelled(name, words) for name, words in facts.items()))
    if problem:
        raise OSError(errno.EOPNOTSUPP, problem, str(registry))


@app.command()
def warm(as_json: AsJson = False) -> None:
    """Compile every kernel for this machine, which takes about five minutes of processor time; nothing is compiled later.

    A wheel for Linux on x86-64 and the image come with kernels for any CPU of level x86-64-v3. Those made here know all
    instructions of this CPU and are used instead. Results are the same, bit for bit. What is there already is not compiled again.

    Example: rankmill warm
    """
    import subprocess
    import sys
    from pathlib import Path

    import rankmill

    typer.echo("compiling every kernel for this machine: some minutes, or longer if other programs are busy", err=True)
    command = [sys.executable, "-m", "rankmill.warm", *["--json"] * as_json]  # it calls all commands, this one not
    with subprocess.Popen(command, cwd=Path(rankmill.__path__[0]).parent) as compiling:  # noqa: S603 - our own
        try:
            code = compiling.wait()
        finally:
            compiling.terminate()  # does nothing if it has ended
    raise typer.Exit(code)
