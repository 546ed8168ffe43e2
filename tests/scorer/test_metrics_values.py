"""Metric and policy as values; discounts and gains."""

import math
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scorer.metrics
from scorer.errors import InputError
from scorer.metrics import METRIC_NAMES, Metric, Policy, parse_metric
from scorer.metrics.discount import discounts, gains, stable_log2, stop_probabilities


@pytest.mark.parametrize("text", ["ndcg", "ndcg@10", "dcg@1", "err@20", "map", "map@5", "mrr", "precision@100"])
def test_a_metric_prints_as_it_was_written(text):
    metric = parse_metric(text)
    assert str(metric) == text
    assert parse_metric(f" {text} ") == metric
    assert hash(parse_metric(text)) == hash(metric)
    assert pickle.loads(pickle.dumps(metric)) == metric
    assert metric.higher_is_better


@given(st.sampled_from(METRIC_NAMES), st.integers(1, 2**31 - 1))
def test_every_name_and_cutoff_makes_the_round_trip(name, k):
    assert parse_metric(str(Metric(name, k))) == Metric(name, k)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ncdg@10", "unknown metric 'ncdg'; did you mean 'ndcg'?"),
        ("NDCG", "unknown metric 'NDCG'; known: ndcg, dcg, err, map, mrr, precision"),
        ("", "unknown metric ''; known: ndcg, dcg, err, map, mrr, precision"),
        ("ndcg@", "metric 'ndcg@': expected a whole number after '@', for example ndcg@10, found ''"),
        ("ndcg@ten", "metric 'ndcg@ten': expected a whole number after '@', for example ndcg@10, found 'ten'"),
        ("ndcg@-1", "metric 'ndcg@-1': expected a whole number after '@', for example ndcg@10, found '-1'"),
        ("ndcg@1.5", "metric 'ndcg@1.5': expected a whole number after '@', for example ndcg@10, found '1.5'"),
        ("ndcg@0", "metric ndcg@0: the cutoff must be at least 1 and below 2**31"),
        ("map@9999999999", "metric map@9999999999: the cutoff must be at least 1 and below 2**31"),
        ("precision", "metric 'precision' needs a cutoff, for example precision@10"),
    ],
)
def test_a_misspelt_metric_is_told_what_is_meant(text, message):
    with pytest.raises(InputError) as caught:
        parse_metric(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gain": "expo"}, "unknown value of gain 'expo'; did you mean 'exp'?"),
        ({"discount": "ln"}, "unknown value of discount 'ln'; known: log2"),
        ({"ties": "docid"}, "unknown value of ties 'docid'; did you mean 'doc_id'?"),
        ({"nothing_relevant": "skipped"}, "unknown value of nothing_relevant 'skipped'; did you mean 'skip'?"),
        ({"relevant_from": 0}, "relevant_from must be at least 1, got 0"),
        ({"max_grade": 0}, "max_grade must be between 1 and 52, got 0"),
    ],
)
def test_a_wrong_policy_is_refused(options, message):
    with pytest.raises(InputError) as caught:
        Policy(**options)
    assert str(caught.value) == message


def test_a_policy_says_all_of_itself():
    policy = Policy(gain="linear", ties="doc_id_descending", nothing_relevant="zero", relevant_from=2)
    words = policy.describe()
    for word in ("linear", "log2", "doc_id_descending", "counted as 0", "from grade 2"):
        assert word in words
    assert Policy(**policy.to_dict()) == policy
    with pytest.raises(TypeError):
        Policy("exp")


def test_log2_is_right_to_1e_12_and_exact_at_powers_of_two():
    ranks = np.concatenate([np.arange(1.0, 200_001.0), np.geomspace(1e-300, 1e300, 20_001)])
    ours = stable_log2(ranks)
    true = np.array([math.log2(x) for x in ranks])
    assert np.max(np.abs(ours - true) / np.maximum(1.0, np.abs(true))) <= 1e-15
    powers = np.arange(-1000, 1000)
    np.testing.assert_array_equal(stable_log2(np.ldexp(1.0, powers)), powers)


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_log2_of_any_number(x):
    assert abs(float(stable_log2(np.array([x]))[0]) - math.log2(x)) <= 1e-12


def test_discounts_start_at_one_and_fall():
    d = discounts(1000)
    assert d[0] == 1.0
    assert d[2] == 0.5
    assert np.all(np.diff(d) < 0)
    assert discounts(0).shape == (0,)


def test_gains_are_whole_and_ignore_negative_grades():
    grades = np.array([-2, 0, 1, 4, 52], np.int32)
    assert gains(grades, "exp").tolist() == [0.0, 0.0, 1.0, 15.0, 2.0**52 - 1]
    assert gains(grades, "linear").tolist() == [0.0, 0.0, 1.0, 4.0, 52.0]
    with pytest.raises(InputError, match="gain exp needs grades of at most 52, found 53; ask for linear gain"):
        gains(np.array([53], np.int32), "exp")


def test_stop_probabilities_need_the_scale():
    assert stop_probabilities(np.array([0, 1, 4], np.int32), 4).tolist() == [0.0, 1 / 16, 15 / 16]
    with pytest.raises(InputError, match="give max_grade"):
        stop_probabilities(np.array([1], np.int32), None)
    with pytest.raises(InputError, match="found grade 3, above max_grade 2"):
        stop_probabilities(np.array([3], np.int32), 2)


def test_naming_metrics_loads_no_numeric_library():
    code = "import sys, scorer.metrics; print(sorted({'numpy', 'numba', 'pyarrow', 'polars'} & sys.modules.keys()))"
    root = Path(scorer.metrics.__file__).parents[2]
    assert subprocess.check_output([sys.executable, "-c", code], cwd=root, text=True) == "[]\n"
