"""The same rows make the same bytes: in any format and order, in any number of files, by any threads, memory and size
of blocks.

Row groups are made small here, and the values that may be held at once less than a shard has, so that shards are
written in several goes, as those of large data are.
"""

import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq
import pytest

from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.dataset.manifest import MANIFEST_NAME
from rankmill.pipeline.group import bucket as layout
from rankmill.pipeline.group import shard_writer, spill
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.memory_plans import MemoryShare
from rankmill.pipeline.options import IngestOptions, ReadOptions
from tests.written import files_in, write_rows

WIDTH = 5
ROW_GROUP = 1 << 10  # bytes: 32 rows of 5 numbers
FEATURES = ("brand", *(f"x{k}" for k in range(WIDTH)))
GRADES = (0, 1, 2, 3)
BRANDS = (None, "acme", "a b", "Ä, Ü", '"q"', "7")
TIME = datetime(2026, 1, 1, tzinfo=UTC)

KINDS = {
    "letor": (".txt",),
    "csv": (".csv",),
    "parquet": (".parquet",),
    "arrow": (".arrow",),
    "json lines": (".jsonl",),
    "tables of several kinds": (".csv", ".tsv", ".parquet", ".arrow", ".jsonl"),
}


def judgments(seed, n):
    """Rows of queries of very different sizes: without ids and grades here and there, some of them more than once."""
    rng = random.Random(seed)
    weights = {str(qid): rng.choice([0.5, 1.0, 2.0]) for qid in range(40)}
    rows = []
    for k in range(n):
        qid = str(min(rng.randrange(40), rng.randrange(40)) if rng.random() < 0.6 else 7)
        values = [rng.choice([None, 0.0, -0.0, 1.0, rng.random(), rng.gauss(0, 1e4)]) for _ in range(WIDTH)]
        doc_id = None if rng.random() < 0.2 else f"d{k}"
        rows.append(
            {
                "qid": qid,
                "doc_id": doc_id,
                "grade": None if doc_id and rng.random() < 0.1 else rng.choice(GRADES),
                "weight": rng.choice([1.0, 0.25]),
                "query_weight": weights[qid],
                "event": rng.randrange(2),
                "offset": rng.choice([0.0, -3.25]),
                "bought": rng.randrange(3),
                "seen": TIME + timedelta(microseconds=rng.randrange(10**15)),
                "brand": rng.choice(BRANDS),
                **{f"x{k}": value for k, value in enumerate(values)},
            }
        )
    return [*rows, *rng.choices([row for row in rows if row["doc_id"] is None], k=n // 20)]


def write(path, rows, rng):
    """Write ``rows`` in the format of the suffix, keys and other columns than features in any order, brands at times
    encoded."""
    if path.suffix == ".txt":
        names = ["qid", "doc_id", "grade", *FEATURES[1:]]
        rows = [row | {"grade": row["grade"] or 0} for row in rows]
    else:
        names = rng.sample(list(rows[0]), len(rows[0]))
        if path.suffix != ".jsonl":  # features of tables have the order of their columns
            ordered = iter(FEATURES)
            names = [next(ordered) if name in FEATURES else name for name in names]
    write_rows(path, rows, names, encoded=rng.choice([(), ("brand",)]) if "brand" in names else ())


def read_as(kind, *categorical):
    """Return how rows of ``kind`` are read, with these categorical features beside the brand, which text does not
    have."""
    if kind == "letor":
        return ReadOptions(categorical=tuple(f"f{k + 1}" for k in categorical))
    names = ("brand", *(f"x{k}" for k in categorical))
    return ReadOptions(categorical=names, unjudged="keep", goals=("bought",), time_column="seen")


def contents(dataset):
    """Return the files of a dataset but for its manifest, which names the files it was made of."""
    return {name: content for name, content in files_in(dataset).items() if name != MANIFEST_NAME}


@dataclass(frozen=True)
class Way:
    """A way to ingest the same rows."""

    seed: int
    files: int
    threads: int
    memory: int
    block_bytes: int
    held: int | None  # bytes of values at once in the second pass, None: as the memory allows


ONE = Way(seed=0, files=1, threads=1, memory=2 * 10**9, block_bytes=16 << 20, held=None)
WAYS = [
    Way(seed=1, files=8, threads=1, memory=512 * 10**6, block_bytes=1 << 20, held=ROW_GROUP),
    Way(seed=2, files=8, threads=2, memory=4 * 10**9, block_bytes=5000, held=None),
    Way(seed=3, files=3, threads=3, memory=4 * 10**9, block_bytes=700, held=3 * ROW_GROUP),
]


def build(rows, kinds, way, folder, monkeypatch, options):
    """Ingest and bin ``rows`` in one way; the order of ``seed`` 0 is that of queries and documents."""
    folder.mkdir()
    rng = random.Random(way.seed)
    ordered = rng.sample(rows, len(rows)) if way.seed else sorted(rows, key=repr)
    parts = [folder / f"{rng.random()}{kinds[k % len(kinds)]}" for k in range(way.files)]
    for k, part in enumerate(parts):
        write(part, ordered[k :: way.files], rng)
    monkeypatch.setattr(layout, "ROW_GROUP_BYTES", ROW_GROUP)
    if way.held is not None:
        monkeypatch.setattr(spill, "_MOST_ROWS", 7)
        monkeypatch.setattr(shard_writer, "writing_share", lambda *_, **__: MemoryShare(way.threads, way.held))
    options = replace(options, threads=way.threads, memory=way.memory, block_size=way.block_bytes)
    ingest(rng.sample(parts, len(parts)), folder / "out", options=options)
    bin_dataset(Dataset.open(folder / "out"), max_bin=15)
    return folder / "out"


@pytest.mark.parametrize("kind", KINDS)
def test_order_files_threads_memory_and_blocks_do_not_change_the_bytes(tmp_path, monkeypatch, kind):
    rows, kinds = judgments(1, 500), KINDS[kind]
    options = IngestOptions(read=read_as(kind, 1, 3), buckets=3, split={"train": 0.7, "valid": 0.2, "test": 0.1})
    out = build(rows, kinds[:1], ONE, tmp_path / "one", monkeypatch, options)
    expected, digest = contents(out), Dataset.open(out).digest
    assert {name.split("/")[0] for name in expected} >= {"features", "_queries", "_bins", "_categories"}
    shard = max((out / "features").iterdir(), key=lambda path: path.stat().st_size)
    assert pq.read_metadata(shard).num_row_groups > 3
    for way in WAYS:
        with monkeypatch.context() as patch:
            found = build(rows, kinds, way, tmp_path / str(way.seed), patch, options)
        assert contents(found) == expected, way
        assert Dataset.open(found).digest == digest
