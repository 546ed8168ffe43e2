"""Time reading and ingest of tables by format, beside scripts for DuckDB and Polars that do the same work.

    python -m benchmarks.ingest_formats [--documents 300000] [--features 136] [--repeats 3] [--threads 2] [--memory 1GB]

Judgments are generated (decimals like MSLR's) and written as CSV, TSV, JSON lines, Parquet and Arrow.  *Reading* ends
with every row in memory for a moment (batches for rankmill and DuckDB, one frame for Polars). *Ingest* ends with rows
that are grouped by query and sorted, as Parquet with zstd on the disk.  For rankmill that is a published dataset with
digests and statistics, for DuckDB and Polars one file.  rankmill and DuckDB have the memory of ``--memory``; Polars
takes what it needs.  Each measurement is a process that has read a small file of the format before; they take turns.
*CPU s* are of all threads, *MB* is the peak (VmHWM).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.report import render, spread, surroundings, table

FORMATS = {"CSV": "csv", "TSV": "tsv", "JSON lines": "jsonl", "Parquet": "parquet", "Arrow": "arrow"}
SYSTEMS = ("rankmill", "DuckDB", "Polars")
WORK = ("reading", "ingest")
_ORDER = "hash(qid), qid, doc_id"


class Task(NamedTuple):
    """One measurement."""

    system: str
    work: str
    path: Path
    small: Path
    threads: int
    memory: str


def write_formats(folder: Path, documents: int, features: int) -> None:
    """Write the same rows in every format, by the suffix."""
    import polars as pl

    from rankmill.pipeline.options import SynthParameters
    from rankmill.pipeline.synth import write_synthetic

    path = folder / "rows.parquet"
    parameters = SynthParameters(queries=documents // 120, documents_per_query=120, features=features)
    write_synthetic(path, parameters, overwrite=True)
    rows = pl.read_parquet(path)
    rows.write_csv(folder / "rows.csv")
    rows.write_csv(folder / "rows.tsv", separator="\t")
    rows.write_ndjson(folder / "rows.jsonl")
    rows.write_ipc(folder / "rows.arrow", compat_level=pl.CompatLevel.oldest())


def rankmill_once(work: str, path: Path, out: Path, threads: int, memory: str) -> None:
    from rankmill.foundation.units import parse_size
    from rankmill.pipeline.ingest import ingest
    from rankmill.pipeline.options import IngestOptions, ReadOptions
    from rankmill.pipeline.read.open_source import open_source

    if work == "ingest":
        ingest([path], out / "dataset", options=IngestOptions(threads=threads, memory=parse_size(memory, "--memory")))
        return
    for _ in open_source(path, "auto", ReadOptions()).batches():
        pass


def duckdb_once(work: str, path: Path, out: Path, threads: int, memory: str) -> None:
    import duckdb
    import pyarrow as pa

    kind = path.suffix[1:]
    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": threads,
        "memory_limit": memory,
        "temp_directory": str(out),
        "preserve_insertion_order": False,
    }
    with duckdb.connect(config=config) as connection:
        if kind == "arrow":  # DuckDB reads no Arrow file itself
            rows = pa.ipc.open_file(pa.memory_map(str(path)))
            batches = pa.RecordBatchReader.from_batches(
                rows.schema, map(rows.get_batch, range(rows.num_record_batches))
            )
            source = "batches"
            connection.register(source, batches)
        else:
            reader = {"csv": "read_csv", "tsv": "read_csv", "jsonl": "read_json", "parquet": "read_parquet"}[kind]
            source = f"{reader}('{path}')"
        if work == "ingest":
            options = "FORMAT parquet, COMPRESSION zstd"
            connection.execute(
                f"COPY (SELECT * FROM {source} ORDER BY {_ORDER}) TO '{out / 'rows.parquet'}' ({options})"
            )
            return
        for _ in connection.sql(f"SELECT * FROM {source}").to_arrow_reader(8192):
            pass


def polars_once(work: str, path: Path, out: Path) -> None:
    import polars as pl

    kind = path.suffix[1:]
    if kind in {"csv", "tsv"}:
        rows = pl.read_csv(path, separator="\t" if kind == "tsv" else ",")
    else:
        read: dict[str, Callable[[Path], pl.DataFrame]] = {
            "jsonl": pl.read_ndjson, "parquet": pl.read_parquet, "arrow": pl.read_ipc
        }  # fmt: skip
        rows = read[kind](path)
    if work == "ingest":
        rows.sort(pl.col("qid").hash(), "qid", "doc_id").write_parquet(out / "rows.parquet", compression="zstd")


def do(task: Task, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=task.path.parent) as out:
        if task.system == "Polars":
            polars_once(task.work, path, Path(out))
        else:
            run = rankmill_once if task.system == "rankmill" else duckdb_once
            run(task.work, path, Path(out), task.threads, task.memory)


def once(task: Task) -> None:
    """Print elapsed and CPU seconds of one task, after a small one, and the peak memory in bytes."""
    from rankmill.foundation.process_memory import peak_bytes

    do(task, task.small)
    begin, cpu = time.perf_counter(), time.process_time()
    do(task, task.path)
    print(json.dumps([time.perf_counter() - begin, time.process_time() - cpu, peak_bytes()]))


def measured(task: Task) -> list[float]:
    """Run ``task`` in a process of its own; Polars takes its threads from the environment."""
    command = [sys.executable, "-m", "benchmarks.ingest_formats", "once", *map(str, task)]
    environment = os.environ | {"POLARS_MAX_THREADS": str(task.threads)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=300_000)
    parser.add_argument("--features", type=int, default=136)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--formats", nargs="+", default=list(FORMATS.values()))
    parser.add_argument("--work", type=Path, help="folder for the files, on a disk with room for them")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=given.work) as folder:
        large, small = Path(folder, "large"), Path(folder, "small")
        for place, documents in ((large, given.documents), (small, 1_200)):
            place.mkdir()
            write_formats(place, documents, given.features)
        for name, suffix in FORMATS.items():
            if suffix not in given.formats:
                continue
            path, few = large / f"rows.{suffix}", small / f"rows.{suffix}"
            for work in WORK:
                tasks = [Task(system, work, path, few, given.threads, given.memory) for system in SYSTEMS]
                runs = [[measured(task) for task in tasks] for _ in range(given.repeats)]
                for system, found in zip(SYSTEMS, zip(*runs, strict=True), strict=True):
                    wall, cpu, peak = zip(*found, strict=True)
                    megabytes = f"{max(peak) / 1e6:,.0f}"
                    size = f"{path.stat().st_size / 1e6:,.0f} MB"
                    rows.append([f"{name} ({size}), {work}", system, spread(cpu, 2), spread(wall, 2), megabytes])
    print(render(surroundings(["polars", "duckdb", "pyarrow"])))
    print(table(["format, work", "system", "CPU s", "s", "peak MB"], rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["once"]:
        system, work, path, small, threads, memory = sys.argv[2:]
        once(Task(system, work, Path(path), Path(small), int(threads), memory))
    else:
        main()
