"""From text to model and ranking: the same bytes for any threads, order of files and rows, block size and memory."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from pipeline.synth import SynthParameters, write_synthetic
from rankmill.cli import execute

TRAIN = ["--n-rounds", "12", "--max-leaves", "9", "--early-stopping-rounds", "4"]


def digest(folder: Path, *patterns: str) -> str:
    """One sha256 over names and bytes of the files that match."""
    total = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        total.update(str(path.relative_to(folder)).encode() + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def chain(
    files: list[Path], work: Path, *, ingest: tuple[str, ...] = (), threads: int = 1, rerank: tuple[str, ...] = ()
):
    """Run ingest, bin, train, rerank; return digests of what each leaves."""
    work.mkdir()
    dataset, registry, ranked = str(work / "dataset"), str(work / "registry"), str(work / "ranked")
    options = ["--split", "train=0.7,valid=0.3", "--buckets", "4", *ingest]
    for line in (
        ["data", "ingest", *map(str, files), "-o", dataset, *options],
        ["data", "bin", dataset],
        ["train", dataset, "--name", "web", "--registry", registry, "--n-threads", str(threads), *TRAIN],
        ["rerank", *map(str, files), "--model", "web@latest", "--registry", registry, "-o", ranked, *rerank],
    ):
        assert execute(line) == 0
    return {
        "dataset": digest(work / "dataset", "features/*", "queries/*", "bins/*/*"),
        "model": digest(work / "registry", "blobs/sha256/*/*"),
        "ranked": digest(work / "ranked", "*.parquet"),
    }


@pytest.fixture(scope="module")
def judgments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    file = tmp_path_factory.mktemp("judgments") / "all.txt"
    write_synthetic(file, SynthParameters(queries=90, documents_per_query=25, features=18, seed=3))
    return file.read_text().splitlines(keepends=True)


def test_the_same_bytes_whatever_the_machine_and_the_order_of_the_input(judgments: list[str], tmp_path: Path) -> None:
    def files(name: str, *parts: list[str]) -> list[Path]:
        (tmp_path / name).mkdir()
        paths = [tmp_path / name / f"part{number}.txt" for number in range(len(parts))]
        for path, part in zip(paths, parts, strict=True):
            path.write_text("".join(part))
        return paths

    whole = files("whole", judgments)
    expected = chain(whole, tmp_path / "work0")
    third = len(judgments) // 3
    split = files("split", judgments[:third], judgments[third : 2 * third], judgments[2 * third :])
    shuffled = random.Random(5).sample(judgments, len(judgments))
    woven = files("woven", *(shuffled[i::8] for i in range(8)))
    assert chain(whole, tmp_path / "work1", threads=2, ingest=("--block-size", "64KiB")) == expected
    assert chain(split[::-1], tmp_path / "work2", threads=3, rerank=("--n-threads", "3")) == expected
    assert (
        chain(woven, tmp_path / "work3", threads=7, ingest=("--memory", "512MB"), rerank=("--memory", "512MB"))
        == expected
    )
