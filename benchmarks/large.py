"""A large training from one text file, step by step: seconds, CPU seconds and peak memory, beside LightGBM.

    python -m benchmarks.large --documents 5000000 --work FOLDER

Judgments with 136 features are generated as TSV, about 3.5 bytes a value.  rankmill ingests, bins and trains on them,
evaluates the model on other queries, and ranks the documents of the file again, all under ``--memory`` (training takes
what it needs).  LightGBM loads the same file in two rounds, trains as many trees of as many leaves, and scores it.
Every step is a process of its own, whose kernels were compiled before; LightGBM's loading and training share one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.report import render, surroundings, table
from benchmarks.systems import MAX_BIN, MIN_ROWS, RATE
from rankmill.pipeline.options import SynthParameters
from rankmill.pipeline.synth import generate

FEATURES, DOCUMENTS_PER_QUERY = 136, 120
HELD_OUT = 50  # one query of so many more is for the evaluation
ROOT = Path(__file__).parents[1]
Step = tuple[str, float, float, float]  # name, seconds, CPU seconds, peak MB


def write_rows(path: Path, documents: int, seed: int) -> None:
    """Write about so many judgments, unless the file is there."""
    if path.exists():
        return
    aside = path.with_suffix(".part")
    asked = SynthParameters(
        queries=max(1, documents // DOCUMENTS_PER_QUERY), documents_per_query=DOCUMENTS_PER_QUERY, features=FEATURES,
        seed=seed,
    )  # fmt: skip
    with aside.open("wb") as file:
        for number, block in enumerate(generate(asked)):
            sizes = np.diff(block.starts)
            columns = {"qid": block.first_query + np.repeat(np.arange(len(sizes)), sizes), "grade": block.grades}
            columns |= {f"f{f}": values for f, values in enumerate(block.values, 1)}
            pl.DataFrame(columns).write_csv(file, separator="\t", include_header=number == 0)
    aside.rename(path)


def process(name: str, *command: object) -> tuple[Step, str]:
    """Run a command; return what it took, and its output.  Ends the benchmark if the command fails."""
    begin = time.perf_counter()
    with subprocess.Popen([sys.executable, "-m", *map(str, command)], stdout=subprocess.PIPE, cwd=ROOT) as child:
        assert child.stdout is not None
        out = child.stdout.read().decode()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{name} failed with {child.returncode}")
    peak = usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
    return (name, time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, peak), out


def ours(rows: Path, test: Path, work: Path, given: argparse.Namespace) -> tuple[list[Step], float]:
    """Return the steps of rankmill, and NDCG@10 of the test queries."""
    data, model, limit = work / "dataset", work / "registry", ("--memory", given.memory)
    by = ("--registry", model, "--model", "large@latest")
    train = ["--preset", "defaults-1", "--max-leaves", given.leaves, "--n-rounds", given.rounds, "--n-threads",
             given.threads]  # fmt: skip
    steps = [
        process("data ingest", "rankmill", "data", "ingest", rows, "-o", data, *limit, "--overwrite")[0],
        process("data bin", "rankmill", "data", "bin", data, *limit)[0],
        process("train", "rankmill", "train", data, "--name", "large", "--registry", model, *train)[0],
        process("rerank", "rankmill", "rerank", rows, *by, "-o", work / "ranked", "--top-k", 100, *limit,
                "--overwrite")[0],
    ]  # fmt: skip
    found = json.loads(process("evaluate", "rankmill", "evaluate", test, *by, "--metric", "ndcg@10", "--json")[1])
    return steps, found["metrics"]["ndcg@10"]["mean"]


def lightgbm(rows: Path, test: Path, given: argparse.Namespace) -> None:
    """Print the steps of LightGBM in this process, and NDCG@10 of the test queries, as JSON."""
    import lightgbm as lgb

    from rankmill.scorer.metrics import Policy, parse_metric
    from rankmill.scorer.metrics.per_query import PreparedQueries

    columns = {"header": True, "label_column": "name:grade", "group_column": "name:qid"}
    settings = columns | {
        "objective": "lambdarank", "num_leaves": given.leaves, "learning_rate": RATE, "max_bin": MAX_BIN,
        "min_data_in_leaf": MIN_ROWS, "num_threads": given.threads, "verbosity": -1, "two_round": True,
    }  # fmt: skip
    steps: list[Step] = []

    def timed(name: str, call: Callable[[], Any]) -> Any:
        begin, cpu = time.perf_counter(), time.process_time()
        result = call()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
        steps.append((name, time.perf_counter() - begin, time.process_time() - cpu, peak))
        return result

    data = timed("LightGBM: load in two rounds", lambda: lgb.Dataset(rows, params=settings).construct())
    booster = timed("LightGBM: train", lambda: lgb.train(settings, data, given.rounds))
    timed("LightGBM: score the file", lambda: booster.predict(rows, data_has_header=True, num_threads=given.threads))
    held_out = pl.read_csv(test, separator="\t")
    values = held_out.drop("grade").to_numpy().astype(np.float32)  # with the query, which it ignores
    starts = np.append(np.flatnonzero(held_out["qid"].rle_id().diff().fill_null(1)), len(held_out)).astype(np.int64)
    ndcg, grades = parse_metric("ndcg@10"), held_out["grade"].to_numpy().astype(np.int32)
    found = PreparedQueries(grades, starts, Policy()).means([ndcg], np.asarray(booster.predict(values)))[ndcg]
    print(json.dumps([steps, found]))


def main() -> None:
    """Run all steps, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--leaves", type=int, default=31)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", default="4GB")
    parser.add_argument("--work", type=Path, required=True, help="folder on a disk with room for three times the text")
    parser.add_argument("--lightgbm", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    rows, test = (given.work / f"{given.documents}{part}.tsv" for part in ("", "-test"))
    if given.lightgbm:
        lightgbm(rows, test, given)
        return
    write_rows(rows, given.documents, 1)
    write_rows(test, given.documents // HELD_OUT, 2)
    small = given.work / "small.tsv"
    write_rows(small, 5_000, 3)
    ours(small, small, given.work / "small", given)  # compiles
    steps, ndcg = ours(rows, test, given.work, given)
    said = process("LightGBM", "benchmarks.large", *sys.argv[1:], "--lightgbm")[1]
    theirs, their_ndcg = json.loads(said.splitlines()[-1])
    print(render(surroundings(["lightgbm", "polars", "duckdb", "pyarrow"])))
    print(f"{given.documents:,} x {FEATURES}, {rows.stat().st_size / 1e9:.2f} GB of text, --memory {given.memory}\n")
    cells = [[name, f"{s:.1f}", f"{cpu:.1f}", f"{peak:,.0f}"] for name, s, cpu, peak in [*steps, *theirs]]
    print(table(["step", "s", "CPU s", "peak MB"], cells))
    print(f"\nNDCG@10 of other queries: {ndcg:.4f}, LightGBM {their_ndcg:.4f}")


if __name__ == "__main__":
    main()
