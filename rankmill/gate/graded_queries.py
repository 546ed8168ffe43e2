"""The graded queries of a split, and the scores of models on them.  Features are streamed, never held in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.foundation.shown import few
from rankmill.pipeline.bins.write import columns_of
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.manifest import SPLITS
from rankmill.scorer.evaluate.train_test_overlap import empty_split
from rankmill.scorer.forest.links import MAX_GAINED_GRADE
from rankmill.scorer.metrics import Metric, Policy
from rankmill.scorer.metrics.conventions import Convention
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.scorer.models.loading import predictor_of
from rankmill.scorer.models.model import Model, Predictor, check_kinds

if TYPE_CHECKING:
    from rankmill.pipeline.dataset.manifest import SplitName

BLOCK_BYTES = 16 << 20
BATCH_ROWS = 65_536
_BY_ID = ("doc_id", "doc_id_descending", "random")  # tie rules that need the order of document ids

NumberT = TypeVar("NumberT", bound=np.generic)
Scores = npt.NDArray[np.float64]
Values = npt.NDArray[np.float64]  # (q,) a metric of each query, NaN if the policy skips the query


class GradedQueries:
    """The queries of a split with their grades, sorted by id as in `rankmill evaluate`; features stay on disk.

    Attributes
    ----------
    qids
        (q,) ids, ascending.
    starts
        (q + 1,) offsets of their rows.
    rows
        (n,) position of each row in the canonical order of the dataset; None: the orders are the same.

    Raises
    ------
    InputError
        The split does not exist or is empty.
    """

    def __init__(self, dataset: Dataset, split: str, convention: Convention) -> None:
        filled = [name for name, count in dataset.manifest.splits.items() if count.rows]
        if split in SPLITS and split not in filled:
            raise InputError(empty_split(dataset, split, usable=("test", "valid")))
        queries = dataset.queries(split)
        order = pc.sort_indices(queries.qid).to_numpy()
        sizes = np.diff(queries.starts)[order]
        self.dataset, self.split, self.convention = dataset, split, convention
        self.qids: pa.StringArray = queries.qid.take(pa.array(order))
        self.starts: npt.NDArray[np.int64] = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        self.rows: npt.NDArray[np.int64] | None = None
        if np.any(np.diff(order) != 1):
            shift = queries.starts[:-1][order] - self.starts[:-1]
            self.rows = np.repeat(shift, sizes) + np.arange(self.n_rows)
        columns = dataset.rows(split, ("grade",))
        self.grades: npt.NDArray[np.int32] = self.in_order(columns.column(0).to_numpy().astype(np.int32))
        self._prepared: dict[tuple[str, Policy], PreparedQueries] = {}
        self._can_differ: dict[Metric, npt.NDArray[np.bool_]] = {}

    def __len__(self) -> int:
        return len(self.qids)

    @property
    def n_rows(self) -> int:
        """Number of documents."""
        return int(self.starts[-1])

    @property
    def digest(self) -> str:
        """Return the sha256 over all ids, ascending.

        Each is preceded by its length in bytes as a little-endian 64-bit number.
        """
        found = hashlib.sha256()
        for qid in self.qids.to_pylist():
            name = str(qid).encode()
            found.update(len(name).to_bytes(8, "little") + name)
        return found.hexdigest()

    def in_order(self, values: npt.NDArray[NumberT]) -> npt.NDArray[NumberT]:
        """Reorder ``values`` (n,) from the canonical order of the dataset to that of these queries."""
        return values if self.rows is None else values[self.rows]

    def evaluate(self, metrics: Sequence[Metric], scores: Scores) -> dict[Metric, Values]:
        """Compute each metric of each query with the policy of the convention; ``scores`` (n,) without NaN."""
        values: dict[Metric, Values] = {}
        for metric in metrics:
            if metric not in values:
                same = [other for other in metrics if self._key(other) == self._key(metric)]
                values |= self.prepared(metric).evaluate(same, scores)
        return values

    def weights(self, metric: Metric) -> npt.NDArray[np.float64] | None:
        """Return the weight of each query in the mean; None if all are equal."""
        return self.prepared(metric).weights(metric)

    def can_differ(self, metric: Metric) -> npt.NDArray[np.bool_]:
        """Return (q,) whether two rankings can differ in the query by ``metric``; only these queries count."""
        if metric not in self._can_differ:
            self._can_differ |= self.prepared(metric).can_differ([metric])
        return self._can_differ[metric]

    def prepared(self, metric: Metric) -> PreparedQueries:
        """Return these queries prepared for ``metric`` under the policy of the convention.

        A goal has its own highest grade.
        """
        goal, policy = key = self._key(metric)
        if key not in self._prepared:
            order = self._document_order() if policy.ties in _BY_ID else None
            self._prepared[key] = PreparedQueries(self._graded_by(goal), self.starts, policy, doc_order=order)
        return self._prepared[key]

    def _key(self, metric: Metric) -> tuple[str, Policy]:
        convention, scale = self.convention, self.dataset.goals.get(metric.goal)
        if scale is not None and scale <= MAX_GAINED_GRADE:
            convention = convention.but(max_grade=max(1, scale))
        return metric.goal, convention.policy_for(metric)

    def _graded_by(self, goal: str) -> npt.NDArray[np.int32]:
        if not goal:
            return self.grades
        return self.in_order(self.dataset.rows(self.split, (goal,)).column(0).to_numpy())

    def _document_order(self) -> npt.NDArray[np.int64] | None:
        """Return (n,) numbers that ascend with the document id within each query, like the rows of a dataset."""
        ids = self.dataset.rows(self.split, ("doc_id",)).column(0).combine_chunks()
        if ids.null_count:
            return None
        new = np.zeros(len(ids), dtype=np.int64)
        changes = pc.not_equal(ids.slice(1), ids.slice(0, max(0, len(ids) - 1)))
        new[1:] = changes.to_numpy(zero_copy_only=False)
        return self.in_order(np.cumsum(new))


def scores_of(
    dataset: Dataset, split: str, models: Sequence[Model], names: Sequence[str], *, n_threads: int = 1
) -> list[Scores]:
    """Score the rows of ``split`` with each model, in canonical order, in one pass over their features.

    ``names`` are the names of the models in messages.  Memory: the scores and a batch of features.  The result is the
    same for any ``n_threads``.

    Raises
    ------
    CandidatesRejected
        The dataset lacks a feature of a model.
    """
    predictors = [predictor_of(model) for model in models]
    for predictor, name in zip(predictors, names, strict=True):
        check_features(dataset, predictor, name)
    used = {feature for predictor in predictors for feature in predictor.feature_names}
    features = [feature for feature in dataset.feature_names if feature in used] or [dataset.feature_names[0]]
    places = [np.array([features.index(f) for f in p.feature_names], dtype=np.int64) for p in predictors]
    out = [np.empty(dataset.queries(split).n_rows) for _ in models]
    batch_rows = min(max(1, BLOCK_BYTES // (4 * len(features))), BATCH_ROWS)
    first = 0
    for values in dataset.feature_batches(split, features, batch_rows):
        for predictor, columns, scores in zip(predictors, places, out, strict=True):
            scores[first : first + len(values)] = predictor.scores(values, columns=columns, n_threads=n_threads)
        first += len(values)
    return out


def check_features(dataset: Dataset, predictor: Predictor, name: str) -> None:
    """Raise CandidatesRejected if ``dataset`` lacks a feature of the model, or has it in another kind.

    ``called`` names the model.
    """
    has = set(dataset.feature_names)
    if lacking := [feature for feature in predictor.feature_names if feature not in has]:
        raise CandidatesRejected(_missing_features_message(dataset, name, lacking))
    categorical, where = dataset.manifest.categorical, f"{dataset.path}: "
    check_kinds(predictor.model, dataset.feature_names, categorical, CandidatesRejected, model=name, where=where)


def _missing_features_message(dataset: Dataset, name: str, lacking: Sequence[str]) -> str:
    return (
        f"{dataset.path}: {name} uses features that are missing from this dataset: {few(lacking)}; evaluate both "
        "models on a dataset "
        "that has the features of both"
    )


@dataclass(frozen=True, slots=True)
class SingleFeature:
    """Ranking by one feature, the highest first, or the lowest."""

    name: str
    column: int
    descending: bool

    def scores(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Score by the feature's ``values`` (n,); documents with a missing value are last."""
        scores = values.astype(np.float64) if self.descending else -values.astype(np.float64)
        scores[np.isnan(scores)] = -np.inf
        return scores


