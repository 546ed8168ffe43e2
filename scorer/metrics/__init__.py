"""Ranking metrics: what is measured (`Metric`), under which conventions (`Policy`), and how (`PreparedQueries`).

This file imports no numeric library, so that a command line can name metrics without loading one;
`PreparedQueries`, `evaluate_queries` and `mean_of` are in `rankmill.scorer.metrics.per_query`.
"""

from rankmill.scorer.metrics.metric import DEFAULT_METRICS, METRIC_NAMES, Metric, parse_metric
from rankmill.scorer.metrics.metric_options import TIES, Policy

__all__ = ["DEFAULT_METRICS", "METRIC_NAMES", "TIES", "Metric", "Policy", "parse_metric"]
