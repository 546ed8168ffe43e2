"""Several outputs and their links: against the definitions in many digits, and to the last bit against the plain
sums."""

import math
from decimal import Decimal, localcontext
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.kernels.elementary import exp_precise
from rankmill.scorer.forest.links import LINKS, apply_link, link_fault
from rankmill.scorer.forest.predict import predict
from tests import naive_links
from tests.refusals import refused
from tests.scorer.forest.test_predict import awkward_values
from tests.scorer.forests import random_forest

SEVERAL = [link for link in LINKS if link != "identity"]


def within(found, exact, relative):
    return abs(Decimal(found) - exact) <= Decimal(relative) * abs(exact) + Decimal("1e-300")


def test_exp_keeps_its_error_bound_over_its_whole_range():
    rng = np.random.default_rng(1)
    places = [0.0, -0.0, -5e-324, -1e-300, -1e-17, -708.0, *(-math.log(2) * k / 2 for k in range(2042))]
    with localcontext(prec=50):
        for x in [*places, *(-708 * rng.random(2000)), *(-rng.random(2000))]:
            exact = Decimal(float(x)).exp()
            assert abs(Decimal(exp_precise(float(x))) - exact) <= Decimal("1e-15") * exact
    assert exp_precise(0.0) == exp_precise(-0.0) == 1.0
    assert [exp_precise(x) for x in (-708.0000001, -1e9, -np.inf)] == [0.0] * 3
    assert math.isnan(exp_precise(math.nan))


awkward_output = st.one_of(st.floats(-3, 3), st.floats(-800, 800), st.sampled_from([0.0, -0.0, 1e300, -1e300, 5e-324]))


@settings(deadline=None)
@given(st.sampled_from(SEVERAL), st.lists(awkward_output, min_size=2, max_size=7))
def test_a_link_is_its_definition(link, outputs):
    found = float(apply_link(link, np.array(outputs)[:, None])[0])
    assert found == naive_links.score(link, outputs, exp_precise)
    with localcontext(prec=400):  # 1 less P(y <= k) has to keep what is left of exp(-708)
        capped = [min(max(f, -5000.0), 5000.0) for f in outputs]  # beyond it all is 0 or 1 at 300 digits
        assert within(found, naive_links.exact_score(link, capped), "1e-11")


@pytest.mark.parametrize(
    ("link", "n_outputs"), [*product(SEVERAL, [2, 5, 52]), ("ordinal_grade", 1), ("ordinal_gain", 1)]
)
def test_scores_lie_on_the_scale_and_reach_its_ends(link, n_outputs):
    highest = n_outputs if link.startswith("ordinal") else n_outputs - 1
    top = 2.0**highest - 1 if link.endswith("gain") else float(highest)
    outputs = np.random.default_rng(3).normal(0, 5, (n_outputs, 500))
    scores = apply_link(link, outputs)
    assert np.all((scores >= 0) & (scores <= top * (1 + 1e-12)))
    ends = np.full((n_outputs, 2), 1e6)  # ordinal: P(y <= 0) = 1, and then P(y <= k) = 0 for every k
    ends[:, 1] = -1e6
    if link.startswith("softmax"):
        ends = np.zeros((n_outputs, 2))
        ends[0, 0] = ends[-1, 1] = 1e6
    assert apply_link(link, ends).tolist() == [0.0, top]


@pytest.mark.parametrize("link", SEVERAL)
def test_what_is_no_number_stays_none(link):
    """A score that is not finite is refused further on; it must not become one that looks right."""
    outputs = np.array([[np.nan, 0.0, 0.0], [0.0, np.nan, 0.0], [0.0, 0.0, np.nan]])
    assert np.isnan(apply_link(link, outputs)).all()
    if link.startswith("softmax"):
        assert np.isnan(apply_link(link, np.array([[np.inf, 0.0], [np.inf, np.inf]]))).all()


def test_a_range_of_documents_is_written_and_no_more():
    outputs = np.random.default_rng(4).normal(size=(3, 100))
    for link in SEVERAL:
        whole = apply_link(link, outputs)
        out = np.full(100, 7.0)
        for first, last in ((0, 13), (13, 13), (13, 90)):
            assert apply_link(link, outputs, out, first=first, last=last) is out
        assert out[:90].tobytes() == whole[:90].tobytes()
        assert np.all(out[90:] == 7.0)
        assert apply_link(link, np.ascontiguousarray(outputs[:, 31:32])).tobytes() == whole[31:32].tobytes()
    assert apply_link("identity", outputs[:1]).tobytes() == outputs[0].tobytes()


NO_FIT = [
    ("softmax", np.zeros((3, 2)), {}, ("link", "'softmax'", "identity, softmax_grade")),
    ("identity", np.zeros((2, 2)), {}, ("2", "identity", "1")),
    ("softmax_grade", np.zeros((1, 2)), {}, ("1", "softmax_grade", "2", "1024")),
    ("softmax_gain", np.zeros((54, 2)), {}, ("54", "softmax_gain", "2", "53")),
    ("ordinal_gain", np.zeros((53, 2)), {}, ("53", "ordinal_gain", "1", "52")),
    ("ordinal_grade", np.zeros(2), {}, ("(2,)", "(outputs, n)")),
    ("ordinal_grade", np.zeros((2, 2), np.float32), {}, "float32"),
    ("ordinal_grade", np.zeros((4, 2)).T, {}, "contiguous"),
    ("ordinal_grade", np.zeros((2, 4)), {"out": np.zeros(3)}, ("(3,)", "(4,)")),
    ("ordinal_grade", np.zeros((2, 4)), {"out": np.zeros(4, np.float32)}, ("out", "float32")),
    ("ordinal_grade", np.zeros((2, 4)), {"first": 2, "last": 5}, "documents 2 to 5 of 4"),
    ("ordinal_grade", np.zeros((2, 4)), {"first": -1}, "documents -1 to 4 of 4"),
]


def test_as_many_outputs_as_the_highest_grade_asks_for_and_no_others():
    for link, outputs, more, message in NO_FIT:
        with refused(ValueError, message):
            apply_link(link, outputs, **more)
    assert link_fault("softmax_gain", 53) is link_fault("ordinal_gain", 52) is link_fault("softmax_grade", 1024) is None
    assert apply_link("ordinal_gain", np.full((52, 1), -1e6)).tolist() == [2.0**52 - 1]


# ---- forests ---------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(LINKS), st.integers(2, 5), st.integers(1, 3), st.integers(0, 3))
def test_forests_equal_the_plain_walk_bit_for_bit(seed, link, n_outputs, sets, n_rounds):
    n_outputs = 1 if link == "identity" else n_outputs
    trees_a_round = sets * n_outputs
    forest = random_forest(
        seed, n_trees=n_rounds * trees_a_round, link=link, n_outputs=n_outputs, trees_a_round=trees_a_round
    )
    values = awkward_values(forest, 20, seed)
    assert predict(forest, values).tolist() == naive_links.predict(forest, values, exp_precise)
