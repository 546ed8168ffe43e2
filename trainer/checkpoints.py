"""Trainings on disk: checkpoints of those that run, so that a killed one resumes, and those that are done.

A checkpoint is a model file of all trees grown, those after the best round too.  Replaying it (:mod:`rankmill.trainer.resuming`) gives
the scores to the last bit, and with them the metrics of every round and the state of early stopping; nothing else is needed.

A finished training is a model file and a record beside it.  The record is the commit point: it is written last, holds the digest of
the model file, and counts only if that is right.  Both kinds of file are named by a key of all that decides the training.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

from rankmill.foundation.code_digest import OF_TRAINING, code_digest
from rankmill.foundation.errors import RankmillError
from rankmill.foundation.records import canonical_json
from rankmill.foundation.storage.publish import write_atomically
from rankmill.pipeline.dataset import Dataset
from rankmill.scorer.forest import Forest
from rankmill.trainer.history import CrossValidation, RoundRecord, TrainingResult, curves_of
from rankmill.trainer.model_facts import intervals_of
from rankmill.trainer.parameters import PRESET, TrainParameters

EVERY = 300.0  # seconds; what a kill costs at most, but for a last round
SUFFIX = ".checkpoint"


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Those of one training: its whole and, where it is cross-validated first, each of its folds.

    Parameters
    ----------
    folder
        Where they are; made at the first.
    key
        What training it is: the same for the same data, parameters and code, of digits and small letters.
    every
        Seconds between two; 0: after every round.
    say
        Called with one line if one cannot be written; the training goes on.
    """

    folder: Path
    key: str
    every: float = EVERY
    say: Callable[[str], object] | None = None

    def of(self, part: str) -> Checkpoint:
        """Return the checkpoint of a part of the training."""
        return Checkpoint(self.folder / f"{self.key}.{part}{SUFFIX}", self.every, self.say)

    def clear(self) -> None:
        """Remove them, and what a kill has left of writing one: what was trained is safe elsewhere."""
        for pattern in (f"{self.key}.*{SUFFIX}", f".{self.key}.*.staging"):
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)


class Checkpoint:
    """That of one boosting run."""

    def __init__(self, path: Path, every: float = EVERY, say: Callable[[str], object] | None = None) -> None:
        self._path, self._every, self._say = path, every, say
        self._last = time.monotonic()
        self._rounds = 0  # that are in the file

    def read(self) -> Forest | None:
        """Return what is there; None if nothing is, or something that is no sound model."""
        try:
            forest = Forest.from_bytes(self._path.read_bytes(), str(self._path))
        except (OSError, RankmillError):
            return None
        self._rounds = forest.n_rounds
        return forest

    def is_due(self) -> bool:
        """Whether it is time for the next one."""
        return time.monotonic() - self._last >= self._every

    def write(self, rounds: int, forest: Callable[[], Forest]) -> None:
        """Replace what is there by a forest of more ``rounds``, which is asked for only if it is one."""
        if rounds > self._rounds:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._path, forest().to_bytes())
                self._rounds = rounds
            except OSError as error:  # the training itself is worth more than what it writes aside
                if self._say is not None:
                    self._say(f"no checkpoint was written: {error}")
        self._last = time.monotonic()


FORMAT = 1
_MODEL, _FACTS = ".rankmill", ".json"
_KEY_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Trained:
    """A training that is done, and the intervals of its metrics by split."""

    result: TrainingResult
    intervals: Mapping[str, Mapping[str, Sequence[float]]]

    @classmethod
    def of(cls, result: TrainingResult) -> Trained:
        """Take what a training has returned."""
        return cls(result, intervals_of(result.by_query))


