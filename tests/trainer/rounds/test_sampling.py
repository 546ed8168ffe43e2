"""What is drawn for each tree, rows, features and weights, by queries or documents, and what leaf values are computed
from."""

import itertools

import numpy as np
import pytest

from rankmill.trainer.growing.leaves import LeafRules
from rankmill.trainer.rounds.sampling import BootstrapWeights, RoundSample, Sampler, chances_of
from rankmill.trainer.team import Team
from tests.naive_growth import nodes_of
from tests.naive_samples import bayesian_weight, bits_of, chances, one_sided
from tests.trainer.fixed import fixed
from tests.trainer.grown import grower_of, small_case
from tests.trainer.planted import fit, small_data

STARTS = np.array([0, 3, 3, 10, 40, 41, 100])
WHOLE = RoundSample(None, None)


def draw(step, g, h=None, starts=STARTS, **parameters):
    h = np.ones_like(g) if h is None else h
    return BootstrapWeights(starts, fixed(**parameters), Team(1)).drawn(WHOLE, step, g, h)


# -- plain samples ---------------------------------------------------------------------------------------------------


def test_samples_have_their_size_and_whole_queries():
    sampler = Sampler(STARTS, 10, fixed(query_fraction=0.5, feature_fraction=0.25))
    for round_number in range(1, 20):
        sample = sampler.draw(round_number)
        drawn = set(sample.rows.tolist())
        assert sample.rows.tolist() == sorted(drawn)
        queries = [set(range(a, b)) for a, b in itertools.pairwise(STARTS) if a < b]
        assert all(rows <= drawn or not rows & drawn for rows in queries)
        assert sum(rows <= drawn for rows in queries) in {2, 3}  # three of six queries, one of which is empty
        assert sample.features.sum() == 2
    assert Sampler(STARTS, 10, fixed()).draw(1) == WHOLE
    least = Sampler(STARTS, 10, fixed(row_fraction=1e-9, feature_fraction=1e-9)).draw(1)
    assert len(least.rows) == least.features.sum() == 1


def test_rows_are_drawn_of_the_drawn_queries_evenly_and_differ_from_round_to_round():
    sampler = Sampler(STARTS, 10, fixed(row_fraction=0.3, query_fraction=0.999))
    counts = np.zeros(100)
    for round_number in range(1, 401):
        rows = sampler.draw(round_number).rows
        assert len(rows) == 30
        counts[rows] += 1
    assert abs(counts.mean() - 120) < 1e-9
    assert counts.std() < 2 * np.sqrt(400 * 0.3 * 0.7)
    assert np.array_equal(sampler.draw(7).rows, sampler.draw(7).rows)
    assert not np.array_equal(sampler.draw(7).rows, sampler.draw(8).rows)
    other = Sampler(STARTS, 10, fixed(row_fraction=0.3, seed=8))
    assert not np.array_equal(other.draw(7).rows, sampler.draw(7).rows)


# -- bayesian --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("temperature", "by"), [(0.0, "query"), (0.3, "document"), (4.0, "query")])
def test_weights_are_powers_of_exponential_numbers_of_seed_step_and_number(temperature, by):
    drawn = draw(
        4, np.ones(100), bootstrap="bayesian", bootstrap_by=by, bagging_temperature=temperature, seed=11
    ).weights
    numbers = np.repeat(np.arange(6), np.diff(STARTS)) if by == "query" else np.arange(100)
    assert drawn == pytest.approx([bayesian_weight(11, 4, int(n), temperature) for n in numbers], rel=1e-8)


def test_the_weight_of_a_query_depends_on_its_number_alone():
    given = {"bootstrap": "bayesian"}
    rng = np.random.default_rng(1)
    one = draw(2, rng.normal(size=100), rng.random(100), **given).weights
    other = draw(2, rng.normal(size=20), rng.random(20), starts=np.array([0, 7, 9, 20]), **given).weights
    assert [one[0], one[3]] == [other[0], other[9]]
    assert one[0] != draw(3, np.ones(100), **given).weights[0]
    assert one[0] != draw(2, np.ones(100), seed=8, **given).weights[0]


# -- minimal-variance sampling ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [0.05, 0.8, 0.99])
def test_chances_are_proportional_to_sizes_up_to_1_and_add_up_to_the_fraction(fraction):
    for seed in range(4):
        sizes = np.random.default_rng(seed).lognormal(sigma=2.0, size=50)
        found = chances_of(sizes, fraction)
        assert found == pytest.approx(chances(sizes, fraction), rel=1e-9)
        assert found.sum() == pytest.approx(fraction * 50)
        assert np.all(np.diff(found[np.argsort(sizes)]) >= 0)


def test_what_draws_nothing_changes_nothing_and_goss_has_all_of_one_or_two():
    usual = fit(small_data(), n_rounds=4).forest
    for given in ({"bootstrap": "bayesian", "bagging_temperature": 0.0}, {"leaf_rows": "all"}):
        assert np.array_equal(usual.node_value, fit(small_data(), n_rounds=4, **given).forest.node_value)
    assert draw(1, np.ones(100), bootstrap="mvs") is WHOLE
    for n in (1, 2):
        given = {"bootstrap": "goss", "bootstrap_by": "document", "starts": np.array([0, n])}
        assert draw(1, np.ones(n), **given).weights.tolist() == [1.0] * n


