"""The commands ``rankmill clicks ..``, and ``rankmill data synth``, which simulates clicks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankmill.clicks.options import (
    ClickFitOptions,
    ClickLogOptions,
    ClickModelChoice,
    ClickSimulation,
    InterleavingOptions,
    JudgeOptions,
    OffPolicyOptions,
)
from rankmill.foundation.command_line import AsJson, Overwrite, takes_options
from rankmill.foundation.errors import InputError
from rankmill.foundation.options import Without
from rankmill.foundation.records import as_json as record_as_json
from rankmill.foundation.storage.publish import check_new_file
from rankmill.pipeline.options import SynthParameters
from rankmill.registry.cli_options import DEFAULT_FOLDER, RegistryFolder

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rankmill.clicks.sorted_log import SortedLog
    from rankmill.pipeline.judgments.propensities import Propensities

app = typer.Typer(no_args_is_help=True, help="Learn from clicks: judgments from logs, and estimates of new rankings.")

Log = Annotated[list[Path], typer.Argument(metavar="LOG...", help="Files of a click log, folders, or patterns.")]
TableOut = Annotated[Path, typer.Option("--out", "-o", help="Parquet file to write.")]
_FITTED = typer.Option("--propensities", help="Examination probabilities by rank, written by clicks fit.")
PropensityFile = Annotated[Path | None, _FITTED]


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

    Each document of a query gets a label, its variance, and a weight: the share of the variance of labels that is not
    noise. Estimates: dctr, the click-through rate; pbm, ips and snips, relevance given the examination probabilities of
    ranks. Examples:

    rankmill clicks judge log.parquet --propensities pbm.json -o judgments.parquet

    rankmill clicks judge log.parquet --propensities pbm.json --as grades --quantiles 0.5,0.8,0.95 -o judgments.parquet

    rankmill clicks judge log.parquet --propensities pbm.json --as pairs -o pairs.parquet
    """
    from rankmill.clicks.write_judgments import BYTES_OF_LABELS, BYTES_OF_PAIRS, write_judgments

    check_new_file(out, overwrite=overwrite, suffixes=(".parquet",))
    given = _read(propensities)
    with _opened(log, reading, BYTES_OF_PAIRS if options.form == "pairs" else BYTES_OF_LABELS) as opened:
        _print(write_judgments(opened, out, options, given, overwrite=overwrite), as_json=as_json)


@app.command()
@takes_options
def describe(
    *,
    log: Log,
    options: Annotated[ClickFitOptions, Without("replicates")],
    reading: ClickLogOptions,
    as_json: AsJson = False,
) -> None:
    """Describe a click log, say what can be estimated from it, and recommend a click model, or not to correct.

    Prints sessions, clicks by position, and the number of documents that were shown at several positions.  Also prints
    the ranking policies, sessions with suspiciously many lists or clicks, and how well each click model predicts
    held-out sessions.

    Examples
    --------
    rankmill clicks describe log.parquet

    rankmill clicks describe 'days/*.csv.gz' --columns session=visit,doc_id=url
    """
    from rankmill.clicks.describe_log import describe_clicks

    with _opened(log, reading) as opened:
        _print(describe_clicks(opened, options), as_json=as_json)


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

    Judgments from clicks, training and off-policy estimates read the file. Documents must have been shown at several
    positions; otherwise the estimate is refused, as position and relevance cannot be distinguished. Intervals are of 95
    %, by drawing sessions again.

    Examples
    --------
    rankmill clicks fit log.parquet -o pbm.json

    rankmill clicks fit log.parquet --model randomised --policy random -o random.json
    """
    from rankmill.clicks.models.fit_log import ClickFitReport, fit_clicks
    from rankmill.pipeline.judgments.propensities import write_propensities

    check_new_file(out, overwrite=overwrite)
    with _opened(log, reading) as opened:
        fitted = fit_clicks(opened, choice.model, options)
    write_propensities(out, fitted.propensities)
    _print(ClickFitReport(out, fitted.converged, fitted.propensities), as_json=as_json)


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
    propensities: Annotated[Path, _FITTED],
    options: OffPolicyOptions,
    reading: ClickLogOptions,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Estimate what rankings that were not shown would be worth, by the clicks of a log (off-policy evaluation).

    Rankings are compared with the first one; lists come before models. Four estimates: ips (inverse propensity),
    clipped, snips (self-normalised) and dr (doubly robust), with intervals, effective clicks, and what the log has
    never shown. Examples:

    rankmill clicks evaluate log.parquet --propensities pbm.json --ranked old.run --ranked new.run

    rankmill clicks evaluate log.parquet --propensities pbm.json --model web --model web@latest --on candidates.parquet
    """
    from rankmill.clicks.off_policy import BYTES_USED, evaluate_off_policy
    from rankmill.clicks.rankings import scored_table
    from rankmill.pipeline.judgments.propensities import read_propensities
    from rankmill.scorer.models.model_service import find_models

    if not ranked and not model:
        raise InputError("no ranking given; name scored lists with --ranked, or models with --model")
    given = read_propensities(propensities)
    rankings = {str(path): scored_table(path) for path in ranked or ()}
    if model:
        found = find_models(model, registry)
        rankings |= {name: scored_table(opened, on or ()) for name, (opened, _) in found.items()}
    with _opened(log, reading, BYTES_USED) as opened_log:
        _print(evaluate_off_policy(opened_log, rankings, given, options), as_json=as_json)


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

    _print(write_interleaved(out, read_scored(one), read_scored(two), options, overwrite=overwrite), as_json=as_json)


