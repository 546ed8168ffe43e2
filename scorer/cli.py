"""``rankmill rerank``, ``rankmill evaluate``, ``rankmill explain-metric`` and ``rankmill compare``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rankmill.foundation.command_line import AsJson, takes_options
from rankmill.foundation.options import Without, values_of
from rankmill.registry.cli_options import DEFAULT_FOLDER, RegistryFolder
from rankmill.scorer.cli_options import ConventionName, Conventions, ModelOption, OneQuery, Qrels
from rankmill.scorer.options import JudgedOptions, RerankOptions

app = typer.Typer()


@app.command()
@takes_options
def rerank(
    *,
    candidates: Annotated[
        list[Path], typer.Argument(help="Files of candidates, or folders with such files, in any input format.")
    ],
    model: Annotated[
        list[str],
        typer.Option(
            "--model",
            "-m",
            help="Model file, or NAME@7, NAME@latest or NAME (its production version).  Repeat for several: each "
            "writes its own folder OUT/NAME@7.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="Output: a folder for Parquet shards, or one .parquet, .csv, .tsv or .run (TREC) file."
        ),
    ],
    options: RerankOptions,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Score CANDIDATES and write the ranked list of each query, best document first, in bounded memory.

    Rows of a query may be in any order and any file.  Ties are broken by ascending doc_id.  A killed run resumes if it
    is started again with the same models, candidates, options and OUT.

    Example: rankmill rerank candidates.parquet --model web -o ranked --top-k 100

    Example: rankmill rerank features.parquet --run bm25.run --model web -o ranked

    Example: rankmill rerank candidates.parquet --model web@7 --model web@8 -o both --top-k 100

    Example: rankmill rerank candidates --model web -o ranked --cluster tcp://10.0.0.5:8786
    """
    from rankmill.scorer.models.model_service import find_model, find_models
    from rankmill.scorer.rerank import rerank as reranking

    arguments = values_of(replace(options, announce=True))
    if len(model) == 1:
        found, identity = find_model(model[0], registry)
        report = reranking.rerank(candidates, found, out, identity=identity, **arguments)
        typer.echo(report.to_json() if as_json else report.render())
        return
    models = find_models(model, registry)
    reports = dict(zip(models, reranking.rerank_several(candidates, models, out, **arguments), strict=True))
    if as_json:
        typer.echo(reranking.reports_to_json(out, reports))
    else:
        typer.echo("\n".join(report.render() for report in reports.values()))


@app.command()
@takes_options
def evaluate(
    *,
    subject: Annotated[
        list[Path],
        typer.Argument(
            metavar="SCORED|RUN|CANDIDATES...",
            help="A scored list or a TREC run.  With --model: candidates to score (files, folders or a dataset).",
        ),
    ],
    model: Annotated[str | None, ModelOption] = None,
    options: JudgedOptions,
    conventions: Conventions,
    per_query: Annotated[
        Path | None, typer.Option(help="Write the metrics of each query to this .tsv, .csv or .parquet file.")
    ] = None,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Compute ranking metrics with confidence intervals, and print the conventions used.

    Example: rankmill evaluate ranked --metric ndcg@10 --metric map

    Example: rankmill evaluate web.dataset --model web@latest

    Example: rankmill evaluate my.run --qrels qrels.txt --convention trec

    Example: rankmill evaluate ranked --metric ndcg@10 --by query_size --by grade_mix
    """
    from rankmill.scorer.evaluate import evaluate as evaluating
    from rankmill.scorer.models.model_service import find_model, trained_model

    if per_query is not None:
        evaluating.checked_per_query(per_query)
    found, trained = None, None
    if model is not None:
        found, identity = find_model(model, registry)
        trained = trained_model(found, identity, registry, model)
    arguments = values_of(replace(options, announce=True))
    evaluation = evaluating.evaluate(subject, model=found, trained=trained, **conventions, **arguments)
    if per_query is not None:
        evaluating.write_per_query(evaluation, per_query)
    typer.echo(evaluation.to_json() if as_json else evaluation.render(), nl=as_json)


@app.command("explain-metric")
@takes_options
def explain_metric(
    *,
    scored: Annotated[Path, typer.Argument(metavar="SCORED|RUN", help="A scored list or TREC run.")],
    qid: OneQuery,
    metric: Annotated[str, typer.Option(help="Metric to explain, such as ndcg@10; any metric of evaluate.")],
    qrels: Qrels = None,
    convention: ConventionName = "rankmill",
    conventions: Conventions,
    as_json: AsJson = False,
) -> None:
    """Show how the metric of one query is computed, rank by rank, with the conventions of evaluate.

    Example: rankmill explain-metric ranked --qid 10 --metric ndcg@10 --convention lightgbm
    """
    from rankmill.scorer.metrics import explain_metric as explaining

    explanation = explaining.explain_metric(scored, qid, metric, qrels=qrels, convention=convention, **conventions)
    typer.echo(explanation.to_json() if as_json else explanation.render(), nl=as_json)


@app.command()
@takes_options
def compare(
    *,
    subjects: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL|SCORED|RUN...",
            help="Two or more rankings: model files, NAME@7, NAME@latest or NAME (production), scored lists or TREC "
            "runs.",
        ),
    ],
    on: Annotated[
        list[Path] | None,
        typer.Option(
            "--on",
            metavar="CANDIDATES|DATASET",
            help="Dataset or candidates for the models to rank; repeat for several files.",
        ),
    ] = None,
    baseline: Annotated[int, typer.Option(metavar="N", min=1, help="Compare the other rankings with the N-th.")] = 1,
    worst: Annotated[
        int, typer.Option(metavar="N", min=0, help="Number of queries with the largest loss to list.")
    ] = 20,
    seeds: Annotated[
        bool,
        typer.Option(
            "--seeds/--no-seeds",
            help="Estimate seed noise from registered versions of each model that differ only in their seed.",
        ),
    ] = True,
    conventions: Conventions,
    options: Annotated[JudgedOptions, Without("by", "cluster")],
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Compare rankings of the same queries: differences with intervals, p-values, wins and losses, and seed noise.

    Each ranking is compared with the first (see --baseline), query by query.  The queries with the largest loss are
    chosen by the first metric.  If the registry has versions of a model that differ only in their seed, the report says
    whether the difference is larger than the difference between seeds.

    Example: rankmill compare web@production web@latest --on web.dataset

    Example: rankmill compare old.run new.run other.run --qrels qrels.txt --metric ndcg@10 --convention trec
    """
    from rankmill.scorer.evaluate import compare as comparing
    from rankmill.scorer.models.model_service import find_ranking

    arguments = values_of(replace(options, announce=True))
    comparison = comparing.compare(
        [find_ranking(subject, registry, seeds=on is not None and seeds) for subject in subjects],
        on=on, baseline=baseline - 1, worst=worst, **conventions, **arguments,
    )  # fmt: skip
    typer.echo(comparison.to_json() if as_json else comparison.render(), nl=as_json)
