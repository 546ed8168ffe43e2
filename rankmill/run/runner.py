"""Execute a run: take the lease, execute the stages in order, emit events, and write ``last_run.json``.

A stage is executed if one of its inputs has changed.  Each publishes its output atomically and then its record.  So a
killed run leaves the last complete dataset, evaluation and lists, and the next run resumes with the first stage without
a record for its inputs.  A version that fails the gate is registered but not promoted; the current version ranks the
lists.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from rankmill.foundation.errors import InputError, code_of
from rankmill.foundation.exit_codes import DONE, DRIFT, GATE_NOT_PASSED
from rankmill.foundation.options import spelled_for
from rankmill.run.click_stages import ClicksStage, NaiveStage
from rankmill.run.data_stages import BinStage, IngestStage
from rankmill.run.drift import check_drift, keep_for_next
from rankmill.run.gate_stages import GateStage, PromoteStage, look_at_candidates, refuse_protected, try_candidates
from rankmill.run.model_stages import EvaluateStage, TrainStage
from rankmill.run.outcome import RunReport
from rankmill.run.output_stages import ReportStage, RerankStage, standing
from rankmill.run.run_lock import hold
from rankmill.run.run_log import Outcome, RunClock, RunLog, log_of, was_stopped, write_line
from rankmill.run.stage import StageRecord, decide, key_of, read_record, write_record
from rankmill.run.stage_choice import STAGE_NAMES, WITHOUT_CLICKS

if TYPE_CHECKING:
    from rankmill.run.stage import Stage
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


def check_inputs(work: Work) -> None:
    """Check everything that can be checked before the first stage.

    Raises
    ------
    InputError
        A pattern matches no file, or the base model does not exist.
    ConfigError
        Two parts of the configuration, or it and the registry, contradict each other.
    """
    stages = work.choice.stages
    if work.config.clicks is not None and ClicksStage.name in stages:
        ClicksStage(work).files  # noqa: B018 (it raises)
    if IngestStage.name in stages:
        IngestStage(work).files  # noqa: B018 (it raises)
    if work.config.rerank is not None and {PromoteStage.name, RerankStage.name} & {*stages}:
        RerankStage(work).files, RerankStage(work).runs
    if TrainStage.name in stages:
        TrainStage(work).base, TrainStage(work).others
    if work.config.drift is not None:
        check_drift(work.config.drift, work.one_path, work.dataset_path)
    refuse_protected(work)


def run_stages(work: Work, log: RunLog, at: Callable[[str], None]) -> list[str]:
    """Execute the chosen stages that are due, and return their names.

    Parameters
    ----------
    log
        Receives what happens.
    at
        Called with the name of each stage before it begins.

    Raises
    ------
    InputError
        A stage before the first was never executed.
    Exception
        Any error of a stage; the output of earlier stages stays, and the next run resumes there.
    """
    done = []
    for kind in _stages(work):
        stage = kind(work)
        if kind.name not in work.choice.stages:
            _load_facts(stage)
        elif _do_if_due(stage, log, at, forced=kind.name in work.choice.forced):
            done.append(kind.name)
    return done


def _stages(work: Work) -> list[type[Stage]]:
    """Return the stages up to the last one; those about clicks only with ``[clicks]``."""
    known = STAGE_NAMES if work.config.clicks is not None else WITHOUT_CLICKS
    return [kind for kind in STAGES[: STAGE_NAMES.index(work.choice.last) + 1] if kind.name in known]


def _record(stage: Stage) -> StageRecord | None:
    return read_record(stage.work.stages, stage.name, stage.facts)


def _load_facts(stage: Stage) -> None:
    if stage.skip_reason() is not None:  # the record is about another version then
        return
    record = _record(stage)
    if record is None:
        raise InputError(f"--from {stage.work.choice.first}: {stage.name} is not complete yet; leave out --from")
    if stage.holds(record):
        setattr(stage.work.facts, stage.name, record.facts)


def _do_if_due(stage: Stage, log: RunLog, at: Callable[[str], None], *, forced: bool) -> bool:
    name, work = stage.name, stage.work
    if (why := stage.skip_reason()) is not None:
        log.skipped(name, why)
        return False
    record, inputs = _record(stage), stage.inputs()
    decision = decide(stage, record, inputs, forced=forced)
    if record is not None and not decision.due:
        setattr(work.facts, name, record.facts)
        log.skipped(name, decision.why)
        return False
    try:
        at(name)
        log.began(name, stage.doing(), decision.why, stage.reads())
        output = stage.run(lambda line: log.said(name, line))
        outputs = {work.inside(path): work.digests.of(path) for path in output.files}
        key = key_of(name, inputs)
        write_record(work.stages, StageRecord(stage=name, key=key, inputs=inputs, outputs=outputs, facts=output.facts))
        artefacts = tuple(map(work.file_artefact, output.files)) if output.artefacts is None else output.artefacts
    except BaseException as error:
        log.failed(name, error)
        raise
    setattr(work.facts, name, output.facts)
    log.done(name, output.facts, artefacts)
    return True


class PlannedStage(NamedTuple):
    """A stage, and what a run would do with it, and why."""

    stage: str
    what: str
    why: str


def plan(work: Work) -> list[PlannedStage]:
    """Return for each chosen stage what a run would do (``run``, ``skip`` or ``open``) and why, without executing any.

    Stages that depend on one that would run are ``open``: its output may turn out to be the same.
    """
    rows: list[PlannedStage] = []
    choice = work.choice
    waits_for: str | None = None
    for kind in _stages(work):
        stage = kind(work)
        if kind.name not in choice.stages:
            _load_facts(stage)
        elif (why := stage.not_configured() if waits_for else stage.skip_reason()) is not None:
            rows.append(PlannedStage(kind.name, "skip", why))
        elif waits_for is not None:
            forced = kind.name in choice.forced
            why = "forced" if forced else f"depends on the result of {waits_for}"
            rows.append(PlannedStage(kind.name, "run" if forced else "open", why))
        else:
            record = _record(stage)
            decision = decide(stage, record, stage.inputs(), forced=kind.name in choice.forced)
            rows.append(PlannedStage(kind.name, "run" if decision.due else "skip", decision.why))
            if record is None or decision.due:
                waits_for = kind.name
            else:
                setattr(work.facts, kind.name, record.facts)
    if {PromoteStage.name, RerankStage.name} & {*choice.stages}:
        _look_at_candidates(work, {row.stage for row in rows if row.what != "skip"})
    return rows


def _look_at_candidates(work: Work, undone: set[str]) -> None:
    """Raise the error that candidates will give later, if it is known before the stages ``undone`` run."""
    if undone & {ClicksStage.name, IngestStage.name}:
        look_at_candidates(work, *IngestStage(work).features())
    elif undone & {BinStage.name, NaiveStage.name, TrainStage.name}:
        dataset = work.dataset()
        look_at_candidates(work, dataset.feature_names, dataset.manifest.categorical)
    else:
        try_candidates(work, standing(work) or work.candidate)


@spelled_for("file")
def run(work: Work, write: Callable[[str], None] = write_line, clock: RunClock | None = None) -> RunReport:
    """Execute the chosen stages of ``work`` that are due, and report what happens.

    Parameters
    ----------
    write
        Receives each line of text about the run; the log and ``last_run.json`` are written in any case.
    clock
        RunClock of the log; artefacts contain no times.

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
            log_file = log_of(work.config, work.folder)
            log = RunLog(work.path, log_file, run_id, work.day, write=write, clock=clock)
            stages = [kind.name for kind in _stages(work) if kind.name in work.choice.stages]
            log.started(work.file, stages, lease.died)
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
    complete = work.choice.last == STAGE_NAMES[-1]  # false with --until
    if work.config.drift is not None and complete:
        keep_for_next(work.dataset(), work.path)
    return report


@spelled_for("file")
def plan_of(work: Work) -> list[PlannedStage]:
    """Return for each stage what a run would do and why; nothing is written.  Errors are those of `run`."""
    with work.open():
        check_inputs(work)
        return plan(work)
