"""``rankmill inspect ..``: explain a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankmill.foundation.command_line import AsJson, Overwrite, takes_options
from rankmill.foundation.options import With, Without, values_of
from rankmill.registry.cli_options import DEFAULT_FOLDER, RegistryFolder
from rankmill.scorer.cli_options import ConventionName, OneQuery
from rankmill.scorer.models.model_service import MODEL_SUFFIX, find_model, looks_like_a_list, trained_model
from rankmill.scorer.options import MoveOptions, Selection

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from rankmill.foundation.storage.location import Location
    from rankmill.scorer.evaluate.train_test_overlap import TrainedModel
    from rankmill.scorer.forest.forest import Forest
    from rankmill.scorer.inspect.documents import Documents
    from rankmill.scorer.inspect.paths import Paths
    from rankmill.scorer.inspect.reports import InspectionReport
    from rankmill.scorer.metrics import Metric, Policy
    from rankmill.scorer.models.identity import ModelIdentity
    from rankmill.scorer.models.model import Model

app = typer.Typer(
    no_args_is_help=True, help="Explain a model: feature importance, dependence, contributions, mixtures, optimality."
)

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="Model file, or NAME@7, NAME@latest or NAME (its production version).")
]
On = Annotated[
    list[Path],
    typer.Option(
        "--on", metavar="CANDIDATES", help="Dataset, or files of candidates as for rerank; repeat for several."
    ),
]
Top = Annotated[int, typer.Option("--top", min=0, help="Number of rows to show; 0: all.")]
Output = Annotated[
    int, typer.Option("--output", min=0, help="Which output to use, from 0, if the model has several (mcrank).")
]
MetricName = Annotated[str, typer.Option("--metric", help="Ranking metric, as in evaluate.")]


class _Inspected:
    """A model that was found by its name, with the chosen rounds."""

    def __init__(self, reference: str, registry: Location, rounds: Selection = Selection()) -> None:
        from rankmill.scorer.models.loading import predictor_of

        self.model, self.identity = find_model(reference, registry)
        self.predictor = predictor_of(self.model, n_rounds=rounds.n_rounds, start_round=rounds.start_round)
        self._reference, self._registry, self._rounds = reference, registry, rounds

    @property
    def is_forest(self) -> bool:
        """Whether it has paths from root to leaf."""
        from rankmill.scorer.forest.forest import Forest

        return isinstance(self.model, Forest)

    def chosen(self) -> Model:
        """Return the model; of trees, the chosen rounds."""
        return self.forest("influence") if self.is_forest else self.model

    def forest(self, use: str) -> Forest:
        """Return its trees of the chosen rounds; NoTrees if it is of another kind, which ``inspect use`` needs."""
        from rankmill.scorer.models.loading import forest_of

        return forest_of(self.model, f"inspect {use}").truncated(self._rounds.n_rounds, self._rounds.start_round)

    def paths(self, use: str) -> Paths:
        """Return its trees as paths from root to leaf; errors are those of `forest`."""
        from rankmill.scorer.inspect.paths import leaf_paths

        return leaf_paths(self.forest(use))

    def trained(self) -> TrainedModel:
        return trained_model(self.model, self.identity, self._registry, self._reference)

    def read(self, on: list[Path], selection: Selection, *trained: TrainedModel) -> Documents:
        """Read the documents of ``on`` on which the model, and the others in ``trained``, are inspected."""
        from rankmill.scorer.inspect.documents import read_documents

        documents = read_documents(
            on, self.predictor, replace(selection, announce=True), models=trained or [self.trained()]
        )
        if len(documents.doc_ids) < documents.n_read and not selection.qids:
            typer.echo(
                f"sampled {len(documents.qids):,} queries with {len(documents.doc_ids):,} of {documents.n_read:,} "
                "documents; use --queries 0 for all",
                err=True,
            )
        return documents

    def scores(self, documents: Documents) -> npt.NDArray[np.float64]:
        """Return the scores of its documents."""
        from rankmill.scorer.inspect.any_model import scores_of_documents

        return scores_of_documents(self.predictor, documents.values)


def _print(report: InspectionReport, documents: Documents | None, *, as_json: bool) -> None:
    typer.echo(report.render(None if documents is None else documents.scope, json_line=as_json))


@app.command()
@takes_options
def influence(
    *,
    model: ModelName,
    on: Annotated[
        list[Path] | None,
        typer.Option("--on", metavar="CANDIDATES", help="Permute each feature within the queries of these documents."),
    ] = None,
    metric: MetricName = "ndcg@10",
    permutations: Annotated[int, typer.Option(min=1, help="With --on: number of permutations of each feature.")] = 5,
    top: Top = 20,
    convention: ConventionName = "rankmill",
    selection: Annotated[Selection, With(n_queries=1000)],
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Show the importance of each feature.

    Without --on: its share of the gains of all splits, which only trees have; of the default model, the mean of its
    trees by their shares. With --on: how much worse the metric gets where its values are exchanged among the documents
    of each query.

    Example: rankmill inspect influence web@latest --top 10

    Example: rankmill inspect influence web@latest --on web.dataset --split test --metric ndcg@10
    """
    from rankmill.scorer.inspect.any_model import permutation_losses
    from rankmill.scorer.inspect.reports import influence_report, permutation_report
    from rankmill.scorer.metrics.per_query import PreparedQueries

    inspected = _Inspected(model, registry, selection)
    if on is None:
        _print(influence_report(inspected.chosen(), inspected.identity, top), None, as_json=as_json)
        return
    documents = inspected.read(on, selection)
    measure, policy, words = _policy(metric, convention, inspected.model, documents)
    graded = PreparedQueries(documents.graded(), documents.starts, policy, doc_order=documents.order())
    value, losses = permutation_losses(
        inspected.predictor, documents.values, graded, measure, repeats=permutations, seed=selection.seed,
        n_threads=selection.threads,
    )  # fmt: skip
    report = permutation_report(
        measure, value, losses, inspected.identity, repeats=permutations, top=top, conventions=words
    )
    _print(report, documents, as_json=as_json)


