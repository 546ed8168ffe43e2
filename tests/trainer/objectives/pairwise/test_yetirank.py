"""YetiRank against the definition: its permutations, their law, and what neighbours in them weigh."""

import itertools
import math

import numpy as np
import pytest

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.team import Team
from tests import naive_lists, naive_pairs
from tests.naive_samples import bits_of, uniform_of
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.objectives.loss_cases import case, derivatives


def build(rows, options="", **parameters):
    return objective_of(rows, fixed(objective=f"yetirank{options}", **parameters))


def change(rows, metric):
    """How much the metric of the rows in an order changes if the one at ``place`` swaps with the next."""
    policy = Policy(max_grade=int(rows.grades.max()))

    def of(order, place):
        return naive_pairs.swap_delta(parse_metric(metric), rows.grades[order].tolist(), place, place + 1, policy)

    return of


def frozen(rows, scores, step, *, permutations=10, decay=0.85, gumbel=False, sigma=1.0, seed=7, metric=None):
    """All pairs and their weights, from noise written out by its definition."""
    found, gains = [], 2.0**rows.grades - 1
    weights = np.ones(rows.n_rows) if rows.weights is None else rows.weights / rows.weights.mean()
    of_query = np.ones(rows.n_queries) if rows.query_weights is None else rows.query_weights / rows.query_weights.mean()
    for q, (first, last) in enumerate(itertools.pairwise(rows.starts)):
        for t in range(permutations):
            noisy = {}
            for row in range(first, last):
                u = uniform_of(bits_of(bits_of(seed, step), t + 1, row))
                noisy[row] = sigma * scores[row] + (-math.log(-math.log(u)) if gumbel else math.log(u / (1 - u)))
            order = sorted(noisy, key=lambda row: -noisy[row])
            for place, (a, b) in enumerate(itertools.pairwise(order)):
                high, low = (a, b) if gains[a] >= gains[b] else (b, a)
                size = decay**place * (gains[high] - gains[low])
                if metric is not None:
                    size = change(rows, metric)(order, place) if gains[high] > gains[low] else 0.0
                weight = size / permutations * weights[a] * weights[b] * of_query[q]
                if weight > 0:
                    found.append((high, low, 1.0, weight))
    return naive_pairs.FrozenPairs(found, sigma=sigma)


@pytest.mark.parametrize(
    ("options", "written", "sigma", "weighted"),
    [
        ({}, "", 1.0, False),
        ({"permutations": 3, "decay": 0.5}, "(permutations=3, decay=0.5)", 2.0, True),
        ({"gumbel": True}, "(noise=gumbel)", 1.0, True),
        *(({"metric": metric}, "(mode=metric)", 1.0, True) for metric in ("ndcg@3", "dcg", "map", "precision@3", "rbp(0.8)", "wta")),
        *(({"metric": metric}, "(mode=metric)", 1.0, False) for metric in ("mrr@2", "map@4", "err@3", "ndcg")),
        ({"metric": "err", "gumbel": True, "permutations": 3}, "(permutations=3, noise=gumbel, mode=metric)", 2.0, True),
    ],
)  # fmt: skip
def test_gradients_hessians_and_losses_agree_with_the_definition(options, written, sigma, weighted):
    rows, scores = case(1, weighted=weighted)
    built = build(rows, written, sigma=sigma, **({"metric": options["metric"]} if "metric" in options else {}))
    g, h = derivatives(built, scores, step=4)
    expected_g, expected_h, c = frozen(rows, scores, 4, sigma=sigma, **options).derivatives(scores.tolist())
    assert g == pytest.approx(expected_g, rel=1e-9, abs=1e-12)
    assert h == pytest.approx(expected_h, rel=1e-9, abs=1e-13)
    listed = built.pair_hessians(4, scores, 0.0, Team(1))
    keys = list(zip(listed.first.tolist(), listed.second.tolist(), strict=True))
    assert dict(zip(keys, listed.hessian.tolist(), strict=True)) == pytest.approx(c, rel=1e-9)
    assert len(set(keys)) == len(keys)
    at_zero = frozen(rows, scores, 0, sigma=sigma, **options)
    assert built.losses(scores).sum() == pytest.approx(at_zero.loss(scores), rel=1e-9)


def on_average(built, scores, n=1200):
    drawn = np.array([derivatives(built, scores, step=step)[0] for step in range(1, n + 1)])
    return drawn.mean(axis=0), drawn.std(axis=0) / math.sqrt(n)


@pytest.mark.parametrize("metric", ["ndcg@2", "map@3", "err"])
def test_gumbel_noise_gives_on_average_the_sum_over_all_orders(metric):
    rows = RankedRows(np.array([1, 0, 2, 0, 1], np.int32), np.array([0, 5]), [])
    scores, delta = np.array([0.4, 0.9, -0.2, 0.0, 0.6]), change(rows, metric)
    expected = np.zeros(5)
    for order in itertools.permutations(range(5)):
        chance = math.exp(naive_lists.log_likelihood(scores, order))
        for place, (a, b) in enumerate(itertools.pairwise(order)):
            high, low = (a, b) if rows.grades[a] > rows.grades[b] else (b, a)
            slope = chance * delta(list(order), place) / (1 + math.exp(scores[high] - scores[low]))
            expected[high] -= slope
            expected[low] += slope
    mean, error = on_average(build(rows, "(permutations=4, noise=gumbel, mode=metric)", metric=metric), scores)
    assert (np.abs(mean - expected) <= 4.5 * error + 1e-12).all()


def test_queries_that_no_swap_changes_count_nothing():
    grades = np.array([1, 2, 3, 0, 1, 0], np.int32)
    built = build(RankedRows(grades, np.array([0, 3, 6]), []), "(mode=metric)", metric="map")
    g, h = derivatives(built, np.arange(6.0))
    assert not g[:3].any()
    assert not h[:3].any()
    assert g[4] < 0
    assert built.losses(np.zeros(6))[0] == 0.0
    assert built.deviance(np.zeros(6)) == built.losses(np.zeros(6))[1]
    with refused(TrainingDataRejected, "no swap", "map"):
        build(RankedRows(grades[:3], np.array([0, 3]), []), "(mode=metric)", metric="map")


def test_metrics_without_a_change_for_neighbours_may_stop_training():
    for metric in ("concordance", "balanced_error"):
        build(case(0)[0], metric=metric)
