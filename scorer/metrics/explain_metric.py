"""Explain the metric of one query rank by rank: what each rank adds to the sum that `evaluate` divides.

The sum up to a rank is that of the same metric with its cutoff there, computed by the same kernels.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.errors import InputError, name_hint
from rankmill.foundation.options import takes_options_of
from rankmill.foundation.records import as_json
from rankmill.foundation.terminal import labelled, text_table
from rankmill.scorer.arguments import PolicyArguments
from rankmill.scorer.evaluate.evaluation import IDEAL_WORDS
from rankmill.scorer.evaluate.scored_file import QrelsFile
from rankmill.scorer.evaluate.scored_lists import (
    ScoredLists,
    highest_grade,
    prepared,
    read_lists,
    recorded_facts,
    with_scale,
)
from rankmill.scorer.metrics import Metric, Policy, parse_metric
from rankmill.scorer.metrics.arrangement import tie_order
from rankmill.scorer.metrics.conventions import OURS, Convention, named_convention
from rankmill.scorer.metrics.per_query import PreparedQueries


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRank:
    """One rank; ``place`` is "3 (2-4)" if documents share ranks, ``step`` its terms of the sum by column."""

    rank: int
    place: str
    doc_id: str
    score: float
    grade: int
    step: Mapping[str, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricExplanation:
    """The calculation of ``value``, which `evaluate` reports for the query; None if the policy skips the query.

    ``sum`` is the sum over the ranks above the cutoff, ``divisor`` what it is divided by (None: infinite), ``ideal``
    the rank, grade and terms of the ideal order, for ``ndcg``.
    """

    qid: str
    metric: str
    value: float | None
    ranks: tuple[ExplainedRank, ...]
    sum: float
    divisor: float | None
    ideal: tuple[Mapping[str, float], ...]
    words: Mapping[str, str]
    convention: Convention
    policy: Policy

    def to_json(self) -> str:
        """Return everything as one JSON object in one line; numbers keep all their digits."""
        return json.dumps(as_json(self), ensure_ascii=False, allow_nan=False)

    def render(self) -> str:
        """Return the calculation as text."""
        columns = list((self.ranks[0].step if self.ranks else None) or ())
        rows = [
            [each.place, each.doc_id, f"{each.score:.9g}", str(each.grade), *_cells(each.step, len(columns))]
            for each in self.ranks
        ]
        value = "skipped" if self.value is None else repr(self.value)
        header = ["rank", "doc_id", "score", "grade", *columns]
        parts = [f"{self.metric} of query {self.qid}: {value}", "", text_table(header, rows), ""]
        if self.ideal:
            ideal = [_cells(row, len(row)) for row in self.ideal]
            parts += ["the ideal order", text_table(list(self.ideal[0]), ideal), ""]
        return "\n".join([*parts, *(labelled(label, words) for label, words in self.words.items())]) + "\n"


@takes_options_of(Policy)
def explain_metric(
    scored: Path | pa.Table,
    qid: str,
    metric: Metric | str,
    *,
    qrels: Path | None = None,
    convention: str = OURS,
    **options: Unpack[PolicyArguments],
) -> MetricExplanation:
    """Show how ``metric`` of the query ``qid`` is computed in ``scored``, a scored list or TREC run.

    TREC judgments in ``qrels`` override grades in the list.  The convention, options and errors are those of
    `rankmill.scorer.evaluate.evaluate.evaluate`; InputError for an unknown query, too.
    """
    metric = parse_metric(metric) if isinstance(metric, str) else metric
    lists, table, rules = _read(scored, metric, qrels, named_convention(convention).but(**options))
    if qid not in lists.qids:
        hint = name_hint(qid, lists.qids[:10_000])
        raise InputError(f"there is no query {qid!r} among the {len(lists.qids):,} with grades; {hint}")
    policy, number = rules.policy_for(metric), lists.qids.index(qid)
    queries = prepared(lists, policy)
    divisor = float(queries.divisor(metric)[number])
    value = float(queries.evaluate([metric], lists.scores)[metric][number])
    query, rows = _ranked(lists, policy, number)
    steps = _steps(metric, query) if divisor else []
    total = steps[-1]["sum"] if steps else value if divisor else 0.0
    ideal = []
    if metric.name == "ndcg" and divisor:
        best = replace(query, scores=-np.arange(len(query.pool), dtype=np.float64), grades=query.pool)
        ideal = _steps(replace(metric, name="dcg"), best)
    return MetricExplanation(
        qid=qid,
        metric=str(metric),
        value=None if math.isnan(value) else value,
        ranks=tuple(
            _documents(query, _names(table, qid, rows - lists.starts[number]), lists.scores[rows].tolist(), steps)
        ),
        sum=total,
        divisor=divisor if math.isfinite(divisor) else None,
        ideal=tuple({"rank": i + 1, "grade": int(query.pool[i]), **step} for i, step in enumerate(ideal)),
        words={
            "value": _division(metric, query, total, divisor, value),
            "conventions": rules.describe_for(metric),
            "ideal list": IDEAL_WORDS[lists.ideal],
        },
        convention=rules,
        policy=policy,
    )


@dataclass(frozen=True, slots=True)
class _Query:
    """Documents of one query by rank: ``scores``, ``grades`` (n,).

    ``pool`` are the grades of all known documents, best first.
    """

    scores: npt.NDArray[np.float64]  # those of shared ranks are equal
    grades: npt.NDArray[np.int32]
    pool: npt.NDArray[np.int32]
    policy: Policy

    @property
    def groups(self) -> list[tuple[int, int]]:
        """The limits of documents that share their ranks, from 0."""
        cuts = np.flatnonzero(np.r_[True, self.scores[1:] != self.scores[:-1], True])
        return list(itertools.pairwise(cuts.tolist()))

    def sums(self, n: int, metrics: Sequence[Metric]) -> list[float]:
        """Return the sum of each metric over the first ``n`` documents before it is divided."""
        queries = PreparedQueries(
            self.grades[:n], np.array([0, n]), replace(self.policy, ties="expected"), ideal_grades=self.pool,
            ideal_starts=np.array([0, len(self.pool)]),
        )  # fmt: skip
        found, divisors = queries.evaluate(metrics, self.scores[:n]), [queries.divisor(each)[0] for each in metrics]
        return [float(found[each][0] * by) if by else 0.0 for each, by in zip(metrics, divisors, strict=True)]


def _steps(metric: Metric, query: _Query) -> list[dict[str, float]]:
    """Return what each rank that counts adds, and the sum up to it.

    Nothing for ``balanced_error``, which has no ranks.
    """
    n, metric = len(query.grades), replace(metric, goal="")
    if metric.name == "balanced_error":
        return []
    if metric.name.startswith("concordance"):
        sums = [query.sums(i, [Metric("concordance")])[0] for i in range(1, n + 1)]
    elif metric.name == "wta":
        sums = query.sums(n, [metric])
    else:
        sums = query.sums(n, [replace(metric, k=i) for i in range(1, min(metric.k or n, n) + 1)])
    return [{"term": after - before, "sum": after} for before, after in itertools.pairwise([0.0, *sums])]


def _read(
    scored: Path | pa.Table, metric: Metric, qrels: Path | None, rules: Convention
) -> tuple[ScoredLists, pa.Table, Convention]:
    """Read the lists, also as a table, and complete the convention with their highest grade."""
    counts, known_grade = (None, None)
    if isinstance(scored, Path):
        counts, known_grade = recorded_facts(scored, with_counts=qrels is None)
    judged = QrelsFile.of(qrels)
    lists, table = read_lists(scored, qrels=judged, grade_counts=counts, goal=metric.goal)
    if metric.name == "err" and metric.goal:
        rules = rules.but(max_grade=highest_grade(lists))
    elif metric.name == "err":
        rules = with_scale(rules, table, judged, known_grade, counts)
    return lists, table, rules


def _ranked(lists: ScoredLists, policy: Policy, number: int) -> tuple[_Query, npt.NDArray[np.int64]]:
    """Sort the documents of query ``number`` by rank; also return their row numbers within the query."""
    first, last = int(lists.starts[number]), int(lists.starts[number + 1])
    grades = np.maximum(lists.grades, 0)
    rows = tie_order(policy, grades, lists.starts, lists.doc_order)[first:last]
    rows = rows[np.argsort(-lists.scores[rows], kind="stable")]
    pool = grades[first:last]
    if lists.ideal_grades is not None and lists.ideal_starts is not None:
        pool = np.maximum(lists.ideal_grades[lists.ideal_starts[number] : lists.ideal_starts[number + 1]], 0)
    scores = lists.scores[rows] if policy.ties == "expected" else -np.arange(len(rows), dtype=np.float64)
    return _Query(scores, grades[rows], np.sort(pool)[::-1], policy), rows


def _names(table: pa.Table, qid: str, rows: npt.NDArray[np.int64]) -> list[str]:
    """Return the ids of the documents at ``rows`` of the query, or their rows."""
    ids: list[str | None] = [None] * len(rows)
    if "doc_id" in table.column_names:
        ids = table.filter(pc.equal(table["qid"], pa.scalar(qid)))["doc_id"].to_pylist()
    return [ids[row] or f"row {row + 1}" for row in rows.tolist()]


def _documents(
    query: _Query, names: list[str], scores: list[float], steps: list[dict[str, float]]
) -> Iterator[ExplainedRank]:
    """Yield the documents at the ranks that count and those tied with them; all if there are no steps."""
    for lo, hi in query.groups:
        if steps and lo >= len(steps):
            break
        shared = f" ({lo + 1}-{hi})" if hi - lo > 1 else ""
        for i in range(lo, hi):
            yield ExplainedRank(
                rank=i + 1, place=f"{i + 1}{shared}", doc_id=names[i], score=scores[i],
                grade=int(query.grades[i]), step=steps[i] if i < len(steps) else None,
            )  # fmt: skip


def _division(metric: Metric, query: _Query, total: float, divisor: float, value: float) -> str:
    if divisor == 0.0:
        return f"nothing relevant: {'the query is skipped' if math.isnan(value) else f'the query counts {value:g}'}"
    if math.isinf(divisor):
        return f"the list has {len(query.grades)} documents, fewer than k = {metric.k}: it counts 0 (short lists zero)"
    by = {
        "ndcg": "the sum of the ideal order",
        "recall": "R, the relevant documents known",
        "map": {"R": "R, the relevant documents known"}.get(query.policy.map_normalisation, "min(R,k)"),
        "precision": query.policy.precision_normalisation,
        "concordance": "the pairs of different grade",
        "concordance_micro": "the mean number of pairs of the queries that have any",
    }.get(metric.name, "")
    if not by:
        return f"the sum, {total:.9g}"
    return f"{total:.9g} / {divisor:.9g} = {value:.9g}; divided by {by}"


def _cells(step: Mapping[str, float] | None, n: int) -> list[str]:
    """Return the terms of a rank as ``n`` table cells, empty if there are none."""
    if step is None:
        return [""] * n
    return [str(int(x)) if x == int(x) and abs(x) < 1e15 else f"{x:.6f}" for x in step.values()]
