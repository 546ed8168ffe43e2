"""Rankings of the graded queries of a split, by models or by simple rules, and how much better one is than another.

Scores (n,) are in the canonical order of the dataset.  Features are streamed, never held in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.foundation.shown import few
from rankmill.pipeline.bins.write import columns_of
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.manifest import SPLITS
from rankmill.scorer.evaluate.evaluate import evaluate_lists
from rankmill.scorer.evaluate.evaluation import Evaluation
from rankmill.scorer.evaluate.scored_lists import ScoredLists, prepared, read_lists
from rankmill.scorer.evaluate.train_test_overlap import empty_split
from rankmill.scorer.metrics import Metric
from rankmill.scorer.metrics.conventions import Convention
from rankmill.scorer.metrics.significance import MOST_SHOWN, Paired, compare_paired
from rankmill.scorer.models.loading import predictor_of
from rankmill.scorer.models.model import Model, Predictor, check_kinds

if TYPE_CHECKING:
    from rankmill.pipeline.dataset.manifest import SplitName

BLOCK_BYTES = 16 << 20
BATCH_ROWS = 65_536
HIGHEST_SCALE = 52  # highest grade that err can use

Rule = Literal["better", "not worse", "not shown to be worse"]
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GradedQueries:
    """The queries of a split with their grades.

    Attributes
    ----------
    table
        (n,) qid, doc_id, grade and the goals of the metrics, in the canonical order of the dataset.
    lists
        By goal: the same lists, ascending by id, whose scores are the positions of their rows in ``table``.
    convention
        How metrics are computed.
    """

    dataset: Dataset
    split: str
    table: pa.Table
    lists: Mapping[str, ScoredLists]
    convention: Convention

    @classmethod
    def of(cls, dataset: Dataset, split: str, convention: Convention, metrics: Iterable[Metric]) -> GradedQueries:
        """Read the queries of ``split`` for ``metrics``; InputError if it does not exist or is empty."""
        filled = [name for name, count in dataset.manifest.splits.items() if count.rows]
        if split in SPLITS and split not in filled:
            raise InputError(empty_split(dataset, split, usable=("test", "valid")))
        goals = sorted({metric.goal for metric in metrics} | {""})
        table = dataset.rows(split, ("qid", "doc_id", "grade", *filter(None, goals)))
        placed = table.append_column("score", pa.array(np.arange(table.num_rows, dtype=np.float64)))
        lists = {goal: read_lists(placed, goal=goal)[0] for goal in goals}
        return cls(dataset=dataset, split=split, table=table, lists=lists, convention=convention)

    @property
    def main(self) -> ScoredLists:
        """The lists with the main grades."""
        return self.lists[""]

    @property
    def digest(self) -> str:
        """The sha256 over all ids, ascending, each preceded by its length in bytes as a little-endian 64-bit number."""
        found = hashlib.sha256()
        for qid in self.main.qids:
            found.update(len(qid.encode()).to_bytes(8, "little") + qid.encode())
        return found.hexdigest()

    def evaluate(self, scores: Scores, metrics: Sequence[Metric], replicates: int = 0) -> Evaluation:
        """Evaluate the ranking by ``scores`` (n,), NaN last, with ``replicates`` of the bootstrap (0: no intervals)."""
        given = np.where(np.isnan(scores), -np.inf, scores)[self.main.scores.astype(np.int64)]
        lists = {goal: replace(each, scores=given) for goal, each in self.lists.items()}
        return evaluate_lists(
            lists, tuple(dict.fromkeys(metrics)), self.convention, self.scales(metrics), replicates, same_documents=True
        )

    def scales(self, metrics: Iterable[Metric]) -> dict[str, int]:
        """Return the highest grade of each goal, by which ERR is computed."""
        goals = self.dataset.goals
        return {each.goal: max(1, goals[each.goal]) for each in metrics if each.name == "err" and each.goal}


def on_scale(convention: Convention, dataset: Dataset, models: Iterable[Model]) -> Convention:
    """Return ``convention``; without a highest grade, with that of the data of ``dataset`` and ``models``."""
    recorded = [model.info.get("max_grade") for model in models]
    scale = max(1, dataset.max_grade, *(grade for grade in recorded if isinstance(grade, int)))
    return (
        convention
        if convention.policy.max_grade is not None or scale > HIGHEST_SCALE
        else convention.but(max_grade=scale)
    )


def difference(now: Evaluation, then: Evaluation, metric: Metric, most_shown: int = MOST_SHOWN) -> Paired | None:
    """Compare two rankings of the same queries by one metric; None if fewer than two queries count."""
    return compare_paired(
        now.values[metric],
        then.values[metric],
        now.qids,
        can_differ=now.can_differ[metric],
        weights=now.weights[metric],
        higher_is_better=metric.higher_is_better,
        most_shown=most_shown,
    )


def scores_of(
    dataset: Dataset, split: str, models: Sequence[Model], names: Sequence[str], *, n_threads: int = 1
) -> list[Scores]:
    """Score the rows of ``split`` with each model in one pass over their features.

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

    ``name`` names the model.
    """
    has = set(dataset.feature_names)
    if lacking := [feature for feature in predictor.feature_names if feature not in has]:
        raise CandidatesRejected(
            f"{dataset.path}: {name} uses features that are missing from this dataset: {few(lacking)}; evaluate both "
            "models on a dataset that has the features of both"
        )
    categorical, where = dataset.manifest.categorical, f"{dataset.path}: "
    check_kinds(predictor.model, dataset.feature_names, categorical, CandidatesRejected, model=name, where=where)


@dataclass(frozen=True, slots=True)
class SingleFeature:
    """Ranking by one feature, the highest first, or the lowest."""

    name: str
    column: int
    descending: bool

    def scores(self, values: npt.NDArray[np.float32]) -> Scores:
        """Score by the feature's ``values`` (n,); documents with a missing value are last."""
        scores = values.astype(np.float64) if self.descending else -values.astype(np.float64)
        scores[np.isnan(scores)] = -np.inf
        return scores


