"""``rankmill train``: from a binned dataset to a registered model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer()


@app.command()
def train(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder of a dataset that has been binned.")],
    name: Annotated[str, typer.Option(help="Register the model under this name.")],
    registry: Annotated[
        Path, typer.Option(envvar="RANKMILL_REGISTRY", file_okay=False, help="Folder of the registry.")
    ] = Path("registry-data"),
    objective: Annotated[str, typer.Option(help="The loss: lambdamart.")] = "lambdamart",
    metric: Annotated[str, typer.Option(help="What lambdamart optimises: ndcg or ndcg@k.")] = "ndcg@10",
    stop_metric: Annotated[
        str,
        typer.Option(
            help="Early stopping watches it on the valid split; left out: the metric itself.", show_default=False
        ),
    ] = "",
    gain: Annotated[str, typer.Option(help="Gain of a grade y in the metrics: exp (2^y - 1) or linear (y).")] = "exp",
    n_rounds: Annotated[int, typer.Option(help="Trees at most.")] = 500,
    learning_rate: Annotated[float, typer.Option(help="Shrinkage of every tree, in (0, 1].")] = 0.1,
    early_stopping_rounds: Annotated[
        int,
        typer.Option(
            help="Stop after so many rounds without a better valid metric; 0: do all rounds.  The best round is kept."
        ),
    ] = 50,
    max_leaves: Annotated[int, typer.Option(help="Leaves of a tree at most.")] = 31,
    max_depth: Annotated[int, typer.Option(help="Depth of a tree at most; 0: no bound.")] = 0,
    min_rows_in_leaf: Annotated[int, typer.Option(help="Documents in a leaf at least.")] = 20,
    min_hessian_in_leaf: Annotated[float, typer.Option(help="Sum of curvatures in a leaf at least.")] = 1e-3,
    lambda_l2: Annotated[float, typer.Option(help="Added to the curvature of a leaf.")] = 0.0,
    min_gain: Annotated[float, typer.Option(help="A split must gain more than this.")] = 0.0,
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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Train a model on DATASET and register it as the next version of NAME.

    The valid split, if there is one, decides how many trees are kept.

    Example: rankmill train web.dataset --name web --metric ndcg@10
    With bins on disk: rankmill train web.dataset --name web --bin-cache bin-cache
    """
    from trainer.parameters import TrainParameters

    parameters = TrainParameters(
        objective=objective, metric=metric, stop_metric=stop_metric, gain=gain, n_rounds=n_rounds,
        learning_rate=learning_rate, early_stopping_rounds=early_stopping_rounds, max_leaves=max_leaves,
        max_depth=max_depth, min_rows_in_leaf=min_rows_in_leaf, min_hessian_in_leaf=min_hessian_in_leaf,
        lambda_l2=lambda_l2, min_gain=min_gain, sigma=sigma, truncation=truncation,
        lambda_normalisation=lambda_normalisation, seed=seed,
    )  # fmt: skip
    report = train_and_register(dataset, name, registry, parameters, n_threads=n_threads, bin_cache=bin_cache)
    typer.echo(json.dumps(report, sort_keys=True) if as_json else _render(report))


def train_and_register(
    dataset_path: Path,
    name: str,
    registry_path: Path,
    parameters: Any,
    *,
    n_threads: int = 0,
    bin_cache: Path | None = None,
) -> dict[str, Any]:
    """Train on the dataset at ``dataset_path``, register the model, and return the facts of the new version.

    ``bin_cache`` is a folder to map the bins from; None: they are held in memory.
    """
    from pipeline.dataset import Dataset
    from registry import Registry
    from registry.names import check_name
    from trainer.progress import TrainingBar
    from trainer.training import plan_of, train

    # what can be refused is refused before hours of training, not after
    check_name(name)
    dataset = Dataset.open(dataset_path)
    plan = plan_of(dataset, parameters, bin_cache=bin_cache)
    registry = Registry(registry_path)
    registry.prepare()
    known = {version.number for version in registry.versions(name)} if name in registry.names() else set()
    typer.echo(plan.render(), err=True)
    with TrainingBar(parameters.n_rounds) as bar:
        result = train(
            dataset,
            parameters,
            n_threads=n_threads,
            on_round=bar.update,
            bin_cache=bin_cache,
            say=lambda line: typer.echo(line, err=True),
        )
    forest = result.forest
    info = dict(forest.info)
    version = registry.register(
        name,
        forest.to_bytes(),
        manifest={
            "features": list(forest.feature_names),
            "dataset_digest": dataset.digest,
            "binspec_digest": info["binspec_digest"],
            "parameters": dict(forest.parameters),
            "metrics": {split: info[split] for split in ("train", "valid") if info[split]},
            "max_grade": dataset.max_grade,
            "best_round": result.best_round,
        },
    )
    return {
        "model": str(version),
        "new": version.number not in known,
        "sha256": version.sha256,
        "bytes": version.size,
        "trees": forest.n_trees,
        "rounds_trained": len(result.history),
        "train": info["train"],
        "valid": info["valid"],
        "registry": str(registry_path),
    }


def _render(report: dict[str, Any]) -> str:
    metrics = "; ".join(
        f"{split} " + ", ".join(f"{metric} {value:.4f}" for metric, value in report[split].items())
        for split in ("train", "valid")
        if report[split]
    )
    return (
        f"{'registered' if report['new'] else 'the same as'} {report['model']} in {report['registry']}: {report['trees']} trees"
        f" of {report['rounds_trained']} trained; {metrics}\nsha256 {report['sha256']}"
    )
