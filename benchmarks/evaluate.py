"""Time `rankmill evaluate` and `compare` of TREC runs, each a process of its own, beside pytrec_eval and ranx.

    python -m benchmarks.evaluate --work FOLDER [--queries 1500] [--documents 1000] [--turns 3] [--ranx PYTHON]

Two runs of queries x documents lines, and qrels of as many, are generated in FOLDER.  Every system reads both files and
prints means; they take turns.  *CPU s* are the user and system seconds of the process and of all its threads.  As
pytrec_eval has no reader, its files are split line by line in Python, as its documentation does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.report import render, spread, surroundings, table

METRICS = ("ndcg@10", "ndcg", "map", "mrr", "precision@10")
PYTREC_EVAL = """
import sys
import pytrec_eval
run, qrels = {}, {}
for line in open(sys.argv[1]):
    qid, _, doc_id, _, score, _ = line.split()
    run.setdefault(qid, {})[doc_id] = float(score)
for line in open(sys.argv[2]):
    qid, _, doc_id, grade = line.split()
    qrels.setdefault(qid, {})[doc_id] = int(grade)
names = {"ndcg_cut.10", "ndcg", "map", "recip_rank", "P.10"}
found = pytrec_eval.RelevanceEvaluator(qrels, names).evaluate(run)
print({name: sum(each[name] for each in found.values()) / len(found) for name in next(iter(found.values()))})
"""
RANX = """
import sys
from ranx import Qrels, Run, evaluate
qrels, run = Qrels.from_file(sys.argv[2], kind="trec"), Run.from_file(sys.argv[1], kind="trec")
print(evaluate(qrels, run, ["ndcg@10", "ndcg", "map", "mrr", "precision@10"]))
"""


def made(folder: Path, queries: int, documents: int) -> None:
    """Write a.run, b.run and qrels.txt."""
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        with (folder / f"{name}.run").open("w") as file:
            for q in range(queries):
                ids = rng.permutation(5 * documents)[:documents].tolist()
                scores = np.sort(rng.random(documents) * 20)[::-1].tolist()
                file.write(
                    "".join(f"{1000 + q} Q0 doc{d:07d} {i + 1} {scores[i]:.6f} {name}\n" for i, d in enumerate(ids))
                )
    with (folder / "qrels.txt").open("w") as file:
        for q in range(queries):
            ids = rng.permutation(5 * documents)[:documents].tolist()
            grades = rng.choice(4, documents, p=[0.8, 0.12, 0.05, 0.03]).tolist()
            file.write("".join(f"{1000 + q} 0 doc{d:07d} {g}\n" for d, g in zip(ids, grades, strict=True)))


def seconds_of(command: list[str], folder: Path) -> tuple[float, float, int]:
    """Return the elapsed and CPU seconds of a process, and its peak memory in MB."""
    begin = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[0]} ended with {process.returncode}")
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--queries", type=int, default=1500)
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--ranx", metavar="PYTHON", help="an interpreter that has ranx")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    made(options.work, options.queries, options.documents)
    ours = [sys.executable, "-m", "rankmill"]
    metrics = [word for name in METRICS for word in ("--metric", name)]
    systems = {
        "rankmill evaluate": [*ours, "evaluate", "a.run", "--qrels", "qrels.txt", *metrics],
        "pytrec_eval": [sys.executable, "-c", PYTREC_EVAL, "a.run", "qrels.txt"],
        "rankmill evaluate, default metrics": [*ours, "evaluate", "a.run", "--qrels", "qrels.txt"],
        "rankmill compare, default metrics": [*ours, "compare", "a.run", "b.run", "--qrels", "qrels.txt"],
    }
    if options.ranx:
        systems["ranx"] = [options.ranx, "-c", RANX, "a.run", "qrels.txt"]
    taken: dict[str, list[tuple[float, float, int]]] = {name: [] for name in systems}
    for turn in range(options.turns + 1):
        for name, command in systems.items():
            found = seconds_of(command, options.work)
            if turn:
                taken[name].append(found)
    rows = []
    for name, found in taken.items():
        wall, cpu, peak = zip(*found, strict=True)
        rows.append([name, spread(wall, 1), spread(cpu, 1), f"{max(peak):,}"])
    print(render(surroundings(["pytrec_eval-terrier", "polars"])))
    print(table(["", "s", "CPU s", "peak MB"], rows))


if __name__ == "__main__":
    main()
