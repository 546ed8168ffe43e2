"""Options that several commands of scoring share, as their parameters are annotated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from rankmill.foundation.options import ChangesOf
from rankmill.pipeline.options import IngestOptions
from rankmill.scorer.metrics.policy import Policy

Reading = Annotated[
    Mapping[str, Any],
    ChangesOf(
        IngestOptions,
        format="",
        absent="as in training",
        index_base="as in training",
        n_features="",
        columns="",
    ),
]
"""How candidates are read, where it differs from what the model was trained with."""

Conventions = Annotated[Mapping[str, Any], ChangesOf(Policy)]
"""What rules over the convention of metrics."""

ModelOption = typer.Option("--model", "-m", help="Model file, or NAME, NAME@7, NAME@latest; NAME means production.")
NThreads = Annotated[int, typer.Option(min=0, help="Threads; 0: the cores there are.  Never changes the result.")]
ConventionName = Annotated[
    str,
    typer.Option(
        "--convention",
        help="Whose conventions: rankmill, trec, gdeval, lightgbm, xgboost, catboost, ranklib, letor4, mslr, yahoo, "
        "sklearn.  Options of single conventions rule over it.",
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        help="Split of a dataset: train, valid, test, or all.  By default what the models have not seen in training: test, else"
        " valid; all of a dataset that they were not trained on.",
        show_default=False,
    ),
]
Qrels = Annotated[Path | None, typer.Option(help="TREC judgments; they rule over grades in the file.")]


def as_candidate_options(reading: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a command was told of reading candidates as the arguments of `rerank` and `evaluate`."""
    return {"input_format" if name == "format" else name: value for name, value in reading.items()}
