"""Re-ranking at scale: seconds and peak memory, compared with its parts, each in its own process.

``python -m benchmarks.rerank --rows 20000000 --work FOLDER`` generates candidates with 136 float32 features (about 11
GB) and a forest of 500 trees of 64 leaves.  Queries have about 1,000 documents, grouped, or with ``--shuffled`` in
random order.  It prints the cost of only reading the file, of only scoring, and of ``rerank --top-k 100``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FEATURES, QUERY_SIZE, GROUP = 136, 1000, 100_000
TREES, LEAVES, CUTS = 500, 64, 254


def write_candidates(path: Path, rows: int, *, shuffled: bool, start: int = 0) -> None:
    """Write ``rows`` candidates with normal features, numbered from ``start``.

    Equal ``rows`` and ``start`` give the same candidates.
    """
    rng = np.random.default_rng(7 + start)
    names = [f"f{i + 1}" for i in range(FEATURES)]
    ids = [pa.field("qid", pa.string()), pa.field("doc_id", pa.string()), pa.field("grade", pa.int32())]
    schema = pa.schema([*ids, *(pa.field(name, pa.float32()) for name in names)])
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for first in range(0, rows, GROUP):
            n = min(GROUP, rows - first)
            document = np.arange(start + first, start + first + n)
            query = rng.integers(0, max(1, rows // QUERY_SIZE), n) if shuffled else document // QUERY_SIZE
            columns = [
                pa.array(query).cast(pa.string()),
                pa.array(document).cast(pa.string()),
                pa.array(rng.integers(0, 5, n), pa.int32()),
                *(pa.array(column) for column in rng.standard_normal((FEATURES, n), dtype=np.float32)),
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))


def write_model(path: Path) -> None:
    """Write a forest of trees grown by splitting random leaves at random thresholds."""
    from rankmill.scorer.forest.forest import Forest, compact_splits

    rng = np.random.default_rng(8)
    grid = np.sort(rng.standard_normal((FEATURES, CUTS), dtype=np.float32), axis=1)
    size = 2 * LEAVES - 1
    n = TREES * size
    feature, left, right = np.full(n, -1, np.int32), np.full(n, -1, np.int32), np.full(n, -1, np.int32)
    threshold = np.zeros(n, np.float32)
    for tree in range(TREES):
        leaves, used = [0], 1
        for _ in range(LEAVES - 1):
            node = leaves.pop(int(rng.integers(len(leaves))))
            f = int(rng.integers(FEATURES))
            feature[tree * size + node], threshold[tree * size + node] = f, grid[f, rng.integers(CUTS)]
            left[tree * size + node], right[tree * size + node] = used, used + 1
            leaves += [used, used + 1]
            used += 2
    Forest(
        feature_names=tuple(f"f{i + 1}" for i in range(FEATURES)),
        tree_starts=np.arange(0, n + 1, size, dtype=np.int32), node_feature=feature,
        **compact_splits(feature, threshold, FEATURES),
        node_missing_left=np.zeros(n, dtype=np.uint8), node_left=left, node_right=right,
        node_value=rng.normal(size=n), node_gain=np.zeros(n), node_rows=np.ones(n, dtype=np.int64),
        tree_weights=np.ones(TREES), base_score=0.0, objective="lambdarank", info={"max_grade": 4},
    ).save(path)  # fmt: skip


def read_alone(path: Path) -> None:
    """Read the file as fast as Arrow does, in batches."""
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 16) as file:
        for _ in file.iter_batches(batch_size=32768):
            pass


def score_alone(model: Path, rows: int) -> None:
    """Score ``rows`` rows in memory with all cores."""
    from rankmill.foundation.cores import available_cores
    from rankmill.scorer.forest.forest import Forest
    from rankmill.scorer.forest.predict import ForestPredictor

    values = np.random.default_rng(9).standard_normal((1 << 18, FEATURES), dtype=np.float32)
    predictor = ForestPredictor(Forest.load(model))
    for first in range(0, rows, len(values)):
        predictor.scores(values[: rows - first], n_threads=available_cores())


def rerank_all(path: Path, model: Path, out: Path, memory: str) -> None:
    """Re-rank with the public function."""
    from rankmill.scorer.rerank.rerank import rerank

    rerank(path, model, out, top_k=100, memory=memory, overwrite=True)


def main() -> None:
    """Run each part in its own process, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--shuffled", action="store_true")
    parser.add_argument("--part", choices=("read", "score", "rerank"))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    order = "shuffled" if options.shuffled else "grouped"
    path, model = options.work / f"{order}-{options.rows}.parquet", options.work / "model.rankmill"
    if options.part is not None:
        started, cpu = time.perf_counter(), time.process_time()
        if options.part == "read":
            read_alone(path)
        elif options.part == "score":
            score_alone(model, options.rows)
        else:
            rerank_all(path, model, options.work / "out", options.memory)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        sys.stdout.write(f"| {options.part} | {seconds:.1f} | {cpu:.1f} | {peak_megabytes():,.0f} |\n")
        return
    if not path.exists():
        write_candidates(path, options.rows, shuffled=options.shuffled)
    if not model.exists():
        write_model(model)
    sys.stdout.write(
        f"{options.rows:,} rows, {order}, {path.stat().st_size / 1e9:.1f} GB, --memory {options.memory}\n\n"
    )
    sys.stdout.write("| part | s | CPU s | peak MB |\n|---|---|---|---|\n")
    sys.stdout.flush()
    for part in ("read", "score", "rerank"):
        subprocess.run([sys.executable, "-m", "benchmarks.rerank", *sys.argv[1:], "--part", part], check=True)


def peak_megabytes() -> float:
    """Return the peak memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


if __name__ == "__main__":
    main()
