"""The grid of weights, the Pareto front and the choice among its points."""

from __future__ import annotations

import itertools
from math import comb, fsum

import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.trainer.goal_fronts import choose, dominated_by, grid_of
from rankmill.trainer.goal_options import GoalSweepOptions, parse_floors
from rankmill.trainer.parameters import TrainParameters
from tests.refusals import refused


@pytest.mark.parametrize(("goals", "steps"), [(1, 2), (1, 5), (2, 3), (2, 5), (3, 4)])
def test_the_grid_has_every_combination_of_weights_once_and_each_is_accepted(goals, steps):
    names = [f"g{i}" for i in range(goals)]
    grid = grid_of(names, steps)
    assert len(grid) == comb(steps - 1 + goals, goals)
    assert len({tuple(weights.values()) for weights in grid}) == len(grid)
    assert not any(grid[0].values())
    for name in names:
        assert {**dict.fromkeys(names, 0.0), name: 1.0} in grid
    for weights in grid:
        assert list(weights) == names
        rest = 1.0 - fsum(weights.values())
        assert TrainParameters(goals=weights).grade_weight == pytest.approx(max(rest, 0.0), abs=1e-9)
        assert all(weight * (steps - 1) == pytest.approx(round(weight * (steps - 1))) for weight in weights.values())


def test_a_grid_that_is_too_large_is_refused():
    with refused(InvalidParameter, "goal_steps", "20", "1,540", "200"):
        grid_of(["a", "b", "c"], 20)


def slowly_dominates(one, other):
    return one != other and all(one[i] >= other[i] for i in range(len(one)))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_front_is_what_no_other_point_dominates(n):
    """All sets of up to three points with two values of 0 to 2."""
    for points in itertools.product(itertools.product(range(3), repeat=2), repeat=n):
        found = dominated_by(points)
        for place, by in enumerate(found):
            rivals = [other for other in points if slowly_dominates(other, points[place])]
            assert (by is None) == (not rivals)
            if by is not None:
                assert found[by] is None
                assert slowly_dominates(points[by], points[place])


def test_the_choice_is_the_best_of_the_front_that_meets_the_floors():
    names = ["ndcg", "ndcg:a", "map:a"]
    levels = (0.1, 0.2, 0.3)
    for points in itertools.product(itertools.product(levels, repeat=2), repeat=3):
        values = [{"ndcg": x, "ndcg:a": y, "map:a": x * y} for x, y in points]
        plain = choose(values, names[:2], names, {})
        means = [x + y for x, y in points]
        assert means[plain] == pytest.approx(max(means))
        assert dominated_by([[v[name] for name in names] for v in values])[plain] is None
        for floor in (0.1, 0.2, 0.25, 0.4):
            found = choose(values, names[:2], names, {"ndcg:a": floor})
            able = [x for x, y in points if y >= floor]
            assert (found is None) == (not able)
            if found is not None:
                assert points[found][0] == max(able)
                assert points[found][1] >= floor


def test_of_equal_points_the_first_is_chosen():
    values = [{"m": 0.3, "m:a": 0.4}] * 3
    assert choose(values, ["m", "m:a"], ["m", "m:a"], {}) == 0
    assert choose(values, ["m", "m:a"], ["m", "m:a"], {"m:a": 0.4}) == 0


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"goal_steps": 1}, ("goal_steps", "1")),
        ({"goal_steps": 102}, ("goal_steps", "102")),
        ({"goal_floors": {"ndcg@10:a": 0.5}}, ("goal_floors", "goal_steps")),
        ({"goal_floors": {"ndcg@10:a": "x"}, "goal_steps": 3}, ("goal_floors['ndcg@10:a']", "x")),
        ({"goal_floors": ["ndcg@10:a=1"], "goal_steps": 3}, ("goal_floors", "ndcg@10:a=1")),
        ({"goal_floors": {"ndcg": float("nan")}, "goal_steps": 3}, ("goal_floors['ndcg']", "nan")),
    ],
)
def test_options_of_a_sweep_are_checked(options, facts):
    with refused(InvalidParameter, *facts):
        GoalSweepOptions(**options)


def test_floors_are_read_from_a_command_line():
    assert parse_floors(["ndcg@10:a=0.5, map=.2"]) == {"ndcg@10:a": 0.5, "map": 0.2}
    for text in ("ndcg@10:a", "=0.5", "map=x", "map=1,map=2"):
        with refused(InvalidParameter, "goal_floors", text.rpartition(",")[2]):
            parse_floors([text])
