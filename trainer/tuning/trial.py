"""One trial: a training with the parameters that were drawn, and how good it is on queries that it has not seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from rankmill.foundation.errors import RankmillError
from rankmill.pipeline.dataset import Dataset
from rankmill.trainer.checkpoint import EVERY, Checkpoints
from rankmill.trainer.history import CrossValidation, TrainingResult
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.training import cross_validate, train
from rankmill.trainer.tuning.store import Outcome, TrialStore

MOST_WORDS = 300  # of what a failure says


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a worker is to do; all of it plain values, so that it can be sent to a process."""

    dataset: Path
    out: Path
    search: str  # the key of the search
    trial: int
    values: dict[str, Any]  # that were drawn
    base: TrainParameters  # which they replace; together they may be none
    seed: int
    rounds: int
    by_folds: bool
    eval_metrics: tuple[str, ...]
    n_threads: int
    bin_cache: Path | None
    pool_bytes: int
    measure: str

    @property
    def name(self) -> str:
        """What its file is called: the seed is the second part where it is repeated."""
        return f"{self.trial:05d}-{self.seed}"

    @property
    def parameters(self) -> TrainParameters:
        """Those to train with; InvalidParameter if they do not go together."""
        return replace(self.base, **{**self.values, "seed": self.seed, "n_rounds": self.rounds})


def run_trial(task: Task) -> Outcome:
    """Do what is asked, write it to the trial's file, and return it; what was done before is only read.

    A trial that cannot be trained is an outcome as well; what says something of the machine or the dataset's files is raised.
    """
    store = TrialStore(task.out, task.search)
    known = store.read(task.name).get(task.rounds)
    if known is not None:
        return known
    checkpoints = Checkpoints(task.out / "checkpoints", task.name, EVERY)
    try:
        outcome = _of_folds(_validated(task, checkpoints), task) if task.by_folds else _of_split(task, checkpoints)
    except (OSError, MemoryError, RankmillError):  # of the machine or the dataset: may be otherwise next time
        raise
    except Exception as error:  # a combination that cannot be is worth knowing, and no reason to end the search
        words = " ".join(f"{type(error).__name__}: {error}".split())
        outcome = Outcome(rounds=task.rounds, error=words[:MOST_WORDS])
    store.write(task.name, outcome, trial=task.trial, values=task.values)
    return outcome


def _of_split(task: Task, checkpoints: Checkpoints) -> Outcome:
    result: TrainingResult = train(
        Dataset.open(task.dataset),
        task.parameters,
        eval_metrics=task.eval_metrics,
        n_threads=task.n_threads,
        bin_cache=task.bin_cache,
        pool_bytes=task.pool_bytes,
        checkpoints=checkpoints,
    )
    return _outcome(
        task, result.best_round, len(result.history), result.history[result.best_round - 1].metrics["valid"]
    )


def _validated(task: Task, checkpoints: Checkpoints) -> CrossValidation:
    return cross_validate(
        Dataset.open(task.dataset),
        replace(task.parameters, rounds_by="cv"),
        eval_metrics=task.eval_metrics,
        n_threads=task.n_threads,
        bin_cache=task.bin_cache,
        pool_bytes=task.pool_bytes,
        checkpoints=checkpoints,
    )


def _of_folds(found: CrossValidation, task: Task) -> Outcome:
    means = {measure: found.mean(measure) for measure in found.measures}
    return _outcome(task, found.best_round, len(found.histories[0]), means)


def _outcome(task: Task, best_round: int, trained: int, metrics: Any) -> Outcome:
    told = {name: value for name, value in metrics.items() if isfinite(value)}
    if task.measure not in told:
        return Outcome(rounds=task.rounds, error=f"{task.measure} has no value on these queries")
    return Outcome(rounds=task.rounds, score=told[task.measure], best_round=best_round, trained=trained, metrics=told)
