"""``rankmill train``: from a binned dataset to a registered model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scorer.forest import Forest
    from trainer.history import TrainingResult
    from trainer.parameters import TrainParameters

app = typer.Typer()

HISTOGRAM_MEMORY = "512MiB"  # DEFAULT_POOL_BYTES as people write it


@app.command()
def train(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder of a dataset that has been binned.")],
    name: Annotated[str, typer.Option(help="Register the model under this name.")],
    registry: Annotated[
        Path, typer.Option(envvar="RANKMILL_REGISTRY", file_okay=False, help="Folder of the registry.")
    ] = Path("registry-data"),
    objective: Annotated[
        str,
        typer.Option(
            metavar="NAME[(OPTION=VALUE, ..)]",
            help="The loss: lambdamart, l2 (squared error of the grade), .. (docs/objectives.md lists them all).",
        ),
    ] = "lambdamart",
    criterion: Annotated[
        str,
        typer.Option(
            help="By which splits are chosen: se (squared error), rwse (weighted by curvature) or ole (the loss itself);"
            " left out: what the objective does best with.",
            show_default=False,
        ),
    ] = "",
    ole_features: Annotated[
        int, typer.Option(help="For ole: so many features that look best to rwse are searched by the loss; 0: all.")
    ] = 8,
    ole_pairs: Annotated[
        float, typer.Option(help="For ole: pairs a document drawn to measure curvature, about; 0: all pairs.")
    ] = 0.0,
    leaf: Annotated[
        str,
        typer.Option(help="Steps of leaves: newton, or exact (pairs of documents in one leaf do not count)."),
    ] = "newton",
    metric: Annotated[str, typer.Option(help="What lambdamart optimises: ndcg or ndcg@k.")] = "ndcg@10",
    stop_metric: Annotated[
        str,
        typer.Option(
            help="Early stopping watches it on the valid split, deviance is the loss; left out: the metric itself.",
            show_default=False,
        ),
    ] = "",
    eval_metric: Annotated[
        list[str] | None,
        typer.Option(help="Measured after every round as well; repeat for several.  Never changes the model."),
    ] = None,
    gain: Annotated[str, typer.Option(help="Gain of a grade y in the metrics: exp (2^y - 1) or linear (y).")] = "exp",
    n_rounds: Annotated[int, typer.Option(help="Trees at most.")] = 500,
    learning_rate: Annotated[float, typer.Option(help="Shrinkage of every tree, in (0, 1].")] = 0.1,
    early_stopping_rounds: Annotated[
        int,
        typer.Option(
            help="Stop after so many rounds without a better valid metric; 0: do all rounds.  The best round is kept."
        ),
    ] = 50,
    grow: Annotated[
        str,
        typer.Option(
            help="Which leaf is split next: best_first, breadth_first or depth_first; or oblivious, one condition for"
            " all leaves of a depth."
        ),
    ] = "best_first",
    max_leaves: Annotated[int, typer.Option(help="Leaves of a tree at most; oblivious trees have 2^max_depth.")] = 31,
    max_depth: Annotated[int, typer.Option(help="Depth of a tree at most; 0: no bound, oblivious trees 6.")] = 0,
    min_rows_in_leaf: Annotated[int, typer.Option(help="Documents in a leaf at least.")] = 20,
    min_hessian_in_leaf: Annotated[float, typer.Option(help="Sum of curvatures in a leaf at least.")] = 1e-3,
    lambda_l2: Annotated[float, typer.Option(help="Added to the curvature of a leaf.")] = 0.0,
    min_gain: Annotated[float, typer.Option(help="A split must gain more than this.")] = 0.0,
    monotone: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:1|-1",
            help="Scores never fall (1) or never rise (-1) with this feature; repeat for several.",
        ),
    ] = None,
    feature_fraction: Annotated[
        float, typer.Option(help="Share of the features drawn for each tree, in (0, 1].")
    ] = 1.0,
    query_fraction: Annotated[float, typer.Option(help="Share of the queries drawn for each tree, in (0, 1].")] = 1.0,
    row_fraction: Annotated[
        float, typer.Option(help="Share of the documents of these queries drawn for each tree, in (0, 1].")
    ] = 1.0,
    sigma: Annotated[float, typer.Option(help="Steepness of the pairwise logistic loss.")] = 1.0,
    truncation: Annotated[int, typer.Option(help="Pairs need a document among the first so many by score.")] = 30,
    lambda_normalisation: Annotated[bool, typer.Option(help="Damp pairs far apart and scale queries alike.")] = True,
    seed: Annotated[int, typer.Option(help="Key of all randomness.")] = 7,
    n_threads: Annotated[
        int, typer.Option(help="Threads; 0: the cores this process may use.  Never changes the model.")
    ] = 0,
    bin_cache: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            metavar="DIR",
            help="Map the bins from a file in this folder instead of holding them in memory.  It is built at the first"
            " training and used again while data and bins are the same; files of other data are left: delete them as"
            " you like.  Never changes the model.",
            show_default=False,
        ),
    ] = None,
    histogram_memory: Annotated[
        str,
        typer.Option(
            help="Bound of the memory for histograms; with less, training takes longer.  Oblivious trees take what they"
            " need.  Never changes the model."
        ),
    ] = HISTOGRAM_MEMORY,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Go on from this model (a file, NAME, NAME@7, NAME@latest; NAME means production), trained on DATASET"
            " with the same options, until there are N_ROUNDS rounds in all: the same bytes as training in one go.",
            show_default=False,
        ),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time of a round went.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Train a model on DATASET and register it as the next version of NAME.

    The valid split, if there is one, decides how many trees are kept.

    Example: rankmill train web.dataset --name web --metric ndcg@10
    With bins on disk: rankmill train web.dataset --name web --bin-cache bin-cache
    More rounds: rankmill train web.dataset --name web --resume web@latest --n-rounds 1000
    """
    from pipeline.sizes import parse_size
    from trainer.monotone import parse_monotone
    from trainer.parameters import TrainParameters

    parameters = TrainParameters(
        objective=objective, criterion=criterion, ole_features=ole_features, ole_pairs=ole_pairs, leaf=leaf, metric=metric, stop_metric=stop_metric, gain=gain, n_rounds=n_rounds,
        learning_rate=learning_rate, early_stopping_rounds=early_stopping_rounds, grow=grow,
        max_leaves=max_leaves, max_depth=max_depth, min_rows_in_leaf=min_rows_in_leaf,
        min_hessian_in_leaf=min_hessian_in_leaf, lambda_l2=lambda_l2, min_gain=min_gain,
        monotone=parse_monotone(monotone or ()), feature_fraction=feature_fraction, query_fraction=query_fraction,
        row_fraction=row_fraction, sigma=sigma, truncation=truncation, lambda_normalisation=lambda_normalisation,
        seed=seed,
    )  # fmt: skip
    report, result = train_and_register(
        dataset, name, registry, parameters, eval_metrics=eval_metric or (), resume=resume, n_threads=n_threads,
        bin_cache=bin_cache, pool_bytes=parse_size(histogram_memory, "--histogram-memory"), profile=profile,
    )  # fmt: skip
    if result.profile is not None:
        report["profile"] = result.profile.to_dict()
    typer.echo(json.dumps(report, sort_keys=True) if as_json else _render(report))
    if result.profile is not None and not as_json:
        typer.echo("\n" + result.profile.render())


