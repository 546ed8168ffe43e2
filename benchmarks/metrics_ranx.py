"""The part of benchmarks/metrics.py that runs ranx, in a separate interpreter; imports no module of rankmill.

Reads an .npz with scores, grades and starts, then runs once for every line of standard input and prints a JSON object
for each.
"""

import json
import sys
import time

import numpy as np
from ranx import Qrels, Run, evaluate


def main(path: str, metrics: list[str], threads: int) -> None:
    data = np.load(path)
    scores, grades, starts = data["scores"], data["grades"], data["starts"]
    queries = [(f"q{q:06}", range(starts[q], starts[q + 1])) for q in range(len(starts) - 1)]
    judged = {qid: {f"d{row}": int(grades[row]) for row in rows} for qid, rows in queries}
    ranked = {qid: {f"d{row}": float(scores[row]) for row in rows} for qid, rows in queries}
    qrels, run = Qrels(judged), Run(ranked)
    lists = qrels.to_typed_list(), run.to_typed_list()
    evaluate(*lists, metrics, threads=threads)  # compiles
    evaluate(qrels, run, metrics, threads=threads)
    for line in sys.stdin:
        started, used = time.perf_counter(), time.process_time()
        found = (
            evaluate(*lists, metrics, threads=threads)
            if line.strip() == "prepared"
            else evaluate(qrels, run, metrics, threads=threads, save_results_in_run=False)
        )
        seconds = time.perf_counter() - started, time.process_time() - used
        means = {name: float(mean) for name, mean in found.items()}
        sys.stdout.write(json.dumps({"seconds": seconds, "means": means}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]))
