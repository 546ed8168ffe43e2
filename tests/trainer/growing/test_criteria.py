"""Which criteria choose the same trees, and which do not (Xia, Zhai & Wang, section 3); which splits may stand."""

import numpy as np
import pytest

from rankmill.pipeline.bins.spec import BinSpec, feature_bins
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.protocol import PairHessians
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.team import Team
from tests.naive_growth import goes_left, nodes_of, wse_splits
from tests.trainer.fixed import fixed
from tests.trainer.growing.test_growth_by_definition import pairs_case
from tests.trainer.grown import grown, small_case, trees_of
from tests.trainer.objectives.loss_cases import derivatives
from tests.trainer.planted import fit, small_data

OF_LOSS = {"criterion": "ole", "ole_features": 0}


@pytest.mark.parametrize("seed", range(4))
def test_literal_weighted_squared_error_chooses_the_splits_of_its_robust_form(seed):
    bins, g, h = small_case(seed, n=30)
    errors = list(wse_splits(bins, g, h))
    best = min(error for error, _ in errors)
    assert fixed(criterion="wse").criterion == "rwse"
    tree = grown(bins, g, h, max_leaves=2, criterion="wse")
    chosen = goes_left(bins[:, tree.feature[0]], tree.threshold[0], tree.missing_left[0])
    assert any(np.array_equal(chosen, left) for error, left in errors if error <= best * (1 + 1e-9) + 1e-12)


@pytest.mark.parametrize("grow_with", [{}, {"max_leaves": 7}], ids=str)
def test_without_pairs_the_loss_chooses_trees_as_rwse_does(grow_with):
    """Theorem 1, tree for tree, by the search that counts pairs: a loss of single documents has none."""
    bins, g, h, _ = pairs_case(5, n=80)
    found = []
    none = PairHessians(np.zeros(1, np.int32), np.ones(1, np.int32), np.zeros(1))
    for given in ({}, {"pairs": none}):
        scores = np.zeros(80)
        tree = grown(bins, g, h, scores=scores, grow_with=given, **(OF_LOSS if given else {}), **grow_with)
        found.append((tree, scores))
    (one, scores), (other, others) = found
    assert one.gain == pytest.approx(other.gain, rel=1e-12)
    assert np.array_equal(scores, others)
    assert one.n_leaves > 4


def test_pairs_outside_the_sample_do_not_count():
    bins, g, h, pairs = pairs_case(3, n=60, query=12)
    rows = np.arange(24, 60, dtype=np.int32)  # whole queries
    tree = grown(bins, g, h, grow_with={"pairs": pairs, "rows": rows}, max_leaves=2, **OF_LOSS)
    own = pairs.first >= 24
    inside = PairHessians(pairs.first[own] - 24, pairs.second[own] - 24, pairs.hessian[own])
    alone = grown(bins[24:], g[24:], h[24:], grow_with={"pairs": inside}, max_leaves=2, **OF_LOSS)
    assert (tree.feature[0], tree.threshold[0]) == (alone.feature[0], alone.threshold[0])
    assert tree.gain[0] == pytest.approx(alone.gain[0], rel=1e-9)


def test_screening_searches_the_features_that_look_best():
    bins, g, h, pairs = pairs_case(2, n=300, n_features=6, query=20)
    given = {"grow_with": {"pairs": pairs}, "criterion": "ole", "max_leaves": 2}
    one, every, six = (grown(bins, g, h, ole_features=n, **given) for n in (1, 0, 6))
    plain = grown(bins, g, h, max_leaves=2)
    assert one.feature[0] == plain.feature[0]
    only = grown(bins[:, [one.feature[0]]], g, h, ole_features=0, **given)
    assert one.gain[0] == pytest.approx(only.gain[0], rel=1e-9)
    assert every.gain[0] == six.gain[0] >= one.gain[0]


@pytest.mark.parametrize("name", ["ranknet", "listnet"])
def test_splits_by_the_loss_end_with_a_lower_loss_than_those_by_squared_error(name):
    of_loss, of_squares = (
        fit(
            small_data(), objective=name, criterion=criterion, leaf="exact", n_rounds=60, max_leaves=10, ole_features=0,
            ole_pairs=0.0, watch=False, options={"eval_metrics": ["deviance"]},
        ).history[-1].train["deviance"]
        for criterion in ("ole", "se")
    )  # fmt: skip
    assert of_loss < of_squares


