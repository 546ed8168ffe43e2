"""One trial of a search: a training with the parameters that were drawn, and its outcome on queries that it has not seen, kept in a file.

A search is a folder with one file a trial, each replaced in one step.  ``search.json`` says which search it is; a folder of another
one is refused.  A damaged file counts as none.  No file holds a time or a path, so a search that was killed leaves what an
undisturbed one does, for any number of workers.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from rankmill.foundation.errors import InvalidParameter, RankmillError
from rankmill.foundation.records import canonical_json
from rankmill.foundation.storage.publish import write_atomically
from rankmill.pipeline.dataset import Dataset
from rankmill.trainer.checkpoints import EVERY, Checkpoints
from rankmill.trainer.history import CrossValidation, TrainingResult
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.training import cross_validate, train

_STRICT = ConfigDict(extra="forbid", frozen=True)
SEARCH, TRIALS, CHECKPOINTS, TABLE, WINNER = "search.json", "trials", "checkpoints", "table.json", "winner.toml"


class Outcome(BaseModel):
    """What a trial has come to with so many rounds at most; ``error`` says why to nothing."""

    model_config = _STRICT

    rounds: int
    score: float | None = None
    best_round: int | None = None
    trained: int | None = None
    metrics: dict[str, float] = {}
    error: str | None = None


class TrialFile(BaseModel):
    """One trial: what was drawn, and its outcomes, that of the fewest rounds first."""

    model_config = _STRICT

    search: str
    trial: int
    parameters: dict[str, Any]
    outcomes: list[Outcome]


class TrialStore:
    """The trials of the search ``key`` in ``folder``."""

    def __init__(self, folder: Path, key: str) -> None:
        self._folder, self._key = folder, key

    @classmethod
    def begin(cls, folder: Path, facts: Mapping[str, Any], *, fresh: bool = False) -> TrialStore:
        """Take ``folder`` for the search that ``facts`` decide, and go on with what is in it.

        Raises
        ------
        InvalidParameter
            The folder holds another search, and ``fresh`` does not say that it may go, or something else.
        """
        key = sha256(canonical_json(facts)).hexdigest()
        path, data = folder / SEARCH, canonical_json({"key": key, **facts}) + b"\n"
        if folder.exists() and not folder.is_dir():
            raise InvalidParameter(f"{folder}: expected a folder for the search, found a file")
        there = path.read_bytes() if path.is_file() else None
        if there is None and folder.is_dir() and any(not _is_staged(each) for each in folder.iterdir()):
            raise InvalidParameter(f"{folder}: holds other things than a search; name another folder")
        if there is not None and (there != data or fresh):
            if not fresh:
                raise InvalidParameter(
                    f"{folder}: holds a search of other data, parameters, space, seed or code; name another folder, or let"
                    " it go with --fresh"
                )
            for name in (TRIALS, CHECKPOINTS):
                shutil.rmtree(folder / name, ignore_errors=True)
            for name in (TABLE, WINNER):
                (folder / name).unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)  # first: from here on the folder is ours
        (folder / TRIALS).mkdir(exist_ok=True)
        return cls(folder, key)

    @property
    def key(self) -> str:
        """What decides the search."""
        return self._key

    def read(self, name: str) -> dict[int, Outcome]:
        """Return the outcomes of a trial by the rounds that it was given."""
        found = self._file(name)
        return {} if found is None else {each.rounds: each for each in found.outcomes}

    def write(self, name: str, outcome: Outcome, *, trial: int, values: Mapping[str, Any]) -> None:
        """Add an outcome to the file of a trial."""
        outcomes = {**self.read(name), outcome.rounds: outcome}
        file = TrialFile(
            search=self._key,
            trial=trial,
            parameters=dict(values),
            outcomes=[outcomes[rounds] for rounds in sorted(outcomes)],
        )
        data = canonical_json(file.model_dump(mode="json", exclude_defaults=True)) + b"\n"
        write_atomically(self._path(name), data)

    def publish(self, name: str, data: bytes) -> None:
        """Write what the search has come to."""
        write_atomically(self._folder / name, data)

    def forget_checkpoints(self) -> None:
        """Let go of what trials need for going on."""
        shutil.rmtree(self._folder / CHECKPOINTS, ignore_errors=True)

    def _path(self, name: str) -> Path:
        return self._folder / TRIALS / f"{name}.json"

    def _file(self, name: str) -> TrialFile | None:
        try:
            found = TrialFile.model_validate_json(self._path(name).read_bytes())
        except (OSError, ValidationError):
            return None
        return found if found.search == self._key else None


def _is_staged(path: Path) -> bool:
    """Whether a killed search has left it before it had anything else."""
    return path.name.startswith(f".{SEARCH}.")


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
