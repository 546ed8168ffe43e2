"""Trainings that are done, kept in a folder by the key of what decides them: a model file, and beside it what it says of itself.

The second file is the commit point: it is written last, holds the digest of the first, and counts only if that is so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankmill.foundation.code_digest import OF_TRAINING, code_digest
from rankmill.foundation.errors import RankmillError
from rankmill.foundation.storage.publish import write_atomically
from rankmill.scorer.forest import Forest
from rankmill.scorer.model_file import canonical_json
from rankmill.trainer.history import CrossValidation, RoundRecord, TrainingResult, curves_of
from rankmill.trainer.lineage import intervals_of
from rankmill.trainer.parameters import PRESET, TrainParameters

if TYPE_CHECKING:
    from rankmill.pipeline.dataset import Dataset

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
