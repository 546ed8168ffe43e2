"""Who passes the gate: laws of the verdict on models whose worth is known, and what the report is bound to."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from rankmill.foundation.errors import CandidatesRejected, InputError
from rankmill.foundation.records import canonical_json, from_json
from rankmill.gate import judging
from rankmill.gate.gate_report import GateReport
from rankmill.gate.gate_rules import GateRules, convention_digest
from rankmill.gate.rankings import GradedQueries
from rankmill.pipeline.group.sketch import QuerySketch
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.metrics import parse_metric
from rankmill.scorer.metrics.conventions import named_convention
from tests.rankmill.gate.gate_case import contender, dataset_of, judge, renamed, rows_of, trained, with_leaves
from tests.refusals import refused, unnamed


def decisive(report):
    return [comparison["metrics"][report["metric"]] for comparison in report["comparisons"]]


def test_the_same_model_again_passes_with_a_difference_of_exactly_nothing(real, model) -> None:
    report = judge(renamed(model, "web@2"), model, real, "test", GateRules())
    assert report["passed"]
    assert report["reasons"] == []
    for found in report["comparisons"][0]["metrics"].values():
        assert found["difference"] == 0.0
        assert found["interval"] == [0.0, 0.0]
        assert found["candidate"] == found["other"]
        assert found["worst"] == []
    assert {rail["verdict"] for rail in report["guardrails"]} == {"passed", "noted"}
    itself = judge(model, model, real, "test", GateRules())
    assert "web@1 is the current version: it was compared with itself" in itself["notes"]


def test_chance_does_not_pass_against_a_real_model_nor_against_the_baselines(real, model, chance) -> None:
    against = judge(chance, model, real, "test", GateRules())
    assert not against["passed"]
    (found,) = decisive(against)
    assert found["difference"] < -0.05
    assert found["interval"][1] < 0
    assert "ndcg@10 against web@1" in against["reasons"][0]
    first = judge(chance, None, real, "test", GateRules())
    assert not first["passed"]
    assert [comparison["passed"] for comparison in first["comparisons"]] == [False, False]


def test_a_real_model_passes_the_baselines_and_replaces_chance(real, model, chance) -> None:
    first = judge(model, None, real, "test", GateRules())
    assert first["passed"], first["reasons"]
    order, single = first["comparisons"]
    assert (order["rule"], single["rule"]) == ("better", "not shown to be worse")
    assert "document id" in order["words"]
    assert "f1, highest first" in single["words"]
    assert judge(model, chance, real, "test", GateRules())["passed"]


def test_a_slightly_worse_model_is_a_question_of_the_margin(real, model) -> None:
    worse = with_leaves(model, lambda values: values + np.random.default_rng(3).normal(scale=0.02, size=len(values)))
    loose = judge(renamed(worse, "web@2"), model, real, "test", GateRules(margin=1.0))
    assert loose["passed"]
    low = decisive(loose)[0]["interval"][0]
    assert low < 0
    at = judge(renamed(worse, "web@2"), model, real, "test", GateRules(margin=-low))
    assert not at["passed"]  # the lower end must be above it, not on it
    assert judge(renamed(worse, "web@2"), model, real, "test", GateRules(margin=-low * (1 + 1e-12)))["passed"]


def test_a_failed_gate_names_the_smallest_margin_that_passes_and_the_queries_of_the_default(real, model) -> None:
    def noisy(seed):
        rng = np.random.default_rng(seed)
        return renamed(with_leaves(model, lambda values: values + rng.normal(scale=0.04, size=len(values))), "web@2")

    def limits(other):
        return decisive(judge(other, model, real, "test", GateRules()))[0]["interval"]

    other = next(each for each in map(noisy, range(30)) if limits(each)[0] < -0.006 and limits(each)[1] > 0.0)
    for margin in (0.0, 0.002, 0.003):
        (reason,) = judge(other, model, real, "test", GateRules(margin=margin))["reasons"]
        least = float(re.search(r"smallest margin that would pass is ([0-9.]+)", reason)[1])
        assert judge(other, model, real, "test", GateRules(margin=least))["passed"]
        assert not judge(other, model, real, "test", GateRules(margin=least - 0.0001))["passed"]
        assert re.search(r"about [0-9,]+ such queries", reason) or "too few queries" in reason
        assert ("default margin of 0.002 needs about" in reason) == (margin != 0.002)


def test_a_significantly_worse_model_is_refused_within_any_margin_unless_allowed(real, model) -> None:
    worse = with_leaves(model, lambda values: values + np.random.default_rng(3).normal(scale=0.06, size=len(values)))
    worse = renamed(worse, "web@2")
    refused_, allowed = (
        judge(worse, model, real, "test", GateRules(margin=1.0, allow_significantly_worse=allow))
        for allow in (False, True)
    )
    low, high = decisive(refused_)[0]["interval"]
    assert high < 0
    assert not refused_["passed"]
    assert "--allow-significantly-worse (allow_significantly_worse in [gate])" in refused_["reasons"][0]
    assert "significantly worse" in judging.judge(worse, model, real, "test", GateRules(margin=1.0)).render()
    assert allowed["passed"]
    assert allowed["worse"] is True
    assert any("SIGNIFICANTLY WORSE" in note for note in allowed["notes"])
    assert "worse" not in judge(renamed(model, "web@2"), model, real, "test", GateRules(allow_significantly_worse=True))
    within = GateRules(margin=-low / 2, allow_significantly_worse=True)
    assert not judge(worse, model, real, "test", within)["passed"]


def test_the_best_of_the_last_versions_is_a_rival_too(tmp_path, real, model, chance) -> None:
    """Each night is a little worse than the one before, within a margin that allows that."""
    noise = np.random.default_rng(3).normal(scale=0.004, size=len(model.model.node_value))
    nights = [
        renamed(with_leaves(model, lambda values, night=night: values + night * noise), f"web@{night + 1}")
        for night in range(20)
    ]
    margin = 0.04
    rules = GateRules(margin=margin, allow_significantly_worse=True)
    gaps = [decisive(judge(each, nights[0], real, "test", rules))[0] for each in nights]
    last = next(i for i, gap in enumerate(gaps) if gap["interval"][0] < -margin)
    present = nights[last - 1]
    alone = judge(nights[last], present, real, "test", rules)
    assert alone["passed"]
    assert [each["against"] for each in alone["comparisons"]] == ["baseline"]
    report = judge(nights[last], present, real, "test", rules, earlier=[chance, nights[0]])
    first, best = report["comparisons"]
    assert first == alone["comparisons"][0]
    assert (best["against"], best["rule"], best["passed"]) == ("best recent version", "not worse", False)
    assert "web@1, the best of the last 3 versions" in best["words"]
    assert best["metrics"]["ndcg@10"] == gaps[last]
    assert "web@1" in report["reasons"][0]
    assert not report["passed"]
    better = judge(nights[0], present, real, "test", rules, earlier=[chance])
    assert [each["against"] for each in better["comparisons"]] == ["baseline"]  # it is the best itself


def test_an_earlier_version_that_cannot_be_compared_is_named(tmp_path, real, model, chance) -> None:
    x, grades, qid = rows_of(1)
    wide = trained(dataset_of(tmp_path, "wide", np.hstack([np.zeros_like(x), x]), grades, qid), "web@7")
    some = real.queries("test").qid[:1].to_pylist()
    seen = replace(model, name="web@8", train_queries=QuerySketch.of([some]))
    report = judge(renamed(model, "web@9"), chance, real, "test", GateRules(), earlier=[wide, seen])
    assert [each["against"] for each in report["comparisons"]] == ["baseline"]
    facts = "web@7", "missing from this dataset", "web@8", "trained on some of these queries"
    assert not unnamed("; ".join(report["notes"]), facts)
    rules = GateRules(allow_seen_queries=True)
    allowed = judge(renamed(model, "web@9"), chance, real, "test", rules, earlier=[wide, seen])
    assert "web@8" in allowed["comparisons"][1]["words"]


def test_the_report_has_the_same_bytes_for_any_number_of_threads(real, model, chance) -> None:
    for baseline in (chance, None):
        reports = [canonical_json(judge(model, baseline, real, "test", GateRules(), n_threads=n)) for n in (1, 2, 3)]
        assert reports[0] == reports[1] == reports[2]
        again = json.loads(reports[0])
        assert canonical_json(again) == reports[0]
        assert from_json(GateReport, again, "report") == judging.judge(model, baseline, real, "test", GateRules())


def test_where_the_rows_lie_changes_nothing(tmp_path, real, model, chance) -> None:
    """The same rows in other shards: queries are taken by their ids, so the same are drawn."""
    x, grades, qid = rows_of(1)
    elsewhere = dataset_of(tmp_path, "elsewhere", x, grades, qid, buckets=7)
    assert elsewhere.digest != real.digest
    for baseline in (chance, None):
        here, there = (judge(model, baseline, data, "test", GateRules()) for data in (real, elsewhere))
        assert here["comparisons"] == there["comparisons"]
        assert here["guardrails"] == there["guardrails"]
        assert here["queries"] == there["queries"]


@pytest.mark.parametrize("convention", ["trec", "yahoo"])
def test_the_means_and_intervals_are_those_of_evaluate(real, model, chance, convention) -> None:
    """Whatever breaks ties, the gate's figures are the ones that `rankmill evaluate` prints."""
    rules = GateRules(convention=named_convention(convention), metric=parse_metric("ndcg@5"))
    report = judge(model, chance, real, "test", rules)
    metrics = [*report["comparisons"][0]["metrics"]]
    for which, each in (("candidate", model), ("other", chance)):
        printed = evaluate(real.path, model=each.model, split="test", metrics=metrics, convention=convention)
        for metric, mean in printed.means.items():
            assert report["comparisons"][0]["metrics"][str(metric)][which] == mean