def test_all_criteria_choose_the_trees_of_mart():
    """Theorem 2: every h is the weight of the document."""
    weights = np.random.default_rng(3).integers(1, 4, size=len(small_data()[0][1])).astype(float)
    for of_rows in (None, weights):
        forests = [
            fit(small_data(), objective="l2", criterion=c, weights=of_rows, n_rounds=10, watch=False).forest
            for c in ("se", "rwse", "ole", "wse")
        ]
        for forest in forests[1:]:
            assert np.array_equal(forest.node_feature, forests[0].node_feature)
            assert np.array_equal(forest.node_value, forests[0].node_value)


def test_elsewhere_they_differ():
    trees = [
        fit(
            small_data(), objective="ranknet", criterion=c, n_rounds=3, ole_features=0, ole_pairs=0.0, watch=False
        ).forest.node_feature.tolist()
        for c in ("se", "rwse", "ole")
    ]
    assert trees[0] != trees[1]
    assert trees[1] != trees[2]


def test_the_three_documents_of_the_paper():
    """Xia et al., 3.2, example 3: RankBoost on d1 > d2 > d3, parted into {d1, d2} and {d3}."""
    scores = np.array([0.3, -0.2, 0.5])
    s1, s2, s3 = (np.exp(scores[b] - scores[a]) for a, b in ((0, 1), (0, 2), (1, 2)))
    rows = RankedRows(np.array([2, 1, 0], np.int32), np.array([0, 3]), ())
    objective = objective_of(rows, fixed(objective="rankboost"))
    g, h = derivatives(objective, scores)
    scale = h[0] / (s1 + s2)  # whatever a query is divided by
    assert g / scale == pytest.approx([-s1 - s2, s1 - s3, s2 + s3])
    assert h / scale == pytest.approx([s1 + s2, s1 + s3, s2 + s3])
    found = objective.pair_hessians(1, scores, 0.0, Team(1))
    pairs = list(zip(found.first.tolist(), found.second.tolist(), found.hessian.tolist(), strict=True))
    of_first_two = [c for a, b, c in pairs if (a, b) == (0, 1)]
    assert (h[0] + h[1] - 2 * sum(of_first_two)) / scale == pytest.approx(s2 + s3)
    assert h[2] / scale == pytest.approx(s2 + s3)
    assert (g[0] + g[1]) / scale == pytest.approx(-s2 - s3)
    assert (h[0] + h[1]) / scale == pytest.approx(2 * s1 + s2 + s3)  # what is added up document by document


def test_leaves_are_exact_where_splits_are_and_as_one_likes_elsewhere():
    def scores(**given):
        return fit(small_data(), objective="ranknet", n_rounds=2, watch=False, **given).forest.node_value

    assert np.array_equal(scores(criterion="ole"), scores(criterion="ole", leaf="exact"))
    assert not np.array_equal(scores(criterion="ole"), scores(criterion="ole", leaf="newton"))
    assert np.array_equal(scores(criterion="se"), scores(criterion="se", leaf="newton"))
    assert not np.array_equal(scores(criterion="se"), scores(criterion="se", leaf="exact"))


# -- admissible splits ------------------------------------------------------------------------------------------------


def binspec_of(x):
    return BinSpec(tuple(feature_bins(f"f{i}", x[:, i].copy()) for i in range(x.shape[1])))


def leaves_of(tree, bins):
    return [rows for node, rows in enumerate(nodes_of(tree, bins)) if tree.feature[node] < 0]


# -- the least sum of hessians -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "criterion"),
    [
        ("lambdamart", "rwse"),
        ("consistent_l2", "se"),
        ("bernoulli", "se"),
        ("ranknet", "ole"),
        ("stochasticrank", "rwse"),
    ],
)
def test_every_leaf_has_the_least_sum_of_hessians_by_every_criterion(name, criterion):
    bound, n_leaves = 5.0, 0
    for tree, bins, _, h, _ in trees_of(name, criterion, max_leaves=31, min_hessian_in_leaf=bound):
        if tree.n_leaves > 1:
            n_leaves += tree.n_leaves
            assert min(h[rows].sum() for rows in leaves_of(tree, bins)) >= bound * (1 - 1e-12)
    assert n_leaves > 3


