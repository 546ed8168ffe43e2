"""The command ``rankmill tune``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankmill.foundation.command_line import AsJson, takes_options
from rankmill.foundation.options import Without, values_of
from rankmill.trainer.parameters import MachineOptions, SpaceOptions, TrainParameters, TuneOptions

if TYPE_CHECKING:
    from rankmill.trainer.tuning.trials import Outcome, Task

app = typer.Typer()


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
    searched: SpaceOptions,
    parameters: TrainParameters,
    options: TuneOptions,
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

    Trials are compared by the stop metric on the valid split or, without one, by its mean over --folds folds of
    the train split. No model is registered; paste the printed section into rankmill.toml. Then evaluate on other queries:
    on these queries the best of many trials looks better than it is.

    Example: rankmill tune web.dataset -o web.tuning --trials 40
    One parameter, by halving: rankmill tune web.dataset -o t --search halving --vary learning_rate=0.02..0.3:log
    """
    from rankmill.foundation.kernels.compiling import FIRST, compilation_announced, kernels_compiled
    from rankmill.pipeline.dataset import Dataset
    from rankmill.trainer.progress import TrialsProgress, note_few_queries
    from rankmill.trainer.training_options import TrainingOptions
    from rankmill.trainer.tuning.search import plan_tuning
    from rankmill.trainer.tuning.search import tune as search_for
    from rankmill.trainer.tuning.space import default_space, parse_vary, read_space, space_of

    varied = parse_vary(searched.vary)
    if searched.space is not None:
        space = read_space(searched.space)
        space = space if not varied else space.but(space_of(varied, "--vary"))
    else:
        space = space_of(varied, "--vary") if varied else default_space(without=_given(context))
    opened = Dataset.open(dataset)
    plan = plan_tuning(opened, parameters, space, options, TrainingOptions(**values_of(machine)))
    typer.echo(plan.render(), err=True)
    note_few_queries(opened, "the best trial")

    def say(line: str) -> None:
        typer.echo(line, err=True)

    if plan.workers > 1 and not kernels_compiled("trainer"):  # worker processes compile for themselves
        say(FIRST)
    with compilation_announced(say), TrialsProgress(plan.most_trainings, log_every=log_every) as progress:

        def show(task: Task, outcome: Outcome) -> None:
            progress.update(task.trial, outcome.score, task.measure, higher_is_better=plan.higher_is_better)

        table = search_for(plan, out, fresh=fresh, on_trial=show)
    typer.echo(table.to_json() if as_json else table.render(), nl=as_json)


def _given(context: typer.Context) -> list[str]:
    """Return the names of the parameters given as options, which are not searched."""
    return [
        name
        for name in context.params
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    ]
