"""Hyperparameter search: trials sampled from a search space, compared on held-out queries.

Trial 0 has the parameters as they were given; those from 1 on are drawn.  The result of a trial depends only on the
data, its parameters and the code, so the table has the same bytes for any number of workers and after any kill.

Successive halving (Jamieson & Talwalkar 2016) trains many trials for a few rounds, the best of them for more, and so on.  The
resource is boosting rounds, and a trial resumes from what it has, so a rung costs only the new rounds.  Trials that learn slowly look
worse in the first rungs than they are: search very small learning rates at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import ceil
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import BrokenProcessPool

from rankmill.foundation.code_digest import OF_TRAINING, code_digest
from rankmill.foundation.cores import available_cores
from rankmill.foundation.errors import InvalidParameter, WorkerLost
from rankmill.foundation.options import spelled
from rankmill.pipeline.dataset import Dataset
from rankmill.trainer.early_stopping import DEVIANCE, stop_measure
from rankmill.trainer.parameters import TrainParameters, TuneOptions
from rankmill.trainer.presets import choices_line, shape_of_dataset, with_preset
from rankmill.trainer.train_on_dataset import TrainingPlan, plan_of
from rankmill.trainer.training_options import DEFAULT_OPTIONS, TrainingOptions
from rankmill.trainer.tuning.space import Space
from rankmill.trainer.tuning.table import Row, Table
from rankmill.trainer.tuning.trials import TABLE, WINNER, Outcome, Task, TrialStore, run_trial

Search: TypeAlias = Literal["random", "halving"]
SEARCHES: tuple[Search, ...] = get_args(Search)
FORMAT = 1

OnTrial = Callable[[Task, Outcome], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class TunePlan:
    """What a search will do, known before it starts."""

    dataset: Dataset
    parameters: TrainParameters  # of trial 0
    space: Space
    options: TuneOptions
    measure: str
    higher_is_better: bool
    by_folds: bool
    training: TrainingPlan
    choices: str  # of the preset, in words
    training_options: TrainingOptions

    @property
    def workers(self) -> int:
        """Processes that train at once."""
        return min(self.options.workers or available_cores(), self.options.trials + 1)

    def render(self) -> str:
        """Return a line for people, after one with the choices of the preset if there are any."""
        options, rungs = self.options, self.rungs
        how = ", ".join(f"{rung.rounds:,}" for rung in rungs) if len(rungs) > 1 else ""
        each = self.training.bytes_needed * self.workers
        on = f"{self.parameters.folds} folds of the train split" if self.by_folds else "the valid split"
        return (
            f"{self.choices}\n"
            * bool(self.choices)
            + f"{options.trials} random trials of {len(self.space.parts)} parameters, compared by"
            f" {self.measure} on {on}; {self.training.learnt_from};"
            + (
                f" halving by {options.factor} after {how} rounds;"
                if how
                else f" {self.parameters.n_rounds:,} rounds at most;"
            )
            + f" {self.workers} in parallel, about {each / 1e6:,.0f} MB in total without the interpreters"
        )

    @property
    def most_trainings(self) -> int:
        """Number of trainings: trials of all rungs, and repeats."""
        options, left, total = self.options, self.options.trials + 1, 0
        for rung in self.rungs:
            total, left = total + left, rung.kept
        return total + (min(options.best, options.trials + 1) * (options.repeat + 1) if options.repeat else 0)

    @property
    def rungs(self) -> list[Rung]:
        """The steps of successive halving; one if every trial gets all rounds."""
        factor = self.options.factor if self.options.search == "halving" else self.options.trials + 2
        return rungs_of(self.options.trials + 1, self.parameters.n_rounds, factor)


def plan_tuning(
    dataset: Dataset,
    parameters: TrainParameters,
    space: Space,
    options: TuneOptions,
    training_options: TrainingOptions = DEFAULT_OPTIONS,
) -> TunePlan:
    """Plan a search for :func:`tune`, with all its checks.

    Raises
    ------
    InvalidParameter
        The space exceeds the bounds of a parameter, halving is used while rounds are searched, or objectives are compared by
        their own losses.
    TrainingDataRejected, rankmill.foundation.errors.InputError, rankmill.foundation.errors.InputError
        As :func:`rankmill.trainer.train_on_dataset.plan_of`.
    """
    given, parameters = parameters, with_preset(parameters, shape_of_dataset(dataset))
    measure = stop_measure(parameters)
    if measure == DEVIANCE and "objective" in space.parts:
        raise InvalidParameter(
            "losses of different objectives cannot be compared; set stop_metric to a metric such as"
            " ndcg@10, or do not vary objective"
        )
    if options.search == "halving" and "n_rounds" in space.parts:
        raise InvalidParameter(
            f"n_rounds cannot be varied with successive halving, which sets it; use {spelled('search')} random"
        )
    parameters = replace(parameters, stop_metric=str(measure), rounds_by="valid")
    space.check(parameters)
    training = plan_of(dataset, replace(parameters, refit="none"), training_options)
    return TunePlan(
        dataset=dataset,
        parameters=parameters,
        space=space,
        options=options,
        measure=str(measure),
        higher_is_better=measure.higher_is_better,
        by_folds=training.valid_rows == 0,
        training=training,
        choices=choices_line(given, parameters),
        training_options=training_options,
    )


def tune(plan: TunePlan, out: Path, *, fresh: bool = False, on_trial: OnTrial | None = None) -> Table:
    """Search, and write the table of trials and the winner into ``out``; a search that was killed resumes there.

    Parameters
    ----------
    plan
        From :func:`plan_tuning`.
    out
        A folder, created if missing.
    fresh
        Remove another search from there.
    on_trial
        Called as trials are done, in no order.

    Raises
    ------
    InvalidParameter
        ``out`` holds another search, or every trial failed.
    WorkerLost
        A worker was killed from outside.
    """
    parameters, options = plan.parameters, plan.options
    search = _Search(plan, out, fresh, on_trial)
    search.run_rungs()
    if all(outcome.score is None for outcome in search.last.values()):
        raise InvalidParameter(f"every trial failed; the first error: {search.last[0].error}")
    best = [trial for trial in search.ranking()[: options.best] if search.last[trial].score is not None]
    seeds = [parameters.seed, *_other_seeds(parameters.seed, options.repeat)] if options.repeat else []
    repeats = search.outcomes_of([search.task(trial, None, seed) for trial in best for seed in seeds])
    if seeds:  # trials stopped on a lower rung now have all rounds, too
        search.last |= {trial: repeats[trial, parameters.seed] for trial in best}
        search.rung_of |= dict.fromkeys(best, len(plan.rungs) - 1)
    table = Table(
        rows=tuple(
            Row(
                trial=trial,
                values=search.drawn[trial],
                outcome=search.last[trial],
                repeats={seed: repeats[trial, seed] for seed in seeds[1:]} if trial in best else {},
            )
            for trial in search.ranking()
        ),
        parameters=parameters,
        measure=plan.measure,
        higher_is_better=plan.higher_is_better,
        by_folds=plan.by_folds,
        search=options.search,
        dataset_digest=plan.dataset.digest,
    )
    search.store.publish(TABLE, table.to_json().encode() + b"\n")
    search.store.publish(WINNER, table.winner_toml().encode())
    search.store.remove_checkpoints()
    return table


class _Search:
    """A running search: its sampled parameters and outcomes."""

    def __init__(self, plan: TunePlan, out: Path, fresh: bool, on_trial: OnTrial | None) -> None:  # noqa: FBT001
        self._plan, self._out, self._on_trial = plan, out, on_trial
        parameters, options = plan.parameters, plan.options
        facts = {
            "format": FORMAT,
            "dataset": plan.dataset.digest,
            "binspec": plan.dataset.bin_set().binspec,
            "parameters": parameters.stored(),
            "eval_metrics": list(plan.training_options.eval_metrics),
            "space": plan.space.to_dict(),
            "code": code_digest(*OF_TRAINING),
        }
        self.store = TrialStore.begin(out, facts, fresh=fresh)
        self.drawn = [{}, *(plan.space.draw(parameters.seed, trial) for trial in range(1, options.trials + 1))]
        self.last: dict[int, Outcome] = {}  # by trial, on the highest rung that it has reached
        self.rung_of: dict[int, int] = {}

    def task(self, trial: int, rounds: int | None, seed: int) -> Task:
        """Return the task of a trial; ``rounds`` None: all."""
        plan, values = self._plan, self.drawn[trial]
        return Task(
            dataset=plan.dataset.path,
            out=self._out,
            search=self.store.key,
            trial=trial,
            values=values,
            base=plan.parameters,
            seed=seed,
            rounds=values.get("n_rounds", plan.parameters.n_rounds) if rounds is None else rounds,
            by_folds=plan.by_folds,
            options=replace(plan.training_options, n_threads=0 if plan.workers == 1 else 1),
            measure=plan.measure,
        )

    def outcomes_of(self, tasks: Sequence[Task]) -> dict[tuple[int, int], Outcome]:
        """Run the tasks without an outcome; return all outcomes by trial and seed."""
        outcomes, missing = {}, []
        for task in tasks:  # known outcomes need no process
            known = self.store.read(task.name).get(task.rounds)
            if known is None:
                missing.append(task)
            else:
                outcomes[task.trial, task.seed] = self._record(task, known)
        for task, outcome in _run(missing, self._plan.workers):
            outcomes[task.trial, task.seed] = self._record(task, outcome)
        return outcomes

    def run_rungs(self) -> None:
        """Train all trials on the lowest rung, and the best of each rung on the next."""
        plan, seed = self._plan, self._plan.parameters.seed
        rungs = plan.rungs
        left: Sequence[int] = range(plan.options.trials + 1)
        for number, rung in enumerate(rungs):
            rounds = None if len(rungs) == 1 else rung.rounds
            outcomes = self.outcomes_of([self.task(trial, rounds, seed) for trial in left])
            self.last |= {trial: outcomes[trial, seed] for trial in left}
            self.rung_of |= dict.fromkeys(left, number)
            scores = {trial: outcomes[trial, seed].score for trial in left}
            left = surviving(scores, rung, higher_is_better=plan.higher_is_better)
            if not left:
                break

    def ranking(self) -> list[int]:
        """Order trials by the rung reached, the highest first (scores of different rungs are not comparable), then by score."""
        sound = {trial: outcome.score for trial, outcome in self.last.items() if outcome.score is not None}
        by_rung = [
            {trial: sound[trial] for trial in sound if self.rung_of[trial] == rung}
            for rung in range(len(self._plan.rungs))
        ]
        found = [ordered(scores, higher_is_better=self._plan.higher_is_better) for scores in reversed(by_rung)]
        return [trial for part in found for trial in part] + [
            trial for trial in sorted(self.last) if trial not in sound
        ]

    def _record(self, task: Task, outcome: Outcome) -> Outcome:
        if self._on_trial is not None:
            self._on_trial(task, outcome)
        return outcome


def _other_seeds(seed: int, repeat: int) -> Iterable[int]:
    wrapped = (number % 2**63 for number in count(seed + 1))
    return [next(wrapped) for _ in range(repeat)]


def _run(tasks: Sequence[Task], workers: int) -> Iterator[tuple[Task, Outcome]]:
    """Yield every task with its outcome as it is done.

    Each worker is a process that trains with one thread: joblib would run a nested team of threads one after another.
    """
    if workers == 1 or len(tasks) < 2:
        for task in tasks:
            yield task, run_trial(task)
        return
    pool = Parallel(n_jobs=min(workers, len(tasks)), return_as="generator_unordered", batch_size=1)
    try:
        yield from pool(delayed(_run_in_worker)(task) for task in tasks)
    except BrokenProcessPool as error:
        raise WorkerLost(
            f"a worker process was killed, perhaps for lack of memory; use fewer {spelled('workers')}"
            " and run the same command again to resume"
        ) from error


def _run_in_worker(task: Task) -> tuple[Task, Outcome]:
    return task, run_trial(task)


LEAST_ROUNDS = 10  # of the first rung: with fewer, trials differ by chance


@dataclass(frozen=True, slots=True)
class Rung:
    """One step: total rounds of its trials, and how many of them continue."""

    rounds: int
    kept: int


def rungs_of(n_trials: int, n_rounds: int, factor: int) -> list[Rung]:
    """Return the rungs of a search, the last with all rounds.

    A ``factor``-th of the trials continues, rounded down, at least one; rounds grow by ``factor`` from rung to rung.  There are
    as many rungs as possible with a trial left for the last and ``LEAST_ROUNDS`` for the first.

    >>> rungs_of(9, 90, 3)
    [Rung(rounds=10, kept=3), Rung(rounds=30, kept=1), Rung(rounds=90, kept=1)]
    """
    steps = 0
    while n_trials >= factor ** (steps + 1) and n_rounds >= LEAST_ROUNDS * factor ** (steps + 1):
        steps += 1
    rungs, left = [], n_trials
    for step in range(steps, -1, -1):
        kept = max(1, left // factor) if step else left
        rungs.append(Rung(ceil(n_rounds / factor**step), kept))
        left = kept
    return rungs


def ordered(scores: Mapping[int, float | None], *, higher_is_better: bool) -> list[int]:
    """Return the trials, the best score first; of equal ones the first trial, and those that failed last.

    >>> ordered({0: 0.5, 1: None, 2: 0.7, 3: 0.5}, higher_is_better=True)
    [2, 0, 3, 1]
    """

    def key(trial: int) -> tuple[bool, float, int]:
        score = scores[trial]
        return score is None, 0.0 if score is None else -score if higher_is_better else score, trial

    return sorted(scores, key=key)


def surviving(scores: Mapping[int, float | None], rung: Rung, *, higher_is_better: bool) -> Sequence[int]:
    """Return the trials that continue after ``rung``, in their own order; those that failed never do."""
    best = ordered(scores, higher_is_better=higher_is_better)[: rung.kept]
    return sorted(trial for trial in best if scores[trial] is not None)
