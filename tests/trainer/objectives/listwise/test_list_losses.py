"""Losses of lists with closed forms: against their definitions, finite differences and their symmetries."""

import itertools
import math

import lightgbm
import numpy as np
import pytest

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.trainer.objectives.listwise import _kernels as _list_kernels
from rankmill.trainer.objectives.listwise import list_loss
from rankmill.trainer.objectives.pairwise import _kernels
from rankmill.trainer.team import Team
from tests import naive_lists as naive
from tests.refusals import refused
from tests.trainer.objectives.loss_cases import SIZES, derivatives, objective_for, random_lists, starts_of

EXACT = [
    "listnet", "softmax(target=exp_grade)", "listmle", "query_rmse", "rank_xendcg(terms=1)",
    "query_cross_entropy(alpha=1)",
]  # fmt: skip
ALL = [*EXACT, "rank_xendcg"]
ALONE = Team(1)


def sum_of_losses(objective):
    return lambda scores: math.fsum(objective.losses(np.asarray(scores, dtype=np.float64)))


@pytest.mark.parametrize("objective", [*EXACT, "query_cross_entropy(2, alpha=0.3)"])
def test_gradient_and_hessian_are_those_of_the_losses(objective):
    scores, grades = random_lists(1)
    weights = np.random.default_rng(1).random(len(scores)) + 0.1
    loss = objective_for(objective, grades, SIZES, weights=weights, query_weights=np.array([1.0, 2, 3, 4, 5]))
    g, h = derivatives(loss, scores)
    total = sum_of_losses(loss)
    for i in range(len(scores)):
        assert g[i] == pytest.approx(naive.slope(total, scores, i), rel=1e-6, abs=1e-9)

        def of_gradient(at, i=i):
            return derivatives(loss, at)[0][i]

        assert h[i] == pytest.approx(naive.slope(of_gradient, scores, i), rel=1e-6, abs=1e-9)


