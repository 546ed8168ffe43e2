"""What the commands write today is, byte for byte, what they wrote when the digests were taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pinned_story import contents, digests, make

PINNED = json.loads((Path(__file__).parent / "golden" / "17" / "digests.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("story") / "made"
    make(folder)
    return folder


def test_the_rows_of_every_dataset_are_the_same(story: Path) -> None:
    assert contents(story) == PINNED["rows"]


def test_every_file_is_the_same(story: Path) -> None:
    """Of Parquet with the versions in ``locks/``: where rows agree and only Parquet files differ, look there first."""
    made = digests(story)
    different = sorted(
        name for name in made.keys() | PINNED["bytes"].keys() if made.get(name) != PINNED["bytes"].get(name)
    )
    assert not different, f"other bytes than were pinned: {', '.join(different)} (look at them in {story})"
