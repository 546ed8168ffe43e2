"""Events as lines: text for people on stderr, and JSON lines in ``WORK/log.jsonl`` for log collectors.

Every JSON line has the fields ``ts``, ``level``, ``event``, ``run_id``, ``message`` and ``peak_memory_bytes``; events of stages have
``stage``, final events ``seconds``, and each event its own fields (see docs/observing.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, Literal

from rankmill.foundation.errors import code_of, without_secrets
from rankmill.foundation.errors import one_line as said_by
from rankmill.foundation.exit_codes import DONE, DRIFT, GATE_NOT_PASSED
from rankmill.foundation.records import left_out
from rankmill.foundation.shown import shown
from rankmill.run.events import (
    Artefact,
    Event,
    Outcome,
    RunEnded,
    RunStarted,
    StageDone,
    StageFailed,
    StageSaid,
    StageSkipped,
    StageStarted,
)
from rankmill.run.jsonl_file import append_line
from rankmill.run.plain_json import Clock, Stopwatch, json_line, rfc3339, whole_text
from rankmill.run.stage_facts import (
    BinFacts,
    ClicksFacts,
    DriftFacts,
    EvaluateFacts,
    Facts,
    GateFacts,
    IngestFacts,
    NaiveFacts,
    PromoteFacts,
    RerankFacts,
    RunSummary,
    TrainFacts,
)


def message(event: Event) -> str:
    """Format ``event`` on one line, without the name of its stage.

    >>> message(StageDone(stage="promote", facts=PromoteFacts(model="web@7", moved={"production": "web@6"})))
    'done: production is version 7'
    """
    match event:
        case RunStarted():
            on = "" if event.logical_date is None else f" of {event.logical_date.isoformat()}"
            return f"run{on}: {one_line(os.fspath(event.config))} into {one_line(os.fspath(event.work))}"
        case StageSkipped():
            return one_line(event.why)
        case StageStarted():
            return one_line(f"{event.doing} ({event.why})" if event.why else event.doing)
        case StageSaid():
            return one_line(event.line)
        case StageDone():
            found = ", ".join(map(one_line, _found(event.facts)))
            return f"done: {found}" if found else "done"
        case StageFailed():
            return "stopped; the next run resumes here" if event.stopped else f"failed: {error_line(event.error)}"
        case RunEnded():
            return event.outcome if event.exit_code == 0 else f"{event.outcome}, exit code {event.exit_code}"


def error_line(error: BaseException) -> str:
    """Return the message of ``error`` on one line; its class if the message is empty."""
    return one_line(said_by(error)) or type(error).__name__


def one_line(text: str) -> str:
    """Return ``text`` without line breaks and control characters."""
    return printable(text).strip()


def printable(text: str) -> str:
    """Return ``text`` on one line, what would be hidden as escapes, without spaces at the end."""
    return shown(" ".join(whole_text(without_secrets(text)).split("\n")).replace("\t", " ")).rstrip()


def lasting(seconds: float) -> str:
    """Format a duration.

    >>> [lasting(seconds) for seconds in (0.04, 3.21, 75, 7384)]
    ['0.04 s', '3.2 s', '1 min 15 s', '2 h 3 min']
    """
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes} min {left} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _found(facts: Facts) -> list[str]:
    match facts:
        case ClicksFacts():
            return [f"{facts.judgments:,} judgments", f"{facts.clicks:,} clicks in {facts.lists:,} lists"]
        case IngestFacts():
            found = [f"{facts.rows:,} documents", f"{facts.queries:,} queries", f"{facts.features:,} features"]
            return found + [f"{facts.rejected:,} rejected rows"] * (facts.rejected > 0)
        case BinFacts(drift=DriftFacts(psi_max=float() as psi, alarms=alarms)):
            return [f"largest PSI {psi:.3f}, {f'{len(alarms):,} drifted' if alarms else 'no drift'}"]
        case TrainFacts() | NaiveFacts():
            return [facts.model]
        case EvaluateFacts():
            means = [f"{name} {each.mean:.4f}" for name, each in facts.metrics.items() if each.mean is not None]
            return [f"{facts.split} {', '.join(means)}"] if means else []
        case GateFacts(interval=(low, high)):
            verdict = "passed" if facts.passed else "not passed"
            return [f"{verdict}, {facts.metric} {facts.difference:+.4f} ({low:+.4f} to {high:+.4f})"]
        case PromoteFacts():
            number = facts.model.rpartition("@")[2]
            return [f"{alias} is version {number}" for alias in facts.moved]
        case RerankFacts():
            return [f"{facts.rows_written:,} documents", f"{facts.queries:,} queries"]
        case _:
            return []


Level = Literal["info", "warning", "error"]
_NAMES: dict[type[Any], str] = {
    RunStarted: "run_started",
    StageSkipped: "stage_skipped",
    StageStarted: "stage_started",
    StageSaid: "stage_said",
    StageDone: "stage_done",
    StageFailed: "stage_failed",
    RunEnded: "run_ended",
}
_RUN = "run"
_FINDINGS = {DRIFT, GATE_NOT_PASSED}
_MOST_LISTED = 100  # artefacts per line


def peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    from rankmill.foundation.process_memory import peak_bytes

    return peak_bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedArtefact:
    """An input or output of a stage, as in the log."""

    kind: str
    name: str
    sha256: str | None = left_out()
    facts: Mapping[str, Any] | None = left_out()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """An event as in the log; fields without a value are omitted."""

    ts: str
    level: Level
    event: str
    run_id: str | None
    stage: str | None = left_out()
    message: str
    config: Path | None = left_out()
    work: Path | None = left_out()
    stages: tuple[str, ...] | None = left_out()
    logical_date: date | None = left_out()
    died: str | None = left_out()
    why: str | None = left_out()
    inputs: tuple[LoggedArtefact, ...] | None = left_out()
    inputs_not_listed: int | None = left_out()
    seconds: float | None = left_out()
    stopped: bool | None = left_out()
    error: Mapping[str, str] | None = left_out()
    outcome: Outcome | None = left_out()
    exit_code: int | None = left_out()
    facts: Facts | RunSummary | Mapping[str, Any] | None = left_out()
    outputs: tuple[LoggedArtefact, ...] | None = left_out()
    outputs_not_listed: int | None = left_out()
    peak_memory_bytes: int


class Records:
    """Converts events to log records; keeps the run ID and the start times of stages."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._watch = Stopwatch(self._clock)
        self.run_id: str | None = None

    def of(self, event: Event) -> LogRecord:
        """Return the log record of ``event``."""
        if isinstance(event, RunStarted):
            self.run_id = event.run_id
            self._watch.start(_RUN)
        elif isinstance(event, StageStarted):
            self._watch.start(event.stage)
        record = LogRecord(
            ts=rfc3339(self._clock.now()),
            level=level(event),
            event=_NAMES[type(event)],
            run_id=self.run_id,
            stage=getattr(event, "stage", None),
            message=message(event),
            peak_memory_bytes=peak_memory(),
        )
        return self._detailed(record, event)

    def _detailed(self, record: LogRecord, event: Event) -> LogRecord:
        match event:
            case RunStarted():
                return replace(
                    record,
                    config=event.config,
                    work=event.work,
                    stages=event.stages,
                    logical_date=event.logical_date,
                    died=event.died,
                )
            case StageSkipped():
                return replace(record, why=event.why)
            case StageStarted():
                return replace(
                    record,
                    why=event.why,
                    inputs=_listed(event.inputs),
                    inputs_not_listed=_not_listed(event.inputs),
                )
            case StageDone():
                return replace(
                    record,
                    seconds=self._lasted(event.stage),
                    facts=event.facts,
                    outputs=_listed(event.outputs),
                    outputs_not_listed=_not_listed(event.outputs),
                )
            case StageFailed():
                return replace(
                    record,
                    seconds=self._lasted(event.stage),
                    stopped=event.stopped,
                    error={"kind": type(event.error).__name__, "message": error_line(event.error)},
                    exit_code=code_of(event.error),
                )
            case RunEnded():
                return replace(
                    record,
                    seconds=self._lasted(_RUN),
                    outcome=event.outcome,
                    exit_code=event.exit_code,
                    facts=event.facts or {},
                )
            case _:
                return record

    def _lasted(self, what: str) -> float:
        return round(self._watch.lasted(what), 3)


