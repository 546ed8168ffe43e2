"""The yardstick that a model has to beat before any other model stands: the best single feature."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.dataset import Dataset
from scorer.metrics import Metric, Policy
from scorer.metrics.queries import PreparedQueries


@dataclass(frozen=True, slots=True)
class SingleFeature:
    """Ranking by one feature, the highest first, or the lowest."""

    name: str
    column: int
    descending: bool

    def scores(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Score by the feature's ``values`` (n,); where it is missing the document goes last."""
        scores = values.astype(np.float64) if self.descending else -values.astype(np.float64)
        scores[np.isnan(scores)] = -np.finfo(np.float64).max
        return scores


def best_single_feature(dataset: Dataset, split: str, metric: Metric, policy: Policy) -> SingleFeature:
    """Find the feature and direction whose ranking of ``split`` has the highest mean ``metric``; of equals the first."""
    grades = dataset.rows(split, ("grade",)).column(0).to_numpy().astype(np.int32)
    queries = PreparedQueries(grades, dataset.queries(split).starts, policy)
    best, highest = None, -np.inf
    for column, name in enumerate(dataset.feature_names):
        values = dataset.feature_column(name, split)
        for descending in (True, False):
            candidate = SingleFeature(name, column, descending)
            mean = queries.means([metric], candidate.scores(values))[metric]
            if mean > highest:
                best, highest = candidate, mean
    if best is None:
        raise ValueError(f"no query of {split} counts for {metric}")
    return best
