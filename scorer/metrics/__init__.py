"""Ranking metrics: what is measured (`Metric`), under which conventions (`Policy`), and how (`PreparedQueries`).

This file imports no numeric library, so that a command line can name metrics without loading one;
`PreparedQueries`, `evaluate_queries` and `mean_of` are in `scorer.metrics.queries`.
"""

from scorer.metrics.metric import METRIC_NAMES, Metric, parse_metric
from scorer.metrics.policy import DISCOUNTS, GAINS, NOTHING_RELEVANT, TIES, Policy

__all__ = [
    "DISCOUNTS",
    "GAINS",
    "METRIC_NAMES",
    "NOTHING_RELEVANT",
    "TIES",
    "Metric",
    "Policy",
    "parse_metric",
]
