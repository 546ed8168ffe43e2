"""What the candidate is worth on queries that the training has not seen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rankmill.foundation.code_digest import code_digest
from rankmill.foundation.storage.publish import write_atomically
from rankmill.run.events import Artefact
from rankmill.run.names import EVALUATION
from rankmill.run.records import CODE, Inputs, as_options
from rankmill.run.stage import Made, Say, Stage
from rankmill.run.work import told_version
from rankmill.scorer.evaluate import evaluate

if TYPE_CHECKING:
    from rankmill.run.records import Record


class Evaluate(Stage):
    """``WORK/evaluation.json``."""

    name = "evaluate"

    def needless(self) -> str | None:
        return None if self.work.split is not None else "there are no queries that the training has not seen"

    def inputs(self) -> Inputs:
        config = self.work.config.evaluate
        return {
            CODE: code_digest("rankmill.pipeline", "rankmill.scorer"),
            "dataset": self.work.dataset().digest,
            "model": self._model,
            **as_options(split=self.work.split, metrics=config.metrics, **config.conventions),
        }

    @property
    def _model(self) -> str:
        return f"{self.work.candidate} {self.work.candidate.sha256}"

    def holds(self, record: Record) -> bool:  # not what another version was worth
        return record.inputs["model"] == self._model

    def doing(self) -> str:
        return f"{self.work.candidate} on {self.work.split}"

    def reads(self) -> tuple[Artefact, ...]:
        return (self.work.told_dataset(), told_version(self.work.candidate))

    def run(self, say: Say) -> Made:
        config, candidate = self.work.config.evaluate, self.work.candidate
        found = evaluate(
            self.work.dataset_path,
            model=self.work.forest_of(candidate),
            split=self.work.split,
            metrics=config.metrics,
            **config.conventions,
        )
        path = self.work.path / EVALUATION
        facts: dict[str, Any] = {"split": self.work.split, **found.to_dict()}
        report = {"model": {"version": str(candidate), "sha256": candidate.sha256}, **facts}
        text = json.dumps(report, sort_keys=True, ensure_ascii=False, allow_nan=False)
        write_atomically(path, f"{text}\n".encode())
        digest = self.work.digests.of(path)
        return Made(outputs={EVALUATION: digest}, facts=facts, artefacts=(self.work.told_file(path),))
