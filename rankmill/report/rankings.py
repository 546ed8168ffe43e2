"""Rank the held-out queries with the new version, the current version and the baselines, and evaluate each ranking."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.cores import available_cores
from rankmill.foundation.records import as_json
from rankmill.gate.graded_queries import GradedQueries, Scores, scores_of
from rankmill.gate.judging import row_order, single_feature
from rankmill.report import Facts
from rankmill.scorer.evaluate.evaluate import evaluate_scored
from rankmill.scorer.evaluate.evaluation import Evaluation, Slices
from rankmill.scorer.evaluate.query_columns import column_of_dataset
from rankmill.scorer.evaluate.slices import GRADE_MIX, QUERY_SIZE, WITHOUT_SLICES, slices_of
from rankmill.scorer.evaluate.train_test_overlap import Scope, TrainedModel, scope_of
from rankmill.scorer.metrics import Metric
from rankmill.scorer.metrics.per_query import TIED
from rankmill.scorer.metrics.significance import compare_paired, paired_differences, sign_flip_p
from rankmill.scorer.models.model_service import train_queries

if TYPE_CHECKING:
    from rankmill.pipeline.dataset.dataset import Queries
    from rankmill.report.subject import Subject

CANDIDATE, PRESENT, ROW_ORDER, SINGLE_FEATURE = "candidate", "present", "row order", "best single feature"
MOST_WORST = 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranked:
    """A ranking of the queries.

    ``kind`` is one of the words above, ``words`` a description; ``scores`` (n,) are in the canonical order of the
    dataset.
    """

    kind: str
    name: str
    words: str
    scores: Scores
    evaluation: Evaluation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rankings:
    """All rankings of the same queries, that of the version first.

    ``rows`` has qid, doc_id, grade and goals, one row per document.
    """

    rows: pa.Table
    ranked: tuple[Ranked, ...]

    @property
    def candidate(self) -> Ranked:
        """The ranking of the version of the report."""
        return self.ranked[0]

    @property
    def rival(self) -> Ranked:
        """The ranking for comparisons by query: the current version, else the best single feature."""
        for kind in (PRESENT, SINGLE_FEATURE, ROW_ORDER):
            for each in self.ranked:
                if each.kind == kind:
                    return each
        raise AssertionError("there is always the order of the rows")


def rankings_of(subject: Subject, n_threads: int = 0) -> Rankings | None:
    """Rank the held-out queries in every way and evaluate each ranking.

    None if there are no such queries, or none counts.

    Memory: the narrow columns of the split and the scores; features are read in batches.
    """
    if subject.dataset is None or subject.split is None:
        return None
    dataset, split = subject.dataset, subject.split
    models = [subject.model] + ([] if subject.present_model is None else [subject.present_model])
    names = [str(subject.version), str(subject.present)][: len(models)]
    scores = scores_of(dataset, split, models, names, n_threads=n_threads or available_cores())
    goals = sorted({metric.goal for metric in subject.metrics} - {""})
    rows = dataset.rows(split, ("qid", "doc_id", "grade", *goals))
    names_of_rankings = [(CANDIDATE, names[0], f"{names[0]}, the new version")]
    names_of_rankings += [(PRESENT, each, f"{each}, {subject.alias} when it came") for each in names[1:]]
    queries = GradedQueries(dataset, split, subject.convention)
    first = _evaluated(rows, scores[0], subject)
    if not first.n_counted(subject.metric):
        subject.notes.append(f"no query of the split {split} counts for {subject.metric}, so nothing is compared")
        return None
    bars = [row_order(queries), single_feature(queries, subject.metric)]
    names_of_rankings += [(bar.name, bar.name, bar.words) for bar in bars]
    scores += [_canonical(queries, bar.scores) for bar in bars]
    evaluations = [first, *(_evaluated(rows, each, subject) for each in scores[1:])]
    return Rankings(
        rows=rows,
        ranked=tuple(
            Ranked(kind=kind, name=name, words=words, scores=each, evaluation=evaluation)
            for (kind, name, words), each, evaluation in zip(names_of_rankings, scores, evaluations, strict=True)
        ),
    )


def difference(now: Ranked, then: Ranked, metric: Metric) -> Facts | None:
    """Compare two rankings by one metric, as `rankmill.scorer.evaluate.compare.compare` does.

    None if fewer than two queries count.
    """
    here, there = now.evaluation, then.evaluation
    found = compare_paired(
        here.values[metric],
        there.values[metric],
        pa.array(here.qids, pa.string()),
        can_differ=here.can_differ[metric],
        weights=there.weights[metric],
        higher_is_better=metric.higher_is_better,
        most_shown=MOST_WORST,
    )
    if found is None:
        return None
    facts: Facts = as_json(found)
    return facts | {"p": float(sign_flip_p((here.values[metric] - there.values[metric])[np.newaxis])[0])}


def metrics_facts(rankings: Rankings, subject: Subject) -> Facts:
    """Return the means and intervals of every ranking, and the differences of the version from each of the others."""
    candidate = rankings.candidate
    evaluation = candidate.evaluation
    facts = []
    for each in rankings.ranked:
        against = None
        if each is not candidate:
            against = {str(metric): difference(candidate, each, metric) for metric in subject.metrics}
            for metric, found in against.items():
                if found is not None and (metric != str(subject.metric) or each is not rankings.rival):
                    del found["worst"]
        facts.append(
            {
                "kind": each.kind,
                "name": each.name,
                "words": each.words,
                "metrics": as_json(each.evaluation.figures),
                "candidate_less_this": against,
            }
        )
    return {
        "split": subject.split,
        "seen": "; ".join(_scope(subject).remarks),
        "counts": as_json(evaluation.counts),
        "convention": evaluation.convention.describe(),
        "policy": as_json(evaluation.policy),
        "remarks": as_json(evaluation.convention.remarks),
        "primary": str(subject.metric),
        "rival": rankings.rival.name,
        "rankings": facts,
    }


def _scope(subject: Subject) -> Scope:
    """Describe whether the split was used for training the models."""
    versions = [(subject.version, subject.model)]
    if subject.present is not None and subject.present_model is not None:
        versions.append((subject.present, subject.present_model))
    models = [TrainedModel.of(model, str(version), train_queries(version)) for version, model in versions]
    assert subject.dataset is not None  # noqa: S101 (there are rankings)
    return scope_of(subject.dataset, subject.split, models)


def _gaps(rankings: Rankings, metric: Metric) -> Values:
    """Return by how much the version is better than its rival in each query (q,), NaN where they cannot differ."""
    here, there = rankings.candidate.evaluation, rankings.rival.evaluation
    higher = metric.higher_is_better
    return paired_differences(
        here.values[metric], there.values[metric], here.can_differ[metric], higher_is_better=higher
    )


def slice_facts(rankings: Rankings, subject: Subject) -> list[Facts]:
    """Return the deciding metric of the version and its rival, and their difference, by slices of the queries."""
    metric = subject.metric
    if subject.dataset is None or metric.name in WITHOUT_SLICES:
        return []
    now, then, gaps = rankings.candidate.evaluation, rankings.rival.evaluation, _gaps(rankings, metric)
    counted = ~np.isnan(gaps)
    here, there = (
        replace(each, values={metric: np.where(counted, each.values[metric], math.nan)}) for each in (now, then)
    )
    gap = replace(now, values={metric: gaps})
    column = partial(column_of_dataset, subject.dataset, subject.split)
    facts = []
    for by in dict.fromkeys((QUERY_SIZE, GRADE_MIX, *subject.by)):
        parts = [slices_of(replace(each, metrics=(metric,)), by, column) for each in (here, there, gap)]
        facts += [_sliced(three, str(metric)) for three in zip(*parts, strict=True)]
    return facts


def _sliced(three: tuple[Slices, ...], metric: str) -> Facts:
    facts = as_json(three)
    rows = []
    for now, then, gap in zip(*(each["slices"] for each in facts), strict=True):
        of = {"candidate": now, "rival": then, "difference": gap}
        kept = {name: each["metrics"][metric] for name, each in of.items()}
        rows.append({key: now[key] for key in ("name", "limits", "n_queries", "n_documents")} | kept)
    return {"by": facts[0]["by"], "how": facts[0]["how"], "slices": rows}


def _evaluated(rows: pa.Table, scores: Scores, subject: Subject) -> Evaluation:
    clean = np.where(np.isnan(scores), -np.inf, scores)
    table = rows.append_column("score", pa.array(clean, pa.float64()))
    goal_scales = {} if subject.dataset is None else subject.dataset.goals
    return evaluate_scored(table, subject.metrics, subject.convention, goal_scales=goal_scales)


def _canonical(queries: GradedQueries, values: Scores) -> Scores:
    """Reorder ``values`` (n,) from the order of ``queries`` to that of the dataset."""
    if queries.rows is None:
        return values
    out = np.empty_like(values)
    out[queries.rows] = values
    return out


HALF_BINS = 12  # bars of the histogram on each side of 0
TOP = 10  # shown ranks of a list
LISTS_LOST, LISTS_GAINED = 5, 3

Values = npt.NDArray[np.float64]


def query_facts(rankings: Rankings, subject: Subject) -> Facts | None:
    """Return the differences by query between the version and its rival; None if no query counts."""
    metric, now, then = subject.metric, rankings.candidate, rankings.rival
    gaps = _gaps(rankings, metric)
    place = np.flatnonzero(~np.isnan(gaps))
    if not len(place):
        return None
    found = gaps[place]
    ascending = place[np.argsort(found, kind="stable")]
    lost = [int(q) for q in ascending[:LISTS_LOST] if gaps[q] < 0.0]
    descending = place[np.argsort(-found, kind="stable")]
    gained = [int(q) for q in descending[:LISTS_GAINED] if gaps[q] > 0.0]
    assert subject.dataset is not None  # noqa: S101 (there are rankings)
    lists = partial(_list_facts, rankings, subject.dataset.queries(subject.split), metric)
    return {
        "metric": str(metric),
        "candidate": now.name,
        "rival": then.name,
        "n_queries": len(found),
        "wins": int(np.count_nonzero(found > 0.0)),
        "ties": int(np.count_nonzero(found == 0.0)),
        "losses": int(np.count_nonzero(found < 0.0)),
        "histogram": histogram(found),
        "lost": [lists(q, float(gaps[q])) for q in lost],
        "gained": [lists(q, float(gaps[q])) for q in gained],
        "list_convention": "documents with equal scores are in order of ascending document id",
    }


def histogram(gaps: Values) -> Facts:
    """Count ``gaps`` (q,) in bars of equal width around 0 that cover all values; ties are counted separately.

    >>> histogram(np.array([-0.5, 0.0, 0.1, 0.25]))["ties"]
    1
    """
    moved = gaps[np.abs(gaps) > TIED]
    furthest = float(np.abs(moved).max()) if len(moved) else 0.0
    step = round_up(furthest / HALF_BINS) if furthest else 1.0 / HALF_BINS
    half = max(1, math.ceil(furthest / step - 1e-9))
    edges = [round(step * i, 12) for i in range(-half, half + 1)]
    below = np.minimum(np.floor(-moved[moved < 0] / step).astype(np.int64), half - 1)
    above = np.minimum(np.floor(moved[moved > 0] / step).astype(np.int64), half - 1)
    counts = [*np.bincount(below, minlength=half)[::-1].tolist(), *np.bincount(above, minlength=half).tolist()]
    return {"edges": edges, "counts": counts, "ties": len(gaps) - len(moved)}


def round_up(x: float) -> float:
    """Return the smallest number of the form 1, 2, 2.5, 5 or 10 times a power of ten that is at least ``x`` > 0.

    >>> round_up(0.021), round_up(0.3)
    (0.025, 0.5)
    """
    base = 10.0 ** math.floor(math.log10(x))
    for step in (1.0, 2.0, 2.5, 5.0, 10.0):
        if step * base >= x * (1.0 - 1e-12):
            return float(f"{step * base:.12g}")
    return 10.0 * base


def _list_facts(rankings: Rankings, queries: Queries, metric: Metric, q: int, gap: float) -> Facts:
    """Return the list of query number ``q`` of the evaluation in both rankings.

    ``queries`` are those of the dataset.
    """
    now, then = rankings.candidate, rankings.rival
    qid = now.evaluation.qids[q]
    at = pc.index(queries.qid, pa.scalar(qid, pa.string())).as_py()
    start, stop = int(queries.starts[at]), int(queries.starts[at + 1])
    rows = rankings.rows.slice(start, stop - start)
    ids, grades = rows.column("doc_id").to_pylist(), rows.column("grade").to_numpy().tolist()
    new, old = (_ranks(each, start, stop) for each in (now, then))
    shown = sorted((i for i in range(len(ids)) if min(new[i], old[i]) <= TOP), key=lambda i: new[i])
    best = sorted(grades, reverse=True)[:TOP]
    return {
        "qid": qid,
        "n_documents": len(ids),
        "candidate": float(now.evaluation.values[metric][q]),
        "rival": float(then.evaluation.values[metric][q]),
        "difference": gap,
        "ideal_grades": best,
        "documents": [
            {
                "doc_id": ids[i] if ids[i] is not None else f"row {i + 1}",
                "grade": grades[i],
                "rank": int(new[i]),
                "rank_before": int(old[i]),
            }
            for i in shown
        ],
    }


def _ranks(ranked: Ranked, start: int, stop: int) -> npt.NDArray[np.int64]:
    """Return the ranks (n,), from 1; rows with equal scores are in stored order, which is by document id."""
    order = np.argsort(-ranked.scores[start:stop], kind="stable")
    ranks = np.empty(stop - start, dtype=np.int64)
    ranks[order] = np.arange(1, stop - start + 1)
    return ranks
