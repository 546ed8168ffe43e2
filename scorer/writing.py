"""From a spill to a ranked list: a folder of shards with its manifest, or one file with its grade counts beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankmill.foundation.records import canonical_json
from rankmill.foundation.storage.publish import file_digest, fsync_file, fsync_folder
from rankmill.pipeline.workers import ahead
from rankmill.scorer import ranked_file
from rankmill.scorer.ranked_file import BELONGS, FACTS, MANIFEST, Written, grades_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankmill.scorer.journal import Shard
    from rankmill.scorer.sorting import Spill


@dataclass(frozen=True, slots=True)
class Lists:
    """The files of a ranked list in the folder that they were written to; ``grades`` is None where no grade is known."""

    folder: Path
    ranked: tuple[Written, ...]
    grades: Written | None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the files of rows, in their order."""
        return tuple(file.name for file in self.ranked) + (() if self.grades is None else (self.grades.name,))


def write_lists(
    spill: Spill,
    folder: Path,
    target: Path,
    facts: Mapping[str, Any],
    *,
    rows: int,
    top_k: int | None,
    done: Sequence[Shard] = (),
    finished: Callable[[Shard], None] | None = None,
) -> Lists:
    """Write what ``spill`` holds to ``folder`` in the form that the name ``target`` asks for.

    Parameters
    ----------
    facts
        What the metadata and the manifest say; the manifest says besides what was written.
    done
        Shards that an earlier run left in ``folder``: the rest is written.
    finished
        Called with each further shard but the last once it is on the disk.
    """
    from rankmill.scorer.journal import Shard

    single = bool(ranked_file.checked_suffix(target))
    metadata = {FACTS: canonical_json(dict(facts)).decode()}
    digests = {shard.name: shard.sha256 for shard in done}

    def shard_written(written: Written, part: int, row: int) -> None:
        fsync_file(folder / written.name)
        fsync_folder(folder)
        digests[written.name] = file_digest(folder / written.name)
        if finished is not None:
            finished(Shard(**asdict(written), sha256=digests[written.name], part=part, row=row))

    writer = ranked_file.open_writer(target, folder, metadata, [shard.written for shard in done], shard_written)
    try:
        begin = (done[-1].part, done[-1].row) if done else (0, 0)
        with closing(spill.ranked(top_k, *begin)) as ranked, closing(ahead(ranked)) as batches:
            for batch in batches:
                writer.write(batch)
        files = tuple(writer.close())
    except BaseException:
        writer.abandon()
        raise
    listed = [asdict(file) | {"sha256": digests.get(file.name) or file_digest(folder / file.name)} for file in files]
    counted = None
    if top_k is not None:
        belongs = {BELONGS: listed[0]["sha256"]} if single else {}
        name = grades_path(target).name
        counted = ranked_file.write_grade_counts(folder / name, spill.grade_counts(), metadata | belongs)
    if not single:
        told = dict(facts) | {
            "grades": None if counted is None else {"name": counted.name, "sha256": file_digest(folder / counted.name)},
            "queries": sum(file.queries for file in files),
            "rows": rows,
            "rows_written": sum(file.rows for file in files),
            "shards": listed,
        }
        (folder / MANIFEST).write_bytes(canonical_json(told) + b"\n")
    return Lists(folder, files, counted)


def publish_file(lists: Lists, target: Path) -> None:
    """Put the ranked file in its place; between the steps it stands beside a side table that is not of it.

    Whoever reads it then is told so.  A new side table hence goes first, an old one that has no successor goes last.
    """
    grades = grades_path(target)
    for path in lists.folder.iterdir():
        fsync_file(path)
    if lists.grades is not None:
        (lists.folder / grades.name).replace(grades)
        fsync_folder(target.parent)
    (lists.folder / target.name).replace(target)
    fsync_folder(target.parent)
    if lists.grades is None and os.path.lexists(grades):
        grades.unlink()
        fsync_folder(target.parent)
