"""One trial of a search: a training with sampled parameters and its score on held-out queries, stored in a file.

A search is a folder with one file per trial, each replaced atomically.  ``search.json`` says which search it is; a
folder of another search is refused.  A damaged file is ignored.  No file holds a time or a path, so a search that was
killed and resumed leaves the same files as an uninterrupted one, for any number of workers.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

from rankmill.foundation.errors import InputError, IntegrityError, InvalidParameter, RankmillError, TrainingDataRejected
from rankmill.foundation.options import spelled
from rankmill.foundation.records import as_json, canonical_json, from_json, left_out, other_format
from rankmill.foundation.storage.publish import write_atomically
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.scorer.metrics.per_query import mean_of
from rankmill.trainer.rounds.checkpoints import Checkpoints
from rankmill.trainer.rounds.training_result import RoundRecord
from rankmill.trainer.training_options import OnRound, TrainingOptions
from rankmill.trainer.tuning.searched import Searched

SEARCH, TRIALS, CHECKPOINTS, TABLE, WINNER = "search.json", "trials", "checkpoints", "table.json", "winner.toml"
MOST_WORDS = 300  # maximum characters of an error
DECIMALS = 6  # of the values of queries


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a training of a trial; ``error`` says why it failed.

    ``by_query`` has the measure of each held-out query to 6 decimals, the same queries for every trial with a seed;
    None: the query has no value.  It is left out for a measure that is not the plain mean over queries.
    """

    score: float | None = left_out()
    best_round: int | None = left_out()
    trained: int | None = left_out()
    metrics: Mapping[str, float] | None = left_out()
    by_query: tuple[float | None, ...] | None = left_out()
    note: str | None = left_out()  # that no tree has a split
    error: str | None = left_out()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFile:
    """A training of a trial: the sampled values and the outcome."""

    search: str
    trial: int
    parameters: Mapping[str, Any]
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task of a worker, in plain values that can be sent to a process."""

    dataset: Path
    digest: str  # of the dataset
    out: Path
    search: str  # the key of the search
    trial: int
    values: Mapping[str, Any]  # sampled
    base: Searched  # updated with ``values``; the result may be invalid
    seed: int
    by_folds: bool
    options: TrainingOptions
    measure: str
    deadline: float | None = None  # seconds of the ``clock``
    clock: Callable[[], float] = time.monotonic  # time.time for several machines, which share no other

    @property
    def name(self) -> str:
        """The name of its file; the seed is the second part if it is a repeat."""
        return f"{self.trial:05d}-{self.seed}"


class TrialStore:
    """The trials of the search ``key`` in ``folder``."""

    def __init__(self, folder: Path, key: str) -> None:
        self._folder, self._key = folder, key

    @classmethod
    def begin(cls, folder: Path, facts: Mapping[str, Any], *, fresh: bool = False) -> TrialStore:
        """Open ``folder`` for the search with these ``facts``, and resume it if it has begun.

        Raises
        ------
        InvalidParameter
            The folder holds another search and ``fresh`` is false, or it holds something else.
        """
        key = sha256(canonical_json(facts)).hexdigest()
        path, data = folder / SEARCH, canonical_json({"key": key, **facts}) + b"\n"
        if folder.exists() and not folder.is_dir():
            raise InvalidParameter(f"{folder}: expected a folder for the search, found a file")
        there = path.read_bytes() if path.is_file() else None
        if there is None and folder.is_dir() and any(not _is_staged(each) for each in folder.iterdir()):
            raise InvalidParameter(f"{folder}: contains other files; choose another folder")
        if there is not None and (there != data or fresh):
            if not fresh:
                if (number := _format_in(there)) != facts["format"]:
                    cure = f"discard it with {spelled('fresh')}"
                    raise InvalidParameter(other_format(f"{folder}: search", number, facts["format"], cure))
                raise InvalidParameter(
                    f"{folder}: contains a search with other data, parameters, space, seed or code;"
                    f" choose another folder, or discard it with {spelled('fresh')}"
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
        """The key of the search."""
        return self._key

    def read(self, task: Task) -> Outcome | None:
        """Return the outcome of a task, if it is known."""
        try:
            file = from_json(TrialFile, self._path(task).read_bytes(), task.name)
        except (OSError, IntegrityError):
            return None
        return file.outcome if file.search == self._key else None

    def write(self, task: Task, outcome: Outcome) -> None:
        """Write the outcome of a task."""
        file = TrialFile(search=self._key, trial=task.trial, parameters=as_json(task.values), outcome=outcome)
        write_atomically(self._path(task), canonical_json(as_json(file)) + b"\n")

    def publish(self, name: str, data: bytes) -> None:
        """Write a result of the search."""
        write_atomically(self._folder / name, data)

    def remove_checkpoints(self) -> None:
        """Remove the checkpoints of trials."""
        shutil.rmtree(self._folder / CHECKPOINTS, ignore_errors=True)

    def _path(self, task: Task) -> Path:
        return self._folder / TRIALS / f"{task.name}.json"


def _format_in(data: bytes) -> object:
    """Return the format of a ``search.json``; None if it is none."""
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found.get("format") if isinstance(found, dict) else None


def _is_staged(path: Path) -> bool:
    """Return whether ``path`` is a partial search.json that a killed search left."""
    return path.name.startswith(f".{SEARCH}.")


class OutOfTime(BaseException):
    """The deadline of a task is over; like an interrupt, it leaves a checkpoint of the rounds that are whole."""


def _until(deadline: float, clock: Callable[[], float], then: OnRound | None) -> OnRound:
    """Return a listener that raises OutOfTime after the ``deadline`` of the ``clock``.

    It does so after the first round that ends later.
    """

    def after_round(record: RoundRecord) -> bool | None:
        if clock() >= deadline:
            raise OutOfTime
        return None if then is None else then(record)

    return after_round


def run_trial(task: Task) -> Outcome | None:
    """Run the task, write its outcome to the trial's file, and return it; a known outcome is only read.

    A trial that cannot be trained is an outcome, too; errors of the machine or of the dataset's files are raised.
    None: the deadline has come first.
    """
    store = TrialStore(task.out, task.search)
    known = store.read(task)
    if known is not None:
        return known
    if task.deadline is not None:
        if task.clock() >= task.deadline:
            return None
        task = replace(
            task, options=replace(task.options, on_round=_until(task.deadline, task.clock, task.options.on_round))
        )
    try:
        outcome = _trained(task)
    except OutOfTime:
        return None
    except Exception as error:  # an invalid combination is an outcome, and does not end the search
        of_combination = isinstance(error, InvalidParameter | TrainingDataRejected)
        if not of_combination and isinstance(error, OSError | MemoryError | RankmillError):
            raise  # of the machine or the dataset: a retry may succeed
        words = " ".join(f"{type(error).__name__}: {error}".split())
        outcome = Outcome(error=words[:MOST_WORDS])
    store.write(task, outcome)
    Checkpoints(task.out / CHECKPOINTS, task.name).clear()
    return outcome


def _trained(task: Task) -> Outcome:
    dataset = Dataset.open(task.dataset)
    if dataset.digest != task.digest:  # of another machine, or replaced since
        raise InputError(f"{task.dataset}: is another dataset than that of the search")
    found = task.base.trained(
        dataset, {**task.values, "seed": task.seed}, task.measure, task.options,
        Checkpoints(task.out / CHECKPOINTS, task.name), by_folds=task.by_folds,
    )  # fmt: skip
    by_query, metrics = found.by_query, found.metrics
    if by_query is not None:
        metrics = {**metrics, task.measure: mean_of(by_query)}  # of the folds: over queries
    metrics = {name: value for name, value in metrics.items() if isfinite(value)}
    if task.measure not in metrics:
        return Outcome(error=f"{task.measure} has no value on these queries")
    return Outcome(
        score=metrics[task.measure],
        best_round=found.best_round,
        trained=found.trained,
        metrics=metrics,
        note=found.note or None,
        by_query=None
        if by_query is None
        else tuple(round(value, DECIMALS) if isfinite(value) else None for value in by_query.tolist()),
    )