def train_and_register(
    dataset_path: Path,
    name: str,
    registry_path: Path,
    parameters: TrainParameters,
    *,
    eval_metrics: Sequence[str] = (),
    resume: str | None = None,
    n_threads: int = 0,
    bin_cache: Path | None = None,
    pool_bytes: int | None = None,
    profile: bool = False,
) -> tuple[dict[str, Any], TrainingResult]:
    """Train on the dataset at ``dataset_path``, register the model, and return the facts of the new version.

    ``resume`` names a model, a file or a version in the registry at ``registry_path``; ``pool_bytes`` None means the
    default; the other options are those of :func:`trainer.training.train`.
    """
    from pipeline.dataset import Dataset
    from registry import Registry
    from registry.names import check_name
    from scorer.cli import find_model
    from trainer.compiling import compilation_announced
    from trainer.growing.histogram import DEFAULT_POOL_BYTES
    from trainer.progress import TrainingBar
    from trainer.training import plan_of, train

    # what can be refused is refused before hours of training, not after
    check_name(name)
    dataset = Dataset.open(dataset_path)
    pool_bytes = DEFAULT_POOL_BYTES if pool_bytes is None else pool_bytes
    start: Forest | None = None if resume is None else find_model(resume, registry_path)[0]
    plan = plan_of(
        dataset, parameters, eval_metrics=eval_metrics, resume=start, bin_cache=bin_cache, pool_bytes=pool_bytes
    )
    registry = Registry(registry_path)
    registry.prepare()
    known = {version.number for version in registry.versions(name)} if name in registry.names() else set()

    def say(line: str) -> None:
        typer.echo(line, err=True)

    say(plan.render())
    with compilation_announced(say), TrainingBar(parameters.n_rounds) as bar:
        result = train(
            dataset,
            parameters,
            eval_metrics=eval_metrics,
            resume=start,
            n_threads=n_threads,
            on_round=bar.update,
            bin_cache=bin_cache,
            pool_bytes=pool_bytes,
            profile=profile,
            say=say,
        )
    forest = result.forest
    metrics = _metrics_of(result)
    version = registry.register(
        name,
        forest.to_bytes(),
        manifest={
            "features": list(forest.feature_names),
            "dataset_digest": dataset.digest,
            "binspec_digest": forest.info["binspec_digest"],
            "parameters": dict(forest.parameters),
            "metrics": metrics,
            "max_grade": dataset.max_grade,
            "best_round": result.best_round,
            **_shape_of(forest),
        },
    )
    report = {
        "model": str(version),
        "new": version.number not in known,
        "sha256": version.sha256,
        "bytes": version.size,
        "trees": forest.n_trees,
        "rounds": forest.n_rounds,
        "rounds_trained": len(result.history),
        "rounds_resumed": 0 if start is None else start.n_rounds,
        "train": metrics.get("train", {}),
        "valid": metrics.get("valid", {}),
        "registry": str(registry_path),
    }
    return report, result