def test_queries_are_in_the_order_of_their_ids_with_their_own_rows(real) -> None:
    queries = GradedQueries.of(real, "test", named_convention("rankmill"), [])
    assert queries.main.qids == sorted(queries.main.qids)
    table = real.rows("test", ("qid", "grade"))
    place = queries.main.scores.astype(int)
    rows = table.take(place)
    assert rows.column("grade").to_pylist() == queries.main.grades.tolist()
    sizes = np.diff(queries.main.starts)
    assert rows.column("qid").to_pylist() == np.repeat(np.array(queries.main.qids, dtype=object), sizes).tolist()
    assert sorted(place) == list(range(table.num_rows))


def test_the_single_feature_is_the_best_of_both_directions_on_these_queries(tmp_path) -> None:
    """A feature upside down, with holes: the bar finds it, and documents without it stand last."""
    x, grades, qid = rows_of(5)
    x[:, 2] = -grades + 0.01 * x[:, 2]
    holes = (grades == 0) & (np.arange(len(grades)) % 3 == 0)
    x[holes, 2] = np.nan
    dataset = dataset_of(tmp_path, "upside-down", x, grades, qid)
    model = trained(dataset)
    report = judge(model, None, dataset, "test", GateRules())
    single = report["comparisons"][1]
    assert "f3, lowest first" in single["words"]
    assert single["metrics"]["ndcg@10"]["other"] == pytest.approx(1.0)


