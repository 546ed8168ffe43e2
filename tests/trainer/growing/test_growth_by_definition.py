"""Every split of a tree is the best one that its options permit: one oracle, for a table of options, kinds of rows and
ways to grow."""

import numpy as np
import pytest

from rankmill.trainer.growing.grower import SplitNoise
from rankmill.trainer.growing.leaves import LeafRules
from rankmill.trainer.objectives.protocol import PairHessians
from tests.naive_growth import Growth
from tests.trainer.grown import TOP, grown, names_of, rules_of, small_case

KEY = 987654321
BY_NODE = ("best_first", "breadth_first", "depth_first")
GROUPS = [["f0", "f1"], ["f1", "f2", "f3"]]  # f4 is in none
N_BINS, CATEGORICAL = [9, 8, 12, 9], [False, True, True, False]  # of categories the last bin holds rare ones
HELD = {"lambda_l1": 0.4, "max_delta_step": 0.5, "path_smooth": 4.0, "lambda_l2": 0.5}
OF_FEATURES = {"feature_weights": {"f0": 0.5, "f2": 3.0, "f3": 0.0}}

# options, and the kinds of rows that they are tried on besides plain ones
TABLE = {
    "nothing": ({}, "uneven", "weights", "pairs", "exact", "categories", "directions"),
    "lambda": ({"lambda_l2": 0.75}, "uneven", "pairs", "categories", "exact"),
    "rows of leaves": ({"min_rows_in_leaf": 6}, "uneven", "weights", "pairs", "categories"),
    "hessian of leaves": ({"min_hessian_in_leaf": 2.5}, "weights"),
    "rows and hessian of leaves": ({"min_rows_in_leaf": 5, "min_hessian_in_leaf": 1.5}, "uneven", "weights"),
    "groups": ({"interaction_constraints": GROUPS}, "categories"),
    "features of levels": ({"feature_fraction_by_level": 0.6},),
    "features of nodes": ({"feature_fraction_by_node": 0.4},),
    "features of levels and nodes": ({"feature_fraction_by_level": 0.8, "feature_fraction_by_node": 0.5},),
    "a feature of each node": ({"feature_fraction_by_level": 0.01, "feature_fraction_by_node": 0.01},),
    "random thresholds": ({"extra_trees": True},),
    "random thresholds, rows of leaves": ({"extra_trees": True, "min_rows_in_leaf": 6},),
    "features weigh": (OF_FEATURES, "categories"),
    "features weigh, rows of leaves": ({**OF_FEATURES, "min_rows_in_leaf": 6},),
    "l1": ({"lambda_l1": 0.7}, "categories"),
    "steps": ({"max_delta_step": 0.3}, "categories"),
    "smooth": ({"path_smooth": 9.0}, "categories"),
    "all that holds values": (HELD, "categories"),
    "noise": ({"noise": 2.0},),
    "noise, lambda": ({"noise": 2.0, "lambda_l2": 0.5},),
    "noise, rows of leaves": ({"noise": 2.0, "min_rows_in_leaf": 7},),
}
ALL_WAYS = ("nothing", "rows of leaves", "features of nodes", "features weigh", "l1")  # the others: two ways to grow


def categories_case(seed, n=220):
    """Bins of two numbers and two categorical features that all matter, g and h that packed sums hold exactly."""
    rng = np.random.default_rng(seed)
    bins = np.stack([rng.integers(0, top, size=n) for top in N_BINS], axis=1).astype(np.uint8)
    hidden = sum((1 + CATEGORICAL[f]) * rng.normal(size=top)[bins[:, f]] for f, top in enumerate(N_BINS))
    return bins, np.round((hidden + rng.normal(size=n)) * 64) / 64, rng.integers(8, 72, size=n) / 64


