"""Re-ranking over local workers beside one process: the same bytes, seconds, CPU seconds and the largest process.

``python -m benchmarks.cluster --rows 20000000 --work FOLDER`` generates the candidates and the model of
`benchmarks.rerank`, then runs ``rankmill rerank`` in one process and with ``--cluster local:N`` in turn.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.rerank import write_candidates, write_model


class Run(NamedTuple):
    """Seconds, CPU seconds of all processes, and the peak bytes of the largest one, without pages of files."""

    seconds: float
    user: float
    system: float
    peak: int


def measured(command: list[str]) -> Run:
    """Run ``command``."""
    before, started, peaks = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter(), {}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    ended = threading.Event()
    watching = threading.Thread(target=watch, args=(process.pid, peaks, ended.wait))
    watching.start()
    code = process.wait()
    seconds = time.perf_counter() - started
    ended.set()
    watching.join()
    if code:
        raise SystemExit(code)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Run(seconds, after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime, max(peaks.values()))


def watch(pid: int, peaks: dict[int, int], wait: Callable[[float], bool]) -> None:
    """Note the peak memory of the process ``pid`` and of those below it."""
    while not wait(0.1):
        try:
            top = psutil.Process(pid)
            for process in [top, *top.children(recursive=True)]:
                memory = process.memory_info()
                peaks[process.pid] = max(peaks.get(process.pid, 0), memory.rss - memory.shared)
        except psutil.Error:
            continue


def digest_of(folder: Path) -> str:
    """Return the digest of all files of ``folder``, with their names."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)}\n".encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def main() -> None:
    """Run both in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--memory", default="1GB", help="of each process")
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--top-k", type=int, help="default: whole lists")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--shuffled", action="store_true")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    order = "shuffled" if options.shuffled else "grouped"
    path, model, out = (options.work / name for name in (f"{order}-{options.rows}.parquet", "model.rankmill", "out"))
    if not path.exists():
        write_candidates(path, options.rows, shuffled=options.shuffled)
    if not model.exists():
        write_model(model)
    command = [
        sys.executable,
        "-m",
        "rankmill",
        "rerank",
        str(path),
        "--model",
        str(model),
        "-o",
        str(out),
        "--memory",
        options.memory,
    ]
    if options.top_k:
        command += ["--top-k", str(options.top_k)]
    lists = f"top {options.top_k}" if options.top_k else "whole lists"
    title = f"{options.rows:,} rows, {order}, {lists}, --memory {options.memory}"
    compare(title, command, options.workers, options.pairs, lambda: shutil.rmtree(out, ignore_errors=True), out)


def compare(
    title: str, command: list[str], workers: list[int], pairs: int, prepare: Callable[[], object], out: Path
) -> None:
    """Run ``command`` in one process and with local workers in turn, and print a table.

    ``prepare`` runs before each; ``out`` is what the command writes.
    """
    ways = {"one process": [], **{f"local:{n}": ["--cluster", f"local:{n}"] for n in workers}}
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    digests: set[str] = set()
    for _ in range(pairs):
        for name, more in ways.items():
            prepare()
            runs[name].append(measured(command + more))
            digests.add(digest_of(out))
            sys.stderr.write(f"{name}: {runs[name][-1]}\n")
    same = "the same bytes" if len(digests) == 1 else "DIFFERENT BYTES"
    sys.stdout.write(f"{title}; {same}: {', '.join(sorted(digests))}\n\n")
    sys.stdout.write(
        "| way | s, median (all) | ratio | user s | system s | largest process, MB |\n|---|---|---|---|---|---|\n"
    )
    alone = statistics.median(run.seconds for run in runs["one process"])
    for name, found in runs.items():
        median = statistics.median(run.seconds for run in found)
        each = ", ".join(f"{run.seconds:.1f}" for run in found)
        user, system = (statistics.median(getattr(run, kind) for run in found) for kind in ("user", "system"))
        peak = max(run.peak for run in found) / 1e6
        sys.stdout.write(
            f"| {name} | {median:.1f} ({each}) | {median / alone:.2f} | {user:.1f} | {system:.1f} | {peak:,.0f} |\n"
        )


if __name__ == "__main__":
    main()
