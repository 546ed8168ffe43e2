"""Query by query: how far apart two rankings are, and the lists that lost and gained most, before and after."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmill.report.rankings import Ranked, Rankings
from rankmill.scorer.paired import TIED

if TYPE_CHECKING:
    from rankmill.report.subject import Subject
    from rankmill.scorer.metrics import Metric

HALF_BINS = 12  # bars of the histogram on each side of 0
TOP = 10  # ranks of a list that are shown
LISTS_LOST, LISTS_GAINED = 5, 3

Values = npt.NDArray[np.float64]


def query_facts(rankings: Rankings, subject: Subject) -> dict[str, Any] | None:
    """Tell how the queries differ between the version and its rival; None where none counts."""
    metric, now, then = subject.metric, rankings.candidate, rankings.rival
    sign = 1.0 if metric.higher_is_better else -1.0
    gaps = sign * (now.evaluation.values[metric] - then.evaluation.values[metric]) + 0.0
    place = np.flatnonzero(~np.isnan(gaps))
    if not len(place):
        return None
    found = gaps[place]
    ascending = place[np.argsort(found, kind="stable")]
    lost = [int(q) for q in ascending[:LISTS_LOST] if gaps[q] < -TIED]
    descending = place[np.argsort(-found, kind="stable")]
    gained = [int(q) for q in descending[:LISTS_GAINED] if gaps[q] > TIED]
    lists = _Lists(rankings, subject, metric)
    return {
        "metric": str(metric),
        "candidate": now.name,
        "rival": then.name,
        "n_queries": len(found),
        "wins": int(np.count_nonzero(found > TIED)),
        "ties": int(np.count_nonzero(np.abs(found) <= TIED)),
        "losses": int(np.count_nonzero(found < -TIED)),
        "histogram": histogram(found),
        "lost": [lists.facts(q, float(gaps[q])) for q in lost],
        "gained": [lists.facts(q, float(gaps[q])) for q in gained],
        "list_convention": "documents of equal score stand by ascending document id",
    }


def histogram(gaps: Values) -> dict[str, Any]:
    """Count ``gaps`` (q,) in bars of equal width around 0; ties are counted apart, and the outer bars are open to nothing.

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
    """Return the least of 1, 2, 2.5, 5, 10 times a power of ten that is not below ``x`` > 0.

    >>> round_up(0.021), round_up(0.3)
    (0.025, 0.5)
    """
    base = 10.0 ** math.floor(math.log10(x))
    for step in (1.0, 2.0, 2.5, 5.0, 10.0):
        if step * base >= x * (1.0 - 1e-12):
            return float(f"{step * base:.12g}")
    return 10.0 * base


class _Lists:
    """Finds the documents of single queries, without a pass over the others."""

    def __init__(self, rankings: Rankings, subject: Subject, metric: Metric) -> None:
        self._rankings, self._metric = rankings, metric
        assert subject.dataset is not None  # noqa: S101 (there are rankings)
        queries = subject.dataset.queries(subject.split)
        self._qids, self._starts = queries.qid, queries.starts

    def facts(self, q: int, gap: float) -> dict[str, Any]:
        """Tell the list of query number ``q`` of the evaluation under both rankings."""
        now, then = self._rankings.candidate, self._rankings.rival
        qid = now.evaluation.qids[q]
        at = pc.index(self._qids, pa.scalar(qid, pa.string())).as_py()
        start, stop = int(self._starts[at]), int(self._starts[at + 1])
        rows = self._rankings.rows.slice(start, stop - start)
        ids, grades = rows.column("doc_id").to_pylist(), rows.column("grade").to_numpy().tolist()
        new, old = (_ranks(each, start, stop) for each in (now, then))
        shown = sorted((i for i in range(len(ids)) if min(new[i], old[i]) <= TOP), key=lambda i: new[i])
        best = sorted(grades, reverse=True)[:TOP]
        return {
            "qid": qid,
            "n_documents": len(ids),
            "candidate": float(now.evaluation.values[self._metric][q]),
            "rival": float(then.evaluation.values[self._metric][q]),
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
    """Return the ranks (n,), from 1; rows of equal score stand as they are stored, which is by document id."""
    order = np.argsort(-ranked.scores[start:stop], kind="stable")
    ranks = np.empty(stop - start, dtype=np.int64)
    ranks[order] = np.arange(1, stop - start + 1)
    return ranks
