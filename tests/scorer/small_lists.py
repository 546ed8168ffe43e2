"""Every list of a few grades with every pattern of ties, every metric, and rules that no preset combines."""

import itertools

from scorer.metrics import Metric
from scorer.metrics.metric import METRIC_NAMES, NEED_CUTOFF, WITHOUT_CUTOFF
from scorer.metrics.queries import POOLED

CUTS = (None, 1, 2, 3, 7)
METRICS = [
    Metric(name, k, 0.8 if name == "rbp" else None)
    for name in METRIC_NAMES
    for k in CUTS
    if name not in POOLED and name not in (NEED_CUTOFF if k is None else WITHOUT_CUTOFF)
] + [Metric("rbp", 2, 0.3)]


CONVENTIONS = (
    {"gain": "table(0,1,2.5,2.5)", "discount": "letor", "short_lists": "zero"},
    {"gain": "linear", "discount": "one_plus_log2", "map_normalisation": "hits", "relevant_from": 2},
    {"gain": "table(0,0,2,3)", "discount": "table(1,0.5,0.5)", "map_normalisation": "hits"},
    {"discount": "table(0.75)", "map_normalisation": "min(R,k)", "precision_normalisation": "min(k,n)"},
)


def lists(longest, levels):
    """Every list of grades with every descending pattern of scores: 2^(n - 1) ways to tie neighbours."""
    for n in range(1, longest + 1):
        for steps in itertools.product((0, 1), repeat=n - 1):
            scores = tuple(float(-s) for s in itertools.accumulate((0, *steps)))
            for grades in itertools.product(levels, repeat=n):
                yield grades, scores