def training_key(
    dataset: Dataset, parameters: TrainParameters, eval_metrics: Sequence[str] = (), base_model: str | None = None
) -> str:
    """Return the sha256 of what decides a training and its history: data, bins, parameters, base model, metrics, code."""
    facts = {
        "format": FORMAT,
        "dataset": dataset.digest,
        "binspec": dataset.bin_set().binspec,
        "meaning": dataset.manifest.meaning.model_dump(mode="json"),
        "max_grade": dataset.max_grade,
        "parameters": {**parameters.as_dict(), "preset": PRESET},
        "eval_metrics": list(eval_metrics),
        "base_model": base_model,
        "code": code_digest(*OF_TRAINING),
    }
    return hashlib.sha256(canonical_json(facts)).hexdigest()


@dataclass(frozen=True, slots=True)
class KeptTrainings:
    """A folder of them."""

    folder: Path

    def read(self, key: str) -> Trained | None:
        """Return the training ``key``; None if it is not there whole."""
        try:
            told = json.loads((self.folder / f"{key}{_FACTS}").read_bytes())
            data = (self.folder / f"{key}{_MODEL}").read_bytes()
            if told["format"] != FORMAT or told["sha256"] != hashlib.sha256(data).hexdigest():
                return None
            return _trained(told, Forest.from_bytes(data, key))
        except (OSError, ValueError, KeyError, TypeError, RankmillError):
            return None

    def write(self, key: str, trained: Trained) -> None:
        """Keep a training under ``key``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        result, data = trained.result, trained.result.forest.to_bytes()
        cv = result.cross_validation
        told = {
            "format": FORMAT,
            "sha256": hashlib.sha256(data).hexdigest(),
            "best_round": result.best_round,
            "curves": result.curves(),
            "intervals": trained.intervals,
            "cross_validation": None
            if cv is None
            else {
                "stop_metric": cv.stop_metric,
                "best_round": cv.best_round,
                "folds": [curves_of(history) for history in cv.histories],
            },
        }
        write_atomically(self.folder / f"{key}{_MODEL}", data)
        # keys stay in their order: the first metric is the one that training stops by
        write_atomically(self.folder / f"{key}{_FACTS}", json.dumps(told, allow_nan=False).encode() + b"\n")

    def remove(self, keys: Collection[str]) -> None:
        """Let go of the trainings ``keys``."""
        for key in keys:
            for suffix in (_FACTS, _MODEL):
                (self.folder / f"{key}{suffix}").unlink(missing_ok=True)

    def remove_others(self, keys: Collection[str]) -> None:
        """Let go of all trainings but ``keys``, of their checkpoints, and of what kills have left; nobody may be writing here."""
        if not self.folder.is_dir():
            return
        for path in self.folder.iterdir():
            of_whom = path.name.removeprefix(".")[:_KEY_LENGTH]
            left_behind = path.name.startswith(".") and path.name.endswith(".staging")
            if _is_key(of_whom) and (left_behind or of_whom not in keys):
                path.unlink(missing_ok=True)


def _is_key(name: str) -> bool:
    return len(name) == _KEY_LENGTH and set(name) <= set("0123456789abcdef")


def _trained(told: Mapping[str, Any], forest: Forest) -> Trained:
    cv = told["cross_validation"]
    result = TrainingResult(
        forest=forest,
        best_round=told["best_round"],
        history=_history(told["curves"]),
        cross_validation=None
        if cv is None
        else CrossValidation(
            histories=tuple(map(_history, cv["folds"])), stop_metric=cv["stop_metric"], best_round=cv["best_round"]
        ),
    )
    return Trained(result, told["intervals"])


def _history(curves: Mapping[str, Any]) -> tuple[RoundRecord, ...]:
    sets: Mapping[str, Mapping[str, Sequence[float | None]]] = curves["metrics"]
    oob = curves.get("oob_improvement")
    n_rounds = len(next(iter(next(iter(sets.values())).values())))
    return tuple(
        RoundRecord(
            i + 1,
            {
                name: {metric: nan if (value := values[i]) is None else value for metric, values in metrics.items()}
                for name, metrics in sets.items()
            },
            None if oob is None else oob[i],
        )
        for i in range(n_rounds)
    )
