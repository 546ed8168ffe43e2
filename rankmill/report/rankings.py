"""Rank the held-out queries with the new version, the current version and the baselines, and evaluate each ranking."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.cores import available_cores
from rankmill.foundation.records import as_json
from rankmill.gate.rankings import GradedQueries, Scores, difference, row_order, scores_of, single_feature
from rankmill.pipeline.arrow import as_array
from rankmill.report.facts import (
    Kind,
    ListedDocument,
    ListedQuery,
    MetricsFacts,
    QueriesFacts,
    RankingFacts,
    SliceFacts,
    SlicesFacts,
)
from rankmill.report.subject import Subject
from rankmill.scorer.evaluate.evaluation import Evaluation, Slices
from rankmill.scorer.evaluate.query_columns import column_of_dataset
from rankmill.scorer.evaluate.slices import GRADE_MIX, QUERY_SIZE, WITHOUT_SLICES, slices_of
from rankmill.scorer.evaluate.train_test_overlap import TrainedModel, scope_of
from rankmill.scorer.metrics import Metric
from rankmill.scorer.metrics.per_query import TIED
from rankmill.scorer.metrics.significance import REPLICATES, paired_differences
from rankmill.scorer.models.model_service import train_queries

MOST_WORST = 20
HALF_BINS = 12  # bars of the histogram on each side of 0
TOP = 10  # shown ranks of a list
LISTS_LOST, LISTS_GAINED = 5, 3

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranked:
    """A ranking of the queries; ``scores`` (n,) are in the canonical order of the dataset."""

    kind: Kind
    name: str
    words: str
    scores: Scores
    evaluation: Evaluation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rankings:
    """All rankings of the same queries, the version's first, and its difference from its rival in each (q,)."""

    subject: Subject
    queries: GradedQueries
    ranked: tuple[Ranked, ...]
    rival: Ranked
    gaps: Values


def rankings_of(subject: Subject, n_threads: int = 0) -> Rankings | None:
    """Rank the held-out queries in every way and evaluate each ranking.

    None if there are no such queries, or none counts.

    The rival is the current version, else the best single feature.  Memory: the narrow columns of the split and the
    scores; features are read in batches.
    """
    if subject.split is None:
        return None
    metric = subject.metric
    models = [subject.model] + ([] if subject.present_model is None else [subject.present_model])
    names = [str(subject.version), str(subject.present)][: len(models)]
    scores = scores_of(subject.dataset, subject.split, models, names, n_threads=n_threads or available_cores())
    queries = GradedQueries.of(subject.dataset, subject.split, subject.convention, subject.metrics)

    def ranked(kind: Kind, name: str, words: str, scores: Scores) -> Ranked:
        found = queries.evaluate(scores, subject.metrics, REPLICATES)
        return Ranked(kind=kind, name=name, words=words, scores=scores, evaluation=found)

    first = ranked("candidate", names[0], f"{names[0]}, the new version", scores[0])
    if not first.evaluation.n_counted(metric):
        subject.notes.append(f"no query of the split {subject.split} counts for {metric}, so nothing is compared")
        return None
    others = [
        ranked("present", name, f"{name}, {subject.alias} when it came", each)
        for name, each in zip(names[1:], scores[1:], strict=True)
    ]
    order, feature = row_order(queries), single_feature(queries, metric)
    others += [
        ranked("row order", order.name, order.words, order.scores),
        ranked("best single feature", feature.name, feature.words, feature.scores),
    ]
    rival = others[0] if subject.present_model is not None else others[-1]
    here, there = first.evaluation, rival.evaluation
    gaps = paired_differences(
        here.values[metric], there.values[metric], here.can_differ[metric], higher_is_better=metric.higher_is_better
    )
    return Rankings(subject=subject, queries=queries, ranked=(first, *others), rival=rival, gaps=gaps)


def metrics_facts(rankings: Rankings) -> MetricsFacts:
    """Return the means and intervals of every ranking, and the differences of the version from each of the others."""
    subject, candidate = rankings.subject, rankings.ranked[0].evaluation
    versions = [(subject.version, subject.model)]
    if subject.present is not None and subject.present_model is not None:
        versions.append((subject.present, subject.present_model))
    models = [TrainedModel.of(model, str(version), train_queries(version)) for version, model in versions]
    return MetricsFacts(
        split=rankings.queries.split,
        seen="; ".join(scope_of(subject.dataset, subject.split, models).remarks),
        counts=candidate.counts,
        convention=candidate.convention.describe(),
        policy=as_json(candidate.policy),
        primary=str(subject.metric),
        rival=rankings.rival.name,
        rankings=tuple(
            RankingFacts(
                kind=each.kind,
                name=each.name,
                words=each.words,
                metrics={str(metric): figure for metric, figure in each.evaluation.figures.items()},
                candidate_less_this={}
                if each.evaluation is candidate
                else {
                    str(metric): difference(
                        candidate,
                        each.evaluation,
                        metric,
                        MOST_WORST if each is rankings.rival and metric == subject.metric else 0,
                    )
                    for metric in subject.metrics
                },
            )
            for each in rankings.ranked
        ),
    )