def test_losses_are_those_of_the_definitions():
    scores, grades = random_lists(3)
    starts = starts_of(SIZES)
    labels = 2 * np.random.default_rng(3).random(len(scores))
    found = {name: objective_for(name, grades, SIZES, labels=labels) for name in ALL}
    places = derivatives(found["listmle"], np.zeros(len(scores)))[0]  # the later the place, the greater the slope
    for loss in found.values():
        derivatives(loss, scores)
    losses = {name: loss.losses(scores) for name, loss in found.items()}
    lists = [slice(first, last) for first, last in itertools.pairwise(starts)]
    for q, rows in enumerate(lists):
        s, y = scores[rows], grades[rows]
        if y.any():
            expected = naive.cross_entropy(s, naive.shares([2.0**grade - 1 for grade in y]))
            assert losses["listnet"][q] == pytest.approx(expected, rel=1e-9, abs=1e-11)
        expected = naive.cross_entropy(s, naive.shares([math.exp(grade) for grade in y]))
        assert losses["softmax(target=exp_grade)"][q] == pytest.approx(expected, rel=1e-9, abs=1e-11)
        assert losses["query_rmse"][q] == pytest.approx(naive.centred_squares(s, labels[rows], np.ones(len(s))))
        order = np.argsort(places[rows])
        assert (np.diff(y[order]) <= 0).all()
        if len(s) > 1:
            assert losses["listmle"][q] == pytest.approx(-naive.log_likelihood(s, list(order)), rel=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_query_cross_entropy_takes_the_best_shift(alpha):
    scores, grades = random_lists(12)
    weights = np.random.default_rng(12).random(len(scores)) + 0.2
    weights /= weights.mean()
    loss = objective_for(f"query_cross_entropy(2, alpha={alpha})", grades, SIZES, weights=weights)
    found = loss.losses(scores)
    for q, (first, last) in enumerate(itertools.pairwise(starts_of(SIZES))):
        s, y, w = scores[first:last], (grades[first:last] >= 2), weights[first:last]
        expected = (1 - alpha) * naive.log_loss(s, y, w) + alpha * naive.shifted_log_loss(s, y, w)
        assert found[q] == pytest.approx(expected, rel=1e-9, abs=1e-11)
    assert loss.deviance(scores) == pytest.approx(found.sum() / len(scores), rel=1e-12)
    if alpha == 0.0:
        g, h = derivatives(loss, scores)
        expected = derivatives(objective_for("bernoulli(2)", grades, SIZES, weights=weights), scores)
        assert g == pytest.approx(expected[0], rel=1e-12)
        assert h == pytest.approx(expected[1], rel=1e-12)


def test_ties_are_shuffled_uniformly_in_each_step():
    loss = objective_for("listmle", [1, 0, 1, 1, 0], [5])
    counts = dict.fromkeys(itertools.product(itertools.permutations((0, 2, 3)), itertools.permutations((1, 4))), 0)
    n = 2400
    for step in range(1, n + 1):
        order = tuple(np.argsort(derivatives(loss, np.zeros(5), step=step)[0]).tolist())
        counts[(order[:3], order[3:])] += 1
    expected = n / len(counts)
    chi = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi < 35.0  # 11 degrees of freedom: 0.9998


def test_documents_keep_weights_of_their_own_in_query_rmse():
    sizes = [3, 5]
    scores, grades = random_lists(9, sizes)
    weights, of_query = np.random.default_rng(9).random(8), np.array([1.0, 3.0])
    of_row = weights * np.repeat(of_query, sizes)
    loss = objective_for("query_rmse", grades, sizes, weights=weights, query_weights=of_query)
    found = loss.losses(scores)
    expected = [naive.centred_squares(scores[rows], grades[rows], of_row[rows]) for rows in (slice(0, 3), slice(3, 8))]
    assert found / found.sum() == pytest.approx(np.array(expected) / sum(expected), rel=1e-12)
    assert loss.deviance(scores) == pytest.approx(math.sqrt(2 * sum(expected) / of_row.sum()), rel=1e-12)


@pytest.mark.parametrize(
    "objective", ["listnet", "listmle", "query_rmse", "query_cross_entropy", "query_cross_entropy(alpha=1)"]
)
def test_pairs_make_the_second_derivative_along_any_set_exact(objective):
    scores, grades = random_lists(1, spread=0.8)
    rng = np.random.default_rng(1)
    loss = objective_for(objective, grades, SIZES, weights=rng.random(len(scores)) + 0.5)
    h = derivatives(loss, scores)[1]
    pairs = loss.pair_hessians(1, scores, 0.0, ALONE)
    assert (pairs.first < pairs.second).all()
    assert len(set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))) == len(pairs.first)
    query = np.repeat(np.arange(len(SIZES)), SIZES)
    assert np.array_equal(query[pairs.first], query[pairs.second])
    for _ in range(10):
        chosen = rng.random(len(scores)) < rng.random()
        inside = chosen[pairs.first] & chosen[pairs.second]
        exact = h[chosen].sum() - 2.0 * pairs.hessian[inside].sum()
        rows = set(np.flatnonzero(chosen).tolist())
        assert exact == pytest.approx(naive.bend(sum_of_losses(loss), scores, rows), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("objective", ["listnet", "listmle", "rank_xendcg(terms=1)"])
def test_digits_are_kept_where_one_document_has_nearly_all_the_mass(objective):
    # the top document: 1 - p is 2 exp(-50), far below the last digit of p
    g, h = derivatives(objective_for(objective, [5, 0, 0]), [50.0, 0.0, 0.0])
    tail = 2 * math.exp(-50) / (1 + 2 * math.exp(-50))
    assert h[0] == pytest.approx(tail, rel=1e-10)
    if objective != "rank_xendcg(terms=1)":  # whose targets leave something to the others
        assert g[0] == pytest.approx(-tail, rel=1e-10)


def test_listmle_keeps_digits_where_the_wrong_document_has_nearly_all_the_mass():
    g, h = derivatives(objective_for("listmle", [0, 1, 2, 3]), [80.0, 0.0, 1.0, 0.5])
    # it comes last: 1 - x at each place is the mass of the others that are left
    others = [math.exp(0.0) + math.exp(1.0) + math.exp(0.5), math.exp(0.0) + math.exp(1.0), math.exp(0.0)]
    assert h[0] == pytest.approx(sum(others) * math.exp(-80), rel=1e-9)
    assert g[0] == pytest.approx(3.0, rel=1e-12)


class Generator:
    """LightGBM's own (utils/random.h), seeded for a query."""

    def __init__(self, seed):
        self.x = seed

    def next_float(self):
        self.x = (214013 * self.x + 2531011) % 2**32
        return ((self.x >> 16) & 0x7FFF) / 32768.0


@pytest.mark.parametrize("scores", [[0.0, 0.0, 0.0], [0.3, -1.0, 2.0, 0.7, 0.0]])
def test_xendcg_steps_as_lightgbm(scores):
    grades = [0, 2, 1, 3, 0][: len(scores)]
    generator, compared = Generator(5), 0
    draws = [generator.next_float() for _ in scores]
    g, h = naive.xendcg_lambdas(scores, grades, draws)
    n = len(scores)
    parameters = {
        "objective": "rank_xendcg", "objective_seed": 5, "min_data_in_leaf": 1, "min_data_in_bin": 1, "num_leaves": 2,
        "min_sum_hessian_in_leaf": 0.0, "learning_rate": 1.0, "verbosity": -1,
    }  # fmt: skip
    for one in range(n):  # a leaf of one document: its value is the step -g / h
        x = np.eye(n)[:, [one]]
        data = lightgbm.Dataset(x, grades, group=[n], init_score=scores)
        booster = lightgbm.train(parameters, data, num_boost_round=1)
        if booster.dump_model()["tree_info"][0]["num_leaves"] == 2:
            assert booster.predict(x, raw_score=True)[one] == pytest.approx(-g[one] / h[one], rel=1e-4, abs=1e-5)
            compared += 1
    assert compared >= n - 1


def test_xendcg_steps_as_lightgbm_with_draws_of_its_own():
    scores, grades = random_lists(11, [1, 7, 4])
    loss = objective_for("rank_xendcg", grades, [1, 7, 4])
    g, h = derivatives(loss, scores, step=3)
    key = list_loss.key_of(7, 3, list_loss.DRAWS)  # 7: the seed
    for q, rows in ((1, slice(1, 8)), (2, slice(8, 12))):
        of_query = np.uint64(_kernels.random_bits(key, q))
        places = range(rows.stop - rows.start)
        draws = [_list_kernels.uniform(np.uint64(_kernels.random_bits(of_query, place))) for place in places]
        expected = naive.xendcg_lambdas(scores[rows], grades[rows], draws)
        assert g[rows] == pytest.approx(expected[0], rel=1e-9, abs=1e-13)
        assert h[rows] == pytest.approx(expected[1], rel=1e-9)
        targets = naive.shares([2.0**y - u for y, u in zip(grades[rows], draws, strict=True)])
        assert loss.losses(scores)[q] == pytest.approx(naive.cross_entropy(scores[rows], targets), rel=1e-9)


def test_many_terms_solve_for_all_documents_at_once():
    # D H+ g, H+ the pseudo-inverse, up to a constant of s: the step then is Newton's for the whole list
    scores, grades = random_lists(4, [6], spread=0.3)
    g = derivatives(objective_for("rank_xendcg(terms=1)", grades), scores)[0]
    errors = []
    p = np.array(naive.softmax(scores))
    hessian = np.diag(p) - np.outer(p, p)
    newton = np.linalg.pinv(hessian) @ g
    for terms in (1, 3, 10):
        found, h = derivatives(objective_for(f"rank_xendcg(terms={terms})", grades), scores)
        step = found / h
        errors.append(np.ptp(step - newton) / np.ptp(newton))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-3


def test_draws_are_uniform():
    u = np.array([_list_kernels.uniform(np.uint64(_list_kernels.random_bits(np.uint64(3), i))) for i in range(5000)])
    assert 0.0 < u.min() < 4e-3
    assert 1.0 - 4e-3 < u.max() < 1.0
    assert np.histogram(u, 20, (0, 1))[0] == pytest.approx(250, abs=5 * math.sqrt(237))
    assert _list_kernels.uniform(np.uint64(0)) > 0.0
    assert _list_kernels.uniform(np.uint64(2**64 - 1)) < 1.0


def test_lists_without_information_do_not_count():
    scores = np.arange(7.0)
    for objective, empty in (
        ("listnet", [0, 0, 0]), ("listmle", [2, 2, 2]), ("apxdcg", [2, 2, 2]),
        ("apxdcg(samples=4, exact=0)", [2, 2, 2]),
        ("stochasticrank(samples=3)", [2, 2, 2]),
    ):  # fmt: skip
        loss = objective_for(objective, [*empty, 0, 1, 2, 1], [3, 4])
        g, h = derivatives(loss, scores)
        assert not g[:3].any()
        assert not h[:3].any()
        assert loss.losses(scores)[0] == 0.0
        if objective.startswith("list"):  # whose draws do not go by the numbers of rows
            assert loss.deviance(scores) == pytest.approx(objective_for(objective, [0, 1, 2, 1]).deviance(scores[3:]))
    loss = objective_for("stochasticrank", [1, 2, 3, 0, 1, 0], [3, 3], metric="mrr")  # any order is worth the same
    g, h = derivatives(loss, np.arange(6.0))
    assert not g[:3].any()
    assert (h[3:] > 0).all()
    assert loss.weights.tolist() == [0.0, 1.0]
    with refused(TrainingDataRejected, "nothing to learn"):
        objective_for("stochasticrank", [1, 2, 3], metric="mrr")
