"""What a candidate is compared with: the present version, or two yardsticks while nothing serves yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from rankmill.gate.lists import GradedQueries, Scores
from rankmill.scorer.metrics import Metric
from rankmill.yardsticks import best_single_feature

if TYPE_CHECKING:
    from rankmill.scorer.paired import Paired

Rule = Literal["better", "not worse", "not shown to be worse"]


@dataclass(frozen=True, slots=True)
class Bar:
    """A ranking to compare with: what it is, in one line, and its scores (n,) in the order of the queries."""

    name: str
    words: str
    scores: Scores
    rule: Rule
    """What the interval of the difference must show; see `Bar.passed`."""

    def passed(self, found: Paired, margin: float) -> bool:
        """Return whether the 95 % interval (low, high) of the difference, candidate less this, satisfies the rule.

        ``better``: low > 0.  ``not worse``: low > -margin.  ``not shown to be worse``: low > -margin or high >= 0, so a
        candidate is refused only if it is significantly worse and not shown to be within the margin.
        """
        low, high = found.interval
        if self.rule == "better":
            return low > 0.0
        return low > -margin or (self.rule == "not shown to be worse" and high >= 0.0)


def row_order(queries: GradedQueries) -> Bar:
    """Rank the documents as they came: by the column ``position`` where the dataset has it, else as rows are stored.

    Documents of one position tie.  A dataset keeps the rows of a query by their document ids, so without positions this
    is no better than chance unless the ids say something.
    """
    if "position" in queries.dataset.optional_columns:
        positions = queries.dataset.rows(queries.split, ("position",)).column(0).to_numpy().astype(np.float64)
        words = "the order of the column position"
        return Bar("row order", words, -queries.in_order(positions), "better")
    words = "the order of rows as stored (by document id): the dataset has no column position"
    return Bar("row order", words, -np.arange(queries.n_rows, dtype=np.float64), "better")


def single_feature(queries: GradedQueries, metric: Metric) -> Bar:
    """Rank by the one feature, upwards or downwards, that ``metric`` likes best on these very queries; missing goes last.

    The feature is chosen on the queries that judge it, which favours it: the candidate need not beat it.

    Raises
    ------
    ValueError
        No query counts.
    """
    policy = queries.convention.policy_for(metric)
    prepared = queries.prepared(policy)
    found = best_single_feature(
        queries.dataset, queries.split, metric, policy, queries=prepared, in_order=queries.in_order
    )
    scores = found.scores(queries.in_order(queries.dataset.feature_column(found.name, queries.split)))
    words = (
        f"the feature {found.name}, the {'highest' if found.descending else 'lowest'} first: the best single feature, chosen"
        " on these queries themselves, which favours it"
    )
    return Bar("best single feature", words, scores, "not shown to be worse")
