"""Ingest and bins over local workers beside one process: the same bytes, seconds, CPU seconds and the largest process.

``python -m benchmarks.cluster_data ingest --format txt --work FOLDER`` generates judgments in 8 files of LETOR text,
and runs ``rankmill data ingest`` in one process and with ``--cluster local:N`` in turn; ``bin`` does the same with
``rankmill data bin``.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.cluster import compare
from benchmarks.rerank import FEATURES, write_candidates
from rankmill.pipeline.options import SynthParameters
from rankmill.pipeline.synth import write_synthetic

FILES, QUERY_SIZE = 8, 100


def write_judgments(folder: Path, rows: int, suffix: str) -> list[Path]:
    """Write ``rows`` judgments with 136 features in some files, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number}.{suffix}" for number in range(FILES)]
    for number, path in enumerate(paths):
        if path.exists():
            continue
        each = rows // FILES
        if suffix == "parquet":
            write_candidates(path, each, shuffled=False, start=number * each)
            continue
        parameters = SynthParameters(
            queries=each // QUERY_SIZE, documents_per_query=QUERY_SIZE, features=FEATURES, seed=number
        )
        write_synthetic(path, parameters)
        path.write_text(path.read_text().replace("qid:", f"qid:{number}-"))
    return paths


def main() -> None:
    """Run one of the commands both ways in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["ingest", "bin"])
    parser.add_argument("--rows", type=int, default=800_000)
    parser.add_argument("--format", choices=["txt", "parquet"], default="txt")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--memory", default="2GB", help="of each process")
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    paths = write_judgments(options.work / f"{options.format}-{options.rows}", options.rows, options.format)
    out = options.work / "dataset"
    rankmill = [sys.executable, "-m", "rankmill", "data"]
    ingest = [*rankmill, "ingest", *map(str, paths), "-o", str(out)]
    title = (
        f"{options.rows:,} rows of {FEATURES} features in {FILES} files ({options.format}), --memory {options.memory}"
    )
    if options.command == "ingest":
        command = [*ingest, "--memory", options.memory]
        compare(title, command, options.workers, options.pairs, lambda: shutil.rmtree(out, ignore_errors=True), out)
        return
    plain = options.work / "not-binned"
    if not plain.exists():
        subprocess.run([*ingest[:-1], str(plain)], check=True, stdout=subprocess.DEVNULL)

    def copy() -> None:
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(plain, out)

    command = [*rankmill, "bin", str(out), "--memory", options.memory]
    compare(title, command, options.workers, options.pairs, copy, out)


if __name__ == "__main__":
    main()
