"""One run of one system in its own process: time, memory and quality.

A run first trains on a tiny part, so that libraries are loaded, thread pools exist and our kernels are compiled:
compile time is not part of the comparison.  Then it loads the arrays, and measures seconds and the peak of resident
memory above that level.  Construction and training are measured separately: the peak is reset when the dataset is
ready.  All systems are treated alike.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import Data
from benchmarks.systems import SYSTEMS, Task


class RunFailed(Exception):
    """A run ended with an error; the text holds the end of what it wrote to stderr."""


def measure(folder: Path, system: str, task: Task) -> dict[str, Any]:
    """Run ``system`` on the arrays of ``folder`` in a new process and return its results.

    Raises
    ------
    RunFailed
        The process failed.
    """
    command = [sys.executable, "-m", "benchmarks.runs", str(folder.resolve()), system, json.dumps(asdict(task))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    if done.returncode:
        raise RunFailed(f"{system} failed:\n" + "\n".join(done.stderr.splitlines()[-12:]))
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


class Memory:
    """Peak of resident memory since the last reset, in MB above a base; None if unknown."""

    def __init__(self) -> None:
        self._base = self._read("VmRSS")
        self.reset()

    def reset(self) -> None:
        if self._base is not None:
            Path("/proc/self/clear_refs").write_text(
                "5", encoding="ascii"
            )  # sets VmHWM to VmRSS: man proc_pid_clear_refs

    def growth(self) -> float | None:
        peak = self._read("VmHWM")
        return None if peak is None or self._base is None else peak - self._base

    @staticmethod
    def _read(field: str) -> float | None:
        status = Path("/proc/self/status")
        if not status.exists():
            return None
        lines = status.read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024 / 1e6


def _return_freed_memory() -> None:
    """Return memory freed by the warm-up to the system, so that it does not hide growth."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


def _run(folder: Path, name: str, task: Task) -> dict[str, Any]:
    from rankmill.scorer.metrics import Policy, parse_metric
    from rankmill.scorer.metrics.per_query import PreparedQueries

    system = SYSTEMS[name]
    tiny = Task(task.leaves, task.threads, 2)
    system.run(Data(folder, "tiny"), tiny, system.settings(tiny), lambda: None)
    _return_freed_memory()
    settings = system.settings(task)
    data = Data(folder, "train")
    figures: dict[str, Any] = {"rows": data.x.shape[0], "features": data.x.shape[1], "queries": len(data.sizes)}
    memory, begin = Memory(), time.perf_counter()

    def built() -> None:
        figures["construct_s"] = time.perf_counter() - begin
        figures["construct_mb"] = memory.growth()
        memory.reset()

    clock, score = system.run(data, task, settings, built)
    figures["whole_s"] = time.perf_counter() - begin
    figures["train_mb"] = memory.growth()
    figures["rounds_s"] = clock.seconds
    figures["round_s"] = float(np.median(clock.seconds[1:] or clock.seconds))  # the first one sets up
    figures["round_cpu_s"] = float(np.median(clock.cpu[1:] or clock.cpu))
    test = Data(folder, "test")
    scores, ndcg = score(test.x), parse_metric("ndcg@10")
    figures["ndcg@10"] = PreparedQueries(test.y, test.starts, Policy()).means([ndcg], scores)[ndcg]
    if system.pointwise:
        figures["rmse"] = float(np.sqrt(np.mean(np.square(scores - test.y))))
    return figures


if __name__ == "__main__":
    print(json.dumps(_run(Path(sys.argv[1]), sys.argv[2], Task(**json.loads(sys.argv[3])))))
