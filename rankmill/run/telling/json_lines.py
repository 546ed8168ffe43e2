"""Events as JSON lines, for whatever collects logs: one object a line, every line complete.

Fields of every line: ``ts``, ``level``, ``event``, ``run_id``, ``message`` and ``peak_memory_bytes``; of those of a stage
``stage``; of what ends ``seconds``; and what the event says besides (docs/observing.md has them all).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from rankmill.foundation.errors import code_of
from rankmill.foundation.exit_codes import DONE, DRIFT, GATE_NOT_PASSED
from rankmill.run.events import (
    Artefact,
    Event,
    RunEnded,
    RunStarted,
    StageDone,
    StageFailed,
    StageSaid,
    StageSkipped,
    StageStarted,
)
from rankmill.run.telling.clock import Clock, Stopwatch, rfc3339
from rankmill.run.telling.plain import json_line
from rankmill.run.telling.words import error_line, message

Level = Literal["info", "warning", "error"]
RUN_STARTED = "run_started"
_NAMES: dict[type[Any], str] = {
    RunStarted: RUN_STARTED,
    StageSkipped: "stage_skipped",
    StageStarted: "stage_started",
    StageSaid: "stage_said",
    StageDone: "stage_done",
    StageFailed: "stage_failed",
    RunEnded: "run_ended",
}
_RUN = "run"
_FINDINGS = {DRIFT, GATE_NOT_PASSED}
_LINEAGE_ONLY = "columns"
_MOST_LISTED = 100  # artefacts in a line; the lineage has all


def peak_memory() -> int:
    """Return the most bytes that this process has had so far."""
    from rankmill.scorer.memory import peak_bytes

    return peak_bytes()


class Records:
    """Turns events into the objects of the log; knows which run they are of and when its stages began."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._watch = Stopwatch(self._clock)
        self.run_id: str | None = None

    def of(self, event: Event) -> dict[str, Any]:
        """Return the object of ``event``."""
        if isinstance(event, RunStarted):
            self.run_id = event.run_id
            self._watch.start(_RUN)
        elif isinstance(event, StageStarted):
            self._watch.start(event.stage)
        record: dict[str, Any] = {
            "ts": rfc3339(self._clock.now()),
            "level": level(event),
            "event": _NAMES[type(event)],
            "run_id": self.run_id,
        }
        stage = getattr(event, "stage", None)
        if stage is not None:
            record["stage"] = stage
        record["message"] = message(event)
        return record | self._details(event) | {"peak_memory_bytes": peak_memory()}

    def _details(self, event: Event) -> dict[str, Any]:
        match event:
            case RunStarted():
                said = {"config": event.config, "work": event.work, "stages": event.stages}
                given = {"logical_date": event.logical_date, "died": event.died}
                return said | {name: value for name, value in given.items() if value is not None}
            case StageSkipped():
                return {"why": event.why}
            case StageStarted():
                return {"why": event.why} | _listed("inputs", event.inputs)
            case StageDone():
                told = {"seconds": self._lasted(event.stage), "facts": event.facts}
                return told | _listed("outputs", event.outputs)
            case StageFailed():
                said = {"seconds": self._lasted(event.stage), "stopped": event.stopped}
                error = {"kind": type(event.error).__name__, "message": error_line(event.error)}
                return said | {"error": error, "exit_code": code_of(event.error)}
            case RunEnded():
                said = {"seconds": self._lasted(_RUN), "outcome": event.outcome, "exit_code": event.exit_code}
                return said | {"facts": event.facts}
            case _:
                return {}

    def _lasted(self, what: str) -> float:
        return round(self._watch.lasted(what), 3)


def level(event: Event) -> Level:
    """Return how much somebody should care."""
    match event:
        case RunStarted():
            return "info" if event.died is None else "warning"
        case StageFailed():
            return "warning" if event.stopped or code_of(event.error) in _FINDINGS else "error"
        case RunEnded():
            if event.exit_code == DONE:
                return "info"
            return "warning" if event.outcome == "stopped" or event.exit_code in _FINDINGS else "error"
        case _:
            return "info"


def artefact(given: Artefact) -> dict[str, Any]:
    """Return what a log says of an artefact."""
    facts: Mapping[str, Any] = {name: value for name, value in given.facts.items() if name != _LINEAGE_ONLY}
    digest = {} if given.digest is None else {"sha256": given.digest}
    return {"kind": given.kind, "name": given.name} | digest | ({"facts": facts} if facts else {})


def _listed(name: str, given: Sequence[Artefact]) -> dict[str, Any]:
    told: dict[str, Any] = {name: [artefact(each) for each in given[:_MOST_LISTED]]}
    return told | ({f"{name}_not_listed": len(given) - _MOST_LISTED} if len(given) > _MOST_LISTED else {})


class JsonLines:
    """Observer that calls ``write`` with one line, with its line feed, for each thing that happens."""

    def __init__(self, write: Callable[[str], None], clock: Clock | None = None) -> None:
        self._write = write
        self._records = Records(clock)

    @property
    def run_id(self) -> str | None:
        """The run that is under way; None before the first event."""
        return self._records.run_id

    def __call__(self, event: Event) -> None:
        """Write what happened."""
        self._write(json_line(self._records.of(event)))