@app.command(name="interleaving-outcome")
@takes_options
def interleaving_outcome(
    *,
    log: Log,
    lists: Annotated[Path, typer.Option(help="The lists that were served, written by clicks interleave.")],
    reading: ClickLogOptions,
    as_json: AsJson = False,
) -> None:
    """Say which of two interleaved rankings users prefer.

    The result has sessions won, their share with its interval, and the sign test.

    Example: rankmill clicks interleaving-outcome log.parquet --lists lists.parquet
    """
    from rankmill.clicks import interleaving

    served = interleaving.read_interleaved(lists)
    with _opened(log, reading) as opened:
        _print(interleaving.interleaving_outcome(opened, served), as_json=as_json)


@takes_options
def synth(
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write: .parquet, or .txt for LETOR text.")],
    parameters: SynthParameters,
    clicks: Annotated[
        Path | None,
        typer.Option(
            "--clicks",
            help="File to write a click log of simulated users to: .parquet or .csv.",
            rich_help_panel="Simulated clicks",
        ),
    ] = None,
    simulation: ClickSimulation,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Generate synthetic judgments like those of a web search engine, with a known signal.

    With --clicks, also simulate users who see and click lists of these documents. Examples, the first of the size of
    MSLR-WEB10K:

    rankmill data synth -o judgments.parquet --queries 6000 --docs-per-query 120 --features 136

    rankmill data synth -o judgments.parquet --clicks log.parquet --sessions 100000 --eta 1 --swapped 0.1
    """
    from rankmill.clicks.simulate import SUFFIXES, generated_queries, write_click_log
    from rankmill.pipeline.synth import write_synthetic

    if clicks is not None:
        check_new_file(clicks, overwrite=overwrite, suffixes=SUFFIXES)
    report = write_synthetic(out, parameters, overwrite=overwrite)
    facts, text = report.to_json(), report.render()
    if clicks is not None:
        judged, scores = generated_queries(parameters, simulation.logger)
        log = write_click_log(clicks, judged, scores, simulation, seed=parameters.seed, overwrite=overwrite)
        facts["clicks"], text = record_as_json(log), f"{text}\n{log.render()}"
    typer.echo(json.dumps(facts) if as_json else text)


def _print(report: Any, *, as_json: bool) -> None:
    typer.echo(json.dumps(record_as_json(report)) if as_json else report.render())


def _opened(log: list[Path], reading: ClickLogOptions, bytes_used: int = 0) -> AbstractContextManager[SortedLog]:
    from rankmill.clicks.read_log import open_click_log

    return open_click_log(log, reading, say=lambda line: typer.echo(line, err=True), bytes_used=bytes_used)


def _read(propensities: Path | None) -> Propensities | None:
    from rankmill.pipeline.judgments.propensities import read_propensities

    return None if propensities is None else read_propensities(propensities)
