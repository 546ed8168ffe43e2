"""Splits by the loss itself (criterion ole) against every split tried by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rankmill.trainer.growing.grower import Grower, LeafRules
from rankmill.trainer.layout import BlockedBins
from rankmill.trainer.objectives.protocol import PairHessians
from rankmill.trainer.workers import Team, with_team
from tests import naive_ole
from tests.trainer.fixed import fixed


def pairs_case(seed, n=40, n_features=5, top=8, missing=0.2, query=10):
    """Bins, and pairs within queries with forces and hessians that fixed point holds exactly."""
    rng = np.random.default_rng(seed)
    bins = rng.integers(1, top, size=(n, n_features), dtype=np.uint8)
    bins[rng.random(bins.shape) < missing] = 0
    g, h = np.zeros(n), np.zeros(n)
    pairs = []
    for first in range(0, n, query):
        for a in range(first, min(n, first + query)):
            for b in range(a + 1, min(n, first + query)):
                if rng.random() < 0.5:
                    force, c = rng.integers(-500, 500) / 1024, rng.integers(1, 300) / 1024
                    pairs.append((a, b, c))
                    g[[a, b]] += force, -force
                    h[[a, b]] += c
    return bins, g, h, pairs


def hessians_of(pairs):
    first, second, c = (np.array(column) for column in zip(*pairs, strict=True))
    return PairHessians(first.astype(np.int32), second.astype(np.int32), c)


def grow(bins, g, h, pairs, team=None, *, exact_leaves=False, rows=None, **parameters):
    defaults = {
        "min_rows_in_leaf": 1, "min_hessian_in_leaf": 0.0, "learning_rate": 1.0, "ole_features": 0, "criterion": "ole",
    }  # fmt: skip
    layout = BlockedBins.from_batches([bins], len(bins), np.full(bins.shape[1], 256, dtype=np.int32))
    scores = np.zeros(len(g))
    grower = Grower(layout, fixed(**{**defaults, **parameters}), team or Team(1))
    found = hessians_of(pairs)

    def inside(leaf_of_row, n_leaves):
        return np.array([sum(c for a, b, c in pairs if leaf_of_row[a] == leaf_of_row[b] == k) for k in range(n_leaves)])

    tree = grower.grow(g, h, scores, pairs=found, leaves=LeafRules(inside if exact_leaves else None), rows=rows)
    return tree, scores


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("options", [{}, {"lambda_l2": 0.75}, {"min_rows_in_leaf": 6}])
def test_the_first_split_is_the_best_of_all(seed, options):
    case = pairs_case(seed)
    bins = case[0]
    expected = sorted(
        naive_ole.splits(*case, lambda_l2=options.get("lambda_l2", 0.0), min_rows=options.get("min_rows_in_leaf", 1)),
        key=lambda split: (-split[0], split[1], split[2], split[3]),
    )
    tree, _ = grow(*case, max_leaves=2, **options)
    best = expected[0][0]
    assert tree.gain[0] == pytest.approx(best, rel=1e-9)
    # one of those that are as good
    split = (tree.feature[0], tree.threshold[0], bool(tree.missing_left[0]))
    found = naive_ole.sides(bins, range(len(bins)), *split)
    alike = [naive_ole.sides(bins, range(len(bins)), *rest) for gain, *rest in expected if gain > best * (1 - 1e-9)]
    assert found in alike


@pytest.mark.parametrize("seed", range(10))
def test_a_whole_tree_is_that_of_best_first_growth_by_hand(seed):
    bins, g, h, pairs = pairs_case(seed, n=60, query=12)
    leaves, gains = [list(range(60))], []
    while len(leaves) < 6:
        best = [max(naive_ole.splits(bins, g, h, pairs, leaf), default=(0.0,)) for leaf in leaves]
        at = max(range(len(leaves)), key=lambda i: best[i][0])
        gain, *split = max(
            naive_ole.splits(bins, g, h, pairs, leaves[at]), key=lambda s: (s[0], -s[1], -s[2], not s[3])
        )
        gains.append(gain)
        leaves[at : at + 1] = [sorted(side) for side in naive_ole.sides(bins, leaves[at], *split)]
    tree, scores = grow(bins, g, h, pairs, max_leaves=6)
    assert sorted(tree.gain[tree.gain > 0]) == pytest.approx(sorted(gains), rel=1e-9)
    for leaf in leaves:  # steps are Newton's, of h document by document
        expected = -g[leaf].sum() / h[leaf].sum() if h[leaf].sum() else 0.0
        assert scores[leaf] == pytest.approx(expected, rel=1e-9, abs=1e-12)
    exact, scores = grow(bins, g, h, pairs, max_leaves=6, exact_leaves=True)
    assert np.array_equal(exact.feature, tree.feature)
    for leaf in leaves:
        hessian = naive_ole.exact_hessian(set(leaf), h, pairs)
        expected = -g[leaf].sum() / hessian if hessian > 1e-6 else 0.0
        assert scores[leaf] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_pairs_outside_the_sample_do_not_count():
    bins, g, h, pairs = pairs_case(3, n=60, query=12)
    rows = np.arange(24, 60, dtype=np.int32)  # whole queries
    tree, _ = grow(bins, g, h, pairs, rows=rows, max_leaves=2)
    inside = [(a, b, c) for a, b, c in pairs if a >= 24]
    best = max(naive_ole.splits(bins, g, h, inside, rows.tolist()))
    assert tree.gain[0] == pytest.approx(best[0], rel=1e-9)


def test_without_pairs_it_is_rwse():
    bins, g, h, _ = pairs_case(5)
    none = [(0, 1, 0.0)]
    tree, scores = grow(bins, g, h, none, max_leaves=7)
    other, others = grow_plainly(bins, g, h, max_leaves=7)
    assert tree.gain == pytest.approx(other.gain, rel=1e-12)
    assert np.array_equal(scores, others)


def grow_plainly(bins, g, h, **parameters):
    layout = BlockedBins.from_batches([bins], len(bins), np.full(bins.shape[1], 256, dtype=np.int32))
    scores = np.zeros(len(g))
    given = {"min_rows_in_leaf": 1, "min_hessian_in_leaf": 0.0, "learning_rate": 1.0, **parameters}
    return Grower(layout, fixed(**given), Team(1)).grow(g, h, scores), scores


@pytest.mark.parametrize("n_threads", [2, 3])
@pytest.mark.parametrize("many", [0, 2])
def test_threads_do_not_change_a_bit(n_threads, many):
    case = pairs_case(8, n=3000, n_features=19, query=30)
    options = {"ole_features": many, "max_leaves": 20, "min_rows_in_leaf": 20}
    alone = grow(*case, **options)
    together = with_team(n_threads, lambda team: grow(*case, team=team, **options))
    assert np.array_equal(alone[1], together[1])
    for name in ("feature", "threshold", "missing_left", "value", "gain"):
        assert np.array_equal(getattr(alone[0], name), getattr(together[0], name))
    assert (alone[0].rows >= 20).all()
    assert alone[0].n_leaves > 10


def test_screening_searches_the_features_that_look_best():
    case = pairs_case(2, n=300, n_features=6, query=20)
    one, _ = grow(*case, ole_features=1, max_leaves=2)
    plain, _ = grow_plainly(*case[:3], max_leaves=2)
    assert one.feature[0] == plain.feature[0]
    best = max(split for split in naive_ole.splits(*case) if split[1] == one.feature[0])
    assert one.gain[0] == pytest.approx(best[0], rel=1e-9)
    every, _ = grow(*case, max_leaves=2)
    six, _ = grow(*case, ole_features=6, max_leaves=2)
    assert every.gain[0] == six.gain[0] >= one.gain[0]
