"""The journal of a re-ranking: what is durably on disk, so that a killed run can be resumed.

It lies in the staging folder beside what it tells of, and is replaced in one step.  A damaged one, or one of other models,
other candidates or other options, counts as none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from rankmill.foundation.records import canonical_json
from rankmill.foundation.storage.publish import file_digest, write_atomically
from rankmill.scorer.ranked_file import RankedPart
from rankmill.scorer.scoring import InputPosition
from rankmill.scorer.sorting import Spilled

NAME = "journal.json"


class RankedShard(BaseModel):
    """A finished shard, and where in what is sorted the next one begins."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    rows: int
    queries: int
    sha256: str
    part: int
    row: int

    @property
    def written(self) -> RankedPart:
        """The shard as its writer knows it."""
        return RankedPart(self.name, self.rows, self.queries)


class OfModel(BaseModel):
    """How far one model is: its spill, parts that it was dealt out to (None: not yet), finished shards."""

    model_config = ConfigDict(extra="forbid")

    spilled: Spilled = Spilled()
    dealt: int | None = None
    shards: list[RankedShard] = []

    def keep_whole_shards(self, folder: Path) -> None:
        """Forget the shards from the first on that is not in ``folder`` with the bytes that it had."""
        for number, shard in enumerate(self.shards):
            path = folder / shard.name
            if not path.is_file() or file_digest(path) != shard.sha256:
                del self.shards[number:]
                return


class Journal(BaseModel):
    """How far the run ``key`` is: the place in the input, whether that was the last, and each model by its label.

    Of the documents of a first stage: those with a row so far (`rankmill.scorer.first_stage.FirstStage.seen_as_text`), while rows are
    read, and in the end how many had none.
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
    """Return what two runs have in common that may go on with each other's work: ``facts``, and ``files`` as they are.

    A file is the same while its size, times of change and inode are.
    """
    seen = []
    for path in files:
        found = path.stat()
        seen.append(
            [str(path.absolute()), found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev]
        )
    return sha256(canonical_json({"files": seen, **facts})).hexdigest()
