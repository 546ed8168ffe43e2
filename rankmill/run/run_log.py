"""What a run reports: text on stderr, and files in ``WORK``.

``log.jsonl`` has a JSON line for each event; ``last_run.json`` is written at its end.

Only this module reads the clock, so that no time gets into an artefact. A report that cannot be written, as on a full
disk, does not end the run: one line on stderr says so. docs/formats/run-files.md has all fields.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Literal

from rankmill.foundation.errors import code_of, without_secrets
from rankmill.foundation.errors import one_line as message_of
from rankmill.foundation.exit_codes import DONE, DRIFT, GATE_NOT_PASSED
from rankmill.foundation.process_memory import peak_bytes
from rankmill.foundation.records import as_json
from rankmill.foundation.shown import shown
from rankmill.run.last_run import LastRun
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
    TrainFacts,
)

Level = Literal["info", "warning", "error"]
Outcome = Literal["done", "unchanged", "gate not passed", "drift", "failed", "stopped"]
"""How a run ended; ``unchanged``: no stage had anything to do."""

LOG_NAME = "log.jsonl"
LONGEST = 16_384  # characters of a text: an error may quote a long line
_RUN = "run"
_FINDINGS = {DRIFT, GATE_NOT_PASSED}
_CHUNK = 1 << 16


def write_line(line: str) -> None:
    """Write ``line`` to stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def utc_now() -> datetime:
    """Return the time of day in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class RunClock:
    """The time of day in UTC, and the seconds of a monotonic clock."""

    now: Callable[[], datetime] = utc_now
    seconds: Callable[[], float] = time.monotonic


class RunLog:
    """The report of one run.

    Parameters
    ----------
    work
        The work folder, where ``log.jsonl`` and ``last_run.json`` are written.
    run_id
        Identifies the run in all lines.
    day
        The logical date.
    write
        Receives each line of text, without line feed.
    clock
        The clock.
    """

    def __init__(
        self,
        work: Path,
        run_id: str,
        day: date | None = None,
        *,
        write: Callable[[str], None] = write_line,
        clock: RunClock | None = None,
    ) -> None:
        self._work, self._log, self._run_id, self._day = work, work / LOG_NAME, run_id, day
        self._write, self._clock = write, clock or RunClock()
        self._began_at = self._clock.now()
        self._began: dict[str, float] = {}
        self._stages: dict[str, str] = {}
        self._error: str | None = None
        self._log_failed = False

    def started(self, config: Path, stages: Sequence[str], died: str | None = None) -> None:
        """Report that the run begins; ``died`` describes an earlier run that was killed."""
        self._began[_RUN] = self._clock.seconds()
        if died is not None:
            self._say(died)
        on = "" if self._day is None else f" of {self._day.isoformat()}"
        text = f"run{on}: {printable(os.fspath(config))} into {printable(os.fspath(self._work))}"
        level: Level = "info" if died is None else "warning"
        fields: dict[str, Any] = {
            "config": config,
            "work": self._work,
            "stages": stages,
            "logical_date": self._day,
            "died": died,
        }
        self._append("run_started", text, level, **fields)

    def skipped(self, stage: str, why: str) -> None:
        """Report that ``stage`` has nothing to do."""
        self._stages[stage] = f"skipped: {why}"
        self._say(f"{stage}: skipped, {why}")
        self._append("stage_skipped", why, stage=stage, why=why)

    def began(self, stage: str, doing: str, why: str) -> None:
        """Report that ``stage`` begins, what it does and why."""
        self._began[stage] = self._clock.seconds()
        text = f"{doing} ({why})" if why else doing
        self._say(f"{stage}: {text}")
        self._append("stage_started", text, stage=stage, why=why)

    def said(self, stage: str, line: str) -> None:
        """Report a message of ``stage`` while it works."""
        for each in line.split("\n"):
            self._say(each)
        self._append("stage_said", line, stage=stage)

    def done(self, stage: str, facts: Facts) -> None:
        """Report that ``stage`` has published its output."""
        self._stages[stage] = "done"
        found = ", ".join(_found(facts))
        text, seconds = f"done: {found}" if found else "done", self._lasted(stage)
        self._say(f"{stage}: {text} [{lasting(seconds)}]")
        self._append("stage_done", text, stage=stage, seconds=round(seconds, 3), facts=facts)

    def failed(self, stage: str, error: BaseException) -> None:
        """Report that ``stage`` failed or was interrupted. The command prints the error."""
        stopped, seconds, code = was_stopped(error), self._lasted(stage), code_of(error)
        what = printable(message_of(error)) or type(error).__name__
        self._stages[stage] = "stopped" if stopped else "failed"
        self._error = None if stopped else message_of(error)
        text = "stopped; the next run resumes here" if stopped else f"failed: {what}"
        self._say(f"{stage}: {text if stopped else 'failed'} [{lasting(seconds)}]")
        level: Level = "warning" if stopped or code in _FINDINGS else "error"
        known = {"kind": type(error).__name__, "message": what}
        self._append(
            "stage_failed", text, level, stage=stage, seconds=round(seconds, 3), stopped=stopped, error=known,
            exit_code=code
        )  # fmt: skip

    def ended(self, outcome: Outcome, exit_code: int, facts: Mapping[str, Any] | None = None) -> None:
        """Report the end of the run, and write ``last_run.json``; ``last_success.json`` too if it succeeded."""
        seconds = self._lasted(_RUN)
        text = outcome if exit_code == DONE else f"{outcome}, exit code {exit_code}"
        self._say(f"run: {text} [{lasting(seconds)}]")
        level: Level = "error"
        if exit_code == DONE:
            level = "info"
        elif outcome == "stopped" or exit_code in _FINDINGS:
            level = "warning"
        self._append(
            "run_ended", text, level, seconds=round(seconds, 3), outcome=outcome, exit_code=exit_code, facts=facts or {}
        )
        record = LastRun(
            run_id=self._run_id,
            date=None if self._day is None else self._day.isoformat(),
            began=self._began_at.isoformat(timespec="seconds"),
            ended=self._clock.now().isoformat(timespec="seconds"),
            outcome=outcome,
            exit_code=exit_code,
            stages=self._stages,
            error=self._error,
        )
        with suppress(OSError):  # on a full disk the run fails because of its own output
            record.write(self._work)

    def _lasted(self, what: str) -> float:
        now = self._clock.seconds()
        return max(0.0, now - self._began.get(what, now))

    def _say(self, line: str) -> None:
        with suppress(Exception):  # the reader of stderr may be gone
            self._write(printable(line))

    def _append(self, event: str, message: str, level: Level = "info", **fields: Any) -> None:
        """Append an event to the log; fields that are None are left out."""
        moment = self._clock.now().astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        record: dict[str, Any] = {
            "ts": moment,
            "level": level,
            "event": event,
            "run_id": self._run_id,
            "message": printable(message),
        }
        record |= {name: value for name, value in fields.items() if value is not None}
        record["peak_memory_bytes"] = peak_bytes()
        try:
            append_line(self._log, json_line(record))
        except Exception as error:  # it is tried again with the next event, as a full disk may have space again
            if not self._log_failed:
                self._log_failed = True
                self._say(f"log {self._log}: {message_of(error)}; the run continues without it")


def was_stopped(error: BaseException) -> bool:
    """Whether ``error`` is a request to end, not a failure."""
    return isinstance(error, SystemExit | KeyboardInterrupt)


def printable(text: str) -> str:
    """Return ``text`` on one line, with control characters as escapes."""
    return shown(" ".join(whole_text(without_secrets(text)).split("\n")).replace("\t", " ")).strip()


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
    """Return the main results of a stage for its line."""
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


def json_line(record: Mapping[str, object]) -> str:
    r"""Return ``record`` as one line of ASCII JSON with a line feed, which every reader accepts.

    Invalid bytes of file names become ``\xNN``, infinite numbers and NaN become null, and long texts are cut.

    >>> json_line({"a": float("nan"), "b": Path("x"), "c": os.fsdecode(b"caf\xe9")})
    '{"a": null, "b": "x", "c": "caf\\\\xe9"}\n'
    """
    return json.dumps(_plain(as_json(record)), ensure_ascii=True, allow_nan=False) + "\n"


def _plain(value: object) -> Any:
    if isinstance(value, dict):
        return {_text(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, str):
        return _text(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(text: str) -> str:
    text = whole_text(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def whole_text(text: str) -> str:
    r"""Return ``text`` as valid Unicode: invalid bytes of file names as ``\xNN``, other surrogates as ``\uNNNN``."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


def append_line(path: Path, line: str) -> None:
    """Append ``line``, which ends with a line feed, after the last complete line of ``path``.

    An incomplete line, left by a killed process or a full disk, can only be the last one, and is removed here.
    """
    data = line.encode("ascii")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        end = _cut_torn_line(handle)
        written = 0
        try:
            while written < len(data):
                written += os.write(handle, data[written:])
        except BaseException:
            with suppress(OSError):
                os.ftruncate(handle, end)
            raise
    finally:
        os.close(handle)


def _cut_torn_line(handle: int) -> int:
    """Truncate the file after its last line feed; return its size."""
    size = end = os.fstat(handle).st_size
    while end > 0:
        begin = max(0, end - _CHUNK)
        found = os.pread(handle, end - begin, begin).rfind(b"\n")
        if found >= 0:
            end = begin + found + 1
            break
        end = begin
    if end < size:
        os.ftruncate(handle, end)
    return end
