from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import InputError, InvalidName, UnknownModel
from rankmill.registry.names import ModelReference, check_alias, check_name
from tests.refusals import refused

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
            ModelReference.parse(text)


@settings(max_examples=20, deadline=None)
@given(st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}(@([1-9][0-9]{0,17}|[a-z][a-z0-9._-]{0,63}|latest))?", fullmatch=True))
def test_a_reference_prints_as_it_was_written(text: str) -> None:
    if not text.partition("@")[0].endswith(".rankmill"):
        assert str(ModelReference.parse(text)) == text


@given(st.text())
def test_any_text_is_a_reference_or_a_typed_error(text: str) -> None:
    with contextlib.suppress(InvalidName):
        assert str(ModelReference.parse(text)) == text


def test_unknown_names_come_with_the_nearest_one() -> None:
    error = UnknownModel.unknown("model", "wbe", ["web", "shop"])
    assert isinstance(error, InputError)
    assert str(error) == "unknown model 'wbe'; did you mean 'web'?"
    assert str(UnknownModel.unknown("model", "xyz", ["web", "shop"])) == "unknown model 'xyz'; known: web, shop"
    assert str(UnknownModel.unknown("model", "xyz", [], "make one")) == "unknown model 'xyz'; make one"
