"""Read the documents for model inspection: some queries of candidates or of a dataset, held in memory.

Queries are chosen by id, or sampled by a keyed hash of their ids. The sample does not depend on the order of the rows,
and a smaller sample is part of a larger one.  Documents are sorted by qid, then doc_id, byte by byte, then input order.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from rankmill.foundation.errors import CandidatesRejected, InputError, name_hint
from rankmill.foundation.options import spelled
from rankmill.pipeline.options import ReadOptions
from rankmill.pipeline.read.batch import RowBatch, Source
from rankmill.pipeline.read.grades import UNKNOWN_GRADE
from rankmill.pipeline.read.made_ids import named_by_row
from rankmill.scorer.evaluate.scored_file import read_scored
from rankmill.scorer.evaluate.train_test_overlap import Scope, TrainedModel, chosen_queries, scope_of_candidates
from rankmill.scorer.models.model import Predictor
from rankmill.scorer.options import Selection
from rankmill.scorer.rerank.candidate_sources import DatasetSource, files_of, open_sources, read_options
from rankmill.scorer.rerank.candidates import locate_features

BLOCK_BYTES = 16 << 20
MAX_BYTES = 1 << 30  # of the features in memory
_SEEN_FOR_HINTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Documents of whole queries, n in all."""

    qids: tuple[str, ...]
    starts: npt.NDArray[np.int64]  # (q + 1,) where the documents of each query begin
    doc_ids: tuple[str, ...]  # the name of the row in the input if there is none
    grades: npt.NDArray[np.int32] | None  # (n,) UNKNOWN_GRADE if unjudged; None if all are
    values: npt.NDArray[np.float32]  # (n, n_slots) the features that the model uses, NaN if missing
    n_read: int  # documents in the input
    scope: Scope | None = None  # which queries of a dataset these are, and what the models have seen of them

    @property
    def query(self) -> npt.NDArray[np.int64]:
        """Return the number of each document's query, (n,)."""
        return np.repeat(np.arange(len(self.qids)), np.diff(self.starts))

    def graded(self) -> npt.NDArray[np.int32]:
        """Return the grades, 0 for unjudged documents; CandidatesRejected if all are unjudged."""
        if self.grades is None:
            raise CandidatesRejected("expected documents with grades, found none; give candidates that have them")
        return np.maximum(self.grades, 0)

    def order(self) -> npt.NDArray[np.int64]:
        """Return numbers that ascend with the document id within each query, (n,).

        Metrics that break ties by the id use them.
        """
        return np.arange(len(self.doc_ids))


ALL_OF_THEM = Selection()


def read_documents(
    subject: Sequence[str | os.PathLike[str]],
    predictor: Predictor,
    selection: Selection = ALL_OF_THEM,
    *,
    models: Sequence[TrainedModel] = (),
) -> Documents:
    """Read the documents of some queries.

    Parameters
    ----------
    subject
        Files of candidates, in any format that `rerank` reads, or the folder of one dataset.
    predictor
        The model that is inspected.
    selection
        Which queries, and how to read them.
    models
        Training data of the inspected models; by default what the model itself records.

    Raises
    ------
    InputError
        A file or a query is missing, or the features would take more than ``MAX_BYTES``.
    CandidatesRejected
        The candidates lack features of the model, or are empty.
    rankmill.foundation.errors.DataRejected
        The candidates are malformed.
    """
    if selection.n_queries < 0:
        raise InputError(f"{spelled('n_queries')} must be 0 or more, got {selection.n_queries}")
    options = read_options(selection, predictor.model)
    models, files = models or [TrainedModel.of(predictor.model)], [Path(path) for path in subject]
    where = ", ".join(map(str, subject))
    dataset, scope = chosen_queries(files, selection.split, models, selection.qids)
    sources: list[Source] = (
        open_sources(files_of(files, selection.format), selection.format, options, announce=selection.announce)
        if dataset is None or scope is None
        else [DatasetSource(dataset, scope.split, predictor)]
    )
    choice = _Choice(frozenset(selection.qids), selection.n_queries, selection.seed)
    pieces, n_read = _chosen_pieces(sources, predictor, options, choice)
    if n_read == 0:
        raise CandidatesRejected(f"{where}: no candidates found")
    choice.require_all(where)
    documents = _documents(pieces, n_read)
    return replace(documents, scope=scope or scope_of_candidates(models, documents.qids))


def _chosen_pieces(
    sources: Sequence[Source], predictor: Predictor, options: ReadOptions, choice: _Choice
) -> tuple[list[_Piece], int]:
    """Read the chosen documents of the sources, and count all documents."""
    pieces: list[_Piece] = []
    n_read = 0
    for source in sources:
        layout = locate_features(source, predictor, options)
        for batch in source.batches(BLOCK_BYTES):
            if choice.admit(pl.Series(batch.qid)):
                pieces = [
                    _Piece(piece.rows.filter(keep), piece.values[keep.to_numpy()])
                    for piece in pieces
                    if (keep := choice.mask(piece.rows["qid"])).any()
                ]
            if (keep := choice.mask(pl.Series(batch.qid))).any():
                pieces.append(_piece(batch, keep, layout.places, options.absent_value, n_read))
            n_read += len(batch)
            if sum(piece.values.nbytes for piece in pieces) > MAX_BYTES:
                raise InputError(
                    f"the features of these queries need more than {MAX_BYTES / 1e6:,.0f} MB; choose fewer with "
                    f"{spelled('n_queries')}"
                )
    return pieces, n_read


