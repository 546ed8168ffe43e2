"""Time rounds on cores that are not ours alone: a busy neighbour, more threads than cores, and a quota of CPU time.

    python -m benchmarks.shared_cores --data FOLDER [--pairs 3] [--rounds 12] [--systems rankmill lightgbm]

Every run is a process of its own (see benchmarks/runs.py); conditions, systems and numbers of threads take turns.

    alone         two cores that nobody else uses
    neighbour     another process computes all the time
    one core      the process may use one core only
    quota 1, 1.5  the process gets so many cores' CPU time in every 100 ms and then waits for the next 100 ms, as in a
                  container with such a limit; the process does not know it, which is the worst case

The last column is how much longer a round takes with two threads than with the better of one and two.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.cases import CASES, prepare
from benchmarks.report import render, spread, surroundings, table
from benchmarks.systems import SYSTEMS, Task

PERIOD = 0.1  # seconds, that of a container's quota
CONDITIONS = ("alone", "neighbour", "one core", "quota 1", "quota 1.5")


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that all threads of a process have used."""
    used = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            used += int((thread / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return used / 1e9


def keep_within(process: subprocess.Popen[str], cores: float) -> None:
    """Stop the process whenever it has used the CPU time of so many cores in a period, until the period ends."""
    while process.poll() is None:
        end = time.monotonic() + PERIOD
        try:
            before = cpu_seconds(process.pid)
            while time.monotonic() < end and cpu_seconds(process.pid) - before < cores * PERIOD:
                time.sleep(0.002)
        except FileNotFoundError:  # it has ended
            return
        process.send_signal(signal.SIGSTOP)
        time.sleep(max(0.0, end - time.monotonic()))
        process.send_signal(signal.SIGCONT)


@contextmanager
def neighbour() -> Iterator[None]:
    """Compute in another process meanwhile."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def seconds_a_round(condition: str, folder: Path, system: str, task: Task) -> float:
    """Return the seconds of a round of ``system`` in a process of its own, under one of the conditions."""
    command = [sys.executable, "-m", "benchmarks.runs", str(folder.resolve()), system, json.dumps(asdict(task))]
    if condition == "one core":
        command = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0))), *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as process:
        try:
            if condition.startswith("quota"):
                keep_within(process, float(condition.split()[1]))
            out, _ = process.communicate()
        except BaseException:
            process.kill()  # also if it is stopped
            raise
    if process.returncode:
        raise SystemExit(f"{system} failed")
    return float(json.loads(out.splitlines()[-1])["round_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="keep the generated arrays here")
    parser.add_argument("--queries", type=int, default=6000, help="about 120 documents each")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=["rankmill"])
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS))
    given = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # all conditions are about two cores
    folder = prepare(CASES["mslr"].sized(given.queries, None), 1, given.data)
    taken: dict[tuple[str, str, int], list[float]] = {}
    for _ in range(given.pairs):
        for condition in given.conditions:
            for system in given.systems:
                for threads in (1, 2):
                    task = Task(31, threads, given.rounds)
                    with neighbour() if condition == "neighbour" else nullcontext():
                        found = seconds_a_round(condition, folder, system, task)
                    print(f"{condition}, {system}, {threads} threads: {found:.4f}", file=sys.stderr, flush=True)
                    taken.setdefault((condition, system, threads), []).append(found)
    rows = []
    for condition in given.conditions:
        for system in given.systems:
            one, two = (taken[condition, system, threads] for threads in (1, 2))
            times = float(np.median(two) / min(np.median(one), np.median(two)))
            rows.append([condition, system, spread(one, 3), spread(two, 3), f"{times:.2f}"])
    print(render(surroundings(["lightgbm"])))
    print(table(["condition", "system", "1 thread, s a round", "2 threads", "2 threads to the better"], rows))


if __name__ == "__main__":
    main()
