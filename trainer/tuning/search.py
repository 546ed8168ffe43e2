"""Hyperparameter search: trials sampled from a search space, compared on held-out queries.

Trial 0 has the parameters as they were given.  Trial 1 has the objective of the ranking trees of ``auto-2`` instead, if
the space has it; all others are drawn.  All are trained once, and the best of them,
with trial 0, again with other seeds: by folds that is a cross-validation over other folds.  The outcome of a training
depends only on the data, its parameters and the code. So the table depends only on the number of trials: it has the
same bytes for any number of workers and after any kill.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import ceil
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import BrokenProcessPool

from rankmill.foundation.cluster.duty import stopper
from rankmill.foundation.cluster.workers import Cluster
from rankmill.foundation.code_digest import OF_TRAINING, code_digest
from rankmill.foundation.cores import available_cores
from rankmill.foundation.errors import InvalidParameter, WorkerLost
from rankmill.foundation.options import spelled, spelled_alike
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.trainer.candidates.blend_of_kinds import OBJECTIVE
from rankmill.trainer.data.measured_queries import check_decides
from rankmill.trainer.data.training_rows import read_columns
from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.options import TuneOptions
from rankmill.trainer.parameters import BAYESIAN, FOLDS, USUAL_FOLDS, VALID, TrainParameters
from rankmill.trainer.presets import FEW_QUERIES, choices_line, shape_of_dataset, with_preset
from rankmill.trainer.rounds.early_stopping import DEVIANCE, stop_measure
from rankmill.trainer.rounds.training_result import TRAIN, RoundRecord
from rankmill.trainer.training_options import DEFAULT_OPTIONS, TrainingOptions
from rankmill.trainer.tuning.searched import Searched, SearchedNet, SearchedTrees
from rankmill.trainer.tuning.space import Choices, Space, default_space, default_space_of_nets
from rankmill.trainer.tuning.table import Row, Table
from rankmill.trainer.tuning.trials import CHECKPOINTS, TABLE, WINNER, Outcome, Task, TrialStore, run_trial

FORMAT = 2
USUAL_TRIALS = 30  # where neither trials nor minutes are given

OnTrial = Callable[[Task, Outcome], object]
MayStart = Callable[[int], bool]  # of the number of trainings done


@dataclass(frozen=True, slots=True, kw_only=True)
class TunePlan:
    """What a search will do, known before it starts."""

    dataset: Dataset
    base: Searched  # the options of trial 0
    space: Space
    options: TuneOptions
    measure: str
    higher_is_better: bool
    by_folds: bool
    bytes_needed: int  # by a trial
    learnt_from: str  # in words
    choices: str  # of the preset, in words
    training_options: TrainingOptions
    cluster_workers: int = 0  # which train instead of processes of this machine

    @property
    def trials(self) -> int | None:
        """Number of trials besides trial 0; None: as many as start in time."""
        return self.options.trials or (None if self.options.minutes else USUAL_TRIALS)

    @property
    def with_valid(self) -> bool:
        """Whether folds have the queries of the valid split, too: where the final model learns from them."""
        return self.base.with_valid(by_folds=self.by_folds)

    @property
    def workers(self) -> int:
        """Processes that train at once."""
        workers = self.cluster_workers or self.options.workers or available_cores()
        return workers if self.trials is None else min(workers, self.trials + 1)

    def repeats_of(self, trials: int) -> int:
        """Return the number of trainings with other seeds, of the best of so many drawn trials and of trial 0."""
        return (min(self.options.best, trials) + 1) * self.options.repeat

    @property
    def most_trainings(self) -> int | None:
        """Number of trainings at most; None if only time limits them."""
        return None if self.trials is None else self.trials + 1 + self.repeats_of(self.trials)

    def render(self) -> str:
        """Return a line for people, after one with the choices of the preset if there are any."""
        minutes = self.options.minutes
        number = "as many" if self.trials is None else f"{self.trials:,}"
        limit = f" as fit into {minutes:g} minutes" if minutes else ""
        splits = "train and valid splits together" if self.with_valid else "train split"
        on = f"{self.base.folds} folds of the {splits}" if self.by_folds else "the valid split"
        in_all = f"{self.workers} in parallel, about {self.bytes_needed * self.workers / 1e6:,.0f} MB in total"
        if self.cluster_workers:
            in_all = f"{self.workers} in parallel on the cluster, about {self.bytes_needed / 1e6:,.0f} MB each"
        return (
            f"{self.choices}\n"
            * bool(self.choices)
            + f"{number} random trials of {len(self.space.parts)} parameters{limit}, compared by {self.measure} on "
            f"{on}; {self.learnt_from}; {self.base.most_rounds:,} {self.base.unit}s at most; {in_all} without the "
            "interpreters"
        )


def plan_tuning(
    dataset: Dataset,
    parameters: TrainParameters | NetOptions,
    space: Space | None,
    options: TuneOptions,
    training_options: TrainingOptions = DEFAULT_OPTIONS,
    *,
    fixed: Sequence[str] = (),
    folds: int = USUAL_FOLDS,
) -> TunePlan:
    """Plan a search for :func:`tune`, with all its checks.

    ``space`` None: the default one without the names in ``fixed``.

    ``folds`` are those of nets; parameters of trees have their own.

    Raises
    ------
    InvalidParameter
        The space exceeds the bounds of a parameter, objectives are compared by their own losses, or trials by a valid
        split that the dataset lacks.
    TrainingDataRejected, rankmill.foundation.errors.InputError, rankmill.foundation.errors.InputError
        As :func:`rankmill.trainer.candidates.train_on_dataset.plan_of` or :func:`rankmill.trainer.nets.plan.plan_net`.
    """
    base: Searched
    if isinstance(parameters, NetOptions):
        choices, measure = "", stop_measure(parameters.losses())
        space = space or default_space_of_nets(parameters, fixed)
        base = SearchedNet(options=replace(parameters, stop_metric=str(measure)), folds=folds)
    else:
        given, parameters = parameters, with_preset(parameters, shape_of_dataset(dataset).in_folds())
        choices, measure = choices_line(given, parameters), stop_measure(parameters)
        space = space or _space_of_trees(given, parameters, fixed)
        parameters = replace(parameters, stop_metric=str(measure), rounds_by="valid")
        base = SearchedTrees(options=parameters, members=given.members or 1)
    if measure == DEVIANCE and "objective" in space.parts:
        raise InvalidParameter(
            "losses of different objectives cannot be compared; set stop_metric to a metric such as"
            " ndcg@10, or do not vary objective"
        )
    space.check(base.options)
    has_valid = bool(dataset.queries("valid").n_rows)
    if options.compare_by == VALID and not has_valid:
        raise InvalidParameter(
            f"{dataset.path}: found no valid split for {spelled('compare_by')} valid; set it to folds"
        )
    by_folds = (
        not has_valid
        or (options.compare_by or (FOLDS if len(dataset.queries("train")) <= FEW_QUERIES else VALID)) == FOLDS
    )
    losses = parameters.losses() if isinstance(parameters, NetOptions) else parameters
    split = TRAIN if by_folds else VALID
    check_decides(
        read_columns(dataset, split, losses), measure, losses, {"": dataset.max_grade, **dataset.goals}, split
    )
    bytes_needed, learnt_from = base.plan(dataset, space, training_options, by_folds=by_folds)
    return TunePlan(
        dataset=dataset,
        base=base,
        space=space,
        options=options,
        measure=str(measure),
        higher_is_better=measure.higher_is_better,
        by_folds=by_folds,
        bytes_needed=bytes_needed,
        learnt_from=learnt_from,
        choices=choices,
        training_options=training_options,
    )


def _space_of_trees(given: TrainParameters, completed: TrainParameters, fixed: Sequence[str]) -> Space:
    small = completed.grow == "oblivious" and completed.bootstrap == BAYESIAN  # as presets choose for few queries
    if given.monotone or given.max_leaves is not None or given.criterion == "ole":  # not for oblivious trees
        fixed = [*fixed, "grow"]
    return default_space(small_trees=small, without=fixed)


def tune(
    plan: TunePlan,
    out: Path,
    *,
    fresh: bool = False,
    on_trial: OnTrial | None = None,
    clock: Callable[[], float] = time.monotonic,
    begun: float | None = None,
    cluster: Cluster | None = None,
) -> Table:
    """Search, and write the table of trials and the winner into ``out``.

    A search that was killed or ran out of time resumes there.

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
    clock
        Seconds since any time, for ``minutes``.
    begun
        When they began, by the clock; None: now.
    cluster
        Its workers train the trials, with the same result; they must see the dataset and ``out``.
        ``plan.cluster_workers`` is its size.

    Raises
    ------
    InvalidParameter
        ``out`` holds another search, every trial failed, or none ended in time.
    WorkerLost
        A worker was killed from outside; of a cluster, all workers.
    InputError, ClusterUnavailable
        The cluster cannot do it: see :meth:`rankmill.foundation.cluster.workers.Cluster.run`.
    """
    begun = clock() if begun is None else begun
    search = _Search(plan, out, fresh, on_trial, cluster)
    seed, options, limit = plan.base.options.seed, plan.options, 60.0 * plan.options.minutes
    if limit:
        search.deadline = search.clock() + limit - (clock() - begun)
    each = 0.0  # seconds of a training

    def in_time(done: int) -> bool:
        """Whether another training as long as those before ends in time, and the repeats after it."""
        nonlocal each
        spent = clock() - begun
        if not limit or not done:
            return not limit or spent < limit
        each = spent * plan.workers / done
        return spent + (1 + ceil(plan.repeats_of(done) / plan.workers)) * each <= limit  # one after another

    numbers = count() if plan.trials is None else range(plan.trials + 1)
    found = search.outcomes_of((search.task(trial, seed) for trial in numbers), in_time)
    first: dict[int, Outcome] = {}
    while (len(first), seed) in found:  # a search out of time may have done a later trial in an earlier call
        first[len(first)] = found[len(first), seed]
    if not first:
        raise InvalidParameter(
            f"{spelled('minutes')} {options.minutes:g}: no trial ended in time; give more {spelled('minutes')}, or "
            f"ask for fewer {plan.base.unit}s" + "; the same command resumes" * search.can_go_on
        )
    ranking = ordered({trial: first[trial].score for trial in first}, higher_is_better=plan.higher_is_better)
    if first[ranking[0]].score is None:
        raise InvalidParameter(f"every trial failed; the first error: {first[0].error}")
    best = [trial for trial in ranking if trial and first[trial].score is not None][: options.best]
    again = [0, *best] if best and first[0].score is not None else best
    seeds = [number % 2**63 for number in range(seed + 1, seed + 1 + options.repeat)]
    repeats = search.outcomes_of(
        (search.task(trial, other) for other in seeds for trial in again),
        lambda _: not limit or clock() - begun + each <= limit,
    )
    seeds = [other for other in seeds if all((trial, other) in repeats for trial in again)]  # else they are not alike
    table = Table(
        rows=tuple(
            Row(
                trial=trial,
                values=search.drawn(trial),
                outcome=first[trial],
                repeats={other: repeats[trial, other] for other in seeds if trial in again},
            )
            for trial in ranking
        ),
        base=plan.base,
        measure=plan.measure,
        higher_is_better=plan.higher_is_better,
        by_folds=plan.by_folds,
        with_valid=plan.with_valid,
        dataset_digest=plan.dataset.digest,
    )
    search.store.publish(TABLE, table.to_json().encode() + b"\n")
    search.store.publish(WINNER, table.winner_toml().encode())
    if not search.out_of_time:  # else the next call resumes there
        search.store.remove_checkpoints()
    return table


class _Search:
    """A running search."""

    deadline: float | None = None  # of all tasks, by the ``clock``
    out_of_time = False  # whether a task has not ended before

    def __init__(
        self,
        plan: TunePlan,
        out: Path,
        fresh: bool,  # noqa: FBT001
        on_trial: OnTrial | None,
        cluster: Cluster | None,
    ) -> None:
        self._plan, self._out, self._on_trial, self._cluster = plan, out, on_trial, cluster
        self.clock = time.monotonic if cluster is None else time.time
        facts = {
            "format": FORMAT,
            "dataset": plan.dataset.digest,
            **plan.base.facts(plan.dataset),
            "compare_by": FOLDS if plan.by_folds else VALID,
            "eval_metrics": list(plan.training_options.eval_metrics),
            "space": plan.space.to_dict(),
            "code": code_digest(*OF_TRAINING),
        }
        self.store = TrialStore.begin(out, facts, fresh=fresh)

    @property
    def can_go_on(self) -> bool:
        """Whether trainings that have not ended left checkpoints."""
        return any((self._out / CHECKPOINTS).glob("*"))

    def drawn(self, trial: int) -> dict[str, Any]:
        """Return the sampled values of a trial; none of trial 0."""
        base, space = self._plan.base.options, self._plan.space
        objectives = space.parts.get("objective")
        ranking = isinstance(objectives, Choices) and OBJECTIVE in objectives.values
        if trial == 1 and ranking and base.objective != OBJECTIVE:
            return {"objective": OBJECTIVE}
        return space.draw(base.seed, trial) if trial else {}

    def task(self, trial: int, seed: int) -> Task:
        """Return the task of a trial with a seed."""
        plan, machine = self._plan, self._plan.training_options
        return Task(
            dataset=plan.dataset.path.absolute(),  # a worker may have another current folder
            digest=plan.dataset.digest,
            out=self._out.absolute(),
            search=self.store.key,
            trial=trial,
            values=self.drawn(trial),
            base=plan.base,
            seed=seed,
            by_folds=plan.by_folds,
            options=replace(machine, n_threads=0 if plan.workers == 1 else 1),
            measure=plan.measure,
            deadline=self.deadline,
            clock=self.clock,
        )

    def outcomes_of(
        self, tasks: Iterable[Task], may_start: MayStart = lambda _: True
    ) -> dict[tuple[int, int], Outcome]:
        """Return outcomes by trial and seed.

        Known outcomes are reused; other tasks are run while they ``may_start``.
        """
        known: list[tuple[Task, Outcome]] = []
        outcomes: dict[tuple[int, int], Outcome] = {}

        def missing() -> Iterator[Task]:
            for task in tasks:
                found = self.store.read(task)
                if found is not None:  # needs no process
                    known.append((task, found))
                elif may_start(len(outcomes)):
                    yield task
                else:
                    return

        for task, outcome in self._run(missing()):
            if outcome is None:
                self.out_of_time = True
            else:
                outcomes[task.trial, task.seed] = self._record(task, outcome)
        return outcomes | {(task.trial, task.seed): self._record(task, outcome) for task, outcome in known}

    def _run(self, tasks: Iterator[Task]) -> Iterator[tuple[Task, Outcome | None]]:
        if self._cluster is None:
            return _run(tasks, self._plan.workers)
        checkpoints = self._out / CHECKPOINTS
        checkpoints.mkdir(exist_ok=True)
        return self._cluster.run(_run_on_cluster, tasks, checkpoints)

    def _record(self, task: Task, outcome: Outcome) -> Outcome:
        if self._on_trial is not None:
            self._on_trial(task, outcome)
        return outcome


def _run(tasks: Iterator[Task], workers: int) -> Iterator[tuple[Task, Outcome | None]]:
    """Yield every task with its outcome as it is done; a task is taken when a worker is free.

    Each worker is a process that trains with one thread: joblib would run a nested team of threads one after another.
    """
    if workers == 1:
        for task in tasks:
            yield task, run_trial(task)
        return
    work = delayed(spelled_alike(_run_in_worker))
    pool = Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1, pre_dispatch="n_jobs")
    try:
        yield from pool(work(task) for task in tasks)  # joblib takes later tasks in threads of its own
    except BrokenProcessPool as error:
        raise WorkerLost(
            f"a worker process was killed, perhaps for lack of memory; use fewer {spelled('workers')}"
            " and run the same command again to resume"
        ) from error


def _run_in_worker(task: Task) -> tuple[Task, Outcome | None]:
    return task, run_trial(task)


def _run_on_cluster(task: Task, threads: int) -> Outcome | None:
    """Run the task, or stop when its result is no longer needed."""
    stop_if_unwanted = stopper()

    def after_round(_: RoundRecord) -> None:
        stop_if_unwanted()

    return run_trial(replace(task, options=replace(task.options, n_threads=threads, on_round=after_round)))


def ordered(scores: Mapping[int, float | None], *, higher_is_better: bool) -> list[int]:
    """Return the trials, the best score first; of equal ones the first trial, and those that failed last.

    >>> ordered({0: 0.5, 1: None, 2: 0.7, 3: 0.5}, higher_is_better=True)
    [2, 0, 3, 1]
    """

    def key(trial: int) -> tuple[bool, float, int]:
        score = scores[trial]
        return score is None, 0.0 if score is None else -score if higher_is_better else score, trial

    return sorted(scores, key=key)
