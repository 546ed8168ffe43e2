"""Rows for training or evaluation: grades, queries, weights and bins; and the data of one training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.pipeline.pairs.stored_pairs import PreferencePairs
from rankmill.trainer.data.layout import BlockedBins, checked
from rankmill.trainer.data.shard import Span

Bins = npt.NDArray[np.uint8]
Default = Callable[["RankedRows"], npt.NDArray[Any]]


class Column(NamedTuple):
    """What is known of an optional column of rows: once, for reading, choosing and joining."""

    name: str  # in datasets
    default: Default  # what rows without it stand for, given rows with it
    of_queries: bool = False  # one value for each query, not for each row


def _is(name: str, default: Default, *, of_queries: bool = False) -> dict[str, Column]:
    """Return the metadata of the field of a column."""
    return {"column": Column(name, default, of_queries)}


@dataclass(frozen=True, slots=True)
class RankedRows:
    """Rows of one split: query q has rows ``starts[q]`` to ``starts[q + 1]``.

    ``bins`` yields row-major batches (m, n_features) uint8 in row order and is read once; training rows may also come
    in the trainer's own layout.  ``weights`` and ``query_weights`` weight documents and queries in the loss;
    ``offsets`` are added to scores in losses and metrics, but not to predictions.  ``positions`` are the ranks at which
    users saw documents.  ``labels`` are regression targets instead of grades; ``events`` (1:
    observed, 0: censored) belong to labels that are times; ``pairs`` replace the pairs that grades make, see
    :mod:`rankmill.trainer.data.training_rows`.  ``goals`` are further grades.  ``names`` and the seed decide which
    queries are held out or belong to a fold.
    """

    grades: npt.NDArray[np.int32]  # (n_rows,)
    starts: npt.NDArray[np.int64]  # (n_queries + 1,)
    bins: Iterable[Bins] | BlockedBins
    # None: what rows stand for without it
    weights: npt.NDArray[np.float64] | None = field(  # (n_rows,), 0 or more
        default=None, metadata=_is("weight", lambda rows: np.ones(rows.n_rows))
    )
    labels: npt.NDArray[np.float64] | None = field(  # (n_rows,) finite
        default=None, metadata=_is("label", lambda rows: rows.targets)
    )
    events: npt.NDArray[np.uint8] | None = field(  # (n_rows,) 0 or 1
        default=None, metadata=_is("event", lambda rows: np.ones(rows.n_rows, dtype=np.uint8))
    )
    offsets: npt.NDArray[np.float64] | None = field(  # (n_rows,) finite
        default=None, metadata=_is("offset", lambda rows: np.zeros(rows.n_rows))
    )
    positions: npt.NDArray[np.int32] | None = field(  # (n_rows,) 1 or more; None: unknown
        default=None, metadata=_is("position", lambda rows: np.ones(rows.n_rows, dtype=np.int32))
    )
    query_weights: npt.NDArray[np.float64] | None = field(  # (n_queries,), 0 or more
        default=None, metadata=_is("query_weight", lambda rows: np.ones(rows.n_queries), of_queries=True)
    )
    names: npt.NDArray[np.int64] | None = field(  # (n_queries,) that stand for their ids
        default=None, metadata=_is("", lambda rows: rows.query_names, of_queries=True)
    )
    pairs: PreferencePairs | None = None
    codes: Mapping[str, npt.NDArray[np.float32]] = field(
        default_factory=dict
    )  # (n_rows,) of features to encode, by name
    goals: Mapping[str, npt.NDArray[np.int32]] = field(default_factory=dict)  # (n_rows,) grades of each goal, by name

    @property
    def n_rows(self) -> int:
        """Number of documents."""
        return len(self.grades)

    @property
    def n_queries(self) -> int:
        """Number of queries, empty ones included."""
        return len(self.starts) - 1

    @property
    def graded(self) -> bool:
        """Whether grades are informative: there are no labels, or some grade is above 0."""
        return self.labels is None or bool(self.grades.any())

    @property
    def targets(self) -> npt.NDArray[np.float64]:
        """Targets of regression, (n_rows,)."""
        return self.grades.astype(np.float64) if self.labels is None else self.labels

    def graded_by(self, goal: str) -> npt.NDArray[np.int32]:
        """Return the grades of a goal, or the main ones if it is empty, (n_rows,)."""
        return self.goals[goal] if goal else self.grades

    @property
    def query_names(self) -> npt.NDArray[np.int64]:
        """Numbers that stand for the ids of the queries, (n_queries,)."""
        return np.arange(self.n_queries, dtype=np.int64) if self.names is None else self.names

    def of_queries(self, chosen: npt.NDArray[np.bool_], *, row_major: bool = False) -> RankedRows:
        """Return the rows of the ``chosen`` queries (n_queries,): see :meth:`in_order`."""
        return self.in_order(np.flatnonzero(chosen), row_major=row_major)

    def in_order(self, queries: npt.NDArray[np.intp], *, row_major: bool = False) -> RankedRows:
        """Return the rows of these ``queries``, one after another.

        Bins, if there are any, must be in the trainer's own layout.

        The bins of the result are in the same layout, or in batches if ``row_major``, as eval sets need them.
        """
        if not isinstance(self.bins, BlockedBins) and self.bins != ():
            raise TypeError("rows are chosen from blocks of bins")
        at, starts = places_of(self.starts, queries)
        bins: Iterable[Bins] | BlockedBins = ()
        if isinstance(self.bins, BlockedBins):
            bins = self.bins.batches(at) if row_major else self.bins.of_rows(at)
        pairs = self.pairs
        if pairs is not None:
            row_now = np.zeros(self.n_rows, dtype=np.int32)
            row_now[at] = np.arange(len(at), dtype=np.int32)
            which, pair_starts = places_of(pairs.starts, queries)
            pairs = PreferencePairs(
                better=row_now[pairs.better[which]],
                worse=row_now[pairs.worse[which]],
                weight=pairs.weight[which],
                probability=pairs.probability[which],
                starts=pair_starts,
            )
        columns = {name: getattr(self, name) for name in COLUMNS} | {"names": self.query_names}
        return RankedRows(
            grades=self.grades[at],
            starts=starts,
            bins=bins,
            pairs=pairs,
            codes={name: values[at] for name, values in self.codes.items()},
            goals={name: values[at] for name, values in self.goals.items()},
            **{
                name: None if values is None else values[queries if COLUMNS[name].of_queries else at]
                for name, values in columns.items()
            },
        )

    def followed_by(self, other: RankedRows, bins: BlockedBins) -> RankedRows:
        """Return these rows and then those of ``other``; ``bins`` are those of both.

        What only one of the two has gets the value that it stands for in the other: weight 1, offset 0, position 1, the
        grades as labels, events seen. A goal of one alone is left out.
        """
        columns: dict[str, Any] = {}
        for name, column in COLUMNS.items():
            parts = [getattr(rows, name) for rows in (self, other)]
            if any(values is not None for values in parts):
                columns[name] = np.concatenate(
                    [
                        column.default(rows) if values is None else values
                        for rows, values in zip((self, other), parts, strict=True)
                    ]
                )
        pairs, more = self.pairs, other.pairs
        if pairs is not None or more is not None:
            pairs, more = (
                _no_pairs(rows.n_queries) if given is None else given for rows, given in ((self, pairs), (other, more))
            )
            pairs = PreferencePairs(
                better=np.concatenate([pairs.better, more.better + np.int32(self.n_rows)]),
                worse=np.concatenate([pairs.worse, more.worse + np.int32(self.n_rows)]),
                weight=np.concatenate([pairs.weight, more.weight]),
                probability=np.concatenate([pairs.probability, more.probability]),
                starts=_starts_of(np.concatenate([np.diff(pairs.starts), np.diff(more.starts)])),
            )
        return RankedRows(
            grades=np.concatenate([self.grades, other.grades]),
            starts=_starts_of(np.concatenate([np.diff(self.starts), np.diff(other.starts)])),
            bins=bins,
            pairs=pairs,
            codes={name: np.concatenate([values, other.codes[name]]) for name, values in self.codes.items()},
            goals={
                name: np.concatenate([values, other.goals[name]])
                for name, values in self.goals.items()
                if name in other.goals
            },
            **columns,
        )

    def with_columns(self, columns: Sequence[npt.NDArray[np.uint8]]) -> RankedRows:
        """Return the same rows whose bins are followed by ``columns`` (n_rows,)."""
        bins = self.bins
        if isinstance(bins, BlockedBins):
            bins = bins.with_columns(columns)
        else:
            bins = _followed_by(bins, np.stack(columns, axis=1))
        return replace(self, bins=bins)

    def blocked(self, n_bins: npt.NDArray[np.int32]) -> BlockedBins:
        """Return the bins in the trainer's own layout; ``n_bins`` (n_features,) counts each feature's.

        Raises
        ------
        TrainingDataRejected
            The bins have another number of rows or features: see :meth:`BlockedBins.from_batches`.
        """
        if not isinstance(self.bins, BlockedBins):
            return BlockedBins.from_batches(self.bins, self.n_rows, n_bins)
        expected, found = (self.n_rows, len(n_bins)), (self.bins.n_rows, self.bins.n_features)
        if found != expected:
            raise TrainingDataRejected(f"expected the bins of {expected} rows and features, found {found}")
        return self.bins

    def row_major(self, n_bins: npt.NDArray[np.int32]) -> Bins:
        """Return the bins of all batches together, (n_rows, n_features); errors as for :meth:`blocked`."""
        out = np.empty((self.n_rows, len(n_bins)), dtype=np.uint8)
        self._fill(out, n_bins)
        return out

    def by_feature(self, n_bins: npt.NDArray[np.int32], span: Span | None = None) -> Bins:
        """Return the bins of all batches together, (n_features, n_rows); errors as for :meth:`blocked`.

        With a ``span`` of other processes too, batches hold its rows alone.
        """
        out = np.empty((len(n_bins), self.n_rows), dtype=np.uint8)
        self._fill(out.T if span is None else out.T[span.first : span.last], n_bins)
        return out

    def _fill(self, out: Bins, n_bins: npt.NDArray[np.int32]) -> None:
        if isinstance(self.bins, BlockedBins):
            raise TypeError("rows of an eval set come in row-major batches")
        for first, rows in checked(self.bins, len(out), n_bins):
            out[first : first + len(rows)] = rows


COLUMNS: Mapping[str, Column] = {
    each.name: each.metadata["column"] for each in fields(RankedRows) if "column" in each.metadata
}
"""The optional columns of :class:`RankedRows` by the names of their fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """All that one training learns from and measures.

    Attributes
    ----------
    train
        The rows to learn from.
    eval_sets
        (name, rows) of sets that are only measured.  The first decides the best round by the stop metric, unless
        ``rounds_by`` is ``oob``.  Without eval sets all rounds are kept.
    edges
        One ascending float32 array per feature, of 254 edges at most; bin b >= 1 holds ``edges[b - 2] < x <= edges[b -
        1]``, bin 0 the missing. Of a categorical feature, the codes of its categories, bin b >= 1 holding ``edges[b -
        1]``, and the last bin all others.
    feature_names
        As many as ``edges``; written into the model.
    categories
        The categorical features by name, with the names of their categories in the order of ``edges``, or none.
    max_grade
        Highest grade of the scale, for ERR; written into the model.
    goal_max_grades
        The same of each goal, by name; at least the highest grade of these rows.
    info
        Facts to keep in the model file (dataset digest ..); no times, no paths.
    """

    train: RankedRows
    eval_sets: Sequence[tuple[str, RankedRows]] = ()
    edges: Sequence[npt.NDArray[np.float32]]
    feature_names: Sequence[str]
    max_grade: int
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    goal_max_grades: Mapping[str, int] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_bins(self) -> npt.NDArray[np.int32]:
        """Bins of each feature, the missing one included, (n_features,)."""
        return np.array([len(cuts) + 2 for cuts in self.edges], dtype=np.int32)

    @property
    def scale(self) -> dict[str, int]:
        """The highest grade of each goal, and of the main grade, whose name is empty."""
        sets = [self.train, *(rows for _, rows in self.eval_sets)]
        scale = {"": self.max_grade}
        for name in self.train.goals:
            found = (int(rows.goals[name].max(initial=0)) for rows in sets if name in rows.goals)
            scale[name] = max(self.goal_max_grades.get(name, 0), *found)
        return scale

    def blocked(self) -> TrainingData:
        """Return the same with the bins of ``train`` in the trainer's own layout."""
        return replace(self, train=replace(self.train, bins=self.train.blocked(self.n_bins)))


