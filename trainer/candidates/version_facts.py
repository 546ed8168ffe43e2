"""Manifest of a registered version: data, code, parameters, metrics and lineage.

The manifest holds what determines the bytes of the model, and its metrics: equal data, code and parameters give equal
manifests, so that they are registered once.  Facts that do not determine the bytes (versions of libraries, the machine,
a resumed model) are in the attachment ``circumstances``, as they were at the first registration.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from math import isnan
from typing import TYPE_CHECKING, Any

from rankmill.foundation.code_digest import OF_TRAINING, code_digest
from rankmill.foundation.options import STORED_DEFAULTS
from rankmill.foundation.records import as_json, canonical_json, from_json
from rankmill.pipeline.group.sketch import TRAIN_QUERIES, QuerySketch
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.metrics.significance import interval_of_mean
from rankmill.scorer.models.model import Model
from rankmill.trainer.data.training_rows import LEARNT_FROM
from rankmill.trainer.parameters import OLDEST
from rankmill.trainer.rounds.training_result import REFIT, TRAIN
from rankmill.trainer.training_facts import (
    CIRCUMSTANCES,
    Circumstances,
    DatasetFacts,
    FoldFacts,
    InputFile,
    InputFiles,
    PairFacts,
    RefitFacts,
    SplitRule,
    SplitSize,
    TrainingFacts,
)

if TYPE_CHECKING:
    from rankmill.pipeline.dataset.dataset import Dataset
    from rankmill.pipeline.dataset.manifest import Meaning, SourceFile
    from rankmill.trainer.rounds.training_result import QueryValues, TrainingResult
    from rankmill.trainer.training_options import StartingModel

MOST_SOURCES = 100  # per kind; with more, only their number and a digest of the list are written
LIBRARIES = ("rankmill", "numpy", "numba", "llvmlite", "polars", "pyarrow", "duckdb", "joblib", "pydantic")

Intervals = Mapping[str, Mapping[str, tuple[float, float]]]  # by split and metric


def facts_of(dataset: Dataset, result: TrainingResult, base: StartingModel | None = None) -> TrainingFacts:
    """Return the manifest of the version: ``result``, trained on ``dataset``, on top of ``base`` if there is one."""
    cv, refit = result.cross_validation, result.forest.info.get(REFIT)
    return replace(
        facts_of_forest(dataset, result.forest, base),
        metrics=metrics_of(result),
        intervals=intervals_of(result.by_query) if result.intervals is None else result.intervals,
        best_round=result.best_round,
        rounds_trained=len(result.history),
        cross_validation=None
        if cv is None
        else FoldFacts(
            folds=len(cv.histories),
            deviations=without_nan({measure: cv.deviation(measure) for measure in cv.measures}),
        ),
        refit=None if refit is None else from_json(RefitFacts, canonical_json(refit), REFIT),
    )


def facts_of_forest(dataset: Dataset, forest: Forest, base: StartingModel | None = None) -> TrainingFacts:
    """Return the manifest of a forest of ``dataset`` without its metrics."""
    learnt_from = forest.info.get(LEARNT_FROM)
    return TrainingFacts(
        features=forest.feature_names,
        dataset_digest=dataset.digest,
        dataset=dataset_facts(dataset),
        binspec_digest=str(forest.info["binspec_digest"]),
        parameters=forest.parameters,
        changed_parameters=changed_parameters(forest.parameters),
        code_digest=code_digest(*OF_TRAINING),
        max_grade=dataset.max_grade,
        learnt_from=None if learnt_from is None else str(learnt_from),
        base_model=None if base is None else base.facts(),
        **shape_of(forest),
    )


def attachments_of(
    dataset: Dataset,
    resumed: StartingModel | None = None,
    base: StartingModel | None = None,
    splits: Sequence[str] = (TRAIN,),
) -> dict[str, bytes]:
    """Return what is registered beside the manifest.

    These are the sketch of the queries trained on (``splits``), and the circumstances.

    They include the queries of ``base``, if known: the whole model has seen these, too.
    """
    queries = sketch_of_training(dataset, splits)
    if base is not None and base.queries is not None:
        queries = queries.union(base.queries)
    circumstances = replace(circumstances_now(), resumed=None if resumed is None else resumed.facts())
    return {TRAIN_QUERIES: queries.to_bytes(), CIRCUMSTANCES: canonical_json(as_json(circumstances)) + b"\n"}


def sketch_of_training(dataset: Dataset, splits: Sequence[str]) -> QuerySketch:
    """Return the sketch of the queries of ``splits``."""
    return QuerySketch.of(qids for split in splits for qids, _ in dataset.query_batches(split))


def circumstances_now() -> Circumstances:
    """Return the versions of Python and of libraries, the system and the processor."""
    return Circumstances(
        libraries={name: version for name in LIBRARIES if (version := _installed(name)) is not None},
        python=platform.python_version(),
        machine=platform.machine(),
        system=sys.platform,
    )


def dataset_facts(dataset: Dataset) -> DatasetFacts:
    """Return how large the dataset is, how its splits were drawn, and which files it was made from."""
    manifest = dataset.manifest
    judgments, pairs = manifest.judgments, manifest.pairs
    return DatasetFacts(
        rows=manifest.rows,
        queries=manifest.queries,
        max_bin=dataset.bin_set().max_bin if manifest.bins else None,
        split_by=_split_rule(manifest.meaning),
        splits={name: SplitSize(queries=n.queries, rows=n.rows) for name, n in manifest.splits.items()},
        sources=_sources(manifest.sources),
        judgments=None if judgments is None else _sources(judgments.sources),
        pairs=None if pairs is None else PairFacts(pairs=pairs.pairs, sources=_sources(pairs.sources)),
    )


def changed_parameters(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the parameters that differ from the oldest preset, in the order of `TrainParameters`.

    >>> changed_parameters({"max_leaves": 31, "seed": 8, "n_rounds": 20, "preset": "defaults@1"})
    ('n_rounds', 'seed')
    """
    usual = {**OLDEST.as_dict(), "preset": STORED_DEFAULTS}
    return tuple(name for name, value in usual.items() if parameters.get(name, value) != value)


