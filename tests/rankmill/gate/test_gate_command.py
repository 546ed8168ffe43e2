"""``rankmill models gate`` on a registry: what it records, what a promotion makes of that, and every way to be
refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankmill.cli import execute
from rankmill.foundation.errors import PromotionRefused
from rankmill.foundation.records import as_json, canonical_json
from rankmill.gate.gate_rules import GateOptions, convention_digest
from rankmill.gate.recording import earlier_holders, gate, stored_result
from rankmill.registry import Registry
from rankmill.registry.stored_records import AliasPolicy
from rankmill.scorer.metrics.conventions import named_convention
from tests.rankmill.gate.gate_case import trained
from tests.refusals import refused, unnamed


@pytest.fixture(scope="module")
def data(real):
    return real


@pytest.fixture(scope="module")
def forests(real, model, chance):
    return [model.model, trained(real, n_rounds=16).model, chance.model]


@pytest.fixture
def store(tmp_path: Path, forests) -> Registry:
    """web@1 and web@2 are good, web@3 is chance; production asks for a gate."""
    found = Registry(tmp_path / "registry")
    found.prepare(protected=("production",))
    for forest in forests:
        manifest = {
            "features": list(forest.feature_names), "dataset_digest": forest.info["dataset_digest"],
            "parameters": dict(forest.parameters), "metrics": {},
        }  # fmt: skip
        found.register("web", forest.to_bytes(), manifest=manifest)
    return found


def run(store: Registry, *arguments: str) -> int:
    return execute(["models", *arguments, "--registry", str(store.root)])


def test_first_the_baselines_then_production_and_promotions_cite_their_gates(store, data, capsys) -> None:
    assert run(store, "promote", "web@1") == 11
    assert "rankmill models gate web@1 --on DATASET --alias production" in capsys.readouterr().err
    assert run(store, "gate", "web@1", "--on", str(data.path), "--json") == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["passed"], first["baseline"], first["new"]) == (True, None, True)
    assert [row["against"] for row in first["report"]["comparisons"]] == ["row order", "best single feature"]
    assert run(store, "promote", "web@1") == 0
    assert store.log("web")[-1].change.gate == first["entry"]
    assert run(store, "gate", "web@2", "--on", str(data.path), "--margin", "1", "--max-cost-ratio", "9", "--json") == 0
    capsys.readouterr()
    assert run(store, "promote", "web@2") == 0
    assert store.state("web").target("production") == 2
    capsys.readouterr()


def test_who_does_not_pass_is_recorded_too_and_leaves_with_11(store, data, capsys) -> None:
    assert run(store, "gate", "web@1", "--on", str(data.path)) == 0
    assert run(store, "promote", "web@1") == 0
    capsys.readouterr()
    assert run(store, "gate", "web", "--on", str(data.path)) == 11  # a bare name is the latest version
    out, err = capsys.readouterr()
    assert not unnamed(out, "web@3", "not pass")
    assert not unnamed(err, "web@3", "gate", "production", "ndcg@10", "web@1")
    assert err.count("\n") == 1
    entry = store.log("web")[-1].change
    assert (entry.op, entry.version, entry.passed, entry.baseline) == ("gate", 3, False, 1)
    assert run(store, "promote", "web@3") == 11
    assert not unnamed(capsys.readouterr().err, "version 3", "gate")
    assert store.state("web").target("production") == 1
    assert run(store, "promote", "web@3", "--force") == 0
    assert store.log("web")[-1].change.op == "force"


def test_the_last_holders_of_the_alias_are_rivals_but_not_those_rolled_back_from(store, data) -> None:
    for number in (1, 2, 3):
        store.promote("web", number, force=True)
    asked = GateOptions(margin=1.0, allow_significantly_worse=True)
    worst = gate(store, "web@1", data, "test", asked=asked).report
    assert [each.against for each in worst.comparisons] == ["baseline", "best recent version"]
    assert worst.comparisons[1].words.startswith("web@2, the best of the last 2 versions")
    one = gate(store, "web@1", data, "test", asked=GateOptions(margin=1.0, best_of_last=1)).report
    assert [each.against for each in one.comparisons] == ["baseline"]
    store.rollback("web", to=1)
    store.promote("web", 3, force=True)
    assert [each.number for each in earlier_holders(store, store.resolve("web@2"), asked)] == [1]


def test_the_same_gate_again_writes_nothing_and_its_report_is_shown_again(store, data, capsys) -> None:
    result = gate(store, "web@1", data, "test", n_threads=1)
    head = store.state("web").head
    again = gate(store, "web@1", data, "test", n_threads=2)
    assert (result.new, again.new) == (True, False)
    assert store.state("web").head == head
    assert (again.entry, again.report) == (result.entry, result.report)
    found = stored_result(store, "web@1")
    assert found.report == result.report
    assert run(store, "gate", "web@1", "--show", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert canonical_json(shown["report"]) == canonical_json(as_json(result.report))
    assert run(store, "gate", "web@1", "--show") == 0
    assert "web@1 passed" in capsys.readouterr().out
    assert run(store, "gate", "web@2", "--show") == 2
    assert not unnamed(capsys.readouterr().err, "web@2", "production", "rankmill models gate web@2 --on DATASET")
    gate(store, "web@3", data, "test")
    assert run(store, "gate", "web@3", "--show") == 0  # looking is no verdict


def test_metric_margin_and_convention_are_what_the_alias_asks_for(store, data, capsys) -> None:
    trec = convention_digest(named_convention("trec"))
    store.protect("web", "production", AliasPolicy(metric="ndcg@5", margin=0.5, convention=trec))
    result = gate(store, "web@1", data, "test")
    assert (result.report.metric, result.report.margin) == ("ndcg@5", 0.5)
    assert result.report.convention.name == "trec"
    assert result.shortfall is None
    store.promote("web", 1)
    other = gate(store, "web@2", data, "test", asked=GateOptions(metric="map", max_cost_ratio=9.0))
    assert other.report.metric == "map"
    assert other.shortfall == "expected metric ndcg@5, found map; --metric (metric in [gate]) sets it"
    assert "it does not allow a promotion: expected metric" in other.render()
    with refused(PromotionRefused, "alias"):
        store.promote("web", 2)
    store.protect("web", "production", AliasPolicy(convention="0" * 64))
    assert run(store, "gate", "web@1", "--on", str(data.path)) == 2
    assert not unnamed(capsys.readouterr().err, "no name")
    store.protect("web", "production", AliasPolicy(metric="ndgc@10"))
    assert run(store, "gate", "web@1", "--on", str(data.path)) == 2
    assert run(store, "alias", "web", "production", "--protect", "--metric", "ndgc@10") == 2
    assert not unnamed(capsys.readouterr().err, "policy", "ndgc@10", "'ndgc'")


def test_a_production_that_moved_meanwhile_asks_for_another_gate(store, data) -> None:
    gate(store, "web@1", data, "test")
    gate(store, "web@2", data, "test")
    store.promote("web", 1)
    with refused(PromotionRefused, "compared"):
        store.promote("web", 2)


def test_a_mistake_is_one_line_and_records_nothing(store, data, capsys) -> None:
    head = store.state("web").head
    for arguments, line in (
        ("web@1", "no dataset given; name one with --on DATASET"),
        ("web@9 --on DATA", "web has no version 9"),
        ("web@1 --on DATA --split train", "--split train: web@1 was trained on these queries"),
        ("web@1 --on DATA --split tset", "unknown split 'tset'; did you mean 'test'?"),
        ("web@1 --on DATA --metric ncdg", "unknown metric 'ncdg'; did you mean 'ndcg'?"),
        ("web@1 --on DATA --convention trek", "unknown convention 'trek'; did you mean 'trec'?"),
        ("web@1 --on DATA.x", "no such dataset"),
        ("web@1 --on DATA --alias 7", "not digits alone"),
    ):
        assert run(store, "gate", *arguments.replace("DATA", str(data.path), 1).split()) == 2
        assert line in capsys.readouterr().err
    assert store.state("web").head == head


@pytest.mark.parametrize("report", [{}, {"format": 2}], ids=str)
def test_a_report_of_another_gate_is_named_instead_of_shown(store, capsys, report: dict[str, object]) -> None:
    outcome = {
        "version": 1,
        "alias": "production",
        "passed": True,
        "baseline": None,
        "dataset": "d" * 64,
        "split": "test",
    }
    outcome |= {"metric": "ndcg@10", "convention": "c" * 64, "margin": 0.002}
    found = store.record_gate("web", outcome, report)
    assert run(store, "gate", "web@1", "--show") == 13
    assert not unnamed(capsys.readouterr().err, "web@1", f"entry {found.number}", "format")
    assert run(store, "show", "web@1") == 0
