"""``rankmill report``: a version on held-out queries as an HTML page, as JSON and as Markdown."""

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
            metavar="WORK|NAME[@VERSION]",
            help="Work folder of a run; or with --on a model: NAME (its production version), NAME@7 or NAME@latest.",
        ),
    ],
    on: Annotated[
        Path | None, typer.Option(metavar="DATASET", help="Dataset with judged queries for the report on a model.")
    ] = None,
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
    """Write a report on the version of a run, or on a model: a self-contained HTML page, JSON and Markdown.

    The page shows whether the version was promoted and why, and how it compares with the version that it would replace,
    query by query. It also has the learning curve of a run, feature importance, the data, the origin of everything, and
    how to roll back.

    Example: rankmill report work

    Example: rankmill report web@7 --on web.dataset

    Example: rankmill report work --by language -o /srv/reports/web
    """
    from rankmill.pipeline.dataset.dataset import Dataset
    from rankmill.registry import Registry
    from rankmill.report.report_files import write_report
    from rankmill.report.subject import subject_of_version, subject_of_work

    store = Registry(registry)
    if on is None:
        paths = write_report(subject_of_work(Path(of), store, by or ()), out or Path(of, "report"), n_threads=n_threads)
    else:
        subject = subject_of_version(store, of, Dataset.open(on), by or ())
        paths = write_report(subject, out or Path(f"{subject.version}.report"), n_threads=n_threads)
    if as_json:
        typer.echo(paths.facts.read_text(encoding="utf-8"), nl=False)
    else:
        typer.echo(f"{paths.title}\n{paths.page} (and {paths.facts.name}, {paths.markdown.name})")
