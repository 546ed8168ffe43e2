"""One metric of one query rank by rank, in plain Python from the definitions: what `rankmill explain-metric` shows.

If documents tie and their order is not known, a rank counts its mean over all orders: the shares and probabilities below.
Nothing here is fast, and nothing is shared with the kernels but gains and discounts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rankmill.scorer.metrics.discount import discounts, gains, persistence, stop_probabilities
from rankmill.scorer.metrics.metric import Metric
from rankmill.scorer.metrics.metric_options import Policy

Row = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedQuery:
    """Documents of one query in the order of their ranks, ``scores`` and ``grades`` (n,); no grade is below 0.

    ``groups`` are the limits (lo, hi) of documents that tie and share their ranks, ranks counted from 0; ``pool`` are the
    grades of all known documents, best first.
    """

    scores: tuple[float, ...]
    grades: tuple[int, ...]
    groups: tuple[tuple[int, int], ...]
    pool: tuple[int, ...]
    policy: Policy

    def relevant(self) -> list[float]:
        """Return 1 for relevant documents, else 0."""
        return [float(y >= self.policy.relevant_from) for y in self.grades]

    @property
    def n_relevant(self) -> int:
        """Count the known relevant documents."""
        return sum(y >= self.policy.relevant_from for y in self.pool)

    def depth(self, metric: Metric) -> int:
        """Return the number of ranks that the metric uses."""
        if metric.name == "wta":
            return min(1, len(self.grades))
        return len(self.grades) if metric.k is None else min(metric.k, len(self.grades))


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The terms of each rank: rows of numbers under ``columns``, the last of which is the running sum; ``total`` is its end."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def total(self) -> float:
        """The sum over all ranks, before it is divided."""
        return self.rows[-1][-1] if self.rows else 0.0


def steps_of(metric: Metric, query: RankedQuery, costs: Sequence[float] = ()) -> Steps:
    """Calculate ``metric`` rank by rank; ``costs`` of errors are those of `PreparedQueries.error_costs`."""
    walks: dict[str, Callable[[], Steps]] = {
        "ndcg": lambda: _gains(metric, query),
        "dcg": lambda: _gains(metric, query),
        "wta": lambda: _weighted(query, 1, ("best grade", "weight"), _best(query), [1.0]),
        "rbp": lambda: _rank_biased(metric, query),
        "precision": lambda: _hits(metric, query),
        "recall": lambda: _hits(metric, query),
        "mrr": lambda: _first(metric, query),
        "map": lambda: _precisions(metric, query),
        "err": lambda: _stops(metric, query),
        "concordance": lambda: _pairs(query),
        "concordance_micro": lambda: _pairs(query),
        "balanced_error": lambda: _errors(query, costs),
    }
    return walks[metric.name]()


def ideal_steps(metric: Metric, query: RankedQuery) -> Steps:
    """Calculate the DCG of the ideal order, by which ``ndcg`` is divided."""
    pool = query.pool if metric.k is None else query.pool[: metric.k]
    alone = tuple((rank, rank + 1) for rank in range(len(pool)))
    ideal = RankedQuery(scores=(), grades=pool, groups=alone, pool=pool, policy=query.policy)
    return _gains(metric, ideal)


def _running(columns: tuple[str, ...], rows: Sequence[Row]) -> Steps:
    """Add the running sum of the last column."""
    total, running = 0.0, []
    for row in rows:
        total += row[-1]
        running.append((*row, total))
    return Steps(columns=(*columns, "sum"), rows=tuple(running))


def _shares(query: RankedQuery, values: Sequence[float]) -> list[float]:
    """Return the value of each rank: the mean over the documents that share it."""
    return [math.fsum(values[lo:hi]) / (hi - lo) for lo, hi in query.groups for _ in range(lo, hi)]


def _weighted(
    query: RankedQuery, depth: int, names: tuple[str, str], values: Sequence[float], weights: Sequence[float]
) -> Steps:
    rows = [(x, w, x * w) for x, w in zip(_shares(query, values)[:depth], weights, strict=False)]
    return _running((*names, "term"), rows)


def _gains(metric: Metric, query: RankedQuery) -> Steps:
    values = gains(np.array(query.grades, np.int32), query.policy.gain).tolist()
    weights = discounts(len(values), query.policy.discount).tolist()
    return _weighted(query, query.depth(metric), ("gain", "discount"), values, weights)


def _rank_biased(metric: Metric, query: RankedQuery) -> Steps:
    weights = persistence(len(query.grades), metric.parameter or 0.0).tolist()
    return _weighted(query, query.depth(metric), ("relevant", "weight"), query.relevant(), weights)


def _best(query: RankedQuery) -> list[float]:
    return [float(y == query.pool[0]) for y in query.grades]


def _hits(metric: Metric, query: RankedQuery) -> Steps:
    return _running(("relevant",), [(x,) for x in _shares(query, query.relevant())[: query.depth(metric)]])


def _first(metric: Metric, query: RankedQuery) -> Steps:
    """Probability that the first relevant document is at a rank: none of its group before it, then one of them."""
    rows, depth, relevant = [], query.depth(metric), query.relevant()
    none_yet = 1.0
    for lo, hi in query.groups:
        left = sum(relevant[lo:hi])
        for rank in range(lo, min(hi, depth)):
            here = left / (hi - rank) if none_yet else 0.0
            rows.append((none_yet * here, 1 / (rank + 1), none_yet * here / (rank + 1)))
            none_yet *= 1.0 - here
    return _running(("first here", "1/rank", "term"), rows)


def _precisions(metric: Metric, query: RankedQuery) -> Steps:
    """Precision at each rank if it is relevant: i others of the group stand before it, (r - 1)/(m - 1) of them relevant."""
    depth, relevant = query.depth(metric), query.relevant()
    over_hits = query.policy.map_normalisation == "hits"
    chances = _hit_probabilities(query, depth)
    one_over_hits = math.fsum(p / hits for hits, p in chances.items() if hits) if over_hits else 1.0
    rows, before = [], 0.0
    for lo, hi in query.groups:
        m, r = hi - lo, sum(relevant[lo:hi])
        c = min(hi, depth) - lo
        for rank in range(lo, min(hi, depth)):
            i = rank - lo
            share, precision = r / m, (before + 1 + (i * (r - 1) / (m - 1) if m > 1 else 0.0)) / (rank + 1)
            term = share * precision * one_over_hits
            if over_hits and c < m:  # the cutoff divides this group: how many hits there are depends on this rank
                term = 0.0
                for hits, p in chances.items():
                    t = hits - before
                    if t > 0:
                        given = (before + 1 + (i * (t - 1) / (c - 1) if c > 1 else 0.0)) / (rank + 1)
                        term += p * t / c * given / hits
            rows.append((share, precision if share else 0.0, term))
        before += r
    return _running(("relevant", "precision", "term"), rows)


def _hit_probabilities(query: RankedQuery, depth: int) -> dict[float, float]:
    """Probability of each number of relevant documents above the cutoff: hypergeometric in the group that it divides."""
    relevant, before = query.relevant(), 0.0
    for lo, hi in query.groups:
        if lo >= depth:
            break
        m, r, c = hi - lo, int(sum(relevant[lo:hi])), min(hi, depth) - lo
        if c < m:
            ways = {t: math.comb(r, t) * math.comb(m - r, c - t) for t in range(min(r, c) + 1)}
            return {before + t: n / math.comb(m, c) for t, n in ways.items() if n}
        before += r
    return {before: 1.0}


def _stops(metric: Metric, query: RankedQuery) -> Steps:
    """Probability to read a rank, and to stop there; passing t tied documents has the mean product of 1 - stop over any t."""
    depth = query.depth(metric)
    stop = stop_probabilities(np.array(query.grades, np.int32), query.policy.max_grade).tolist()
    rows, reach = [], 1.0
    for lo, hi in query.groups:
        c = min(hi, depth) - lo
        if c <= 0:
            break
        passing = [1.0] + [0.0] * c  # mean over the choices of t documents among those so far
        for size, chance in enumerate(stop[lo:hi]):
            for t in range(min(size + 1, c), 0, -1):
                passing[t] = ((size + 1 - t) * passing[t] + t * (1.0 - chance) * passing[t - 1]) / (size + 1)
        for i in range(c):
            stops = reach * (passing[i] - passing[i + 1])
            rows.append((reach * passing[i], stops, 1 / (lo + i + 1), stops / (lo + i + 1)))
        reach *= math.prod(1.0 - chance for chance in stop[lo:hi])
    return _running(("read", "stop", "1/rank", "term"), rows)


def _pairs(query: RankedQuery) -> Steps:
    """Pairs with the documents above: right if those are better, wrong if worse, half if they tie."""
    rows = []
    above: Counter[int] = Counter()
    for lo, hi in query.groups:
        group: Counter[int] = Counter()
        for mine in query.grades[lo:hi]:
            right = sum(n for y, n in above.items() if y > mine)
            wrong = sum(n for y, n in above.items() if y < mine)
            tied = sum(n for y, n in group.items() if y != mine)
            rows.append((right, wrong, tied, right + tied / 2))
            group[mine] += 1
        above += group
    return _running(("right", "wrong", "tied", "term"), rows)


def _errors(query: RankedQuery, costs: Sequence[float]) -> Steps:
    threshold, missed, alarm, tied_missed, tied_alarm = costs
    rows = []
    for score, relevant in zip(query.scores, query.relevant(), strict=True):
        wrong = float(score < threshold if relevant else score > threshold)
        if score == threshold:
            wrong = tied_missed if relevant else tied_alarm
        cost = missed if relevant else alarm
        rows.append((relevant, float(score > threshold), wrong, cost, wrong * cost))
    return _running(("relevant", "above", "wrong", "cost", "term"), rows)
