"""Score sources with several threads; rows are read and returned in the order of the input."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.progress import TerminalBar
from rankmill.foundation.threads import results_in_order
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.batch import ColumnBatch, ColumnTask, ReadTask, RowBatch, Source, tasks_of
from rankmill.pipeline.read.columnar import ColumnarSource
from rankmill.pipeline.read.grades import UNKNOWN_GRADE
from rankmill.pipeline.read.made_ids import named_by_row
from rankmill.scorer.models.model import Predictor
from rankmill.scorer.rerank.candidates import Columns, check_finite, check_rows, locate_features
from rankmill.scorer.rerank.first_stage import FirstStage, Listed, columns_of, rows_of
from rankmill.scorer.rerank.ranked_file import SCORED_ROW, scored_schema
from rankmill.scorer.rerank.top_k import BestScores, first_of_queries

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from rich.console import Console

    from rankmill.scorer.rerank.memory import MemoryPlan


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores of one model for a part of the input.

    These are rows as ``SCORED_ROW`` and the goals, and grade counts of the rows left out.
    """

    rows: pa.RecordBatch
    dropped: pa.RecordBatch | None


@dataclass(frozen=True, slots=True)
class InputPosition:
    """A position in the input: finished sources, tasks and rows of the next one; rows in total; the widest text.

    ``left_out`` counts the rows so far that are not in the first stage.
    """

    source: int = 0
    tasks: int = 0
    rows: int = 0
    all_rows: int = 0
    width: int = 0
    left_out: int = 0

    @property
    def ranked(self) -> int:
        """Number of rows that are candidates."""
        return self.all_rows - self.left_out


NARROW = 100
"""Bytes per row during scoring, without its ids and feature codes: grade, score, one or two columns."""
COPIES_OF_IDS = 3
"""Copies of the ids in memory: as read, as one array, and those of kept rows."""
WAITING = 2
"""Number of parts per thread that may be read or scored ahead of an unfinished one, so that threads rarely wait for
each other."""


class ScoringLimits(NamedTuple):
    """Threads and bytes.

    Bytes are per thread of an input block and of a row group read by columns, and of the best scores of all queries.

    Defaults are for a process without a limit of memory.
    """

    n_threads: int
    block_bytes: int = 16 << 20
    columns_bytes: int = 64 << 20
    best_bytes: int = 0

    @classmethod
    def within(cls, memory: MemoryPlan | None, wanted: int) -> Self:
        """Return the limits of ``memory``, if any, for at most ``wanted`` threads."""
        if memory is None:
            return cls(wanted)
        n_threads = memory.scoring_threads(wanted)
        return cls(n_threads, memory.block_bytes, memory.columns_bytes(n_threads), memory.best_bytes)


Take = Callable[[list[list[Scored]], InputPosition], None]
"""Called in input order with the results of each model for a part, and the position after it."""


def score_in_order(
    sources: Sequence[Source],
    predictors: Sequence[Predictor],
    options: ReadOptions,
    take: Take,
    limits: ScoringLimits,
    *,
    top_k: int | None = None,
    begin: InputPosition | None = None,
    stage: FirstStage | None = None,
    part: bool = False,
) -> InputPosition:
    """Score the rows of all ``sources`` with each of ``predictors``, and return the final position.

    A document without an id is named by its row in the whole input (`rankmill.pipeline.read.made_ids`).  Rows that
    cannot be in the top k of their query are left out.  ``take`` gets the results of each part of the input, in order.
    Memory per thread: a block of input, or the codes of a row group if columns can be read one at a time.

    Parameters
    ----------
    begin
        Where to resume: a position that ``take`` got in another run over the same input with the same ``block_bytes``.
    stage
        The documents that are candidates, with one row each; other rows are left out.  Default: every row is a
        candidate.
    part
        The sources are a part of the input: documents without an id get no name yet, and what only the whole input
        shows is not checked (`rankmill.scorer.rerank.candidates.check_rows`).

    Raises
    ------
    CandidatesRejected
        A feature that a model uses is missing, there is no document, one of ``stage`` has two rows, or a score is not
        finite.
    """
    place = begin or InputPosition()
    scoring = _Scoring(sources, predictors, options, limits, top_k, stage, part)
    sizes = [source.path.stat().st_size for source in sources]
    parts = results_in_order(scoring.items(place), scoring.pieces, limits.n_threads, WAITING * limits.n_threads)
    with DocumentBar("scoring", sum(sizes), done=place.all_rows, shown=not part) as bar, closing(parts):
        for item, pieces in parts:
            if pieces is not None:
                results, place = scoring.results(item, pieces, place)
                take(results, place)
                bar.update(place.all_rows, sum(sizes[: item.source]) + item.task.position)
                del pieces, results  # not in memory while the next part is waited for
    if not part:
        layouts = [layout for of_source in scoring.layouts for layout in of_source]
        check_rows(sources, layouts, options, place.all_rows, place.width)
    return place


