"""The commands ``rankmill clicks ..`` about rankings: their value on a log, and interleaving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rankmill.clicks.cli import Log, PropensityFile, TableOut
from rankmill.clicks.log_options import ClickLogOptions
from rankmill.clicks.off_policy_options import InterleavingOptions, OffPolicyOptions
from rankmill.foundation.command_line import AsJson, Overwrite, takes_options
from rankmill.foundation.errors import InputError
from rankmill.registry.cli_options import DEFAULT_FOLDER, RegistryFolder

app = typer.Typer()


@app.command()
@takes_options
def evaluate(
    *,
    log: Log,
    ranked: Annotated[
        list[Path] | None,
        typer.Option("--ranked", metavar="SCORED|RUN", help="A scored list or a TREC run; repeat for several."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", "-m", help="A model that ranks --on: a file, NAME@7, NAME@latest or NAME; repeat for several."
        ),
    ] = None,
    on: Annotated[
        list[Path] | None,
        typer.Option("--on", metavar="CANDIDATES|DATASET", help="What models rank; repeat for several files."),
    ] = None,
    propensities: PropensityFile = None,
    relevance: Annotated[
        Path | None,
        typer.Option(help="Labels written by clicks judge, or any Parquet file of them, as the regression of dr."),
    ] = None,
    options: OffPolicyOptions,
    reading: ClickLogOptions,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Estimate what rankings that were not shown would be worth, by the clicks of a log (off-policy evaluation).

    Rankings are compared with the first one; lists come before models. Four estimates: ips (inverse propensity), clipped,
    snips (self-normalised) and dr (doubly robust), with intervals, effective clicks, and what the log has never shown. Examples:

    rankmill clicks evaluate log.parquet --propensities pbm.json --ranked old.run --ranked new.run

    rankmill clicks evaluate log.parquet --propensities pbm.json --model web --model web@latest --on candidates.parquet
    """
    from rankmill.clicks.off_policy import BYTES_USED, evaluate_off_policy
    from rankmill.clicks.rankings import read_relevance, scored_table
    from rankmill.clicks.read_log import open_click_log
    from rankmill.pipeline.judgments.propensities import read_propensities
    from rankmill.scorer.models.model_service import find_models

    if not ranked and not model:
        raise InputError("no ranking given; name scored lists with --ranked, or models with --model")
    given = None if propensities is None else read_propensities(propensities)
    known = None if relevance is None else read_relevance(relevance)
    rankings = {str(path): scored_table(path) for path in ranked or ()}
    if model:
        found = find_models(model, registry)
        rankings |= {name: scored_table(opened, on or ()) for name, (opened, _) in found.items()}
    with open_click_log(log, reading, say=lambda line: typer.echo(line, err=True), bytes_used=BYTES_USED) as opened_log:
        report = evaluate_off_policy(opened_log, rankings, given, options, relevance=known)
    typer.echo(json.dumps(report.to_json()) if as_json else report.render())


@app.command()
@takes_options
def interleave(
    *,
    one: Annotated[Path, typer.Argument(metavar="A", help="Scored list or TREC run of the first ranking.")],
    two: Annotated[Path, typer.Argument(metavar="B", help="That of the second.")],
    out: TableOut,
    options: InterleavingOptions,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Mix two rankings into lists for an online test (team draft), with the team of each document.

    Serve each session one of the drafts of its query, and log its name in the column policy. Example:

    rankmill clicks interleave production.parquet candidate.parquet -o lists.parquet --drafts 20
    """
    from rankmill.clicks.interleaving import write_interleaved
    from rankmill.scorer.evaluate.scored_file import read_scored

    report = write_interleaved(out, read_scored(one), read_scored(two), options, overwrite=overwrite)
    typer.echo(json.dumps(report.to_json()) if as_json else report.render())


@app.command(name="interleaving-outcome")
@takes_options
def interleaving_outcome(
    *,
    log: Log,
    lists: Annotated[Path, typer.Option(help="The lists that were served, written by clicks interleave.")],
    reading: ClickLogOptions,
    as_json: AsJson = False,
) -> None:
    """Say which of two interleaved rankings users prefer: sessions won, their share with its interval, and the sign test.

    Example: rankmill clicks interleaving-outcome log.parquet --lists lists.parquet
    """
    from rankmill.clicks.interleaving import interleaving_outcome as outcome_of
    from rankmill.clicks.interleaving import read_interleaved
    from rankmill.clicks.read_log import open_click_log

    served = read_interleaved(lists)
    with open_click_log(log, reading, say=lambda line: typer.echo(line, err=True)) as opened:
        outcome = outcome_of(opened, served)
    typer.echo(json.dumps(outcome.to_json()) if as_json else outcome.render())
