"""The documents at which a model is looked into: some queries of any candidates, or of a dataset, held in memory.

Queries are chosen by name, or drawn by a keyed hash of their ids: which ones does not depend on the order of the rows, and
half as many are the first half of as many.  Documents come by ascending qid, then doc_id, byte by byte, then as in the input.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.pipeline.sources.batch import Format, ReadOptions, RowBatch, Source
from rankmill.pipeline.sources.files import find_files
from rankmill.pipeline.sources.grades import UNKNOWN_GRADE
from rankmill.scorer.candidates import locate_features, named_by_row
from rankmill.scorer.evaluate import DatasetSource, chosen_queries
from rankmill.scorer.inspect.paths import Codes, Paths
from rankmill.scorer.opening import open_sources, read_options
from rankmill.scorer.predict import Predictor
from rankmill.scorer.scored_file import read_scored
from rankmill.scorer.seen import Scope, TrainedModel, scope_of_candidates

BLOCK_BYTES = 16 << 20
MAX_BYTES = 1 << 30  # of the features held
_SEEN_FOR_HINTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Documents of whole queries, n in all."""

    qids: tuple[str, ...]
    starts: npt.NDArray[np.int64]  # (q + 1,) where the documents of each query begin
    doc_ids: tuple[str, ...]  # row number in the input, from 1, where there is none
    grades: npt.NDArray[np.int32] | None  # (n,) UNKNOWN_GRADE where nobody graded; None where nobody graded any
    values: npt.NDArray[np.float32]  # (n, n_slots) the features that the model asks for, NaN where missing
    n_read: int  # documents in the input
    scope: Scope | None = None  # which queries of a dataset these are, and what the models have seen of them

    @property
    def query(self) -> npt.NDArray[np.int64]:
        """Return the number of each document's query, (n,)."""
        return np.repeat(np.arange(len(self.qids)), np.diff(self.starts))

    def codes(self, paths: Paths) -> Codes:
        """Return the codes of all documents, as `Paths.codes` does."""
        return paths.codes(self.values, np.arange(self.values.shape[1]))

    def graded(self) -> npt.NDArray[np.int32]:
        """Return the grades, 0 where there is none; CandidatesRejected where there is none at all."""
        if self.grades is None:
            raise CandidatesRejected("expected documents with grades, found none; give candidates that have them")
        return np.maximum(self.grades, 0)

    def order(self) -> npt.NDArray[np.int64]:
        """Return numbers that ascend with the document id within each query, (n,), for metrics that break ties by it."""
        return np.arange(len(self.doc_ids))


def read_documents(
    subject: Sequence[str | os.PathLike[str]],
    paths: Paths,
    *,
    split: str | None = None,
    models: Sequence[TrainedModel] = (),
    qids: Sequence[str] = (),
    n_queries: int = 0,
    seed: int = 0,
    input_format: Format = "auto",
    absent: Literal["zero", "missing"] | None = None,
    index_base: Literal[0, 1] | None = None,
    n_features: int | None = None,
    columns: Mapping[str, str] | None = None,
    announce: bool = False,
) -> Documents:
    """Read the documents of some queries.

    Parameters
    ----------
    subject
        Files of candidates, in any format that `rerank` reads, or the folder of one dataset.
    paths
        The forest that is looked into.
    split
        The split of the dataset, or ``all``; None: as `rankmill.scorer.seen.scope_of` chooses.
    models
        What is known of the models that are looked into; left out, what that of ``paths`` says itself.
    qids
        The queries; none: as the next parameter says.
    n_queries
        At most so many queries, drawn at random; 0: all.
    seed
        Which ones are drawn.
    input_format, absent, index_base, n_features, columns
        How to read candidates, see `rankmill.scorer.rerank.rerank`.
    announce
        Tell on stderr what was guessed of their columns.

    Raises
    ------
    InputError
        A file or a query is not there, or the features would take more than ``MAX_BYTES``.
    CandidatesRejected
        The candidates lack what the model needs, or hold nothing.
    rankmill.foundation.errors.DataRejected
        The candidates break their format.
    """
    if n_queries < 0:
        raise InputError(f"--queries must be 0 or more, got {n_queries}")
    predictor = Predictor(paths.forest)
    options = read_options(
        paths.forest, absent=absent, index_base=index_base, n_features=n_features, columns=columns
    )  # fmt: skip
    models, files = models or [TrainedModel.of(paths.forest)], [Path(path) for path in subject]
    dataset, scope = chosen_queries(files, split, models, qids)
    sources: list[Source] = (
        _open_files(files, input_format, options, announce=announce)
        if dataset is None or scope is None
        else [DatasetSource(dataset, scope.split, predictor.feature_names)]
    )
    choice = _Choice(frozenset(qids), n_queries, seed)
    pieces: list[_Piece] = []
    n_read = 0
    for source in sources:
        layout = locate_features(source, predictor, options)
        for batch in source.batches(BLOCK_BYTES):
            keep = choice.rows(batch.qid)
            if keep.any():
                pieces.append(_piece(batch, keep, layout.places, options.absent_value, n_read))
            n_read += len(batch)
            if choice.outdated:
                pieces = [piece for piece in (_still_chosen(piece, choice) for piece in pieces) if len(piece.row)]
                choice.outdated = False
            held = sum(piece.values.nbytes for piece in pieces)
            if held > MAX_BYTES:
                raise InputError(
                    f"the features of these queries take more than {MAX_BYTES / 1e6:,.0f} MB; choose fewer with --queries"
                )
    if n_read == 0:
        raise CandidatesRejected(f"{', '.join(map(str, subject))}: there are no candidates in it")
    choice.require_all(", ".join(map(str, subject)))
    found = _documents([_still_chosen(piece, choice) for piece in pieces], n_read)
    return replace(found, scope=scope or scope_of_candidates(models, found.qids))


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
            f"{path}: expected each document once a query, found {doc_id!r} of query {qid!r} again"
        )
    found = wanted.join(listed, on=["qid", "doc_id"], how="left", maintain_order="left")
    lacking = found.filter(pl.col("score").is_null())
    if not lacking.is_empty():
        qid, doc_id, _ = lacking.row(0)
        raise CandidatesRejected(
            f"{path}: has no score for {lacking.height:,} of the {wanted.height:,} candidates, such as {doc_id!r} of query "
            f"{qid!r}; rank all of them, or name only the candidates that it has"
        )
    scores: npt.NDArray[np.float64] = found["score"].to_numpy()
    return scores


