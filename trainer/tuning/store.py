"""What a search has done so far: a folder with one file a trial, each replaced in one step.

``search.json`` says which search it is; a folder of another one is refused.  A damaged file counts as none.  No file holds a
time or a path, so a search that was killed leaves what an undisturbed one does, whatever the number of workers.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.storage.publish import write_atomically
from rankmill.scorer.model_file import canonical_json

_STRICT = ConfigDict(extra="forbid", frozen=True)
SEARCH, TRIALS, CHECKPOINTS, TABLE, WINNER = "search.json", "trials", "checkpoints", "table.json", "winner.toml"


class Outcome(BaseModel):
    """What a trial has come to with so many rounds at most; ``error`` says why to nothing."""

    model_config = _STRICT

    rounds: int
    score: float | None = None
    best_round: int | None = None
    trained: int | None = None
    metrics: dict[str, float] = {}
    error: str | None = None


class TrialFile(BaseModel):
    """One trial: what was drawn, and its outcomes, that of the fewest rounds first."""

    model_config = _STRICT

    search: str
    trial: int
    parameters: dict[str, Any]
    outcomes: list[Outcome]


class TrialStore:
    """The trials of the search ``key`` in ``folder``."""

    def __init__(self, folder: Path, key: str) -> None:
        self._folder, self._key = folder, key

    @classmethod
    def begin(cls, folder: Path, facts: Mapping[str, Any], *, fresh: bool = False) -> TrialStore:
        """Take ``folder`` for the search that ``facts`` decide, and go on with what is in it.

        Raises
        ------
        InvalidParameter
            The folder holds another search, and ``fresh`` does not say that it may go, or something else.
        """
        key = sha256(canonical_json(facts)).hexdigest()
        path, data = folder / SEARCH, canonical_json({"key": key, **facts}) + b"\n"
        if folder.exists() and not folder.is_dir():
            raise InvalidParameter(f"{folder}: expected a folder for the search, found a file")
        there = path.read_bytes() if path.is_file() else None
        if there is None and folder.is_dir() and any(not _is_staged(each) for each in folder.iterdir()):
            raise InvalidParameter(f"{folder}: holds other things than a search; name another folder")
        if there is not None and (there != data or fresh):
            if not fresh:
                raise InvalidParameter(
                    f"{folder}: holds a search of other data, parameters, space, seed or code; name another folder, or let"
                    " it go with --fresh"
                )
            for name in (TRIALS, CHECKPOINTS):
                shutil.rmtree(folder / name, ignore_errors=True)
            for name in (TABLE, WINNER):
                (folder / name).unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)  # first: from here on the folder is ours
        (folder / TRIALS).mkdir(exist_ok=True)
        return cls(folder, key)

    @property
    def key(self) -> str:
        """What decides the search."""
        return self._key

    def read(self, name: str) -> dict[int, Outcome]:
        """Return the outcomes of a trial by the rounds that it was given."""
        found = self._file(name)
        return {} if found is None else {each.rounds: each for each in found.outcomes}

    def write(self, name: str, outcome: Outcome, *, trial: int, values: Mapping[str, Any]) -> None:
        """Add an outcome to the file of a trial."""
        outcomes = {**self.read(name), outcome.rounds: outcome}
        file = TrialFile(
            search=self._key,
            trial=trial,
            parameters=dict(values),
            outcomes=[outcomes[rounds] for rounds in sorted(outcomes)],
        )
        data = canonical_json(file.model_dump(mode="json", exclude_defaults=True)) + b"\n"
        write_atomically(self._path(name), data)

    def publish(self, name: str, data: bytes) -> None:
        """Write what the search has come to."""
        write_atomically(self._folder / name, data)

    def forget_checkpoints(self) -> None:
        """Let go of what trials need for going on."""
        shutil.rmtree(self._folder / CHECKPOINTS, ignore_errors=True)

    def _path(self, name: str) -> Path:
        return self._folder / TRIALS / f"{name}.json"

    def _file(self, name: str) -> TrialFile | None:
        try:
            found = TrialFile.model_validate_json(self._path(name).read_bytes())
        except (OSError, ValidationError):
            return None
        return found if found.search == self._key else None


def _is_staged(path: Path) -> bool:
    """Whether a killed search has left it before it had anything else."""
    return path.name.startswith(f".{SEARCH}.")
