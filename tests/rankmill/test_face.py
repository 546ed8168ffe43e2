"""``import rankmill``: light, and every name it promises is there."""

from __future__ import annotations

import pytest

import rankmill


@pytest.mark.parametrize("name", sorted(set(rankmill.__all__) - {"__version__"}))
def test_every_promised_name_is_there_and_kept(name: str) -> None:
    assert name in dir(rankmill)
    assert getattr(rankmill, name) is getattr(rankmill, name)
    assert getattr(rankmill, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'rankmill' has no attribute 'rank'"):
        rankmill.rank  # noqa: B018
