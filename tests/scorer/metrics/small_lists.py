"""Every list of a few grades with every pattern of ties, every metric, and rules that no preset combines."""

import functools
import itertools
import math

import numpy as np

from rankmill.scorer.metrics import Metric
from rankmill.scorer.metrics.metric import MEASURES, METRIC_NAMES
from tests import naive, naive_metrics

CUTS = (None, 1, 2, 3, 2**31 - 1)
METRICS = [
    Metric(name, k, 0.8 if name == "rbp" else None)
    for name in METRIC_NAMES
    for k in CUTS
    if not MEASURES[name].pooled and MEASURES[name].cutoff != ("needed" if k is None else "none")
] + [Metric("rbp", 2, 0.3)]


CONVENTIONS = (
    {"gain": "table(0,1,2.5,2.5)", "discount": "letor", "short_lists": "zero"},
    {"gain": "linear", "discount": "one_plus_log2", "map_normalisation": "min(R,k)", "relevant_from": 2},
    {"gain": "table(0,0,2,3)", "discount": "table(1,0.5,0.5)"},
    {"discount": "table(0.75)", "map_normalisation": "min(R,k)", "precision_normalisation": "min(k,n)"},
)


def lists(longest, levels):
    """Every list of grades with every descending pattern of scores: 2^(n - 1) ways to tie neighbours."""
    for n in range(1, longest + 1):
        for steps in itertools.product((0, 1), repeat=n - 1):
            scores = tuple(float(-s) for s in itertools.accumulate((0, *steps)))
            for grades in itertools.product(levels, repeat=n):
                yield grades, scores


class Orders:
    """Which orders of its grades a list may be read in: the same for every metric and convention, so worked out once.

    ``different`` are the orders met in any list; list ``i`` may be read in ``different[j]`` for the j in
    ``of_list[firsts[i]:firsts[i + 1]]``.
    """

    def __init__(self, cases, ties, ids=None, seed=0):
        places, of_list, self.firsts = {}, [], []
        for query, (ys, ss) in enumerate(cases):
            orders = ORDERS(ss) if ties == "expected" else naive_metrics.orders_under(
                ties, ss, ys, ids=None if ids is None else ids[query], seed=seed, query=query
            )  # fmt: skip
            self.firsts.append(len(of_list))
            of_list += [places.setdefault(tuple([ys[i] for i in order]), len(places)) for order in orders]
        self.different, self.of_list = list(places), np.array(of_list)

    def expected(self, metric, policy, summary=np.add):
        """What the twin makes of each list: the mean over its orders, or the least or the greatest."""
        found = [naive_metrics.of_order(metric, order, policy) for order in self.different]
        dcg = metric.name == "dcg"
        fill = {"skip": math.nan, "zero": 0.0, "one": 0.0 if dcg else 1.0}[policy.nothing_relevant]
        values = np.array([fill if value is naive_metrics.NOTHING else value for value in found])[self.of_list]
        counts = np.diff([*self.firsts, len(values)]) if summary is np.add else 1
        return summary.reduceat(values, self.firsts) / counts


ORDERS = functools.cache(lambda scores: list(naive.orders_of(scores)))


@functools.cache
def cases_up_to(longest):
    return list(lists(longest, (0, 1, 3)))


@functools.cache
def orders_up_to(longest, ties="expected"):
    return Orders(cases_up_to(longest), ties)
