"""Every split of a tree is the best one that its options permit: brute force over all splits, for every option and way to grow.

A node or, of an oblivious tree, a level is split so that the gain is greatest, of the splits that its rules permit.  Gains and
values of nodes follow from the rows by the formulas of the options; what features may be used, and which thresholds are tried,
follows from the path, or from random numbers written out by their definition.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from rankmill.trainer.growing.controls import Controls
from rankmill.trainer.growing.grower import Grower, SplitNoise
from rankmill.trainer.layout import BlockedBins
from rankmill.trainer.workers import Team
from tests import naive
from tests.naive_samples import bits_of, noisy, uniform_of
from tests.trainer.fixed import fixed
from tests.trainer.small_case import TOP, small_case
from tests.trainer.test_categories import FREE, set_of

KEY = 987654321
LEVEL, NODE, SPLIT = 1, 2, 3  # streams of a tree's draws
BY_NODE = ("best_first", "breadth_first", "depth_first")
NAMES = [f"f{number}" for number in range(5)]
GROUPS = [["f0", "f1"], ["f1", "f2", "f3"]]  # f4 is in none
N_BINS, CATEGORICAL = [9, 8, 12, 9], [False, True, True, False]  # of categories the last bin holds rare ones

OPTIONS = {
    "nothing": {},
    "lambda": {"lambda_l2": 0.75},
    "rows of leaves": {"min_rows_in_leaf": 6},
    "hessian of leaves": {"min_hessian_in_leaf": 2.5},
    "groups": {"interaction_constraints": GROUPS},
    "features of levels": {"feature_fraction_by_level": 0.6},
    "features of nodes": {"feature_fraction_by_node": 0.4},
    "features of levels and nodes": {"feature_fraction_by_level": 0.8, "feature_fraction_by_node": 0.5},
    "a feature of each node": {"feature_fraction_by_level": 0.01, "feature_fraction_by_node": 0.01},
    "random thresholds": {"extra_trees": True},
    "random thresholds, rows of leaves": {"extra_trees": True, "min_rows_in_leaf": 6},
    "weights": {"feature_weights": {"f0": 0.5, "f2": 3.0, "f3": 0.0}},
    "weights, rows of leaves": {"feature_weights": {"f0": 0.5, "f2": 3.0, "f3": 0.0}, "min_rows_in_leaf": 6},
    "l1": {"lambda_l1": 0.7},
    "steps": {"max_delta_step": 0.3},
    "smooth": {"path_smooth": 9.0},
    "all that holds values": {"lambda_l1": 0.4, "max_delta_step": 0.5, "path_smooth": 4.0, "lambda_l2": 0.5},
    "noise": {"noise": 2.0},
    "noise, lambda": {"noise": 2.0, "lambda_l2": 0.5},
    "noise, rows of leaves": {"noise": 2.0, "min_rows_in_leaf": 7},
}
FOR_CATEGORIES = (
    "nothing",
    "lambda",
    "rows of leaves",
    "groups",
    "weights",
    "l1",
    "steps",
    "smooth",
    "all that holds values",
)


def categories_case(seed, n=220):
    """Bins of two numbers and two categorical features that all matter, g and h that packed sums hold exactly."""
    rng = np.random.default_rng(seed)
    bins = np.stack([rng.integers(0, top, size=n) for top in N_BINS], axis=1).astype(np.uint8)
    hidden = sum((1 + CATEGORICAL[f]) * rng.normal(size=top)[bins[:, f]] for f, top in enumerate(N_BINS))
    return bins, np.round((hidden + rng.normal(size=n)) * 64) / 64, rng.integers(8, 72, size=n) / 64


class Case:
    """A tree that was grown, and its rules."""

    def __init__(self, bins, g, h, n_bins, categorical, *, noise=0.0, **options):
        self.bins, self.g, self.h, self.n_bins, self.categorical = bins, g, h, n_bins, categorical
        self.noise = SplitNoise(noise, np.uint64(12345), np.uint64(KEY))
        usual = {"min_rows_in_leaf": 1, "min_hessian_in_leaf": 0.0, "learning_rate": 1.0, **FREE}
        self.rules = fixed(**{**usual, **options})
        layout = BlockedBins.from_batches([bins], len(bins), np.array(n_bins, dtype=np.int32))
        controls = Controls.of(self.rules, NAMES[: bins.shape[1]])
        grower = Grower(layout, self.rules, Team(1), categorical=np.array(categorical), controls=controls)
        self.tree = grower.grow(g, h, np.zeros(len(g)), noise=self.noise)
        self.worth = {}
        self.rows, self.depth, self.path = {0: np.arange(len(bins))}, {0: 0}, {0: frozenset()}
        for node in np.flatnonzero(self.tree.feature >= 0).tolist():  # a parent comes before its children
            left = self.goes_left(node)
            for child, of_child in ((self.tree.left[node], left), (self.tree.right[node], ~left)):
                self.rows[int(child)] = self.rows[node][of_child]
                self.depth[int(child)] = self.depth[node] + 1
                self.path[int(child)] = self.path[node] | {int(self.tree.feature[node])}

    def goes_left(self, node):
        tree, feature = self.tree, self.tree.feature[node]
        column = self.bins[self.rows[node], feature]
        if not self.categorical[feature]:
            return naive.goes_left(column, tree.threshold[node], tree.missing_left[node])
        return np.isin(column, list(set_of(tree, node)))

    def value(self, rows, above):
        """Return the value of a node, of one that is too small that of its parent, ``above``; None for the root."""
        r = self.rules
        if above is not None and (len(rows) < max(1, r.min_rows_in_leaf) or self.h[rows].sum() < r.min_hessian_in_leaf):
            return above
        return self.of_sums(self.g[rows].sum(), self.h[rows].sum(), len(rows) / (r.path_smooth or 1.0), above)

    def of_sums(self, g, h, share, above):
        r = self.rules
        value = -np.sign(g) * max(abs(g) - r.lambda_l1, 0.0) / (h + r.lambda_l2)
        if r.max_delta_step:
            value = np.clip(value, -r.max_delta_step, r.max_delta_step)
        if r.path_smooth and above is not None:
            value = value * share / (share + 1) + above / (share + 1)  # as LightGBM
        return value

    def gain(self, rows, left, own):
        """Return the gain of a split of ``rows`` with the value ``own``; 0 if a side is too small."""
        r, sides = self.rules, (left, ~left)
        if min(side.sum() for side in sides) < max(1, r.min_rows_in_leaf):
            return 0.0
        g, h = self.g[rows], self.h[rows]
        if min(h[side].sum() for side in sides) < r.min_hessian_in_leaf:
            return 0.0

        def loss(g, h, value):
            return 2.0 * np.sign(g) * max(abs(g) - r.lambda_l1, 0.0) * value + (h + r.lambda_l2) * value**2

        gain = loss(g.sum(), h.sum(), own)
        for side in sides:
            share = len(rows) * h[side].sum() / h.sum() / (r.path_smooth or 1.0)  # rows are estimated by the hessian
            gain -= loss(g[side].sum(), h[side].sum(), self.of_sums(g[side].sum(), h[side].sum(), share, own))
        return gain

    def features(self, node):
        """Return the features that a node may be split by."""
        found, r = list(range(self.bins.shape[1])), self.rules
        if r.interaction_constraints:
            groups = [{NAMES.index(name) for name in group} for group in r.interaction_constraints]
            path = self.path[node]
            found = [f for f in found if path <= {f} or any(path | {f} <= group for group in groups)]
        for fraction, *stream in (
            (r.feature_fraction_by_level, LEVEL, self.depth[node]), (r.feature_fraction_by_node, NODE, node),
        ):  # fmt: skip
            if fraction < 1.0:
                found.sort(key=lambda f, stream=stream: bits_of(KEY, *stream, f))
                found = sorted(found[: max(1, round(fraction * len(found)))])
        return found

    def ways(self, nodes, f):
        """Yield (threshold, rows on the left for each of ``nodes``) of the splits by a feature that are tried."""
        columns = [self.bins[self.rows[node], f] for node in nodes]
        if self.categorical[f]:
            (rows,) = (self.rows[node] for node in nodes)
            yield from (
                (0, [left]) for _, left in naive.sets_in_order(columns[0], self.n_bins[f], self.g[rows], self.h[rows])
            )
            return
        thresholds = range(1, self.n_bins[f])
        if self.rules.extra_trees:  # one, between the bins that the rows have
            column = np.concatenate(columns)
            present = column[column > 0]
            if not len(present):
                return
            first, end = int(present.min()), int(present.max()) + int((column == 0).any())
            drawn = first + int(uniform_of(bits_of(KEY, SPLIT, nodes[0], f)) * (end - first))
            thresholds = [min(drawn, end - 1)] if first < end else []
        for threshold in thresholds:
            for missing_left in (False, True):
                yield threshold, [naive.goes_left(column, threshold, missing_left) for column in columns]

    def check_split(self, nodes, values):
        """Check that ``nodes``, one or those of a level, have the best split; return whether noise or weights changed it."""
        gains, best, tree, first = [], {}, self.tree, nodes[0]
        for f in self.features(first):
            for threshold, lefts in self.ways(nodes, f):
                parts = zip(nodes, lefts, strict=True)
                gain = sum(self.gain(self.rows[node], left, values[node]) for node, left in parts)
                gains.append((gain, f, threshold))
                best[f] = max(gain, best.get(f, 0.0))
        squares = (
            self.g[rows].sum() ** 2 / (self.h[rows].sum() + self.rules.lambda_l2)
            for rows in map(self.rows.get, nodes)
            if len(rows)
        )
        score, deviation = sum(squares), self.noise.strength * np.sqrt((self.g**2).sum() / self.h.sum())

        def worth(f, gain):
            gain *= (self.rules.feature_weights or {}).get(NAMES[f], 1.0)
            return noisy(gain, score, deviation, int(self.noise.key), first, f) if self.noise.strength else gain

        chosen, found = int(tree.feature[first]), tree.gain[list(nodes)].sum()
        assert found == pytest.approx(best[chosen], rel=1e-9, abs=1e-12)  # the true one
        assert worth(chosen, found) == pytest.approx(
            max(worth(f, best[f]) for f in best if best[f] > 1e-12 or f == chosen), rel=1e-9, abs=1e-12
        )
        threshold = 0 if self.categorical[chosen] else tree.threshold[first]
        assert any(f == chosen and b == threshold and gain > found * (1 - 1e-9) - 1e-12 for gain, f, b in gains)
        self.worth[first] = worth(chosen, found)
        return found < max(best.values()) * (1 - 1e-9)

    def check(self):
        """Check all splits and values; return how many splits are not those of the greatest gain."""
        tree, values = self.tree, {0: self.value(self.rows[0], None)}
        splits = np.flatnonzero(tree.feature >= 0).tolist()
        for node in splits:
            for child in (int(tree.left[node]), int(tree.right[node])):
                values[child] = self.value(self.rows[child], values[node])
        for node, value in values.items():
            assert tree.value[node] == pytest.approx(value, rel=1e-9, abs=1e-12)
        groups = [[node] for node in splits]
        if self.rules.grow == "oblivious":
            groups = [[node for node in splits if self.depth[node] == level] for level in range(3)]
        others = sum(self.check_split(nodes, values) for nodes in groups if nodes)
        for node, other in (
            permutations(splits, 2) if self.rules.grow == "best_first" and not self.noise.strength else ()
        ):
            if tree.left[node] < tree.left[other] and other < tree.left[node]:  # which was there already
                assert self.worth[node] >= self.worth[other] - 1e-9
        return others


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("grow", [*BY_NODE, "oblivious"])
def test_splits_and_values_are_those_of_the_definition(options, grow):
    given = {"grow": grow, **({"max_depth": 3} if grow == "oblivious" else {"max_leaves": 9}), **OPTIONS[options]}
    if grow == "oblivious" and "feature_fraction_by_node" in given:
        return  # refused
    others = 0
    for seed in range(4):
        case = Case(*small_case(seed, n=70), [TOP] * 5, [False] * 5, **given)
        assert case.tree.n_leaves > 2
        others += case.check()
    assert (others > 0) == ("noise" in options or "weights" in options)


@pytest.mark.parametrize("options", FOR_CATEGORIES)
@pytest.mark.parametrize("grow", BY_NODE)
def test_splits_by_categories_are_those_of_the_definition(options, grow):
    for seed in range(3):
        case = Case(*categories_case(seed), N_BINS, CATEGORICAL, grow=grow, max_leaves=7, **OPTIONS[options])
        assert {1, 2} & set(case.tree.feature.tolist())
        case.check()
