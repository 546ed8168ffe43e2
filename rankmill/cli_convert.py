"""``rankmill convert``: models to and from the files of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankmill.foundation.command_line import AsJson, Overwrite
from rankmill.foundation.errors import InputError
from rankmill.registry.cli_options import DEFAULT_FOLDER, RegistryFolder

app = typer.Typer()


@app.command()
def convert(
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
    name: Annotated[
        str | None,
        typer.Option(
            help="With --from: register the model under this name.  With --to: what Solr, ONNX and C call it."
        ),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,..|FILE",
            help="Other names for the features, in the model's order: between commas (f1..f46 is 46 of them), or a file with one a line.",
        ),
    ] = None,
    missing: Annotated[
        str | None,
        typer.Option(
            help="With --to: keep sends missing values where the model does; zero sends them where 0 goes.",
            show_default="keep",
        ),
    ] = None,
    nearest_thresholds: Annotated[
        bool, typer.Option("--nearest-thresholds", help="For solr: take the nearest where it cannot have a threshold.")
    ] = False,
    absent: Annotated[
        str | None,
        typer.Option(help="With --from: what a feature left out of LETOR text was to that tool: zero or missing."),
    ] = None,
    n_rounds: Annotated[int | None, typer.Option(help="Take only so many rounds of the model.")] = None,
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
    from rankmill.convert import convert_from, convert_to, names_in, target_of

    names = None if features is None else names_in(features)
    if to is None and source is None and out is not None:
        to = target_of(out)
    if (to is None) == (source is None):
        raise InputError(
            "say which way: --to FORMAT writes a model for another tool, --from FORMAT reads one of its own"
        )
    if to is not None:
        if out is None:
            raise InputError("name the file to write with -o FILE")
        if absent is not None:
            raise InputError("--absent is for --from: what is written has --missing")
        done = convert_to(
            to, model, out, registry, name=name, features=names, missing=missing or "keep",
            nearest_thresholds=nearest_thresholds, n_rounds=n_rounds, overwrite=overwrite,
        )  # fmt: skip
    else:
        if missing is not None or nearest_thresholds:
            raise InputError(
                "--missing and --nearest-thresholds are for --to: what is read keeps its directions and thresholds"
            )
        done = convert_from(
            str(source), Path(model), out=out, name=name, registry=registry, features=names, n_rounds=n_rounds,
            absent=absent, overwrite=overwrite,
        )  # fmt: skip
    typer.echo(done.to_json() if as_json else done.render())