def slice_facts(rankings: Rankings) -> tuple[SlicesFacts, ...]:
    """Return the deciding metric of the version and its rival, and their difference, by slices of the queries."""
    subject, metric, gaps = rankings.subject, rankings.subject.metric, rankings.gaps
    if metric.name in WITHOUT_SLICES:
        return ()
    here, there = rankings.ranked[0].evaluation, rankings.rival.evaluation
    counted = ~np.isnan(gaps)
    shown = [np.where(counted, each.values[metric], math.nan) for each in (here, there)] + [gaps]
    three = [replace(here, values={metric: values}, metrics=(metric,)) for values in shown]
    column = partial(column_of_dataset, subject.dataset, subject.split)
    return tuple(
        _sliced(now, then, gap, metric)
        for by in dict.fromkeys((QUERY_SIZE, GRADE_MIX, *subject.by))
        for now, then, gap in zip(*(slices_of(each, by, column) for each in three), strict=True)
    )


def _sliced(now: Slices, then: Slices, gap: Slices, metric: Metric) -> SlicesFacts:
    return SlicesFacts(
        by=now.by,
        how=now.how,
        slices=tuple(
            SliceFacts(
                name=here.name,
                limits=here.limits,
                n_queries=here.n_queries,
                n_documents=here.n_documents,
                candidate=here.metrics[metric],
                rival=there.metrics[metric],
                difference=change.metrics[metric],
            )
            for here, there, change in zip(now.slices, then.slices, gap.slices, strict=True)
        ),
    )


def query_facts(rankings: Rankings) -> QueriesFacts | None:
    """Return the differences by query between the version and its rival; None if no query counts."""
    gaps = rankings.gaps
    place = np.flatnonzero(~np.isnan(gaps))
    if not len(place):
        return None
    found = gaps[place]
    lost = place[np.argsort(found, kind="stable")][:LISTS_LOST]
    gained = place[np.argsort(-found, kind="stable")][:LISTS_GAINED]
    edges, counts = histogram(found)
    return QueriesFacts(
        edges=edges,
        counts=counts,
        lost=tuple(_list_of(rankings, int(q)) for q in lost if gaps[q] < 0.0),
        gained=tuple(_list_of(rankings, int(q)) for q in gained if gaps[q] > 0.0),
    )


def histogram(gaps: Values) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Count ``gaps`` (q,) in bars of equal width around 0 that cover all values; ties are left out.

    Return edges and counts.

    >>> histogram(np.array([-0.5, 0.0, 0.1, 0.25]))[1].count(1)
    3
    """
    moved = gaps[np.abs(gaps) > TIED]
    furthest = float(np.abs(moved).max()) if len(moved) else 1.0
    base = 10.0 ** math.floor(math.log10(furthest / HALF_BINS))
    step = next(k * base for k in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0) if k * base * HALF_BINS >= furthest * (1.0 - 1e-9))
    half = max(1, math.ceil(furthest / step - 1e-9))
    edges = tuple(round(step * i, 12) for i in range(-half, half + 1))
    bars = np.minimum(np.floor(np.abs(moved) / step).astype(np.int64), half - 1)
    below, above = (np.bincount(bars[of], minlength=half).tolist() for of in (moved < 0, moved > 0))
    return edges, (*reversed(below), *above)


def _list_of(rankings: Rankings, q: int) -> ListedQuery:
    """Return the list of query number ``q`` of the evaluation in both rankings."""
    now, then, metric = rankings.ranked[0], rankings.rival, rankings.subject.metric
    qid, table = now.evaluation.qids[q], rankings.queries.table
    rows = np.flatnonzero(pc.equal(table.column("qid"), pa.scalar(qid, pa.string())).to_numpy())
    ids = table.column("doc_id").take(as_array(rows)).to_pylist()
    grades: list[int] = table.column("grade").to_numpy()[rows].tolist()
    new, old = (_ranks(each.scores[rows]) for each in (now, then))
    shown = sorted((i for i in range(len(ids)) if min(new[i], old[i]) <= TOP), key=lambda i: new[i])
    return ListedQuery(
        qid=qid,
        n_documents=len(ids),
        candidate=float(now.evaluation.values[metric][q]),
        rival=float(then.evaluation.values[metric][q]),
        difference=float(rankings.gaps[q]),
        ideal_grades=tuple(sorted(grades, reverse=True)[:TOP]),
        documents=tuple(
            ListedDocument(doc_id=ids[i] or f"row {i + 1}", grade=grades[i], rank=new[i], rank_before=old[i])
            for i in shown
        ),
    )


def _ranks(scores: Scores) -> list[int]:
    """Return the ranks, from 1; rows with equal scores are in stored order, which is by document id."""
    ranks = np.empty(len(scores), dtype=np.int64)
    ranks[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    found: list[int] = ranks.tolist()
    return found
