"""``import rankmill``: light, and every name it promises is there."""

import pytest

import rankmill


def test_every_promised_name_is_there_and_kept():
    for name in set(rankmill.__all__) - {"__version__"}:
        assert name in dir(rankmill)
        assert getattr(rankmill, name) is getattr(rankmill, name)
        assert getattr(rankmill, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'rankmill' has no attribute 'rank'"):
        rankmill.rank  # noqa: B018