def test_positions_are_the_order_of_the_rows_where_there_are_any(tmp_path) -> None:
    x, grades, qid = rows_of(6)
    shown = np.empty(len(grades), dtype=int)
    for q in range(qid[-1] + 1):
        rows = np.flatnonzero(qid == q)
        shown[rows[np.argsort(-grades[rows], kind="stable")]] = np.arange(1, len(rows) + 1)
    dataset = dataset_of(tmp_path, "shown", x, grades, qid, extra={"position": shown})
    report = judge(trained(dataset), None, dataset, "test", GateRules())
    order = report["comparisons"][0]
    assert order["words"] == "the order of the column position"
    assert order["metrics"]["ndcg@10"]["other"] == pytest.approx(1.0)
    assert not report["passed"]  # nobody is better than the perfect order


def test_a_split_that_a_model_was_trained_on_is_refused(tmp_path, real, model, chance) -> None:
    with refused(InputError, "split train", "web@1", "trained"):
        judge(model, None, real, "train", GateRules())
    stranger = contender(chance.model, "web@9")
    with refused(InputError, "split train", "web@1"):
        judge(stranger, model, real, "train", GateRules())
    other = dataset_of(tmp_path, "other", *rows_of(11, queries=40), split=None)
    assert judge(model, chance, other, "train", GateRules())["split"] == "train"
    valid = judge(model, None, real, "valid", GateRules())
    assert valid["notes"][0] == "the split valid decided when the training of web@1 stopped"
    assert valid["notes"][1].endswith(" queries are few: with fewer than 50 the interval is too narrow")
    with refused(InputError, "split 'test'", "train", "split train=", "split train"):
        judge(model, None, other, "test", GateRules())


