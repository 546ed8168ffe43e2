"""The same failures at every call where there are no hard links, and files get their names by renames."""

from __future__ import annotations

import errno
import os
import types
from pathlib import Path

import pytest

from tests.registry import test_failing_disk as with_links
from tests.registry.model_disk import ModelDisk
from tests.registry.test_failing_disk import transactions  # noqa: F401 (a fixture)


@pytest.fixture(autouse=True)
def _no_hard_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def link(disk: ModelDisk, source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(source), None, str(target))

    monkeypatch.setattr(ModelDisk, "link", link)


@pytest.mark.parametrize("ways", with_links.WAYS)
@pytest.mark.parametrize("name", ["register the first", "promote", "roll back"])
def test_whatever_goes_wrong_the_state_is_the_old_or_the_new_one(
    name: str,
    ways: str,
    transactions: types.SimpleNamespace,  # noqa: F811
) -> None:
    with_links.test_whatever_goes_wrong_the_state_is_the_old_or_the_new_one(name, ways, transactions)
