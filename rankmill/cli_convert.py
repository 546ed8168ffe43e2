"""``rankmill convert``: models to and from the files of other tools."""

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
            help="With --to a model file, or NAME, NAME@7, NAME@latest; NAME means production.  With --from a file of that tool.",
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="lightgbm, xgboost, ranklib, solr, onnx or c; by default what the suffix of -o says: .txt is lightgbm, .xml"
            " ranklib, .onnx and .c themselves.",
        ),
    ] = None,
    source: Annotated[str | None, typer.Option("--from", metavar="FORMAT", help="lightgbm or xgboost.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file to write.")] = None,
    options: ConvertOptions,
    overwrite: Overwrite = False,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Write a model for another tool, or take over one that another tool has trained.

    Thresholds are exact, missing values keep their direction, and the report says how exact scores are there.  What a
    format cannot say is refused with the reason.

    Example: rankmill convert web -o web.onnx

    Example: rankmill convert web --to xgboost -o web.json

    Example: rankmill convert web@7 --to ranklib -o web.xml --missing zero

    Example: rankmill convert old-model.json --from xgboost --name web
    """
    from rankmill.convert import convert_from, convert_to, target_of

    if to is None and source is None and out is not None:
        to = target_of(out)
    if (to is None) == (source is None):
        raise InputError(
            "say which way: --to FORMAT writes a model for another tool, --from FORMAT reads one of its own"
        )
    if to is not None:
        if out is None:
            raise InputError("name the file to write with -o FILE")
        if options.absent is not None:
            raise InputError("--absent is for --from: what is written has --missing")
        done = convert_to(to, model, out, registry, options=options, overwrite=overwrite)
    else:
        if options.missing != "keep" or options.nearest_thresholds:
            raise InputError(
                "--missing and --nearest-thresholds are for --to: what is read keeps its directions and thresholds"
            )
        done = convert_from(str(source), Path(model), out=out, registry=registry, options=options, overwrite=overwrite)
    typer.echo(done.to_json() if as_json else done.render())
