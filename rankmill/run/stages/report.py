"""What the run has found, as a page, as JSON and as Markdown."""

from __future__ import annotations

from pathlib import Path

from rankmill.foundation.code_digest import code_digest
from rankmill.gate.recording import gate_in
from rankmill.registry.names import PRODUCTION
from rankmill.report.subject import Known
from rankmill.report.writing import write_report
from rankmill.run.events import Artefact
from rankmill.run.names import DRIFT, EVALUATION, GATE, REPORT, TRAINING
from rankmill.run.records import CODE, Inputs, as_options
from rankmill.run.stage import Made, Say, Stage
from rankmill.run.stages.gate import result_of
from rankmill.run.work import told_version


class Report(Stage):
    """``WORK/report``: also of a version that is not promoted."""

    name = "report"

    @property
    def alias(self) -> str:
        """Whose place the candidate was to take."""
        promote = self.work.config.promote
        return self.work.alias or (PRODUCTION if promote is None else promote.alias)

    def inputs(self) -> Inputs:
        candidate, measured = self.work.candidate, self.work.config.evaluate
        moves = candidate.state.moves.get(self.alias, [])
        inputs = {
            CODE: code_digest("rankmill"),
            "dataset": self.work.dataset().digest,
            "model": f"{candidate} {candidate.sha256} {candidate.manifest_sha256}",
            f"alias {self.alias}": " ".join(str(move.version) for move in moves),
            **as_options(
                alias=self.alias,
                split=self.work.split,
                metrics=measured.metrics,
                by=self.work.config.report.by,
                **measured.conventions,
            ),
        }
        read = [EVALUATION, TRAINING, DRIFT]
        if (result := result_of(self.work)) is not None:
            inputs["result of the gate"] = gate_in(result.entry).report
        else:
            read.append(GATE)  # of a configuration that had a gate
        for name in read:
            if (self.work.path / name).is_file():
                inputs[f"file {name}"] = self.work.digests.of(self.work.path / name)
        return inputs

    def doing(self) -> str:
        return f"{self.work.candidate}, in {self.work.named(self.work.path / REPORT)}"

    def reads(self) -> tuple[Artefact, ...]:
        return (self.work.told_dataset(), told_version(self.work.candidate))

    def run(self, say: Say) -> Made:
        day = None if self.work.day is None else self.work.day.isoformat()
        measured, gated, result = self.work.config.evaluate, self.work.config.gate, result_of(self.work)
        paths = write_report(
            self.work.path,
            self.work.registry.root,
            by=self.work.config.report.by,
            known=Known(
                version=str(self.work.candidate),
                alias=self.alias,
                split=self.work.split,
                metrics=measured.metrics if gated is None else None,
                conventions=measured.conventions,
                gate=None if result is None else result.report,
                date=day,
            ),
        )
        made: list[Path] = [paths.page, paths.facts, paths.markdown]
        outputs = {path.relative_to(self.work.path).as_posix(): self.work.digests.of(path) for path in made}
        return Made(
            outputs=outputs,
            facts={
                "title": paths.title,
                "page": paths.page.relative_to(self.work.path).as_posix(),
                "model": str(self.work.candidate),
                "date": day,
            },
            artefacts=tuple(map(self.work.told_file, made)),
        )
