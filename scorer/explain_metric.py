"""Explain the metric of one query step by step, with the calculation of `evaluate`."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
from rankmill.scorer.evaluation import IDEAL_WORDS
from rankmill.scorer.metrics import Metric, Policy, parse_metric
from rankmill.scorer.metrics.arrangement import tie_order
from rankmill.scorer.metrics.conventions import OURS, Convention, named_convention
from rankmill.scorer.metrics.per_query import POOLED, PreparedQueries
from rankmill.scorer.metrics.steps import RankedQuery, Steps, ideal_steps, steps_of
from rankmill.scorer.scored_file import QrelsFile
from rankmill.scorer.scored_lists import ScoredLists, highest_grade, prepared, read_lists, recorded_facts, with_scale

_TIES_WORDS = {
    "doc_id": "documents of equal score stand by ascending id",
    "doc_id_descending": "documents of equal score stand by descending id",
    "pessimistic": "of equal scores the worst grade stands first",
    "optimistic": "of equal scores the best grade stands first",
    "row_order": "documents of equal score stand as in the file",
    "random": "documents of equal score are shuffled",
}
_COMPARED = 10_000  # queries to search for a similar id
_MEANS = "its mean over all orders of these documents"
_NAMED = 4  # tied groups that are listed singly


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

    ``sum`` is the sum over the ranks above the cutoff, ``divisor`` what it is divided by (None: infinite), ``ideal`` the
    rank, grade and terms of the ideal order, for ``ndcg``.
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
    """Show how ``metric`` of the query ``qid`` is computed.

    Parameters
    ----------
    scored
        A scored list or TREC run, as `rankmill.scorer.evaluate.evaluate` reads it without a model.
    qid, metric
        One query, one metric.
    qrels
        TREC judgments; they override grades in the list.
    convention, options
        As `rankmill.scorer.evaluate.evaluate` takes them.

    Raises
    ------
    InputError
        The query is unknown, or as `evaluate`.
    CandidatesRejected
        As `evaluate`.
    """
    metric = parse_metric(metric) if isinstance(metric, str) else metric
    lists, table, rules = _read(scored, metric, qrels, named_convention(convention).but(**options))
    if qid not in lists.qids:
        hint = name_hint(qid, lists.qids[:_COMPARED])
        raise InputError(f"there is no query {qid!r} among the {len(lists.qids):,} with grades; {hint}")
    policy = rules.policy_for(metric)
    number = lists.qids.index(qid)
    queries = prepared(lists, policy)
    query, rows = _ranked(lists, policy, number)
    divisor = float(queries.divisor(metric)[number])
    value = float(queries.evaluate([metric], lists.scores)[metric][number])
    counted = divisor != 0.0
    costs = queries.error_costs(metric) if metric.name == "balanced_error" else ()
    steps = steps_of(metric, query, costs) if counted else Steps(columns=(), rows=())
    ideal = ideal_steps(metric, query) if metric.name == "ndcg" and counted else Steps(columns=(), rows=())
    return MetricExplanation(
        qid=qid,
        metric=str(metric),
        value=None if math.isnan(value) else value,
        ranks=tuple(_documents(table, qid, query, rows, steps)),
        sum=steps.total,
        divisor=divisor if math.isfinite(divisor) else None,
        ideal=tuple(
            {"rank": i + 1, "grade": query.pool[i], **dict(zip(ideal.columns, row, strict=True))}
            for i, row in enumerate(ideal.rows)
        ),
        words=dict(_words(metric, query, queries, rules, lists, steps, divisor, value)),
        convention=rules,
        policy=policy,
    )


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
        rules = with_scale(rules, scored, judged, known_grade, counts)
    return lists, table, rules


def _ranked(lists: ScoredLists, policy: Policy, number: int) -> tuple[RankedQuery, npt.NDArray[np.int64]]:
    """Sort the documents of query ``number`` by rank; also return their row numbers within the query."""
    first, last = int(lists.starts[number]), int(lists.starts[number + 1])
    grades = np.maximum(lists.grades, 0)
    rows = tie_order(policy, grades, lists.starts, lists.doc_order)[first:last]
    rows = rows[np.argsort(-lists.scores[rows], kind="stable")]
    scores = lists.scores[rows].tolist()
    cuts = [0, *(i for i in range(1, len(rows)) if policy.ties != "expected" or scores[i] != scores[i - 1])]
    pool = grades[first:last]
    if lists.ideal_grades is not None and lists.ideal_starts is not None:
        pool = np.maximum(lists.ideal_grades[lists.ideal_starts[number] : lists.ideal_starts[number + 1]], 0)
    query = RankedQuery(
        scores=tuple(scores),
        grades=tuple(grades[rows].tolist()),
        groups=tuple(itertools.pairwise([*cuts, len(rows)])) if len(rows) else (),
        pool=tuple(sorted(pool.tolist(), reverse=True)),
        policy=policy,
    )
    return query, rows - first


def _documents(
    table: pa.Table, qid: str, query: RankedQuery, rows: npt.NDArray[np.int64], steps: Steps
) -> Iterator[ExplainedRank]:
    """Yield the documents at the ranks above the cutoff and those tied with them; all if the query does not count."""
    names = [f"row {row + 1}" for row in range(len(rows))]
    if "doc_id" in table.column_names:
        of_query = table.filter(pc.equal(table["qid"], pa.scalar(qid)))["doc_id"].to_pylist()
        names = [name if found is None else found for name, found in zip(names, of_query, strict=True)]
    for lo, hi in query.groups:
        if steps.rows and lo >= len(steps.rows):
            break
        shared = f" ({lo + 1}-{hi})" if hi - lo > 1 else ""
        for i in range(lo, hi):
            step = dict(zip(steps.columns, steps.rows[i], strict=True)) if i < len(steps.rows) else None
            yield ExplainedRank(
                rank=i + 1, place=f"{i + 1}{shared}", doc_id=names[rows[i]], score=query.scores[i], grade=query.grades[i],
                step=step,
            )  # fmt: skip


def _words(
    metric: Metric,
    query: RankedQuery,
    queries: PreparedQueries,
    rules: Convention,
    lists: ScoredLists,
    steps: Steps,
    divisor: float,
    value: float,
) -> list[tuple[str, str]]:
    """Describe how the sum becomes the value, and which rules applied."""
    words = [("value", _division(metric, query, queries, steps, divisor, value))]
    if metric.name in POOLED:
        words.append(("", "its mean over the queries that count is the figure of all queries together"))
    shared = [f"{lo + 1}-{hi}" for lo, hi in query.groups if hi - lo > 1]
    if metric.name == "balanced_error":
        words.append(("ties", f"{query.policy.ties}: decides about scores on the threshold only"))
    elif shared:
        named = ", ".join(shared[:_NAMED]) + (", .." if len(shared) > _NAMED else "")
        words.append(("ties", f"expected: one score each at ranks {named}; every rank there counts {_MEANS}"))
    elif query.policy.ties == "expected":
        words.append(("ties", "expected: no two documents of this query have the same score"))
    else:
        words.append(("ties", f"{query.policy.ties}: {_TIES_WORDS[query.policy.ties]}"))
    words += [("conventions", rules.describe_for(metric)), ("ideal list", IDEAL_WORDS[lists.ideal])]
    return words


def _division(
    metric: Metric, query: RankedQuery, queries: PreparedQueries, steps: Steps, divisor: float, value: float
) -> str:
    n, policy = len(query.grades), query.policy
    if divisor == 0.0:
        nothing = {
            "concordance": "no two documents of different grade",
            "concordance_micro": "no two documents of different grade",
            "balanced_error": "no relevant documents in all queries, or no others",
            "ndcg": "no document with a gain above 0",
            "dcg": "no document with a gain above 0",
            "err": "no document with a grade above 0",
            "wta": "no document with a grade above 0",
        }.get(metric.name, f"no document with a grade of {policy.relevant_from} or more")
        rule = "the query is skipped" if math.isnan(value) else f"the query counts {value:g}"
        return f"nothing relevant ({nothing}): {rule}"
    if math.isinf(divisor):
        return f"the list has {n} documents, fewer than k = {metric.k}: it counts 0 (short lists zero)"
    by = {
        "ndcg": "the sum of the ideal order",
        "recall": "R, the relevant documents known",
        "precision": "k" if policy.precision_normalisation == "k" else f"min(k,n) = min({metric.k}, {n})",
        "concordance": "the pairs of different grade",
        "concordance_micro": "the mean number of pairs of the queries that have any",
    }.get(metric.name, "")
    if metric.name == "map":
        by = "R, the relevant documents known"
        if policy.map_normalisation == "hits":
            by = ""
        elif policy.map_normalisation == "min(R,k)" and metric.k is not None:
            by = f"min(R,k) = min({query.n_relevant}, {metric.k})"
    if not by:
        text = f"the sum, {steps.total:.9g}"
        if metric.name == "map":
            text += "; each term is divided by hits, the relevant documents above the cutoff"
        if metric.name == "balanced_error":
            threshold, missed, alarm, *_ = queries.error_costs(metric)
            text += (
                f"; threshold {threshold:g}; in {queries.n_queries:,} queries a relevant document below it costs "
                f"{missed:.9g} = n_queries/(2 n+), another above it {alarm:.9g} = n_queries/(2 n-)"
            )
        return text
    return f"{steps.total:.9g} / {divisor:.9g} = {value:.9g}; divided by {by}"


def _cells(step: Mapping[str, float] | None, n: int) -> list[str]:
    """Return the terms of a rank as ``n`` table cells, empty if there are none."""
    if step is None:
        return [""] * n
    return [str(int(x)) if x == int(x) and abs(x) < 1e15 else f"{x:.6f}" for x in step.values()]
