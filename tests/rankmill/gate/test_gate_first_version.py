"""The first version at the gate, on few queries: what it has to show while nothing serves yet."""

from __future__ import annotations

import re

import pytest

from rankmill.foundation.records import from_json
from rankmill.gate.gate_report import GateReport
from rankmill.gate.gate_rules import GateRules
from tests.rankmill.gate.gate_case import dataset_of, judge, rows_of_one_strong_feature, trained, with_leaves

QUERIES, MARGIN = 105, 0.01
SPLIT = "train"  # all queries of a dataset that is not the one the model was trained on


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return trained(dataset_of(tmp_path_factory.mktemp("training"), "training", *rows_of_one_strong_feature(1, 120)))


@pytest.fixture(scope="module")
def queries_of(tmp_path_factory):
    """Return the dataset of a seed: 105 judged queries that the model has not seen."""
    made = {}

    def of(seed: int):
        if seed not in made:
            rows = rows_of_one_strong_feature(seed, QUERIES)
            made[seed] = dataset_of(tmp_path_factory.mktemp("judged"), "judged", *rows, split=None)
        return made[seed]

    return of


def bars(report):
    """(row order, best single feature): the decisive differences with their intervals."""
    return [comparison["metrics"][report["metric"]] for comparison in report["comparisons"]]


def test_a_first_version_not_distinguished_from_the_best_feature_passes_with_a_note(model, queries_of):
    report = judge(model, None, queries_of(4), SPLIT, GateRules(margin=MARGIN))
    order, feature = bars(report)
    assert order["n_queries"] == QUERIES
    assert order["interval"][0] > 0.0
    low, high = feature["interval"]
    assert low < -MARGIN < 0.0 < high  # neither shown to be worse nor within the margin
    assert feature["difference"] < 0.0
    assert report["passed"], report["reasons"]
    (note,) = report["notes"]
    assert "105 queries cannot show that web@1 is not worse than the best single feature by more than 0.01" in note
    assert f"{low:+.4f} to {high:+.4f}" in note
    assert re.search(r"about [\d,]+ queries like them can if there is no difference", note)
    assert note in from_json(GateReport, report, "report").render()
    assert "must not be significantly worse" in from_json(GateReport, report, "report").render()


def test_a_first_version_that_is_significantly_worse_than_the_best_feature_is_refused(model, queries_of):
    report = judge(model, None, queries_of(3), SPLIT, GateRules(margin=MARGIN))
    order, feature = bars(report)
    assert order["interval"][0] > 0.0
    assert feature["interval"][1] < 0.0
    assert not report["passed"]
    (reason,) = report["reasons"]
    assert "the best single feature" in reason
    assert "significantly worse" in reason
    assert "--margin" in reason
    within = GateRules(margin=-feature["interval"][0] * (1.0 + 1e-12))  # a loss that is shown to be within the margin
    assert judge(model, None, queries_of(3), SPLIT, within)["passed"]
    assert not judge(model, None, queries_of(3), SPLIT, GateRules(margin=-feature["interval"][0]))["passed"]


def test_a_first_version_that_is_not_better_than_the_order_of_rows_is_refused(model, queries_of, tmp_path):
    """Rows that are in a good order by document id already: the model loses nothing to a feature, and is refused."""
    x, grades, qid = rows_of_one_strong_feature(4, QUERIES)
    order = sorted(range(len(qid)), key=lambda row: (qid[row], -x[row, 0]))
    dataset = dataset_of(tmp_path, "in-order", x[order], grades[order], qid[order], split=None)
    report = judge(model, None, dataset, SPLIT, GateRules(margin=1.0))
    assert [comparison["passed"] for comparison in report["comparisons"]] == [False, True]
    assert bars(report)[0]["interval"][0] <= 0.0
    (reason,) = report["reasons"]
    assert "row order" in reason
    assert "no option" in reason
    constant = judge(with_leaves(model, lambda values: values * 0.0), None, dataset, SPLIT, GateRules(margin=1.0))
    assert not constant["passed"]