def as_eval_set(rows: RankedRows, span: Span | None = None) -> RankedRows:
    """Return ``rows`` as an eval set: with their bins in batches, those of a ``span`` alone."""
    if not isinstance(rows.bins, BlockedBins):
        return rows
    first, last = (0, rows.n_rows) if span is None else (span.first, span.last)
    return replace(rows, bins=rows.bins.batches(np.arange(first, last)))


def places_of(
    starts: npt.NDArray[np.int64], parts: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the places of these ``parts``, one after another, and where each begins then.

    Before, the parts begin at ``starts``.

    >>> places_of(np.array([0, 2, 5]), np.array([1, 0]))
    (array([2, 3, 4, 0, 1]), array([0, 3, 5]))
    """
    sizes = np.diff(starts)[parts]
    begins = _starts_of(sizes)
    return np.repeat(starts[:-1][parts] - begins[:-1], sizes) + np.arange(begins[-1]), begins


def has_two_grades(grades: npt.NDArray[np.int32], starts: npt.NDArray[np.int64]) -> bool:
    """Whether a query has documents of different grades; (n_rows,) and (n_queries + 1,)."""
    differ = grades[1:] != grades[:-1]
    first = starts[1:-1]
    differ[first[(first > 0) & (first < len(grades))] - 1] = (
        False  # the first of a query and the last of the one before
    )
    return bool(differ.any())


def _followed_by(batches: Iterable[Bins], columns: Bins) -> Iterator[Bins]:
    """Yield ``batches`` (m, n_features) with their rows of ``columns`` (n_rows, k) at the end."""
    first = 0
    for batch in batches:
        yield np.concatenate([batch, columns[first : first + len(batch)]], axis=1)
        first += len(batch)


def _no_pairs(n_queries: int) -> PreferencePairs:
    rows, values = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.float64)
    return PreferencePairs(rows, rows, values, values, np.zeros(n_queries + 1, dtype=np.int64))


def _starts_of(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
