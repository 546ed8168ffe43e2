"""The local-optimality test: what passes, what does not, and the bounds it reports."""

import itertools
import math
from dataclasses import astuple, replace

import numpy as np
import pytest

from rankmill.foundation.errors import InputError
from rankmill.scorer.forest.predict import predict
from rankmill.scorer.inspect import optimality
from rankmill.scorer.inspect.optimality import CURVE, Moves, directions_needed, local_optimality, share_interval
from rankmill.scorer.inspect.paths import leaf_paths
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries, evaluate_queries, mean_of
from tests.naive import leaf_value
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.inspect.inspect_case import linear, random_values, several_outputs

METRIC = parse_metric("ndcg@5")


def case(seed, forest, n_queries=30, size=8):
    x = random_values(seed, forest, n_queries * size)
    starts = np.arange(n_queries + 1) * size
    grades = np.random.default_rng(seed).integers(0, 3, size=len(x)).astype(np.int32)
    return x, grades, starts


def graded_by(forest, x, starts):
    """Grades that the forest's own scores order rightly: the model is at a maximum."""
    scores = predict(forest, x)
    grades = np.zeros(len(x), dtype=np.int32)
    for first, last in itertools.pairwise(starts):
        grades[first:last] = np.searchsorted(np.unique(scores[first:last]), scores[first:last])
    return np.minimum(grades, 5)


def test_so_many_directions_are_drawn_that_the_bound_is_p0():
    for p0, delta in [(0.01, 0.01), (0.05, 0.01), (0.02, 0.2), (0.5, 0.5), (0.5, 0.25)]:
        n = directions_needed(p0, delta)
        assert (1 - p0) ** n <= delta < (1 - p0) ** (n - 1)
        assert share_interval(0, n, delta)[1] <= p0
    with refused(InputError, "p0", "0", "1"):
        directions_needed(0.0, 0.1)


def test_the_interval_of_a_share_is_clopper_and_pearsons():
    for k, n, delta in [(1, 10, 0.05), (5, 10, 0.01), (9, 10, 0.1), (30, 459, 0.01)]:
        low, high = share_interval(k, n, delta)
        tail = [math.comb(n, i) * low**i * (1 - low) ** (n - i) for i in range(k, n + 1)]
        assert sum(tail) == pytest.approx(delta / 2, rel=1e-9)
        tail = [math.comb(n, i) * high**i * (1 - high) ** (n - i) for i in range(k + 1)]
        assert sum(tail) == pytest.approx(delta / 2, rel=1e-9)
    assert share_interval(10, 10, 0.01) == (pytest.approx(0.01**0.1), 1.0)


def test_a_model_at_its_maximum_passes():
    forest = random_forest(1, n_trees=30, max_leaves=12)
    x, _, starts = case(1, forest)
    grades = graded_by(forest, x, starts)
    found = local_optimality(forest, x, PreparedQueries(grades, starts, Policy()), METRIC, Moves(step=1.0))
    assert found.value == 1.0
    assert (found.n_directions, found.n_rising, found.n_unchanged) == (459, 0, 0)
    assert found.passed
    assert found.p == 0.0
    assert found.interval == (0.0, pytest.approx(1 - 0.01 ** (1 / 459)))
    assert found.changes.greatest < 0.0


def test_a_step_too_small_to_change_anything_proves_nothing():
    forest = random_forest(3)
    x, grades, starts = case(3, forest)
    tied = np.zeros_like(x)  # every document in the same leaves
    found = local_optimality(forest, tied, PreparedQueries(grades, starts, Policy()), METRIC, Moves(p0=0.2, delta=0.2))
    assert found.n_unchanged == found.n_directions
    assert not found.passed


@pytest.mark.parametrize("categorical", [0, 3])
def test_the_leaves_of_documents_are_those_that_they_reach(categorical):
    forest = random_forest(4, n_trees=8, max_leaves=20, categorical=categorical)
    x = random_values(4, forest, 100)
    paths = leaf_paths(forest)
    leaves = paths.leaf_finder()(x)
    for row, own in zip(x, leaves, strict=True):
        assert [float(value) for value in paths.value[own]] == [leaf_value(forest, t, row) for t in range(8)]


