"""What a stage of the run is: inputs that name it, something to do, and what it leaves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rankmill.foundation.code_digest import code_digest
from rankmill.run.stage_records import CODE, Inputs, Record, differences
from rankmill.run.work import Work, version_artefact

if TYPE_CHECKING:
    from rankmill.run.events import Artefact
    from rankmill.run.stage_facts import Facts

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a stage has published.

    Attributes
    ----------
    facts
        What the stages after it, the report and observers need of it.
    files
        Their digests are kept; `Stage.fault` compares them later.
    artefacts
        What observers are told was made; None: the files.
    """

    facts: Facts
    files: tuple[Path, ...] = ()
    artefacts: tuple[Artefact, ...] | None = None


class Stage(ABC):
    """One stage of the run over ``work``; the stages before it have been done."""

    name: ClassVar[str]
    facts: ClassVar[type]
    """The record of its facts."""
    code: ClassVar[tuple[str, ...]] = ()
    """The packages whose code decides what it makes."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def not_configured(self) -> str | None:
        """Say what the configuration lacks that asks for this stage; None if it asks for it."""
        return None

    def skip_reason(self) -> str | None:
        """Say why there is nothing to do, whatever the record says; None if the record decides."""
        return self.not_configured()

    def inputs(self) -> Inputs:
        """Return what decides the bytes of what the stage makes: digests and options by name."""
        return ({CODE: code_digest(*self.code)} if self.code else {}) | self.own_inputs()

    @abstractmethod
    def own_inputs(self) -> Inputs:
        """Return the inputs besides the code."""

    @abstractmethod
    def doing(self) -> str:
        """Say for a person what the stage is about to do."""

    @abstractmethod
    def run(self, say: Say) -> Made:
        """Do it, and publish what comes of it; a second time the same comes of it."""

    def reads(self) -> tuple[Artefact, ...]:
        """Return what the stage reads, for observers: by default the dataset and the candidate."""
        return (self.work.dataset_artefact(), version_artefact(self.work.candidate))

    def holds(self, record: Record) -> bool:  # noqa: ARG002 (those that are asked look at it)
        """Tell whether the facts of ``record`` still hold, where the stage is taken as it is."""
        return True

    def fault(self, record: Record) -> str | None:
        """Say which output of ``record`` is not as it was left; None if all are."""
        return self.work.changed_file(record.outputs)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a stage is to be done, and why or why not, for a person."""

    due: bool
    why: str


def decide(stage: Stage, record: Record | None, inputs: Inputs, *, forced: bool) -> Decision:
    """Tell whether ``stage``, whose last record is ``record``, has to be done with ``inputs``."""
    if forced:
        return Decision(due=True, why="asked for")
    if record is None:
        return Decision(due=True, why="not done yet")
    if record.inputs != inputs:
        return Decision(due=True, why=differences(record.inputs, inputs))
    if fault := stage.fault(record):
        return Decision(due=True, why=fault)
    return Decision(due=False, why="nothing has changed")
