"""What a first version has to beat while nothing serves yet: the order there is, and the best single feature."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankmill.gate.lists import GradedQueries, Scores
from rankmill.yardsticks import best_single_feature
from scorer.metrics import Metric


@dataclass(frozen=True, slots=True)
class Bar:
    """A ranking to compare with: what it is, in one line, and its scores (n,) in the order of the queries."""

    name: str
    words: str
    scores: Scores
    must_be_beaten: bool
    """Whether the candidate has to be better; else it must not be worse by more than the margin."""


def row_order(queries: GradedQueries) -> Bar:
    """Rank the documents as they came: by the column ``position`` where the dataset has it, else as rows are stored.

    Documents of one position tie.  A dataset keeps the rows of a query by their document ids, so without positions this
    is no better than chance unless the ids say something.
    """
    if "position" in queries.dataset.optional_columns:
        positions = queries.dataset.rows(queries.split, ("position",)).column(0).to_numpy().astype(np.float64)
        words = "the order of the column position"
        return Bar("row order", words, -queries.in_order(positions), must_be_beaten=True)
    words = "the order of rows as stored (by document id): the dataset has no column position"
    return Bar("row order", words, -np.arange(queries.n_rows, dtype=np.float64), must_be_beaten=True)


def single_feature(queries: GradedQueries, metric: Metric) -> Bar:
    """Rank by the one feature, upwards or downwards, that ``metric`` likes best on these very queries; missing goes last.

    That the queries which it is judged on have chosen it favours the bar: it must not be undercut, but need not be beaten.

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
    return Bar("best single feature", words, scores, must_be_beaten=False)