@pytest.mark.parametrize(
    ("objective", "criterion", "leaf", "bound", "share"),
    [
        ("bernoulli", "rwse", "", 1e-3, 1.0),
        ("bernoulli", "se", "", 1.0, 0.97),
        ("ranknet", "rwse", "exact", 1.0, 0.5),
        ("ranknet", "se", "newton", 1e-3, 0.97),
        ("ranknet", "ole", "exact", 1e-3, 1.0),
        ("ranknet", "ole", "newton", 1.0, 0.5),
    ],
)
def test_offsets_that_are_confidently_wrong_give_sane_leaves(objective, criterion, leaf, bound, share):
    """Where h vanishes, no Newton step is longer than |G| / the least sum of h."""
    (x, grades, starts), watched, binspec = small_data()
    grades = np.minimum(grades, 1)
    wrong = np.repeat(np.random.default_rng(1).random(len(starts) - 1) < share, np.diff(starts))
    offsets = np.where(wrong, -40.0, 1.0) * (2.0 * grades - 1.0)
    for tree, bins, g, _, _ in trees_of(
        objective, criterion, ((x, grades, starts), watched, binspec), n_rounds=1, offsets=offsets, leaf=leaf,
        min_hessian_in_leaf=bound,
    ):  # fmt: skip
        for node, rows in enumerate(nodes_of(tree, bins)):
            if tree.feature[node] < 0:
                assert abs(tree.value[node]) <= 0.3 * abs(g[rows].sum()) / bound * (1 + 1e-9)


# -- gains that are nothing but rounding -----------------------------------------------------------------------------


def whole_numbers(seed, n=1500, n_features=6):
    return np.random.default_rng(seed).integers(0, 50, size=(n, n_features)).astype(np.float32)


def learn(x, y, **parameters):
    starts = np.arange(0, len(x) + 1, 30)
    given = {"objective": "l2", "n_rounds": 5, "max_leaves": 31, "watch": False, **parameters}
    return fit(((x, y.astype(np.int32), starts), None, binspec_of(x)), **given).forest


def splits_of(forest):
    """Return how many splits each tree has, and the features that are used."""
    inner = forest.node_feature >= 0
    trees = [int(part.sum()) for part in np.split(inner, forest.tree_starts[1:-1])]
    return trees, set(forest.node_feature[inner].tolist())


@pytest.mark.parametrize(
    "parameters",
    [
        {}, {"criterion": "se", "min_rows_in_leaf": 1}, {"lambda_l2": 1.0}, {"objective": "bernoulli"},
        {"objective": "huber"},
        {"grow": "oblivious"}, {"monotone": {"f2": 1}}, {"row_fraction": 0.7}, {"weights": "any"},
        {"weights": "by feature"},
    ],
    ids=str,
)  # fmt: skip
def test_labels_that_one_threshold_explains_are_split_once(parameters):
    x = whole_numbers(0)
    weights = {
        "any": np.random.default_rng(1).uniform(0.1, 3.0, len(x)),
        "by feature": np.where(x[:, 4] > 20, 1.0, 1 / 3),  # what is rounded differs with another feature
        None: None,
    }[parameters.get("weights")]
    trees, used = splits_of(learn(x, x[:, 2] > 30, **{**parameters, "weights": weights}))
    assert trees == [1] * 5
    assert used == {2}


@pytest.mark.parametrize("grow_so", ["best_first", "oblivious"])
def test_labels_that_two_features_explain_use_no_third(grow_so):
    x = whole_numbers(1)
    trees, used = splits_of(learn(x, (x[:, 2] > 30) + 2 * (x[:, 4] > 17), grow=grow_so))
    assert trees == [3] * 5
    assert used == {2, 4}


@pytest.mark.parametrize("steps", [3, 1000])
@pytest.mark.parametrize(("n", "weight"), [(100, 1 / 3), (3000, 1.0), (3000, 1 / 3)])
def test_small_gains_are_taken_down_to_the_packed_resolution(n, steps, weight):
    """A second feature that moves g by a few parts in 2 ** 31 / n of the mean |g| is found under the first one."""
    rng = np.random.default_rng(n)
    bins = rng.integers(1, 9, size=(n, 3)).astype(np.uint8)
    small = steps * n / 2.0**31
    g = weight * (np.where(bins[:, 0] > 4, 1.0, -1.0) + small * (bins[:, 1] > 6))
    h = np.full(n, weight)
    tree = grown(bins, g, h, max_leaves=4)
    assert sorted(tree.feature[tree.feature >= 0].tolist()) == [0, 1, 1]
    inner = tree.feature == 1
    assert set(tree.threshold[inner]) == {6}
    assert (tree.gain[inner] > 0).all()
    assert max(tree.gain[inner]) < 1e-6 * tree.gain[0] or steps == 1000