@pytest.mark.parametrize("linked", [False, True])
def test_each_move_is_that_of_a_model_with_other_leaves(linked):
    """What is reported of moves is what the forest with those leaf values gives."""
    forest = several_outputs(4) if linked else random_forest(4, n_trees=8)
    x, grades, starts = case(4, forest)
    found = local_optimality(
        forest, x, PreparedQueries(grades, starts, Policy()), METRIC, Moves(p0=0.3, delta=0.3, n_curves=3, seed=5)
    )
    leaves = np.flatnonzero(forest.node_feature < 0)
    tree = np.searchsorted(forest.tree_starts, leaves, side="right") - 1
    worth = forest.tree_weights[tree] * forest.node_value[leaves]

    def mean(contributions):
        values = forest.node_value.copy()
        values[leaves] = contributions / forest.tree_weights[tree]
        scores = predict(replace(forest, node_value=values), x)
        return mean_of(evaluate_queries([METRIC], scores, grades, starts, Policy())[METRIC])

    assert found.value == pytest.approx(mean(worth), abs=1e-12)
    changes = []
    for j in range(found.n_directions):
        key = np.array([5, j], dtype=np.uint64)
        move = np.random.Generator(np.random.Philox(key=key)).standard_normal(len(leaves))
        move *= 0.1 * np.linalg.norm(worth) / np.linalg.norm(move)
        changes.append(mean(worth + move) - mean(worth))
    expected = (min(changes), sum(changes) / len(changes), max(changes))
    assert astuple(found.changes) == pytest.approx(expected, abs=1e-12)
    assert found.n_rising == sum(change > 1e-15 for change in changes)
    assert len(found.curves) == 3
    for curve in found.curves:
        place = int(np.flatnonzero(leaves == forest.tree_starts[curve.tree - 1] + curve.leaf)[0])
        assert curve.value == worth[place]
        for move, value in zip(CURVE, curve.means, strict=True):
            changed = worth.copy()
            changed[place] += move * np.linalg.norm(worth) / np.sqrt(len(worth))
            assert value == pytest.approx(mean(changed), abs=1e-12)
        assert curve.means[CURVE.index(0.0)] == found.value


def test_threads_change_nothing_and_the_seed_does():
    forest = random_forest(6, n_trees=8)
    x, grades, starts = case(6, forest)

    def found(seed=0, n_threads=1):
        moves = Moves(p0=0.1, delta=0.1, n_curves=2, seed=seed)
        return local_optimality(
            forest, x, PreparedQueries(grades, starts, Policy()), METRIC, moves, n_threads=n_threads
        )  # fmt: skip

    assert found() == found(n_threads=3)
    assert found(seed=1).changes != found().changes


def test_what_cannot_be_tested_is_refused(monkeypatch):
    forest = random_forest(0)
    x, grades, starts = case(0, forest)
    with refused(InputError, "step", "0"):
        local_optimality(forest, x, PreparedQueries(grades, starts, Policy()), METRIC, Moves(step=0.0))
    with refused(InputError, "query", "ndcg@5"):
        local_optimality(forest, x, PreparedQueries(0 * grades, starts, Policy()), METRIC)
    with refused(InputError, "no splits"):
        local_optimality(forest.truncated(0), x, PreparedQueries(grades, starts, Policy()), METRIC)
    with refused(InputError, "n_curves", "0"):
        local_optimality(forest, x, PreparedQueries(grades, starts, Policy()), METRIC, Moves(n_curves=-1))
    monkeypatch.setattr(optimality, "MAX_BYTES", 1000)
    with refused(InputError, "240", "6", "0 MB"):
        local_optimality(forest, x, PreparedQueries(grades, starts, Policy()), METRIC)


def test_the_weights_of_a_net_are_judged_as_brute_force_over_all_directions_does():
    """Two weights order documents by their angle alone, so all directions can be tried."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 2)).astype(np.float32)
    starts = np.arange(31) * 8
    grades = np.clip(np.round(x @ [1.0, 0.5] + rng.normal(size=240)), 0, 3).astype(np.int32)
    queries = PreparedQueries(grades, starts, Policy())

    def mean(weights):
        return mean_of(evaluate_queries([METRIC], x @ np.float32(weights), grades, starts, Policy())[METRIC])

    def along(angle):
        return np.array([np.cos(angle), np.sin(angle)])

    angles = np.linspace(0, 2 * np.pi, 240, endpoint=False)
    means = np.array([mean(along(angle)) for angle in angles])
    best = angles[np.argmax(means)]
    for angle in (best, best + 0.7, best + 2.5):
        found = local_optimality(linear(along(angle)), x, queries, METRIC, Moves(p0=0.02, delta=0.01, step=0.9))
        assert found.value == pytest.approx(mean(along(angle)), abs=1e-9)
        p = np.mean([mean(along(angle) + 0.9 * along(to)) > mean(along(angle)) for to in angles])
        assert found.interval[0] <= p <= found.interval[1] + 0.01
        assert found.n_rising == 0 if angle == best else found.n_rising > 0
        again = local_optimality(
            linear(along(angle)), x, queries, METRIC, Moves(p0=0.02, delta=0.01, step=0.9), n_threads=2
        )
        assert again == found
    with refused(InputError, "leaves"):
        local_optimality(linear([1.0, 1.0]), x, queries, METRIC, Moves(n_curves=1))
