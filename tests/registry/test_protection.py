"""A protected alias moves forward only to what its gate has passed, as it stands now."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankmill.foundation.errors import InputError, IntegrityError, PromotionRefused, UnknownModel
from rankmill.registry.model_registry import Registry
from rankmill.registry.stored_records import AliasPolicy, Entry, GateRecord, Move, record_json
from tests.refusals import refused
from tests.registry.conftest import FACTS, QuickDisk, lose, outcome, placed

DATA, CONVENTION = "d" * 64, "c" * 64


@pytest.fixture(params=["disk", "bucket"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def guarded(kind: str, tmp_path: Path) -> Registry:
    registry = placed(kind, tmp_path, Registry)
    registry.prepare(protected=("production",))
    for number in (1, 2, 3):
        registry.register("web", b"model %d" % number, manifest=FACTS)
    return registry


def gate(registry: Registry, version: int, **changed: object) -> Entry:
    facts = {
        "baseline": registry.state("web").target("production"),
        "dataset": DATA,
        "convention": CONVENTION,
    } | changed
    report = facts.pop("report", {"difference": 0.01})
    return registry.record_gate("web", outcome(version, **facts), report)


def production(registry: Registry) -> int | None:
    return registry.state("web").target("production")


def test_without_a_gate_nothing_moves(guarded: Registry) -> None:
    before = len(guarded.log("web"))
    with refused(PromotionRefused, "rankmill models gate web@1 --on DATASET") as caught:
        guarded.promote("web", 1)
    assert "\n" not in str(caught.value)
    assert (production(guarded), len(guarded.log("web"))) == (None, before)


def honest(registry: Registry, version: int) -> dict[str, object]:
    """A report as a gate writes it, as far as the registry knows reports."""
    row = registry.state("web").versions[version]
    candidate = {"version": f"web@{version}", "model": row.model, "manifest": row.manifest}
    return {
        "passed": True, "reasons": [], "candidate": candidate, "baseline": None, "dataset": DATA, "split": "test",
        "metric": "ndcg@10", "margin": 0.002, "convention_sha256": CONVENTION,
    }  # fmt: skip


FORGED = {
    "did not pass": {"passed": False, "reasons": ["worse"]},
    "has reasons": {"reasons": ["worse"]},
    "another model": {"candidate": {"version": "web@1", "model": "e" * 64, "manifest": "e" * 64}},
    "another baseline": {"baseline": {"version": "web@1", "model": "e" * 64, "manifest": "e" * 64}},
    "another dataset": {"dataset": "e" * 64},
    "another split": {"split": "train"},
    "another metric": {"metric": "map"},
    "another margin": {"margin": 0.5},
    "another convention": {"convention_sha256": "e" * 64},
    "significantly worse": {"worse": True},
}


def test_a_gate_whose_report_says_otherwise_promotes_nothing_here_and_is_not_imported(
    guarded: Registry, tmp_path: Path
) -> None:
    """Somebody who writes a log anew makes all digests fit; the report and the entry must still speak of the same
    thing."""
    for lie in FORGED.values():
        gate(guarded, 1, report=honest(guarded, 1) | lie)
        with refused(PromotionRefused, "report of the gate", "web@1"):
            guarded.promote("web", 1)
    guarded.export("web", tmp_path / "web.tar")
    other = Registry(tmp_path / "other", disk=QuickDisk())
    for move in (False, True):
        with refused(IntegrityError, "web.tar", "version 1", "report of the gate"):
            other.import_(tmp_path / "web.tar", move_aliases=move)
    assert other.names() == []


def test_the_report_of_another_version_is_none_and_a_lost_one_too(guarded: Registry) -> None:
    gate(guarded, 2, report=honest(guarded, 1))
    with refused(PromotionRefused, "report of the gate", "candidate"):
        guarded.promote("web", 2)
    found = gate(guarded, 2, report=honest(guarded, 2)).change
    assert isinstance(found, GateRecord)
    guarded.promote("web", 2, alias="open")
    lose(guarded, found.report)
    with refused(PromotionRefused, "report of the gate", "cannot be read"):
        guarded.promote("web", 2)


@pytest.mark.parametrize("act", ["force", "promote", "unset", "open", "rollback"])
def test_a_bundle_moves_no_protected_alias_unless_asked_to(guarded: Registry, tmp_path: Path, act: str) -> None:
    other, tar = Registry(tmp_path / "other", disk=QuickDisk()), tmp_path / "web.tar"
    gate(guarded, 1, report=honest(guarded, 1))
    guarded.export("web", tar)
    assert other.import_(tar).moves == ()  # versions and gates only
    guarded.promote("web", 1)
    guarded.export("web", tar, overwrite=True)
    with refused(PromotionRefused, "web.tar", "production", "version 1", "--move-aliases", "web@N"):
        other.import_(tar)
    assert other.state("web").target("production") is None
    assert other.import_(tar, move_aliases=True).moves == (
        "promoted version 1 to production (not set before; gate: entry 4)",
    )
    if act == "promote":
        guarded.protect("web", "production", None)
    if act in {"promote", "force", "rollback"}:
        guarded.promote("web", 2, force=True, reason="evil")
    if act == "rollback":
        guarded.rollback("web")
    if act == "unset":
        guarded.unset("web", "production")
    if act == "open":
        guarded.protect("web", "production", None)
    guarded.promote("web", 3, alias="canary")
    guarded.export("web", tar, overwrite=True)
    head = other.state("web").head
    with refused(PromotionRefused, "web.tar", "production", "--move-aliases"):
        other.import_(tar)
    assert (production(other), other.state("web").head) == (1, head)
    assert other.policy(other.state("web"), "production") is not None
    assert len(other.import_(tar, move_aliases=True).moves) > 1
    assert other.log("web") == guarded.log("web")


def test_what_has_passed_moves_and_cites_the_gate(guarded: Registry) -> None:
    result = gate(guarded, 1)
    entry = guarded.promote("web", 1)
    assert record_json(entry.change) == {
        "op": "promote", "alias": "production", "version": 1, "previous": None, "gate": result.number
    }  # fmt: skip
    assert guarded.gate_report("web", result.number) == {"difference": 0.01}
    assert guarded.verify().ok


def test_a_failed_gate_refuses_even_after_a_passed_one(guarded: Registry) -> None:
    gate(guarded, 1)
    gate(guarded, 1, passed=False, report={"difference": -0.1})
    with refused(PromotionRefused, "gate", "rankmill models gate web@1 --show --alias"):
        guarded.promote("web", 1)


def test_going_back_where_production_was_never_set_says_so(guarded: Registry) -> None:
    for act in (guarded.rollback, lambda name: guarded.unset(name, "production")):
        with refused(UnknownModel, "web@production", "never"):
            act("web")


def test_a_gate_against_what_is_no_longer_served_does_not_count(guarded: Registry) -> None:
    gate(guarded, 1)
    gate(guarded, 2)
    guarded.promote("web", 1)
    with refused(PromotionRefused, "nothing", "production", "version 1"):
        guarded.promote("web", 2)
    gate(guarded, 2)
    guarded.promote("web", 2)
    assert production(guarded) == 2


def test_who_takes_the_alias_away_does_not_lower_the_bar(guarded: Registry) -> None:
    """Against nothing the bars are low; version 2 was measured by them and never against version 1."""
    gate(guarded, 1)
    gate(guarded, 2)
    guarded.promote("web", 1)
    guarded.unset("web", "production")
    with refused(PromotionRefused, "nothing", "production", "version 1"):
        guarded.promote("web", 2)
    again = gate(guarded, 2, baseline=None)
    with refused(PromotionRefused, "version 1"):
        guarded.promote("web", 2)
    against_one = gate(guarded, 2, baseline=1)
    assert against_one.number > again.number
    assert guarded.state("web").standing("production") == 1
    assert guarded.promote("web", 2).change.gate == against_one.number


def test_the_gate_of_another_alias_or_version_does_not_count(guarded: Registry) -> None:
    gate(guarded, 1, alias="canary")
    gate(guarded, 2)
    with refused(PromotionRefused, "result"):
        guarded.promote("web", 1)


def test_a_policy_asks_for_more(guarded: Registry) -> None:
    for policy, match in (
        (AliasPolicy(metric="err@10"), "metric err@10"),
        (AliasPolicy(convention="e" * 64), "convention"),
        (AliasPolicy(dataset="e" * 64), "dataset"),
        (AliasPolicy(margin=0.001), ("margin", "0.001", "0.002")),
        (AliasPolicy(never_worse=True), ("significantly worse", "--allow-significantly-worse")),
    ):
        guarded.protect("web", "production", policy)
        gate(guarded, 1, worse=policy.never_worse)
        with refused(PromotionRefused, match):
            guarded.promote("web", 1)
    gate(guarded, 1)
    guarded.protect(
        "web", "production", AliasPolicy(metric="ndcg@10", convention=CONVENTION, dataset=DATA, margin=0.002)
    )
    assert guarded.promote("web", 1, force=True).change.op == "promote"  # where no force is needed
    assert production(guarded) == 1


def test_force_is_an_entry_of_its_own_kind_and_says_what_it_waived(guarded: Registry) -> None:
    entry = guarded.promote("web", 3, force=True, reason="the night of the fire")
    assert isinstance(entry.change, Move)
    assert entry.change.op == "force"
    assert entry.change.waived == "version 3 has no result of the gate for it"
    assert production(guarded) == 3


def test_a_rollback_needs_no_gate(guarded: Registry) -> None:
    gate(guarded, 1)
    guarded.promote("web", 1)
    guarded.promote("web", 2, force=True)
    guarded.rollback("web")
    assert production(guarded) == 1


def test_an_alias_is_protected_and_opened_by_entries(guarded: Registry) -> None:
    assert guarded.protect("web", "production", AliasPolicy()) is None, "it is so already"
    assert guarded.protect("web", "production", None, reason="trying") is not None
    guarded.promote("web", 1)
    assert guarded.protect("web", "canary", AliasPolicy()) is not None
    with pytest.raises(PromotionRefused):
        guarded.promote("web", 1, alias="canary")
    assert [entry.change.op for entry in guarded.log("web")] == ["register"] * 3 + ["protect", "promote", "protect"]


def test_the_same_result_twice_is_one_entry(guarded: Registry) -> None:
    assert gate(guarded, 1) == gate(guarded, 1)
    assert gate(guarded, 1, margin=0.001) != gate(guarded, 1)


def test_what_no_gate_can_have_measured_is_named(guarded: Registry) -> None:
    wrong: list[dict[str, object]] = [
        {"margin": float("nan")},
        {"margin": -0.1},
        {"dataset": "web.dataset"},
        {"baseline": 9},
    ]
    for facts in wrong:
        with pytest.raises(InputError, match=r"margin|dataset|no version 9"):
            gate(guarded, 1, **facts)
    with pytest.raises(UnknownModel):
        gate(guarded, 9)
    with pytest.raises(InputError, match="JSON"):
        gate(guarded, 1, report={"difference": float("nan")})
    assert len(guarded.log("web")) == 3