def best_single_feature(
    dataset: Dataset,
    split: str,
    metric: Metric,
    policy: Policy,
    *,
    queries: PreparedQueries | None = None,
    in_order: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]] | None = None,
) -> SingleFeature:
    """Find the feature and direction whose ranking of ``split`` has the best mean ``metric``; the first of several.

    A few columns are in memory at a time.  ``queries`` are those of the split prepared under ``policy``, if available;
    ``in_order`` reorders a column (n,) from the canonical order to theirs.

    Raises
    ------
    ValueError
        No query counts.
    """
    if queries is None:
        grades = dataset.rows(split, (metric.goal or "grade",)).column(0).to_numpy().astype(np.int32)
        queries = PreparedQueries(grades, dataset.queries(split).starts, policy)
    best, highest = None, -np.inf
    columns: Iterable[tuple[str, npt.NDArray[np.float32]]] = columns_of(dataset, cast("SplitName", split))
    for column, (name, stored) in enumerate(columns):
        values = stored if in_order is None else in_order(stored)
        for descending in (True, False):
            candidate = SingleFeature(name, column, descending)
            mean = queries.means([metric], candidate.scores(values))[metric]
            if (better := mean if metric.higher_is_better else -mean) > highest:
                best, highest = candidate, better
    if best is None:
        raise ValueError(f"no query of {split} counts for {metric}")
    return best
