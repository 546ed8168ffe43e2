"""What a registered version says of itself: which data, code and parameters made it, how good it is, what it goes back to.

The manifest holds what decides the bytes of the model, and what was measured with it: the same data, code and parameters
say the same, so that they are registered once.  What was so at the time and does not decide them (the versions of
libraries, the machine, a model that the training went on from: its bytes are those of one go) is in the
attachment ``circumstances``; it is kept as it was at the first registration.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from rankmill.foundation.code_digest import OF_TRAINING, code_digest
from rankmill.pipeline.group.sketch import TRAIN_QUERIES, QuerySketch
from rankmill.scorer.metrics.significance import interval_of_mean
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.training_rows import LEARNT_FROM

if TYPE_CHECKING:
    from rankmill.pipeline.dataset import Dataset
    from rankmill.pipeline.dataset_manifest import Meaning, SourceFile
    from rankmill.scorer.forest import Forest
    from rankmill.scorer.model_service import ModelIdentity
    from rankmill.trainer.history import QueryValues, TrainingResult

MOST_SOURCES = 100  # of a kind; of more only their number and a digest of the list are told
LIBRARIES = ("rankmill", "numpy", "numba", "llvmlite", "polars", "pyarrow", "duckdb", "joblib", "pydantic")
CIRCUMSTANCES = "circumstances"

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Origin:
    """A model that a training began with."""

    forest: Forest
    identity: ModelIdentity

    def to_dict(self) -> Facts:
        """Return its digest and, where it came from a registry, which version it is."""
        named = {} if self.identity.name is None else {"model": f"{self.identity.name}@{self.identity.number}"}
        return {"sha256": self.identity.sha256, **named}


def facts_of(
    dataset: Dataset,
    result: TrainingResult,
    base: Origin | None = None,
    intervals: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
) -> Facts:
    """Return the manifest of the version: ``result``, trained on ``dataset``, on top of ``base`` if there is one.

    ``intervals`` are those of its metrics where they are known already.
    """
    facts = {
        **facts_of_forest(dataset, result.forest, base),
        "metrics": metrics_of(result),
        "intervals": intervals_of(result.by_query) if intervals is None else intervals,
        "best_round": result.best_round,
        "rounds_trained": len(result.history),
    }
    if result.cross_validation is not None:
        cv = result.cross_validation
        deviations = {measure: cv.deviation(measure) for measure in cv.measures}
        facts["cross_validation"] = {"folds": len(cv.histories), "deviations": _numbers(deviations)}
    return facts


def facts_of_forest(dataset: Dataset, forest: Forest, base: Origin | None = None) -> Facts:
    """Return what the manifest says of a forest of ``dataset``, but for how good it is."""
    facts: Facts = {
        "features": list(forest.feature_names),
        "dataset_digest": dataset.digest,
        "dataset": dataset_facts(dataset),
        "binspec_digest": forest.info["binspec_digest"],
        "parameters": dict(forest.parameters),
        "changed_parameters": changed_parameters(forest.parameters),
        "code_digest": code_digest(*OF_TRAINING),
        "max_grade": dataset.max_grade,
        **({LEARNT_FROM: forest.info[LEARNT_FROM]} if LEARNT_FROM in forest.info else {}),
        **shape_of(forest),
    }
    return facts if base is None else {**facts, "base_model": base.to_dict()}


def attachments_of(
    dataset: Dataset, resumed: Origin | None = None, below: QuerySketch | None = None
) -> dict[str, bytes]:
    """Return what is registered beside the manifest: the sketch of the queries trained on, and the circumstances.

    ``below`` is the sketch of the queries that the base model was trained on: the whole model has seen these, too.
    """
    queries = QuerySketch.of(qids for qids, _ in dataset.query_batches("train"))
    queries = queries if below is None else queries.union(below)
    circumstances = circumstances_now() | ({} if resumed is None else {"resumed": resumed.to_dict()})
    return {TRAIN_QUERIES: queries.to_bytes(), CIRCUMSTANCES: _canonical(circumstances) + b"\n"}


def circumstances_in(data: bytes | None) -> Facts:
    """Read the attachment ``circumstances``; nothing where it is not there, or is something else."""
    try:
        found = json.loads(data or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def circumstances_now() -> Facts:
    """Return the versions of Python and of libraries, the system and the processor."""
    libraries = {name: found for name in LIBRARIES if (found := _installed(name)) is not None}
    return {
        "libraries": libraries,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": sys.platform,
    }


def dataset_facts(dataset: Dataset) -> Facts:
    """Return how large the dataset is, how its splits were drawn, and which files it was made from."""
    manifest = dataset.manifest
    facts: Facts = {
        "rows": manifest.rows,
        "queries": manifest.queries,
        "max_bin": dataset.bin_set().max_bin,
        "split_by": _split_rule(manifest.meaning),
        "splits": {name: {"queries": n.queries, "rows": n.rows} for name, n in manifest.splits.items()},
        "sources": _sources(manifest.sources),
    }
    if manifest.judgments is not None:
        facts["judgments"] = _sources(manifest.judgments.sources)
    if manifest.pairs is not None:
        facts["pairs"] = {"pairs": manifest.pairs.pairs, "sources": _sources(manifest.pairs.sources)}
    return facts


def changed_parameters(parameters: Mapping[str, Any]) -> list[str]:
    """Name the parameters that are not as `TrainParameters` has them by default, in its order.

    >>> changed_parameters({"max_leaves": 31, "seed": 8, "n_rounds": 20, "preset": "defaults@1"})
    ['n_rounds', 'seed']
    """
    return [name for name, value in TrainParameters().as_dict().items() if parameters.get(name, value) != value]


def metrics_of(result: TrainingResult) -> dict[str, dict[str, float]]:
    """Return what the best round measured, by split and metric; a mean over no query at all is left out."""
    found = {split: _numbers(metrics) for split, metrics in result.history[result.best_round - 1].metrics.items()}
    if result.cross_validation is not None:
        cv = result.cross_validation
        found["cv"] = _numbers({metric: cv.mean(metric) for metric in cv.measures})
    return {split: metrics for split, metrics in found.items() if metrics}


def intervals_of(by_query: Mapping[str, Mapping[str, QueryValues]]) -> dict[str, dict[str, list[float]]]:
    """Return the 95 % intervals over queries of the metrics by split, where there are two queries or more."""
    found: dict[str, dict[str, list[float]]] = {}
    for split, metrics in by_query.items():
        limits = {name: interval_of_mean(each.values, weights=each.weights) for name, each in metrics.items()}
        found[split] = {name: list(both) for name, both in limits.items() if both is not None}
    return {split: metrics for split, metrics in found.items() if metrics}


def _split_rule(meaning: Meaning) -> Facts:
    if meaning.folds is not None:
        return {"folds": meaning.folds.folds, "fold": meaning.folds.fold}
    if meaning.split_time is not None:
        return {"time": dict(meaning.split_time), "column": meaning.time_column}
    if meaning.split is not None:
        return {"shares": dict(meaning.split)}
    return {"files": True}


def _sources(files: Sequence[SourceFile]) -> Facts:
    """Return the files, if they are not too many; else how many, how large, and the digest of what would be here."""
    listed = [file.model_dump(mode="json", exclude_none=True) for file in files]
    facts = {"files": len(listed), "bytes": sum(file.size for file in files)}
    if len(listed) <= MOST_SOURCES:
        return facts | {"list": listed}
    return facts | {"list_sha256": hashlib.sha256(_canonical(listed)).hexdigest()}


def shape_of(forest: Forest) -> Facts:
    """Return what there is to say of a forest that is more than one sum of trees, one a round."""
    told = {"n_outputs": forest.n_outputs, "link": forest.link, "trees_a_round": forest.trees_a_round}
    return told if forest.trees_a_round > 1 or forest.link != "identity" else {}


def _numbers(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value == value}  # noqa: PLR0124 - not NaN


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
