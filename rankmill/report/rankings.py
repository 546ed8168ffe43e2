"""The held-out queries as each ranking orders them: the version's, the present one's, the bars', and what each is worth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rankmill.foundation.cores import available_cores
from rankmill.gate.bars import row_order, single_feature
from rankmill.gate.lists import GradedQueries, Scores, scores_of
from rankmill.scorer.evaluate_scored import evaluate_scored
from rankmill.scorer.evaluation import Evaluation
from rankmill.scorer.metrics import Metric
from rankmill.scorer.metrics.randomisation import sign_flip_p
from rankmill.scorer.model_service import train_queries
from rankmill.scorer.paired import compare
from rankmill.scorer.query_columns import column_of_dataset
from rankmill.scorer.seen import Scope, TrainedModel, scope_of
from rankmill.scorer.slices import GRADE_MIX, QUERY_SIZE, WITHOUT_SLICES, Slices, slices_of

if TYPE_CHECKING:
    from rankmill.report.subject import Subject

CANDIDATE, PRESENT, ROW_ORDER, SINGLE_FEATURE = "candidate", "present", "row order", "best single feature"
MOST_WORST = 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranked:
    """The queries in one order.

    ``kind`` is one of the words above, ``words`` say to a person what orders; ``scores`` (n,) are in the canonical order of
    the dataset.
    """

    kind: str
    name: str
    words: str
    scores: Scores
    evaluation: Evaluation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rankings:
    """All rankings of the same queries: first the version's.  ``rows`` has qid, doc_id and grade, a row a document."""

    rows: pa.Table
    ranked: tuple[Ranked, ...]

    @property
    def candidate(self) -> Ranked:
        """The ranking of the version that the report is about."""
        return self.ranked[0]

    @property
    def rival(self) -> Ranked:
        """What the version is compared with query by query: the present version, else the best single feature."""
        for kind in (PRESENT, SINGLE_FEATURE, ROW_ORDER):
            for each in self.ranked:
                if each.kind == kind:
                    return each
        raise AssertionError("there is always the order of the rows")


def rankings_of(subject: Subject, n_threads: int = 0) -> Rankings | None:
    """Rank the held-out queries in every way and evaluate each; None where there are no such queries, or none counts.

    In memory are the narrow columns of the split and the scores; features pass in batches.
    """
    if subject.dataset is None or subject.split is None:
        return None
    dataset, split = subject.dataset, subject.split
    forests = [subject.forest] + ([] if subject.present_forest is None else [subject.present_forest])
    names = [str(subject.version), str(subject.present)][: len(forests)]
    scores = scores_of(dataset, split, forests, names, n_threads=n_threads or available_cores())
    rows = dataset.rows(split, ("qid", "doc_id", "grade"))
    told = [(CANDIDATE, names[0], f"{names[0]}, the new version")]
    told += [(PRESENT, each, f"{each}, {subject.alias} when it came") for each in names[1:]]
    queries = GradedQueries(dataset, split, subject.convention)
    first = _evaluated(rows, scores[0], subject)
    if not first.n_counted(subject.metric):
        subject.notes.append(f"no query of the split {split} counts for {subject.metric}: nothing is compared")
        return None
    bars = [row_order(queries), single_feature(queries, subject.metric)]
    told += [(bar.name, bar.name, bar.words) for bar in bars]
    scores += [_canonical(queries, bar.scores) for bar in bars]
    evaluations = [first, *(_evaluated(rows, each, subject) for each in scores[1:])]
    return Rankings(
        rows=rows,
        ranked=tuple(
            Ranked(kind=kind, name=name, words=words, scores=each, evaluation=evaluation)
            for (kind, name, words), each, evaluation in zip(told, scores, evaluations, strict=True)
        ),
    )