def metrics_of(result: TrainingResult) -> dict[str, dict[str, float]]:
    """Return the metrics of the best round, by split and metric; means over no query are left out."""
    found = {split: without_nan(metrics) for split, metrics in result.history[result.best_round - 1].metrics.items()}
    if result.cross_validation is not None:
        cv = result.cross_validation
        found["cv"] = without_nan({metric: cv.mean(metric) for metric in cv.measures})
    return {split: metrics for split, metrics in found.items() if metrics}


def intervals_of(by_query: Mapping[str, Mapping[str, QueryValues]]) -> Intervals:
    """Return the 95 % intervals over queries of the metrics by split, if there are two queries or more."""
    intervals = {}
    for split, metrics in by_query.items():
        limits = {name: interval_of_mean(each.values, weights=each.weights) for name, each in metrics.items()}
        intervals[split] = {name: interval for name, interval in limits.items() if interval is not None}
    return {split: metrics for split, metrics in intervals.items() if metrics}


def shape_of(model: Model) -> Mapping[str, Any]:
    """Return the shape of a forest with several outputs, or several trees per round; nothing for other models."""
    if not isinstance(model, Forest):
        return {}
    shape = {"n_outputs": model.n_outputs, "link": model.link, "trees_a_round": model.trees_a_round}
    return shape if model.trees_a_round > 1 or model.link != "identity" else {}


def without_nan(values: Mapping[str, float]) -> dict[str, float]:
    """Return ``values`` by name without NaN, the mean over no query."""
    return {name: value for name, value in values.items() if not isnan(value)}


def _split_rule(meaning: Meaning) -> SplitRule:
    if meaning.folds is not None:
        return SplitRule(folds=meaning.folds.folds, fold=meaning.folds.fold)
    if meaning.split_time is not None:
        return SplitRule(time=dict(meaning.split_time.items()), column=meaning.time_column)
    if meaning.split is not None:
        return SplitRule(shares=meaning.split)
    return SplitRule(files=True)


def _sources(files: Sequence[SourceFile]) -> InputFiles:
    """Return the files or, if they are too many, their number, their size and the digest of their list."""
    listed = tuple(InputFile(**file.model_dump(mode="json", exclude_none=True)) for file in files)
    n_bytes = sum(file.size for file in files)
    if len(listed) <= MOST_SOURCES:
        return InputFiles(files=len(listed), bytes=n_bytes, list=listed)
    digest = hashlib.sha256(canonical_json(as_json(listed))).hexdigest()
    return InputFiles(files=len(listed), bytes=n_bytes, list_sha256=digest)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
