"""A resumed training gives the bytes of training in one go, or one line about what differs."""

from dataclasses import replace

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.trainer.rounds.resuming import trees_of
from tests.refusals import refused
from tests.trainer.planted import fit, planted, small_data


def two_ways(first_rounds, *, options=None, **parameters):
    """Train in one go, and in two halves of which the first has ``first_rounds`` rounds."""
    data = small_data()
    whole = fit(data, options=options, **parameters)
    half = fit(data, options=options, **{**parameters, "n_rounds": first_rounds})
    return whole, half, fit(data, options={**(options or {}), "resume": half.forest}, **parameters)


def test_a_model_that_was_cut_at_its_best_round_grows_again_what_was_cut_off():
    parameters = {"learning_rate": 0.5, "early_stopping_rounds": 30, "n_rounds": 60}
    values = [record.metrics["valid"]["ndcg@10"] for record in fit(small_data(), **parameters).history]
    cut = next(n for n in range(5, 60) if values[n - 1] < max(values[:n]) < max(values))
    whole, half, resumed = two_ways(cut, **parameters)
    assert half.best_round < cut < whole.best_round  # else this tests nothing
    assert resumed.forest.to_bytes() == whole.forest.to_bytes()


def test_the_patience_may_change_as_if_it_had_been_so_from_the_start():
    data = small_data()
    long = fit(data, learning_rate=0.5, early_stopping_rounds=50)
    for patience in (1, 3, 50):
        whole = fit(data, learning_rate=0.5, early_stopping_rounds=patience)
        resumed = fit(data, learning_rate=0.5, early_stopping_rounds=patience, options={"resume": long.forest})
        assert resumed.forest.to_bytes() == whole.forest.to_bytes()


def test_callbacks_see_every_round_and_may_stop_while_it_is_replayed():
    data, seen = small_data(), []
    half = fit(data, watch=False, n_rounds=10).forest
    fit(data, watch=False, n_rounds=12, options={"resume": half, "on_round": seen.append})
    assert [record.round_number for record in seen] == list(range(1, 13))
    stopped = fit(
        data, watch=False, n_rounds=12, options={"resume": half, "on_round": lambda record: record.round_number == 4}
    )
    assert stopped.forest.n_trees == 4


def test_thresholds_become_the_bins_again():
    data = small_data()
    forest = fit(data, watch=False).forest
    edges = [feature.edges for feature in data[2].features]
    trees = trees_of(forest, edges)
    inner = forest.node_feature >= 0
    bins = np.concatenate([tree.threshold for tree in trees])[inner]
    back = [np.append(edges[f], np.inf)[b - 1] for f, b in zip(forest.node_feature[inner], bins, strict=True)]
    assert np.array_equal(np.array(back, np.float32), forest.thresholds[inner])
    with refused(InvalidParameter, "bin edge"):
        trees_of(forest, [cuts[:-9:2] for cuts in edges])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_leaves": 9}, ("max_leaves", "8", "9")),
        ({"learning_rate": 0.2}, ("learning_rate", "0.1", "0.2")),
        ({"monotone": {"f1": 1}}, ("monotone", "{}", "{'f1': 1}")),
        ({"n_rounds": 29}, ("n_rounds", "30", "29")),
        ({"options": {"info": {"dataset_digest": "b" * 64}}}, "dataset_digest"),
    ],
    ids=str,
)  # fmt: skip
def test_what_differs_is_named(change, message):
    data, info = small_data(), {"dataset_digest": "a" * 64}
    forest = fit(data, watch=False, options={"info": info}).forest
    options = {"info": info, "resume": forest, **change.get("options", {})}
    with refused(InvalidParameter, message) as caught:
        fit(data, watch=False, **{**change, "options": options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("stop_metric", ["ndcg@10", "err@5"])
def test_a_longer_scale_of_grades_is_as_if_it_had_been_so_from_the_start(stop_metric):
    """Eval sets may be others when training resumes, also those with higher grades: no tree depends on them."""
    data, (x, grades, starts) = small_data(), planted(4)
    parameters = {"stop_metric": stop_metric, "learning_rate": 0.5, "early_stopping_rounds": 9}
    half = fit(data, **{**parameters, "n_rounds": 12}).forest
    more = {"eval_sets": [("high", (x, grades + 2, starts)), ("valid", data[1])], **parameters}
    whole = fit(data, options={"max_grade": 6}, **more)
    resumed = fit(data, options={"max_grade": 6, "resume": half}, **more)
    assert resumed.forest.to_bytes() == whole.forest.to_bytes()
    assert resumed.forest.info["max_grade"] == 6
    assert resumed.history == whole.history


def test_other_features_are_named():
    (train, valid, binspec), other = small_data(), planted(3, n_features=7)
    forest = fit((train, valid, binspec), watch=False, n_rounds=2).forest
    renamed = replace(binspec, features=(replace(binspec.features[0], name="g0"), *binspec.features[1:]))
    with refused(InvalidParameter, "features", "'f0'"):
        fit((other, valid, renamed), watch=False, options={"resume": forest})
