"""``rankmill compare``: models, scored lists and TREC runs against each other on the same queries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rankmill.scorer.cli import (
    Absent,
    AsJson,
    Columns,
    ConventionName,
    Discount,
    Gain,
    IndexBase,
    InputFormat,
    MapNormalisation,
    MaxGrade,
    NFeatures,
    NothingRelevant,
    NThreads,
    PrecisionNormalisation,
    RegistryFolder,
    RelevantFrom,
    ShortLists,
    Split,
    Ties,
    TiesSeed,
)

app = typer.Typer()


@app.command()
def compare(
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
    gain: Gain = None,
    discount: Discount = None,
    ties: Ties = None,
    ties_seed: TiesSeed = None,
    nothing_relevant: NothingRelevant = None,
    relevant_from: RelevantFrom = None,
    max_grade: MaxGrade = None,
    short_lists: ShortLists = None,
    map_normalisation: MapNormalisation = None,
    precision_normalisation: PrecisionNormalisation = None,
    complete: Annotated[
        bool, typer.Option("--complete", help="With --qrels: count judged queries that a run lacks.")
    ] = False,
    input_format: InputFormat = "auto",
    absent: Absent = None,
    index_base: IndexBase = None,
    n_features: NFeatures = None,
    columns: Columns = None,
    n_rounds: Annotated[int | None, typer.Option(help="Use only so many rounds of the models.")] = None,
    n_threads: NThreads = 0,
    registry: RegistryFolder = Path("registry-data"),
    as_json: AsJson = False,
) -> None:
    """Compare rankings of the same queries: differences with intervals, p, wins and losses, and the seed noise.

    Each ranking is compared with the first, query by query.  Where versions of a model are registered that differ in
    their seed only, the report says whether the difference is more than these differ by.

    Example: rankmill compare web@production web@latest --on web.dataset

    Example: rankmill compare old.run new.run other.run --qrels qrels.txt --metric ndcg@10 --convention trec
    """
    from rankmill.pipeline.sources.parts import parse_columns
    from rankmill.scorer import compare as comparing
    from rankmill.scorer.metrics import DEFAULT_METRICS
    from rankmill.scorer.model_service import find_ranking

    options: Any = {"input_format": input_format, "absent": absent, "index_base": index_base}
    options["columns"] = parse_columns(columns or ())
    comparison = comparing.compare(
        [find_ranking(subject, registry, seeds=on is not None and seeds) for subject in subjects],
        on=on, split=split, metrics=metric or DEFAULT_METRICS, baseline=baseline - 1, worst=worst, qrels=qrels,
        convention=convention, gain=gain, discount=discount, ties=ties, ties_seed=ties_seed,
        nothing_relevant=nothing_relevant, relevant_from=relevant_from, max_grade=max_grade, short_lists=short_lists,
        map_normalisation=map_normalisation, precision_normalisation=precision_normalisation, complete=complete,
        n_features=n_features, n_rounds=n_rounds, n_threads=n_threads, announce=True, **options,
    )  # fmt: skip
    typer.echo(comparison.to_json() if as_json else comparison.render(), nl=as_json)