def level(event: Event) -> Level:
    """Return the log level of ``event``."""
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


def artefact(given: Artefact) -> LoggedArtefact:
    """Return the log record of an artefact."""
    return LoggedArtefact(kind=given.kind, name=given.name, sha256=given.digest, facts=given.facts or None)


def _listed(given: Sequence[Artefact]) -> tuple[LoggedArtefact, ...]:
    return tuple(map(artefact, given[:_MOST_LISTED]))


def _not_listed(given: Sequence[Artefact]) -> int | None:
    return len(given) - _MOST_LISTED if len(given) > _MOST_LISTED else None


class TextLines:
    """Observer that calls ``write`` with a line of text, without line feed, for each event.

    Error messages are left to `rankmill.cli`.
    """

    def __init__(self, write: Callable[[str], None], clock: Clock | None = None) -> None:
        self._write = write
        self._watch = Stopwatch(clock or Clock())

    def __call__(self, event: Event) -> None:
        """Write what happened."""
        match event:
            case RunStarted():
                self._watch.start(_RUN)
                if event.died is not None:
                    self._write(one_line(event.died))
            case StageSkipped():
                self._write(f"{event.stage}: skipped, {message(event)}")
            case StageSaid():
                for line in event.line.split("\n"):
                    self._write(one_line(line))
            case StageStarted():
                self._watch.start(event.stage)
                self._write(f"{event.stage}: {message(event)}")
            case StageDone():
                self._write(f"{event.stage}: {message(event)} [{self._lasted(event.stage)}]")
            case StageFailed():
                what = message(event) if event.stopped else "failed"
                self._write(f"{event.stage}: {what} [{self._lasted(event.stage)}]")
            case RunEnded():
                self._write(f"run: {message(event)} [{self._lasted(_RUN)}]")

    def _lasted(self, what: str) -> str:
        return lasting(self._watch.lasted(what))


class LogFile:
    """Observer that appends each event as a JSON line to ``path``."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self._path = path
        self._records = Records(clock)

    def __call__(self, event: Event) -> None:
        """Append ``event``."""
        append_line(self._path, json_line(self._records.of(event)))
