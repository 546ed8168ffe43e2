"""Laws of the mix of the losses of several goals."""

from dataclasses import replace

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.trainer.objectives.registry import objective_class, objective_of
from rankmill.trainer.rounds.boosting import boost
from rankmill.trainer.training_options import StartingModel, TrainingOptions
from tests.refusals import refused
from tests.trainer import planted
from tests.trainer.fixed import fixed
from tests.trainer.objectives.loss_cases import derivatives
from tests.trainer.objectives.test_every_objective import NAMES
from tests.trainer.planted import rows_of, small_data

REFUSED = {  # and a word of the reason
    "mcrank": "score",
    "ordinal": "score",
    "laplace": "leaf",
    "quantile": "leaf",
    "huber": "leaf",
    "poisson": "leaf",
    "consistent_kl": "leaf",
    "coxph": "leaf",
    "logistrank": "leaf",
    "gbrank": "targets",
}
MIXED = [name for name in NAMES if name not in REFUSED]
# their gradient is that of no loss at hand: lambdas, series and surrogates; or losses draw anew


def goal_grades(part, seed):
    """Grades of 0 to 2 that follow another feature than the grade."""
    rng = np.random.default_rng(seed)
    x = np.nan_to_num(part[0][:, 3].astype(np.float64)) + 0.3 * rng.normal(size=len(part[0]))
    return np.digitize(x, [0.3, 1.0]).astype(np.int32)


def goal_rows(part, seed=1, **goals):
    rows = rows_of(part, small_data()[2])
    return replace(rows, goals=goals or {"bought": goal_grades(part, seed)})


def data_of(train=None, watch=False, watched=None, **goals):
    first, second, _ = small_data()
    valid = goal_rows(second, 2)
    if watched is not None:
        valid = replace(valid, goals={"bought": watched(valid.n_rows, np.int32)})
    return planted.data_of(train or goal_rows(first, **goals), [("valid", valid)] if watch or watched else [])


def trees(forest):
    """Return all that decides scores."""
    names = ("node_feature", "node_left", "node_value", "node_rows", "thresholds", "tree_starts", "tree_weights")
    return {name: getattr(forest, name).tobytes() for name in names} | {"base": forest.base_score}


def trained(data=None, options=None, **parameters):
    given = {"n_rounds": 4, "max_leaves": 8, "early_stopping_rounds": 0, **parameters}
    return boost(data or data_of(), fixed(**given), TrainingOptions(n_threads=1, **(options or {}))).forest


def mixed(name="l2", goals=None, rows=None, **more):
    rows = rows or goal_rows(small_data()[0])
    return rows, objective_of(rows, fixed(objective=name, goals=goals or {"bought": 0.3}, **more))


@pytest.mark.parametrize("name", MIXED)
def test_gradients_are_the_weighted_sums_of_those_of_each_grade(name):
    rows, mix = mixed(name, {"bought": 0.3})
    scores = np.random.default_rng(0).normal(size=rows.n_rows)
    main = objective_of(rows, fixed(objective=name))
    other = objective_of(replace(rows, grades=rows.goals["bought"], goals={}), fixed(objective=name))
    for found, one, two in zip(
        derivatives(mix, scores), derivatives(main, scores), derivatives(other, scores), strict=True
    ):
        assert found == pytest.approx(0.7 * one + 0.3 * two, rel=1e-12, abs=1e-15)
    assert mix.starting_score == pytest.approx(0.7 * main.starting_score + 0.3 * other.starting_score)
    assert mix.name == main.name
    assert mix.deviance(scores) == pytest.approx(0.7 * main.deviance(scores) + 0.3 * other.deviance(scores))


def two_goals(part):
    return goal_rows(part, bought=goal_grades(part, 1), fresh=(np.arange(len(part[1])) % 3 == 0).astype(np.int32))


@pytest.mark.parametrize(("name", "mixing"), [("lambdamart", "draw"), ("query_rmse", "sum")])
def test_a_goal_of_weight_0_changes_no_tree_and_one_of_weight_1_replaces_the_grade(name, mixing):
    alone = trees(trained(objective=name))
    assert trees(trained(objective=name, goals={"bought": 0.0}, mix_goals=mixing)) == alone
    rows = goal_rows(small_data()[0])
    swapped = data_of(replace(rows, grades=rows.goals["bought"], goals={}))
    assert trees(trained(objective=name, goals={"bought": 1}, mix_goals=mixing)) == trees(
        trained(swapped, objective=name)
    )


