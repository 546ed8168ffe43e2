"""Rows and pairs of an existing dataset as input of ``--append``; positions of pairs change when rows are added."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.errors import DataRejected
from rankmill.pipeline.arrow import as_array
from rankmill.pipeline.dataset_manifest import SPLITS
from rankmill.pipeline.judgments.judgment_counts import Tally, counts_of, repeats
from rankmill.pipeline.options import DEFAULT_BLOCK_BYTES
from rankmill.pipeline.pairs.pair_files import PairBatch
from rankmill.pipeline.sources.batch import BATCH_BYTES, RowBatch
from rankmill.pipeline.sources.column_roles import type_of
from rankmill.pipeline.sources.grades import UNKNOWN_GRADE
from rankmill.pipeline.sources.times import TIME
from rankmill.pipeline.stored_shards import QUERY_WEIGHT
from rankmill.pipeline.vocabulary import Tally as Tallied
from rankmill.pipeline.vocabulary import summed, tally_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from rankmill.pipeline.dataset import Dataset
    from rankmill.pipeline.dataset_manifest import Shard, UnjudgedShard
    from rankmill.pipeline.pairs.pair_files import Mismatch


@dataclass(slots=True)
class StoredCounts:
    """Totals of the manifest for some shards."""

    missing_values: int = 0
    grades: Counter[int] = field(default_factory=Counter)
    goals: dict[str, Counter[int]] = field(default_factory=dict)  # grades of each goal
    queries: Counter[str] = field(default_factory=Counter)  # by split
    rows: Counter[str] = field(default_factory=Counter)  # by split
    repeats: Tally = field(default_factory=Tally)
    tallies: dict[str, list[Tallied]] = field(default_factory=dict)  # by categorical feature


def stored_rows(
    dataset: Dataset, shard: Shard, counts: StoredCounts, *, graded: bool = True
) -> Iterator[tuple[int, RowBatch]]:
    """Yield (split, rows) of ``shard``, a few rows at a time, and count them in ``counts``.

    Rows of one split may come in several batches; the split is an index into SPLITS.  Peak memory: about three times
    ``BATCH_BYTES`` and a row group.

    Parameters
    ----------
    graded
        Whether to return the grades; otherwise they are 0 (but are counted as stored).
    """
    queries = dataset.shard_queries(shard)
    n_docs = queries.column("n_docs").to_numpy()
    split_of_query = pc.index_in(queries.column("split").combine_chunks(), value_set=pa.array(SPLITS)).to_numpy()
    for code, name in enumerate(SPLITS):
        counts.queries[name] += int(np.count_nonzero(split_of_query == code))
        counts.rows[name] += int(n_docs[split_of_query == code].sum())
    ids = dataset.ids(shard)
    qid, doc_id = (ids.column(name).combine_chunks() for name in ("qid", "doc_id"))
    counts.repeats += repeats(qid, doc_id, dataset.shard_grades(shard))
    split = np.repeat(split_of_query, n_docs)
    of_queries: dict[str, npt.NDArray[Any]] = {}
    if QUERY_WEIGHT in dataset.manifest.columns:
        of_queries[QUERY_WEIGHT] = queries.column(QUERY_WEIGHT).to_numpy()
    if TIME in dataset.manifest.columns:  # needed for the latest time of old and new rows
        of_queries[TIME] = queries.column(TIME).cast(pa.int64()).to_numpy()
    of_rows = {name: np.repeat(column, n_docs) for name, column in of_queries.items()}
    first = 0
    size = max(1, BATCH_BYTES // 4 // (4 * len(dataset.feature_names)))
    for narrow, values in dataset.stored_rows(shard, size):
        here = slice(first, first + len(values))
        first += len(values)
        grade = narrow.column("grade").to_numpy()
        counts.grades += counts_of(grade)
        for goal in dataset.goals:
            counts.goals[goal] = counts.goals.get(goal, Counter()) + counts_of(narrow.column(goal).to_numpy())
        counts.missing_values += int(np.count_nonzero(np.isnan(values)))
        for feature in dataset.manifest.categorical:
            found = tally_of(values[:, dataset.feature_names.index(feature)])
            counts.tallies[feature] = [summed([*counts.tallies.get(feature, ()), found])]
        extras = {name: narrow.column(name).to_numpy() for name in dataset.optional_columns}
        extras |= {name: column[here] for name, column in of_rows.items()}
        for code in np.unique(split[here]).tolist():
            rows = np.flatnonzero(split[here] == code)
            places = as_array(rows)
            yield (
                code,
                RowBatch(
                    qid=cast("pa.StringArray", narrow.column("qid").take(places)),
                    doc_id=cast("pa.StringArray", narrow.column("doc_id").take(places)),
                    grade=grade[rows] if graded else np.zeros(len(rows), dtype=np.int32),
                    values=values if len(rows) == len(values) else values[rows],
                    extras={name: column[rows] for name, column in extras.items()},
                ),
            )


def unjudged_rows(dataset: Dataset, shard: UnjudgedShard, extras: Collection[str]) -> Iterator[RowBatch]:
    """Yield the unjudged rows of ``shard``, a few at a time; columns stored per query (weights and times) and goals are 0."""
    size = max(1, BATCH_BYTES // 4 // (4 * len(dataset.feature_names)))
    for narrow, values in dataset.stored_rows(shard, size):
        n = len(values)
        yield RowBatch(
            qid=cast("pa.StringArray", narrow.column("qid")),
            doc_id=cast("pa.StringArray", narrow.column("doc_id")),
            grade=np.full(n, UNKNOWN_GRADE, dtype=np.int32),
            values=values,
            extras={
                name: narrow.column(name).to_numpy()
                if name in narrow.schema.names
                else np.zeros(n, dtype=type_of(name).to_pandas_dtype())
                for name in extras
            },
        )


def places_among(features: Sequence[str], old: Sequence[str]) -> npt.NDArray[np.int64] | None:
    """Return the positions of the ``old`` features among ``features``; None if they are the same."""
    if list(features) == list(old):
        return None
    place_of = {name: place for place, name in enumerate(features)}
    return np.array([place_of[name] for name in old], dtype=np.int64)


def spread(rows: RowBatch, place: npt.NDArray[np.int64] | None, width: int) -> RowBatch:
    """Return ``rows`` with their values at positions ``place`` (F,) of ``width`` features, the others missing; None: unchanged."""
    if place is None:
        return rows
    values = np.full((len(rows), width), np.nan, dtype=np.float32)
    values[:, place] = rows.values
    return replace(rows, values=values)


class StoredPairs:
    """The stored pairs of some buckets of a dataset.

    Attributes
    ----------
    path
        The dataset.
    """

    def __init__(self, dataset: Dataset, buckets: Collection[int]) -> None:
        self.path: Path = dataset.path
        self.position = 0
        self._dataset = dataset
        self._buckets = frozenset(buckets)

    def batches(self, block_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[PairBatch]:  # noqa: ARG002  one bucket at a time
        """Yield the pairs, one bucket at a time."""
        place = 0
        for pairs in self._tables():
            yield PairBatch(
                qid=pairs.column("qid").combine_chunks(),
                better=pairs.column("better").combine_chunks(),
                worse=pairs.column("worse").combine_chunks(),
                weight=pairs.column("weight").to_numpy(),
                probability=pairs.column("probability").to_numpy(),
                place=np.arange(place, place + len(pairs)),
            )
            place += len(pairs)

    def refuse(self, mismatches: Mapping[int, Mismatch]) -> None:
        """Report a pair that is no longer valid, since the new rows repeat one of its documents.

        Raises
        ------
        DataRejected
            Always.
        """
        first, mismatch = min(mismatches.items())
        place = 0
        for pairs in self._tables():
            if first < place + len(pairs):
                qid, *documents = (pairs.column(name)[first - place].as_py() for name in ("qid", "better", "worse"))
                document = documents[mismatch.column == "worse"]
                raise DataRejected(
                    f"{self.path}: it has a pair of document {document!r} of query {qid!r}, and the new rows bring that document"
                    " again; a document of a pair must be in one row of its query"
                )
            place += len(pairs)
        raise IndexError(first)

    def _tables(self) -> Iterator[pa.Table]:
        """Yield the pairs of each bucket, with the ids of better and worse."""
        manifest = self._dataset.manifest
        stored = {} if manifest.pairs is None else {shard.bucket: shard for shard in manifest.pairs.shards}
        for shard in manifest.shards:
            if shard.bucket not in self._buckets or shard.bucket not in stored:
                continue
            pairs = self._dataset.shard_pairs(stored[shard.bucket])
            doc_id = self._dataset.ids(shard).column("doc_id").combine_chunks()
            queries = self._dataset.shard_queries(shard)
            query = pc.index_in(pairs.column("qid"), value_set=queries.column("qid").combine_chunks()).to_numpy()
            first = queries.column("row_start").to_numpy()[query]
            for number, name in ((1, "better"), (2, "worse")):
                ids = doc_id.take(as_array(first + pairs.column(name).to_numpy()))
                pairs = pairs.set_column(number, pa.field(name, pa.string(), nullable=False), ids)
            yield pairs
