"""Reading, describing and fitting a click log of 100 million impressions, beside pandas on a tenth of it.

    python -m benchmarks.click_logs --sessions 10240000 --queries 50000

The log is simulated (`rankmill data synth --clicks`) and written as Parquet.  Every step is a process of its own, whose
peak memory, user seconds and wall-clock seconds are those that the system counts.  On a tenth of the sessions, systems
alternate.  The baseline with pandas does the part of `clicks describe` and `clicks fit` that takes a few lines there.
That is click-through by position, documents shown at several positions, counts by document and position, and 100 steps
of EM for the position-based model.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from rankmill.clicks.options import ClickSimulation
from rankmill.clicks.simulate import ClickLogReport, generated_queries, write_click_log
from rankmill.pipeline.options import SynthParameters

BASELINE = """
import sys, numpy as np, pandas as pd
log = pd.read_parquet(sys.argv[1], columns=["session", "qid", "doc_id", "position", "clicked"])
print(log.session.nunique(), log.clicked.groupby(log.position).mean().round(4).tolist())
table = log.groupby(["qid", "doc_id", "position"], sort=False).clicked.agg(["size", "sum"]).reset_index()
document = table.groupby(["qid", "doc_id"], sort=False).ngroup().to_numpy()
print((np.bincount(document) > 1).sum())
rank, n, k = table.position.to_numpy() - 1, table["size"].to_numpy(), table["sum"].to_numpy()
theta, gamma = np.full(rank.max() + 1, 0.5), np.full(document.max() + 1, 0.5)
of_rank, of_document = np.bincount(rank, n), np.bincount(document, n)
for _ in range(100):
    t, g = theta[rank], gamma[document]
    unseen = (n - k) / (1 - t * g)
    theta = np.bincount(rank, k + unseen * t * (1 - g)) / of_rank
    gamma = np.bincount(document, k + unseen * g * (1 - t)) / of_document
print((theta / theta[0]).round(3).tolist())
"""


def measured(arguments: list[str]) -> tuple[float, float, float]:
    """Run a command; return wall-clock seconds, user seconds and peak megabytes."""
    started = time.perf_counter()
    quiet = os.open(os.devnull, os.O_WRONLY)
    pid = os.posix_spawn(arguments[0], arguments, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, quiet, 1)])
    _, status, used = os.wait4(pid, 0)
    os.close(quiet)
    if status:
        raise RuntimeError(f"{arguments[1:4]} left with {status}")
    return time.perf_counter() - started, used.ru_utime, used.ru_maxrss / 1000


def simulated(path: Path, queries: int, sessions: int) -> ClickLogReport:
    """Write a log of this many sessions."""
    judged, scores = generated_queries(SynthParameters(queries=queries, documents_per_query=20, features=10), "f1")
    return write_click_log(path, judged, scores, ClickSimulation(sessions=sessions, swapped=0.2, randomised=0.02))


def row(name: str, runs: list[tuple[float, float, float]], size: float, impressions: int) -> str:
    """A row of the table: medians."""
    wall, user, peak = (statistics.median(column) for column in zip(*runs, strict=True))
    return f"| {name} | {wall:.0f} | {user:.0f} | {peak:.0f} | {size / wall:.1f} | {impressions / wall / 1e6:.2f} |"


def main() -> None:
    """Generate, measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=10_240_000)
    parser.add_argument("--queries", type=int, default=50_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    ours = [sys.executable, "-m", "rankmill", "clicks"]
    with TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        # in a process of its own, as the peaks of others include that of the one that starts them
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            logs = {
                what: pool.submit(simulated, folder / f"{what}.parquet", given.queries, sessions).result()
                for what, sessions in (("whole", given.sessions), ("tenth", given.sessions // 10))
            }
        whole, tenth = (str(logs[what].path) for what in logs)
        sizes = {what: logs[what].path.stat().st_size / 1e6 for what in logs}
        for what, log in logs.items():
            print(
                f"{what}: {log.impressions:,} impressions, {log.clicks:,} clicks, {sizes[what]:.0f} MB of Parquet",
                flush=True,
            )
        bounded = ["--memory", "1GB"]
        fit = [*ours, "fit", whole, "-o", f"{folder}/p.json", "--overwrite", "--replicates", "0", *bounded]
        judge = [*ours, "judge", whole, "--propensities", f"{folder}/p.json", "-o", f"{folder}/judged.parquet"]
        commands = {
            "fit pbm": fit,
            "describe": [*ours, "describe", whole, *bounded],
            "judge": [*judge, "--memory", "2GB"],
        }
        print(
            "| | seconds | user seconds | peak MB | MB/s | million impressions/s |\n| --- | --- | --- | --- | --- | "
            "--- |"
        )
        for what, command in commands.items():
            print(row(f"{what}, whole", [measured(command)], sizes["whole"], logs["whole"].impressions), flush=True)
        small = {
            "fit pbm": [tenth if word == whole else word for word in commands["fit pbm"]],
            "pandas": [sys.executable, "-c", BASELINE, tenth],
        }
        runs: dict[str, list[tuple[float, float, float]]] = {what: [] for what in small}
        for _ in range(given.pairs):
            for what, command in small.items():
                runs[what].append(measured(command))
        for what, found in runs.items():
            print(row(f"{what}, tenth", found, sizes["tenth"], logs["tenth"].impressions), flush=True)
        ratio = np.median([b[1] / a[1] for a, b in zip(runs["fit pbm"], runs["pandas"], strict=True)])
        print(f"pandas / fit pbm, user seconds: {ratio:.2f}")


if __name__ == "__main__":
    main()
