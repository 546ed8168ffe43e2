"""Time ingest of tables by format, beside Polars and DuckDB, which read the same file into memory.

    python -m benchmarks.ingest_formats [--documents 50000] [--repeats 3] [--threads 2] [--work FOLDER]

Judgments are generated (136 features, decimals like MSLR's) and written as CSV, TSV, JSON lines, Parquet and Arrow.  ``rankmill`` is the
whole ingest, to a published dataset; the others end with all columns in memory, DuckDB's as an Arrow table.  Each reading is a process
that has read a small file of the format before; they take turns.  *CPU s* are user and system seconds of all threads.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl

from benchmarks.report import render, spread, surroundings, table
from rankmill.pipeline.options import IngestOptions, SynthParameters
from rankmill.pipeline.synth import write_synthetic

FORMATS = {
    "CSV": "csv",
    "TSV": "tsv",
    "JSON lines": "jsonl",
    "Parquet": "parquet",
    "Arrow": "arrow",
}
SYSTEMS = ("rankmill", "Polars", "DuckDB")


def write_formats(folder: Path, documents: int) -> None:
    """Write the same rows in every format, by the suffix."""
    path = folder / "rows.parquet"
    write_synthetic(
        path, SynthParameters(queries=documents // 120, documents_per_query=120, features=136), overwrite=True
    )
    rows = pl.read_parquet(path)
    rows.write_csv(folder / "rows.csv")
    rows.write_csv(folder / "rows.tsv", separator="\t")
    rows.write_ndjson(folder / "rows.jsonl")
    rows.write_ipc(folder / "rows.arrow", compat_level=pl.CompatLevel.oldest())


def read_once(system: str, path: Path, work: Path, threads: int) -> None:
    """Read ``path``; Polars takes its threads from the environment."""
    kind = path.suffix[1:]
    if system == "rankmill":
        from rankmill.pipeline.ingest import ingest

        ingest([path], work / "dataset", options=IngestOptions(threads=threads))
        shutil.rmtree(work / "dataset")
    elif system == "Polars":
        if kind in {"csv", "tsv"}:
            pl.read_csv(path, separator="\t" if kind == "tsv" else ",")
        else:
            read = {"jsonl": pl.read_ndjson, "parquet": pl.read_parquet, "arrow": pl.read_ipc}[kind]
            read(path)
    else:
        import duckdb
        import pyarrow as pa

        with duckdb.connect(config={"threads": threads}) as connection:
            if kind == "arrow":  # DuckDB reads no Arrow file itself
                with pa.OSFile(str(path)) as file:
                    rows = pa.ipc.open_file(file).read_all()
                connection.sql("CREATE TABLE t AS SELECT * FROM rows")
                del rows
            else:
                reader = {"csv": "read_csv", "tsv": "read_csv", "jsonl": "read_json", "parquet": "read_parquet"}[kind]
                connection.sql(f"SELECT * FROM {reader}('{path}')").to_arrow_table()


def once(system: str, path: Path, small: Path, threads: int) -> None:
    """Print the elapsed and CPU seconds of one reading, after a small one."""
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        read_once(system, small, Path(work), threads)
        begin, cpu = time.perf_counter(), time.process_time()
        read_once(system, path, Path(work), threads)
        print(json.dumps([time.perf_counter() - begin, time.process_time() - cpu]))


def measured(system: str, path: Path, small: Path, threads: int) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.ingest_formats", "once", system, str(path), str(small), str(threads)]
    environment = {"POLARS_MAX_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        large, small = Path(work, "large"), Path(work, "small")
        for folder, documents in ((large, options.documents), (small, 1_200)):
            folder.mkdir()
            write_formats(folder, documents)
        for name, suffix in FORMATS.items():
            path = large / f"rows.{suffix}"
            taken: dict[str, list[list[float]]] = {system: [] for system in SYSTEMS}
            for _ in range(options.repeats):
                for system, found in taken.items():
                    found.append(measured(system, path, small / path.name, options.threads))
            size = path.stat().st_size / 1e6
            for system, found in taken.items():
                rates = [size / wall for wall, _ in found]
                rows.append([name, f"{size:,.0f}", system, spread(rates, 0), spread([cpu for _, cpu in found], 2)])
    print(render(surroundings(["polars", "duckdb", "pyarrow"])))
    print(table(["format", "MB", "system", "MB/s", "CPU s"], rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["once"]:
        once(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
