"""The command ``rankmill clicks fit``, which may train trees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rankmill.foundation.command_line import AsJson, Overwrite, takes_options
from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import spelled
from rankmill.pipeline.cli_clicks import Log, check_out
from rankmill.pipeline.clicks.log_options import ClickLogOptions
from rankmill.pipeline.clicks.models.options import ClickFitOptions, ClickModelChoice

app = typer.Typer()


@app.command()
@takes_options
def fit(
    *,
    log: Log,
    out: Annotated[Path, typer.Option("--out", "-o", help="JSON file to write.")],
    choice: ClickModelChoice,
    features: Annotated[
        Path | None,
        typer.Option(
            "--features",
            metavar="DATASET",
            help="Binned dataset with the documents of the log: relevance by trees over its features (regression EM), also where no"
            " document changes its position.",
        ),
    ] = None,
    options: ClickFitOptions,
    reading: ClickLogOptions,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Estimate from a click log how likely users are to examine each position, and write it to a small file.

    Judgments from clicks, training and off-policy estimates read the file. Documents must have been shown at several positions;
    otherwise the estimate is refused, as position and relevance cannot be told apart, unless --features make documents comparable: then
    relevance comes from trees over their features, which must not include what the lists were sorted by. Intervals are of 95 %, by drawing sessions again.

    Examples
    --------
    rankmill clicks fit log.parquet -o pbm.json

    rankmill clicks fit log.parquet --model randomised --policy random -o random.json

    rankmill clicks fit log.parquet --features web.dataset -o regression.json
    """
    from rankmill.pipeline.clicks.models.fit_log import ClickFitReport, fit_clicks
    from rankmill.pipeline.clicks.propensities import write_propensities
    from rankmill.pipeline.clicks.read_log import open_click_log
    from rankmill.pipeline.dataset import Dataset
    from rankmill.trainer.clicks.regression_em import fit_regression_em

    if features is not None and (choice.model != "pbm" or options.policy is not None):
        raise InvalidParameter(
            f"{spelled('features')} fits the position-based model to all lists; leave out {spelled('model')} and {spelled('policy')}"
        )
    check_out(out, overwrite=overwrite)
    with open_click_log(log, reading, say=lambda line: typer.echo(line, err=True)) as opened:
        if features is None:
            fitted = fit_clicks(opened, choice.model, options)
            found, converged = fitted.propensities, fitted.converged
        else:
            found, converged = fit_regression_em(opened, Dataset.open(features), options.ranks), True
    write_propensities(out, found)
    report = ClickFitReport(out, converged, found)
    typer.echo(json.dumps(report.to_json()) if as_json else report.render())