@dataclass(frozen=True, slots=True)
class _Piece:
    qid: pa.Array[Any]
    doc_id: pa.Array[Any]
    grade: npt.NDArray[np.int32]
    row: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]


class _Choice:
    """Which queries are kept: those named, or the ``limit`` whose keys are least; once refused, refused for ever."""

    def __init__(self, named: frozenset[str], limit: int, seed: int) -> None:
        self.outdated = False
        """Whether queries were given up that may have rows."""
        self._named, self._limit = named, limit
        self._key = seed.to_bytes(8, "little")
        self._held: dict[str, tuple[int, str]] = {}
        self._worst: list[tuple[int, tuple[int, ...], str]] = []
        self._seen: dict[str, None] = {}

    def rows(self, qid: pa.Array[Any]) -> npt.NDArray[np.bool_]:
        """Tell which rows, (n,), are of chosen queries as far as is known."""
        encoded = qid.dictionary_encode()
        admitted = np.array([self._admits(str(name)) for name in encoded.dictionary.to_pylist()], dtype=np.bool_)
        found: npt.NDArray[np.bool_] = admitted[encoded.indices.to_numpy()]
        return found

    def _admits(self, qid: str) -> bool:
        if self._named:
            if len(self._seen) < _SEEN_FOR_HINTS or qid in self._named:
                self._seen[qid] = None
            return qid in self._named
        if not self._limit or qid in self._held:
            return True
        key = int.from_bytes(blake2b(qid.encode(), digest_size=8, key=self._key).digest(), "big")
        heapq.heappush(self._worst, (-key, tuple(-byte for byte in qid.encode()), qid))
        self._held[qid] = key, qid
        if len(self._held) > self._limit:
            given_up = heapq.heappop(self._worst)[2]
            del self._held[given_up]
            self.outdated |= given_up != qid
        return qid in self._held

    def holds(self, qid: str) -> bool:
        """Whether this query is chosen, of those that were asked for so far."""
        return bool(self._named) or not self._limit or qid in self._held

    def require_all(self, where: str) -> None:
        """Raise InputError for the first named query that was not there."""
        for qid in sorted(self._named - self._seen.keys()):
            near = get_close_matches(qid, list(self._seen), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"such as {next(iter(self._seen))!r}"
            raise InputError(f"{where}: there is no query {qid!r}; {hint}")


def _open_files(paths: Sequence[Path], input_format: Format, options: ReadOptions, *, announce: bool) -> list[Source]:
    files = [file for path in paths for file in (find_files([path]) if path.is_dir() else [path])]
    return open_sources(files, input_format, options, announce=announce)


def _piece(
    batch: RowBatch,
    keep: npt.NDArray[np.bool_],
    places: npt.NDArray[np.int64],
    absent: float,
    first_row: int,
) -> _Piece:
    rows = np.flatnonzero(keep)
    values = np.full((len(rows), len(places)), absent, dtype=np.float32)
    for slot, column in enumerate(places):
        if 0 <= column < batch.values.shape[1]:
            values[:, slot] = batch.values[rows, column]
    mask = pa.array(keep)
    grade = np.full(len(rows), UNKNOWN_GRADE, dtype=np.int32) if batch.grade is None else batch.grade[rows]
    doc_id = named_by_row(batch.doc_id, np.arange(first_row + 1, first_row + len(batch) + 1))
    return _Piece(batch.qid.filter(mask), doc_id.filter(mask), grade, rows + first_row, values)


def _still_chosen(piece: _Piece, choice: _Choice) -> _Piece:
    encoded = piece.qid.dictionary_encode()
    held = np.array([choice.holds(str(name)) for name in encoded.dictionary.to_pylist()], dtype=np.bool_)
    if held.all():
        return piece
    keep = held[encoded.indices.to_numpy()]
    mask = pa.array(keep)
    return _Piece(
        piece.qid.filter(mask), piece.doc_id.filter(mask), piece.grade[keep], piece.row[keep], piece.values[keep]
    )


def _documents(pieces: Sequence[_Piece], n_read: int) -> Documents:
    rows = pl.DataFrame(
        {
            "qid": pl.Series(pa.chunked_array([piece.qid for piece in pieces], pa.string())),
            "doc_id": pl.Series(pa.chunked_array([piece.doc_id for piece in pieces], pa.string())),
            "row": np.concatenate([piece.row for piece in pieces]),
        }
    ).with_row_index("at")
    rows = rows.sort("qid", "doc_id", "row")
    order = rows["at"].to_numpy()
    queries = rows.group_by("qid", maintain_order=True).len()
    grades = np.concatenate([piece.grade for piece in pieces])[order]
    return Documents(
        qids=tuple(queries["qid"].to_list()),
        starts=np.concatenate([[0], np.cumsum(queries["len"].to_numpy(), dtype=np.int64)]),
        doc_ids=tuple(rows["doc_id"].to_list()),
        grades=None if np.all(grades == UNKNOWN_GRADE) else grades,
        values=np.concatenate([piece.values for piece in pieces])[order],
        n_read=n_read,
    )
