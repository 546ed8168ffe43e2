"""The data of the benchmarks, as .npy files that every system loads in the same way."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

DOCUMENTS_PER_QUERY = 120
TINY_QUERIES = 100  # for the warm-up of a process

_TEST_SEED = 1000  # added to the seed of the train part
_MISSING_KEY = 0x9E3779B97F4A7C15


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    queries: int = 0  # 0: read from a LETOR folder
    features: int = 0
    missing: float = 0.0  # share of missing cells
    categorical: int = 0  # so many of the first columns are categories: codes of their quantiles in a random order
    leaves: tuple[int, ...] = (31,)

    def seeds(self, asked: list[int]) -> list[int]:
        """Return the seeds; judgments that are not generated have only one."""
        return asked if self.queries else [0]

    def sized(self, queries: int | None, features: int | None) -> Case:
        if not self.queries:
            return self
        return replace(self, queries=queries or self.queries, features=features or self.features)


CASES = {
    case.name: case
    for case in (
        Case(name="mslr", queries=6000, features=136, leaves=(31, 255)),  # 720,000 rows
        Case(name="mslr-categories", queries=6000, features=136, categorical=20),  # of 10, 100 or 1,000 each
        Case(name="mq2008"),
        Case(name="wide", queries=833, features=700, missing=0.5),  # 100,000 rows
    )
}


class Data:
    """One part of a case.  A run loads only these arrays before its clock starts."""

    def __init__(self, folder: Path, part: str) -> None:
        self.x: npt.NDArray[np.float32] = np.load(folder / f"{part}-x.npy")  # (n_rows, n_features), row-major
        self.y: npt.NDArray[np.int32] = np.load(folder / f"{part}-y.npy")
        self.sizes: npt.NDArray[np.int64] = np.load(folder / f"{part}-sizes.npy")
        self.categorical: list[int] = np.load(folder / "categorical.npy").tolist()  # columns

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        return np.concatenate(([0], np.cumsum(self.sizes))).astype(np.int64)


def prepare(case: Case, seed: int, root: Path, letor: Path | None = None) -> Path:
    """Return the folder under ``root`` with the parts train, test and tiny of ``case``; existing files are reused."""
    shape = f"-{case.queries}x{case.features}-{seed}" if case.queries else f"-{letor.name}" if letor else ""
    folder = root / f"{case.name}{shape}"
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as work:
        made = Path(work) / "arrays"
        made.mkdir()
        if case.queries:
            _generate(case, "train", case.queries, seed, made)
            _generate(case, "test", max(200, case.queries // 4), seed + _TEST_SEED, made)
        elif letor is not None:
            _read(letor, Path(work), made)
        else:
            raise ValueError(f"{case.name} needs a LETOR folder")
        np.save(made / "categorical.npy", np.arange(case.categorical))
        _make_categories(case, seed, made)
        _cut_tiny(made)
        made.rename(folder)
    return folder


def _generate(case: Case, part: str, queries: int, seed: int, folder: Path) -> None:
    from rankmill.pipeline.options import SynthParameters
    from rankmill.pipeline.synth import generate

    parameters = SynthParameters(
        queries=queries, documents_per_query=DOCUMENTS_PER_QUERY, features=case.features, seed=seed
    )
    blocks = list(generate(parameters))
    rows = sum(len(block.grades) for block in blocks)
    x = np.lib.format.open_memmap(folder / f"{part}-x.npy", "w+", np.float32, (rows, case.features))
    first = 0
    for block in blocks:
        last = first + len(block.grades)
        x[first:last] = block.values.T
        for begin, end in _spans(first, last) if case.missing else ():
            x[begin:end][_dropped(begin, end, case.features, case.missing, seed)] = np.nan
        first = last
    x.flush()
    np.save(folder / f"{part}-y.npy", np.concatenate([block.grades for block in blocks]).astype(np.int32))
    np.save(folder / f"{part}-sizes.npy", np.concatenate([np.diff(block.starts) for block in blocks]))


def _make_categories(case: Case, seed: int, folder: Path) -> None:
    """Replace the first columns by categories: the quantiles of their train values, numbered at random."""
    parts = [np.load(folder / f"{part}-x.npy", mmap_mode="r+") for part in ("train", "test")]
    for f in range(case.categorical):
        k = (10, 100, 1000)[f % 3]
        cuts = np.quantile(parts[0][:, f], np.arange(1, k) / k)
        numbers = np.random.default_rng([seed, f]).permutation(k)
        for x in parts:
            x[:, f] = numbers[np.searchsorted(cuts, x[:, f])]


def _spans(first: int, last: int, rows: int = 4096) -> Iterator[tuple[int, int]]:
    for begin in range(first, last, rows):
        yield begin, min(begin + rows, last)


def _dropped(first: int, last: int, features: int, share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Return which cells of rows first .. last are missing.

    The draws are SplitMix64 of (seed, cell), and so independent.
    """
    with np.errstate(over="ignore"):
        cells = np.arange(first * features, last * features, dtype=np.uint64)
        z = (cells + np.uint64(seed) * np.uint64(1 << 40) + np.uint64(1)) * np.uint64(_MISSING_KEY)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return ((z >> np.uint64(32)) < np.uint64(int(share * 2**32))).reshape(last - first, features)


def _read(letor: Path, work: Path, folder: Path) -> None:
    from benchmarks.letor import make_fold

    fold = make_fold(letor, 0, work)
    for part, split in (("train", fold.train), ("test", fold.test)):
        np.save(folder / f"{part}-x.npy", np.ascontiguousarray(split.x, dtype=np.float32))
        np.save(folder / f"{part}-y.npy", split.grades)
        np.save(folder / f"{part}-sizes.npy", split.sizes)


def _cut_tiny(folder: Path) -> None:
    sizes = np.load(folder / "train-sizes.npy")[:TINY_QUERIES]
    rows = int(sizes.sum())
    np.save(folder / "tiny-sizes.npy", sizes)
    for name in ("x", "y"):
        np.save(folder / f"tiny-{name}.npy", np.load(folder / f"train-{name}.npy", mmap_mode="r")[:rows])
