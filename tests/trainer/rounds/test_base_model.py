"""Trees on top of a model: learnt from what its scores leave, and joined to it."""

from dataclasses import replace

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.scorer.exchange.conversion import CONVERTED_FROM
from rankmill.scorer.forest.predict import predict
from rankmill.trainer.candidates.combined_forests import BaseModel, after_base
from tests.rankmill.python.small_ranker import planted_arrays, small
from tests.refusals import refused


@pytest.fixture(scope="module")
def arrays():
    return planted_arrays()


@pytest.fixture(scope="module")
def base(arrays):
    X, y, qid = arrays
    return small(objective="l2", max_leaves=6, learning_rate=0.3, seed=3).fit(X[:200], y[:200], qid=qid[:200])


@pytest.mark.parametrize("objective", ["l2", "lambdamart"])
def test_the_correction_is_that_of_offsets_and_the_result_is_the_sum(arrays, base, objective):
    X, y, qid = arrays
    scores = base.predict(X)
    offsets = small(objective=objective).fit(
        X, y, qid=qid, offset=scores, eval_set=(X, y, {"qid": qid, "offset": scores})
    )
    joined = small(objective=objective).fit(X, y, qid=qid, base_model=base, eval_set=(X, y, qid))
    assert joined.history_ == offsets.history_
    assert np.allclose(joined.predict(X), scores + offsets.predict(X), atol=1e-12)
    assert joined.forest_.n_trees == base.forest_.n_trees + offsets.forest_.n_trees
    assert np.allclose(joined.predict(X, n_rounds=base.forest_.n_rounds), scores + offsets.forest_.base_score)


@pytest.mark.parametrize(
    "parameters", [{}, {"rounds_by": "cv", "folds": 3}, {"objective": "ranknet", "step_search": "line"}], ids=str
)
def test_resuming_a_correction_is_the_same_bytes_as_one_go(arrays, base, parameters):
    X, y, qid = arrays
    whole = small(**{"n_rounds": 9, **parameters}).fit(X, y, qid=qid, base_model=base)
    half = small(**{**parameters, "n_rounds": 4}).fit(X, y, qid=qid, base_model=base)
    for how in ({"resume": half}, {"init_model": half}):
        rest = 9 if "resume" in how else 5
        resumed = small(**{**parameters, "n_rounds": rest}).fit(X, y, qid=qid, base_model=base, **how)
        if "resume" in how or half.forest_.n_trees == base.forest_.n_trees + 4:
            expected = whole.forest_.node_value if "init_model" in how else whole.forest_.to_bytes()
            found = resumed.forest_.node_value if "init_model" in how else resumed.forest_.to_bytes()
            assert np.array_equal(found, expected)


def test_another_base_or_none_is_refused(arrays, base):
    X, y, qid = arrays
    half = small(n_rounds=2).fit(X, y, qid=qid, base_model=base)
    plain = small(n_rounds=2).fit(X, y, qid=qid)
    for model, on in ((half, None), (half, plain), (plain, base)):
        with refused(InvalidParameter, "resume", "base model"):
            small().fit(X, y, qid=qid, resume=model, base_model=on)


def test_joining_and_parting_are_each_others_reverse(arrays, base):
    X, y, qid = arrays
    after = small().fit(X, y, qid=qid).forest_
    joined = BaseModel(base.forest_, after.feature_names).joined(after)
    assert np.allclose(predict(joined, X), predict(base.forest_, X) + predict(after, X))
    parted = after_base(joined, BaseModel(base.forest_, after.feature_names))
    own = {**parted.info}
    own.pop("base_model")
    assert own == after.info
    for name in ("node_feature", "node_cut", "cuts", "cut_starts", "tree_starts", "node_value", "node_left"):
        assert np.array_equal(getattr(parted, name), getattr(after, name)), name
    assert predict(parted, X).tolist() == predict(after, X).tolist()


def test_what_another_tool_has_trained_is_a_base_and_does_not_go_on(arrays, base):
    X, y, qid = arrays
    foreign = replace(base.forest_, info={CONVERTED_FROM: "xgboost"})
    with refused(InvalidParameter, "xgboost", "base_model"):
        small(n_rounds=2).fit(X, y, qid=qid, resume=foreign)
    assert small(n_rounds=2).fit(X, y, qid=qid, base_model=foreign).forest_.n_trees == foreign.n_trees + 2


def test_features_are_found_by_name(arrays):
    polars = pytest.importorskip("polars")
    X, y, qid = arrays
    names = ["a", "b", "c", "d"]
    base = small(objective="l2").fit(polars.DataFrame(dict(zip(names, X.T, strict=True))), y, qid=qid)
    other = polars.DataFrame({"new": X[:, 3] ** 2, **dict(zip(reversed(names), X.T[::-1], strict=True))})
    joined = small(objective="l2", n_rounds=3).fit(other, y, qid=qid, base_model=base)
    assert joined.forest_.feature_names == ("new", "d", "c", "b", "a")
    before = joined.predict(other, n_rounds=base.forest_.n_rounds)
    assert np.allclose(before - before[0], base.predict(other) - base.predict(other)[0])
    used = base.forest_.used_features[0]
    with refused(InvalidParameter, f"feature '{names[used]}'"):
        small().fit(other.drop(names[used]), y, qid=qid, base_model=base)


def test_several_outputs_are_no_base(arrays):
    X, y, qid = arrays
    several = small(objective="mcrank", n_rounds=2).fit(X, y, qid=qid)
    with refused(InvalidParameter, "base model", "5 outputs"):
        small().fit(X, y, qid=qid, base_model=several)


def violations(scores, X, feature, direction, n=500):
    """Count the pairs of points, which differ in one feature only, whose scores move against ``direction``."""
    rng = np.random.default_rng(1)
    low, high = np.sort(rng.choice(X[:, feature], size=(n, 2)), axis=1).T
    before, after = np.repeat(X[:n], -(-n // len(X[:n])), axis=0)[:n], np.repeat(X[:n], -(-n // len(X[:n])), axis=0)[:n]
    before[:, feature], after[:, feature] = low, high
    return int((direction * (scores(after) - scores(before)) < -1e-12).sum())


def test_no_model_on_a_base_breaks_its_constraints(arrays, base):
    X, y, qid = arrays
    directions = {"f0": 1, "f1": -1}
    assert violations(base.predict, X, 1, -1) > 0  # or nothing could be refused
    for free in (base, small(n_rounds=2).fit(X, y, qid=qid, base_model=base)):
        with refused(InvalidParameter, "monotone", "base model"):
            small(monotone=directions).fit(X, y, qid=qid, base_model=free)
    bound = small(monotone=directions, n_rounds=20, max_leaves=8).fit(X, y, qid=qid)
    bound = small(monotone=directions, seed=5).fit(X, y, qid=qid, base_model=bound)
    corrected = small(monotone=directions, n_rounds=20).fit(X, y, qid=qid, base_model=bound)
    for feature, direction in enumerate(directions.values()):
        assert violations(corrected.predict, X, feature, direction) == 0
    one = small(monotone={"f1": -1}, n_rounds=3).fit(X, y, qid=qid, base_model=bound)  # fewer than the base obeys
    assert violations(one.predict, X, 1, -1) == 0
    unused = small(monotone={"f3": 1}, n_rounds=3, objective="l2")
    without = small(n_rounds=3).fit(X[:, :3], y, qid=qid)  # asks for no f3
    assert violations(unused.fit(X, y, qid=qid, base_model=without).predict, X, 3, 1) == 0
