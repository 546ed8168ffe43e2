"""Kill -9 while rows are added: the dataset is without them or with all of them, and adding them again completes it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rankmill.foundation.errors import InputError
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.dataset_manifest import MANIFEST_NAME
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from tests.pipeline.interrupted import operations, start
from tests.pipeline.test_ingest import judgments
from tests.refusals import refused

PUBLISHING = f"dataset/{MANIFEST_NAME}"  # what is written last


def command(folder: Path) -> list[str | Path]:
    return ["data", "ingest", folder / "new.txt", "-o", folder / "out", "--append", "--block-size", "4KiB"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """A folder with two inputs and the dataset of the old one, and the digests of that and of the one of both."""
    folder = tmp_path_factory.mktemp("prepared")
    names = ("old.txt", "new.txt")
    for seed, name in enumerate(names):
        (folder / name).write_text("".join(judgments(300, seed)))
    options = IngestOptions(buckets=4, read=ReadOptions(categorical=("1",)))  # with a vocabulary, which grows too
    digests = {
        "both": ingest([folder / name for name in names], folder / "both", options=options).manifest.data_digest()
    }
    shutil.rmtree(folder / "both")
    digests["old"] = ingest([folder / "old.txt"], folder / "out", options=options).manifest.data_digest()
    return folder, digests


def killed(folder: Path, prepared: Path, part: str, number: int) -> str:
    """Kill an append to a copy of what was prepared at some step; return the digest of what is there."""
    shutil.copytree(prepared, folder)
    with start(folder, command(folder), action="kill", part=part, number=number) as process:
        _, err = process.communicate()
    assert process.returncode == -9, err
    dataset = Dataset.open(folder / "out")
    dataset.verify()
    return dataset.digest


def complete(folder: Path, digests: dict[str, str]) -> None:
    """Add the rows again, and see that they are there once."""
    there = Dataset.open(folder / "out").digest == digests["both"]
    for attempt in range(2):
        if there or attempt:
            with refused(InputError, "out", "already"):
                ingest([folder / "new.txt"], folder / "out", options=IngestOptions(append=True))
        else:
            ingest([folder / "new.txt"], folder / "out", options=IngestOptions(append=True))
    dataset = Dataset.open(folder / "out")
    dataset.verify()
    assert dataset.digest == digests["both"]


def test_killed_before_the_manifest_nothing_was_added(tmp_path, prepared):
    assert killed(tmp_path / "work", prepared[0], PUBLISHING, 3) == prepared[1]["old"]
    complete(tmp_path / "work", prepared[1])


@pytest.mark.slow
def test_killed_at_a_third_of_the_steps_of_publishing(tmp_path, prepared):
    counted = shutil.copytree(prepared[0], tmp_path / "counted")
    steps = len(operations(counted, command(counted), PUBLISHING))
    found = set()
    for number in sorted({*range(1, steps, 3), *range(steps - 3, steps + 1)}):
        found.add(killed(tmp_path / str(number), prepared[0], PUBLISHING, number))
        complete(tmp_path / str(number), prepared[1])
    assert found == set(prepared[1].values())
