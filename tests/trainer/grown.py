"""Trees grown one by one: from given gradients, or from those of an objective as the boosting loop does it."""

from functools import partial

import numpy as np

from rankmill.trainer.data.layout import BlockedBins
from rankmill.trainer.growing.controls import Controls
from rankmill.trainer.growing.grower import Grower
from rankmill.trainer.growing.leaves import LeafRules
from rankmill.trainer.objectives.registry import criterion_of, objective_of, takes_exact_steps
from rankmill.trainer.team import Team
from tests.trainer.fixed import fixed
from tests.trainer.planted import rows_of, small_data

TOP = 8  # bins that the small cases use
# categories are not held back
FREE = {
    "category_l2": 0.0, "category_smoothing": 0.0, "min_rows_in_group": 0, "categories_in_set": 255, "one_vs_rest": 0,
}  # fmt: skip


def small_case(seed, n=40, n_features=5, missing=0.2):
    """Bins, and gradients that are multiples of 2^-10, so that fixed point holds them exactly and gains can be
    compared."""
    rng = np.random.default_rng(seed)
    bins = rng.integers(1, TOP, size=(n, n_features), dtype=np.uint8)
    bins[rng.random(bins.shape) < missing] = 0
    g = rng.integers(-1000, 1000, size=n) / 1024
    h = rng.integers(1, 500, size=n) / 1024
    return bins, g, h


def rules_of(**parameters):
    """Parameters where, unless said otherwise, any row may have a leaf of its own."""
    usual = {"min_rows_in_leaf": 1, "min_hessian_in_leaf": 0.0, "learning_rate": 1.0, **FREE}
    return fixed(**(usual | parameters))


def names_of(bins, made_from=()):
    return [f"f{number}" for number in range(bins.shape[1] - len(made_from))]


def grower_of(
    bins, team=None, *, n_bins=None, categorical=None, monotone=None, made_from=(), pool_bytes=2**30, **parameters
):
    """A grower of trees on ``bins`` (n, F); ``made_from``: the features that the last columns are made from."""
    given = rules_of(**parameters)
    n_bins = np.full(bins.shape[1], max(TOP, bins.max() + 1)) if n_bins is None else np.array(n_bins)
    layout = BlockedBins.from_batches([bins], len(bins), n_bins.astype(np.int32))
    controls = Controls.of(given, names_of(bins, made_from), made_from)
    return Grower(
        layout, given, team or Team(1), categorical=None if categorical is None else np.array(categorical),
        monotone=monotone, controls=controls, pool_bytes=pool_bytes,
    )  # fmt: skip


def grown(bins, g, h, team=None, *, scores=None, grow_with=None, **parameters):
    """One tree; its leaves are added to ``scores``.  ``grow_with`` are keywords of `Grower.grow`."""
    scores = np.zeros(len(g)) if scores is None else scores
    return grower_of(bins, team, **parameters).grow(g, h, scores, **(grow_with or {}))


def same(one, other):
    """Return whether two trees are equal to the bit."""
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in one.__slots__)


def bins_of(layout):
    """Return the bins of a layout, (n_rows, n_features)."""
    return np.concatenate(list(layout.batches(np.arange(layout.n_rows))))


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
    exact = takes_exact_steps(objective, given)
    for step in range(1, n_rounds + 1):
        objective.gradients(step, scores, g, h, team)
        pairs = objective.pair_hessians(step, scores, 0.0, team) if criterion == "ole" else None
        inside = partial(_inside, objective, step, scores, 0.5 * h.sum()) if exact else None
        for output in range(objective.n_outputs):
            slope, hessian, score = (a if objective.n_outputs == 1 else a[output] for a in (g, h, scores))
            tree = grower.grow(slope, hessian, score, weights=searched_by, pairs=pairs, leaves=LeafRules(inside))
            yield tree, bins, slope.copy(), hessian.copy(), searched_by
