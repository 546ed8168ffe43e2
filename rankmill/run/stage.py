"""What a stage of the run is: inputs that name it, something to do, and what it leaves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from rankmill.run.stage_records import Inputs, Record, differences

if TYPE_CHECKING:
    from rankmill.run.events import Artefact
    from rankmill.run.work import Work

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a stage has published.

    Attributes
    ----------
    outputs
        sha256 by path from the work folder, or by what it is called; `Stage.fault` compares them later.
    facts
        What the stages after it and the report need of it, as JSON values.
    artefacts
        The same for those who watch.
    """

    outputs: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    artefacts: tuple[Artefact, ...] = ()


class Stage(ABC):
    """One stage of the run over ``work``; the stages before it have been done."""

    name: ClassVar[str]

    def __init__(self, work: Work) -> None:
        self.work = work

    def unasked(self) -> str | None:
        """Say what the configuration lacks that asks for this stage; None if it asks for it."""
        return None

    def needless(self) -> str | None:
        """Say why there is nothing to do, whatever the record says; None if the record decides."""
        return self.unasked()

    @abstractmethod
    def inputs(self) -> Inputs:
        """Return what decides the bytes of what the stage makes."""

    @abstractmethod
    def doing(self) -> str:
        """Say for a person what the stage is about to do."""

    @abstractmethod
    def run(self, say: Say) -> Made:
        """Do it, and publish what comes of it; a second time the same comes of it."""

    def reads(self) -> tuple[Artefact, ...]:
        """Return what the stage reads, for those who watch."""
        return ()

    def holds(self, record: Record) -> bool:  # noqa: ARG002 (those that are asked look at it)
        """Tell whether what ``record`` tells is still to be told, where the stage is taken as it is."""
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