def test_chances_of_sizes_of_0_and_of_equal_sizes():
    assert chances_of(np.array([0.0, 0.0, 5.0, 1.0]), 0.75).tolist() == [0, 0, 1, 0.5]  # half of those with a size
    assert chances_of(np.array([0.0, 5.0, 1.0]), 1.0).tolist() == [0, 1, 1]
    assert chances_of(np.zeros(4), 0.5).tolist() == [0, 0, 0, 0]
    assert chances_of(np.ones(4), 0.5).tolist() == [0.5] * 4
    assert chances_of(np.ones(4), 1e-9).sum() == pytest.approx(4e-9)


@pytest.mark.parametrize("by", ["query", "document"])
def test_weighted_sums_are_right_on_average_and_the_rate_is_met(by):
    rng = np.random.default_rng(3)
    starts = np.arange(0, 201, 4)
    g, h = rng.lognormal(sigma=2.0, size=200) * rng.choice([-1, 1], 200), rng.random(200)
    fraction = {"query_fraction": 0.3} if by == "query" else {"row_fraction": 0.3}
    n, rounds = (50 if by == "query" else 200), 1500
    sums, many = [], []
    for step in range(1, rounds + 1):
        drawn = draw(step, g, h, starts=starts, bootstrap="mvs", bootstrap_by=by, **fraction)
        sums.append((drawn.weights @ g, drawn.weights @ h))
        many.append(len(drawn.rows) / (4 if by == "query" else 1))
        assert np.array_equal(np.flatnonzero(drawn.weights), drawn.rows)
        assert drawn.weights[drawn.rows].min() >= 1.0
        assert by == "query" or drawn.weights[np.argmax(np.abs(g))] == 1.0  # what is largest is always drawn
    far = abs(np.mean(sums, axis=0) - [g.sum(), h.sum()]) / (np.std(sums, axis=0) / np.sqrt(rounds))
    assert far.max() < 4
    assert np.mean(many) == pytest.approx(0.3 * n, abs=4 * np.std(many) / np.sqrt(rounds))


def test_a_sample_is_never_empty_and_does_not_depend_on_the_scale_of_the_loss():
    rng = np.random.default_rng(5)
    g, h = rng.normal(size=100), rng.random(100)
    given = {"bootstrap": "mvs", "bootstrap_by": "document"}
    assert len(draw(1, g, h, row_fraction=1e-9, **given).rows) == 1
    one, other = (draw(1, g * f, h * f, row_fraction=0.4, **given) for f in (1.0, 2.0**30))
    assert np.array_equal(one.weights, other.weights)


# -- gradient-based one-side sampling --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("rates", [(0.2, 0.1), (0.05, 0.5), (0.6, 0.4), (0.001, 0.001)], ids=str)
@pytest.mark.parametrize("by", ["query", "document"])
def test_goss_keeps_the_largest_gradients_and_draws_from_the_others(seed, rates, by):
    rng = np.random.default_rng(seed)
    g = np.round(rng.normal(size=100), 1)  # with ties
    drawn = draw(5, g, bootstrap="goss", bootstrap_by=by, top_rate=rates[0], other_rate=rates[1], seed=seed)
    whole = list(itertools.pairwise(STARTS)) if by == "query" else [(i, i + 1) for i in range(100)]
    sizes = [sum(each * each for each in g[first:last]) for first, last in whole]
    top, other = (max(1, round(rate * len(sizes))) for rate in rates)
    keys = [bits_of(seed, 6, 5, i) for i in range(len(sizes))]
    weights = one_sided(sizes, keys, top, min(other, len(sizes) - top))
    assert drawn.weights.tolist() == np.repeat(weights, [last - first for first, last in whole]).tolist()
    assert np.array_equal(drawn.rows, np.flatnonzero(drawn.weights))


def test_sums_of_what_goss_draws_are_right_on_average():
    rng = np.random.default_rng(3)
    g, h = rng.lognormal(sigma=2.0, size=200) * rng.choice([-1, 1], 200), rng.random(200)
    given = {"bootstrap": "goss", "bootstrap_by": "document", "starts": np.arange(0, 201, 4)}
    sums = [(weights @ g, weights @ h) for step in range(1500) for weights in [draw(step, g, h, **given).weights]]
    far = abs(np.mean(sums, axis=0) - [g.sum(), h.sum()]) / (np.std(sums, axis=0) / np.sqrt(1500))
    assert far.max() < 4


# -- leaf values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("grow", "drawn"), [("best_first", np.arange(0, 80, 2, dtype=np.int32)), ("oblivious", None)])
def test_leaf_values_of_all_rows_are_those_of_all_that_reach_the_leaf(grow, drawn):
    bins, g, h = small_case(4, n=80)
    grower = grower_of(bins, grow=grow, max_leaves=6, max_depth=3, learning_rate=0.5)
    weights, scores = 1.0 + np.arange(80) % 3, np.zeros(80)
    own = grower.grow(g * weights, h * weights, np.zeros(80), rows=drawn)
    tree = grower.grow(g * weights, h * weights, scores, rows=drawn, leaves=LeafRules(of_all=(g, h)))
    assert np.array_equal(own.feature, tree.feature)
    assert not np.array_equal(own.value, tree.value)
    for node, rows in enumerate(nodes_of(tree, bins)):
        if tree.feature[node] < 0 and tree.rows[node] > 0:
            assert tree.value[node] == pytest.approx(-0.5 * g[rows].sum() / h[rows].sum(), rel=1e-9)
        if tree.feature[node] < 0:
            assert np.array_equal(scores[rows], np.full(len(rows), tree.value[node]))


# -- refusals --------------------------------------------------------------------------------------------------------
