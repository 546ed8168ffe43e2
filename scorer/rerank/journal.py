"""The journal of a re-ranking: what is durably on disk, so that a killed run can be resumed.

It is in the staging folder next to the files that it describes, and is replaced atomically.  A damaged journal, or one
of other models, candidates or options, is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from rankmill.foundation.records import canonical_json
from rankmill.foundation.storage.local_copies import object_behind
from rankmill.foundation.storage.publish import write_atomically
from rankmill.scorer.rerank.score import InputPosition
from rankmill.scorer.rerank.spill import Spilled

NAME = "journal.json"


class OfModel(BaseModel):
    """Progress of one model: its spill, and the number of parts that it was partitioned into (None: not yet)."""

    model_config = ConfigDict(extra="forbid")

    spilled: Spilled = Spilled()
    dealt: int | None = None


class Journal(BaseModel):
    """Progress of the run ``key``.

    It has the position in the input, whether the input is finished, and each model by its label.

    Of a first stage: the documents with a row so far (`rankmill.scorer.rerank.first_stage.FirstStage.seen_as_text`),
    while rows are read, and at the end the number of documents without one.
    """

    model_config = ConfigDict(extra="forbid")

    key: str
    place: InputPosition = InputPosition()
    scored: bool = False
    seen: str = ""
    lacking: int = 0
    models: dict[str, OfModel]

    @classmethod
    def read(cls, folder: Path, key: str) -> Journal | None:
        """Return the journal in ``folder``, None if there is none of the run ``key``."""
        try:
            journal = cls.model_validate_json((folder / NAME).read_bytes())
        except (OSError, ValidationError):
            return None
        return journal if journal.key == key else None

    def write(self, folder: Path) -> None:
        """Replace the journal in ``folder``."""
        write_atomically(folder / NAME, self.model_dump_json().encode())


def run_key(files: Iterable[Path], facts: Mapping[str, Any]) -> str:
    """Return a key of ``facts`` and the state of ``files``; runs with the same key may resume each other.

    A file is unchanged while its size, modification times and inode are; an object of a bucket while its ETag and size
    are.
    """
    states: list[list[str | int]] = []
    for path in files:
        if (behind := object_behind(path)) is not None:
            states.append([str(behind.url), behind.size, behind.tag or behind.version])
            continue
        status = path.stat()
        states.append(
            [str(path.absolute()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]
        )
    return sha256(canonical_json({"files": states, **facts})).hexdigest()
