"""``rankmill report``: what a run has found, as a page, as JSON and as Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankmill.registry.cli_options import DEFAULT_FOLDER, AsJson, RegistryFolder
from rankmill.scorer.cli_options import NThreads

app = typer.Typer()


@app.command()
def report(
    of: Annotated[
        str,
        typer.Argument(
            metavar="WORK|NAME[@VERSION]", help="The work folder of a run, or a model version in the registry."
        ),
    ],
    registry: RegistryFolder = DEFAULT_FOLDER,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Where to write; by default WORK/report, or NAME@VERSION.report.",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Slice the queries by this column as well; repeat for several."),
    ] = None,
    n_threads: NThreads = 0,
    as_json: AsJson = False,
) -> None:
    """Write a report on a run, or on a version: one page that needs nothing else, the same as JSON, and as Markdown.

    The page says whether the version was promoted and why, how it compares with what it was to replace, query by query,
    how it learnt, what it looks at, what the data are like, where all of it comes from, and how to take it back.

    A version without a work folder has a shorter report, made from what the registry holds: what the training and the gate
    measured, what the model looks at, and where it comes from.

    Example: rankmill report work

    Example: rankmill report web@7

    Example: rankmill report work --by language -o /srv/reports/web
    """
    from rankmill.foundation.errors import InputError
    from rankmill.report.report_files import write_report, write_version_report

    work = Path(of)
    if work.is_dir() or not _is_model(of, registry):
        paths = write_report(work, registry, out=out, by=by or (), n_threads=n_threads)
    elif by:
        raise InputError(f"--by: the registry keeps no queries of {of} to slice; name the work folder of a run")
    else:
        paths = write_version_report(of, registry, out=out)
    if as_json:
        typer.echo(paths.facts.read_text(encoding="utf-8"), nl=False)
    else:
        typer.echo(f"{paths.title}\n{paths.page} (and {paths.facts.name}, {paths.markdown.name})")


def _is_model(reference: str, registry: Path) -> bool:
    """Tell whether ``reference`` names a model of the registry, of whatever version."""
    from rankmill.registry import Registry

    store = Registry(registry)
    return store.exists() and reference.partition("@")[0] in store.names()
