"""Train and register: what ``rankmill train`` and the scheduled run do with a dataset and a registry."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankmill.foundation.kernels.compiling import compilation_announced
from rankmill.pipeline.dataset import Dataset
from rankmill.registry import Registry
from rankmill.registry.names import check_name
from rankmill.scorer.model_service import find_model, queries_trained_on
from rankmill.trainer.candidate import plan_candidate, train_candidate
from rankmill.trainer.checkpoints import KeptTrainings
from rankmill.trainer.growing.histogram import DEFAULT_POOL_BYTES
from rankmill.trainer.history import TrainingResult
from rankmill.trainer.model_facts import Origin
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.progress import progress_of


def train_and_register(
    dataset_path: Path,
    name: str,
    registry_path: Path,
    parameters: TrainParameters,
    *,
    eval_metrics: Sequence[str] = (),
    resume: str | None = None,
    base_model: str | None = None,
    seeds: Sequence[int] = (),
    choose: str = "best",
    checkpoint: Path | None = None,
    checkpoint_every: float = 300.0,
    n_threads: int = 0,
    bin_cache: Path | None = None,
    pool_bytes: int | None = None,
    profile: bool = False,
    log_every: int | None = None,
) -> tuple[dict[str, Any], TrainingResult]:
    """Train on the dataset at ``dataset_path``, register the model, and return the facts of the new version.

    ``resume`` and ``base_model`` name models, files or versions in the registry at ``registry_path``; ``pool_bytes`` None
    means the default; the other options are those of :func:`rankmill.trainer.candidate.train_candidate`, ``checkpoint`` its folder.
    """
    # what can be refused is refused before hours of training, not after
    check_name(name)
    dataset = Dataset.open(dataset_path)
    start = None if resume is None else Origin(*find_model(resume, registry_path))
    base = None if base_model is None else Origin(*find_model(base_model, registry_path))
    asked: Any = {
        "seeds": seeds,
        "choose": choose,
        "eval_metrics": eval_metrics,
        "resume": start,
        "base": base,
        "bin_cache": bin_cache,
        "pool_bytes": DEFAULT_POOL_BYTES if pool_bytes is None else pool_bytes,
    }
    plan = plan_candidate(dataset, parameters, **asked)
    registry = Registry(registry_path)
    registry.prepare()
    known = {version.number for version in registry.versions(name)} if name in registry.names() else set()

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    say(plan.render())
    with compilation_announced(say), progress_of(parameters, seeds, log_every=log_every) as progress:
        candidate = train_candidate(
            dataset,
            parameters,
            **asked,
            base_queries=None if base is None else queries_trained_on(base.identity, registry_path),
            folder=checkpoint,
            checkpoint_every=checkpoint_every,
            n_threads=n_threads,
            profile=profile,
            on_round=lambda seed, record: progress.update(record, seed),
            on_fold=lambda fold, record: progress.update(record, fold, "fold"),
            say=say,
            plan=plan,
        )
    forest, metrics, result = candidate.forest, candidate.facts["metrics"], candidate.result
    version = registry.register(name, forest.to_bytes(), manifest=candidate.facts, attachments=candidate.attachments)
    if checkpoint is not None:
        KeptTrainings(checkpoint).remove(candidate.keys)
    rounds_of_base = 0 if base is None else base.forest.n_rounds
    report: dict[str, Any] = {
        "model": str(version),
        "new": version.number not in known,
        "sha256": version.sha256,
        "bytes": version.size,
        "trees": forest.n_trees,
        "rounds": forest.n_rounds,
        "rounds_trained": sum(
            len(each.result.history) for each in candidate.seeds if candidate.chosen in {None, each.seed}
        ),
        "rounds_of_base": rounds_of_base,
        "rounds_resumed": 0 if start is None else start.forest.n_rounds - rounds_of_base,
        "train": metrics.get("train", {}),
        "valid": metrics.get("valid", {}),
        **{name: metrics[name] for name in ("holdout", "cv") if name in metrics},
        "registry": str(registry_path),
    }
    if candidate.noise_floor is not None:
        told = candidate.training()
        report |= {key: told[key] for key in ("seeds", "choose", "chosen", "noise_floor")}
    return report, result
