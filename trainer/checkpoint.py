"""What a training has so far, written aside now and then, so that a killed one goes on.

A checkpoint is a model file of all trees grown, those after the best round too.  Replaying it (:mod:`rankmill.trainer.resuming`) gives
the scores to the last bit, and with them the metrics of every round and the state of early stopping; nothing else is needed.
It is found by a key of all that decides the training, written aside and published in one step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rankmill.foundation.errors import RankmillError
from rankmill.foundation.storage.publish import write_atomically
from rankmill.scorer.forest import Forest

EVERY = 300.0  # seconds; what a kill costs at most, but for a last round
SUFFIX = ".checkpoint"


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Those of one training: its whole and, where it is cross-validated first, each of its folds.

    Parameters
    ----------
    folder
        Where they are; made at the first.
    key
        What training it is: the same for the same data, parameters and code, of digits and small letters.
    every
        Seconds between two; 0: after every round.
    say
        Called with one line if one cannot be written; the training goes on.
    """

    folder: Path
    key: str
    every: float = EVERY
    say: Callable[[str], object] | None = None

    def of(self, part: str) -> Checkpoint:
        """Return the checkpoint of a part of the training."""
        return Checkpoint(self.folder / f"{self.key}.{part}{SUFFIX}", self.every, self.say)

    def clear(self) -> None:
        """Remove them, and what a kill has left of writing one: what was trained is safe elsewhere."""
        for pattern in (f"{self.key}.*{SUFFIX}", f".{self.key}.*.staging"):
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)


class Checkpoint:
    """That of one boosting run."""

    def __init__(self, path: Path, every: float = EVERY, say: Callable[[str], object] | None = None) -> None:
        self._path, self._every, self._say = path, every, say
        self._last = time.monotonic()
        self._rounds = 0  # that are in the file

    def read(self) -> Forest | None:
        """Return what is there; None if nothing is, or something that is no sound model."""
        try:
            forest = Forest.from_bytes(self._path.read_bytes(), str(self._path))
        except (OSError, RankmillError):
            return None
        self._rounds = forest.n_rounds
        return forest

    def is_due(self) -> bool:
        """Whether it is time for the next one."""
        return time.monotonic() - self._last >= self._every

    def write(self, rounds: int, forest: Callable[[], Forest]) -> None:
        """Replace what is there by a forest of more ``rounds``, which is asked for only if it is one."""
        if rounds > self._rounds:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._path, forest().to_bytes())
                self._rounds = rounds
            except OSError as error:  # the training itself is worth more than what it writes aside
                if self._say is not None:
                    self._say(f"no checkpoint was written: {error}")
        self._last = time.monotonic()
