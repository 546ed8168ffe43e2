"""The yardstick that a model has to beat before any other model stands: the best single feature."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from rankmill.pipeline.binning import columns_of
from rankmill.pipeline.dataset import Dataset
from rankmill.scorer.metrics import Metric, Policy
from rankmill.scorer.metrics.queries import PreparedQueries

if TYPE_CHECKING:
    from rankmill.pipeline.manifest import SplitName


@dataclass(frozen=True, slots=True)
class SingleFeature:
    """Ranking by one feature, the highest first, or the lowest."""

    name: str
    column: int
    descending: bool

    def scores(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Score by the feature's ``values`` (n,); where it is missing the document goes last."""
        scores = values.astype(np.float64) if self.descending else -values.astype(np.float64)
        scores[np.isnan(scores)] = -np.inf
        return scores


def best_single_feature(
    dataset: Dataset,
    split: str,
    metric: Metric,
    policy: Policy,
    *,
    queries: PreparedQueries | None = None,
    in_order: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]] | None = None,
) -> SingleFeature:
    """Find the feature and direction whose ranking of ``split`` has the best mean ``metric``; of equals the first.

    A few columns are in memory at a time.  ``queries`` are those of the split prepared under ``policy`` where they are
    at hand, and ``in_order`` brings a column (n,) from the canonical order into theirs.

    Raises
    ------
    ValueError
        No query counts.
    """
    if queries is None:
        grades = dataset.rows(split, ("grade",)).column(0).to_numpy().astype(np.int32)
        queries = PreparedQueries(grades, dataset.queries(split).starts, policy)
    best, highest = None, -np.inf
    columns: Iterable[tuple[str, npt.NDArray[np.float32]]] = columns_of(dataset, cast("SplitName", split))
    for column, (name, stored) in enumerate(columns):
        values = stored if in_order is None else in_order(stored)
        for descending in (True, False):
            candidate = SingleFeature(name, column, descending)
            mean = queries.means([metric], candidate.scores(values))[metric]
            if (better := mean if metric.higher_is_better else -mean) > highest:
                best, highest = candidate, better
    if best is None:
        raise ValueError(f"no query of {split} counts for {metric}")
    return best
