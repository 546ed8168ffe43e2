"""The NDCG-consistent losses of Ravikumar, Tewari & Yang."""

import itertools
import math

import numpy as np
import pytest

from rankmill import Ranker
from rankmill.foundation.errors import TrainingDataRejected
from rankmill.trainer.objectives.pointwise.consistent import normalised_gains
from tests.naive_points import cosine_loss, least, term
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.objectives.loss_cases import (
    derivatives,
    differences,
    gradient_error,
    hessian_error,
    objective_on,
    rows_with,
    steps_of,
)

GRADES = [0, 3, 1, 2, 0, 0, 4, 2, 2, 1]  # the second list has nothing relevant
SIZES = [4, 2, 3, 1, 0]
WEIGHTS = [1, 2, 1, 3, 1, 1, 2, 0, 1, 4.0]
QUERY_WEIGHTS = [1.0, 2.0, 0.5, 1.0, 3.0]
SCORES = np.random.default_rng(3).normal(size=10)
ROWS = rows_with(grades=GRADES, sizes=SIZES, weights=WEIGHTS, query_weights=QUERY_WEIGHTS)
LEAVES = [np.array([0, 5, 6]), np.array([1, 2]), np.array([9, 4, 3, 8])]


def targets(gain=lambda y: 2.0**y - 1, values=GRADES):
    out, first = [], 0
    for size in SIZES:
        of_list = [gain(y) for y in values[first : first + size]]
        ideal = sum(g / math.log2(rank + 1) for rank, g in enumerate(sorted(of_list, reverse=True), 1))
        out += [g / ideal if ideal else 0.0 for g in of_list]
        first += size
    return np.array(out)


def test_targets_are_gains_over_the_greatest_dcg_of_the_list():
    np.testing.assert_allclose(normalised_gains(ROWS, fixed()), targets(), rtol=1e-14)
    np.testing.assert_allclose(normalised_gains(ROWS, fixed(gain="linear")), targets(float), rtol=1e-14)
    labels = np.random.default_rng(1).random(10) * 3  # any number from 0 on, where the gain is linear
    rows = rows_with(grades=GRADES, labels=labels, sizes=SIZES)
    np.testing.assert_allclose(normalised_gains(rows, fixed(gain="linear")), targets(float, list(labels)), rtol=1e-14)
    with refused(TrainingDataRejected, "label -1.0", "row 1"):
        objective_on("consistent_l2", rows_with(labels=[0.0, -1.0]), gain="linear")
    for written in ("consistent_l2", "consistent_kl", "consistent_cosine"):  # which would all learn 0
        with refused(TrainingDataRejected, "labels", "gain", "linear"):
            objective_on(written, rows_with(labels=[0.0, 1.5, 0.2]))


@pytest.mark.parametrize("written", ["consistent_l2", "consistent_kl"])
def test_two_of_them_are_losses_of_single_documents(written):
    objective = objective_on(written, ROWS)
    w = np.array(WEIGHTS) * np.repeat(QUERY_WEIGHTS, SIZES)
    w /= w.mean()
    name = {"consistent_l2": "l2"}.get(written, written)

    def loss(scores):
        return sum(w * [term(name, t, s) for t, s in zip(targets(), scores, strict=True)])

    assert objective.losses(SCORES).sum() == pytest.approx(loss(SCORES), rel=1e-10)
    assert gradient_error(objective, SCORES) < 1e-6
    assert hessian_error(objective, SCORES) < 1e-6
    best = least(lambda f: loss(np.full(10, f)), -10, 10)
    assert objective.start() == pytest.approx(best, abs=1e-5)
    for leaf, step in zip(LEAVES, steps_of(objective, SCORES, LEAVES), strict=True):
        moves = [loss(SCORES + np.isin(np.arange(10), leaf) * x) for x in (step, step - 1e-3, step + 1e-3)]
        assert moves[0] == min(moves)


def of_lists(scores):
    """Weights of the lists that have a loss, 0 for the others, and their losses before weights, from the definition."""
    means, losses, first = [], [], 0
    for size, of_query in zip(SIZES, QUERY_WEIGHTS, strict=True):
        members = slice(first, first + size)
        means.append(of_query * np.mean(WEIGHTS[members]) if size else 0.0)
        losses.append(cosine_loss(scores[members], targets()[members]) if targets()[members].any() else None)
        first += size
    weights = np.array(means) / np.mean(means)
    counts = np.array([loss is not None for loss in losses])
    return weights * counts, np.array([loss or 0.0 for loss in losses])