def best_single_feature(queries: GradedQueries, metric: Metric) -> SingleFeature:
    """Find the feature and direction whose ranking has the best mean ``metric``; the first of several.

    A few columns are in memory at a time.

    Raises
    ------
    ValueError
        No query counts.
    """
    lists = queries.lists[metric.goal]
    rules = queries.convention.but(max_grade=queries.scales([metric]).get(metric.goal)).policy_for(metric)
    known, place = prepared(lists, rules), lists.scores.astype(np.int64)
    best, highest = None, -np.inf
    columns = columns_of(queries.dataset, cast("SplitName", queries.split))
    for column, (name, values) in enumerate(columns):
        for descending in (True, False):
            candidate = SingleFeature(name, column, descending)
            mean = known.means([metric], candidate.scores(values)[place])[metric]
            if (better := mean if metric.higher_is_better else -mean) > highest:
                best, highest = candidate, better
    if best is None:
        raise ValueError(f"no query of {queries.split} counts for {metric}")
    return best


@dataclass(frozen=True, slots=True)
class Rival:
    """A ranking to compare with: a description, its scores, and the condition on the difference; see `passed`."""

    name: str
    words: str
    scores: Scores
    rule: Rule

    def passed(self, found: Paired, margin: float, worse_allowed: bool = False) -> bool:  # noqa: FBT001, FBT002
        """Return whether the 95 % interval (low, high) of the difference, candidate minus rival, satisfies the rule.

        ``better``: low > 0.  ``not worse``: low > -margin and high >= 0; if ``worse_allowed`` low > -margin, as
        otherwise many small losses add up.  ``not shown to be worse``: low > -margin or high >= 0, so a candidate is
        refused only if it is significantly worse and not shown to be within the margin.
        """
        low, high = found.interval
        if self.rule == "better":
            return low > 0.0
        if self.rule == "not worse" and high < 0.0 and not worse_allowed:
            return False
        return low > -margin or (self.rule == "not shown to be worse" and high >= 0.0)


def row_order(queries: GradedQueries) -> Rival:
    """Rank the documents by the column ``position`` if the dataset has it, otherwise in stored order.

    Documents with the same position tie.  Rows of a query are stored by document id, so without positions this is no
    better than chance unless the ids are informative.
    """
    if "position" in queries.dataset.optional_columns:
        positions = queries.dataset.rows(queries.split, ("position",)).column(0).to_numpy().astype(np.float64)
        return Rival("row order", "the order of the column position", -positions, "better")
    words = "the row order as stored, by document id (the dataset has no column 'position')"
    return Rival("row order", words, -np.arange(queries.table.num_rows, dtype=np.float64), "better")


def single_feature(queries: GradedQueries, metric: Metric) -> Rival:
    """Rank by the single feature, ascending or descending, with the best ``metric`` on these queries.

    Missing values are last.

    The feature is chosen on the queries that judge it, so its figure may be too high: the candidate need not beat it.
    """
    found = best_single_feature(queries, metric)
    words = (
        f"the best single feature ({found.name}, {'highest' if found.descending else 'lowest'} first; chosen on these "
        "same queries, so its figure may be too high)"
    )
    scores = found.scores(queries.dataset.feature_column(found.name, queries.split))
    return Rival("best single feature", words, scores, "not shown to be worse")
