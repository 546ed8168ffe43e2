"""First pass: threads read parts of the files in file order; each free thread takes the next part.

``add`` receives the rows in any order, so it must not depend on the order.  Errors are reported as if one thread had
read the input from its beginning.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import DataRejected, TooManyRejects
from rankmill.foundation.interrupts import stop_if_asked
from rankmill.foundation.process_memory import beside_bytes
from rankmill.foundation.threads import in_order
from rankmill.pipeline.bins.vocabulary import Vocabulary
from rankmill.pipeline.group.spill import spill_rows
from rankmill.pipeline.memory_plans import bytes_of_texts, reading_threads
from rankmill.pipeline.read.batch import tasks_of
from rankmill.pipeline.read.delimited import database_bytes_of
from rankmill.pipeline.read.grades import can_be_grades

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from rankmill.pipeline.group.spill import SpillFile
    from rankmill.pipeline.options import IngestOptions
    from rankmill.pipeline.read.batch import Quarantine, ReadTask, RowBatch, Source


class _Part(NamedTuple):
    number: int  # from 0, in the order of the input
    source: int
    task: ReadTask


def read_all(
    sources: Sequence[Source],
    columns: tuple[str, ...] | None,
    add: Callable[[RowBatch, int], None],
    quarantine: Quarantine,
    *,
    threads: int,
    block_bytes: int,
    advance: Callable[[int, int], None],
) -> list[int]:
    """Read all sources in parallel, and return the number of rows of each.

    Parameters
    ----------
    sources
        The files.
    columns
        The features in the order that ``add`` expects; None if the files do not name them.
    add
        Called with rows and the number of their source, concurrently by several threads.
    quarantine
        The quarantine with which the sources were opened.
    threads
        Number of threads.
    block_bytes
        Bytes of text that each parses at a time.
    advance
        Called with (number of a source, bytes read of it) from time to time, by one thread at a time.

    Raises
    ------
    DataRejected
        A row is invalid.
    """
    rows_of = [0] * len(sources)
    places = [_places(source, columns) for source in sources]
    noting = threading.Lock()

    def parts() -> Iterator[_Part]:
        number = 0
        for of, source in enumerate(sources):
            tasks = tasks_of(source, block_bytes)
            while True:
                with quarantine.part(number):
                    task = next(tasks, None)
                if task is None:
                    break
                yield _Part(number, of, task)
                number += 1

    def read(part: _Part) -> None:
        rows = 0
        with quarantine.part(part.number):
            for batch in part.task.rows():
                stop_if_asked()
                if not len(batch):
                    continue
                rows += len(batch)
                place = places[part.source]
                add(batch if place is None else replace(batch, values=batch.values[:, place]), part.source)
        with noting:
            rows_of[part.source] += rows
            advance(part.source, part.task.position)
        if quarantine.full:  # too many in all parts together: stop reading
            raise TooManyRejects("", quarantine.limit)

    failures = in_order(parts(), read, threads)
    breaking = [failure for failure in failures if not isinstance(failure.error, TooManyRejects)]
    quarantine.sort(breaking[0].number if breaking else None)
    if breaking:
        raise breaking[0].error
    return rows_of


def require_rows(sources: Sequence[Source], rows_of: Sequence[int]) -> None:
    """Raise DataRejected if one of ``sources`` has no rows; ``rows_of`` are their numbers of rows."""
    for source, rows in zip(sources, rows_of, strict=True):
        if not rows:
            raise DataRejected(f"{source.path}: contains no rows")


def _places(source: Source, columns: tuple[str, ...] | None) -> npt.NDArray[Any] | None:
    """Return the positions of ``columns`` in ``source``; None if they are in that order."""
    if columns is None or source.columns is None or source.columns == columns:
        return None
    return np.array([source.columns.index(name) for name in columns])


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
    file: SpillFile,
    facts: RowFacts,
    quarantine: Quarantine,
    options: IngestOptions,
    *,
    threads: int,
    advance: Callable[[int, int], None],
    first: int = 0,
) -> list[int]:
    """Read all ``sources``, whose numbers begin with ``first``, into ``file`` and ``facts``; return the rows of each.

    ``columns`` are the features in their order, None if the files do not name them; ``advance`` and errors are those of
    `read_all`.
    """

    def add(batch: RowBatch, source: int) -> None:
        if facts.labels_are_grades and not can_be_grades(batch.extras["label"], options.read.max_grade).all():
            facts.labels_are_grades = False
        if batch.categories:
            facts.vocabulary.add(batch.categories)
        spill_rows(file, batch, first + source)

    return read_all(
        sources,
        columns,
        add,
        quarantine,
        threads=reading_threads(facts.memory, threads, options.block_size, database_bytes_of(sources)),
        block_bytes=options.block_size,
        advance=advance,
    )
