"""Checkpoints: running trainings, so that a killed one resumes, and finished ones.

A checkpoint is a model file of all trees grown, those after the best round too.  Replaying it
(:mod:`rankmill.trainer.rounds.resuming`) gives the scores to the last bit, and with them the metrics of every round and
the state of early stopping; nothing else is needed.

A finished training is a model file and a record beside it.  The record is the commit point: it is written last, holds
the digest of the model file, and counts only if that matches.  Both kinds of files are named by a key of everything
that determines the training.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rankmill.foundation.code_digest import OF_TRAINING, code_digest
from rankmill.foundation.errors import RankmillError
from rankmill.foundation.records import as_json, canonical_json, from_json
from rankmill.foundation.storage.publish import write_atomically
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.scorer.forest.forest import Forest
from rankmill.trainer.candidates.version_facts import Intervals, intervals_of
from rankmill.trainer.options import CHECKPOINT_SECONDS
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rounds.training_result import CrossValidation, Curves, TrainingResult

SUFFIX = ".checkpoint"
FORMAT = 1  # of finished trainings
_MODEL, _RECORD = ".rankmill", ".json"
_KEY_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints of one training: of all rows and, if it is cross-validated first, of each fold.

    Parameters
    ----------
    folder
        Their folder, created with the first one.
    key
        Identifies the training: equal for equal data, parameters and code; digits and lower-case letters.
    every
        Seconds between two checkpoints; 0: after every round.
    on_message
        Called with one line if one cannot be written; the training continues.
    """

    folder: Path
    key: str
    every: float = CHECKPOINT_SECONDS
    on_message: Callable[[str], object] | None = None

    def of(self, part: str) -> Checkpoint:
        """Return the checkpoint of a part of the training."""
        return Checkpoint(self.folder / f"{self.key}.{part}{SUFFIX}", self.every, self.on_message)

    def within(self, name: str) -> Checkpoints:
        """Return those of one of several trainings, which are removed with these."""
        return replace(self, key=f"{self.key}.{name}")

    def clear(self) -> None:
        """Remove all checkpoints, partial ones included: the result is stored elsewhere."""
        for pattern in (f"{self.key}.*{SUFFIX}", f".{self.key}.*.staging"):
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)


class Checkpoint:
    """The checkpoint of one boosting run."""

    def __init__(
        self, path: Path, every: float = CHECKPOINT_SECONDS, on_message: Callable[[str], object] | None = None
    ) -> None:
        self.path, self._every, self._on_message = path, every, on_message
        self._last = time.monotonic()
        self._rounds = 0  # in the file

    def read(self) -> Forest | None:
        """Return the checkpoint; None if there is none or it is not a valid model."""
        try:
            forest = Forest.from_bytes(self.path.read_bytes(), str(self.path))
        except (OSError, RankmillError):
            return None
        self._rounds = forest.n_rounds
        return forest

    def is_due(self) -> bool:
        """Whether it is time for the next one."""
        return time.monotonic() - self._last >= self._every

    def write(self, rounds: int, data: Callable[[], bytes]) -> None:
        """Replace the checkpoint if ``rounds`` is more than it has; ``data`` is called only then."""
        if rounds > self._rounds:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self.path, data())
                self._rounds = rounds
            except OSError as error:  # a failed checkpoint does not stop the training
                if self._on_message is not None:
                    self._on_message(f"no checkpoint was written: {error}")
        self._last = time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folds:
    """The record of a cross-validation."""

    stop_metric: str
    best_round: int
    folds: tuple[Curves, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """The record of a finished training beside its model file."""

    format: int
    sha256: str  # of the model file
    best_round: int
    curves: Curves
    intervals: Intervals
    cross_validation: _Folds | None


def training_key(
    dataset: Dataset, parameters: TrainParameters, eval_metrics: Sequence[str] = (), base_model: str | None = None
) -> str:
    """Return the sha256 of what determines a training and its history.

    These are data, bins, parameters, base model, metrics and code.
    """
    facts = {
        "format": FORMAT,
        "dataset": dataset.digest,
        "binspec": dataset.bin_set().binspec,
        "meaning": dataset.manifest.meaning.model_dump(mode="json"),
        "max_grade": dataset.max_grade,
        "parameters": parameters.stored(),
        "eval_metrics": list(eval_metrics),
        "base_model": base_model,
        "code": code_digest(*OF_TRAINING),
    }
    return hashlib.sha256(canonical_json(facts)).hexdigest()


@dataclass(frozen=True, slots=True)
class FinishedTrainings:
    """A folder of finished trainings."""

    folder: Path

    def read(self, key: str) -> TrainingResult | None:
        """Return the training ``key``; None if it is missing or incomplete."""
        path = self.folder / f"{key}{_RECORD}"
        try:
            record = from_json(_Record, path.read_bytes(), str(path))
            data = (self.folder / f"{key}{_MODEL}").read_bytes()
            if record.format != FORMAT or record.sha256 != hashlib.sha256(data).hexdigest():
                return None
            forest = Forest.from_bytes(data, key)
        except (OSError, RankmillError):
            return None
        cv = record.cross_validation
        return TrainingResult(
            forest=forest,
            best_round=record.best_round,
            history=record.curves.history(),
            intervals=record.intervals,
            cross_validation=None
            if cv is None
            else CrossValidation(
                histories=tuple(curves.history() for curves in cv.folds),
                stop_metric=cv.stop_metric,
                best_round=cv.best_round,
            ),
        )

    def write(self, key: str, result: TrainingResult) -> None:
        """Store a training under ``key``, without its metrics by query."""
        self.folder.mkdir(parents=True, exist_ok=True)
        data = result.forest.to_bytes()
        cv = result.cross_validation
        record = _Record(
            format=FORMAT,
            sha256=hashlib.sha256(data).hexdigest(),
            best_round=result.best_round,
            curves=Curves.of(result.history),
            intervals=intervals_of(result.by_query) if result.intervals is None else result.intervals,
            cross_validation=None
            if cv is None
            else _Folds(
                stop_metric=cv.stop_metric,
                best_round=cv.best_round,
                folds=tuple(Curves.of(history) for history in cv.histories),
            ),
        )
        write_atomically(self.folder / f"{key}{_MODEL}", data)
        # keys keep their order: the first metric is the stop metric
        text = json.dumps(as_json(record), allow_nan=False)
        write_atomically(self.folder / f"{key}{_RECORD}", text.encode() + b"\n")

    def remove(self, keys: Collection[str]) -> None:
        """Delete the trainings ``keys``."""
        for key in keys:
            for suffix in (_RECORD, _MODEL):
                (self.folder / f"{key}{suffix}").unlink(missing_ok=True)

    def remove_others(self, keys: Collection[str]) -> None:
        """Delete all trainings but ``keys``, checkpoints and partial files; no process may be writing here."""
        if not self.folder.is_dir():
            return
        for path in self.folder.iterdir():
            key = path.name.removeprefix(".")[:_KEY_LENGTH]
            is_key = len(key) == _KEY_LENGTH and set(key) <= set("0123456789abcdef")
            left_behind = path.name.startswith(".") and path.name.endswith(".staging")
            if is_key and (left_behind or key not in keys):
                path.unlink(missing_ok=True)
