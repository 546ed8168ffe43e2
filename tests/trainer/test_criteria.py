"""Which criteria choose the same trees, and which do not (Xia, Zhai & Wang, section 3)."""

from __future__ import annotations

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.trainer.objectives.protocol import PairHessians
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.workers import Team
from tests.naive_growth import goes_left, wse_splits
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.grown import grown, small_case
from tests.trainer.planted import fit, small_data
from tests.trainer.test_growth_by_definition import pairs_case


def gradients(objective, scores, step=1):
    g, h = np.empty(len(scores)), np.empty(len(scores))
    objective.gradients(step, scores, g, h, Team(1))
    return g, h


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
    g, h = gradients(objective, scores)
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


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"criterion": "ole", "grow": "oblivious", "objective": "ranknet"}, ("'ole'", "'oblivious'")),
        ({"criterion": "ole", "monotone": {"f0": 1}}, ("monotone", "criterion")),
        ({"criterion": "rwse", "objective": "laplace"}, ("'rwse'", "laplace", "se")),
        ({"leaf": "exact", "objective": "laplace"}, ("leaf 'exact'", "laplace")),
        ({"criterion": "olé"}, ("criterion", "'olé'", "'ole'")),
        ({"leaf": "newtn"}, ("leaf", "newtn", "newton")),
        ({"ole_features": -1}, ("ole_features", "0")),
        ({"ole_pairs": -1.0}, ("ole_pairs", "0")),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(parameters, message):
    with refused(InvalidParameter, message):
        fit(small_data(), n_rounds=1, **parameters)


def test_leaves_are_exact_where_splits_are_and_as_one_likes_elsewhere():
    def scores(**given):
        return fit(small_data(), objective="ranknet", n_rounds=2, watch=False, **given).forest.node_value

    assert np.array_equal(scores(criterion="ole"), scores(criterion="ole", leaf="exact"))
    assert not np.array_equal(scores(criterion="ole"), scores(criterion="ole", leaf="newton"))
    assert np.array_equal(scores(criterion="se"), scores(criterion="se", leaf="newton"))
    assert not np.array_equal(scores(criterion="se"), scores(criterion="se", leaf="exact"))