def scored_rows(sources: Sequence[Source], predictor: Predictor, reading: ReadOptions, n_threads: int) -> pa.Table:
    """Score all ``sources``; return a table of `scored_schema` in their order.  Errors: `score_in_order`."""
    rows: list[pa.RecordBatch] = []

    def take(results: list[list[Scored]], _: InputPosition) -> None:
        rows.extend(part.rows for part in results[0])

    score_in_order(sources, [predictor], reading, take, ScoringLimits(n_threads))
    return pa.Table.from_batches(rows, scored_schema(reading.goals))


def check_first_rows(
    sources: Sequence[Source], predictor: Predictor, options: ReadOptions, *, block_bytes: int = 1 << 20
) -> None:
    """Score the first rows of each of ``sources``, so that most errors of `score_in_order` appear early.

    Raises
    ------
    CandidatesRejected
        As `score_in_order`, if the columns and the first block of a source show it.
    """
    layouts = [locate_features(source, predictor, options) for source in sources]
    rows, width, whole = 0, 0, True
    for source, layout in zip(sources, layouts, strict=True):
        batches = source.batches(block_bytes)
        for batch in batches:
            if len(batch):
                scores = _scores(predictor, batch, layout, options.absent_value)
                check_finite(
                    numbered(_kept(batch, scores, np.arange(len(batch)), None, ()).rows, rows), str(source.path)
                )
                rows, width = rows + len(batch), max(width, batch.values.shape[1])
            break
        whole = whole and next(iter(batches), None) is None
    if whole:
        check_rows(sources, layouts, options, rows, width)


class DocumentBar(TerminalBar):
    """Progress bar over the input, with documents per second and the time left.

    ``total`` is the size of the whole input in the unit of ``at`` in `update`; an earlier run scored ``done``
    documents.
    """

    def __init__(
        self, what: str, total: float, console: Console | None = None, *, done: int = 0, shown: bool = True
    ) -> None:
        after = "{task.fields[documents]:,} documents, {task.fields[rate]:,.0f}/s"
        super().__init__("{task.description}", after, console, shown=shown)
        self._task = self._progress.add_task(what, total=total, documents=0, rate=0.0)
        self._since, self._done = time.monotonic(), done

    def update(self, documents: int, at: float) -> None:
        """Show that ``documents`` are done in total, and the input up to ``at``."""
        rate = (documents - self._done) / max(time.monotonic() - self._since, 1e-9)
        self._progress.update(self._task, completed=at, documents=documents, rate=rate)


@dataclass(frozen=True, slots=True)
class _Item:
    source: int
    task: ReadTask | ColumnTask
    known: bool
    """Whether an earlier run scored its rows, which are skipped."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Scores and ids of a batch of ``n`` rows.

    ``of_models`` has the rows that each model keeps, numbered from its first.
    """

    n: int
    width: int
    listed: Listed | None
    of_models: list[Scored]


