"""The alias moves to the candidate, if nothing stands against it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankmill.gate.recording import gate_in
from rankmill.run.events import Artefact
from rankmill.run.records import Inputs
from rankmill.run.stage import Made, Say, Stage
from rankmill.run.stages.gate import result_of, taken_back
from rankmill.run.stages.rerank import try_candidates

if TYPE_CHECKING:
    from rankmill.run.records import Record


class Promote(Stage):
    """An entry in the registry's log for each alias that the candidate takes.

    What decides is the registry, not a record: the alias is moved once, and not again after somebody took it back.
    """

    name = "promote"

    @property
    def aliases(self) -> list[str]:
        """What the candidate may take and does not have yet."""
        config, candidate = self.work.config, self.work.candidate
        asked = [] if config.promote is None else [config.promote.alias]
        if config.gate is not None and self._passed():
            asked.append(config.gate.alias)
        return [
            alias
            for alias in asked
            if candidate.state.target(alias) != candidate.number and taken_back(self.work, alias) is None
        ]

    def unasked(self) -> str | None:
        return None if self._named() else "the configuration has neither [gate] nor [promote]"

    def needless(self) -> str | None:
        if (why := self.unasked()) is not None:
            return why
        candidate = self.work.candidate
        if self.aliases:
            return None
        held = [alias for alias in self._named() if candidate.state.target(alias) == candidate.number]
        if held:
            return f"{candidate} is {' and '.join(held)} already"
        back = next((told for alias in self._named() if (told := taken_back(self.work, alias))), None)
        return back or f"{candidate} did not pass the gate against what is there now"

    def _passed(self) -> bool:
        """Tell whether the newest result of the gate is of the candidate and of what the alias means now, and good enough."""
        result = result_of(self.work)
        if result is None or not result.carries:
            return False
        return gate_in(result.entry).baseline == self.work.candidate.state.standing(result.alias)

    def _named(self) -> list[str]:
        config = self.work.config
        return [section.alias for section in (config.promote, config.gate) if section is not None]

    def inputs(self) -> Inputs:
        candidate = self.work.candidate
        return {"model": f"{candidate} {candidate.sha256}"} | {
            f"alias {alias}": str(candidate.state.target(alias)) for alias in self._named()
        }

    def doing(self) -> str:
        return f"{self.work.candidate} becomes {' and '.join(self.aliases)}"

    def run(self, say: Say) -> Made:
        candidate = self.work.candidate
        try_candidates(self.work, candidate)  # what cannot rank today's candidates is not to be what users see
        moved = {}
        for alias in self.aliases:
            before = candidate.state.target(alias)
            self.work.registry.promote(
                candidate.name, candidate.number, alias=alias, expect=before, reason="rankmill run"
            )
            moved[alias] = None if before is None else f"{candidate.name}@{before}"
        return Made(
            outputs={},
            facts={"model": str(candidate), "moved": moved},
            artefacts=tuple(
                Artefact(kind="alias", name=f"{candidate.name}@{alias}", digest=candidate.sha256) for alias in moved
            ),
        )

    def fault(self, record: Record) -> str | None:
        return "the alias means another version"
