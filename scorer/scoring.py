"""Score sources in several threads: parts are taken, and their rows handed on, in the order of the input."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.arrow import as_array
from pipeline.sources.batch import ReadOptions, ReadTask, RowBatch, Source, tasks_of
from pipeline.sources.columnar import ColumnarSource
from pipeline.sources.grades import UNKNOWN_GRADE
from pipeline.workers import in_order
from scorer.best import can_be_kept, counts_of_dropped, runs_of
from scorer.candidates import Columns, check_finite, check_rows, locate_features, named_by_row
from scorer.predict import Predictor
from scorer.schemas import SCORED_ROW

if TYPE_CHECKING:
    from collections.abc import Generator


@dataclass(frozen=True, slots=True)
class Scored:
    """What one model makes of a part of the input: rows as ``SCORED_ROW``, and how often grades occur in those left out."""

    rows: pa.RecordBatch
    dropped: pa.RecordBatch | None


@dataclass(frozen=True, slots=True)
class Place:
    """How far the input is used up: whole sources, then tasks and rows of the next one; all rows; the widest text."""

    source: int = 0
    tasks: int = 0
    rows: int = 0
    all_rows: int = 0
    width: int = 0


Take = Callable[[list[list[Scored]], Place, int], None]
"""Called in the order of the input with what each model makes of a part, how far that is, and the bytes used up."""


def score_in_order(
    sources: Sequence[Source],
    predictors: Sequence[Predictor],
    options: ReadOptions,
    take: Take,
    *,
    block_bytes: int,
    n_threads: int,
    top_k: int | None = None,
    begin: Place | None = None,
) -> Place:
    """Score the rows of all ``sources`` with each of ``predictors``, and return where that ends.

    A document without an id is named by its row number in the whole input.  Rows that cannot be among the first ``top_k`` of
    their query are left out.  Memory: a block of input a thread.

    Parameters
    ----------
    take
        Gets what comes of the parts of the input, one after the other.
    begin
        Where to go on: a place that ``take`` was given in another run over the same input with the same ``block_bytes``.

    Raises
    ------
    CandidatesRejected
        A feature that a model asks for is lacking, there is no document, or a score is not a finite number.
    """
    begin = begin or Place()
    wanted = {name for predictor in predictors for name in predictor.feature_names}
    for source in sources:
        if isinstance(source, ColumnarSource):
            for predictor in predictors:
                locate_features(source, predictor, options)  # complains of all that it has, before any is left out
            source.leave_out_features(wanted)
    layouts = [[locate_features(source, predictor, options) for predictor in predictors] for source in sources]
    line = _Line(begin)
    sizes = [source.path.stat().st_size for source in sources]

    def work(item: _Item) -> None:
        turn = False
        try:
            if item.known:
                for _ in item.task.rows():
                    pass
                turn = line.wait(item.number)
                if turn:
                    line.go_on(line.place)
                return
            of_source, absent = layouts[item.source], options.absent_value
            pieces = [
                _Piece.of(
                    batch, [_scores(p, batch, at, absent) for p, at in zip(predictors, of_source, strict=True)], top_k
                )
                for batch in item.task.rows()
                if len(batch)
            ]
            turn = line.wait(item.number)
            if turn:
                place = line.place
                results: list[list[Scored]] = [[] for _ in predictors]
                rows = place.all_rows
                for piece in pieces:
                    piece.hand_over(results, rows, str(sources[item.source].path))
                    rows += piece.n
                width = max([place.width, *(piece.width for piece in pieces if of_source[0].needed)])
                before = place if place.source == item.source else Place(item.source)
                place = Place(item.source, before.tasks + 1, before.rows + rows - place.all_rows, rows, width)
                take(results, place, sum(sizes[: item.source]) + item.task.position)
                line.go_on(place)
        except BaseException:
            line.broken(item.number)
            raise

    with closing(_items(sources, block_bytes, begin)) as items:
        failures = in_order(items, work, n_threads)
    if failures:
        raise failures[0].error
    check_rows(
        sources,
        [layout for of_source in layouts for layout in of_source],
        options,
        line.place.all_rows,
        line.place.width,
    )
    return line.place


def check_first_rows(
    sources: Sequence[Source], predictor: Predictor, options: ReadOptions, *, block_bytes: int = 1 << 20
) -> None:
    """Score the first rows of each of ``sources``, so that most of what would stop `score_in_order` is known soon.

    Raises
    ------
    CandidatesRejected
        As `score_in_order` raises it, for what can be told from the columns and the first block of each source.
    """
    layouts = [locate_features(source, predictor, options) for source in sources]
    rows, width, whole = 0, 0, True
    for source, layout in zip(sources, layouts, strict=True):
        batches = source.batches(block_bytes)
        for batch in batches:
            if len(batch):
                scores = _scores(predictor, batch, layout, options.absent_value)
                check_finite(scores, batch.qid, rows, str(source.path))
                rows, width = rows + len(batch), max(width, batch.values.shape[1])
            break
        whole = whole and next(iter(batches), None) is None
    if whole:
        check_rows(sources, layouts, options, rows, width)


@dataclass(frozen=True, slots=True)
class _Item:
    number: int
    source: int
    task: ReadTask
    known: bool
    """Whether an earlier run scored its rows, and they are only read past."""


def _items(sources: Sequence[Source], block_bytes: int, begin: Place) -> Generator[_Item, None, None]:
    number = 0
    for index, source in enumerate(sources):
        if index < begin.source:
            continue
        here = begin if index == begin.source else Place()
        if isinstance(source, ColumnarSource):
            skipped, tasks = 0, source.tasks_from(block_bytes, here.rows)
        else:
            skipped, tasks = here.tasks, tasks_of(source, block_bytes)
        for task in tasks:
            yield _Item(number, index, task, skipped > 0)
            number, skipped = number + 1, skipped - 1


def _scores(predictor: Predictor, batch: RowBatch, layout: Columns, absent: float) -> npt.NDArray[np.float64]:
    places = np.where(layout.places < batch.values.shape[1], layout.places, -1)
    # -0.0 becomes 0.0: the two are one score, and sort as one
    return predictor.scores(batch.values, columns=places, absent=absent) + 0.0


@dataclass(frozen=True, slots=True)
class _Piece:
    """The narrow part of a batch with its scores; ``kept`` has the rows that each model keeps."""

    n: int
    width: int
    qid: pa.Array[Any]
    doc_id: pa.Array[Any] | None
    grade: npt.NDArray[np.int32] | None
    scores: list[npt.NDArray[np.float64]]
    kept: list[npt.NDArray[np.int64] | None]
    dropped: list[pa.RecordBatch | None]

    @classmethod
    def of(cls, batch: RowBatch, scores: list[npt.NDArray[np.float64]], top_k: int | None) -> _Piece:
        kept: list[npt.NDArray[np.int64] | None] = [None] * len(scores)
        dropped: list[pa.RecordBatch | None] = [None] * len(scores)
        if top_k is not None:
            starts = runs_of(batch.qid)
            for m, of_model in enumerate(scores):
                keep = can_be_kept(starts, of_model, top_k) if np.isfinite(of_model).all() else None
                if keep is not None:
                    kept[m] = np.flatnonzero(keep)
                    dropped[m] = counts_of_dropped(batch.qid, starts, batch.grade, keep)
        # the batch's arrays may be used again once the next one is asked for
        grade = None if batch.grade is None else batch.grade.copy()
        return cls(len(batch), batch.values.shape[1], batch.qid, batch.doc_id, grade, scores, kept, dropped)

    def hand_over(self, results: list[list[Scored]], rows_before: int, where: str) -> None:
        """Add to ``results`` of each model; the batch begins after ``rows_before`` rows."""
        doc_id = named_by_row(self.doc_id, rows_before, self.n)
        for scores, kept, dropped, result in zip(self.scores, self.kept, self.dropped, results, strict=True):
            check_finite(scores, self.qid, rows_before, where)
            grade = (
                pa.nulls(self.n, pa.int32())
                if self.grade is None
                else pa.array(self.grade, pa.int32(), mask=self.grade == UNKNOWN_GRADE)
            )
            row = as_array(np.arange(rows_before + 1, rows_before + self.n + 1))
            rows = pa.record_batch([self.qid, doc_id, as_array(scores), grade, row], schema=SCORED_ROW)
            rows = rows if kept is None else rows.take(as_array(kept))
            result.append(Scored(rows, dropped))


class _Line:
    """Lets the owners of parts go one after the other, in the order of their numbers, up to the first that failed."""

    def __init__(self, begin: Place) -> None:
        self.place = begin
        self._next = 0
        self._failed: int | None = None
        self._moved = threading.Condition()

    def wait(self, number: int) -> bool:
        """Wait for the turn of ``number``; False: one before it has failed, there will be none."""
        with self._moved:
            self._moved.wait_for(lambda: self._next == number or (self._failed is not None and self._failed < number))
            return self._next == number

    def go_on(self, place: Place) -> None:
        with self._moved:
            self.place, self._next = place, self._next + 1
            self._moved.notify_all()

    def broken(self, number: int) -> None:
        with self._moved:
            self._failed = number if self._failed is None else min(number, self._failed)
            self._moved.notify_all()
