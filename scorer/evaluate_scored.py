"""Evaluation of scored lists: grades from the file or from judgments, every metric per query, one report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.foundation.kernels.randoms import random_bits_of
from rankmill.scorer.evaluation import Counts, Evaluation, QueryFacts
from rankmill.scorer.lists import ScoredLists, graded_lists, judged_lists, with_grade_counts
from rankmill.scorer.metrics import Metric, Policy
from rankmill.scorer.metrics._kernels import count_tied
from rankmill.scorer.metrics.conventions import Convention, as_convention
from rankmill.scorer.metrics.queries import PreparedQueries
from rankmill.scorer.metrics.significance import BOOTSTRAP_SEED, REPLICATES, percentile_interval
from rankmill.scorer.scored_file import as_scored, read_scored


def evaluate_scored(
    scored: Path | str | pa.Table,
    metrics: Sequence[Metric],
    policy: Policy | Convention,
    *,
    qrels: Path | str | None = None,
    grade_counts: Path | str | pa.Table | None = None,
    complete: bool = False,
    replicates: int = REPLICATES,
    seed: int = BOOTSTRAP_SEED,
) -> Evaluation:
    """Evaluate scored lists; the rows of a query may be anywhere in the file, queries are reported by ascending qid.

    Parameters
    ----------
    scored
        A table with the columns of `rankmill.scorer.scored_file.read_scored`, or a path that it can read.  A rank written there
        is ignored: documents are ranked by score, ties by the policy.
    metrics, policy
        What to compute, and under which conventions: one policy for all, or a tool's.
    qrels
        Judgments in TREC format.  They replace grades of the file; a document they lack has grade 0; the ideal list is
        that of all judged documents, retrieved or not.  Queries without judgments are left out, and counted.
    grade_counts
        Columns qid, grade, count: how often each grade occurs in the whole list of a query, where ``scored`` holds only
        its top.  It rules the ideal list and the number of relevant documents, unless there are qrels.
    complete
        With qrels: judged queries that the run lacks count, with nothing retrieved (``-c`` of trec_eval).  Without it
        they are left out, and counted.
    replicates, seed
        Of the bootstrap intervals; 0 replicates leave these out.

    Raises
    ------
    InputError
        A file is missing, there are neither grades nor qrels, or the policy needs what is not there.
    CandidatesRejected
        A score is not a number, a column is lacking, a line is malformed, a document is scored twice for a query.
    """
    metrics = tuple(dict.fromkeys(metrics))
    if not metrics:
        raise InputError("there is no metric to compute; name one, for example ndcg@10")
    lists, _ = read_lists(scored, qrels=qrels, grade_counts=grade_counts, complete=complete)
    return evaluate_lists(lists, metrics, as_convention(policy), replicates, seed)


def read_lists(
    scored: Path | str | pa.Table,
    *,
    qrels: Path | str | None = None,
    grade_counts: Path | str | pa.Table | None = None,
    complete: bool = False,
) -> tuple[ScoredLists, pa.Table]:
    """Read scored lists with their grades, and the table they come from; parameters and errors as `evaluate_scored`.

    The documents of a query are in the order of the table's rows in both.
    """
    where = "scored table" if isinstance(scored, pa.Table) else str(scored)
    table = as_scored(scored, where) if isinstance(scored, pa.Table) else read_scored(Path(scored))
    if table.num_rows == 0:
        raise CandidatesRejected(f"{where}: expected scored documents, found none")
    if qrels is not None:
        lists = judged_lists(table, where, Path(qrels), complete=complete)
    else:
        lists = graded_lists(table, where)
        if grade_counts is not None:
            lists = with_grade_counts(lists, Path(grade_counts) if isinstance(grade_counts, str) else grade_counts)
    return lists, table


def prepared(lists: ScoredLists, policy: Policy) -> PreparedQueries:
    """Prepare ``lists`` for metrics under ``policy``."""
    return PreparedQueries(
        lists.grades,
        lists.starts,
        policy,
        doc_order=lists.doc_order,
        ideal_grades=lists.ideal_grades,
        ideal_starts=lists.ideal_starts,
    )


def evaluate_lists(
    lists: ScoredLists, metrics: tuple[Metric, ...], convention: Convention, replicates: int, seed: int
) -> Evaluation:
    """Evaluate ``lists``, each metric under the policy that the convention has for it."""
    by_policy: dict[Policy, list[Metric]] = {}
    for metric in metrics:
        by_policy.setdefault(convention.policy_for(metric), []).append(metric)
    values: dict[Metric, npt.NDArray[np.float64]] = {}
    weights: dict[Metric, npt.NDArray[np.float64] | None] = {}
    for policy, some in by_policy.items():
        queries = prepared(lists, policy)
        values |= queries.evaluate(some, lists.scores)
        weights |= {metric: queries.weights(metric) for metric in some}
    queries = prepared(lists, convention.policy)
    sizes = np.diff(lists.starts)
    facts = _facts(lists, convention.policy)
    cut = facts.n_documents > sizes
    return Evaluation(
        metrics=metrics,
        convention=convention,
        ideal=lists.ideal,
        qids=tuple(lists.qids),
        values=values,
        weights=weights,
        facts=facts,
        intervals={
            metric: percentile_interval(values[metric], weights=weights[metric], replicates=replicates, seed=seed)
            if replicates
            else None
            for metric in metrics
        },
        counts=Counts(
            n_queries=len(lists.qids),
            n_documents=int(sizes.sum()),
            n_nothing_relevant=int(queries.nothing_relevant(Metric("err")).sum()),
            n_below_relevant_from=int(queries.nothing_relevant(Metric("map")).sum()),
            n_single_document=int(np.count_nonzero(sizes == 1)),
            n_one_grade=_n_one_grade(lists.grades, lists.starts),
            n_tied_documents=int(count_tied(lists.scores, lists.starts)),
            n_unjudged_documents=lists.n_unjudged_documents,
            n_unjudged_queries=lists.n_unjudged_queries,
            n_missing_queries=lists.n_missing_queries,
            n_cut_queries=int(np.count_nonzero(cut)),
            fewest_kept=int(sizes[cut].min()) if cut.any() else None,
        ),
    )


def _facts(lists: ScoredLists, policy: Policy) -> QueryFacts:
    """Look at the documents of each query that rule its ideal order."""
    sizes = np.diff(lists.starts)
    grades, starts = lists.grades, lists.starts
    if lists.ideal_grades is not None and lists.ideal_starts is not None:
        grades, starts = lists.ideal_grades, lists.ideal_starts
    n_known = np.diff(starts)
    ideal = np.zeros(len(sizes), dtype=np.uint64)
    query = np.repeat(np.arange(len(sizes)), n_known)
    positive = grades > 0
    # a number for each grade, whose sums tell any two lists of grades apart
    marks = random_bits_of(np.zeros(len(grades), dtype=np.uint64), grades.astype(np.uint64))
    np.add.at(ideal, query[positive], marks[positive])
    relevant = np.bincount(query[grades >= policy.relevant_from], minlength=len(sizes))
    whole = np.maximum(sizes, n_known) if lists.ideal == "grade counts" else sizes
    return QueryFacts(n_documents=whole, n_known=n_known, n_relevant=relevant, ideal=ideal)


def _n_one_grade(grades: npt.NDArray[np.int32], starts: npt.NDArray[np.int64]) -> int:
    """Count queries with two documents or more, all of one grade: every order of them is as good as another."""
    filled = np.flatnonzero(np.diff(starts) > 1)
    if filled.size == 0:
        return 0
    change = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.diff(grades) != 0, dtype=np.int64)])
    return int(np.count_nonzero(change[starts[filled]] == change[starts[filled + 1] - 1]))
