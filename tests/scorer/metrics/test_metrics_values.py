"""Metric and policy as values; discounts and gains."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmill.foundation.errors import InputError
from rankmill.foundation.options import values_of
from rankmill.scorer.metrics import METRIC_NAMES, Metric, Policy, parse_metric
from rankmill.scorer.metrics.discount import gains, stable_log2, stop_probabilities
from rankmill.scorer.metrics.metric import MEASURES
from tests.refusals import refused

SPELLINGS = [
    *("ndcg", "ndcg@10", "dcg@1", "err@20", "map", "map@5", "mrr", "precision@100", "recall@50", "wta", "rbp(0.8)"),
    *("rbp(0.95)@10", "concordance", "concordance_micro", "balanced_error", "balanced_error(-0.5)"),
]


@pytest.mark.parametrize("text", SPELLINGS)
def test_a_metric_prints_as_it_was_written(text):
    metric = parse_metric(text)
    assert str(metric) == text
    assert parse_metric(f" {text} ") == metric
    assert hash(parse_metric(text)) == hash(metric)
    assert pickle.loads(pickle.dumps(metric)) == metric
    assert metric.higher_is_better == (metric.name != "balanced_error")


@given(
    st.sampled_from(METRIC_NAMES),
    st.integers(1, 2**31 - 1),
    st.floats(0, 1, exclude_min=True, exclude_max=True),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_every_name_cutoff_and_parameter_makes_the_round_trip(name, k, p, threshold):
    metric = Metric(
        name, None if MEASURES[name].cutoff == "none" else k, {"rbp": p, "balanced_error": threshold}.get(name)
    )
    assert parse_metric(str(metric)) == metric


def test_spellings_of_one_metric():
    assert parse_metric("rbp(p=0.80)@5") == parse_metric("rbp( 0.8 )@5") == Metric("rbp", 5, 0.8)
    assert (
        parse_metric("balanced_error(-0)") == parse_metric("balanced_error(threshold=0.0)") == Metric("balanced_error")
    )
    assert str(Metric("balanced_error")) == "balanced_error"


MISSPELT = [
    ("ncdg@10", "metric", "'ncdg'", "'ndcg'"), ("NDCG", "metric", "'NDCG'", "'ndcg'"),
    ("zzz", "metric", "'zzz'", ", ".join(METRIC_NAMES)), ("", "metric", "''", ", ".join(METRIC_NAMES)),
    ("ndcg@", "'ndcg@'", "'@'", "ndcg@10", "''"), ("ndcg@ten", "'ndcg@ten'", "'@'", "ndcg@10", "'ten'"),
    ("ndcg@-1", "'ndcg@-1'", "'@'", "ndcg@10", "'-1'"), ("ndcg@1.5", "'ndcg@1.5'", "'@'", "ndcg@10", "'1.5'"),
    ("ndcg@0", "ndcg@0", "cutoff", "1", "2**31"), ("map@9999999999", "map@9999999999", "cutoff", "1", "2**31"),
    ("precision", "'precision'", "cutoff", "precision@10"), ("wta@1", "wta@1", "cutoff", "'@1'"),
    ("rbp@5", "'rbp'", "rbp(0.8)"), ("rbp(1)", "rbp(1)", "0", "1"), ("rbp(nan)", "rbp(nan)", "finite"),
    ("rbp(q=0.8)", "'rbp(q=0.8)'", "rbp(0.8)", "rbp(p=0.8)", "'(q=0.8)'"),
    ("rbp(0.8", "'rbp(0.8'", "rbp(0.8)", "rbp(p=0.8)", "'(0.8'"),
    ("rbp()@3", "'rbp()@3'", "rbp(0.8)", "rbp(p=0.8)", "'()'"),
    ("rbp(0.8)@x", "'rbp(0.8)@x'", "'@'", "rbp(0.8)@10", "'x'"), ("ndcg(3)", "'ndcg(3)'", "brackets"),
]  # fmt: skip
WRONG = [
    ({"gain": "expo"}, "gain", "'expo'", "'exp'"), ({"gain": "table(0,x)"}, "table(0,x)", "table(0,1,3,7,15)"),
    ({"gain": "table(0,-1)"}, "table(0,-1)", "0", "table(0,1,3,7,15)"),
    ({"gain": "table(1,2)"}, "table(1,2)", "0", "table(0,1,3,7,15)"),
    ({"discount": "ln"}, "discount", "'ln'", "log2, one_plus_log2", "table(1,0.5,0.25)"),
    ({"discount": "leter"}, "discount", "'leter'", "'letor'"),
    ({"discount": "table(1,2)"}, "table(1,2)", "0", "table(1,0.5,0.25)"),
    ({"short_lists": "nil"}, "short_lists", "'nil'"),
    ({"map_normalisation": "min(R,K)"}, "map_normalisation", "'min(R,K)'", "'min(R,k)'"),
    ({"precision_normalisation": "n"}, "precision_normalisation", "'n'"),
    ({"ties_seed": -1}, "ties_seed", "-1", "0 .. 9223372036854775807"),
    ({"ties": "docid"}, "ties", "'docid'", "'doc_id'"),
    ({"nothing_relevant": "skipped"}, "nothing_relevant", "'skipped'", "'skip'"),
    ({"relevant_from": 0}, "relevant_from", "1", "0"), ({"max_grade": 0}, "max_grade", "0", "1 .. 52"),
]  # fmt: skip


def test_a_misspelt_metric_and_a_wrong_policy_get_a_suggestion():
    for text, *facts in MISSPELT:
        with refused(InputError, *facts):
            parse_metric(text)
    for options, *facts in WRONG:
        with refused(InputError, *facts):
            Policy(**options)


def test_a_policy_says_all_of_itself():
    policy = Policy(gain="linear", ties="doc_id_descending", nothing_relevant="zero", relevant_from=2)
    words = policy.describe()
    for word in ("linear", "log2", "doc_id_descending", "counted as 0", "from grade 2"):
        assert word in words
    assert Policy(**values_of(policy)) == policy
    rare = Policy(
        ties="random", ties_seed=3, short_lists="zero", map_normalisation="min(R,k)", precision_normalisation="min(k,n)"
    )
    for word in (
        "random (seed 3)",
        "cutoff of ndcg count 0",
        "map divided by min(R,k)",
        "precision divided by min(k,n)",
    ):
        assert word in rare.describe()
    assert Policy(**values_of(rare)) == rare
    assert Policy(gain="table(0, 1.50,3.0)") == Policy(gain="table(0,1.5,3)")
    with pytest.raises(TypeError):
        Policy("exp")


def test_log2_is_right_to_1e_12_and_exact_at_powers_of_two():
    ranks = np.concatenate([np.arange(1.0, 200_001.0), np.geomspace(1e-300, 1e300, 20_001)])
    ours = stable_log2(ranks)
    true = np.array([math.log2(x) for x in ranks])
    assert np.max(np.abs(ours - true) / np.maximum(1.0, np.abs(true))) <= 1e-15
    powers = np.arange(-1000, 1000)
    np.testing.assert_array_equal(stable_log2(np.ldexp(1.0, powers)), powers)


def test_gains_of_a_table_end_with_it():
    assert gains(np.array([-1, 0, 2], np.int32), "table(0,1,2.5)").tolist() == [0.0, 0.0, 2.5]
    with refused(InputError, "table(0,1)", "grade 1", "grade 2"):
        gains(np.array([2], np.int32), "table(0,1)")


def test_gains_are_whole_and_ignore_negative_grades():
    grades = np.array([-2, 0, 1, 4, 52], np.int32)
    assert gains(grades, "exp").tolist() == [0.0, 0.0, 1.0, 15.0, 2.0**52 - 1]
    assert gains(grades, "linear").tolist() == [0.0, 0.0, 1.0, 4.0, 52.0]
    with refused(InputError, "exp", "52", "53", "linear"):
        gains(np.array([53], np.int32), "exp")


def test_stop_probabilities_need_the_scale():
    assert stop_probabilities(np.array([0, 1, 4], np.int32), 4).tolist() == [0.0, 1 / 16, 15 / 16]
    with pytest.raises(InputError, match="max_grade"):
        stop_probabilities(np.array([1], np.int32), None)
    with refused(InputError, "grade 3", "max_grade 2"):
        stop_probabilities(np.array([3], np.int32), 2)
