"""Annotations of arguments and options that several scoring commands share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from rankmill.foundation.options import ChangesOf
from rankmill.scorer.metrics.metric_options import Policy
from rankmill.scorer.options import CONVENTION, QRELS, THREADS

Conventions = Annotated[Mapping[str, Any], ChangesOf(Policy)]
"""Options for single rules, which override the convention."""

ModelOption = typer.Option("--model", "-m", help="Model file, or NAME@7, NAME@latest or NAME (its production version).")
NThreads = Annotated[int, typer.Option("--n-threads", min=0, help=THREADS)]
ConventionName = Annotated[
    str,
    typer.Option(
        "--convention",
        help=CONVENTION,
    ),
]
Qrels = Annotated[Path | None, typer.Option("--qrels", help=QRELS)]
OneQuery = Annotated[str, typer.Option("--qid", help="ID of the query.")]
