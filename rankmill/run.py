"""One run of the whole chain from a configuration: ingest, bin, train, evaluate, re-rank, promote.

Each stage publishes what it makes in one step under the work folder, so that a run that dies leaves the last complete
dataset, report and ranked lists.  The same input and configuration give the same bytes, and so the same model version.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.binning import bin_dataset, bin_plan
from pipeline.dataset import Dataset
from pipeline.errors import InputError as PipelineInputError
from pipeline.ingest import ingest
from pipeline.publish import write_atomically
from pipeline.sources.columns import guesses_line
from pipeline.sources.files import find_files
from rankmill.errors import InputError
from registry import Registry, Version
from scorer.evaluate import evaluate
from scorer.evaluation import Evaluation
from scorer.forest import Forest
from scorer.rerank import ModelIdentity, RerankReport, rerank
from trainer.cli import train_and_register

if TYPE_CHECKING:
    from rankmill.config import Config

UNSEEN = ("test", "valid")  # splits to report on, in order of preference; valid has at least decided when to stop


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What one run made, and where it is."""

    dataset: Dataset
    version: Version
    registry: Path
    split: str | None
    evaluation: Evaluation | None
    evaluation_path: Path | None
    ranked: RerankReport | None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "dataset": {"path": str(self.dataset.path), "digest": self.dataset.digest},
            "model": {
                "version": str(self.version),
                "sha256": self.version.sha256,
                "registry": str(self.registry),
                "aliases": list(self.version.aliases),
            },
            "evaluation": None if self.evaluation is None else {"split": self.split, **self.evaluation.to_dict()},
            "ranked": None if self.ranked is None else json.loads(self.ranked.to_json()),
        }

    def render(self, *, json: bool = False) -> str:
        """Return the report for a person, or as one JSON object."""
        if json:
            return _json(self.to_dict())
        manifest = self.dataset.manifest
        lines = [
            f"dataset   {self.dataset.path}: {manifest.rows:,} documents of {manifest.queries:,} queries,"
            f" {len(manifest.features)} features",
            f"model     {self.version} in {self.registry}"
            + (f", now {', '.join(self.version.aliases)}" if self.version.aliases else ", not promoted")
            + f"; sha256 {self.version.sha256[:12]}",
        ]
        if self.evaluation is not None:
            means = ", ".join(f"{metric} {mean:.4f}" for metric, mean in self.evaluation.means.items())
            lines.append(f"{self.split:<9} {means} ({len(self.evaluation.qids):,} queries; {self.evaluation_path})")
        if self.ranked is not None:
            lines.append(
                f"ranked    {self.ranked.out}: {self.ranked.rows_written:,} documents of {self.ranked.queries:,} queries"
            )
        return "\n".join(lines)


def run_chain(config: Config, folder: Path, registry: Path, say: Callable[[str], None]) -> RunReport:
    """Run every stage that ``config`` asks for.

    Parameters
    ----------
    config
        What to do.
    folder
        Relative paths in ``config`` start here: the folder of its file.
    registry
        Folder of the registry.
    say
        Called with one line as each stage begins.

    Raises
    ------
    InputError
        A pattern matches no file.  All of them are looked up before the first stage.
    Exception
        Whatever a room raises; what the stages before it made stays.
    """
    files = {
        key: _expand(folder, f"ingest.{key}", getattr(config.ingest, key))
        for key in ("sources", "valid", "test", "pairs", "qrels")
    }
    candidates = () if config.rerank is None else _expand(folder, "rerank.candidates", config.rerank.candidates)
    work = folder / config.work
    work.mkdir(parents=True, exist_ok=True)

    say(f"ingest: {len(files['sources']) + len(files['valid']) + len(files['test'])} files")
    ingest(
        files["sources"],
        work / "dataset",
        valid=files["valid"],
        test=files["test"],
        pairs=files["pairs"],
        qrels=files["qrels"],
        options=config.ingest.options,
        say=say,
    )
    dataset = Dataset.open(work / "dataset")
    say(f"bin: at most {config.bin.max_bin} bins a feature; {bin_plan(dataset, config.bin.memory_bytes).render()}")
    bin_dataset(dataset, config.bin.max_bin, config.bin.memory_bytes)
    dataset = Dataset.open(work / "dataset")
    say(f"train: {config.train.name}")
    base = config.train.base_model
    if base is not None and (folder / base).is_file():
        base = os.fspath(folder / base)
    facts, _ = train_and_register(
        dataset.path,
        config.train.name,
        registry,
        config.train.parameters,
        eval_metrics=config.train.eval_metrics,
        base_model=base,
        n_threads=config.train.n_threads,
        pool_bytes=config.train.pool_bytes,
    )
    store = Registry(registry)
    version = store.resolve(facts["model"], bare="latest")
    forest = Forest.from_bytes(version.read(), where=str(version))

    split = next((name for name in UNSEEN if len(dataset.queries(name))), None)
    evaluation, evaluation_path = None, None
    if split is not None:
        say(f"evaluate: {split}")
        evaluation = evaluate(
            dataset.path, model=forest, split=split, metrics=config.evaluate.metrics, **config.evaluate.conventions
        )
        evaluation_path = work / "evaluation.json"
        report = {"model": {"version": str(version), "sha256": version.sha256}, "split": split, **evaluation.to_dict()}
        write_atomically(evaluation_path, (_json(report) + "\n").encode())
    ranked = None
    if config.rerank is not None:
        say(f"rerank: {len(candidates)} files")
        ranked = rerank(
            candidates,
            forest,
            work / config.rerank.out,
            top_k=config.rerank.top_k,
            memory_limit=config.rerank.memory,
            input_format=config.rerank.format,
            absent=config.ingest.absent,
            index_base=config.ingest.index_base,
            columns=config.rerank.columns,
            overwrite=True,
            identity=ModelIdentity(sha256=version.sha256, name=version.name, number=version.number),
        )
        if ranked.columns_guessed:
            say(guesses_line(ranked.columns_guessed))
    if config.promote is not None:  # last: what could not be ranked with is not to be what users see
        say(f"promote: {version} becomes {config.promote.alias}")
        store.promote(version.name, version.number, alias=config.promote.alias, reason="rankmill run")
        version = store.resolve(str(version), bare="latest")
    return RunReport(
        dataset=dataset,
        version=version,
        registry=registry,
        split=split,
        evaluation=evaluation,
        evaluation_path=evaluation_path,
        ranked=ranked,
    )


def _expand(folder: Path, key: str, patterns: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the files that names, folders and ``patterns`` mean, in the order of their names."""
    try:
        return tuple(find_files(patterns, folder))
    except PipelineInputError as error:
        raise InputError(f"{key}: {error}") from None


def _json(report: dict[str, Any]) -> str:
    return json.dumps(report, sort_keys=True, ensure_ascii=False, allow_nan=False)
