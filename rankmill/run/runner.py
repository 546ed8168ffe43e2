"""Execute a run: take the lease, execute the stages in order, emit events, and write ``last_run.json``.

A stage is executed if one of its inputs has changed.  Each publishes its output atomically and then its record.  So a
killed run leaves the last complete dataset, evaluation and lists, and the next run resumes with the first stage without
a record for its inputs.  A version that fails the gate is registered but not promoted; the current version ranks the
lists.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from rankmill.foundation.errors import code_of
from rankmill.foundation.exit_codes import DONE, DRIFT, GATE_NOT_PASSED
from rankmill.foundation.options import spelled_for
from rankmill.run.click_stages import ClicksStage, NaiveStage
from rankmill.run.data_stages import BinStage, IngestStage
from rankmill.run.drift import check_drift, keep_for_next
from rankmill.run.gate_stages import GateStage, PromoteStage, refuse_protected
from rankmill.run.model_stages import EvaluateStage, TrainStage
from rankmill.run.outcome import RunReport
from rankmill.run.output_stages import ReportStage, RerankStage
from rankmill.run.run_lock import hold
from rankmill.run.run_log import Outcome, RunClock, RunLog, was_stopped, write_line
from rankmill.run.stage import StageRecord, key_of, read_record, reason_to_run, write_record
from rankmill.run.stage_choice import STAGE_NAMES, WITHOUT_CLICKS

if TYPE_CHECKING:
    from rankmill.run.stage import Inputs, Stage
    from rankmill.run.work import Work

STAGES: tuple[type[Stage], ...] = (
    ClicksStage,
    IngestStage,
    BinStage,
    NaiveStage,
    TrainStage,
    EvaluateStage,
    GateStage,
    PromoteStage,
    RerankStage,
    ReportStage,
)


UNCHANGED = "nothing has changed"


def check_inputs(work: Work) -> None:
    """Check everything that can be checked before the first stage.

    Raises
    ------
    InputError
        A pattern matches no file, or the base model does not exist.
    ConfigError
        Two parts of the configuration, or it and the registry, contradict each other.
    """
    stages = [kind.name for kind in _stages(work)]
    if work.config.clicks is not None:
        ClicksStage(work).files  # noqa: B018 (it raises)
    if IngestStage.name in stages:
        IngestStage(work).files  # noqa: B018 (it raises)
    if work.config.rerank is not None and PromoteStage.name in stages:
        RerankStage(work).files, RerankStage(work).runs
    if TrainStage.name in stages:
        TrainStage(work).base, TrainStage(work).others
    if work.config.drift is not None:
        check_drift(work.config.drift, work.one_path, work.dataset_path)
    refuse_protected(work)


def run_stages(work: Work, log: RunLog, at: Callable[[str], None]) -> list[str]:
    """Execute the stages that are due, and return their names.

    Parameters
    ----------
    log
        Receives what happens.
    at
        Called with the name of each stage before it begins.

    Raises
    ------
    Exception
        Any error of a stage; the output of earlier stages stays, and the next run resumes there.
    """
    return [kind.name for kind in _stages(work) if _do_if_due(kind(work), log, at)]


def _stages(work: Work) -> list[type[Stage]]:
    """Return the stages up to the last one; those about clicks only with ``[clicks]``."""
    known = WITHOUT_CLICKS if work.config.clicks is None else STAGE_NAMES
    return [kind for kind in STAGES[: STAGE_NAMES.index(work.until) + 1] if kind.name in known]


def _due(stage: Stage) -> tuple[Inputs, str | None]:
    """Return the inputs of ``stage``, and why to execute it.

    If nothing has changed, its facts are those of its record.
    """
    record, inputs = read_record(stage.work.stages, stage.name, stage.facts), stage.inputs()
    why = reason_to_run(stage, record, inputs)
    if why is None and record is not None:
        setattr(stage.work.facts, stage.name, record.facts)
    return inputs, why


def _do_if_due(stage: Stage, log: RunLog, at: Callable[[str], None]) -> bool:
    name, work = stage.name, stage.work
    if (nothing := stage.skip_reason()) is not None:
        log.skipped(name, nothing)
        return False
    inputs, why = _due(stage)
    if why is None:
        log.skipped(name, UNCHANGED)
        return False
    try:
        at(name)
        log.began(name, stage.doing(), why)
        output = stage.run(lambda line: log.said(name, line))
        outputs = {work.inside(path): work.digests.of(path) for path in output.files}
        key = key_of(name, inputs)
        write_record(work.stages, StageRecord(stage=name, key=key, inputs=inputs, outputs=outputs, facts=output.facts))
    except BaseException as error:
        log.failed(name, error)
        raise
    setattr(work.facts, name, output.facts)
    log.done(name, output.facts)
    return True


class PlannedStage(NamedTuple):
    """A stage, and what a run would do with it, and why."""

    stage: str
    what: str
    why: str


def plan(work: Work) -> Iterator[PlannedStage]:
    """Yield for each stage what a run would do (``run``, ``skip`` or ``open``) and why, without executing any.

    Stages that depend on one that would run are ``open``: its output may turn out to be the same.
    """
    waits_for: str | None = None
    for kind in _stages(work):
        stage = kind(work)
        if (nothing := stage.not_configured() if waits_for else stage.skip_reason()) is not None:
            yield PlannedStage(kind.name, "skip", nothing)
        elif waits_for is not None:
            yield PlannedStage(kind.name, "open", f"depends on the result of {waits_for}")
        elif (why := _due(stage)[1]) is None:
            yield PlannedStage(kind.name, "skip", UNCHANGED)
        else:
            waits_for = kind.name
            yield PlannedStage(kind.name, "run", why)


@spelled_for("file")
def run(work: Work, write: Callable[[str], None] = write_line, clock: RunClock | None = None) -> RunReport:
    """Execute the chosen stages of ``work`` that are due, and report what happens.

    Parameters
    ----------
    write
        Receives each line of text about the run; the log and ``last_run.json`` are written in any case.
    clock
        Clock of the log; what stages write contains no times.

    Raises
    ------
    RunUnderWay
        Another run has the work folder.
    Exception
        Any error of a stage or of the configuration.  A refused promotion is raised by `RunReport.require`.
    """
    with work.open():
        check_inputs(work)
        work.path.mkdir(parents=True, exist_ok=True)
        run_id = str(uuid.uuid4())
        with hold(work.path, run_id) as lease:
            log = RunLog(work.path, run_id, work.day, write=write, clock=clock)
            log.started(work.file, [kind.name for kind in _stages(work)], lease.died)
            try:
                return _run(work, log, lease.at)
            except BaseException as error:
                code = code_of(error)
                log.ended("stopped" if was_stopped(error) else "drift" if code == DRIFT else "failed", code)
                raise
            finally:
                with suppress(OSError):  # it is only a cache
                    work.digests.keep()
                lease.end()


def _run(work: Work, log: RunLog, at: Callable[[str], None]) -> RunReport:
    done = run_stages(work, log, at)
    report = RunReport.of(work)
    outcome: Outcome = "done" if done else "unchanged"
    code = DONE
    try:
        report.require()
    except Exception as error:
        code = code_of(error)
        outcome = {GATE_NOT_PASSED: "gate not passed", DRIFT: "drift"}.get(code, "failed")  # type: ignore[assignment]
    log.ended(outcome, code, report.summary())
    complete = work.until == STAGE_NAMES[-1]  # false with --until
    if work.config.drift is not None and complete:
        keep_for_next(work.dataset(), work.path)
    return report


@spelled_for("file")
def plan_of(work: Work) -> list[PlannedStage]:
    """Return for each stage what a run would do and why; nothing is written.  Errors are those of `run`."""
    with work.open():
        check_inputs(work)
        return list(plan(work))
