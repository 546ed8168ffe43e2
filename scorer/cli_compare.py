"""``rankmill compare``: models, scored lists and TREC runs against each other on the same queries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankmill.foundation.command_line import AsJson, takes_options
from rankmill.registry.cli_options import DEFAULT_FOLDER, RegistryFolder
from rankmill.scorer.options import ConventionName, Conventions, NThreads, Reading, Split, as_candidate_options

app = typer.Typer()


@app.command()
@takes_options
def compare(
    *,
    subjects: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL|SCORED|RUN...",
            help="Two or more: model files, or NAME, NAME@7, NAME@latest (NAME means production); scored lists, TREC runs.",
        ),
    ],
    on: Annotated[
        list[Path] | None,
        typer.Option(
            "--on", metavar="CANDIDATES|DATASET", help="What the models rank; repeat for several files of candidates."
        ),
    ] = None,
    split: Split = None,
    qrels: Annotated[Path | None, typer.Option(help="TREC judgments; they rule over grades in the files.")] = None,
    baseline: Annotated[int, typer.Option(metavar="N", min=1, help="The others are compared with the N-th.")] = 1,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Repeat for several, as in evaluate; the worst queries are those of the first."),
    ] = None,
    worst: Annotated[
        int, typer.Option(metavar="N", min=0, help="How many of the queries that lost most to name.")
    ] = 20,
    seeds: Annotated[
        bool,
        typer.Option(
            "--seeds/--no-seeds", help="Look at the registry's versions of each model that differ in their seed only."
        ),
    ] = True,
    convention: ConventionName = "rankmill",
    conventions: Conventions,
    complete: Annotated[
        bool, typer.Option("--complete", help="With --qrels: count judged queries that a run lacks.")
    ] = False,
    reading: Reading,
    n_rounds: Annotated[int | None, typer.Option(help="Use only so many rounds of the models.")] = None,
    n_threads: NThreads = 0,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Compare rankings of the same queries: differences with intervals, p, wins and losses, and the seed noise.

    Each ranking is compared with the first, query by query.  Where versions of a model are registered that differ in
    their seed only, the report says whether the difference is more than these differ by.

    Example: rankmill compare web@production web@latest --on web.dataset

    Example: rankmill compare old.run new.run other.run --qrels qrels.txt --metric ndcg@10 --convention trec
    """
    from rankmill.scorer import compare as comparing
    from rankmill.scorer.metrics import DEFAULT_METRICS
    from rankmill.scorer.model_service import find_ranking

    comparison = comparing.compare(
        [find_ranking(subject, registry, seeds=on is not None and seeds) for subject in subjects],
        on=on, split=split, metrics=metric or DEFAULT_METRICS, baseline=baseline - 1, worst=worst, qrels=qrels,
        convention=convention, complete=complete, n_rounds=n_rounds, n_threads=n_threads, announce=True,
        **conventions, **as_candidate_options(reading),
    )  # fmt: skip
    typer.echo(comparison.to_json() if as_json else comparison.render(), nl=as_json)
