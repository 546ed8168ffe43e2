"""A run from its configuration to its end: the lease, the stages, what is told, and what stays known of it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankmill.config_file import read_config
from rankmill.foundation.errors import code_of, one_line
from rankmill.foundation.exit_codes import DONE, DRIFT, GATE_NOT_PASSED
from rankmill.foundation.storage.publish import write_atomically
from rankmill.run import LAST_RUN, LAST_SUCCESS
from rankmill.run.chain import NAMES, Choice, check_inputs, plan, run_stages
from rankmill.run.drift import keep_for_next
from rankmill.run.dry import links_to
from rankmill.run.events import Event, Observer, Outcome, RunEnded, RunStarted, StageDone, StageFailed, StageSkipped
from rankmill.run.lease import hold
from rankmill.run.outcome import RunReport
from rankmill.run.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of a run besides its configuration.

    Attributes
    ----------
    config
        The file of the configuration.
    registry
        Folder of the registry.
    choice
        Which stages are looked at.
    day
        The logical date.
    rehash
        Whether files are read again whose size, time and inode are as they were.
    dry
        Whether nothing that anybody uses is to change: see `rankmill.run.dry`.
    """

    config: Path
    registry: Path
    choice: Choice = field(default_factory=Choice)
    day: date | None = None
    rehash: bool = False
    dry: bool = False

    def work(self) -> Work:
        """Read the configuration, and say what the run works with."""
        config = read_config(self.config)
        return Work(config, self.config.parent, self.registry, day=self.day, rehash=self.rehash)


def run(asked: Asked, observer: Callable[[Work], Observer], clock: Callable[[], datetime] | None = None) -> RunReport:
    """Do the stages that are due, and tell of them.

    Parameters
    ----------
    observer
        Makes what is told of the run's events, once the configuration is read.
    clock
        Says the time for what stays known of the run; none of it is in an artefact.

    Raises
    ------
    RunUnderWay
        Another run has the work folder.
    PromotionRefused
        All was done, and the candidate may not take its place; only `RunReport.require` raises it, so not here.
    Exception
        Whatever a stage raises, and what is wrong with the configuration.
    """
    clock = clock or (lambda: datetime.now(UTC))
    work = asked.work()
    check_inputs(work, asked.choice)
    work.path.mkdir(parents=True, exist_ok=True)
    run_id = str(uuid.uuid4())
    with hold(work.path, run_id) as lease, ExitStack() as stack:
        if asked.dry:
            work = work.moved(*stack.enter_context(links_to(work.path, work.registry.root)))
        story, watch = _Story(work.path, run_id, asked, clock), observer(work)

        def tell(event: Event) -> None:
            story(event)
            watch(event)

        tell(
            RunStarted(
                run_id=run_id,
                config=asked.config,
                work=work.path,
                stages=asked.choice.stages,
                logical_date=asked.day,
                died=lease.died,
            )
        )
        try:
            done = run_stages(work, asked.choice, tell, lease.at)
            report = RunReport.of(work, asked.choice.reached)
            if asked.dry:  # whose registry is gone at the end: there is nothing to roll back
                report = replace(report, registry=asked.registry, former={})
            tell(_ended(report, done))
            if work.config.drift is not None and asked.choice.last == NAMES[-1]:  # with --until it is not at its end
                keep_for_next(work.dataset(), work.path)
        except BaseException as error:
            stopped, code = isinstance(error, (SystemExit, KeyboardInterrupt)), code_of(error)
            tell(RunEnded(outcome="stopped" if stopped else "drift" if code == DRIFT else "failed", exit_code=code))
            raise
        finally:
            with suppress(OSError):  # it would only be read again
                work.digests.keep()
            lease.end()
    return report


def plan_of(asked: Asked) -> list[tuple[str, str, str]]:
    """Say of each stage what a run would do and why; nothing is written.  Errors are those of `run`."""
    work = asked.work()
    check_inputs(work, asked.choice)
    return plan(work, asked.choice)


def _ended(report: RunReport, done: list[str]) -> RunEnded:
    outcome: Outcome = "done" if done else "unchanged"
    code = DONE
    try:
        report.require()
    except Exception as error:
        code = code_of(error)
        outcome = {GATE_NOT_PASSED: "gate not passed", DRIFT: "drift"}.get(code, "failed")  # type: ignore[assignment]
    return RunEnded(outcome=outcome, exit_code=code, facts=report.to_dict())


class _Story:
    """Keeps ``last_run.json``, and ``last_success.json`` for one that left 0."""

    def __init__(self, work: Path, run_id: str, asked: Asked, clock: Callable[[], datetime]) -> None:
        self._work, self._clock, self._began = work, clock, clock()
        self._stages: dict[str, str] = {}
        self._error: str | None = None
        self._told: Mapping[str, Any] = {
            "run_id": run_id,
            "date": None if asked.day is None else asked.day.isoformat(),
            "began": self._began.isoformat(timespec="seconds"),
        }

    def __call__(self, event: Event) -> None:
        if isinstance(event, StageSkipped):
            self._stages[event.stage] = f"skipped: {event.why}"
        elif isinstance(event, StageDone):
            self._stages[event.stage] = "done"
        elif isinstance(event, StageFailed):
            self._stages[event.stage] = "stopped" if event.stopped else "failed"
            self._error = None if event.stopped else one_line(event.error)
        elif isinstance(event, RunEnded):
            self._end(event)

    def _end(self, event: RunEnded) -> None:
        told = {
            **self._told,
            "ended": self._clock().isoformat(timespec="seconds"),
            "outcome": event.outcome,
            "exit_code": event.exit_code,
            "stages": self._stages,
            "error": self._error,
        }
        data = (json.dumps(told, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "replace")
        with suppress(OSError):  # a full disk ends the run by what it was doing, not by this
            write_atomically(self._work / LAST_RUN, data)
            if event.exit_code == DONE:
                write_atomically(self._work / LAST_SUCCESS, data)
