"""Time five metrics of 360,000 documents, compared with ranx, both on one thread by default.

Scores and grades are generated without ties, which ranx breaks by its sort; the means of both must agree.  Both take
turns, with code compiled and data structures built before the clock starts.  ``prepared`` times only the metrics: ranx
from sorted typed lists, ours from queries with known ideal order (our time includes sorting by score).  ``whole``
starts from Qrels and Run objects of ranx, and from our arrays of scores, grades and offsets.

If ranx is in another environment, --ranx is its interpreter.

Example: python benchmarks/metrics.py --ranx ranx/bin/python --turns 9
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.report import render, spread, surroundings, table
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries, mean_of

METRICS = {"ndcg@10": "ndcg@10", "ndcg": "ndcg", "map": "map", "mrr": "mrr", "precision@10": "precision@10"}
POLICY = Policy(gain="linear", nothing_relevant="zero")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranx", default=sys.executable, metavar="PYTHON", help="an interpreter that has ranx")
    parser.add_argument("--documents", type=int, default=360_000)
    parser.add_argument("--queries", type=int, default=3_000)
    parser.add_argument("--threads", type=int, default=1, help="of ranx; ours is always one")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    rng = np.random.default_rng(given.seed)
    cuts = np.sort(rng.choice(np.arange(1, given.documents), given.queries - 1, replace=False))
    starts = np.concatenate([[0], cuts, [given.documents]]).astype(np.int64)
    grades = rng.choice(5, given.documents, p=[0.55, 0.3, 0.1, 0.03, 0.02]).astype(np.int32)
    noisy = rng.random(given.documents) + 0.1 * grades
    scores = np.argsort(np.argsort(noisy)).astype(np.float64)  # all distinct, also in float32
    metrics = [parse_metric(name) for name in METRICS]

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lists.npz"
        np.savez(path, scores=scores, grades=grades, starts=starts)
        worker = Path(__file__).with_name("metrics_ranx.py")
        command = [given.ranx, str(worker), str(path), ",".join(METRICS.values()), str(given.threads)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
            assert peer.stdin is not None
            assert peer.stdout is not None
            prepared = PreparedQueries(grades, starts, POLICY)
            prepared.evaluate(metrics, scores)
            seconds: dict[tuple[str, str], list[tuple[float, float]]] = {}
            for _ in range(given.turns):
                for kind in ("prepared", "whole"):
                    peer.stdin.write(kind + "\n")
                    peer.stdin.flush()
                    answer = json.loads(peer.stdout.readline())
                    seconds.setdefault((kind, "ranx"), []).append(tuple(answer["seconds"]))
                    started, used = time.perf_counter(), time.process_time()
                    ready = prepared if kind == "prepared" else PreparedQueries(grades, starts, POLICY)
                    found = {metric: mean_of(values) for metric, values in ready.evaluate(metrics, scores).items()}
                    spent = time.perf_counter() - started, time.process_time() - used
                    seconds.setdefault((kind, "rankmill"), []).append(spent)
                    for metric, (_, theirs) in zip(metrics, METRICS.items(), strict=True):
                        assert abs(found[metric] - answer["means"][theirs]) < 1e-9, (metric, found, answer)
            peer.stdin.close()
    rows = []
    for kind in ("prepared", "whole"):
        for clock, what in enumerate(("elapsed", "of the CPU")):
            ours, theirs = ([1e3 * turn[clock] for turn in seconds[kind, system]] for system in ("rankmill", "ranx"))
            ratio = f"{np.median(np.array(theirs) / np.array(ours)):.1f}"
            rows.append([f"{kind}, {what}", spread(ours, 1), spread(theirs, 1), ratio])
    sys.stdout.write(render(surroundings()) + "\n")
    sys.stdout.write(
        f"{given.documents:,} documents, {given.queries:,} queries, {', '.join(METRICS)}; milliseconds, median "
        "(range) of "
        f"{given.turns} turns; the means of both agree within 1e-9\n\n"
    )
    sys.stdout.write(table(["", "rankmill", f"ranx, {given.threads} thread(s)", "ratio"], rows) + "\n")


if __name__ == "__main__":
    main()