def test_too_few_queries_are_refused_with_the_reason(tmp_path, model) -> None:
    x, grades, qid = rows_of(7, queries=3)
    grades[qid > 0] = 0
    dataset = dataset_of(tmp_path, "few", x, grades, qid, split=None)
    with refused(CandidatesRejected, "1", "3", "split train", "ndcg@10"):
        judge(contender(model.model, "web@1"), None, dataset, "train", GateRules())


def widened(x, grades, qid, more, documents, grade):
    """The rows with ``more`` queries of some documents of one grade."""
    rng = np.random.default_rng(3)
    n = more * documents
    return (
        np.concatenate([x, rng.normal(size=(n, x.shape[1])).astype(np.float32)]),
        np.append(grades, np.full(n, grade)),
        np.append(qid, qid.max() + 1 + np.repeat(np.arange(more), documents)),
    )


@pytest.mark.parametrize(("documents", "grade", "nothing_relevant"), [(1, 1, "skip"), (4, 2, "zero"), (1, 0, "one")])
def test_queries_in_which_no_two_versions_can_differ_decide_nothing(
    tmp_path, model, chance, documents, grade, nothing_relevant
) -> None:
    x, grades, qid = rows_of(7, queries=30)
    rules = GateRules(
        convention=named_convention("rankmill").but(nothing_relevant=nothing_relevant),
        also={parse_metric("map"): 0.1, parse_metric("precision@10"): 0.1},
    )
    some = dataset_of(tmp_path, "some", x, grades, qid, split=None)
    wide = dataset_of(tmp_path, "wide", *widened(x, grades, qid, 60, documents, grade), split=None)
    worse, better = contender(chance.model, "web@2"), contender(model.model, "web@1")
    report, of_all = (judge(worse, better, dataset, "train", rules) for dataset in (some, wide))
    assert of_all["comparisons"] == report["comparisons"]
    assert of_all["queries"]["queries"] == 90
    assert decisive(of_all)[0]["n_queries"] == len({q for q in qid if len(set(grades[qid == q])) > 1})
    first, first_of_all = (judge(better, None, dataset, "train", replace(rules, also={})) for dataset in (some, wide))
    assert (
        first_of_all["comparisons"][1] == first["comparisons"][1]
    )  # the order of rows depends on the number of documents
    alone = widened(x[:0], grades[:0], np.array([0]), 60, documents, grade)
    alone = dataset_of(tmp_path, "alone", alone[0], alone[1], alone[2][1:], split=None)
    for baseline in (better, None):
        with refused(CandidatesRejected, "0 of 60", "ndcg@10", "split train"):
            judge(worse, baseline, alone, "train", rules)