@pytest.mark.parametrize("name", ["lambdamart", "softmax"])
def test_a_goal_equal_to_the_grade_changes_no_tree(name):
    same = data_of(bought=small_data()[0][1])
    alone = trained(objective=name)
    half = trained(same, objective=name, goals={"bought": 0.5})
    assert trees(half) == trees(alone)  # halves add up without rounding
    for weight in (0.1, 0.8):
        forest = trained(same, objective=name, goals={"bought": weight})
        assert np.array_equal(forest.node_feature, alone.node_feature)
        assert np.array_equal(forest.thresholds, alone.thresholds, equal_nan=True)
        assert forest.node_value == pytest.approx(alone.node_value, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", ["yetirank", "bernoulli"])
def test_grade_and_goal_may_change_places_with_their_weights(name):
    rows = goal_rows(small_data()[0])
    swapped = replace(rows, grades=rows.goals["bought"], goals={"bought": rows.grades})
    one = trained(data_of(rows), objective=name, goals={"bought": 0.25})
    other = trained(data_of(swapped), objective=name, goals={"bought": 0.75})
    assert trees(one) == trees(other)


def test_the_order_of_goals_does_not_matter():
    rows = two_goals(small_data()[0])
    data = data_of(rows)
    for mixing in ("sum", "draw"):
        one = trained(data, goals={"bought": 0.2, "fresh": 0.5}, mix_goals=mixing)
        other = trained(data, goals={"fresh": 0.5, "bought": 0.2}, mix_goals=mixing)
        assert one.to_bytes() == other.to_bytes()


def test_drawn_gradients_are_those_of_one_grade_and_on_average_those_of_the_sum():
    rows, drawn = mixed("lambdamart", {"bought": 0.3}, mix_goals="draw")
    _, summed = mixed("lambdamart", {"bought": 0.3})
    one, other = (
        objective_of(replace(rows, grades=grades, goals={}), fixed(objective="lambdamart"))
        for grades in (rows.grades, rows.goals["bought"])
    )
    scores = np.random.default_rng(2).normal(size=rows.n_rows)
    steps = 400
    parts = np.array([drawn.drawn(step) for step in range(1, steps + 1)])  # (steps, n_queries)
    for step in (1, 2, 7):
        g, h = derivatives(drawn, scores, step=step)
        of_row = np.repeat(drawn.drawn(step), np.diff(rows.starts))
        for found, a, b in zip(
            (g, h), derivatives(one, scores, step=step), derivatives(other, scores, step=step), strict=True
        ):
            assert np.array_equal(found, np.where(of_row == 0, a, b))
    share = parts.mean(axis=0)
    error = np.sqrt(0.3 * 0.7 / steps)
    assert np.abs(share - 0.3).max() < 4.5 * error
    assert abs(parts.mean() - 0.3) < 4 * error / np.sqrt(parts.shape[1])
    # the expected gradient
    first, second = derivatives(one, scores)[0], derivatives(other, scores)[0]
    of_row = np.repeat(share, np.diff(rows.starts))
    mean = (1 - of_row) * first + of_row * second
    assert (np.abs(mean - derivatives(summed, scores)[0]) <= 4.5 * error * np.abs(first - second) + 1e-12).all()
    # rounds and neighbouring queries are drawn independently
    centred = parts - parts.mean(axis=0)
    assert abs((centred[1:] * centred[:-1]).mean()) < 4 * 0.21 / np.sqrt(centred[1:].size)
    assert abs((centred[:, 1:] * centred[:, :-1]).mean()) < 4 * 0.21 / np.sqrt(centred[:, 1:].size)


def test_draws_depend_on_the_names_of_queries_and_not_on_their_order():
    rows = goal_rows(small_data()[0])
    names = np.random.default_rng(3).integers(-(2**62), 2**62, size=rows.n_queries)
    _, one = mixed(rows=replace(rows, names=names), mix_goals="draw")
    _, other = mixed(rows=replace(rows, names=names[::-1].copy()), mix_goals="draw")
    _, seeded = mixed(rows=replace(rows, names=names), mix_goals="draw", seed=8)
    assert np.array_equal(one.drawn(5), other.drawn(5)[::-1])
    assert not np.array_equal(one.drawn(5), one.drawn(6))
    assert not np.array_equal(one.drawn(5), seeded.drawn(5))


@pytest.mark.parametrize(("name", "mixing"), [("lambdamart", "sum"), ("rank_xendcg", "draw"), ("l2", "draw")])
def test_models_have_the_same_bytes_for_any_threads_and_after_a_resume(name, mixing):
    rows = two_goals(small_data()[0])
    options = {"objective": name, "goals": {"bought": 0.3, "fresh": 0.2}, "mix_goals": mixing}
    whole = trained(data_of(rows), **options).to_bytes()
    parameters = fixed(n_rounds=4, max_leaves=8, early_stopping_rounds=0, **options)
    assert boost(data_of(rows), parameters, TrainingOptions(n_threads=3)).forest.to_bytes() == whole
    half = trained(data_of(rows), **options, n_rounds=2)
    assert trained(data_of(rows), {"resume": StartingModel(half)}, **options).to_bytes() == whole
    with refused(InvalidParameter, "resume", "goals"):
        trained(data_of(rows), {"resume": StartingModel(half)}, **{**options, "goals": {"bought": 0.3}})


def test_without_goals_nothing_is_stored():
    assert not {"goals", "mix_goals"} & trained().parameters.keys()
    stored = trained(goals={"fresh": 0.25, "bought": 0.5}, data=data_of(two_goals(small_data()[0]))).parameters
    assert stored["goals"] == {"bought": 0.5, "fresh": 0.25}
    assert "mix_goals" not in stored


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_losses_that_cannot_be_mixed_are_refused_with_the_reason(name):
    with refused(InvalidParameter, "goals", objective_class(name).name, REFUSED[name]):
        trained(objective=name, goals={"bought": 0.3})


def test_what_does_not_go_with_goals_is_refused():
    rows = goal_rows(small_data()[0])
    for name, value in (("criterion", "ole"), ("leaf", "exact")):
        with refused(InvalidParameter, "goals", name, value):
            trained(goals={"bought": 0.3}, **{name: value})
    assert trained(objective="l2", criterion="ole", goals={"bought": 0.3}).n_trees  # a sum of terms has no pairs
    with refused(TrainingDataRejected, "goals", "'price'", "bought"):
        trained(goals={"price": 0.3})
    with refused(TrainingDataRejected, "goal 'bought'", "two different grades"):
        trained(data_of(replace(rows, goals={"bought": np.ones(rows.n_rows, np.int32)})), goals={"bought": 0.3})
    with refused(TrainingDataRejected, "relevant document by ndcg@10:bought", "ndcg@10:goals", "keep_rounds"):
        trained(data_of(watched=np.zeros), goals={"bought": 0.3}, early_stopping_rounds=2)
    assert trained(data_of(watched=np.zeros), objective="l2", goals={"bought": 0.3}, stop_metric="deviance").n_trees
    flat = replace(rows, goals={**rows.goals, "flat": np.ones(rows.n_rows, np.int32)})
    weights = {"bought": 0.3, "flat": 0.0}  # measured, but not learnt from
    assert trees(trained(data_of(flat), goals=weights)) == trees(trained(data_of(rows), goals={"bought": 0.3}))
    labels = replace(rows, labels=rows.grades + 0.5)
    with refused(TrainingDataRejected, "goals", "labels"):
        trained(data_of(labels), objective="l2", goals={"bought": 0.3})
    with refused(InvalidParameter, "goals", "weights", "bought"):
        trained(goals=["bought"])


def test_weights_may_sum_to_1_up_to_rounding():
    thirds = fixed(goals={"a": 1 / 3, "b": 2 / 3})
    assert thirds.grade_weight == 0.0
    assert fixed(goals={f"g{i}": 0.1 for i in range(10)}).grade_weight == 0.0
    assert fixed(goals={"a": 0.25}).grade_weight == 0.75


def test_the_memory_of_a_mix_is_counted():
    rows, mix = mixed("l2")
    _, alone = mixed("l2", {"bought": 0.0})
    assert mix.bytes_held(rows) >= 2 * alone.bytes_held(rows) + 16 * rows.n_rows
