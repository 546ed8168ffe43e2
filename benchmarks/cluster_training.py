"""Training on local workers of a cluster, beside one process, LightGBM and XGBoost on Dask.

It also models larger clusters.

``python -m benchmarks.cluster_training --work FOLDER [--peers PYTHON]`` generates 720,000 rows x 136 features, and
trains with 10 and with 30 rounds: a round takes a twentieth of the difference.  PYTHON is the interpreter of an
environment with LightGBM, XGBoost and Dask (`benchmarks.cluster_peers`).

``--delays MS ...`` lets every exchange of `local:2` take so much longer, and compares the model with what is measured
then.  ``--model`` prints at how many rows 2, 4, 8 and 16 machines of 16 cores pay off, from the constants below.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.cases import CASES, Data, prepare

ROUNDS = (10, 30)
LEAVES = 31
TRAIN = [
    "--preset", "defaults-1", "--objective", "lambdamart", "--max-leaves", str(LEAVES), "--early-stopping-rounds", "0",
    "--refit", "none",
    "--log-every", "0", "--json",
]  # fmt: skip

# of the model: measured figures, see docs/benchmarks/cluster.md
ROUND_OF_16_CORES = 0.046  # s, 720,000 rows x 136 features, 31 leaves, 16 threads (docs/benchmarks/training-rounds.md)
FIXED = 0.008  # s of it that do not depend on rows: the search of 60 nodes, decisions, meetings of threads
MEASURED_ROWS = 720_000
EXCHANGES = 31  # a round
LARGE = 13  # of these, of histograms
MEGABYTES = 7.35  # sent by each of two workers in a round
HANDLING = 0.0014  # s of a message, besides the network: Dask's work, and waking a thread
COPYING = 400.0  # MB/s, of Dask's messages besides the network


def joined_late(delay: float, token: str, number: int, addresses: Sequence[str]) -> Any:
    """Join a group of workers whose every exchange takes ``delay`` seconds longer."""
    return _joined_late(delay, token, number, addresses)


@contextmanager
def _joined_late(delay: float, token: str, number: int, addresses: Sequence[str]) -> Iterator[Any]:
    from rankmill.foundation.cluster.dask_peers import joined

    with joined(token, number, addresses) as peers:
        gather, add_up = peers.gather, peers.add_up

        def later(call: Any, values: Any) -> Any:
            time.sleep(delay)
            return call(values)

        peers.gather, peers.add_up = partial(later, gather), partial(later, add_up)  # type: ignore[method-assign]
        yield peers


def dataset_of(arrays: Path, work: Path) -> Path:
    """Return the binned dataset of a case, made once."""
    out = work / "big.dataset"
    if not out.exists():
        for part in ("train", "test"):
            data = Data(arrays, part)
            query = np.repeat(np.arange(len(data.sizes)), data.sizes)
            columns = {"qid": [f"{part}{q}" for q in query], "grade": data.y}
            columns |= {f"f{i}": data.x[:, i] for i in range(data.x.shape[1])}
            pl.DataFrame(columns).write_parquet(work / f"{part}.parquet")
        command("data", "ingest", work / "train.parquet", "--valid", work / "test.parquet", "-o", out)
        command("data", "bin", out)
    return out


def command(*words: object) -> str:
    """Run a command of rankmill, and return what it prints."""
    found = subprocess.run(
        [sys.executable, "-m", "rankmill", *map(str, words)], check=True, capture_output=True, text=True
    )
    return found.stdout


def ours(dataset: Path, rounds: int, *where: str) -> dict[str, Any]:
    """Train by the command; return its seconds, NDCG and digest."""
    with tempfile.TemporaryDirectory() as registry:
        began = time.perf_counter()
        found = json.loads(
            command("train", dataset, "--name", "m", "--registry", registry, "--n-rounds", rounds, *TRAIN, *where)
        )
        return {"seconds": time.perf_counter() - began, "ndcg@10": found["valid"]["ndcg@10"], "sha256": found["sha256"]}


def peer(python: Path, system: str, arrays: Path, rounds: int) -> dict[str, Any]:
    script = [str(python), str(Path(__file__).with_name("cluster_peers.py")), system, str(arrays)]
    out = subprocess.run([*script, "--rounds", str(rounds)], check=True, capture_output=True, text=True).stdout
    return next(json.loads(line) for line in out.splitlines() if line.startswith("{"))


def compare(work: Path, pairs: int, peers: Path | None) -> None:
    """Run all ways in turn, and print a table."""
    arrays = prepare(CASES["mslr"], 1, work / "arrays")
    dataset = dataset_of(arrays, work)
    ways = {
        "one process, 1 thread": lambda rounds: ours(dataset, rounds, "--n-threads", "1"),
        "one process, 2 threads": lambda rounds: ours(dataset, rounds, "--n-threads", "2"),
        "`local:2`": lambda rounds: ours(dataset, rounds, "--cluster", "local:2"),
    }
    if peers is not None:
        ways |= {f"{name} on Dask, 2 workers": partial(peer, peers, name, arrays) for name in ("lightgbm", "xgboost")}
    rounds_of: dict[str, list[float]] = {name: [] for name in ways}
    last: dict[str, dict[str, Any]] = {}
    for _ in range(pairs):
        for name, way in ways.items():
            short, last[name] = way(ROUNDS[0]), way(ROUNDS[1])
            rounds_of[name].append((last[name]["seconds"] - short["seconds"]) / (ROUNDS[1] - ROUNDS[0]))
            print(f"{name}: {rounds_of[name][-1]:.3f} s a round, {last[name]}", file=sys.stderr, flush=True)
    digests = {found["sha256"] for found in last.values() if "sha256" in found}
    print(f"models of rankmill: {'the same bytes' if len(digests) == 1 else 'DIFFERENT BYTES'}\n")
    print("| way | s a round, median (all) | ratio | s of 30 rounds, with the start | NDCG@10 |\n|---|---|---|---|---|")
    beside = statistics.median(rounds_of["one process, 2 threads"])
    for name, found in rounds_of.items():
        each, seconds = ", ".join(f"{value:.3f}" for value in found), last[name]["seconds"]
        median = statistics.median(found)
        print(
            f"| {name} | {median:.3f} ({each}) | {median / beside:.2f} | {seconds:.1f} | {last[name]['ndcg@10']:.4f} |"
        )


def with_delays(work: Path, delays: list[float]) -> None:
    """Measure rounds of two workers whose exchanges take longer, beside what the model says."""
    from rankmill.foundation.cluster.dask_engine import DaskEngine
    from rankmill.foundation.cluster.workers import open_cluster
    from rankmill.pipeline.dataset.dataset import Dataset
    from rankmill.trainer.cluster.train_on_cluster import train_on_cluster
    from rankmill.trainer.parameters import TrainParameters
    from rankmill.trainer.training_options import TrainingOptions

    dataset = Dataset.open(dataset_of(prepare(CASES["mslr"], 1, work / "arrays"), work))
    print("| ms added to an exchange | s a round | added | the model says |\n|---|---|---|---|")
    base = 0.0
    with open_cluster("local:2") as cluster:
        for delay in [0.0, *delays]:
            times: list[float] = []
            join = partial(joined_late, delay / 1e3)
            DaskEngine.join = lambda _, join=join: join  # type: ignore[method-assign,misc]
            parameters = TrainParameters(preset="defaults-1", max_leaves=LEAVES, n_rounds=20, early_stopping_rounds=0)
            options = TrainingOptions(on_round=lambda _, times=times: times.append(time.perf_counter()))
            train_on_cluster(dataset, parameters, options, None, cluster, f"delay {delay}")
            seconds = (times[-1] - times[0]) / (len(times) - 1)
            base = base or seconds
            print(f"| {delay:g} | {seconds:.3f} | {seconds - base:.3f} | {EXCHANGES * delay / 1e3:.3f} |", flush=True)


def round_of(rows: float, machines: int, latency: float, bandwidth: float) -> float:
    """Return the seconds of a round; ``latency`` in s, ``bandwidth`` in MB/s."""
    seconds = FIXED + rows / machines * (ROUND_OF_16_CORES - FIXED) / MEASURED_ROWS
    if machines == 1:
        return seconds
    sums = EXCHANGES + (LARGE if machines > 2 else 0)  # of a slice each, and then of all slices
    exchanges = sums * (machines - 1).bit_length()  # each reaches twice as many machines
    sent = MEGABYTES * 2 * (machines - 1) / machines  # of two workers each sends all of it to the other
    return seconds + exchanges * (latency + HANDLING) + sent / bandwidth + sent / COPYING


def model() -> None:
    """Print the rows from which more machines pay off."""
    print(
        f"a round of 16 cores: {FIXED * 1e3:g} ms + {(ROUND_OF_16_CORES - FIXED) / MEASURED_ROWS * 1e9:.0f} ns a row; "
        f"{EXCHANGES} exchanges and"
        f" {MEGABYTES} MB a round; {HANDLING * 1e3:g} ms a message and {COPYING:g} MB/s"
        " besides the network\n"
    )
    print(
        "| network | machines | faster than one from .. rows | twice as fast from | 100 million rows "
        "|\n|---|---|---|---|---|"
    )
    for name, latency, bandwidth in (
        ("1 Gbit/s, 0.2 ms", 2e-4, 118.0),
        ("10 Gbit/s, 0.1 ms", 1e-4, 1180.0),
        ("25 Gbit/s, 0.05 ms", 5e-5, 2950.0),
    ):
        for machines in (2, 4, 8, 16):
            many = np.geomspace(1e4, 1e10, 6001)
            gains = np.array([round_of(n, 1, 0, 1) / round_of(n, machines, latency, bandwidth) for n in many])
            once = f"{many[np.argmax(gains > 1)] / 1e6:.1f} million"
            twice = f"{many[np.argmax(gains > 2)] / 1e6:.1f} million" if (gains > 2).any() else "never"
            at = round_of(1e8, 1, 0, 1) / round_of(1e8, machines, latency, bandwidth)
            print(f"| {name} | {machines} | {once} | {twice} | {at:.1f} times |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--peers", type=Path, metavar="PYTHON")
    parser.add_argument("--delays", type=float, nargs="+", metavar="MS")
    parser.add_argument("--model", action="store_true")
    given = parser.parse_args()
    if given.model:
        model()
        return
    given.work.mkdir(parents=True, exist_ok=True)
    if given.delays:
        with_delays(given.work, given.delays)
    else:
        compare(given.work, given.pairs, given.peers)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    main()
