"""The events of a run, for its observers: the terminal and the log.

Observers are called in the order of the events, by one thread, and the run waits for them; they must not raise.
Events have no times, so that none gets into an artefact: observers read the clock.
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
    """An input or output of a stage."""

    kind: Literal["file", "folder", "dataset", "model", "alias"]
    name: str
    """A path (absolute or relative to the folder of the configuration), ``NAME@7``, or ``NAME@alias``."""
    digest: str | None = None
    """sha256 of the bytes in hexadecimal, or the digest of a dataset."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Sizes as JSON values: ``rows``, ``queries``, ``bytes``, ``files``, ``features`` (a number), .."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The configuration is valid and the lease is held; the stages follow."""

    run_id: str
    config: Path
    work: Path
    stages: tuple[str, ...]
    logical_date: date | None = None
    died: str | None = None
    """Description of an earlier run that died, from the lease; None if there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSkipped:
    """The stage has nothing to do; ``why`` is the reason as text."""

    stage: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStarted:
    """The stage begins; ``why`` is the reason as text, ``doing`` what it does."""

    stage: str
    why: str
    doing: str
    inputs: tuple[Artefact, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSaid:
    """A message of the stage while it works."""

    stage: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDone:
    """The stage has published its output."""

    stage: str
    outputs: tuple[Artefact, ...] = ()
    facts: Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFailed:
    """The stage failed with ``error``; the output of earlier stages stays.  ``stopped``: it was interrupted."""

    stage: str
    error: BaseException
    stopped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The run ends with ``exit_code``; ``facts`` has its results; None if it failed."""

    outcome: Outcome
    exit_code: int
    facts: RunSummary | None = None


Event = RunStarted | StageSkipped | StageStarted | StageSaid | StageDone | StageFailed | RunEnded
Observer = Callable[[Event], None]
