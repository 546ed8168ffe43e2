"""A gate with further metrics: the candidate must pass each of them, whatever the others say."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

from rankmill.foundation.errors import InputError, InvalidParameter
from rankmill.foundation.records import as_json, from_json
from rankmill.gate import judging
from rankmill.gate.gate_report import GateReport
from rankmill.gate.gate_rules import GateOptions, GateRules, parse_margins, rules_under
from rankmill.scorer.metrics import parse_metric
from tests.rankmill.gate.gate_case import DOCUMENTS, FEATURES, QUERIES, dataset_of, judge, renamed, trained
from tests.refusals import refused

BOUGHT = parse_metric("ndcg@10:bought")
TRADE = partial(GateRules, allow_significantly_worse=True)  # one metric for another


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """A dataset whose grade follows one feature and whose goal another; the same with the goal as grade; a model of
    each."""
    folder, rng = tmp_path_factory.mktemp("gate"), np.random.default_rng(1)
    n = QUERIES * DOCUMENTS
    x = rng.normal(size=(n, FEATURES)).astype(np.float32)
    grade, bought = (np.clip(np.round(x[:, f] + 1), 0, top).astype(int) for f, top in ((0, 4), (1, 2)))
    qid = np.repeat(np.arange(QUERIES), DOCUMENTS)
    both = dataset_of(folder, "both", x, grade, qid, extra={"bought": bought}, goals=("bought",))
    main = dataset_of(folder, "main", x, bought, qid)
    return both, main, trained(both, "grade@1"), trained(main, "bought@1")


def further(report):
    return {each["metric"]: each["passed"] for each in report["comparisons"][0].get("also", ())}


def test_each_objective_decides_on_its_own(cases):
    both, _, of_grade, of_goal = cases
    rules = GateRules(also={BOUGHT: 0.005})
    same = judge(renamed(of_grade, "grade@2"), of_grade, both, "test", rules)
    assert same["passed"]
    assert further(same) == {"ndcg@10:bought": True}
    worse = judge(of_grade, of_goal, both, "test", rules)
    assert not worse["passed"]
    assert worse["comparisons"][0]["passed"]
    assert further(worse) == {"ndcg@10:bought": False}
    (reason,) = worse["reasons"]
    assert reason.startswith("ndcg@10:bought against bought@1")
    assert "--also" in reason
    better = judge(of_goal, of_grade, both, "test", rules)
    assert not better["passed"]
    assert not better["comparisons"][0]["passed"]
    assert further(better) == {"ndcg@10:bought": True}
    assert len(better["reasons"]) == 1


@pytest.mark.parametrize("name", ["ndcg@10", "err@5"])
def test_a_goal_is_judged_as_if_it_were_the_grade(cases, name):
    both, main, of_grade, of_goal = cases
    metric, of_main = parse_metric(f"{name}:bought"), parse_metric(name)
    expected = judge(of_grade, of_goal, main, "test", GateRules(metric=of_main))
    decided = judge(of_grade, of_goal, both, "test", GateRules(metric=metric))
    also = judge(of_grade, of_goal, both, "test", GateRules(metric=parse_metric("mrr"), also={metric: 0.002}))
    # models of other data: their own highest grade counts there
    if name != "err@5":
        for report in (decided, also):
            assert report["comparisons"][0]["metrics"][str(metric)] == expected["comparisons"][0]["metrics"][name]
    assert decided["comparisons"][0]["metrics"][str(metric)] == also["comparisons"][0]["metrics"][str(metric)]
    assert decided["passed"] == further(also)[str(metric)]
    first = judge(of_grade, None, both, "test", GateRules(metric=metric))
    assert "f2, highest first" in first["comparisons"][1]["words"]


def test_any_metric_may_be_a_further_one(cases):
    both, _, of_grade, of_goal = cases
    rules = TRADE(metric=BOUGHT, also={parse_metric("ndcg@10"): 0.01, parse_metric("balanced_error"): 1.0})
    report = judging.judge(of_grade, of_goal, both, "test", rules)
    assert further(as_json(report)) == {"balanced_error": True, "ndcg@10": True}
    assert not report.comparisons[0].passed
    text = report.render()
    assert "ndcg@10 must not be worse by more than 0.01: passed" in text
    assert from_json(GateReport, json.loads(json.dumps(as_json(report))), "report") == report


def test_a_loss_within_the_margin_of_a_further_metric_is_refused_if_it_is_significant(cases):
    both, _, of_grade, of_goal = cases
    report = judge(of_grade, of_goal, both, "test", GateRules(also={BOUGHT: 1.0}))
    assert report["comparisons"][0]["metrics"]["ndcg@10:bought"]["interval"][1] < 0
    assert (report["passed"], further(report)) == (False, {"ndcg@10:bought": False})
    assert "--allow-significantly-worse" in report["reasons"][0]
    allowed = judge(of_grade, of_goal, both, "test", TRADE(also={BOUGHT: 1.0}))
    assert (allowed["passed"], allowed["worse"]) == (True, True)
    low = report["comparisons"][0]["metrics"]["ndcg@10:bought"]["interval"][0]
    for margin, passes in ((-low + 1e-9, True), (-low - 1e-9, False)):
        assert judge(of_grade, of_goal, both, "test", TRADE(also={BOUGHT: margin}))["passed"] == passes
    assert any("SIGNIFICANTLY WORSE" in note and "ndcg@10:bought" in note for note in allowed["notes"])


def test_without_further_metrics_the_report_is_as_before(cases):
    both, _, of_grade, of_goal = cases
    report = judge(of_grade, of_goal, both, "test", GateRules())
    assert all("also" not in comparison for comparison in report["comparisons"])
    first = judge(of_grade, None, both, "test", GateRules(also={BOUGHT: 0.1}))
    assert first["reasons"] == judge(of_grade, None, both, "test", GateRules())["reasons"]
    assert any("ndcg@10:bought" in note and "no current version" in note for note in first["notes"])
    assert all("also" not in comparison for comparison in first["comparisons"])


def test_malformed_margins():
    assert parse_margins(["a=1", "rbp(p=0.8)=0.5"]) == {"a": 1.0, "rbp(p=0.8)": 0.5}
    options = GateOptions(also={"rbp(p=0.80)": 1, "map": 0.5})
    assert options.also == {"map": 0.5, "rbp(0.8)": 1.0}
    assert rules_under(None, options).also == {parse_metric("map"): 0.5, parse_metric("rbp(0.8)"): 1.0}
    for text in ("map", "=1", "map=", "map=x"):
        with refused(InvalidParameter, "also", repr(text)):
            parse_margins([text])
    for also, fact in (
        ({"ncdg": 0.1}, "ncdg"),
        ({"map": -0.1}, "-0.1"),
        ({"map": float("nan")}, "nan"),
        ({"map": "much"}, "much"),
        ({"rbp(0.8)": 0.1, "rbp(p=0.8)": 0.2}, "twice"),
    ):
        with refused(InvalidParameter, "also", fact):
            GateOptions(also=also)
    with refused(InvalidParameter, "also", "ndcg@10", "margin"):
        rules_under(None, GateOptions(also={"ndcg@10": 0.1}))


def test_what_the_data_lack_is_refused(cases):
    both, main, of_grade, of_goal = cases
    with refused(InputError, "ndcg@10:bought", "no goal"):
        judge(of_grade, of_goal, main, "test", GateRules(also={BOUGHT: 0.1}))
    with refused(InputError, "map:goals", "training"):
        judge(of_grade, of_goal, both, "test", GateRules(metric=parse_metric("map:goals")))
    with refused(InputError, "map:sold", "bought"):
        judge(of_grade, of_goal, both, "test", GateRules(also={parse_metric("map:sold"): 0.1}))
    nothing = {parse_metric("precision@10:bought"): 0.1}
    assert judge(of_grade, of_grade, both, "test", GateRules(also=nothing))["passed"]
