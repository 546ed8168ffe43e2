"""Other names for the features of a model change no score: each feature keeps its cuts and its categories."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from rankmill.foundation.errors import InputError
from rankmill.scorer.exchange.categories import category_numbers
from rankmill.scorer.exchange.formats import read_from, renamed, write_as
from rankmill.scorer.predict import predict
from tests.refusals import refused
from tests.scorer.exchange_cases import numbered, rows_for, same_model
from tests.scorer.forests import random_forest

NAMES = ("brand", "kind", "x", "y")


def forest_with_categories(seed=3, categorical=2):
    """Two categorical features with texts of their own, and two numbers."""
    return random_forest(
        seed, n_features=4, n_trees=12, max_leaves=12, categorical=categorical, missing_right=True, names=NAMES
    )


def test_renamed_features_keep_their_cuts_and_categories():
    forest = forest_with_categories()
    rows = rows_for(forest, 1)
    for names in (*permutations(NAMES), ("k", "x", "brand", "z"), ("p", "q", "r", "s")):
        other = renamed(forest, names)
        assert np.array_equal(predict(other, rows), predict(forest, rows))
        assert [other.categories.get(name) for name in names] == [forest.categories.get(name) for name in NAMES]
        assert renamed(other, NAMES) == forest


@pytest.mark.parametrize("target", ["lightgbm", "xgboost"])
@pytest.mark.parametrize("names", [("kind", "brand", "y", "x"), ("a", "x", "kind", "d")])
def test_a_model_converted_under_other_names_scores_by_position(target, names):
    forest = forest_with_categories()
    written = write_as(target, forest, features=names)
    back = read_from(target, written.data, "m").forest
    plain = read_from(target, write_as(target, forest).data, "m").forest
    assert back.feature_names == names
    rows = rows_for(forest, 2)
    there = numbered(forest, rows, 2)
    bound = max(written.bound, 1e-12)
    assert predict(back, there) == pytest.approx(predict(plain, there), abs=bound)
    again = read_from(target, written.data, "m", features=NAMES).forest
    assert np.array_equal(predict(again, there), predict(back, there))
    assert same_model(renamed(back, NAMES), again)


def test_a_format_that_is_only_written_numbers_the_same_categories():
    forest, names = forest_with_categories(), ("x", "kind", "brand", "y")
    assert category_numbers(renamed(forest, names)) == category_numbers(forest)
    assert write_as("onnx", forest, features=names).data


def test_a_name_too_few_or_twice_is_refused():
    forest = forest_with_categories()
    with refused(InputError, "features", 3, 4):
        renamed(forest, NAMES[:3])
    with refused(InputError, "'brand'"):
        renamed(forest, ("brand", "brand", "x", "y"))
