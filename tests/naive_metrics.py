"""Slow, obvious twins of the metrics, from their definitions in words, one list and one order of it at a time."""

import itertools
import math

from tests.naive import mixed, orders_of

NOTHING = object()  # the list has nothing that this metric could be about


def table(text):
    return [float(x) for x in text.removeprefix("table(").removesuffix(")").split(",")]


def gain_of(y, gain):
    return 2.0**y - 1 if gain == "exp" else float(y) if gain == "linear" else table(gain)[y]


def discount_at(rank, discount):
    if discount == "log2":
        return 1 / math.log2(rank + 1)
    if discount == "one_plus_log2":
        return 1 / (math.log2(rank) + 1)
    if discount == "letor":
        return 1.0 if rank <= 2 else 1 / math.log2(rank)
    listed = table(discount)
    return listed[rank - 1] if rank <= len(listed) else 0.0


def of_order(metric, grades, policy, pool=None):
    """One metric of one list, ``grades`` in the order of their ranks; NOTHING where the policy has to say what counts.

    ``pool`` holds the grades of all documents known to exist, retrieved or not; by default these are ``grades``.
    """
    name, k = metric.name, metric.k
    grades = [max(y, 0) for y in grades]
    pool = grades if pool is None else [max(y, 0) for y in pool]
    relevant = [y >= policy.relevant_from for y in grades]
    n_relevant = sum(y >= policy.relevant_from for y in pool)
    top = relevant if k is None else relevant[:k]

    def dcg(ys):
        return sum(
            gain_of(y, policy.gain) * discount_at(rank, policy.discount)
            for rank, y in enumerate(ys if k is None else ys[:k], 1)
        )

    if name in {"map", "mrr", "precision", "recall", "rbp"} and n_relevant == 0:
        return NOTHING
    if name in {"ndcg", "dcg"} and not any(gain_of(y, policy.gain) for y in pool):
        return NOTHING
    if name in {"err", "wta"} and not any(pool):
        return NOTHING
    if name == "dcg":
        return dcg(grades)
    if name == "ndcg":
        if policy.short_lists == "zero" and k is not None and len(grades) < k:
            return 0.0
        return dcg(grades) / dcg(sorted(pool, reverse=True))
    if name == "err":
        total, reach = 0.0, 1.0
        for rank, y in enumerate(grades if k is None else grades[:k], 1):
            stop = (2**y - 1) / 2**policy.max_grade
            total += reach * stop / rank
            reach *= 1 - stop
        return total
    if name == "precision":
        return sum(top) / (k if policy.precision_normalisation == "k" else max(1, min(k, len(grades))))
    if name == "recall":
        return sum(top) / n_relevant
    if name == "mrr":
        return next((1 / rank for rank, hit in enumerate(top, 1) if hit), 0.0)
    if name == "map":
        summed = sum(sum(relevant[:rank]) / rank for rank, hit in enumerate(top, 1) if hit)
        reachable = n_relevant if k is None else min(n_relevant, k)
        divisor = {"R": n_relevant, "min(R,k)": reachable}[policy.map_normalisation]
        return summed / divisor if divisor else 0.0
    if name == "rbp":
        p = metric.parameter
        return sum((1 - p) * p ** (rank - 1) for rank, hit in enumerate(top, 1) if hit)
    if name == "wta":
        return float(bool(grades) and grades[0] == max(pool))
    if name == "concordance":
        pairs = [(a, b) for a, b in itertools.combinations(grades, 2) if a != b]
        return sum(a > b for a, b in pairs) / len(pairs) if pairs else NOTHING
    raise ValueError(name)


def orders_under(ties, scores, grades, *, ids=None, seed=0, query=0):
    """Every order of the rows that the rule for ties may mean; ``ids`` ascend with the document id."""
    places = range(len(scores)) if ids is None else [sorted(ids).index(i) for i in ids]
    key = {
        "doc_id": lambda i: ids[i],
        "doc_id_descending": lambda i: -ids[i],
        "pessimistic": lambda i: grades[i],
        "optimistic": lambda i: -grades[i],
        "row_order": lambda i: i,
        "random": lambda i: shuffle_key(seed, query, places[i]),
    }
    if ties == "expected":
        return list(orders_of(scores))
    return [sorted(range(len(scores)), key=lambda i: (-scores[i], key[ties](i)))]


def shuffle_key(seed, query, place):
    golden = 0x9E3779B97F4A7C15
    key = mixed((seed + golden) % 2**64)
    for part in (query, place):
        key = mixed(((key ^ part) + golden) % 2**64)
    return key


def value(metric, scores, grades, policy, *, pool=None, ids=None, query=0):
    """One metric of one query under all of its policy; NaN where the query is skipped."""
    orders = orders_under(policy.ties, scores, grades, ids=ids, seed=policy.ties_seed, query=query)
    found = [of_order(metric, [grades[i] for i in order], policy, pool) for order in orders]
    if found[0] is not NOTHING:
        return math.fsum(found) / len(found)
    one = 0.0 if metric.name == "dcg" else 1.0
    return {"skip": math.nan, "zero": 0.0, "one": one}[policy.nothing_relevant]


def concordance_micro(queries, policy):
    """Share of all pairs of different grade of all ``queries`` (scores, grades) that are in the right order."""
    right = pairs = 0.0
    for scores, grades in queries:
        for (s, a), (t, b) in itertools.combinations(zip(scores, grades, strict=True), 2):
            if max(a, 0) != max(b, 0):
                pairs += 1
                tied = {"expected": 0.5, "pessimistic": 0.0, "optimistic": 1.0}[policy.ties]
                right += tied if s == t else float((s > t) == (a > b))
    return right / pairs if pairs else math.nan


def balanced_error(scores, grades, threshold, policy):
    """False positives / (2 n-) + false negatives / (2 n+) over all documents at once; on the threshold by the ties."""
    tied = {"expected": (0.5, 0.5), "pessimistic": (1, 1), "optimistic": (0, 0)}.get(policy.ties, (1, 0))
    relevant = [y >= policy.relevant_from for y in grades]
    positive, negative = sum(relevant), len(relevant) - sum(relevant)
    if not positive or not negative:
        return math.nan
    missed = sum(s < threshold or (s == threshold and tied[0]) for s, hit in zip(scores, relevant, strict=True) if hit)
    alarms = sum(
        s > threshold or (s == threshold and tied[1]) for s, hit in zip(scores, relevant, strict=True) if not hit
    )
    return missed / (2 * positive) + alarms / (2 * negative)