def test_a_metric_that_distinguishes_grades_in_few_queries_is_refused(tmp_path, model) -> None:
    x, grades, qid = rows_of(7, queries=30)
    grades = np.where(grades > 0, grades, 1)
    dataset = dataset_of(tmp_path, "above", x, grades, qid, split=None)
    ours = contender(model.model, "web@1")
    assert judge(renamed(ours, "web@2"), ours, dataset, "train", GateRules())["passed"]
    for rules in (GateRules(metric=parse_metric("map")), GateRules(also={parse_metric("mrr"): 0.1})):
        with refused(CandidatesRejected, "0 of 30", "split train"):
            judge(renamed(ours, "web@2"), ours, dataset, "train", rules)


def test_a_model_that_asks_for_a_feature_that_is_not_there_is_refused(tmp_path, model) -> None:
    x, grades, qid = rows_of(8, queries=20)
    narrow = dataset_of(tmp_path, "narrow", x[:, :1], grades, qid, split=None)
    with refused(CandidatesRejected, "web@1", "f2"):
        judge(contender(model.model, "web@1"), None, narrow, "train", GateRules())


def test_the_report_is_bound_to_what_it_is_about(real, model, chance) -> None:
    report = judge(model, chance, real, "test", GateRules())
    assert report["candidate"] == {"version": "web@1", "model": model.sha256, "manifest": "0" * 64}
    assert report["baseline"]["model"] == chance.sha256
    assert report["dataset"] == real.digest
    assert report["queries"]["queries"] == len(real.queries("test"))
    assert report["queries"]["digest"] != judge(model, None, real, "valid", GateRules())["queries"]["digest"]
    assert report["convention_sha256"] == convention_digest(named_convention("rankmill"))
    assert report["max_grade"] == 4
    text = json.dumps(report)
    assert str(real.path) not in text


def test_conventions_have_one_digest_each() -> None:
    ours = named_convention("rankmill")
    assert convention_digest(ours) == convention_digest(ours.but(gain="exp"))
    digests = {convention_digest(other) for other in (ours, ours.but(gain="linear"), ours.but(max_grade=4))}
    digests |= {convention_digest(named_convention(name)) for name in ("trec", "lightgbm", "catboost")}
    assert len(digests) == 6


def test_rules_refuse_what_is_no_limit() -> None:
    for name in ("margin", "max_cost_ratio", "max_constant_rise"):
        with refused(InputError, name, "0", "-1"):
            GateRules(**{name: -1.0})
        with pytest.raises(InputError, match=name):
            replace(GateRules(), **{name: float("nan")})


@pytest.mark.parametrize(("top", "convention"), [(60, None), (4, "letor4")])
def test_grades_beyond_the_scale_of_err_leave_it_out_where_it_does_not_decide(tmp_path, top, convention) -> None:
    x, grades, qid = rows_of(12)
    dataset = dataset_of(tmp_path, "amounts", x, grades * (top // 4), qid)
    chosen = named_convention("rankmill").but(gain="linear") if convention is None else named_convention(convention)
    model = trained(dataset, metric="ndcg@10", gain="linear")
    report = judge(model, None, dataset, "test", GateRules(convention=chosen, margin=1.0))
    assert list(report["comparisons"][0]["metrics"]) == ["ndcg@10", "map"]
    with pytest.raises(InputError, match="grade"):
        judge(model, None, dataset, "test", GateRules(convention=chosen, metric=parse_metric("err@10")))


@pytest.mark.parametrize("metric", ["balanced_error(0.5)", "concordance_micro"])
def test_any_metric_may_decide_and_better_is_above_nothing(real, model, chance, metric) -> None:
    """For an error rate too: the better model has the lower rate, and a difference above 0."""
    shifted = with_leaves(model, lambda values: values * 2)
    report = judge(renamed(shifted, "web@2"), chance, real, "test", GateRules(metric=parse_metric(metric)))
    (found,) = decisive(report)
    assert found["difference"] == pytest.approx(abs(found["candidate"] - found["other"]))
    assert found["interval"][0] <= found["difference"] <= found["interval"][1]
    assert report["passed"] == (found["interval"][0] > -0.002)
    first = judge(renamed(shifted, "web@2"), None, real, "test", GateRules(metric=parse_metric(metric)))
    assert "best single feature" in first["comparisons"][1]["words"]
