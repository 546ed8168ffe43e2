"""The events of a run, for its observers: the terminal, the log, the metrics, the lineage.

An observer is called in the order of the events, by one thread, and the run waits for it; it must not raise.
An event has no time, so that none reaches an artefact: observers read the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal

from rankmill.run.stage_facts import Facts, RunSummary

Outcome = Literal["done", "unchanged", "gate not passed", "drift", "failed", "stopped"]
"""How a run ended; ``unchanged``: no stage had anything to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """Something that a stage reads or makes."""

    kind: Literal["file", "folder", "dataset", "model", "alias"]
    name: str
    """A path as the configuration means it (absolute or from the folder of the configuration), ``NAME@7``, or ``NAME@alias``."""
    digest: str | None = None
    """sha256 in hexadecimal of the bytes, or the digest that a dataset says of itself."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What counts of it, as JSON values: ``rows``, ``queries``, ``bytes``, ``files``, ``features`` (a number), ..

    ``columns``, a list of ``{"name": .., "type": ..}``, goes to the lineage only.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The configuration is read and checked, the lease is held; the stages follow."""

    run_id: str
    config: Path
    work: Path
    stages: tuple[str, ...]
    logical_date: date | None = None
    died: str | None = None
    """Which earlier run died, as the lease says it for a person; None if there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSkipped:
    """The stage has nothing to do; ``why`` says so for a person."""

    stage: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStarted:
    """The stage begins; ``why`` says for a person why it is not skipped, ``doing`` what it does."""

    stage: str
    why: str
    doing: str
    inputs: tuple[Artefact, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSaid:
    """A line that the stage says to a person while it works."""

    stage: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDone:
    """The stage has published what it makes."""

    stage: str
    outputs: tuple[Artefact, ...] = ()
    facts: Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFailed:
    """The stage ended with ``error``; what the stages before it made stays.  ``stopped``: it was asked to end."""

    stage: str
    error: BaseException
    stopped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The run is over and about to exit with ``exit_code``; ``facts`` says what is there now; None if it failed."""

    outcome: Outcome
    exit_code: int
    facts: RunSummary | None = None


Event = RunStarted | StageSkipped | StageStarted | StageSaid | StageDone | StageFailed | RunEnded
Observer = Callable[[Event], None]
