"""GBRank against its algorithm written out: targets, fits, averages."""

import numpy as np
import pytest

from rankmill import Ranker
from rankmill.foundation.errors import InvalidParameter
from rankmill.scorer.forest.predict import predict
from rankmill.trainer.data.rows import RankedRows
from tests.naive import leaf_value
from tests.refusals import refused
from tests.trainer import planted
from tests.trainer.objectives.loss_cases import build, case, derivatives, expected


def pairs_of(rows):
    """(better, worse, weight) of all pairs: a target below 1/2 turns a pair around, and 1/2 leaves nothing."""
    found = []
    for query in expected(rows, np.arange(rows.n_rows) / 7.0, "ranknet", {}):
        for a, b, target, weight in query.pairs:
            signed = weight * (2 * target - 1)
            found.append((a, b, signed) if signed > 0 else (b, a, -signed))
    return found


def targets_of(rows, averaged, tau, kept=()):
    """Sums of weights times targets, and of weights, and the pairs that set them."""
    targets, total, misranked = np.zeros(rows.n_rows), np.zeros(rows.n_rows), set()
    for i, j, weight in pairs_of(rows):
        if weight > 1e-12 and (averaged[i] < averaged[j] + tau or (i, j) in kept):
            misranked.add((i, j))
            for row, target in ((i, averaged[j] + tau), (j, averaged[i] - tau)):
                targets[row] += weight * target
                total[row] += weight
    return targets, total, misranked


@pytest.mark.parametrize(
    ("given", "weighted", "keep"),
    [(False, False, True), (False, True, False), (True, False, False), (True, True, True)],
)
def test_steps_fit_the_targets_that_the_round_began_with(given, weighted, keep):
    rows, scores = case(1, given=given, weighted=weighted)
    eta = 0.5
    built = build(rows, f"gbrank(tau=0.3, trees=3, eta={eta}, keep={keep})")
    assert built.steps_a_round == 3
    rng = np.random.default_rng(0)
    kept = set()
    for number in (1, 2, 3):
        anchor = scores * number / eta  # h_(k-1) = eta (g_1 + .. + g_(k-1)) / k, and the g are what is added up
        targets, total, misranked = targets_of(rows, scores, 0.3, kept)
        kept = misranked if keep else set()
        for step in (1, 2, 3):
            moved = anchor + rng.normal(size=len(scores)) * (step > 1)
            g, h = derivatives(built, moved, step=3 * (number - 1) + step)
            assert h == pytest.approx(total, rel=1e-12, abs=1e-13)
            assert g == pytest.approx(total * (moved - anchor) - targets, rel=1e-9, abs=1e-11)
        scores = scores + rng.normal(size=len(scores)) * 0.5


def test_losses_are_those_whose_derivative_is_the_distance_to_the_targets():
    rows, scores = case(2, weighted=True)
    built = build(rows, "gbrank(tau=0.3)")
    expected = sum(0.5 * w * max(0.0, scores[j] - scores[i] + 0.3) ** 2 for i, j, w in pairs_of(rows))
    assert built.losses(scores).sum() == pytest.approx(expected)
    targets, total, _ = targets_of(rows, scores, 0.3)
    for i in range(len(scores)):
        up, down = scores.copy(), scores.copy()
        up[i], down[i] = up[i] + 1e-5, down[i] - 1e-5
        slope = (built.losses(up).sum() - built.losses(down).sum()) / 2e-5
        assert total[i] * scores[i] - targets[i] == pytest.approx(slope, rel=1e-5, abs=1e-6)


def test_offsets_are_part_of_the_order_and_not_of_the_fit():
    rows, scores = case(3)
    offsets = np.random.default_rng(1).normal(size=len(scores))
    shifted = RankedRows(rows.grades, rows.starts, [], offsets=offsets)
    built = build(shifted, "gbrank(trees=1)")
    g, h = derivatives(built, offsets + 2 * scores, step=2)  # the second round: h_1 is half the sum
    targets, total, _ = targets_of(rows, offsets + scores, 0.1)
    assert h == pytest.approx(total)
    assert g == pytest.approx(total * offsets - targets, rel=1e-9, abs=1e-12)


def written_out(rows, tau, eta, shrunk, n_rounds):
    """h_k = (k h_(k-1) + eta g_k) / (k + 1), where g_k is ``shrunk`` times the mean target of every row."""
    h = np.zeros(rows.n_rows)
    for k in range(1, n_rounds + 1):
        targets, total, _ = targets_of(rows, h, tau)
        h = (k * h + eta * shrunk * targets / total) / (k + 1)
    return h


@pytest.mark.parametrize(("eta", "trees"), [(0.05, 4), (1.0, 1)])  # a greater eta leaves rows without a target
def test_each_round_is_fitted_at_the_learning_rate_and_added_times_eta(eta, trees):
    """Where every row has a leaf of its own, a forest of n trees at rate r comes to 1 - (1 - r)^n of its targets."""
    rng = np.random.default_rng(6)
    sizes = [6, 5, 7]
    grades = np.concatenate([rng.permutation(size) for size in sizes])
    n, rate = len(grades), 0.3
    x, qid = rng.permutation(n)[:, None].astype(np.float32), np.repeat(range(3), sizes)
    ranker = Ranker(
        objective=f"gbrank(tau=9, trees={trees}, eta={eta})", n_rounds=4, learning_rate=rate, max_leaves=n,
        min_rows_in_leaf=1, min_hessian_in_leaf=0, n_threads=1,
    ).fit(x, grades, qid=qid)  # fmt: skip
    rows = RankedRows(grades.astype(np.int32), np.concatenate(([0], np.cumsum(sizes))), [])
    expected = written_out(rows, 9.0, eta, 1 - (1 - rate) ** trees, 4)
    assert ranker.predict(x) == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_rounds_are_averaged():
    data = planted.small_data()
    common = {"objective": "gbrank(trees=5)", "n_rounds": 20, "learning_rate": 0.3, "watch": False}
    forest = planted.fit(data, **common).forest
    assert (forest.n_rounds, forest.trees_a_round, forest.n_trees) == (20, 5, 100)
    assert forest.tree_weights == pytest.approx(1 / 21)
    forests = [planted.fit(data, **(common | {"n_rounds": k})).forest for k in (1, 2)]
    rounds = [predict(forest, data[0][0]) for forest in forests]
    # h_2 = (2 h_1 + g_2) / 3, and g_2 comes from the trees of the second round alone
    of_second = sum(leaf_values(forests[1], t, data[0][0]) for t in range(5, 10))
    assert rounds[1] == pytest.approx((2 * rounds[0] + of_second) / 3, rel=1e-6, abs=1e-9)


def leaf_values(forest, t, x):
    """What tree ``t`` adds to each row before weights."""
    return np.array([leaf_value(forest, t, row) for row in x]) / forest.tree_weights[t]


def test_what_it_cannot_do_is_said():
    rows, scores = case(5)
    with refused(InvalidParameter, "gbrank", "deviance"):
        build(rows, "gbrank").deviance(scores)
    with refused(InvalidParameter, "resumed"):
        derivatives(build(rows, "gbrank(keep=true, trees=2)"), scores, step=5)