def listed_scores(path: Path, documents: Documents) -> npt.NDArray[np.float64]:
    """Look the scores (n,) of ``documents`` up in a scored list or TREC run, by query and document id.

    Raises
    ------
    InputError
        There is no such file.
    CandidatesRejected
        The list lacks document ids, or the score of a document, or scores one twice for a query.
    """
    table = read_scored(path)
    if "doc_id" not in table.column_names or table["doc_id"].null_count:
        raise CandidatesRejected(f"{path}: expected a doc_id in every row, to look candidates up by; some have none")
    wanted = pl.DataFrame(
        {"qid": pl.Series(documents.qids, dtype=pl.String).gather(documents.query), "doc_id": documents.doc_ids}
    )
    listed = pl.DataFrame(table.select(["qid", "doc_id", "score"])).join(wanted, on=["qid", "doc_id"], how="semi")
    repeated = listed.filter(pl.struct("qid", "doc_id").is_duplicated())
    if not repeated.is_empty():
        qid, doc_id, _ = repeated.row(0)
        raise CandidatesRejected(
            f"{path}: expected each document once per query, found {doc_id!r} of query {qid!r} again"
        )
    scored = wanted.join(listed, on=["qid", "doc_id"], how="left", maintain_order="left")
    missing = scored.filter(pl.col("score").is_null())
    if not missing.is_empty():
        qid, doc_id, _ = missing.row(0)
        raise CandidatesRejected(
            f"{path}: lacks a score for {missing.height:,} of the {wanted.height:,} candidates, such as {doc_id!r} of "
            f"query {qid!r}; rank all of them, or name only the candidates that it has"
        )
    scores: npt.NDArray[np.float64] = scored["score"].to_numpy()
    return scores


@dataclass(frozen=True, slots=True)
class _Piece:
    """Documents of one batch and the features that the model uses.

    ``row`` is their number in the input; qid, doc_id and grade are beside it.
    """

    rows: pl.DataFrame
    values: npt.NDArray[np.float32]


class _Choice:
    """Which queries are kept: those named, or the ``limit`` with the lowest keys; a dropped query never returns."""

    def __init__(self, named: frozenset[str], limit: int, seed: int) -> None:
        self._named, self._limit = named, limit
        self._seed = seed.to_bytes(8, "little")
        self._kept: dict[str, bytes] = dict.fromkeys(named, b"")
        self._seen: dict[str, None] = {}

    def admit(self, qid: pl.Series) -> bool:
        """Look at the queries of further rows; return whether some are dropped for them."""
        new = qid.unique(maintain_order=True).to_list()
        if self._named:
            self._seen |= dict.fromkeys(new[: max(0, _SEEN_FOR_HINTS - len(self._seen))])
            self._seen |= dict.fromkeys(self._named.intersection(new))
        if self._named or not self._limit:
            return False
        before = self._kept
        keys = {name: blake2b(name.encode(), digest_size=8, key=self._seed).digest() for name in new}
        self._kept = dict(heapq.nsmallest(self._limit, (keys | before).items(), key=itemgetter(1)))
        return not before.keys() <= self._kept.keys()

    def mask(self, qid: pl.Series) -> pl.Series:
        """Return a mask (n,) of the rows whose queries are kept so far."""
        if not self._named and not self._limit:
            return pl.repeat(value=True, n=len(qid), eager=True)
        return qid.is_in(list(self._kept))

    def require_all(self, where: str) -> None:
        """Raise InputError for the first named query that was not found."""
        for qid in sorted(self._named - self._seen.keys()):
            raise InputError(f"{where}: there is no query {qid!r}; {name_hint(qid, list(self._seen))}")


def _piece(batch: RowBatch, keep: pl.Series, columns: npt.NDArray[np.int64], absent: float, first_row: int) -> _Piece:
    number = np.arange(first_row + 1, first_row + len(batch) + 1)
    grade = np.full(len(batch), UNKNOWN_GRADE, dtype=np.int32) if batch.grade is None else batch.grade
    doc_id = pl.Series(named_by_row(batch.doc_id, number))
    rows = pl.DataFrame({"qid": pl.Series(batch.qid), "doc_id": doc_id, "grade": grade, "row": number}).filter(keep)
    at = keep.arg_true().to_numpy()
    values = np.full((len(at), len(columns)), absent, dtype=np.float32)
    for slot, column in enumerate(columns):
        if 0 <= column < batch.values.shape[1]:
            values[:, slot] = batch.values[at, column]
    return _Piece(rows, values)


def _documents(pieces: Sequence[_Piece], n_read: int) -> Documents:
    rows = pl.concat([piece.rows for piece in pieces]).with_row_index("at").sort("qid", "doc_id", "row")
    queries = rows.group_by("qid", maintain_order=True).len()
    grades = rows["grade"].to_numpy()
    return Documents(
        qids=tuple(queries["qid"].to_list()),
        starts=np.concatenate([[0], np.cumsum(queries["len"].to_numpy(), dtype=np.int64)]),
        doc_ids=tuple(rows["doc_id"].to_list()),
        grades=None if np.all(grades == UNKNOWN_GRADE) else grades,
        values=np.concatenate([piece.values for piece in pieces])[rows["at"].to_numpy()],
        n_read=n_read,
    )
