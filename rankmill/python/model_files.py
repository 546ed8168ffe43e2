"""Find model files by name or path, and register them with a manifest made from the file."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rankmill.foundation.errors import InputError
from rankmill.foundation.records import as_json
from rankmill.foundation.storage.location import location
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.group.sketch import TRAIN_QUERIES
from rankmill.registry.model_registry import Registry, Version
from rankmill.registry.names import check_name, default_folder
from rankmill.scorer.evaluate.train_test_overlap import splits_trained_on
from rankmill.scorer.models.loading import load_model_file
from rankmill.scorer.models.model import Model
from rankmill.scorer.models.model_service import find_model
from rankmill.trainer.candidates.version_facts import dataset_facts, shape_of, sketch_of_training
from rankmill.trainer.training_facts import TrainingFacts


def named_model(model: str | os.PathLike[str], registry: str | os.PathLike[str] | None = None) -> tuple[Model, str]:
    """Return the model that :func:`load_model` would load, and its name: ``web@7``, or the path of the file."""
    text = os.fspath(model)
    if isinstance(model, os.PathLike) or os.sep in text:
        return load_model_file(text), text
    found, identity = find_model(text, default_folder() if registry is None else location(registry))
    return found, text if identity.name is None else str(identity)


Metrics = Mapping[str, float | Mapping[str, float]]  # by name, or by split and name
FROM_INFO = ("binspec_digest", "max_grade", "best_round", "rounds_trained")
"""Facts about the training that model file and manifest have under the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredFacts:
    """The version registered for a file, and whether it is new."""

    model: str
    new: bool
    sha256: str
    bytes: int
    features: int
    trees: int
    rounds: int
    registry: str


@dataclass(frozen=True, slots=True)
class RegisteredFile:
    """The version with the model of the file, and whether it was registered now."""

    version: Version
    model: Model
    is_new: bool

    @property
    def facts(self) -> RegisteredFacts:
        """The output of ``models register --json``."""
        return RegisteredFacts(
            model=str(self.version),
            new=self.is_new,
            sha256=self.version.sha256,
            bytes=self.version.size,
            features=self.model.n_features,
            trees=self.model.n_trees,
            rounds=self.model.n_rounds,
            registry=str(self.version.log.store.root),
        )


def register_file(
    registry: Registry,
    path: Path,
    name: str,
    *,
    dataset: str | None = None,
    metrics: Path | None = None,
    reason: str = "",
) -> RegisteredFile:
    """Register the model file ``path`` as the next version of ``name``.

    If the model is registered already, return that version.

    Parameters
    ----------
    dataset
        The training data: a dataset folder or its digest; None: as in the file.
    metrics
        A file with one JSON object of numbers, or of objects of numbers by split; None: as in the file.

    Raises
    ------
    InputError
        A file or dataset does not exist, is not the one that the model was trained on, or has no metrics.
    ModelFormatError
        The file is not a valid model; nothing was written.
    """
    check_name(name)
    model = load_model_file(path)
    opened = _opened(dataset)
    digest = dataset if opened is None else opened.digest
    facts = facts_of(model, digest, None if metrics is None else read_metrics(metrics), path)
    attachments = {}
    if opened is not None:
        facts = replace(facts, dataset=dataset_facts(opened))
        queries = sketch_of_training(opened, splits_trained_on(model))
        attachments[TRAIN_QUERIES] = queries.to_bytes()
    existing = registry.versions(name) if name in registry.names() else []
    if dataset is None and metrics is None:  # no new facts besides those in the file
        for version in reversed(existing):
            if version.sha256 == model.sha256 and version.swept_in is None:
                return RegisteredFile(version, model, is_new=False)
    version = registry.register(name, model.to_bytes(), manifest=as_json(facts), attachments=attachments, reason=reason)
    return RegisteredFile(version, model, is_new=version.number > len(existing))


def facts_of(model: Model, dataset: str | None, metrics: Metrics | None, path: Path | str = "model") -> TrainingFacts:
    """Return a manifest for a model file.

    Raises
    ------
    InputError
        The model was trained on another dataset.
    """
    own = model.info.get("dataset_digest")
    if own is not None and dataset is not None and own != dataset:
        raise InputError(f"{path}: the model was trained on the dataset {own}, not on {dataset}; leave --dataset out")
    if metrics is None:
        metrics = {split: found for split in ("train", "valid") if (found := _numbers(model.info.get(split)))}
    taken: Mapping[str, Any] = {fact: model.info[fact] for fact in FROM_INFO if fact in model.info}
    return TrainingFacts(
        features=model.feature_names,
        dataset_digest=str(own) if _is_digest(own) else dataset,
        parameters={"objective": model.objective, **model.parameters},
        metrics=metrics,
        **taken,
        **shape_of(model),
    )


def read_metrics(path: Path) -> Metrics:
    """Read the metrics in ``path``; InputError if it is not one JSON object of finite numbers, or of such objects."""
    expected = 'expected one JSON object of numbers, such as {"test": {"ndcg@10": 0.51}}'
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise InputError(f"{path}: {expected}, no such file") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: {expected}: {error}") from error
    if not isinstance(found, dict) or not found:
        raise InputError(f"{path}: {expected}, found {json.dumps(found)[:40]}")
    for key, value in found.items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        for name, number in inner:
            if not _is_number(number):
                raise InputError(f"{path}: {expected}, found {json.dumps(number)[:40]} as {f'{key} {name}'.strip()!r}")
    metrics: Metrics = found
    return metrics


def _opened(dataset: str | None) -> Dataset | None:
    if dataset is None or _is_digest(dataset):
        return None
    if not Path(dataset).is_dir():
        raise InputError(f"--dataset {dataset!r}: expected the folder of a dataset, or its digest of 64 hex digits")
    return Dataset.open(Path(dataset))


def _numbers(values: object) -> Mapping[str, float]:
    return {k: v for k, v in values.items() if _is_number(v)} if isinstance(values, dict) else {}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None
