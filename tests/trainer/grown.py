"""Trees grown one by one from an objective's gradients, and which rows each of their nodes holds."""

from __future__ import annotations

from functools import partial

import numpy as np

from rankmill.trainer.growing.grower import Grower, LeafRules
from rankmill.trainer.layout import BlockedBins
from rankmill.trainer.objectives.registry import criterion_of, objective_of, takes_exact_steps
from rankmill.trainer.workers import Team
from tests.trainer.fixed import fixed
from tests.trainer.planted import rows_of, small_data


def bins_of(layout: BlockedBins):
    """Return the bins of a layout, (n_rows, n_features)."""
    return np.concatenate(list(layout.batches(np.arange(layout.n_rows))))


def nodes_of(tree, bins):
    """Return the rows of every node of ``tree``, by walking down with each row of ``bins``."""
    of_node = [np.zeros(0, dtype=int) for _ in tree.feature]
    of_node[0] = np.arange(len(bins))
    for node in np.flatnonzero(tree.feature >= 0):  # a parent comes before its children
        rows = of_node[node]
        column = bins[rows, tree.feature[node]]
        left = (column <= tree.threshold[node]) & ((column > 0) | bool(tree.missing_left[node]))
        of_node[tree.left[node]], of_node[tree.right[node]] = rows[left], rows[~left]
    return of_node


def _inside(objective, step, scores, whole, leaf_of_row, n_leaves):
    return objective.hessian_inside(step, scores, leaf_of_row, n_leaves, whole, Team(1))


def trees_of(name, criterion, data=None, *, n_rounds=2, weights=None, offsets=0.0, **parameters):
    """Yield (tree, bins, g, h, weights) for the trees of the first rounds; ``weights`` (n_rows,) for ``se``, else None.

    The objective and the grower are put together as the boosting loop does it.  ``offsets`` (n_rows,) are added to the
    scores that the first round starts from.
    """
    train, _, binspec = data or small_data()
    rows = rows_of(train, binspec, width=16, weights=weights)
    given = fixed(objective=name, criterion=criterion, learning_rate=0.3, **parameters)
    objective, team = objective_of(rows, given), Team(1)
    criterion = criterion_of(objective, given)
    grower, bins = Grower(rows.bins, given, team), bins_of(rows.bins)
    searched_by = (np.ones(rows.n_rows) if weights is None else weights / weights.mean()) if criterion == "se" else None
    shape = (rows.n_rows,) if objective.n_outputs == 1 else (objective.n_outputs, rows.n_rows)
    scores, g, h = np.full(shape, objective.start()) + offsets, np.empty(shape), np.empty(shape)
    exact = takes_exact_steps(objective, criterion, given)
    for step in range(1, n_rounds + 1):
        objective.gradients(step, scores, g, h, team)
        pairs = objective.pair_hessians(step, scores, 0.0, team) if criterion == "ole" else None
        inside = partial(_inside, objective, step, scores, 0.5 * h.sum()) if exact else None
        for output in range(objective.n_outputs):
            slope, hessian, score = (a if objective.n_outputs == 1 else a[output] for a in (g, h, scores))
            tree = grower.grow(slope, hessian, score, weights=searched_by, pairs=pairs, leaves=LeafRules(inside))
            yield tree, bins, slope.copy(), hessian.copy(), searched_by
