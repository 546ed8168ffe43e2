"""``rankmill rerank``, ``rankmill evaluate`` and ``rankmill explain-metric``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer()

ModelOption = typer.Option("--model", "-m", help="Model file, or NAME, NAME@7, NAME@latest; NAME means production.")
RegistryFolder = Annotated[
    Path, typer.Option("--registry", envvar="RANKMILL_REGISTRY", file_okay=False, help="Folder of the registry.")
]
InputFormat = Annotated[
    str,
    typer.Option(
        "--format",
        help="Format of the candidates: auto (by suffix), letor, csv, tsv, parquet, arrow, jsonl or run (TREC).",
    ),
]
Absent = Annotated[
    str | None,
    typer.Option(help="What a feature left out of LETOR text means: zero or missing; by default as in training."),
]
IndexBase = Annotated[int | None, typer.Option(help="First index in LETOR text: 1 or 0; by default as in training.")]
NFeatures = Annotated[int | None, typer.Option(help="Features of LETOR text, where the last ones may all be left out.")]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PART=NAME,..",
        help="Columns of tables with other names: qid=query_id,doc_id=url,grade=rel; repeat for more.",
    ),
]
NThreads = Annotated[int, typer.Option(min=0, help="Threads; 0: the cores there are.  Never changes the result.")]
ConventionName = Annotated[
    str,
    typer.Option(
        "--convention",
        help="Whose conventions: rankmill, trec, gdeval, lightgbm, xgboost, catboost, ranklib, letor4, mslr, yahoo, "
        "sklearn.  The options below rule over it.",
    ),
]
Gain = Annotated[
    str | None, typer.Option(help="Gain of a grade y: exp (2^y - 1), linear (y), or such as table(0,1,3,7,15).")
]
Discount = Annotated[
    str | None,
    typer.Option(
        help="What rank r counts in DCG: log2 (1/log2(r + 1)), one_plus_log2 (1/(1 + log2 r)), letor (1/log2(max(r, "
        "2))), or such as table(1,0.5,0.25)."
    ),
]
Ties = Annotated[
    str | None,
    typer.Option(
        help="Equal scores: expected (mean over all orders), doc_id, doc_id_descending, pessimistic, optimistic, "
        "row_order, random."
    ),
]
TiesSeed = Annotated[int | None, typer.Option(min=0, help="Chooses the shuffling of --ties random.")]
NothingRelevant = Annotated[
    str | None, typer.Option(help="A query with nothing relevant: skip it, or count it as zero or one.")
]
RelevantFrom = Annotated[
    int | None,
    typer.Option(help="Grade from which map, mrr, precision, recall, rbp and balanced_error call it relevant."),
]
MaxGrade = Annotated[
    int | None,
    typer.Option(help="Highest grade of the scale, for err; else the convention's, the model's, or the highest seen."),
]
ShortLists = Annotated[
    str | None, typer.Option(help="Queries of fewer than k documents in ndcg@k: normal, or zero (they count 0).")
]
MapNormalisation = Annotated[
    str | None,
    typer.Option(help="What map's precisions are divided by: R, min(R,k) or hits (relevant above the cutoff)."),
]
PrecisionNormalisation = Annotated[str | None, typer.Option(help="What hits are divided by: k or min(k,n).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Split = Annotated[
    str | None,
    typer.Option(
        help="Split of a dataset: train, valid, test, or all.  By default what the models have not seen in training: test, else"
        " valid; all of a dataset that they were not trained on.",
        show_default=False,
    ),
]


@app.command()
def rerank(
    candidates: Annotated[
        list[Path], typer.Argument(help="Files of candidates, or folders of them: any format of judgments.")
    ],
    model: Annotated[
        list[str],
        typer.Option(
            "--model",
            "-m",
            help="Model file, or NAME, NAME@7, NAME@latest; NAME means production.  Repeat for several: OUT/NAME@7, .. of each.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Folder for Parquet shards, or one .parquet, .csv, .tsv or .run (TREC) file."),
    ],
    top_k: Annotated[int | None, typer.Option(help="Write only the first so many of each query.")] = None,
    memory: Annotated[str, typer.Option(help="Bound of the whole process, 512MB at least.")] = "2GB",
    input_format: InputFormat = "auto",
    absent: Absent = None,
    index_base: IndexBase = None,
    n_features: NFeatures = None,
    columns: Columns = None,
    run: Annotated[
        list[Path] | None,
        typer.Option(
            help="TREC run of a first stage, or a folder of them: only its documents are ranked, by their rows in CANDIDATES.  "
            "Repeat for several."
        ),
    ] = None,
    lacking: Annotated[
        str, typer.Option(help="Documents of --run that have no row in CANDIDATES: reject, or drop and count them.")
    ] = "reject",
    n_rounds: Annotated[int | None, typer.Option(help="Use only so many rounds of the model.")] = None,
    n_threads: NThreads = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it exists.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over, where a run that was killed could be gone on with.")
    ] = False,
    registry: RegistryFolder = Path("registry-data"),
    as_json: AsJson = False,
) -> None:
    """Score CANDIDATES and write each query's documents in order, best first, in bounded memory.

    Rows of one query may be anywhere in the files.  Ties are broken by ascending doc_id.  A run that was killed is gone on
    with by the next one of the same models, candidates, options and OUT.

    Example: rankmill rerank candidates.parquet --model web -o ranked --top-k 100

    Example: rankmill rerank features.parquet --run bm25.run --model web -o ranked

    Example: rankmill rerank candidates.parquet --model web@7 --model web@8 -o both --top-k 100
    """
    from rankmill.pipeline.sources.parts import parse_columns
    from rankmill.scorer import rerank as reranking
    from rankmill.scorer.model_service import find_model, find_models

    options: Any = {"input_format": input_format, "absent": absent, "index_base": index_base}
    options["columns"] = parse_columns(columns or ())
    options |= {"top_k": top_k, "memory_limit": memory, "n_features": n_features, "n_rounds": n_rounds}
    options |= {"run": run or (), "lacking": lacking}
    options |= {"n_threads": n_threads, "overwrite": overwrite, "fresh": fresh, "announce": True}
    if len(model) == 1:
        forest, identity = find_model(model[0], registry)
        report = reranking.rerank(candidates, forest, out, identity=identity, **options)
        typer.echo(report.to_json() if as_json else report.render())
        return
    models = find_models(model, registry)
    reports = dict(zip(models, reranking.rerank_several(candidates, models, out, **options), strict=True))
    if as_json:
        typer.echo(reranking.reports_to_json(out, reports))
    else:
        typer.echo("\n".join(report.render() for report in reports.values()))


@app.command()
def evaluate(
    subject: Annotated[
        list[Path],
        typer.Argument(
            metavar="SCORED|RUN|CANDIDATES...",
            help="A scored list or TREC run; with --model candidates: files, folders, or a dataset.",
        ),
    ],
    model: Annotated[str | None, ModelOption] = None,
    qrels: Annotated[Path | None, typer.Option(help="TREC judgments; they rule over grades in the file.")] = None,
    split: Split = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="Repeat for several; by default ndcg@1, @5, @10, err@10, map, mrr and precision@10.  Also dcg, recall@k, "
            "wta, rbp(0.8), concordance, concordance_micro and balanced_error."
        ),
    ] = None,
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
        bool, typer.Option("--complete", help="With --qrels: count judged queries that the run lacks.")
    ] = False,
    per_query: Annotated[
        Path | None, typer.Option(help="Write the values per query to a .tsv, .csv or .parquet.")
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="Slice the queries by a column of the subject, by query_size, or by grade_mix; repeat for several.",
        ),
    ] = None,
    input_format: InputFormat = "auto",
    absent: Absent = None,
    index_base: IndexBase = None,
    n_features: NFeatures = None,
    columns: Columns = None,
    n_rounds: Annotated[int | None, typer.Option(help="Use only so many rounds of the model.")] = None,
    n_threads: NThreads = 0,
    registry: RegistryFolder = Path("registry-data"),
    as_json: AsJson = False,
) -> None:
    """Report ranking metrics with intervals, and the conventions they were computed under.

    Example: rankmill evaluate ranked --metric ndcg@10 --metric map

    Example: rankmill evaluate web.dataset --model web@latest

    Example: rankmill evaluate my.run --qrels qrels.txt --convention trec

    Example: rankmill evaluate ranked --metric ndcg@10 --by query_size --by grade_mix
    """
    from rankmill.pipeline.sources.parts import parse_columns
    from rankmill.scorer import evaluate as evaluating
    from rankmill.scorer.metrics import DEFAULT_METRICS
    from rankmill.scorer.model_service import find_model, trained_model

    if per_query is not None:
        evaluating.checked_per_query(per_query)
    forest, trained = None, None
    if model is not None:
        forest, identity = find_model(model, registry)
        trained = trained_model(forest, identity, registry, model)
    options: Any = {"input_format": input_format, "absent": absent, "index_base": index_base}
    options["columns"] = parse_columns(columns or ())
    evaluation = evaluating.evaluate(
        subject, model=forest, qrels=qrels, metrics=metric or DEFAULT_METRICS, split=split, trained=trained,
        convention=convention, gain=gain, discount=discount, ties=ties, ties_seed=ties_seed,
        nothing_relevant=nothing_relevant, relevant_from=relevant_from, max_grade=max_grade, short_lists=short_lists,
        map_normalisation=map_normalisation, precision_normalisation=precision_normalisation, complete=complete,
        n_features=n_features, n_rounds=n_rounds, n_threads=n_threads, by=by or (), announce=True,
        **options,
    )  # fmt: skip
    if per_query is not None:
        evaluating.write_per_query(evaluation, per_query)
    typer.echo(evaluation.to_json() if as_json else evaluation.render(), nl=as_json)


@app.command("explain-metric")
def explain_metric(
    scored: Annotated[Path, typer.Argument(metavar="SCORED|RUN", help="A scored list or TREC run.")],
    qid: Annotated[str, typer.Option(help="The query.")],
    metric: Annotated[str, typer.Option(help="The metric, such as ndcg@10; all that evaluate knows.")],
    qrels: Annotated[Path | None, typer.Option(help="TREC judgments; they rule over grades in the file.")] = None,
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
    as_json: AsJson = False,
) -> None:
    """Show how one metric of one query comes about, rank by rank, under the conventions of evaluate.

    Example: rankmill explain-metric ranked --qid 10 --metric ndcg@10 --convention lightgbm
    """
    from rankmill.scorer import explain_metric as explaining

    explanation = explaining.explain_metric(
        scored, qid, metric, qrels=qrels, convention=convention, gain=gain, discount=discount, ties=ties,
        ties_seed=ties_seed, nothing_relevant=nothing_relevant, relevant_from=relevant_from, max_grade=max_grade,
        short_lists=short_lists, map_normalisation=map_normalisation, precision_normalisation=precision_normalisation,
    )  # fmt: skip
    typer.echo(explanation.to_json() if as_json else explanation.render(), nl=as_json)
