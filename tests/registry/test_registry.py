from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmill.foundation.errors import InputError, IntegrityError, InvalidName, UnknownModel
from rankmill.registry import Registry, Version
from rankmill.registry.names import check_alias, check_name, parse_reference
from rankmill.registry.retention import RetentionRules
from tests.refusals import refused


def test_a_version_gives_back_what_was_registered(registry: Registry, facts: dict[str, Any]) -> None:
    version = registry.register("web", b"model", manifest=facts, reason="nightly")
    assert isinstance(version, Version)
    assert (str(version), version.size, version.aliases) == ("web@1", 5, ())
    assert version.read() == b"model" == version.model_path.read_bytes()
    assert version.manifest == facts
    assert version.registered.reason == "nightly"
    assert registry.versions("web") == [version]
    assert registry.names() == ["web"]


def test_registering_the_same_again_changes_nothing(
    registry: Registry, facts: dict[str, Any], tree: Callable[[Path], object]
) -> None:
    first = registry.register("web", b"model", manifest=facts)
    kept = [registry.root / "blobs", registry.root / "models"]
    before = [tree(folder) for folder in kept]
    assert registry.register("web", b"model", manifest=dict(reversed(facts.items()))) == first
    assert [tree(folder) for folder in kept] == before
    assert registry.register("web", b"model", manifest=facts | {"best_round": 7}).number == 2
    assert registry.register("web", b"other", manifest=facts).number == 3
    assert registry.register("shop", b"model", manifest=facts).number == 1


def test_a_manifest_that_breaks_the_rules_is_refused(registry: Registry, facts: dict[str, Any]) -> None:
    for change, message in (
        ({"features": []}, "features"),
        ({"features": "f1"}, "features"),
        ({"dataset_digest": "abc"}, "dataset_digest"),
        ({"parameters": None}, "parameters"),
        ({"metrics": {"ndcg@10": float("nan")}}, "JSON"),
        ({"extra": object()}, "JSON"),
        ({"extra": "\ud800"}, "JSON"),
    ):
        with refused(InputError, "manifest", message):
            registry.register("web", b"model", manifest=facts | change)
    for missing in ("features", "dataset_digest", "parameters", "metrics"):
        with pytest.raises(InputError, match=missing):
            registry.register("web", b"model", manifest={k: v for k, v in facts.items() if k != missing})
    assert not registry.root.exists()


def test_references_resolve(web: Registry) -> None:
    def number(text: str) -> int:
        return web.resolve(text, bare="production").number

    web.promote("web", 2)
    assert [number(text) for text in ("web", "web@production", "web@latest", "web@1", "web@shadow")] == [2, 2, 3, 1, 1]
    assert web.resolve("web", bare="latest").number == 3
    assert web.resolve("web", bare="production").aliases == ("production",)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("wbe", ("model", "wbe", "web")),
        ("web@prodction", ("alias", "prodction", "production")),
        ("web@4", ("web", "version 4", "1", "3")),
    ],
)
def test_what_is_not_there_is_said_with_what_is(web: Registry, reference: str, message: str) -> None:
    with refused(UnknownModel, message):
        web.resolve(reference, bare="production")


def test_a_model_without_production_says_how_to_promote(registry: Registry, facts: dict[str, Any]) -> None:
    registry.register("web", b"model", manifest=facts)
    with refused(UnknownModel, "web@latest", "models gate web@1", "models promote web@1"):
        registry.resolve("web", bare="production")


def test_an_empty_registry_is_no_error_until_a_model_is_asked_for(registry: Registry) -> None:
    assert registry.names() == []
    assert registry.verify().ok
    with refused(UnknownModel, "registry"):
        registry.versions("web")
    with refused(InputError, "no registry", "rankmill models init"):
        registry.gc()
    assert not registry.root.exists()


def test_a_registry_of_another_format_is_neither_read_nor_written(web: Registry, facts: dict[str, Any]) -> None:
    (web.root / "FORMAT.json").unlink()
    (web.root / "FORMAT.json").write_text('{"format":6}')
    for use in (
        lambda r: r.names(),
        lambda r: r.resolve("web", bare="latest"),
        lambda r: r.promote("web", 1),
        lambda r: r.register("web", b"model", manifest=facts),
        lambda r: r.verify(),
        lambda r: r.gc(rules=RetentionRules(keep=1, grace=0)),
    ):
        with pytest.raises(IntegrityError, match="format 6"):
            use(Registry(web.root))


@pytest.mark.parametrize("name", ["../x", "", "Web"])
def test_no_path_is_made_of_a_bad_name(registry: Registry, facts: dict[str, Any], name: str) -> None:
    for call in (
        lambda: registry.register(name, b"model", manifest=facts),
        lambda: registry.versions(name),
        lambda: registry.promote(name, 1),
        lambda: registry.resolve(name, bare="latest"),
    ):
        with pytest.raises(InvalidName):
            call()
    assert not registry.root.exists()


def test_a_reason_is_one_printable_line(web: Registry) -> None:
    with refused(InputError, "one line"):
        web.promote("web", 1, reason="two\nlines")


def test_attachments_do_not_distinguish_versions(registry: Registry, facts: dict[str, object]) -> None:
    first = registry.register("web", b"model", manifest=facts, attachments={"circumstances": b"monday"})
    for attachments in ({"circumstances": b"tuesday"}, {}, {"more": b"x"}):
        again = registry.register("web", b"model", manifest=facts, attachments=attachments)
        assert (again.number, again.attachment("circumstances"), again.attachment("more")) == (1, b"monday", None)
    assert first.attachment("more") is None
    assert len(registry.log("web")) == 1


GOOD = ["a", "7", "web", "web-2.b_c", "a" * 64, "a..b"]
BAD = ["", "Web", ".web", "-web", "..", "a/b", "a\\b", "a b", "web\n", "wéb", "a" * 65, "a@b", "a\x00", "web.rankmill"]


def test_good_names_pass_and_bad_ones_are_refused() -> None:
    assert [check_name(name) for name in GOOD] == GOOD
    for name in BAD:
        with refused(InvalidName, "model name"):
            check_name(name)
    for alias in ("latest", "7", "", "a/b", "Prod"):
        with refused(InvalidName, "alias"):
            check_alias(alias)
    for text in ("web@", "web@0", "web@07", "web@-1", "web@Prod", "web@a@b", "@7", "web@../x"):
        with pytest.raises(InvalidName):
            parse_reference(text)


@given(st.text() | st.from_regex(r"[a-z0-9._-]{1,65}(@([0-9]{1,19}|[a-z0-9._-]{1,65}|latest))?", fullmatch=True))
def test_any_text_is_a_reference_or_a_typed_error(text: str) -> None:
    with contextlib.suppress(InvalidName):
        assert "@".join(str(part) for part in parse_reference(text) if part is not None) == text


def test_unknown_names_come_with_the_nearest_one() -> None:
    error = UnknownModel.unknown("model", "wbe", ["web", "shop"])
    assert isinstance(error, InputError)
    assert str(error) == "unknown model 'wbe'; did you mean 'web'?"
    assert str(UnknownModel.unknown("model", "xyz", ["web", "shop"])) == "unknown model 'xyz'; known: web, shop"
    assert str(UnknownModel.unknown("model", "xyz", [], "make one")) == "unknown model 'xyz'; make one"
