"""``rankmill report``: what a run has found, as a page, as JSON and as Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from registry.cli_options import DEFAULT_FOLDER, AsJson, RegistryFolder
from scorer.cli import NThreads

app = typer.Typer()


@app.command()
def report(
    work: Annotated[Path, typer.Argument(metavar="WORK", help="The work folder of a run.")],
    registry: RegistryFolder = DEFAULT_FOLDER,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Where to write; WORK/report by default.", show_default=False),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Slice the queries by this column as well; repeat for several."),
    ] = None,
    n_threads: NThreads = 0,
    as_json: AsJson = False,
) -> None:
    """Write what a run has found: one page that needs nothing else, the same as JSON, and as Markdown.

    The page says whether the version was promoted and why, how it compares with what it was to replace, query by query,
    how it learnt, what it looks at, what the data are like, where all of it comes from, and how to take it back.

    Example: rankmill report work

    Example: rankmill report work --by language -o /srv/reports/web
    """
    from rankmill.report.writing import write_report

    paths = write_report(work, registry, out=out, by=by or (), n_threads=n_threads)
    if as_json:
        typer.echo(paths.facts.read_text(encoding="utf-8"), nl=False)
    else:
        typer.echo(f"{paths.title}\n{paths.page} (and {paths.facts.name}, {paths.markdown.name})")