def test_cosine_is_that_of_scores_and_targets_times_the_length_of_the_targets():
    objective = objective_on("consistent_cosine", ROWS)
    weights, losses = of_lists(SCORES)
    np.testing.assert_allclose(objective.losses(SCORES), weights * losses, rtol=1e-12)
    assert objective.deviance(SCORES) == pytest.approx(np.average(losses, weights=weights), rel=1e-12)
    assert gradient_error(objective, SCORES) < 1e-6


@pytest.mark.parametrize(
    ("written", "criterion"), [("consistent_l2", "rwse"), ("consistent_kl", "se"), ("consistent_cosine", "rwse")]
)
def test_the_minimum_over_a_population_has_the_best_ndcg(written, criterion):
    """Two kinds of judgments of the same three documents: no order has a higher mean NDCG than that of the mean
    targets."""
    kinds, shares = np.array([[0, 0, 1], [3, 4, 2]]), np.array([0.4, 0.6])
    discount = 1 / np.log2([2, 3, 4])
    gains = 2.0**kinds - 1
    of_kind = gains / (-np.sort(-gains) @ discount)[:, None]  # over the greatest DCG
    best = max((shares @ of_kind)[list(order)] @ discount for order in itertools.permutations(range(3)))
    n_queries = 200
    grades = np.repeat(kinds, (shares * n_queries).astype(int), axis=0).ravel()
    x, qid = np.tile(np.eye(3, dtype=np.float32), (n_queries, 1)), np.repeat(np.arange(n_queries), 3)
    ranker = Ranker(preset="defaults-1", objective=written, criterion=criterion, n_rounds=200, n_threads=1).fit(
        x, grades, qid=qid
    )
    assert ranker.score(x, grades, qid=qid) == pytest.approx(best, abs=1e-9)
    assert best == pytest.approx(0.8579, abs=5e-5)
    if written == "consistent_cosine":  # its minimum is known up to the length
        scores, expected = ranker.predict(x[:3]), shares @ of_kind
        np.testing.assert_allclose(scores / np.linalg.norm(scores), expected / np.linalg.norm(expected), rtol=1e-4)


def test_cosines_gradient_leaves_the_length_alone_and_its_step_turns_towards_the_targets():
    objective = objective_on("consistent_cosine", ROWS)
    g, h = derivatives(objective, SCORES)
    for first, last in ((0, 4), (6, 9)):
        members = slice(first, last)
        assert (g * SCORES)[members].sum() == pytest.approx(0, abs=1e-12)
        s, t = SCORES[members], targets()[members]
        a, b = s / np.linalg.norm(s), t / np.linalg.norm(t)
        np.testing.assert_allclose(-g[members] / h[members], np.linalg.norm(s) * (b - (a @ b) * a), rtol=1e-9)
        assert (h[members] > 0).all()
    assert not g[4:6].any()  # nothing relevant: no loss
    np.testing.assert_allclose(objective.losses(SCORES * 7), objective.losses(SCORES), rtol=1e-12)


def test_the_hessian_of_cosine_is_no_less_than_that_of_gauss_and_newton():
    """The loss is |t| |a - b|^2 / 2; the true second derivative may be negative, as here in places."""
    objective = objective_on("consistent_cosine", rows_with(grades=GRADES[:4]))
    length = np.linalg.norm(targets()[:4])
    true = []
    for seed in range(8):
        scores = np.random.default_rng(seed).normal(size=4)
        _, h = derivatives(objective, scores)
        unit = differences(lambda s: s / np.linalg.norm(s), scores)  # (4, 4): of the unit vector by each score
        assert (h >= length * (unit**2).sum(axis=1) - 1e-7).all()
        own = differences(lambda s: derivatives(objective, s)[0], scores)
        true += list(own.diagonal())
    assert min(true) < 0


def test_lists_without_a_direction_are_harmless():
    rows = rows_with(grades=[1, 0, 0, 0], sizes=[2, 2])
    objective = objective_on("consistent_cosine", rows)
    g, h = derivatives(objective, np.zeros(4))
    assert g.tolist() == [-1, 0, 0, 0]
    assert h.tolist() == [1, 1, 0, 0]
    assert objective.losses(np.zeros(4)).tolist() == [1, 0]
    assert objective.start() == 1.0