@app.command()
@takes_options
def dependence(
    *,
    model: ModelName,
    features: Annotated[list[str], typer.Argument(metavar="FEATURE [FEATURE]", help="One feature, or two.")],
    on: Annotated[
        list[Path] | None,
        typer.Option("--on", metavar="CANDIDATES", help="Average over these documents instead of the training rows."),
    ] = None,
    points: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Maximum number of values to show per feature, besides missing; 0: all.  Default: 20, or 8 with two "
            "features.",
        ),
    ] = None,
    selection: Annotated[Selection, With(n_queries=200)],
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Show partial dependence: the mean score of the model for each value of one or two features.

    Each row stands for the values between the next lower threshold and the one shown.  Models without trees need --on,
    from which --split and --qid choose; their rows are values of the documents.

    Example: rankmill inspect dependence web@latest bm25

    Example: rankmill inspect dependence web@latest bm25 clicks --on web.dataset --split test
    """
    from rankmill.foundation.errors import InputError
    from rankmill.scorer.inspect.any_model import dependence_on
    from rankmill.scorer.inspect.dependence import partial_dependence, some_steps
    from rankmill.scorer.inspect.reports import dependence_report

    inspected = _Inspected(model, registry, selection)
    if on is None and (selection.split is not None or selection.qids):
        raise InputError("--split and --qid choose documents: name them with --on CANDIDATES")
    documents = None if on is None else inspected.read(on, selection)
    values = None if documents is None else documents.values
    most = (20 if len(features) == 1 else 8) if points is None else points
    if not inspected.is_forest:
        if values is None:
            raise InputError("only models of trees know their training rows; average over documents: --on CANDIDATES")
        of_documents = dependence_on(inspected.predictor, values, features, most, selection.threads)
        _print(dependence_report(of_documents, inspected.identity), documents, as_json=as_json)
        return
    paths = inspected.paths("dependence")
    axes = [some_steps(paths, paths.slot_of(name), most) for name in features]
    result = partial_dependence(paths, features, points=axes, values=values, n_threads=selection.threads)
    _print(dependence_report(result, inspected.identity), documents, as_json=as_json)


@app.command()
@takes_options
def interaction(
    *,
    model: ModelName,
    on: On,
    features: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FEATURE]...", help="Features to test.  Default: the 10 most important."),
    ] = None,
    over: Annotated[
        str,
        typer.Option(
            help="Average partial dependence over the training rows (training) or the documents of --on (documents)."
        ),
    ] = "training",
    output: Output = 0,
    top: Top = 20,
    selection: Annotated[Selection, With(n_queries=50)],
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Measure interactions between features with Friedman's H, for single features and for pairs.

    Example: rankmill inspect interaction web@latest --on web.dataset --split test
    """
    from rankmill.scorer.inspect.dependence import interactions
    from rankmill.scorer.inspect.reports import interaction_report

    inspected = _Inspected(model, registry, selection)
    documents = inspected.read(on, selection)
    result = interactions(
        inspected.paths("interaction"), documents.values, features=features or None, over=over, output=output,
        n_threads=selection.threads,
    )  # fmt: skip
    n_documents = len(documents.doc_ids)
    report = interaction_report(
        result, inspected.identity, over=over, output=output, n_documents=n_documents, top=top
    )  # fmt: skip
    _print(report, documents, as_json=as_json)


