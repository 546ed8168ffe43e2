"""The result of a run as text and as JSON, from the facts of its stages, whether executed now or before."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankmill.foundation.errors import DriftAlarm, PromotionRefused, code_of
from rankmill.foundation.exit_codes import ruling
from rankmill.foundation.records import as_json, to_line
from rankmill.foundation.storage.location import Location
from rankmill.foundation.storage.url_arguments import url_of
from rankmill.run import EVALUATION
from rankmill.run.drift import DriftFound, unreported_drift
from rankmill.run.gate_stages import result_of, taken_back
from rankmill.run.stage_choice import STAGE_NAMES
from rankmill.run.stage_facts import RunFacts

if TYPE_CHECKING:
    from rankmill.gate.recording import GateResult
    from rankmill.registry import Version
    from rankmill.run.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The results of a run and their paths; None for stages not configured or not reached."""

    work: Path
    registry: Location
    facts: RunFacts
    version: Version | None = None
    gate: GateResult | None = None
    refused: str | None = None
    """Why the candidate is not promoted, if the reason is not the gate."""
    drift: DriftFound | None = None
    """The drift of the data, unless an earlier run has reported it."""
    former: Mapping[str, int] = field(default_factory=dict)
    """For each alias that points to the candidate, its previous version, if any: the target of a rollback."""

    @classmethod
    def of(cls, work: Work) -> RunReport:
        """Collect the facts of the stages that ``work`` has reached."""
        facts, reached = work.facts, STAGE_NAMES[: STAGE_NAMES.index(work.until) + 1]
        report = cls(work=work.path, registry=work.registry.root, facts=facts)
        if work.config.drift is not None and facts.drift is not None:
            report = replace(report, drift=unreported_drift(work.dataset(), work.config.drift, work.path))
        if facts.train is None:
            return report
        candidate = work.candidate
        sections = (("gate", work.config.gate), ("promote", work.config.promote))
        aliases = [section.alias for stage, section in sections if section is not None and stage in reached]
        return replace(
            report,
            version=candidate,
            gate=result_of(work) if "gate" in reached else None,
            refused=next((reason for alias in aliases if (reason := taken_back(work, alias))), None),
            former={
                alias: before for alias in candidate.aliases if (before := candidate.state.before(alias)) is not None
            },
        )

    def summary(self) -> dict[str, Any]:
        """Return the facts of each stage, the version, the verdict of the gate and the rollbacks, as JSON values.

        Who has which alias now is among those of the version.
        """
        version, gate = self.version, self.gate
        facts = {"version": str(version), "registry": str(self.registry)}
        verdict = ("alias", "passed", "baseline", "entry", "report_sha256")
        return {
            **{name: as_json(getattr(self.facts, name)) for name in STAGE_NAMES if name != "promote"},
            "model": None if version is None else facts | {"sha256": version.sha256, "aliases": [*version.aliases]},
            "gate": None
            if gate is None
            else {name: getattr(gate, name) for name in verdict}
            | {"reasons": [*gate.report.reasons], "notes": [*gate.report.notes]},
            "rollback": self.rollbacks(),
        }

    def render(self, *, json: bool = False) -> str:
        """Return the report as text, or as one JSON object."""
        return to_line(self.summary()) if json else "\n".join(self._lines())

    def _lines(self) -> list[str]:
        lines = []
        if clicks := self.facts.clicks:
            lines.append(f"clicks    {clicks.clicks:,} on {clicks.impressions:,} impressions; {clicks.why}")
        if dataset := self.facts.ingest:
            lines.append(
                f"dataset   {self.work / 'dataset'}: {dataset.rows:,} documents of {dataset.queries:,} queries,"
                f" {dataset.features} features"
            )
        if drift := self.facts.drift:
            moved = ", ".join(drift.alarms) or "nothing drifted"
            lines.append(f"drift     {moved if drift.against else 'nothing to compare with yet'}")
        if self.version is not None:
            aliases = f", now {', '.join(self.version.aliases)}" if self.version.aliases else ", not promoted"
            lines.append(f"model     {self.version} in {self.registry}{aliases}; sha256 {self.version.sha256[:12]}")
        if naive := self.facts.naive:
            lines.append(f"naive     {naive.model}, from the same clicks without correction")
        if found := self.facts.evaluate:
            metrics = found.metrics
            means = ", ".join(f"{name} {each.mean:.4f}" for name, each in metrics.items() if each.mean is not None)
            queries = max((each.n_queries for each in metrics.values()), default=0)
            lines.append(f"{found.split:<9} {means} ({queries:,} queries; {self.work / EVALUATION})")
        if self.gate is not None:
            verdict = "passed" if self.gate.passed else "did not pass"
            shown = f"rankmill models gate {self.version} --show"
            lines.append(f"gate      {verdict}, for {self.gate.alias}; details: {shown}")
            lines += [f"note      {note}" for note in self.gate.report.notes]
        if self.refused is not None:
            lines.append(f"promote   {self.refused}")
        if (ranked := self.facts.rerank) is not None:
            name = f"{ranked.model.name}@{ranked.model.number}"
            ranked_by = "" if name == str(self.version) else f", by {name}"
            lines.append(
                f"ranked    {self._place_of(ranked.out)}: {ranked.rows_written:,} documents of {ranked.queries:,}"
                f" queries{ranked_by}"
            )
        if (page := self.facts.report) is not None:
            lines.append(f"report    {self.work / page.page}: {page.title}")
        lines += [f"roll back {command}" for command in self.rollbacks()]
        return lines

    def _place_of(self, out: str) -> str:
        return out if url_of(out) is not None else str(self.work / out)

    def rollbacks(self) -> list[str]:
        """Return the commands that roll back each alias."""
        if self.version is None:
            return []
        model, registry = self.version.name, shlex.quote(str(self.registry))
        return [
            f"rankmill models rollback {model} --alias {alias} --to {before} --registry {registry}"
            for alias, before in sorted(self.former.items())
        ]

    def require(self) -> None:
        """Raise the most important problem, if there is one.

        Raises
        ------
        DriftAlarm
            The data have drifted.
        PromotionRefused
            The version is not promoted.
        """
        found: list[Exception] = [] if self.refused is None else [PromotionRefused(self.refused)]
        required = [] if self.drift is None else [self.drift.require]
        required += [] if found or self.gate is None else [self.gate.require_carrying]
        for require in required:
            try:
                require()
            except (DriftAlarm, PromotionRefused) as error:
                found.append(error)
        rules = ruling([code_of(error) for error in found])
        ruled = next((each for each in found if code_of(each) == rules), None)
        if ruled is not None:
            raise ruled
