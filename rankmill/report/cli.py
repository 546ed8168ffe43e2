"""``rankmill report``: the results of a run as an HTML page, as JSON and as Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankmill.foundation.storage.location import Location
from rankmill.registry.cli_options import DEFAULT_FOLDER, AsJson, RegistryFolder
from rankmill.scorer.cli_options import NThreads

app = typer.Typer()


@app.command()
def report(
    of: Annotated[
        str,
        typer.Argument(
            metavar="WORK|NAME[@VERSION]",
            help="Work folder of a run, or a model of the registry: NAME (its production version), NAME@7 or "
            "NAME@latest.",
        ),
    ],
    registry: RegistryFolder = DEFAULT_FOLDER,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Output folder.  Default: WORK/report, or NAME@VERSION.report.",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Also report metrics by the values of this column; repeat for several."),
    ] = None,
    n_threads: NThreads = 0,
    as_json: AsJson = False,
) -> None:
    """Write a report on a run or a version: a self-contained HTML page, JSON and Markdown.

    The page shows whether the version was promoted and why, and how it compares with the version that it would replace,
    query by query. It also has the learning curve, feature importance, the data, the origin of everything, and how to
    roll back.

    The report on a version in the registry is shorter: the metrics of training and gate, feature importance, and where
    the version comes from.

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
        raise InputError(f"--by: the registry has no queries of {of}; name the work folder of a run instead")
    else:
        paths = write_version_report(of, registry, out=out)
    if as_json:
        typer.echo(paths.facts.read_text(encoding="utf-8"), nl=False)
    else:
        typer.echo(f"{paths.title}\n{paths.page} (and {paths.facts.name}, {paths.markdown.name})")


def _is_model(reference: str, registry: Location) -> bool:
    """Return whether ``reference`` names a model of the registry, in any version."""
    from rankmill.registry import Registry

    store = Registry(registry)
    return store.exists() and reference.partition("@")[0] in store.names()
