"""What trees may be split by and what holds their values back, in whole models: obeyed, stored, resumed, refused."""

import numpy as np
import polars as pl
import pytest

from rankmill import Ranker
from rankmill.foundation.errors import InvalidParameter
from rankmill.scorer.forest.forest import Forest
from rankmill.trainer.rounds.sampling import noise_of
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.planted import fit, small_data

GROUPS = [["number", "colour"], ["colour", "shop"]]  # other is in none


def paths_of(forest):
    """Return the features that are used on the way to each leaf."""
    stack, found = [(int(root), int(root), frozenset()) for root in forest.tree_starts[:-1]], []
    while stack:
        root, node, path = stack.pop()
        if forest.node_feature[node] < 0:
            found.append(path)
            continue
        path = path | {forest.feature_names[forest.node_feature[node]]}
        stack += [(root, root + int(child), path) for child in (forest.node_left[node], forest.node_right[node])]
    return found


def within(paths, groups):
    return all(len(path) <= 1 or any(path <= set(group) for group in groups) for path in paths)


@pytest.mark.parametrize("criterion", ["rwse", "se", "ole"])
def test_no_tree_of_a_model_breaks_a_group_whatever_splits_are_chosen_by(criterion):
    options = {"objective": "ranknet", "criterion": criterion, "n_rounds": 4, "max_leaves": 8, "min_rows_in_leaf": 5}
    forest = fit(small_data(), interaction_constraints=[["f0", "f1"]], **options).forest
    assert Forest.from_bytes(forest.to_bytes()).parameters["interaction_constraints"] == [["f0", "f1"]]
    assert (forest.node_feature >= 0).any()
    assert within(paths_of(forest), [["f0", "f1"]])


def test_a_training_with_groups_resumes_with_the_same_groups_only():
    start = fit(small_data(), interaction_constraints=[["f0", "f1"]], n_rounds=3, watch=False).forest
    with refused(InvalidParameter, "interaction_constraints"):
        fit(small_data(), interaction_constraints=[["f0", "f2"]], options={"resume": start}, n_rounds=6, watch=False)


def judged(seed=0, n_queries=60):
    """A frame with a number, a few colours and many shops, with missing ones, and what it is judged by."""
    rng = np.random.default_rng(seed)
    n = n_queries * 15
    number, colour, shop = rng.normal(size=n), rng.integers(0, 6, size=n), rng.integers(0, 30, size=n)
    hidden = number + rng.normal(size=6)[colour] + rng.normal(size=30)[shop] + 0.4 * rng.normal(size=n)
    shops = [None if lost else f"shop {code}" for code, lost in zip(shop, rng.random(n) < 0.1, strict=True)]
    frame = pl.DataFrame({
        "number": number, "colour": [f"colour {code}" for code in colour], "shop": shops, "other": rng.normal(size=n),
    })  # fmt: skip
    return frame, np.digitize(hidden, [0.0, 1.0, 2.0]), np.repeat(np.arange(n_queries), 15)


def fitted(**options):
    frame, grades, qid = judged()
    usual = {"preset": "defaults-1", "n_rounds": 4, "min_rows_in_leaf": 5, "min_rows_in_group": 10, "n_threads": 1}
    return Ranker(**(usual | options)).fit(frame, grades, qid=qid).forest_


@pytest.mark.parametrize("shape", [{"encode_above": 20}, {"encode_above": 0, "grow": "oblivious"}], ids=str)
def test_models_with_categories_obey_groups_weights_and_what_holds_values(shape):
    """With ``encode_above`` the shops get a second column, of numbers."""
    assert {"colour", "shop"} <= set().union(*paths_of(fitted(**shape)))
    held = paths_of(fitted(interaction_constraints=GROUPS, **shape))
    assert within(held, GROUPS)
    assert "shop" in set().union(*held)
    assert "shop" not in set().union(*paths_of(fitted(feature_weights={"shop": 0.0}, **shape)))
    with pytest.warns(UserWarning, match="no tree has a split"):
        assert not np.abs(fitted(lambda_l1=1e9, **shape).node_value).any()
    smooth = fitted(path_smooth=1e12, **shape)
    assert np.ptp(smooth.node_value[: smooth.tree_starts[1]]) < 1e-6
    drawn = fitted(extra_trees=True, **shape)
    assert drawn.sha256 == fitted(extra_trees=True, n_threads=3, **shape).sha256
    assert drawn.sha256 != fitted(extra_trees=True, seed=8, **shape).sha256


@pytest.mark.parametrize("shape", [{"grow": "best_first"}, {"grow": "oblivious", "max_depth": 4}], ids=str)
@pytest.mark.parametrize("options", [{}, {"criterion": "se"}, {"leaf": "exact"}, {"objective": "laplace"}], ids=str)
def test_no_leaf_is_above_the_maximum_and_a_large_l1_leaves_nothing(shape, options):
    given = {"n_rounds": 2, "learning_rate": 0.5, "watch": False, **shape, **options}
    forest = fit(small_data(), max_delta_step=0.01, **given).forest
    assert 0.0 < np.abs(forest.node_value).max() <= 0.5 * 0.01 * (1 + 1e-12)
    if "objective" not in options:
        assert not np.abs(fit(small_data(), lambda_l1=1e6, **given).forest.node_value).any()
    smooth = fit(small_data(), path_smooth=1e9, **given).forest
    assert np.ptp(smooth.node_value[: smooth.tree_starts[1]]) < 1e-4


@pytest.mark.parametrize(
    "option",
    [
        {"feature_fraction_by_level": 0.5}, {"feature_fraction_by_node": 0.5}, {"extra_trees": True},
        {"random_strength": 1.0}, {"l2_scale": "mean_hessian"},
    ],
    ids=str,
)  # fmt: skip
def test_a_model_names_a_control_only_where_it_is_set_and_its_trees_differ_by_the_seed(option):
    (name,) = option
    usual = fit(small_data(), n_rounds=3, lambda_l2=1.0).forest
    assert name not in Forest.from_bytes(usual.to_bytes()).parameters
    forests = [fit(small_data(), n_rounds=3, seed=seed, lambda_l2=1.0, **option).forest for seed in (1, 1, 2)]
    assert forests[0].sha256 == forests[1].sha256 != usual.sha256
    assert forests[0].parameters[name] == option[name]
    assert not np.array_equal(forests[0].node_value, forests[2].node_value)
    if name == "l2_scale":
        with refused(InvalidParameter, name, "none", "mean_hessian"):
            fit(small_data(), n_rounds=4, lambda_l2=1.0, **option, options={"resume": usual})
    else:
        assert fit(small_data(), n_rounds=3, boosting="rf", **option).forest.n_rounds > 0  # random enough for a forest


def test_noise_fades_with_the_rounds_and_later_where_there_are_more_documents():
    parameters = fixed(random_strength=2.0, learning_rate=0.1)
    strengths = [noise_of(parameters, number, number, 1000).strength for number in range(1, 200)]
    assert strengths == sorted(strengths, reverse=True)
    assert strengths[0] == pytest.approx(2.0 * 1000 / 1001, rel=1e-9)
    assert strengths[70] == pytest.approx(2.0 * 1000 / (1000 + np.exp(7.0)), rel=1e-9)
    assert noise_of(parameters, 71, 71, 10_000).strength > strengths[70]
    assert 0.0 <= noise_of(parameters, 10**6, 10**6, 1000).strength < 1e-100
    assert len({int(noise_of(fixed(), 1, tree, 100).key) for tree in range(1, 100)}) == 99