def difference(now: Ranked, then: Ranked, metric: Metric) -> dict[str, Any] | None:
    """Compare two rankings by one metric, as `rankmill.scorer.compare.compare` does; None where fewer than two queries count."""
    here, there = now.evaluation, then.evaluation
    found = compare(
        here.values[metric],
        there.values[metric],
        pa.array(here.qids, pa.string()),
        weights=there.weights[metric],
        higher_is_better=metric.higher_is_better,
        most_shown=MOST_WORST,
    )
    if found is None:
        return None
    p = float(sign_flip_p((here.values[metric] - there.values[metric])[np.newaxis])[0])
    return found.to_dict() | {"p": p}


def metrics_facts(rankings: Rankings, subject: Subject) -> dict[str, Any]:
    """Tell the means with their intervals of every ranking, and how the version differs from each of the others."""
    candidate = rankings.candidate
    evaluation = candidate.evaluation.to_dict()
    told = []
    for each in rankings.ranked:
        against = None
        if each is not candidate:
            against = {str(metric): difference(candidate, each, metric) for metric in subject.metrics}
            for metric, found in against.items():
                if found is not None and (metric != str(subject.metric) or each is not rankings.rival):
                    del found["worst"]
        means = each.evaluation.to_dict()["metrics"]
        told.append(
            {
                "kind": each.kind,
                "name": each.name,
                "words": each.words,
                "metrics": means,
                "candidate_less_this": against,
            }
        )
    return {
        "split": subject.split,
        "seen": "; ".join(_scope(subject).remarks()),
        "counts": evaluation["counts"],
        "convention": candidate.evaluation.convention.describe(),
        "policy": evaluation["policy"],
        "remarks": evaluation["convention"]["remarks"],
        "primary": str(subject.metric),
        "rival": rankings.rival.name,
        "rankings": told,
    }


def _scope(subject: Subject) -> Scope:
    """Tell what the models that are compared have seen of the split."""
    versions = [(subject.version, subject.forest)]
    if subject.present is not None and subject.present_forest is not None:
        versions.append((subject.present, subject.present_forest))
    models = [TrainedModel.of(forest, str(version), train_queries(version)) for version, forest in versions]
    assert subject.dataset is not None  # noqa: S101 (there are rankings)
    return scope_of(subject.dataset, subject.split, models)


def slice_facts(rankings: Rankings, subject: Subject) -> list[dict[str, Any]]:
    """Tell the metric that decides by slices of the queries, of the version, of its rival, and their difference."""
    metric = subject.metric
    if subject.dataset is None or metric.name in WITHOUT_SLICES:
        return []
    here, there = rankings.candidate.evaluation, rankings.rival.evaluation
    sign = 1.0 if metric.higher_is_better else -1.0
    gap = replace(here, values={metric: sign * (here.values[metric] - there.values[metric]) + 0.0})
    column = partial(column_of_dataset, subject.dataset, subject.split)
    told = []
    for by in dict.fromkeys((QUERY_SIZE, GRADE_MIX, *subject.by)):
        parts = [slices_of(replace(each, metrics=(metric,)), by, column) for each in (here, there, gap)]
        told += [_sliced(three, str(metric)) for three in zip(*parts, strict=True)]
    return told


def _sliced(three: tuple[Slices, ...], metric: str) -> dict[str, Any]:
    facts = [each.to_dict() for each in three]
    rows = []
    for now, then, gap in zip(*(each["slices"] for each in facts), strict=True):
        of = {"candidate": now, "rival": then, "difference": gap}
        kept = {name: each["metrics"][metric] for name, each in of.items()}
        rows.append({key: now[key] for key in ("name", "limits", "n_queries", "n_documents")} | kept)
    return {"by": facts[0]["by"], "how": facts[0]["how"], "slices": rows}


def _evaluated(rows: pa.Table, scores: Scores, subject: Subject) -> Evaluation:
    clean = np.where(np.isnan(scores), -np.inf, scores)
    table = rows.append_column("score", pa.array(clean, pa.float64()))
    return evaluate_scored(table, subject.metrics, subject.convention)


def _canonical(queries: GradedQueries, values: Scores) -> Scores:
    """Bring ``values`` (n,) from the order of ``queries`` into that of the dataset."""
    if queries.rows is None:
        return values
    out = np.empty_like(values)
    out[queries.rows] = values
    return out
