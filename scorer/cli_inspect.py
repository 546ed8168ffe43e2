"""``rankmill inspect ..``: looking into a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankmill.scorer.cli import (
    Absent,
    AsJson,
    Columns,
    ConventionName,
    IndexBase,
    InputFormat,
    NFeatures,
    NThreads,
    RegistryFolder,
    Split,
)
from rankmill.scorer.model_service import MODEL_SUFFIX, find_model, looks_like_a_list, trained_model

if TYPE_CHECKING:
    from rankmill.scorer.forest import Forest
    from rankmill.scorer.inspect.documents import Documents
    from rankmill.scorer.inspect.paths import Paths
    from rankmill.scorer.metrics import Metric, Policy
    from rankmill.scorer.model_service import ModelIdentity
    from rankmill.scorer.seen import TrainedModel

app = typer.Typer(no_args_is_help=True, help="Look into a model: features, contributions, mixtures, optimality.")

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Model file, or NAME, NAME@7, NAME@latest; NAME means production.")
]
On = Annotated[
    list[Path],
    typer.Option(
        "--on", metavar="CANDIDATES", help="A dataset, or files of candidates as rerank reads them; repeat for several."
    ),
]
Qid = Annotated[
    list[str] | None, typer.Option("--qid", help="Look at this query; repeat for several.  Rules over --queries.")
]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Which queries are drawn, where not all are taken.")]
NRounds = Annotated[int | None, typer.Option(help="Look only at so many rounds of the model.")]
Top = Annotated[int, typer.Option(min=0, help="Show so many rows; 0: all.")]
Output = Annotated[int, typer.Option(min=0, help="Of a model with several outputs, such as mcrank: which, from 0.")]
MetricName = Annotated[str, typer.Option(help="A metric of ranks, as evaluate knows them.")]
NQueries = Annotated[int, typer.Option("--queries", min=0, help="Draw at most so many queries; 0: all.")]


@dataclass(frozen=True)
class _Where:
    """Where documents are, and how to read them."""

    on: list[Path]
    split: str | None
    qid: list[str] | None
    queries: int
    seed: int
    input_format: str
    absent: str | None
    index_base: int | None
    n_features: int | None
    columns: list[str] | None

    def read(self, paths: Paths, *models: TrainedModel) -> Documents:
        from rankmill.pipeline.sources.parts import parse_columns
        from rankmill.scorer.inspect.documents import read_documents

        options: Any = {"input_format": self.input_format, "absent": self.absent, "index_base": self.index_base}
        options["columns"] = parse_columns(self.columns or ())
        found = read_documents(
            self.on, paths, split=self.split, models=models, qids=self.qid or (), n_queries=self.queries, seed=self.seed,
            n_features=self.n_features, announce=True, **options,
        )  # fmt: skip
        if len(found.doc_ids) < found.n_read and not self.qid:
            typer.echo(
                f"{len(found.qids):,} queries were drawn, {len(found.doc_ids):,} of {found.n_read:,} documents; --queries 0 "
                "takes all",
                err=True,
            )
        return found


@app.command("importance", hidden=True)  # the word of other tools
@app.command()
def influence(
    model: Model,
    top: Top = 20,
    n_rounds: NRounds = None,
    registry: RegistryFolder = Path("registry-data"),
    as_json: AsJson = False,
) -> None:
    """Show the importance of each feature: its share in the gains of all splits (also: inspect importance).

    Example: rankmill inspect influence web@latest --top 10
    """
    from rankmill.scorer.inspect.reports import influence_report

    forest, identity = find_model(model, registry)
    forest = forest if n_rounds is None else forest.truncated(n_rounds)
    typer.echo(influence_report(forest, identity, top).render(as_json=as_json))


@app.command()
def dependence(
    model: Model,
    features: Annotated[list[str], typer.Argument(metavar="FEATURE [FEATURE]", help="One feature, or two.")],
    on: Annotated[
        list[Path] | None,
        typer.Option(
            "--on", metavar="CANDIDATES", help="Take the mean over these documents, not over the training rows."
        ),
    ] = None,
    points: Annotated[
        int | None,
        typer.Option(
            min=0, help="Show at most so many values of each feature, besides missing; 0: all; by default 20, of two 8."
        ),
    ] = None,
    split: Split = None,
    qid: Qid = None,
    queries: NQueries = 200,
    seed: Seed = 0,
    input_format: InputFormat = "auto",
    absent: Absent = None,
    index_base: IndexBase = None,
    n_features: NFeatures = None,
    columns: Columns = None,
    n_rounds: NRounds = None,
    n_threads: NThreads = 0,
    registry: RegistryFolder = Path("registry-data"),
    as_json: AsJson = False,
) -> None:
    """Tell what the model says on average, by the values of one feature or two: partial dependence.

    A value stands for all from there down to the next lower threshold.

    Example: rankmill inspect dependence web@latest bm25

    Example: rankmill inspect dependence web@latest bm25 clicks --on web.dataset --split test
    """
    from rankmill.foundation.errors import InputError
    from rankmill.scorer.inspect.dependence import dependence_at, some_steps
    from rankmill.scorer.inspect.reports import dependence_report

    identity, paths = _laid_out(model, registry, n_rounds)
    if on is None and (split is not None or qid):
        raise InputError("--split and --qid choose documents: name them with --on CANDIDATES")
    where = _Where(on or [], split, qid, queries, seed, input_format, absent, index_base, n_features, columns)
    documents = None if on is None else where.read(paths, trained_model(paths.forest, identity, registry, model))
    codes = None if documents is None else documents.codes(paths)
    shown = (20 if len(features) == 1 else 8) if points is None else points
    axes = [some_steps(paths, paths.slot_of(name), shown) for name in features]
    found = dependence_at(paths, features, points=axes, codes=codes, n_threads=_threads(n_threads))
    report = dependence_report(found, identity)
    typer.echo(report.at(None if documents is None else documents.scope).render(as_json=as_json))


@app.command()
def interaction(
    model: Model,
    on: On,
    features: Annotated[
        list[str] | None, typer.Argument(metavar="[FEATURE]...", help="By default the 10 most influential.")
    ] = None,
    over: Annotated[
        str, typer.Option(help="What dependences are means over: training (its rows) or documents (those of --on).")
    ] = "training",
    output: Output = 0,
    top: Top = 20,
    split: Split = None,
    qid: Qid = None,
    queries: NQueries = 50,
    seed: Seed = 0,
    input_format: InputFormat = "auto",
    absent: Absent = None,
    index_base: IndexBase = None,
    n_features: NFeatures = None,
    columns: Columns = None,
    n_rounds: NRounds = None,
    n_threads: NThreads = 0,
    registry: RegistryFolder = Path("registry-data"),
    as_json: AsJson = False,
) -> None:
    """Tell how much of what features do together neither does alone: Friedman's H, of each and of pairs.

    Example: rankmill inspect interaction web@latest --on web.dataset --split test
    """
    from rankmill.scorer.inspect.interaction import interactions_at
    from rankmill.scorer.inspect.reports import interaction_report

    identity, paths = _laid_out(model, registry, n_rounds)
    where = _Where(on, split, qid, queries, seed, input_format, absent, index_base, n_features, columns)
    documents = where.read(paths, trained_model(paths.forest, identity, registry, model))
    codes = documents.codes(paths)
    found = interactions_at(
        paths, codes, features=features or None, over=over, output=output, n_threads=_threads(n_threads)
    )  # fmt: skip
    report = interaction_report(found, identity, over=over, output=output, n_documents=len(codes), top=top)
    typer.echo(report.at(documents.scope).render(as_json=as_json))


@app.command()
def shap(
    model: Model,
    on: On,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the contributions to every document to a .parquet file.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Keep in what all documents of a query have alike.")] = False,
    top: Top = 20,
    split: Split = None,
    qid: Qid = None,
    queries: NQueries = 100,
    seed: Seed = 0,
    input_format: InputFormat = "auto",
    absent: Absent = None,
    index_base: IndexBase = None,
    n_features: NFeatures = None,
    columns: Columns = None,
    n_rounds: NRounds = None,
    n_threads: NThreads = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it exists.")] = False,
    registry: RegistryFolder = Path("registry-data"),
    as_json: AsJson = False,
) -> None:
    """Tell what each feature contributes to the scores (TreeSHAP), less the mean of the query.

    Example: rankmill inspect shap web@latest --on web.dataset --split test -o contributions.parquet
    """
    from rankmill.foundation.errors import InputError
    from rankmill.scorer.inspect.reports import shap_report
    from rankmill.scorer.inspect.shap import Explainer
    from rankmill.scorer.inspect.shap_file import checked_name, explain_documents

    if out is not None:
        checked_name(out)
        if out.exists() and not overwrite:
            raise InputError(f"{out}: exists already; choose another name, or replace it with --overwrite")
    forest, identity = find_model(model, registry)
    explainer = Explainer(forest, n_rounds=n_rounds)
    where = _Where(on, split, qid, queries, seed, input_format, absent, index_base, n_features, columns)
    documents = where.read(explainer.paths, trained_model(forest, identity, registry, model))
    found = explain_documents(explainer, documents, centred=not raw, out=out, n_threads=_threads(n_threads))
    report = shap_report(found, identity, top=top, out=None if out is None else str(out))
    typer.echo(report.at(documents.scope).render(as_json=as_json))


@app.command()
def why(
    model: Model,
    on: On,
    qid: Annotated[str, typer.Option(help="The query.")],
    above: Annotated[str | None, typer.Option(help="doc_id of the one document; by default the first.")] = None,
    below: Annotated[
        str | None, typer.Option(help="doc_id of the other; by default the one ranked right below it.")
    ] = None,
    output: Output = 0,
    top: Top = 15,
    split: Split = None,
    input_format: InputFormat = "auto",
    absent: Absent = None,
    index_base: IndexBase = None,
    n_features: NFeatures = None,
    columns: Columns = None,
    n_rounds: NRounds = None,
    registry: RegistryFolder = Path("registry-data"),
    as_json: AsJson = False,
) -> None:
    """Tell why one document of a query stands above another, feature by feature.

    Example: rankmill inspect why web@latest --on web.dataset --qid 10 --above D7 --below D3
    """
    import numpy as np

    from rankmill.scorer.inspect.reports import why_report
    from rankmill.scorer.inspect.shap import Explainer
    from rankmill.scorer.inspect.why import chosen_two, why_at
    from rankmill.scorer.predict import Predictor

    forest, identity = find_model(model, registry)
    explainer = Explainer(forest, n_rounds=n_rounds)
    where = _Where(on, split, [qid], 0, 0, input_format, absent, index_base, n_features, columns)
    documents = where.read(explainer.paths, trained_model(forest, identity, registry, model))
    slots = np.arange(documents.values.shape[1])
    scores = Predictor(explainer.paths.forest).scores(documents.values, columns=slots)
    rows, ranks = chosen_two(documents.doc_ids, scores, above, below, qid)
    pair = list(rows)
    found = why_at(
        explainer, documents.codes(explainer.paths)[pair], documents.values[pair], scores[pair], output=output
    )  # fmt: skip
    report = why_report(
        found, identity, qid=qid, doc_ids=(documents.doc_ids[rows[0]], documents.doc_ids[rows[1]]), ranks=ranks, top=top,
        n_outputs=forest.n_outputs,
    )  # fmt: skip
    typer.echo(report.at(documents.scope).render(as_json=as_json))


@app.command()
def combine(
    model: Model,
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="The second ranker: another model, or a scored list or TREC run.")
    ],
    on: On,
    metric: MetricName = "ndcg@10",
    low: Annotated[float, typer.Option("--from", help="Least weight of OTHER; negative ones are allowed.")] = 0.0,
    high: Annotated[float, typer.Option("--to", help="Greatest weight of OTHER.")] = 1.0,
    convention: ConventionName = "rankmill",
    split: Split = None,
    qid: Qid = None,
    queries: NQueries = 1000,
    seed: Seed = 0,
    input_format: InputFormat = "auto",
    absent: Absent = None,
    index_base: IndexBase = None,
    n_features: NFeatures = None,
    columns: Columns = None,
    registry: RegistryFolder = Path("registry-data"),
    as_json: AsJson = False,
) -> None:
    """Find the weight a for which (1 - a) MODEL + a OTHER ranks best, of all there are.

    Example: rankmill inspect combine web@3 web@7 --on web.dataset --split valid --metric ndcg@10

    Example: rankmill inspect combine web bm25.run --on candidates.parquet
    """
    from rankmill.foundation.errors import InputError
    from rankmill.scorer.inspect import combine as combining
    from rankmill.scorer.inspect.documents import listed_scores
    from rankmill.scorer.inspect.reports import combination_report

    where = _Where(on, split, qid, queries, seed, input_format, absent, index_base, n_features, columns)
    forest, identity = find_model(model, registry)
    trained, path = [trained_model(forest, identity, registry, model)], Path(other)
    second: tuple[ModelIdentity | str, Any]
    if _is_list(path):
        documents, first = _scored(forest, where, trained)
        second = other, listed_scores(path, documents)
    else:
        if looks_like_a_list(other):
            raise InputError(f"{other}: no such file")
        other_forest, other_identity = find_model(other, registry)
        trained.append(trained_model(other_forest, other_identity, registry, other))
        documents, first = _scored(forest, where, trained)
        second = other_identity, _scored(other_forest, where, trained)[1]
    rules, policy, words = _policy(metric, convention, forest, documents)
    best = combining.combine(
        first, second[1], documents.graded(), documents.starts, rules, policy, low=low, high=high,
        doc_order=documents.order(),
    )  # fmt: skip
    report = combination_report(best, (identity, second[0]), words)
    typer.echo(report.at(documents.scope).render(as_json=as_json))


@app.command()
def optimality(
    model: Model,
    on: On,
    metric: MetricName = "ndcg@10",
    step: Annotated[
        float, typer.Option(help="How far to go, as a share of the length of the vector of leaf values.")
    ] = 0.1,
    p0: Annotated[
        float, typer.Option(help="Draw directions until the share that rise is known to be below this ..")
    ] = 0.01,
    delta: Annotated[float, typer.Option(help=".. with confidence 1 - delta, where none does.")] = 0.01,
    curves: Annotated[int, typer.Option(min=0, help="Also move so many leaves one at a time.")] = 0,
    convention: ConventionName = "rankmill",
    split: Split = None,
    qid: Qid = None,
    queries: NQueries = 200,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Which queries and directions are drawn.")] = 0,
    input_format: InputFormat = "auto",
    absent: Absent = None,
    index_base: IndexBase = None,
    n_features: NFeatures = None,
    columns: Columns = None,
    n_rounds: NRounds = None,
    n_threads: NThreads = 0,
    registry: RegistryFolder = Path("registry-data"),
    as_json: AsJson = False,
) -> None:
    """Test whether the leaf values are a local maximum of a metric: whether it falls along random directions.

    A maximum is to be expected on the queries that the model was trained on.

    Example: rankmill inspect optimality web@latest --on web.dataset --split train --metric ndcg@10
    """
    from rankmill.scorer.inspect.optimality import optimality_at
    from rankmill.scorer.inspect.reports import optimality_report

    identity, paths = _laid_out(model, registry, n_rounds)
    where = _Where(on, split, qid, queries, seed, input_format, absent, index_base, n_features, columns)
    documents = where.read(paths, trained_model(paths.forest, identity, registry, model))
    rules, policy, words = _policy(metric, convention, paths.forest, documents)
    found = optimality_at(
        paths, documents.codes(paths), documents.graded(), documents.starts, rules, policy, step=step, p0=p0, delta=delta,
        n_curves=curves, seed=seed, doc_order=documents.order(), n_threads=_threads(n_threads),
    )  # fmt: skip
    typer.echo(optimality_report(found, identity, words).at(documents.scope).render(as_json=as_json))


def _is_list(path: Path) -> bool:
    """Whether there is a file or folder that is no model."""
    from rankmill.scorer.model_file import is_model_file

    if path.suffix == MODEL_SUFFIX or not path.exists():
        return False
    return path.is_dir() or not is_model_file(path)


def _laid_out(model: str, registry: Path, n_rounds: int | None) -> tuple[ModelIdentity, Paths]:
    from rankmill.scorer.inspect.paths import leaf_paths

    forest, identity = find_model(model, registry)
    return identity, leaf_paths(forest, n_rounds=n_rounds)


def _scored(forest: Forest, where: _Where, trained: Sequence[TrainedModel]) -> tuple[Documents, Any]:
    import numpy as np

    from rankmill.scorer.inspect.paths import leaf_paths
    from rankmill.scorer.predict import Predictor

    documents = where.read(leaf_paths(forest), *trained)
    return documents, Predictor(forest).scores(documents.values, columns=np.arange(documents.values.shape[1]))


def _policy(metric: str, convention: str, forest: Forest, documents: Documents) -> tuple[Metric, Policy, str]:
    """Read the metric and the policy it is computed under; the highest grade is that of the training, else of the documents."""
    from rankmill.scorer.metrics import parse_metric
    from rankmill.scorer.metrics.conventions import named_convention

    wanted, rules = parse_metric(metric), named_convention(convention)
    known = forest.info.get("max_grade")
    if wanted.name == "err" and rules.policy.max_grade is None:
        highest = known if isinstance(known, int) and known >= 1 else max(1, int(documents.graded().max(initial=1)))
        rules = rules.but(max_grade=highest)
    return wanted, rules.policy_for(wanted), rules.describe_for(wanted)


def _threads(n_threads: int) -> int:
    from rankmill.foundation.cores import available_cores

    return n_threads or available_cores()
