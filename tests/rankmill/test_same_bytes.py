"""From files to the model and its rankings: the same bytes, whatever the threads, the blocks and the order of the files."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from pipeline.publish import file_digest
from pipeline.synth import SynthParameters, write_synthetic
from rankmill.cli import execute


def facts(capsys, *command: object) -> dict:
    assert execute([*map(str, command), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three files whose rows belong together by query only: every query is in each of them."""
    folder = tmp_path_factory.mktemp("parts")
    write_synthetic(folder / "all.txt", SynthParameters(queries=120, documents_per_query=15, features=14))
    lines = (folder / "all.txt").read_text().splitlines(keepends=True)
    for number in range(3):
        (folder / f"part{number}.txt").write_text("".join(lines[number::3]))
    return sorted(folder.glob("part*.txt"))


def test_the_model_depends_on_the_data_alone(parts: list[Path], tmp_path: Path, capsys) -> None:
    digests = set()
    orders = list(itertools.permutations(parts))
    cases = zip(
        (1, 2, 3, 1), (orders[0], orders[3], orders[5], orders[2]), ("16MiB", "700B", "64KiB", "4KiB"), strict=True
    )
    for number, (threads, order, block) in enumerate(cases):
        dataset, registry = tmp_path / f"dataset{number}", tmp_path / f"registry{number}"
        facts(capsys, "data", "ingest", *order, "-o", dataset, "--split", "train=0.8,valid=0.2", "--block-size", block)
        facts(capsys, "data", "bin", dataset)
        training = ("--n-rounds", 15, "--max-leaves", 8, "--n-threads", threads)
        model = facts(capsys, "train", dataset, "--name", "web", "--registry", registry, *training)
        ranked = tmp_path / f"ranked{number}.parquet"
        facts(
            capsys, "rerank", parts[0], "--model", "web@1", "--registry", registry, "-o", ranked, "--n-threads", threads
        )
        digests.add((model["sha256"], file_digest(ranked)))
    assert len(digests) == 1