class _Scoring:
    """State shared by the threads: sources, models, feature positions, and the best scores of each query so far."""

    def __init__(
        self,
        sources: Sequence[Source],
        predictors: Sequence[Predictor],
        options: ReadOptions,
        limits: ScoringLimits,
        top_k: int | None,
        stage: FirstStage | None,
        part: bool,  # noqa: FBT001
    ) -> None:
        wanted = {name for predictor in predictors for name in predictor.feature_names}
        for source in sources:
            if isinstance(source, ColumnarSource):
                for predictor in predictors:
                    locate_features(source, predictor, options)  # checks all its features before any is left out
                source.leave_out_features(wanted)
        self.layouts = [[locate_features(source, predictor, options) for predictor in predictors] for source in sources]
        self._sources, self._predictors, self._limits, self._stage = sources, predictors, limits, stage
        self._named = not part
        self._absent, self._top_k, self._goals = options.absent_value, top_k, options.goals
        self._best = [
            None if top_k is None else BestScores(top_k, limits.best_bytes // len(predictors)) for _ in predictors
        ]

    def items(self, begin: InputPosition) -> Generator[_Item, None, None]:
        """Yield the parts of the input after ``begin``, in order."""
        row_bytes = NARROW + sum(predictor.code_bytes for predictor in self._predictors)
        block_bytes = self._limits.block_bytes
        for index, source in enumerate(self._sources):
            if index < begin.source:
                continue
            here = begin if index == begin.source else InputPosition()
            tasks: Iterator[ReadTask | ColumnTask]
            if isinstance(source, ColumnarSource):
                most_rows = self._limits.columns_bytes // (row_bytes + COPIES_OF_IDS * source.id_bytes())
                skipped = 0
                tasks = source.column_tasks(block_bytes, most_rows, here.rows, self._limits.n_threads)
            else:
                skipped, tasks = here.tasks, tasks_of(source, block_bytes)
            for task in tasks:
                yield _Item(index, task, skipped > 0)
                skipped -= 1

    def pieces(self, item: _Item) -> list[_Piece] | None:
        """Read the rows of ``item`` and score them; None if they are ``known``."""
        layouts, stage = self.layouts[item.source], self._stage
        if isinstance(item.task, ColumnTask):
            by_column = item.task.batch()
            n, listed = len(by_column), None
            if stage is not None:
                listed = stage.listed(by_column.rows)
                by_column = columns_of(by_column, listed)
            scores = _scores_by_column(self._predictors, by_column, layouts)
            return [self._piece(by_column.rows, scores, n, 0, listed)]
        pieces = []
        for batch in item.task.rows():
            if len(batch) and not item.known:
                listed = None if stage is None else stage.listed(batch)
                chosen = batch if listed is None else rows_of(batch, listed)
                scores = [_scores(p, chosen, at, self._absent) for p, at in zip(self._predictors, layouts, strict=True)]
                pieces.append(self._piece(chosen, scores, len(batch), batch.values.shape[1], listed))
        return None if item.known else pieces

    def _piece(
        self, batch: RowBatch, scores: list[npt.NDArray[np.float64]], n: int, width: int, listed: Listed | None
    ) -> _Piece:
        """Keep the needed part of ``batch``, which has the ``listed`` rows of a batch of ``n`` rows."""
        place = np.arange(n) if listed is None else listed.place
        kept = [_kept(batch, own, place, best, self._goals) for own, best in zip(scores, self._best, strict=True)]
        return _Piece(n, width, listed, kept)

    def results(
        self, item: _Item, pieces: list[_Piece], place: InputPosition
    ) -> tuple[list[list[Scored]], InputPosition]:
        """Return the results of ``pieces`` for each model, and the position after them; they begin at ``place``."""
        results: list[list[Scored]] = [[] for _ in self._predictors]
        before = place if place.source == item.source else InputPosition(item.source)
        path, rows, left_out = self._sources[item.source].path, 0, place.left_out
        for piece in pieces:
            if self._stage is not None and piece.listed is not None:
                self._stage.see(piece.listed, path, before.rows + rows)
                left_out += piece.n - len(piece.listed.place)
            for kept, result in zip(piece.of_models, results, strict=True):
                scored = numbered(kept.rows, place.all_rows + rows, named=self._named)
                check_finite(scored, str(path))
                result.append(Scored(scored, kept.dropped))
            rows += piece.n
        needed = self.layouts[item.source][0].needed
        width = max([place.width, *(piece.width for piece in pieces if needed)])
        end = InputPosition(item.source, before.tasks + 1, before.rows + rows, place.all_rows + rows, width, left_out)
        return results, end


def _scores(predictor: Predictor, batch: RowBatch, layout: Columns, absent: float) -> npt.NDArray[np.float64]:
    places = np.where(layout.places < batch.values.shape[1], layout.places, -1)
    # -0.0 becomes 0.0: equal scores must sort as equal
    return predictor.scores(batch.values, columns=places, absent=absent) + 0.0


def _scores_by_column(
    predictors: Sequence[Predictor], batch: ColumnBatch, layouts: Sequence[Columns]
) -> list[npt.NDArray[np.float64]]:
    codes = [predictor.codes_buffer(len(batch)) for predictor in predictors]
    slots = [{int(column): slot for slot, column in enumerate(layout.places)} for layout in layouts]
    for part in batch.features:
        for predictor, room, slot_of in zip(predictors, codes, slots, strict=True):
            if part.number in slot_of:
                predictor.take_column(room, slot_of[part.number], part.first, part.values)
    return [p.scores_of_codes(room, len(batch)) + 0.0 for p, room in zip(predictors, codes, strict=True)]


def _kept(
    batch: RowBatch,
    scores: npt.NDArray[np.float64],
    place: npt.NDArray[np.int64],
    best: BestScores | None,
    goals: Sequence[str],
) -> Scored:
    """Return the rows of ``batch`` that may be in the top k of their query.

    If scores are not finite, these are all. ``place`` numbers them from 0.
    """
    keep, dropped = None, None
    if best is not None and np.isfinite(scores).all():
        keep, dropped = first_of_queries(batch.qid, scores, batch.grade, best)
    qid, doc_id = batch.qid, pa.nulls(len(batch), pa.string()) if batch.doc_id is None else batch.doc_id
    rows: npt.NDArray[np.int64] | slice = slice(None)
    if keep is not None:
        rows = np.flatnonzero(keep)
        qid, doc_id, scores, place = qid.take(as_array(rows)), doc_id.take(as_array(rows)), scores[rows], place[rows]
    grade = pa.nulls(len(place), pa.int32()) if batch.grade is None else _known(batch.grade[rows])
    scored = pa.record_batch([qid, doc_id, as_array(scores), grade, as_array(place + 1)], schema=SCORED_ROW)
    for name in goals:
        scored = scored.append_column(name, _known(batch.extras[name][rows]))
    return Scored(scored, dropped)


def numbered(scored: pa.RecordBatch, before: int, *, named: bool = True) -> pa.RecordBatch:
    """Return scored rows with their numbers after ``before`` rows.

    Rows without an id are ``named`` by these numbers.
    """
    row = scored.column("row").to_numpy() + before
    columns = dict(zip(scored.schema.names, scored.columns, strict=True)) | {"row": as_array(row)}
    if named:
        columns["doc_id"] = named_by_row(columns["doc_id"], row)
    return pa.record_batch(list(columns.values()), schema=scored.schema)


def _known(grades: npt.NDArray[np.int32]) -> pa.Array[Any]:
    """Return a copy of ``grades`` (n,), as the next batch may reuse them, with null for unknown ones."""
    return pa.array(grades.copy(), pa.int32(), mask=grades == UNKNOWN_GRADE)