@app.command()
@takes_options
def shap(
    *,
    model: ModelName,
    on: On,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the contributions of every document to this .parquet file."),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Do not subtract the mean contribution over the query.")] = False,
    interactions: Annotated[
        bool,
        typer.Option(
            "--interactions", help="Divide the contributions into those of features alone and of pairs of features."
        ),
    ] = False,
    top: Top = 20,
    selection: Annotated[Selection, With(n_queries=100)],
    overwrite: Overwrite = False,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Compute how much each feature contributes to the scores (TreeSHAP), minus the mean over the query.

    Example: rankmill inspect shap web@latest --on web.dataset --split test -o contributions.parquet
    """
    from rankmill.foundation.errors import InputError
    from rankmill.scorer.inspect.contributions import checked_name, explain_documents
    from rankmill.scorer.inspect.reports import pairs_report, shap_report
    from rankmill.scorer.inspect.shap import Explainer

    if out is not None:
        if interactions:
            raise InputError("--out writes contributions of features, not of pairs; leave out --interactions or --out")
        checked_name(out)
        if out.exists() and not overwrite:
            raise InputError(f"{out}: exists already; choose another name, or replace it with --overwrite")
    inspected = _Inspected(model, registry, selection)
    explainer = Explainer(inspected.paths("shap"))
    documents = inspected.read(on, selection)
    result = explain_documents(
        explainer, documents, pairs=interactions, centred=not raw, out=out, n_threads=selection.threads
    )
    if interactions:
        _print(pairs_report(result, inspected.identity, top=top), documents, as_json=as_json)
        return
    report = shap_report(result, inspected.identity, top=top, out=None if out is None else str(out))
    _print(report, documents, as_json=as_json)


@app.command()
@takes_options
def leaves(
    *,
    model: ModelName,
    on: On,
    out: Annotated[Path, typer.Option("--out", "-o", help="The .parquet file to write.")],
    selection: Annotated[Selection, With(n_queries=0)],
    overwrite: Overwrite = False,
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Write the leaf that each document reaches in each tree: qid, doc_id and a list of leaves.

    A leaf is a node of its tree, counted from its root, 0.

    Example: rankmill inspect leaves web@latest --on web.dataset --split test -o leaves.parquet
    """
    from rankmill.foundation.errors import InputError
    from rankmill.scorer.inspect.contributions import checked_name, write_leaves
    from rankmill.scorer.inspect.reports import leaves_report

    checked_name(out)
    if out.exists() and not overwrite:
        raise InputError(f"{out}: exists already; choose another name, or replace it with --overwrite")
    inspected = _Inspected(model, registry, selection)
    forest = inspected.forest("leaves")
    documents = inspected.read(on, selection)
    write_leaves(forest, documents, out, n_threads=selection.threads)
    report = leaves_report(forest, inspected.identity, n_documents=len(documents.doc_ids), out=str(out))
    _print(report, documents, as_json=as_json)


