"""The commands ``rankmill clicks ..`` about logs, models of clicks, and judgments from clicks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rankmill.clicks.judge_options import JudgeOptions
from rankmill.clicks.log_options import ClickLogOptions
from rankmill.clicks.models.options import ClickFitOptions, ClickModelChoice
from rankmill.foundation.command_line import AsJson, Overwrite, takes_options
from rankmill.foundation.errors import InputError
from rankmill.foundation.options import Without, spelled

app = typer.Typer(no_args_is_help=True, help="Learn from clicks: judgments from logs, and estimates of new rankings.")

Log = Annotated[list[Path], typer.Argument(metavar="LOG...", help="Files of a click log, folders, or patterns.")]
TableOut = Annotated[Path, typer.Option("--out", "-o", help="Parquet file to write.")]
PropensityFile = Annotated[
    Path | None, typer.Option("--propensities", help="Examination probabilities by rank, written by clicks fit.")
]


@app.command()
@takes_options
def judge(
    *,
    log: Log,
    out: TableOut,
    propensities: PropensityFile = None,
    options: JudgeOptions,
    reading: ClickLogOptions,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Make judgments or preference pairs from clicks, for data ingest --qrels or --pairs.

    Each document of a query gets a label, its variance, and a weight: the share of the variance of labels that is not noise. Estimates:
    dctr, the click-through rate; coec, clicks over the clicks expected at the ranks where it was shown; pbm, ips, snips and dr, relevance
    given the examination probabilities of ranks. Examples:

    rankmill clicks judge log.parquet --propensities pbm.json -o judgments.parquet

    rankmill clicks judge log.parquet --propensities pbm.json --as grades --quantiles 0.5,0.8,0.95 -o judgments.parquet

    rankmill clicks judge log.parquet --propensities pbm.json --as pairs -o pairs.parquet
    """
    from rankmill.clicks.read_log import open_click_log
    from rankmill.clicks.write_judgments import (
        BYTES_OF_LABELS,
        BYTES_OF_PAIRS,
        check_table_path,
        write_judgments,
    )
    from rankmill.pipeline.judgments.propensities import read_propensities

    check_table_path(out, overwrite=overwrite)
    given = None if propensities is None else read_propensities(propensities)
    used = BYTES_OF_PAIRS if options.form == "pairs" else BYTES_OF_LABELS
    with open_click_log(log, reading, say=lambda line: typer.echo(line, err=True), bytes_used=used) as opened:
        report = write_judgments(opened, out, options, given, overwrite=overwrite)
    typer.echo(json.dumps(report.to_json()) if as_json else report.render())


@app.command()
@takes_options
def describe(
    *,
    log: Log,
    html: Annotated[
        Path | None, typer.Option("--html", help="Also write the description as a page to this file.")
    ] = None,
    options: Annotated[ClickFitOptions, Without("replicates")],
    reading: ClickLogOptions,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Describe a click log, say what can be estimated from it, and recommend a click model, or not to correct.

    Prints sessions, clicks by position, how many documents were shown at several positions, the ranking policies and whether their order
    looks random, sessions with suspiciously many lists or clicks, and how well each click model predicts sessions that were held out.

    Examples
    --------
    rankmill clicks describe log.parquet

    rankmill clicks describe 'days/*.csv.gz' --columns session=visit,doc_id=url --html log.html
    """
    from rankmill.clicks.describe_log import describe_clicks
    from rankmill.clicks.read_log import open_click_log
    from rankmill.foundation.storage.publish import explain_errors, write_atomically

    if html is not None:
        check_out(html, overwrite=overwrite)
    with open_click_log(log, reading, say=lambda line: typer.echo(line, err=True)) as opened:
        found = describe_clicks(opened, options, opened.totals)
    if html is not None:
        with explain_errors(html):
            write_atomically(html, found.page().encode())
    typer.echo(json.dumps(found.to_json()) if as_json else found.render())


@app.command()
@takes_options
def fit(
    *,
    log: Log,
    out: Annotated[Path, typer.Option("--out", "-o", help="JSON file to write.")],
    choice: ClickModelChoice,
    options: ClickFitOptions,
    reading: ClickLogOptions,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Estimate from a click log how likely users are to examine each position, and write it to a small file.

    Judgments from clicks, training and off-policy estimates read the file. Documents must have been shown at several positions;
    otherwise the estimate is refused, as position and relevance cannot be told apart. Intervals are of 95 %, by drawing sessions again.

    Examples
    --------
    rankmill clicks fit log.parquet -o pbm.json

    rankmill clicks fit log.parquet --model randomised --policy random -o random.json
    """
    from rankmill.clicks.models.fit_log import ClickFitReport, fit_clicks
    from rankmill.clicks.read_log import open_click_log
    from rankmill.pipeline.judgments.propensities import write_propensities

    check_out(out, overwrite=overwrite)
    with open_click_log(log, reading, say=lambda line: typer.echo(line, err=True)) as opened:
        fitted = fit_clicks(opened, choice.model, options)
    write_propensities(out, fitted.propensities)
    report = ClickFitReport(out, fitted.converged, fitted.propensities)
    typer.echo(json.dumps(report.to_json()) if as_json else report.render())


def check_out(path: Path, *, overwrite: bool) -> None:
    """Raise InputError if no file can be written to ``path``."""
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file")
    if path.exists() and not overwrite:
        raise InputError(f"{path}: already exists; choose another name, or replace it with {spelled('overwrite')}")
