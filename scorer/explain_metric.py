"""One metric of one query, step by step: the calculation that `evaluate` does, laid open."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.foundation.errors import InputError, name_hint
from rankmill.foundation.terminal import labelled, text_table
from rankmill.scorer.evaluation import IDEAL_WORDS
from rankmill.scorer.metrics import Metric, Policy, parse_metric
from rankmill.scorer.metrics.arrangement import tie_order
from rankmill.scorer.metrics.conventions import OURS, Convention, named_convention
from rankmill.scorer.metrics.queries import POOLED, PreparedQueries
from rankmill.scorer.metrics.steps import RankedQuery, Steps, ideal_steps, steps_of
from rankmill.scorer.scored_lists import ScoredLists, prepared, read_lists, recorded_facts, with_scale

_TIES_WORDS = {
    "doc_id": "documents of equal score stand by ascending id",
    "doc_id_descending": "documents of equal score stand by descending id",
    "pessimistic": "of equal scores the worst grade stands first",
    "optimistic": "of equal scores the best grade stands first",
    "row_order": "documents of equal score stand as in the file",
    "random": "documents of equal score are shuffled",
}
_COMPARED = 10_000  # queries among which a misspelt one is looked for
_MEANS = "its mean over all orders of these documents"
_NAMED = 4  # groups of ties that are named one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """How ``value``, which `evaluate` reports for the query, comes about; NaN where the policy skips the query.

    ``documents`` are (place, doc_id, score, grade) in the order of the ranks, place being "3 (2-4)" where documents
    share ranks; ``steps`` what the ranks above the cutoff add; ``ideal`` those of the ideal order, for ``ndcg``.
    """

    qid: str
    metric: Metric
    convention: Convention
    policy: Policy
    value: float
    documents: tuple[tuple[str, str, float, int], ...]
    steps: Steps
    ideal: Steps | None
    ideal_grades: tuple[int, ...]
    divisor: float
    words: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; a step is an object by its columns."""
        ranks = []
        for i, (place, doc_id, score, grade) in enumerate(self.documents):
            step = dict(zip(self.steps.columns, self.steps.rows[i], strict=True)) if i < len(self.steps.rows) else None
            ranks.append(
                {"rank": i + 1, "place": place, "doc_id": doc_id, "score": score, "grade": grade, "step": step}
            )
        ideal = [] if self.ideal is None else self.ideal.rows
        columns = () if self.ideal is None else self.ideal.columns
        return {
            "qid": self.qid,
            "metric": str(self.metric),
            "value": None if math.isnan(self.value) else self.value,
            "ranks": ranks,
            "sum": self.steps.total,
            "divisor": self.divisor if math.isfinite(self.divisor) else None,
            "ideal": [
                {"rank": i + 1, "grade": self.ideal_grades[i], **dict(zip(columns, row, strict=True))}
                for i, row in enumerate(ideal)
            ],
            "words": dict(self.words),
            "convention": self.convention.to_dict(),
            "policy": self.policy.to_dict(),
        }

    def to_json(self) -> str:
        """Return `to_dict` as one JSON object in one line; numbers keep all their digits."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    def render(self) -> str:
        """Return the calculation as text."""
        shown = "skipped" if math.isnan(self.value) else repr(self.value)
        header = ["rank", "doc_id", "score", "grade", *self.steps.columns]
        rows = []
        for i, (place, doc_id, score, grade) in enumerate(self.documents):
            cells = [_cell(x) for x in self.steps.rows[i]] if i < len(self.steps.rows) else []
            rows.append(
                [place, doc_id, f"{score:.9g}", str(grade), *cells, *[""] * (len(self.steps.columns) - len(cells))]
            )
        parts = [f"{self.metric} of query {self.qid}: {shown}", "", text_table(header, rows), ""]
        if self.ideal is not None and self.ideal.rows:
            ideal = [[str(i + 1), str(self.ideal_grades[i]), *map(_cell, row)] for i, row in enumerate(self.ideal.rows)]
            parts += ["the ideal order", text_table(["rank", "grade", *self.ideal.columns], ideal), ""]
        return "\n".join([*parts, *(labelled(label, words) for label, words in self.words)]) + "\n"


def explain_metric(
    scored: Path | pa.Table,
    qid: str,
    metric: Metric | str,
    *,
    qrels: Path | None = None,
    convention: str = OURS,
    **options: str | int | None,
) -> Explanation:
    """Show how ``metric`` of the query ``qid`` comes about.

    Parameters
    ----------
    scored
        A scored list or TREC run, as `rankmill.scorer.evaluate.evaluate` reads it without a model.
    qid, metric
        One query, one metric.
    qrels
        TREC judgments; they rule over grades in the list.
    convention, options
        As `rankmill.scorer.evaluate.evaluate` takes them.

    Raises
    ------
    InputError
        There is no such query, or as `evaluate`.
    CandidatesRejected
        As `evaluate`.
    """
    metric = parse_metric(metric) if isinstance(metric, str) else metric
    rules = named_convention(convention).but(**options)
    counts, known_grade = (None, None)
    if isinstance(scored, Path):
        counts, known_grade = recorded_facts(scored, with_counts=qrels is None)
    if metric.name == "err":
        rules = with_scale(rules, scored, qrels, known_grade, counts)
    lists, table = read_lists(scored, qrels=qrels, grade_counts=counts)
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
    ideal = ideal_steps(metric, query) if metric.name == "ndcg" and counted else None
    return Explanation(
        qid=qid,
        metric=metric,
        convention=rules,
        policy=policy,
        value=value,
        documents=_documents(table, qid, query, rows, len(steps.rows)),
        steps=steps,
        ideal=ideal,
        ideal_grades=query.pool,
        divisor=divisor,
        words=tuple(_words(metric, query, queries, rules, lists, steps, divisor, value)),
    )


def _ranked(lists: ScoredLists, policy: Policy, number: int) -> tuple[RankedQuery, npt.NDArray[np.int64]]:
    """Put the documents of query ``number`` in the order of their ranks; also their rows within the query."""
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
    table: pa.Table, qid: str, query: RankedQuery, rows: npt.NDArray[np.int64], n_steps: int
) -> tuple[tuple[str, str, float, int], ...]:
    """Name what stands at the ranks above the cutoff, and what shares one of them; all of a query that does not count."""
    names = [f"row {row + 1}" for row in range(len(rows))]
    if "doc_id" in table.column_names:
        of_query = table.filter(pc.equal(table["qid"], pa.scalar(qid)))["doc_id"].to_pylist()
        names = [name if found is None else found for name, found in zip(names, of_query, strict=True)]
    found = []
    for lo, hi in query.groups:
        if n_steps and lo >= n_steps:
            break
        shared = f" ({lo + 1}-{hi})" if hi - lo > 1 else ""
        found += [(f"{i + 1}{shared}", names[rows[i]], query.scores[i], query.grades[i]) for i in range(lo, hi)]
    return tuple(found)


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
    """Say how the sum becomes the value, and which rules took part."""
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


def _cell(x: float) -> str:
    return str(int(x)) if x == int(x) and abs(x) < 1e15 else f"{x:.6f}"