@app.command()
@takes_options
def why(
    *,
    model: ModelName,
    on: On,
    qid: OneQuery,
    above: Annotated[str | None, typer.Option(help="doc_id of the higher document.  Default: the first.")] = None,
    below: Annotated[
        str | None, typer.Option(help="doc_id of the lower document.  Default: the one directly below.")
    ] = None,
    output: Output = 0,
    top: Top = 15,
    selection: Annotated[Selection, Without("n_threads", "qids", "n_queries", "seed")],
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Explain, feature by feature, why one document of a query is ranked above another.

    Example: rankmill inspect why web@latest --on web.dataset --qid 10 --above D7 --below D3
    """
    from rankmill.scorer.inspect.any_model import why_by_score
    from rankmill.scorer.inspect.contributions import chosen_two
    from rankmill.scorer.inspect.contributions import why as differences
    from rankmill.scorer.inspect.reports import why_report
    from rankmill.scorer.inspect.shap import Explainer

    inspected = _Inspected(model, registry, selection)
    explainer = Explainer(inspected.paths("why")) if inspected.is_forest else None
    selection = replace(selection, qids=(qid,))
    documents = inspected.read(on, selection)
    (first, second), ranks = chosen_two(documents.doc_ids, inspected.scores(documents), above, below, qid)
    two = documents.values[first], documents.values[second]
    n_outputs = 1 if explainer is None else explainer.paths.forest.n_outputs
    result = (
        why_by_score(inspected.predictor, *two) if explainer is None else differences(explainer, *two, output=output)
    )
    report = why_report(
        result, inspected.identity, qid=qid, doc_ids=(documents.doc_ids[first], documents.doc_ids[second]), ranks=ranks,
        top=top, n_outputs=n_outputs,
    )  # fmt: skip
    _print(report, documents, as_json=as_json)


@app.command()
@takes_options
def combine(
    *,
    model: ModelName,
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="Second ranker: another model, a scored list or a TREC run.")
    ],
    on: On,
    metric: MetricName = "ndcg@10",
    low: Annotated[float, typer.Option("--from", help="Minimum weight of OTHER; may be negative.")] = 0.0,
    high: Annotated[float, typer.Option("--to", help="Maximum weight of OTHER.")] = 1.0,
    convention: ConventionName = "rankmill",
    selection: Annotated[Selection, Without("n_rounds", "start_round", "n_threads"), With(n_queries=1000)],
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Find the best weight a for the mixture (1 - a) MODEL + a OTHER by an exact search.

    Example: rankmill inspect combine web@3 web@7 --on web.dataset --split valid --metric ndcg@10

    Example: rankmill inspect combine web bm25.run --on candidates.parquet
    """
    from rankmill.foundation.errors import InputError
    from rankmill.scorer.inspect.combine import combine as best_mixture
    from rankmill.scorer.inspect.documents import listed_scores
    from rankmill.scorer.inspect.reports import combination_report

    first, path = _Inspected(model, registry), Path(other)
    ranker: ModelIdentity | str
    if _is_list(path):
        documents = first.read(on, selection)
        ranker, scores = other, listed_scores(path, documents)
    else:
        if looks_like_a_list(other) and not path.exists():
            raise InputError(f"{other}: no such file")
        second = _Inspected(other, registry)
        trained = first.trained(), second.trained()
        documents = first.read(on, selection, *trained)
        ranker, scores = second.identity, second.scores(second.read(on, selection, *trained))
    measure, policy, words = _policy(metric, convention, first.model, documents)
    best = best_mixture(
        first.scores(documents), scores, documents.graded(), documents.starts, measure, policy, low=low,
        high=high, doc_order=documents.order(),
    )  # fmt: skip
    _print(combination_report(best, (first.identity, ranker), words), documents, as_json=as_json)


@app.command()
@takes_options
def optimality(
    *,
    model: ModelName,
    on: On,
    metric: MetricName = "ndcg@10",
    moves: MoveOptions,
    convention: ConventionName = "rankmill",
    selection: Annotated[Selection, With(n_queries=200)],
    registry: RegistryFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Test whether the leaf values or the weights of a net are a local maximum of a metric.

    The test moves them in random directions.

    Expect a maximum only on the queries that the model was trained on.

    Example: rankmill inspect optimality web@latest --on web.dataset --split train --metric ndcg@10
    """
    from rankmill.scorer.inspect.optimality import Moves, local_optimality
    from rankmill.scorer.inspect.reports import optimality_report
    from rankmill.scorer.metrics.per_query import PreparedQueries
    from rankmill.scorer.nets.net import Net

    inspected = _Inspected(model, registry, selection)
    moved_model = inspected.model if isinstance(inspected.model, Net) else inspected.paths("optimality")
    documents = inspected.read(on, selection)
    measure, policy, words = _policy(metric, convention, inspected.model, documents)
    graded = PreparedQueries(documents.graded(), documents.starts, policy, doc_order=documents.order())
    moved = Moves(**values_of(moves), seed=selection.seed)
    result = local_optimality(moved_model, documents.values, graded, measure, moved, n_threads=selection.threads)
    _print(optimality_report(result, inspected.identity, words), documents, as_json=as_json)


def _is_list(path: Path) -> bool:
    """Return whether ``path`` exists and is not a model."""
    from rankmill.scorer.models.model_file import is_model_file

    if path.suffix == MODEL_SUFFIX or not path.exists():
        return False
    return path.is_dir() or not is_model_file(path)


def _policy(metric: str, convention: str, model: Model, documents: Documents) -> tuple[Metric, Policy, str]:
    """Return the metric, its policy and the policy in words.

    The highest grade is from the training, else from the documents.
    """
    from rankmill.foundation.errors import InputError
    from rankmill.scorer.metrics import parse_metric
    from rankmill.scorer.metrics.conventions import named_convention

    measure, rules = parse_metric(metric), named_convention(convention)
    if measure.goal:
        raise InputError(f"metric {metric}: only the grade is measured here; leave out ':{measure.goal}'")
    known = model.info.get("max_grade")
    if measure.name == "err" and rules.policy.max_grade is None:
        highest = known if isinstance(known, int) and known >= 1 else max(1, int(documents.graded().max(initial=1)))
        rules = rules.but(max_grade=highest)
    return measure, rules.policy_for(measure), rules.describe_for(measure)
