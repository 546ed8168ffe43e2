"""Small datasets and models that a gate can distinguish."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np

from rankmill.foundation.records import as_json
from rankmill.gate import judging
from rankmill.gate.judging import Contender
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.trainer.candidates.train_on_dataset import train
from rankmill.trainer.training_options import TrainingOptions
from tests.trainer.fixed import fixed

QUERIES, DOCUMENTS, FEATURES = 160, 12, 5
SPLIT = {"train": 0.5, "valid": 0.2, "test": 0.3}


def rows_of(seed: int, queries: int = QUERIES, documents: int = DOCUMENTS):
    """(x, grades, qid): grades follow the first two features, the others are noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(queries * documents, FEATURES)).astype(np.float32)
    signal = x[:, 0] + x[:, 1] ** 2 / 2 + rng.normal(scale=0.3, size=len(x))
    return x, np.clip(np.round(signal), 0, 4).astype(int), np.repeat(np.arange(queries), documents)


def shuffled(grades):
    """The same grades in an order that says nothing."""
    mixed = grades.copy()
    np.random.default_rng(2).shuffle(mixed)
    return mixed


def rows_of_one_strong_feature(seed: int, queries: int):
    """(x, grades, qid): grades follow the first feature, the second a little, and much noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(queries * DOCUMENTS, FEATURES)).astype(np.float32)
    signal = x[:, 0] + 0.15 * x[:, 1] + rng.normal(scale=1.0, size=len(x))
    return x, np.clip(np.round(signal), 0, 4).astype(int), np.repeat(np.arange(queries), DOCUMENTS)


def dataset_of(folder: Path, name: str, x, grades, qid, *, split=SPLIT, extra=None, buckets=3, goals=()) -> Dataset:
    """Write the rows as CSV and ingest and bin them; ``extra`` are more columns by name, of which some are
    ``goals``."""
    source = folder / f"{name}.csv"
    extra = extra or {}
    with source.open("w", newline="") as file:
        writer = csv.writer(file)
        names = [f"f{i}" for i in range(1, x.shape[1] + 1)]
        writer.writerow(["qid", "doc_id", "grade", *extra, *names])
        for i, row in enumerate(x):
            cells = ["" if np.isnan(value) else repr(float(value)) for value in row]
            writer.writerow([f"q{qid[i]}", f"d{i:06}", grades[i], *(column[i] for column in extra.values()), *cells])
    ingest([source], folder / name, options=IngestOptions(split=split, buckets=buckets, read=ReadOptions(goals=goals)))
    bin_dataset(Dataset.open(folder / name))
    return Dataset.open(folder / name)


def trained(dataset: Dataset, name: str = "web@1", **parameters) -> Contender:
    """Train a small model on ``dataset``."""
    options = {"n_rounds": 12, "max_leaves": 6, "min_rows_in_leaf": 5, **parameters}
    forest = train(dataset, fixed(**options), TrainingOptions(n_threads=1)).forest
    return contender(forest, name, trained_on=dataset)


def judge(*args, **options) -> dict:
    """Return the report of the gate as it is kept: as JSON values."""
    return as_json(judging.judge(*args, **options))


def contender(forest, name: str, trained_on: Dataset | None = None) -> Contender:
    """Bring ``forest`` to the gate."""
    return Contender(
        name=name,
        model=forest,
        sha256=forest.sha256,
        manifest_sha256="0" * 64,
        trained_on=frozenset() if trained_on is None else frozenset({trained_on.digest}),
    )


def renamed(model: Contender, name: str) -> Contender:
    """Call the same model something else."""
    return replace(model, name=name)


def with_leaves(model: Contender, change) -> Contender:
    """Return the model with other values in its nodes: ``change`` of those it has."""
    forest = replace(model.model, node_value=change(np.asarray(model.model.node_value)))
    return replace(model, model=forest, sha256=forest.sha256)
