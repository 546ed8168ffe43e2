"""The commands ``rankmill clicks ..`` about logs, models of clicks, and judgments from clicks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rankmill.foundation.command_line import AsJson, Overwrite, takes_options
from rankmill.pipeline.clicks.judge_options import JudgeOptions
from rankmill.pipeline.clicks.log_options import ClickLogOptions

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
    from rankmill.pipeline.clicks.propensities import read_propensities
    from rankmill.pipeline.clicks.read_log import open_click_log
    from rankmill.pipeline.clicks.write_judgments import check_table_path, write_judgments

    check_table_path(out, overwrite=overwrite)
    given = None if propensities is None else read_propensities(propensities)
    with open_click_log(log, reading, say=lambda line: typer.echo(line, err=True)) as opened:
        report = write_judgments(opened, out, options, given, overwrite=overwrite)
    typer.echo(json.dumps(report.to_json()) if as_json else report.render())
