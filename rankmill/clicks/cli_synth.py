"""The command ``rankmill data synth``: judgments with a known signal, and simulated clicks on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rankmill.clicks.simulation_options import ClickSimulation
from rankmill.foundation.command_line import AsJson, Overwrite, takes_options
from rankmill.pipeline.options import SynthParameters


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

    With --clicks, also simulate users who see and click lists of these documents. Examples, the first of the size of MSLR-WEB10K:

    rankmill data synth -o judgments.parquet --queries 6000 --docs-per-query 120 --features 136

    rankmill data synth -o judgments.parquet --clicks log.parquet --sessions 100000 --eta 1 --swapped 0.1
    """
    from rankmill.clicks.simulate import check_path, generated_queries, write_click_log
    from rankmill.pipeline.synth import write_synthetic

    if clicks is not None:
        check_path(clicks, overwrite=overwrite)
    report = write_synthetic(out, parameters, overwrite=overwrite)
    facts, text = report.to_json(), report.render()
    if clicks is not None:
        judged, scores = generated_queries(parameters, simulation.logger)
        log = write_click_log(clicks, judged, scores, simulation, seed=parameters.seed, overwrite=overwrite)
        facts["clicks"], text = log.to_json(), f"{text}\n{log.render()}"
    typer.echo(json.dumps(facts) if as_json else text)
