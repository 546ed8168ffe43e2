"""One run of the whole chain: each stage is done if something that goes into it has changed, and told of either way.

Every stage publishes what it makes in one step and then its record, so that a run that is killed leaves the last complete
dataset, evaluation and lists, and the next run goes on with the first stage that has no record for its inputs.  A version
that does not pass the gate is registered and not promoted, and lists are ranked by the version that stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankmill.foundation.errors import InputError
from rankmill.run.data_stages import Bin, Ingest
from rankmill.run.drift import check_drift
from rankmill.run.events import Observer, StageDone, StageFailed, StageSaid, StageSkipped, StageStarted
from rankmill.run.gate_stages import Gate, Promote, refuse_protected
from rankmill.run.model_stages import Evaluate, Train
from rankmill.run.output_stages import Report, Rerank
from rankmill.run.stage import decide
from rankmill.run.stage_records import Record, key_of, read_record, write_record

if TYPE_CHECKING:
    from rankmill.run.stage import Stage
    from rankmill.run.work import Work

STAGES: tuple[type[Stage], ...] = (Ingest, Bin, Train, Evaluate, Gate, Promote, Rerank, Report)
NAMES = tuple(stage.name for stage in STAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which stages a run looks at.

    Attributes
    ----------
    first, last
        The first and the last stage; what comes before the first must have been done, and is taken as it is.
    forced
        Stages that are done though nothing has changed.

    Raises
    ------
    InputError
        There is no such stage, the first comes after the last, or one that is forced is not between them.
    """

    first: str = NAMES[0]
    last: str = NAMES[-1]
    forced: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for option, names in (("--from", [self.first]), ("--until", [self.last]), ("--force", sorted(self.forced))):
            for name in names:
                if name not in NAMES:
                    raise InputError(f"{option} {name}: expected one of {', '.join(NAMES)}")
        if NAMES.index(self.first) > NAMES.index(self.last):
            raise InputError(f"--from {self.first} --until {self.last}: {self.first} comes after {self.last}")
        if outside := [name for name in NAMES if name in self.forced - {*self.stages}]:
            raise InputError(
                f"--force {outside[0]}: is not between --from {self.first} and --until {self.last}; leave one of them out"
            )

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages from the first to the last."""
        return self.reached[NAMES.index(self.first) :]

    @property
    def reached(self) -> tuple[str, ...]:
        """The same and those before, which are taken as they are."""
        return NAMES[: NAMES.index(self.last) + 1]


def check_inputs(work: Work, choice: Choice) -> None:
    """Look up all that is there to be looked up before the first stage.

    Raises
    ------
    InputError
        A pattern matches no file, or there is no model to correct.
    ConfigError
        Two parts of the configuration, or it and the registry, contradict each other.
    """
    if Ingest.name in choice.stages:
        Ingest(work).files  # noqa: B018 (it complains)
    if work.config.rerank is not None and {Promote.name, Rerank.name} & {*choice.stages}:
        Rerank(work).files, Rerank(work).runs
    if Train.name in choice.stages:
        Train(work).base  # noqa: B018
    work.former_dataset  # noqa: B018
    if work.config.drift is not None:
        check_drift(work.config.drift, work.folder, work.dataset_path)
    refuse_protected(work)


def run_stages(work: Work, choice: Choice, tell: Observer, at: Callable[[str], None]) -> list[str]:
    """Do the stages of ``choice`` that are due, and return their names.

    Parameters
    ----------
    tell
        Called with each event.
    at
        Called with the name of each stage before it begins.

    Raises
    ------
    InputError
        A stage before the first was never done.
    Exception
        Whatever a room raises; what the stages before it made stays, and the next run goes on there.
    """
    done = []
    for kind in STAGES[: NAMES.index(choice.last) + 1]:
        stage = kind(work)
        if kind.name not in choice.stages:
            _take_over(stage, choice)
        elif _do_if_due(stage, tell, at, forced=kind.name in choice.forced):
            done.append(kind.name)
    return done


def _record(stage: Stage) -> Record | None:
    return read_record(stage.work.stages, stage.name, stage.facts)


def _take_over(stage: Stage, choice: Choice) -> None:
    if stage.needless() is not None:  # what a record says is of another version then
        return
    record = _record(stage)
    if record is None:
        raise InputError(f"--from {choice.first}: {stage.name} was not done yet; leave --from out")
    if stage.holds(record):
        setattr(stage.work.facts, stage.name, record.facts)


def _do_if_due(stage: Stage, tell: Observer, at: Callable[[str], None], *, forced: bool) -> bool:
    name, work = stage.name, stage.work
    if (why := stage.needless()) is not None:
        tell(StageSkipped(stage=name, why=why))
        return False
    record, inputs = _record(stage), stage.inputs()
    decision = decide(stage, record, inputs, forced=forced)
    if record is not None and not decision.due:
        setattr(work.facts, name, record.facts)
        tell(StageSkipped(stage=name, why=decision.why))
        return False
    try:
        at(name)
        tell(StageStarted(stage=name, why=decision.why, doing=stage.doing(), inputs=stage.reads()))
        made = stage.run(lambda line: tell(StageSaid(stage=name, line=line)))
        outputs = {work.inside(path): work.digests.of(path) for path in made.files}
        key = key_of(name, inputs)
        write_record(work.stages, Record(stage=name, key=key, inputs=inputs, outputs=outputs, facts=made.facts))
        artefacts = tuple(map(work.told_file, made.files)) if made.artefacts is None else made.artefacts
    except BaseException as error:
        tell(StageFailed(stage=name, error=error, stopped=isinstance(error, (SystemExit, KeyboardInterrupt))))
        raise
    setattr(work.facts, name, made.facts)
    tell(StageDone(stage=name, outputs=artefacts, facts=made.facts))
    return True


def plan(work: Work, choice: Choice) -> list[tuple[str, str, str]]:
    """Say of each stage of ``choice``, without doing any, what would happen and why: (stage, ``run`` or ``skip`` or ``open``, why).

    After the first stage that would run it is open which of those that build on it would: the same bytes may come of it.
    """
    rows: list[tuple[str, str, str]] = []
    waits_for: str | None = None
    for kind in STAGES[: NAMES.index(choice.last) + 1]:
        stage = kind(work)
        if kind.name not in choice.stages:
            _take_over(stage, choice)
        elif (why := stage.unasked() if waits_for else stage.needless()) is not None:
            rows.append((kind.name, "skip", why))
        elif waits_for is not None:
            forced = kind.name in choice.forced
            why = "asked for" if forced else f"depends on what comes of {waits_for}"
            rows.append((kind.name, "run" if forced else "open", why))
        else:
            record = _record(stage)
            decision = decide(stage, record, stage.inputs(), forced=kind.name in choice.forced)
            rows.append((kind.name, "run" if decision.due else "skip", decision.why))
            if record is None or decision.due:
                waits_for = kind.name
            else:
                setattr(work.facts, kind.name, record.facts)
    return rows
