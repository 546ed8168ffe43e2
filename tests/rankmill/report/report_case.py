"""A work folder as a run leaves it: a dataset, two versions, the gate between them, and names that mean something in
HTML."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from rankmill.foundation.records import as_json, from_json
from rankmill.gate.gate_rules import GateOptions
from rankmill.gate.recording import gate
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.registry import Registry
from rankmill.report.facts import Report
from rankmill.report.report_files import write_report
from rankmill.report.subject import subject_of_work
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.forest.forest import Forest
from rankmill.trainer.candidates.train_on_dataset import train
from rankmill.trainer.candidates.version_facts import attachments_of, facts_of
from rankmill.trainer.rounds.training_result import Curves
from rankmill.trainer.training_options import TrainingOptions
from tests.rankmill.gate.gate_case import dataset_of, rows_of
from tests.trainer.fixed import fixed

METRICS = ("ndcg@10", "err@10", "map")
HOSTILE = "<script>alert('x')</script>"


class Work:
    """A work folder and its registry."""

    def __init__(self, folder: Path, *, split=None, hostile: bool = False) -> None:
        self.path, self.registry = folder / "work", folder / "registry"
        self.path.mkdir()
        self.store = Registry(self.registry)
        self.store.prepare()
        x, grades, qid = rows_of(3, queries=120)
        x[::7, 3] = np.nan
        extra = {"position": [str(i % 12 + 1) for i in range(len(x))]}
        options = {} if split is None else {"split": split}
        self.dataset: Dataset = dataset_of(self.path, "dataset", x, grades, qid, extra=extra, **options)
        (self.path / "dataset.csv").unlink()

    def train(self, **parameters) -> tuple[str, dict]:
        """Train and register a version; returns its name and what training.json says of the seed."""
        options = {"n_rounds": 8, "max_leaves": 5, "min_rows_in_leaf": 5, **parameters}
        result = train(self.dataset, fixed(**options), TrainingOptions(n_threads=1))
        facts = facts_of(self.dataset, result)
        version = self.store.register(
            "web", result.forest.to_bytes(), manifest=as_json(facts), attachments=attachments_of(self.dataset)
        )
        reported = {
            "seed": options.get("seed", 7),
            "best_round": result.best_round,
            "curves": as_json(Curves.of(result.history)),
        }
        return str(version), reported

    def forest(self, version: str) -> Forest:
        return Forest.from_bytes(self.store.resolve(version, bare="latest").read(), version)

    def judge(self, version: str, *, split: str = "test", promote: bool = True, **limits) -> dict:
        """Evaluate, ask the gate, and promote what has passed, as the stages of a run do."""
        found = evaluate(self.dataset.path, model=self.forest(version), split=split, metrics=METRICS)
        report = {"model": {"version": version}, "split": split, **as_json(found.record())}
        (self.path / "evaluation.json").write_text(json.dumps(report, sort_keys=True))
        result = gate(self.store, version, self.dataset, split, n_threads=1, asked=GateOptions(**limits))
        self.trained_here(version)
        if promote and result.passed:
            self.store.promote("web", int(version.rpartition("@")[2]))
        return as_json(result.report)

    def trained_here(self, version: str, training: dict | None = None) -> None:
        """Write the records of a run that trained ``version``."""
        (self.path / "stages").mkdir(exist_ok=True)
        (self.path / "stages" / "train.json").write_text(json.dumps({"facts": {"model": version}}))
        if training is not None:
            (self.path / "model").mkdir(exist_ok=True)
            (self.path / "model" / "training.json").write_text(json.dumps(training))

    def report(self, out: Path | None = None, *, by=(), n_threads: int = 1, **known) -> Report:
        """Write the report of the run and return its facts."""
        subject = subject_of_work(self.path, self.store, by, **known)
        paths = write_report(subject, out or self.path / "report", n_threads=n_threads)
        return read_report(paths.facts)


def read_report(path: Path) -> Report:
    """Read ``report.json``."""
    return from_json(Report, path.read_bytes(), str(path))
