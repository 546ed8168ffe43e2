"""Every guardrail trips on a case made for it, and lets pass what is next to it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from typer.main import get_command

from rankmill import cli_models
from rankmill.foundation.options import defaults_of
from rankmill.gate import guardrails, judging
from rankmill.gate.gate_rules import LIMITS, NO_OPTION, GateOptions, GateRules
from rankmill.gate.rankings import scores_of
from rankmill.pipeline.group.sketch import Overlap, QuerySketch, overlap
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.forest.predict import ForestPredictor
from tests import naive_gate
from tests.rankmill.gate.gate_case import judge, renamed, trained, with_leaves
from tests.scorer.forests import random_forest


def rail(report, name):
    return next(row for row in report["guardrails"] if row["name"] == name)


def test_every_check_that_can_fail_names_the_option_that_changes_it(real, model) -> None:
    """In the reason of a refusal: an option of ``models gate`` and the key of ``[gate]``, or that there is none."""
    starts = np.array([0, 2, 4])
    ordered, flat = np.arange(4.0), np.zeros(4)
    dear = ForestPredictor(trained(real, "web@2", n_rounds=60, max_leaves=12).model)
    failed = {
        "finite": guardrails.finite_scores(np.array([np.nan])),
        "no list ordered": guardrails.constant_scores(flat, ordered, starts, 1.0),
        "more constant": guardrails.constant_scores(np.array([0.0, 0.0, 1.0, 2.0]), ordered, starts, 0.1),
        "features": guardrails.features(["a"], ["b"], allowed=False),
        "cost": guardrails.cost(dear, ForestPredictor(model.model), 2.0),
        "seen": guardrails.seen_queries({"web@1": Overlap(found=1, looked_at=3, queries=3)}, allowed=False),
    }
    assert {rail.verdict for rail in failed.values()} == {"failed"}
    options = {option for each in get_command(cli_models.app).commands["gate"].params for option in each.opts}
    named = set()
    for rail in failed.values():
        if rail.option is None:
            assert rail.reason.endswith(NO_OPTION)
            continue
        named.add(rail.option)
        flag = f"--{rail.option.replace('_', '-')}"
        assert f"{flag} ({rail.option} in [gate])" in rail.reason
        assert flag in options
        assert rail.option in defaults_of(GateOptions)
    assert named == {*LIMITS} - {"allow_significantly_worse", "best_of_last"}  # of the comparison
    assert [name for name, rail in failed.items() if rail.option is None] == ["finite", "no list ordered"]
    assert "limit 2; --max-cost-ratio (max_cost_ratio in [gate]) sets the limit" in failed["cost"].reason


def test_scores_that_are_not_finite_fail_and_stand_last(monkeypatch: pytest.MonkeyPatch, real, model) -> None:
    """No sound model file has them; should a scorer ever make them, they must not pass."""

    def broken(*arguments, **options):
        scores, baseline = scores_of(*arguments, **options)
        scores[::7], scores[1::7] = np.nan, np.inf
        return [scores, baseline]

    monkeypatch.setattr(judging, "scores_of", broken)
    report = judge(renamed(model, "web@2"), model, real, "test", GateRules())
    found = rail(report, "finite scores")
    assert found["verdict"] == "failed"
    assert found["value"] == sum(len(range(first, report["queries"]["documents"], 7)) for first in (0, 1))
    assert any(reason.startswith("finite scores: ") for reason in report["reasons"])
    assert guardrails.finite_scores(np.array([0.0, np.nan, np.inf])).value == 2
    assert guardrails.finite_scores(np.zeros(3)).verdict == "passed"


def test_a_model_with_constant_scores_fails(real, model) -> None:
    constant = with_leaves(model, np.zeros_like)
    for baseline in (model, None):
        report = judge(renamed(constant, "web@2"), baseline, real, "test", GateRules(margin=1.0))
        found = rail(report, "constant scores")
        assert (found["verdict"], found["value"]) == ("failed", 1.0)
    assert (
        rail(judge(renamed(constant, "web@3"), constant, real, "test", GateRules()), "constant scores")["value"] == 1.0
    )
    assert not judge(renamed(constant, "web@3"), constant, real, "test", GateRules())["passed"]


def test_the_share_of_constant_queries_is_held_against_the_baseline() -> None:
    starts = np.array([0, 1, 3, 6, 10, 10, 12])
    rng = np.random.default_rng(1)
    for _ in range(20):
        scores = rng.integers(0, 2, 12).astype(float)
        before = rng.integers(0, 2, 12).astype(float)
        share, former = (naive_gate.constant_share(each, starts) for each in (scores, before))
        found = guardrails.constant_scores(scores, before, starts, 0.25)
        assert found.value == share
        assert found.limit == former + 0.25
        assert (found.verdict == "passed") == (share < 1.0 and share <= former + 0.25)
    single = guardrails.constant_scores(np.zeros(3), None, np.array([0, 1, 2, 3]), 0.0)
    assert single.verdict == "noted"
    assert guardrails.constant_scores(np.full(2, np.nan), None, np.array([0, 2]), 0.0).verdict == "failed"


def test_features_that_come_go_or_change_places_fail_unless_allowed() -> None:
    before = ["a", "b", "c"]
    assert guardrails.features(before, before, allowed=False).verdict == "passed"
    assert guardrails.features(before, None, allowed=False).verdict == "noted"
    for now, value in (
        (["a", "b", "c", "d"], {"added": ["d"], "removed": [], "reordered": False}),
        (["a", "b"], {"added": [], "removed": ["c"], "reordered": False}),
        (["b", "a", "c"], {"added": [], "removed": [], "reordered": True}),
        (["c", "d", "a"], {"added": ["d"], "removed": ["b"], "reordered": True}),
    ):
        found = guardrails.features(now, before, allowed=False)
        assert (found.verdict, found.value) == ("failed", value)
        assert guardrails.features(now, before, allowed=True).verdict == "passed"


@pytest.mark.parametrize("seed", range(2))
def test_the_cost_is_that_of_a_walk_written_down(seed: int) -> None:
    forest = random_forest(seed, n_trees=5, max_leaves=12)
    assert ForestPredictor(forest).comparisons == naive_gate.comparisons_of(forest)


def test_a_model_of_more_than_twice_the_cost_fails(real, model) -> None:
    large = trained(real, "web@2", n_rounds=60, max_leaves=12)
    report = judge(large, model, real, "test", GateRules())
    found = rail(report, "cost")
    assert found["verdict"] == "failed"
    assert found["value"]["ratio"] == found["value"]["candidate"] / found["value"]["baseline"] > 2.0
    assert rail(judge(large, model, real, "test", GateRules(max_cost_ratio=100.0)), "cost")["verdict"] == "passed"
    assert rail(judge(model, large, real, "test", GateRules()), "cost")["verdict"] == "passed"
    assert rail(judge(large, None, real, "test", GateRules()), "cost")["verdict"] == "noted"


def test_a_baseline_without_trees_does_not_divide_by_nothing() -> None:
    empty: Forest = random_forest(1).truncated(0)
    some = ForestPredictor(random_forest(1))
    assert guardrails.cost(some, ForestPredictor(empty), 2.0).verdict == "failed"
    assert guardrails.cost(ForestPredictor(empty), ForestPredictor(empty), 2.0).verdict == "passed"


def test_queries_that_a_model_was_trained_on_fail_unless_allowed(real, model) -> None:
    qids = real.queries("test").qid
    strangers = replace(model, train_queries=QuerySketch.of([["x", "y"]]), name="web@2")
    clean = judge(strangers, model, real, "test", GateRules())
    assert clean["passed"]
    assert "web@1 has no sketch" in rail(clean, "seen queries")["words"]
    seen = replace(model, train_queries=QuerySketch.of([qids.slice(0, 3)]))
    for candidate, baseline in ((replace(seen, name="web@2"), model), (strangers, seen)):
        report = judge(candidate, baseline, real, "test", GateRules())
        found = rail(report, "seen queries")
        assert found["verdict"] == "failed"
        assert f"was trained on 3 of {len(qids)}" in found["words"]
        assert judge(candidate, baseline, real, "test", GateRules(allow_seen_queries=True))["passed"]
    own = replace(model, train_queries=QuerySketch.of(part for part, _ in real.query_batches("train")))
    assert judge(own, None, real, "test", GateRules())["passed"]
    assert overlap(own.train_queries, qids).found == 0
    assert rail(judge(model, None, real, "test", GateRules()), "seen queries")["verdict"] == "noted"


@pytest.mark.parametrize(("looked_at", "verdict"), [(3, "passed"), (1, "passed"), (0, "noted")])
def test_what_a_sketch_does_not_cover_is_not_called_unseen(looked_at: int, verdict: str) -> None:
    """Of a model trained on millions of queries a sketch knows an even sample."""
    found = guardrails.seen_queries({"web@1": Overlap(found=0, looked_at=looked_at, queries=3)}, allowed=False)
    assert found.verdict == verdict
    assert (f"of 3 the sketch of web@1 covers {looked_at}" in found.words) == (looked_at < 3)