def _shape_of(forest: Forest) -> dict[str, Any]:
    """Return what there is to say of a forest that is more than one sum of trees, one a round."""
    told = {"n_outputs": forest.n_outputs, "link": forest.link, "trees_a_round": forest.trees_a_round}
    return told if forest.trees_a_round > 1 or forest.link != "identity" else {}


def _metrics_of(result: TrainingResult) -> dict[str, dict[str, float]]:
    """Return what the best round measured, by split and metric; a mean over no query at all is left out."""
    best = result.history[result.best_round - 1].metrics
    found = {
        split: {metric: value for metric, value in metrics.items() if value == value}  # noqa: PLR0124 - not NaN
        for split, metrics in best.items()
    }
    return {split: metrics for split, metrics in found.items() if metrics}


def _kept(report: Mapping[str, Any]) -> str:
    """Say how much of the training is in the model."""
    trees, rounds, trained = (report[name] for name in ("trees", "rounds", "rounds_trained"))
    return (
        f"{trees} trees of {trained} trained"
        if trees == rounds
        else f"{trees} trees, {rounds} rounds of {trained} trained"
    )


def _render(report: dict[str, Any]) -> str:
    metrics = "; ".join(
        f"{split} " + ", ".join(f"{metric} {value:.4f}" for metric, value in report[split].items())
        for split in ("train", "valid")
        if report[split]
    )
    return (
        f"{'registered' if report['new'] else 'the same as'} {report['model']} in {report['registry']}: {_kept(report)}"
        + (f" ({report['rounds_resumed']} of them before)" if report["rounds_resumed"] else "")
        + f"; {metrics}\nsha256 {report['sha256']}"
    )
