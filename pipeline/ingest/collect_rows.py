"""The first pass over the files of rows: spill the rows, and collect what only all of them together show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rankmill.foundation.process_memory import beside_bytes
from rankmill.pipeline.bins.vocabulary import Vocabulary
from rankmill.pipeline.ingest.read_rows import read_all
from rankmill.pipeline.memory_plans import bytes_of_texts, reading_threads
from rankmill.pipeline.read.grades import can_be_grades

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from rankmill.pipeline.group.bucket_rows import RowSpill
    from rankmill.pipeline.options import IngestOptions
    from rankmill.pipeline.read.batch import Quarantine, RowBatch, Source


@dataclass(slots=True)
class RowFacts:
    """What the rows together show; threads may add to it.

    Attributes
    ----------
    labels_are_grades
        Whether the rows have labels without grades, and those so far can be grades.
    vocabulary
        The texts of their categories.
    memory
        Bytes that the texts leave of those of the process.
    """

    labels_are_grades: bool
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    memory: int = 0

    @classmethod
    def of(cls, options: IngestOptions, n_categorical: int, *, labels_are_grades: bool) -> Self:
        """Return what no rows show, if ``n_categorical`` features have texts."""
        memory = options.memory - beside_bytes()
        of_texts = bytes_of_texts(memory, n_categorical)
        return cls(labels_are_grades, Vocabulary(memory=of_texts), memory - of_texts)


def collect_rows(
    sources: Sequence[Source],
    columns: tuple[str, ...] | None,
    spill: RowSpill,
    facts: RowFacts,
    quarantine: Quarantine,
    options: IngestOptions,
    *,
    threads: int,
    advance: Callable[[int, int], None],
    first: int = 0,
) -> list[int]:
    """Read all ``sources``, whose numbers begin with ``first``, into ``spill`` and ``facts``; return the rows of each.

    ``columns`` are the features in their order, None if the files do not name them; ``advance`` and errors are those of
    `rankmill.pipeline.ingest.read_rows.read_all`.
    """

    def add(batch: RowBatch, source: int) -> None:
        if facts.labels_are_grades and not can_be_grades(batch.extras["label"], options.read.max_grade).all():
            facts.labels_are_grades = False
        if batch.categories:
            facts.vocabulary.add(batch.categories)
        spill.add(batch, first + source)

    return read_all(
        sources,
        columns,
        add,
        quarantine,
        threads=reading_threads(facts.memory, threads, options.block_size),
        block_bytes=options.block_size,
        advance=advance,
    )