def pairs_case(seed, n=40, n_features=5, query=10):
    """Bins, and pairs within queries with forces and hessians that fixed point holds exactly: (bins, g, h, pairs)."""
    rng = np.random.default_rng(seed)
    bins, _, _ = small_case(seed, n, n_features)
    first, second = np.triu_indices(n, 1)
    chosen = (first // query == second // query) & (rng.random(len(first)) < 0.5)
    first, second = first[chosen].astype(np.int32), second[chosen].astype(np.int32)
    force, c = rng.integers(-500, 500, len(first)) / 1024, rng.integers(1, 300, len(first)) / 1024
    g = np.bincount(first, force, n) - np.bincount(second, force, n)
    return bins, g, np.bincount(first, c, n) + np.bincount(second, c, n), PairHessians(first, second, c)


def inside_of(pairs):
    """Return the rule of exact leaves for these pairs."""

    def inside(leaf_of_row, n_leaves):
        leaf = leaf_of_row[pairs.first]
        own = (leaf >= 0) & (leaf == leaf_of_row[pairs.second])
        return np.bincount(leaf[own], pairs.hessian[own], n_leaves)

    return LeafRules(inside)


def check(kind, grow, seed, *, noise=0.0, **options):
    """Grow a tree on rows of this kind and hold it against the oracle."""
    bins, g, h = small_case(seed, n=70)
    rng, grow_with, twin, given = np.random.default_rng(seed), {}, {}, {}
    shape = {"max_depth": 3} if grow == "oblivious" else {"max_leaves": 9}
    n_bins = [TOP] * 5
    if kind == "uneven":  # rows that weigh very differently hide what a sum of hessians says of their number
        h = rng.integers(1, 2000, size=70) ** 2 / 2**22
    elif kind == "weights":  # by squared error
        h, weights = rng.integers(1, 2000, size=70) / 2**8, rng.integers(1, 500, size=70) / 1024
        grow_with["weights"] = twin["weights"] = weights
    elif kind in {"pairs", "exact"}:
        bins, g, h, pairs = pairs_case(seed, n=48, query=12)
        grow_with["pairs"], given = pairs, {"criterion": "ole", "ole_features": 0}
        twin = {"pairs": (pairs.first, pairs.second, pairs.hessian), "exact": kind == "exact"}
        if kind == "exact":
            grow_with["leaves"] = inside_of(pairs)
    elif kind == "categories":
        (bins, g, h), n_bins = categories_case(seed), N_BINS
        twin["categorical"] = given["categorical"] = CATEGORICAL
    elif kind == "directions":  # only the root: below it, what is permitted follows from the leaves beside
        shape, twin["directions"] = {"max_leaves": 2}, np.array([1, -1, 1, -1, 1])
        given["monotone"] = twin["directions"].astype(np.int8)
    drawn = SplitNoise(noise, np.uint64(12345), np.uint64(KEY))
    own = {"grow": grow, **shape, **options}
    tree = grown(bins, g, h, n_bins=n_bins, grow_with={"noise": drawn, **grow_with}, **own, **given)
    rules = rules_of(**own, **{name: value for name, value in given.items() if name not in {"categorical", "monotone"}})
    twin = Growth(tree, bins, g, h, rules, n_bins, names=names_of(bins), noise=(noise, 12345), tree_key=KEY, **twin)
    assert tree.n_leaves > (1 if kind == "directions" else 2)
    assert kind != "categories" or {1, 2} & set(tree.feature.tolist())
    return twin.check()


PLAIN = [
    (name, grow)
    for name, (given, *_) in TABLE.items()
    for grow in (*BY_NODE, "oblivious")
    if (name in ALL_WAYS or grow in {"best_first", "oblivious"})
    and not (grow == "oblivious" and "feature_fraction_by_node" in given)  # refused
]
OTHER = [(name, kind) for name, (_, *kinds) in TABLE.items() for kind in kinds]


@pytest.mark.parametrize(("name", "grow"), PLAIN)
def test_splits_values_and_their_order_are_those_of_the_definition(name, grow):
    others = sum(check("plain", grow, seed, **TABLE[name][0]) for seed in range(3))
    assert (others > 0) == ("noise" in name or "weigh" in name)


@pytest.mark.parametrize(("name", "kind"), OTHER)
def test_so_they_are_for_other_kinds_of_rows(name, kind):
    ways = ("best_first", "oblivious") if kind in {"uneven", "weights"} else ("best_first",)
    for grow, seed in [(grow, seed) for grow in ways for seed in range(3)]:
        check(kind, grow, seed, **TABLE[name][0])
