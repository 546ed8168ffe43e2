"""A stage of a run, and the record of its inputs and outputs: ``WORK/stages/<stage>.json``.

The inputs of a stage are the digests of its files, its options, and the code.  A stage whose inputs and outputs match
its record is skipped; otherwise the differences are reported.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rankmill.foundation.code_digest import code_digest
from rankmill.foundation.errors import IntegrityError
from rankmill.foundation.records import as_json, from_json
from rankmill.foundation.shown import few
from rankmill.foundation.storage.publish import write_atomically
from rankmill.run.work import Work

if TYPE_CHECKING:
    from rankmill.run.stage_facts import Facts

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The output of a stage.

    Attributes
    ----------
    facts
        Facts for later stages, the report and the log.
    files
        Files whose digests are recorded; `Stage.fault` checks them later.
    """

    facts: Facts
    files: tuple[Path, ...] = ()


class Stage(ABC):
    """A stage of the run in ``work``; earlier stages are complete."""

    name: ClassVar[str]
    facts: ClassVar[type]
    """The record of its facts."""
    code: ClassVar[tuple[str, ...]] = ()
    """The packages whose code affects its output."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def not_configured(self) -> str | None:
        """Return what is missing in the configuration for this stage; None if it is configured."""
        return None

    def skip_reason(self) -> str | None:
        """Return why there is nothing to do, regardless of the record; None if the record decides."""
        return self.not_configured()

    def inputs(self) -> Inputs:
        """Return everything that affects the bytes of the output: digests and options by name."""
        return ({CODE: code_digest(*self.code)} if self.code else {}) | self.own_inputs()

    @abstractmethod
    def own_inputs(self) -> Inputs:
        """Return the inputs other than the code."""

    @abstractmethod
    def doing(self) -> str:
        """Describe what the stage is going to do."""

    @abstractmethod
    def run(self, say: Say) -> Made:
        """Execute the stage and publish its output; repeating it gives the same output."""

    def fault(self, record: StageRecord) -> str | None:
        """Describe the first output of ``record`` that has changed; None if there is none."""
        return self.work.changed_file(record.outputs)


def reason_to_run(stage: Stage, record: StageRecord | None, inputs: Inputs) -> str | None:
    """Return why to execute ``stage``, last recorded as ``record``, with ``inputs``; None if nothing has changed."""
    if record is None:
        return "not done yet"
    return differences(record.inputs, inputs) if record.inputs != inputs else stage.fault(record)


FORMAT = 1
SHOWN = 3  # differences listed by name
CODE = "code"

Inputs = dict[str, str]
"""The inputs of a stage by name: ``code``, ``file a.txt``, ``option n_rounds``, ..; digests, and options as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """The record of a completed stage."""

    format: int = FORMAT
    stage: str
    key: str
    inputs: Inputs
    outputs: dict[str, str]
    """sha256 of the output files, by path from the work folder."""
    facts: Any
    """The facts of the stage: see `rankmill.run.stage_facts`."""


def key_of(stage: str, inputs: Mapping[str, str]) -> str:
    """Return the digest of the stage's name and inputs."""
    return sha256(json.dumps([stage, dict(inputs)], sort_keys=True).encode()).hexdigest()


def read_record(folder: Path, stage: str, facts: type) -> StageRecord | None:
    """Return the record of ``stage`` in ``folder``; None if there is none, or its format is unknown."""
    path = folder / f"{stage}.json"
    try:
        record = from_json(StageRecord, path.read_bytes(), str(path))
        record = replace(record, facts=from_json(facts, record.facts, str(path)))
    except (OSError, IntegrityError):
        return None
    fits = record.format == FORMAT and record.stage == stage and record.key == key_of(stage, record.inputs)
    return record if fits else None


def write_record(folder: Path, record: StageRecord) -> None:
    """Publish ``record``: the stage is complete then."""
    folder.mkdir(exist_ok=True)
    text = json.dumps(as_json(record), indent=1, ensure_ascii=True, allow_nan=False)
    write_atomically(folder / f"{record.stage}.json", f"{text}\n".encode())


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Describe what has changed since ``before``, the first few by name.

    >>> differences({"code": "1", "file a.txt": "7", "option n_rounds": "10"}, {"code": "1", "option n_rounds": "20"})
    'file a.txt was removed, n_rounds was 10 and is 20'
    """
    changes = []
    for name in sorted(before.keys() | now.keys(), key=lambda name: (name.startswith("option "), name)):
        was, is_ = before.get(name), now.get(name)
        if was == is_:
            continue
        what = name.removeprefix("option ")
        if name == CODE:
            changes.append("the code has changed")
        elif was is None:
            changes.append(f"{what} is new")
        elif is_ is None:
            changes.append(f"{what} was removed")
        elif name.startswith("option ") and len(was) + len(is_) < 60:
            changes.append(f"{what} was {was} and is {is_}")
        else:
            changes.append(f"{what} has changed")
    return few(changes, SHOWN)


def as_options(**options: object) -> Inputs:
    """Return options, plain values or dataclasses of them, as inputs."""
    return {f"option {name}": json.dumps(_plain(value), sort_keys=True, default=str) for name, value in options.items()}


def _plain(value: object) -> object:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
