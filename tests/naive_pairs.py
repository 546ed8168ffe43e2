"""Slow, obvious twin of the losses over pairs: every pair by its definition, in plain Python."""

import math
from dataclasses import dataclass

from rankmill.scorer.metrics import Metric
from tests.naive_metrics import NOTHING, of_order


def metric_of_list(metric, grades, policy):
    """One metric of grades in ranked order, 0 where there is nothing that it could be about."""
    found = of_order(metric, grades, policy)
    return 0.0 if found is NOTHING else found


def swap_delta(metric, grades, i, j, policy, *, tail=False):
    """|metric after - metric before| when the ranks i and j swap; ``tail``: sums continue below k, the ideal is of k."""
    swapped = list(grades)
    swapped[i], swapped[j] = grades[j], grades[i]
    if tail and metric.name in {"ndcg", "dcg"}:
        before, after = (metric_of_list(Metric("dcg"), ys, policy) for ys in (grades, swapped))
        best = sorted(grades, reverse=True)
        ideal = metric_of_list(Metric("dcg", metric.k), best, policy) if metric.name == "ndcg" else 1.0
        return abs(after - before) / ideal if ideal else 0.0
    before, after = (metric_of_list(metric, ys, policy) for ys in (grades, swapped))
    return abs(after - before)


@dataclass
class FrozenPairs:
    """Pairs (a, b, target of a above b, weight), all factors included, at the order of some scores."""

    pairs: list[tuple[int, int, float, float]]
    exponential: bool = False
    sigma: float = 1.0

    def slope(self, target, d):
        """First derivative of one pair's loss by d = s_a - s_b."""
        if self.exponential:
            return (1 - target) * math.exp(min(d, 30)) - target * math.exp(min(-d, 30))
        return self.sigma * ((1 - target) - 1 / (1 + math.exp(min(self.sigma * d, 700))))

    def bend(self, target, d):
        """Second derivative, or the surrogate that is stated."""
        if self.exponential:
            return (1 - target) * math.exp(min(d, 30)) + target * math.exp(min(-d, 30))
        rho = 1 / (1 + math.exp(min(self.sigma * abs(d), 700)))
        return self.sigma**2 * rho * (1 - rho)

    def loss(self, scores):
        """Sum over pairs."""
        total = 0.0
        for a, b, target, weight in self.pairs:
            d = scores[a] - scores[b]
            if self.exponential:

                def part(x):
                    return math.exp(x) if x <= 30 else math.exp(30) * (1 + x - 30)

                total += weight * (target * part(-d) + (1 - target) * part(d))
            else:
                tail = math.log1p(math.exp(-abs(self.sigma * d))) + max(-self.sigma * d, 0.0)
                total += weight * ((1 - target) * self.sigma * d + tail)
        return total

    def derivatives(self, scores):
        """(g, h, {(lower row, higher row): c})."""
        g, h, c = [0.0] * len(scores), [0.0] * len(scores), {}
        for a, b, target, weight in self.pairs:
            d = scores[a] - scores[b]
            g[a] += weight * self.slope(target, d)
            g[b] -= weight * self.slope(target, d)
            bend = weight * self.bend(target, d)
            h[a] += bend
            h[b] += bend
            key = (min(a, b), max(a, b))
            c[key] = c.get(key, 0.0) + bend
        return g, h, c


def frozen_pairs(
    scores,
    grades,
    *,
    first=0,
    delta=None,
    exponential=False,
    sigma=1.0,
    truncation=10**9,
    normalise=False,
    per_pair=False,
    ties=False,
    weights=None,
    query_weight=1.0,
    given=None,
):
    """Pairs of one query with distinct scores; rows count from ``first`` in what comes out.

    ``delta(ranked grades, i, j)`` weighs the pair at the ranks i and j; ``given`` holds (better, worse, weight,
    probability) in rows of the query: those of the same two documents are one pair, with the sum of their weights and
    the mean of their targets.
    """
    n = len(scores)
    order = sorted(range(n), key=lambda i: -scores[i])
    rank = {row: place for place, row in enumerate(order)}
    ranked = [int(grades[row]) for row in order]
    if given is None:
        raw = [
            (a, b, 1.0 if grades[a] > grades[b] else 0.5, 1.0)
            for a in range(n)
            for b in range(n)
            if grades[a] > grades[b] or (ties and grades[a] == grades[b] and a < b)
        ]
        n_pairs = len(raw)
    else:
        sums = {}
        for better, worse, weight, probability in given:
            key = (min(better, worse), max(better, worse))
            target = probability if better < worse else 1 - probability
            total, wanted = sums.get(key, (0.0, 0.0))
            sums[key] = (total + weight, wanted + weight * target)
        raw = [(a, b, wanted / total, total) for (a, b), (total, wanted) in sums.items()]
        n_pairs = len(raw)
    found = []
    for a, b, target, own in raw:
        if min(rank[a], rank[b]) >= truncation:
            continue
        weight = own
        weight *= 1.0 if delta is None else delta(ranked, rank[a], rank[b])
        weight *= 1.0 if weights is None else weights[a] * weights[b]
        weight /= n_pairs if per_pair else 1
        if normalise and max(scores) > min(scores):
            weight /= 0.01 + abs(scores[a] - scores[b])
        found.append((a, b, target, weight))
    frozen = FrozenPairs(found, exponential, sigma)
    total = sum(2 * w * abs(frozen.slope(t, scores[a] - scores[b])) for a, b, t, w in found)
    factor = query_weight * (math.log2(1 + total) / total if normalise and total > 0 else 1.0)
    frozen.pairs = [(first + a, first + b, t, w * factor) for a, b, t, w in found]
    return frozen
