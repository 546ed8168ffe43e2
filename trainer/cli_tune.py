"""The commands ``rankmill tune`` and ``rankmill select-features``."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankmill.foundation.command_line import AsJson, Overwrite, given_names, takes_options
from rankmill.foundation.options import Without, values_of
from rankmill.trainer.nets.options import FROM, NET, SHARED, ModelOptions, NetOptions
from rankmill.trainer.options import CheckpointOptions, MachineOptions, SearchOptions, SelectOptions
from rankmill.trainer.parameters import TrainParameters

if TYPE_CHECKING:
    from rankmill.trainer.tuning.trials import Outcome, Task

app = typer.Typer()

Kind = Annotated[ModelOptions, Without(*SHARED, *FROM)]


@app.command()
@takes_options
def tune(
    *,
    context: typer.Context,
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder of a binned dataset.")],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", file_okay=False, help="Folder for the trials. A killed search resumes from it."),
    ],
    search: SearchOptions,
    parameters: TrainParameters,
    kind: Kind,
    machine: Annotated[MachineOptions, Without("n_threads")],
    log_every: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Log a line on stderr after every N trials; 0: show no progress. Default: a bar on a"
            " terminal, elsewhere a line about every 10 seconds.",
            show_default=False,
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the earlier search in OUT and start over.")] = False,
    as_json: AsJson = False,
) -> None:
    """Search for the training parameters that perform best on held-out queries.

    Trials are compared by the stop metric, by cross-validation if there are few queries, else on the valid split. On
    these queries the best of many trials looks better than it is; the last lines say by how much. If nothing is left of
    the gain, the options as given win. No model is registered: rankmill train --params OUT/winner.toml does it.

    Example: rankmill tune web.dataset -o web.tuning --minutes 10
    One parameter: rankmill tune web.dataset -o t --trials 12 --vary learning_rate=0.02..0.3:log
    Neural nets: rankmill tune web.dataset -o nets.tuning --minutes 10 --model net
    Several machines: rankmill tune web.dataset -o web.tuning --minutes 10 --cluster tcp://10.0.0.5:8786
    """
    begun = time.monotonic()
    from rankmill.foundation.cluster.workers import open_cluster
    from rankmill.foundation.kernels.compiling import FIRST, compilation_announced, kernels_compiled
    from rankmill.pipeline.dataset.dataset import Dataset
    from rankmill.trainer.progress import TrialsProgress, note_few_queries, say_of_gains
    from rankmill.trainer.training_options import TrainingOptions
    from rankmill.trainer.tuning.search import plan_tuning
    from rankmill.trainer.tuning.search import tune as search_for
    from rankmill.trainer.tuning.space import Space, parse_vary, read_space, space_of

    varied = parse_vary(search.searched.vary)
    space: Space | None
    if search.searched.space is not None:
        space = read_space(search.searched.space, kind.model)
        space = space if not varied else space.but(space_of(varied, "--vary", kind.model))
    else:
        space = space_of(varied, "--vary", kind.model) if varied else None
    opened = Dataset.open(dataset)
    training = TrainingOptions(**values_of(machine))
    options: TrainParameters | NetOptions = parameters
    if kind.model == NET:
        options = kind.net_options(parameters, "folds")
    else:
        kind.check_trees()
    plan = plan_tuning(opened, options, space, search.how, training, fixed=given_names(context), folds=parameters.folds)

    def say(line: str) -> None:
        typer.echo(line, err=True)

    with ExitStack() as stack:
        cluster = None
        if search.where.cluster is not None:
            cluster = stack.enter_context(open_cluster(search.where.cluster, say))
            plan = replace(plan, cluster_workers=cluster.size)
        say(plan.render())
        say_of_gains(opened, options.gain, say)
        if not plan.by_folds:
            note_few_queries(opened, "the best trial")
        if plan.workers > 1 and not kernels_compiled("trainer"):  # worker processes compile for themselves
            say(FIRST)
        stack.enter_context(compilation_announced(say))
        progress = stack.enter_context(TrialsProgress(plan.most_trainings, log_every=log_every))

        def show(task: Task, outcome: Outcome) -> None:
            progress.update(task.trial, outcome.score, task.measure, higher_is_better=plan.higher_is_better)

        table = search_for(plan, out, fresh=fresh, on_trial=show, begun=begun, cluster=cluster)
    typer.echo(table.to_json() if as_json else table.render(), nl=as_json)


@app.command("select-features")
@takes_options
def select_features(
    *,
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder of a binned dataset.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", file_okay=False, help="Folder for features.txt, selection.json and model.rankmill."
        ),
    ],
    rules: SelectOptions,
    parameters: Annotated[TrainParameters, Without("rounds_by", "holdout_fraction", "keep_rounds", "refit", "folds")],
    machine: Annotated[CheckpointOptions, Without("eval_metrics", "naive_beside")],
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Find a small set of features that ranks the valid split about as well as all of them.

    Train, permute each feature within the queries of the valid split to see how much of the stop metric depends on it,
    drop those that matter least, and train again. The recommended set is the smallest within --tolerance of the best.
    The valid split has chosen it, so measure the model on the test split.

    Example: rankmill select-features web.dataset -o web.selection --metric ndcg@10
    The model: rankmill models register web.selection/model.rankmill --name web
    """
    from rankmill.foundation.errors import InputError
    from rankmill.foundation.kernels.compiling import compilation_announced
    from rankmill.foundation.records import to_line
    from rankmill.foundation.storage.publish import write_atomically
    from rankmill.pipeline.dataset.dataset import Dataset
    from rankmill.trainer.candidates.feature_selection import select_features as select
    from rankmill.trainer.progress import note_few_queries, say_of_gains, to_stderr
    from rankmill.trainer.training_options import TrainingOptions

    record = out / "selection.json"
    if record.exists() and not overwrite:
        raise InputError(f"{record}: exists already; choose another folder, or replace it with --overwrite")
    opened = Dataset.open(dataset)
    note_few_queries(opened, "the selection")
    say_of_gains(opened, parameters.gain)
    with compilation_announced(to_stderr):
        found = select(opened, parameters, rules, TrainingOptions(**values_of(machine), on_message=to_stderr))
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "features.txt", "".join(f"{name}\n" for name in found.features).encode())
    write_atomically(out / "model.rankmill", found.forest.to_bytes())
    write_atomically(record, to_line(found.to_dict()).encode() + b"\n")
    typer.echo(to_line(found.to_dict()) if as_json else found.render())
