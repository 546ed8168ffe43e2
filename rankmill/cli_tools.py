"""``rankmill convert``: models of other tools.

``doctor``: facts about the machine. ``warm``: compile every kernel for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankmill.foundation.command_line import AsJson, Overwrite, takes_options
from rankmill.foundation.errors import InputError
from rankmill.registry.cli_options import DEFAULT_FOLDER, RegistryFolder
from rankmill.scorer.options import ConvertOptions

app = typer.Typer()


@app.command()
@takes_options
def convert(
    *,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|FILE",
            help="With --to: a model file, or NAME@7, NAME@latest or NAME (its production version).  With --from: a "
            "file of that tool.",
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="Output format: lightgbm, xgboost, solr or onnx.  Default: by the suffix of -o: .txt lightgbm, .onnx "
            "onnx.",
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="FORMAT", help="Input format: lightgbm or xgboost.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Output file.")] = None,
    options: ConvertOptions,
    overwrite: Overwrite = False,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Write a model for another tool, or import a model that another tool has trained.

    Thresholds are exact and missing values keep their direction.  The report says how exact the scores are in the other
    tool. A model that the format cannot express is rejected with the reason.

    Example: rankmill convert web -o web.onnx

    Example: rankmill convert web --to xgboost -o web.json

    Example: rankmill convert web@7 --to solr -o web.json --missing zero

    Example: rankmill convert old-model.json --from xgboost --name web
    """
    from rankmill.convert import convert_from, convert_to, target_of

    if to is None and source is None and out is not None:
        to = target_of(out)
    if (to is None) == (source is None):
        raise InputError(
            "choose a direction: --to FORMAT writes a model for another tool, --from FORMAT reads a model of another "
            "tool"
        )
    if to is not None:
        if out is None:
            raise InputError("no output file given; name it with -o FILE")
        if options.absent is not None:
            raise InputError("--absent can only be used with --from; with --to use --missing")
        done = convert_to(to, model, out, registry, options=options, overwrite=overwrite)
    else:
        if options.missing != "keep" or options.nearest_thresholds:
            raise InputError(
                "--missing and --nearest-thresholds can only be used with --to: an imported model keeps its "
                "directions and thresholds"
            )
        done = convert_from(str(source), Path(model), out=out, registry=registry, options=options, overwrite=overwrite)
    typer.echo(done.to_json() if as_json else done.render())


@app.command()
def doctor(registry: RegistryFolder = DEFAULT_FOLDER, as_json: AsJson = False) -> None:
    """Check this installation: versions, cores, memory, kernel cache, and the file system of a registry.

    Add the output to a bug report. It has no host name and no user name, and the home folder is shown as ~. The file
    system is tested with a small file, which is removed again. Exit code: 0, or 74 if the folder cannot hold a
    registry.

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
    """Compile every kernel for this machine, about five minutes of processor time.

    Nothing is compiled later.

    A wheel for Linux on x86-64 and the image come with kernels for any CPU of level x86-64-v3. Those made here know all
    instructions of this CPU and are used instead. Results are the same, bit for bit. What is there already is not
    compiled again.

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
