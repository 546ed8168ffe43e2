"""What show, log, list, alias and tag say, against what was done."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from rankmill.foundation.errors import ConflictError, InputError, InvalidName, UnknownModel
from rankmill.registry import rendering, stored_records
from rankmill.registry.blob_store import Blobs
from rankmill.registry.cli import LATEST_VERSIONS, app
from rankmill.registry.commit_log import CommitLog
from rankmill.registry.model_registry import Registry
from rankmill.registry.rendering import stands_out, what_of
from tests.refusals import refused
from tests.registry.conftest import FACTS, outcome
from tests.registry.shell import Shell

TRAINED = FACTS | {
    "dataset": {
        "rows": 12096,
        "queries": 300,
        "max_bin": 255,
        "split_by": {"shares": {"train": 0.7, "valid": 0.3}},
        "splits": {"train": {"queries": 202, "rows": 8026}},
        "sources": {"files": 1, "bytes": 70, "list": [{"name": "monday.txt", "size": 70, "sha256": "a" * 64}]},
    },
    "parameters": {"learning_rate": 0.1, "max_leaves": 63, "seed": 7, "preset": "defaults@1", "sigma": 1.0},
    "changed_parameters": ["max_leaves"],
    "code_digest": "c" * 64,
    "binspec_digest": "b" * 64,
    "intervals": {"valid": {"ndcg@10": [0.5012, 0.5234]}},
    "rounds_trained": 170,
    "base_model": {"model": "global@4", "sha256": "e" * 64},
    "link": "expected_grade",
}
CIRCUMSTANCES = {
    "libraries": {"numpy": "2.4"},
    "python": "3.11.7",
    "resumed": {"model": "web@1", "sha256": "f" * 64},
}


def gate(registry: Registry, version: int, *, passed: bool, baseline: int | None, **report: Any) -> None:
    registry.record_gate("web", outcome(version, passed=passed, baseline=baseline, convention="0" * 64), report)


@pytest.fixture
def busy(web: Registry) -> Registry:
    """Everything that a log can say happens to ``web``."""
    attachments = {"circumstances": json.dumps(CIRCUMSTANCES).encode(), "train_queries": b"12345678"}
    web.register("web", b"model 1", manifest=TRAINED, attachments=attachments, reason="with monday")
    web.protect("web", "production", stored_records.AliasPolicy(metric="ndcg@10", margin=0.002))
    found = {"candidate": 0.5123, "other": 0.5, "difference": 0.0123, "interval": [0.001, 0.02]}
    comparisons = [{"words": "web@3, the current version", "metrics": {"ndcg@10": found}}]
    rails = [{"name": "features", "verdict": "failed", "words": "f9 is gone"}]
    gate(web, 4, passed=True, baseline=3, comparisons=comparisons)
    web.promote("web", 4, reason="won the test of May")
    gate(web, 2, passed=False, baseline=4, comparisons=comparisons, guardrails=rails, reasons=["f9 is gone"])
    web.promote("web", 2, force=True, reason="the boss said so")
    web.rollback("web", reason="slow on phones")
    web.unset("web", "shadow")
    web.protect("web", "production", None)
    CommitLog(web._store, "web").commit(lambda _: stored_records.Sweep(op="sweep", versions=(2,)))
    return web


@pytest.fixture
def models(busy: Registry) -> Shell:
    return Shell(busy.root)


def test_every_kind_of_change_has_a_sentence(busy: Registry, models: Shell) -> None:
    entries = busy.log("web")
    kinds = {
        kind
        for record in get_args(get_args(stored_records.Change)[0])
        for kind in get_args(record.model_fields["op"].annotation)
    }
    assert {entry.change.op for entry in entries} == kinds
    lines = models("log", "web").splitlines()
    assert len(lines) == len(entries)
    for line, entry in zip(lines, entries, strict=True):
        assert line.split()[0] == str(entry.number)
        for reported in (what_of(entry), entry.actor, entry.host, entry.reason, entry.time[:10], entry.time[11:19]):
            assert reported in line
    text = "\n".join(lines)
    for reported in (
        "registered version 4: with monday",
        "promoted version 4 to production (before: 3; gate: entry 10): won the test of May",
        "compared version 2 at the gate of production: DID NOT PASS against version 4 (ndcg@10 on test of dataset dddddddddddd",
        "FORCED version 2 to production (before: 4), waiving: ",
        "rolled production back to version 4 (before: 2): slow on phones",
        "removed shadow (before: 1)",
        "protected production: only a passed gate promotes to it, with metric ndcg@10, a margin of 0.002 at most",
        "opened production: it moves without a gate",
        "swept the bytes of 1 version: 2",
    ):
        assert reported in text
    assert [entry.change.op for entry in entries if stands_out(entry)] == ["gate", "force"]


def test_the_last_entries_of_a_log_are_its_end(busy: Registry, models: Shell) -> None:
    whole = models("log", "web").splitlines()
    entries = models.json("log", "web")["entries"]
    for n in (1, 3, len(whole), len(whole) + 5):
        assert [line.split() for line in models("log", "web", "--last", str(n)).splitlines()] == [
            line.split() for line in whole[-n:]
        ]
        assert models.json("log", "web", "--last", str(n))["entries"] == entries[-n:]


def test_the_history_has_all_that_was_done_and_known(busy: Registry, models: Shell) -> None:
    text = " ".join(models("show", "web@4").split())
    version = busy.resolve("web@4", bare="latest")
    for reported in (
        "with monday",
        "production: open, it moves without a gate",
        "slow on phones",
        "won the test of May",
        "the boss said so",  # it was this version's place that was taken
        "production, entry 10: PASSED against version 3 (ndcg@10 on test of dataset dddddddddddd, margin 0.002)",
        "7 B (7 bytes), complete and undamaged",
        version.sha256,
        "rows 12096",
        "splits train rows 8026",
        "split_by shares train 0.7",
        "name monday.txt, sha256 aaaa",
        "b" * 64,
        "c" * 64,
        f"model global@4 sha256 {'e' * 64}",
        "numpy 2.4",
        "python 3.11.7",
        "resumed model web@1",
        "max_leaves 63 seed 7 and 2 others with their defaults (defaults-1)",
        "train ndcg@10 0.61 valid ndcg@10 0.5123",
        "valid ndcg@10 [0.5012, 0.5234]",
        "rounds_trained 170",
        "train_queries size 8",
        "link expected_grade",
    ):
        assert reported in text, reported
    refused = " ".join(models("show", "web@2").split())
    assert "entry 12: DID NOT PASS against version 4" in refused
    assert "f9 is gone" in refused
    assert "swept in entry 17 of the log" in refused


def test_the_history_as_json_has_all_of_it(busy: Registry, models: Shell) -> None:
    reported = models.json("show", "web@4")
    assert reported["manifest"] == json.loads(json.dumps(TRAINED))
    assert [entry["number"] for entry in reported["history"]] == [11, 13, 14]
    (found,) = reported["gates"]
    assert found["entry"]["change"]["passed"]
    assert found["report"]["comparisons"][0]["words"] == "web@3, the current version"
    assert reported["circumstances"] == CIRCUMSTANCES
    assert reported["attachments"]["train_queries"]["size"] == 8
    assert (reported["fault"], reported["swept_in"]) == (None, None)
    assert reported["policies"] == {"production": None}
    assert models.json("show", "web@2")["swept_in"] == 17


def test_damaged_bytes_are_reported_without_a_crash(busy: Registry, models: Shell) -> None:
    path = busy.resolve("web@3", bare="latest").model_path
    path.unlink()
    assert "DAMAGED" in models("show", "web@3")
    assert "missing" in models.json("show", "web@3")["fault"]
    manifest = CommitLog(busy._store, "web").blobs.path(busy.resolve("web@1", bare="latest").manifest_sha256)
    manifest.unlink()
    assert "DAMAGED" in models("list", "web")
    assert [each["manifest"] is None for each in models.json("list", "web")["versions"]] == [True, False, False, False]


def test_facts_of_any_shape_are_reported(registry: Registry) -> None:
    odd: list[dict[str, Any]] = [
        {"dataset": "monday", "intervals": [1, 2], "best_round": "last"},
        {"dataset": {"rows": "many"}, "changed_parameters": 7, "base_model": "x"},
        {"metrics": {}, "parameters": {}, "code_digest": None, "note": {}},
        {"seeds": {"choose": "average", "trained": 3}},
        {"metrics": {"score": 0.5, "valid": {"ndcg@10": "good"}}, "dataset_digest": None},
    ]
    for facts in odd:
        registry.register("web", b"model", manifest=FACTS | facts, attachments={"circumstances": b"\xff{"})
        text = Shell(registry.root)("show", "web@latest")
        for name in facts.keys() - FACTS.keys() - {"code_digest", "note"}:
            assert name in text
        assert Shell(registry.root).json("show", "web@latest")["manifest"] == FACTS | facts


EVIL = "a\x1b[31mb\x9bc\u202ed\x07e\nf\x7f"


def test_nothing_that_was_stored_steers_a_terminal(registry: Registry) -> None:
    facts = FACTS | {
        "features": [EVIL],
        "parameters": {EVIL: EVIL},
        "metrics": {EVIL: {EVIL: 0.5}},
        EVIL: {EVIL: [EVIL]},
        "dataset": TRAINED["dataset"] | {"sources": {"files": 1, "bytes": 1, "list": [{"name": EVIL, "size": 1, "sha256": EVIL}]}},
        "code_digest": EVIL,
    }  # fmt: skip
    registry.register(
        "web", b"model", manifest=facts, attachments={"circumstances": json.dumps({"python": EVIL}).encode()}
    )
    gate(registry, 1, passed=False, baseline=None, guardrails=[{"name": EVIL, "verdict": "failed", "words": EVIL}])
    shell = Shell(registry.root)
    for words in (
        ["show", "web"],
        ["log", "web"],
        ["list", "web"],
        ["list"],
        ["alias", "web"],
        ["show", "web", "--json"],
    ):
        text = shell(*words)
        assert all(c.isprintable() or c == "\n" for c in text), words
        assert "\nf" not in text
    assert shell.json("show", "web")["manifest"] == facts


def test_json_comes_back_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    for value in (EVIL, "\ud800", "\U000e0001", "plain \u00e9\u4e2d\U0001f600"):
        rendering.print_json({"a": value})
        out = capsys.readouterr().out
        assert json.loads(out) == {"a": value}
        assert out.rstrip("\n").isprintable()


def test_a_list_shows_the_last_and_those_with_an_alias(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    n = LATEST_VERSIONS + 10
    for number in range(1, n + 1):
        registry.register("web", b"%d" % number, manifest=FACTS | {"best_round": number})
    read = []
    whole = Blobs.read
    with monkeypatch.context() as patch:
        patch.setattr(Blobs, "read", lambda self, sha: read.append(sha) or whole(self, sha))
        Shell(registry.root)("list", "web")
    assert len(read) == LATEST_VERSIONS  # manifests are read of shown versions only
    registry.promote("web", 3)
    shell = Shell(registry.root)

    def shown(*words: str) -> list[int]:
        return [version["version"] for version in shell.json("list", "web", *words)["versions"]]

    assert shown() == [3, *range(11, n + 1)]
    assert "and 9 older versions without an alias: rankmill models list web --all" in shell("list", "web")
    assert shown("--all") == list(range(1, n + 1))
    assert "older" not in shell("list", "web", "--all")
    assert shell.json("list", "web")["of"] == n


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["list", "--all"], InputError, "model"),
        (["alias", "web", "--unset"], InputError, ("--unset", "alias")),
        (["alias", "web", "shadow", "--unset", "--open"], InputError, "one"),
        (["alias", "web", "shadow", "--metric", "map"], InputError, "--protect"),
        (["alias", "web", "shadow", "--expect", "1"], InputError, "--unset"),
        (["alias", "web", "shadow", "--unset", "--expect", "2"], ConflictError, "version 2"),
        (["alias", "web", "shadw"], UnknownModel, "shadow"),
        (["alias", "web", "shadw", "--unset"], UnknownModel, "shadow"),
        (["alias", "web", "shadow", "--protect", "--dataset", "d3"], InputError, "dataset"),
        (["alias", "web@1"], InvalidName, ("model", "version")),
        (["alias", "web", "latest", "--protect"], InvalidName, "moved"),
    ],
)
def test_mistakes_change_nothing(web: Registry, words: list[str], error: type[Exception], message: str) -> None:
    before = web.state("web").head
    with refused(error, message) as caught:
        Shell(web.root)(*words)
    assert "\n" not in str(caught.value)
    assert web.state("web").head == before


def test_aliases_are_shown_with_their_last_move_and_their_protection(web: Registry) -> None:
    shell = Shell(web.root)
    web.protect("web", "stable", stored_records.AliasPolicy())
    text = shell("alias", "web")
    assert [line.split()[:2] for line in text.splitlines() if " on " in line or "none" in line] == [
        ["production", "3"],
        ["shadow", "1"],
        ["stable", "none"],
    ]
    found = {each["alias"]: each for each in shell.json("alias", "web")["aliases"]}
    assert found["production"]["entry"]["number"] == 6
    assert (found["stable"]["policy"] is None, found["shadow"]["policy"] is None) == (False, True)
    (shadow,) = shell.json("alias", "web", "shadow")["aliases"]
    assert shadow == found["shadow"]


def test_an_alias_is_taken_away_protected_and_opened(web: Registry) -> None:
    shell = Shell(web.root)
    assert "removed shadow (before: 1; logged as entry 8)" in shell(
        "alias", "web", "shadow", "--unset", "--expect", "1", "--reason", "done"
    )
    assert shell.json("alias", "web", "shadow", "--unset")["changed"] is False
    assert web.state("web").target("shadow") is None
    words = ["alias", "web", "production", "--protect", "--metric", "map", "--margin", "0.01", "--dataset", "a" * 64]
    assert "protected production" in shell(*words, "--convention", "b" * 64)
    policy = web.policy(web.state("web"), "production")
    assert policy == stored_records.AliasPolicy(metric="map", margin=0.01, dataset="a" * 64, convention="b" * 64)
    assert shell.json(*words, "--convention", "b" * 64) == {"name": "web", "changed": False, "entry": None}
    assert "opened production" in shell("alias", "web", "production", "--open")
    assert "no change needed" in shell("alias", "web", "production", "--open")
    assert web.policy(web.state("web"), "production") is None


def test_the_command_line_prints_no_markup(web: Registry) -> None:
    web.promote("web", 1, reason="[bold]x[/bold] :smile:")
    shown = CliRunner().invoke(app, ["log", "web"], env={"RANKMILL_REGISTRY": str(web.root)}).stdout
    assert ": [bold]x[/bold] :smile:" in shown
