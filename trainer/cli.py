"""The commands ``rankmill train`` and ``rankmill cv``."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rankmill.foundation.cluster.options import ClusterOptions
from rankmill.foundation.command_line import AsJson, given_names, takes_options
from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import Without, spelled, values_of
from rankmill.foundation.storage.location import Location
from rankmill.registry.cli_options import DEFAULT_FOLDER, NewModel, RegistryFolder
from rankmill.trainer.nets.options import FROM, NET, SHARED, ModelOptions
from rankmill.trainer.options import CheckpointOptions, HowOptions, MachineOptions, SeedOptions
from rankmill.trainer.parameters import TrainParameters

app = typer.Typer()

CrossValidated = Annotated[TrainParameters, Without("rounds_by", "holdout_fraction", "keep_rounds", "refit")]
Kind = Annotated[ModelOptions, Without(*SHARED, *FROM)]

LogEvery = Annotated[
    int | None,
    typer.Option(
        "--log-every",
        min=0,
        help="Log a line on stderr after every N rounds; 0: show no progress. Default: a bar on a"
        " terminal, elsewhere a line about every 10 seconds.",
        show_default=False,
    ),
]


@app.command()
@takes_options
def train(
    *,
    context: typer.Context,
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder of a binned dataset.")],
    name: NewModel,
    registry: RegistryFolder = DEFAULT_FOLDER,
    parameters: TrainParameters,
    how: HowOptions,
    start: Annotated[ModelOptions, Without(*SHARED)],
    several: SeedOptions,
    log_every: LogEvery = None,
    as_json: AsJson = False,
) -> None:
    """Train a model on DATASET and register it as the next version of NAME.

    If there is a valid split, it decides how many rounds are kept (see --early-stopping-rounds and --keep-rounds). With
    the default preset, up to 5,000 training queries and a test split, it is then learnt from (see --refit).

    Example: rankmill train web.dataset --name web --metric ndcg@10
    More rounds of trees: rankmill train web.dataset --name web --budget fast --resume web@latest --n-rounds 1000
    The result of a search: rankmill train web.dataset --name web --params web.tuning/winner.toml
    Three seeds as one model: rankmill train web.dataset --name web --seeds 1,2,3 --choose average
    A neural net: rankmill train web.dataset --name web-net --model net
    Several machines: rankmill train web.dataset --name web --cluster tcp://10.0.0.5:8786
    Several goals: rankmill train web.dataset --name web --goals bought:0.3
    """
    from rankmill.foundation.cluster.workers import open_cluster
    from rankmill.pipeline.dataset.dataset import Dataset
    from rankmill.registry import Registry
    from rankmill.registry.names import check_name
    from rankmill.trainer.candidates.blend_on_dataset import BlendCandidate
    from rankmill.trainer.presets import blends
    from rankmill.trainer.progress import note_few_queries, to_stderr
    from rankmill.trainer.rounds.checkpoints import FinishedTrainings
    from rankmill.trainer.training_options import TrainingOptions
    from rankmill.trainer.training_service import starting_model, train_and_register

    check_name(name)
    start, parameters = start.started(parameters, given_names(context))
    if start.model == NET:
        if how.where.cluster is not None:
            raise InvalidParameter(f"{spelled('cluster')} does not work with {spelled('model')} net; leave it out")
        _train_net(dataset, name, registry, parameters, how.machine, start, several, log_every, as_json=as_json)
        return
    start.check_trees()
    training = TrainingOptions(
        **values_of(how.machine),
        resume=starting_model(start.resume, registry, spelled("resume")),
        base_model=starting_model(start.base_model, registry, spelled("base_model")),
    )
    opened = Dataset.open(dataset)
    if parameters.rounds_by == "valid" and parameters.keeps_best and not blends(parameters):
        note_few_queries(opened, "the number of rounds")
    with ExitStack() as stack:
        if how.where.cluster is not None:
            training = replace(training, cluster=stack.enter_context(open_cluster(how.where.cluster, to_stderr)))
        trained = train_and_register(
            opened,
            name,
            Registry(registry),
            parameters,
            training,
            several,
            log_every=log_every,
        )
    candidate = trained.candidate
    if isinstance(candidate, BlendCandidate):
        candidate.clear()
        typer.echo(json.dumps(trained.report.to_dict(), sort_keys=True) if as_json else trained.report.render())
        return
    if how.machine.checkpoint is not None:
        FinishedTrainings(how.machine.checkpoint).remove(candidate.keys)
    result = candidate.result
    if not as_json:
        typer.echo(trained.report.render())
        return
    report = trained.report.to_dict()
    if result.cross_validation is not None:
        report["cross_validation"] = result.cross_validation.to_dict()
    typer.echo(json.dumps(report, sort_keys=True))


def _train_net(
    dataset: Path,
    name: str,
    registry: Location,
    parameters: TrainParameters,
    options: CheckpointOptions,
    start: ModelOptions,
    several: SeedOptions,
    log_every: int | None,
    *,
    as_json: bool,
) -> None:
    from rankmill.pipeline.dataset.dataset import Dataset
    from rankmill.registry import Registry
    from rankmill.trainer.progress import note_few_queries
    from rankmill.trainer.training_service import train_net_and_register

    if several != SeedOptions():
        raise InvalidParameter(f"{spelled('seeds')} is an option of trees; leave it out with {spelled('model')} net")
    net_options, opened = start.net_options(parameters), Dataset.open(dataset)
    note_few_queries(opened, "the number of epochs")
    trained = train_net_and_register(opened, name, Registry(registry), net_options, options, log_every=log_every)
    trained.candidate.clear()
    typer.echo(json.dumps(trained.report.to_dict(), sort_keys=True) if as_json else trained.report.render())


@app.command()
@takes_options
def cv(
    *,
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder of a binned dataset.")],
    parameters: CrossValidated,
    options: MachineOptions,
    where: ClusterOptions,
    kind: Kind,
    log_every: LogEvery = None,
    as_json: AsJson = False,
) -> None:
    """Estimate performance on unseen queries and the best number of rounds by cross-validation.

    The queries of the train split are divided into folds. Each fold is held out once and measured after every round of
    training on the others. No model is registered; train --rounds-by cv does both.

    Example: rankmill cv web.dataset --folds 5 --metric ndcg@10 --n-rounds 300
    A neural net: rankmill cv web.dataset --folds 5 --model net --layers 64
    Folds on several machines: rankmill cv web.dataset --folds 5 --cluster tcp://10.0.0.5:8786
    """
    from rankmill.foundation.cluster.workers import open_cluster
    from rankmill.foundation.kernels.compiling import compilation_announced
    from rankmill.pipeline.dataset.dataset import Dataset
    from rankmill.trainer.candidates.train_on_dataset import cross_validate, plan_of
    from rankmill.trainer.cluster.cross_validate_on_cluster import cross_validate_on_cluster
    from rankmill.trainer.nets.cross_validating import cross_validate_net_on
    from rankmill.trainer.nets.plan import plan_net
    from rankmill.trainer.progress import TrainingProgress, say_of_gains, to_stderr
    from rankmill.trainer.training_options import TrainingOptions

    opened = Dataset.open(dataset)
    if kind.model == NET:
        if where.cluster is not None:
            raise InvalidParameter(f"{spelled('cluster')} does not work with {spelled('model')} net; leave it out")
        net = kind.net_options(parameters, "folds")
        to_stderr(plan_net(opened, net, options, parameters.folds).render())
        say_of_gains(opened, net.gain)
        progress = TrainingProgress(net.epochs, step="epoch", n_trainings=parameters.folds, log_every=log_every)
        with compilation_announced(to_stderr), progress:
            result = cross_validate_net_on(opened, net, parameters.folds, options, on_round=progress.update)
    else:
        kind.check_trees()
        training = TrainingOptions(**values_of(options), on_message=to_stderr)
        plan = plan_of(opened, replace(parameters, rounds_by="cv", refit="none"), training)
        to_stderr(plan.render())
        say_of_gains(opened, plan.parameters.gain)
        progress = TrainingProgress(plan.parameters.n_rounds, n_trainings=parameters.folds, log_every=log_every)
        training = replace(training, on_round=progress.update)
        with compilation_announced(to_stderr), ExitStack() as stack:
            if where.cluster is None:
                stack.enter_context(progress)
                result = cross_validate(opened, plan.parameters, training)
            else:
                cluster = stack.enter_context(open_cluster(where.cluster, to_stderr))
                stack.enter_context(progress)
                result = cross_validate_on_cluster(opened, plan.parameters, training, cluster)
    typer.echo(json.dumps(result.to_dict(), sort_keys=True) if as_json else result.render())
