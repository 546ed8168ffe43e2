"""Speed of training against LightGBM, XGBoost and CatBoost on generated judgments.

Every run is a process of its own that reads the same float32 arrays; the systems take turns, so that a machine that
drifts drifts for all.  Leaves, bins, rounds, rate and threads are equal; what else is set is printed.

Example: python benchmarks/train.py --queries 6000 --leaves 31 --threads 1 2 --pairs 5
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

SYSTEMS = ("rankmill", "lightgbm", "lightgbm quantised", "xgboost", "catboost")
RATE, MAX_BIN, MIN_ROWS = 0.1, 255, 20


def memory_mb(field: str) -> float:
    """Return VmRSS or VmHWM of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith(field)).split()[1]) / 1024


class Rounds:
    """Seconds of every round, as seen by a callback after it."""

    def __init__(self) -> None:
        self._last, self.seconds = time.perf_counter(), list[float]()

    def __call__(self, *_: object) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now


Scorer = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float64]]


class Data:
    def __init__(self, folder: Path, split: str) -> None:
        self.x = np.load(folder / f"{split}-x.npy")
        self.y = np.load(folder / f"{split}-y.npy")
        self.sizes = np.load(folder / f"{split}-sizes.npy")

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        return np.concatenate(([0], np.cumsum(self.sizes))).astype(np.int64)


def run_rankmill(
    data: Data, leaves: int, threads: int, rounds: int, built: Callable[[], None]
) -> tuple[Rounds, Scorer]:
    from pipeline.binspec import BinSpec, apply_bins, feature_bins
    from scorer.predict import predict
    from trainer.boosting import RankedRows, boost
    from trainer.parameters import TrainParameters

    names = [f"f{i}" for i in range(data.x.shape[1])]
    spec = BinSpec(tuple(feature_bins(name, data.x[:, i].copy(), MAX_BIN) for i, name in enumerate(names)), MAX_BIN)
    batches = [apply_bins(data.x[i : i + 65536], spec) for i in range(0, len(data.x), 65536)]
    built()
    clock = Rounds()
    parameters = TrainParameters(n_rounds=rounds, max_leaves=leaves, learning_rate=RATE, min_rows_in_leaf=MIN_ROWS)
    rows = RankedRows(data.y, data.starts, batches)
    edges = [feature.edges for feature in spec.features]
    forest = boost(rows, None, edges, names, parameters, max_grade=4, n_threads=threads, on_round=clock).forest
    return clock, lambda x: predict(forest, x)


def run_lightgbm(
    data: Data, leaves: int, threads: int, rounds: int, built: Callable[[], None], *, quantised: bool = False
) -> tuple[Rounds, Scorer]:
    import lightgbm as lgb

    given = {
        "objective": "lambdarank", "num_leaves": leaves, "learning_rate": RATE, "max_bin": MAX_BIN,
        "min_data_in_leaf": MIN_ROWS, "num_threads": threads, "verbosity": -1, "use_quantized_grad": quantised,
    }  # fmt: skip
    rows = lgb.Dataset(data.x, data.y, group=data.sizes, params=given).construct()
    built()
    clock = Rounds()
    booster = lgb.train(given, rows, rounds, callbacks=[clock])
    return clock, lambda x: np.asarray(booster.predict(x), dtype=np.float64)


def run_xgboost(data: Data, leaves: int, threads: int, rounds: int, built: Callable[[], None]) -> tuple[Rounds, Scorer]:
    import xgboost as xgb

    class Clock(xgb.callback.TrainingCallback):
        def __init__(self) -> None:
            self.rounds = Rounds()

        def after_iteration(self, *_: object) -> bool:
            self.rounds()
            return False

    rows = xgb.QuantileDMatrix(data.x, data.y, group=data.sizes, max_bin=MAX_BIN, nthread=threads)
    built()
    clock = Clock()
    given = {
        "objective": "rank:ndcg", "max_leaves": leaves, "grow_policy": "lossguide", "max_depth": 0, "eta": RATE,
        "max_bin": MAX_BIN, "tree_method": "hist", "nthread": threads, "verbosity": 0,
    }  # fmt: skip
    booster = xgb.train(given, rows, rounds, callbacks=[clock])
    return clock.rounds, lambda x: np.asarray(booster.inplace_predict(x), dtype=np.float64)


def run_catboost(
    data: Data, leaves: int, threads: int, rounds: int, built: Callable[[], None]
) -> tuple[Rounds, Scorer]:
    import catboost as cb

    pool = cb.Pool(data.x, data.y, group_id=np.repeat(np.arange(len(data.sizes)), data.sizes))
    pool.quantize(border_count=MAX_BIN - 1)
    built()
    clock = Rounds()
    model = cb.CatBoost(
        {"loss_function": "LambdaMart:metric=NDCG;sigma=1", "grow_policy": "Lossguide", "max_leaves": leaves,
         "min_data_in_leaf": MIN_ROWS, "learning_rate": RATE, "iterations": rounds, "thread_count": threads,
         "allow_writing_files": False, "logging_level": "Silent"},
    )  # fmt: skip
    model.fit(pool)
    clock()
    clock.seconds = [clock.seconds[0] / rounds]  # no callback: the mean instead of the median
    return clock, lambda x: np.asarray(model.predict(x), dtype=np.float64)


def child(folder: Path, system: str, leaves: int, threads: int, rounds: int) -> None:
    """Do one run and print its figures as JSON."""
    from scorer.metrics import Policy, parse_metric
    from scorer.metrics.queries import PreparedQueries

    runs = {
        "rankmill": run_rankmill, "lightgbm": run_lightgbm, "xgboost": run_xgboost, "catboost": run_catboost,
        "lightgbm quantised": lambda *given: run_lightgbm(*given, quantised=True),
    }  # fmt: skip
    if system == "rankmill":  # compiled or loaded before the clock starts, as a library of machine code would be
        small = Data(folder, "tiny")
        run_rankmill(small, 4, threads, 2, lambda: None)
    data = Data(folder, "train")
    before, begin = memory_mb("VmRSS"), time.perf_counter()
    constructed = list[float]()
    clock, score = runs[system](data, leaves, threads, rounds, lambda: constructed.append(time.perf_counter() - begin))
    growth = memory_mb("VmHWM") - before
    test = Data(folder, "test")
    ndcg = parse_metric("ndcg@10")
    queries = PreparedQueries(test.y, test.starts, Policy(max_grade=4))
    print(json.dumps({
        "construct_s": constructed[0], "round_s": float(np.median(clock.seconds[1:] or clock.seconds)),
        "growth_mb": growth, "ndcg@10": queries.means([ndcg], score(test.x))[ndcg],
    }))  # fmt: skip


def generate(folder: Path, name: str, queries: int, seed: int, features: int) -> None:
    from pipeline.synth import SynthParameters
    from pipeline.synth import generate as blocks_of

    blocks = list(blocks_of(SynthParameters(queries=queries, documents_per_query=120, features=features, seed=seed)))
    np.save(folder / f"{name}-x.npy", np.concatenate([np.ascontiguousarray(block.values.T) for block in blocks]))
    np.save(folder / f"{name}-y.npy", np.concatenate([block.grades for block in blocks]).astype(np.int32))
    np.save(folder / f"{name}-sizes.npy", np.concatenate([np.diff(block.starts) for block in blocks]))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=6000, help="of about 120 documents each")
    parser.add_argument("--features", type=int, default=136)
    parser.add_argument("--leaves", type=int, nargs="+", default=[31])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=5, help="runs of each system, taking turns")
    parser.add_argument("--seed", type=int, default=1, help="of the generated judgments")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--child", nargs=2, metavar=("FOLDER", "SYSTEM"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if given.child:
        folder, system = given.child
        child(Path(folder), system, given.leaves[0], given.threads[0], given.rounds)
        return
    console = Console(width=120)
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        generate(folder, "train", given.queries, given.seed, given.features)
        generate(folder, "test", max(50, given.queries // 10), given.seed + 1000, given.features)
        generate(folder, "tiny", 60, given.seed, given.features)
        for leaves in given.leaves:
            for threads in given.threads:
                figures: dict[str, list[dict[str, float]]] = {system: [] for system in given.systems}
                for _ in range(given.pairs):
                    for system in given.systems:
                        command = [sys.executable, __file__, "--child", work, system, "--rounds", str(given.rounds),
                                   "--leaves", str(leaves), "--threads", str(threads)]  # fmt: skip
                        done = subprocess.run(command, capture_output=True, text=True, check=False)
                        if done.returncode:
                            sys.exit(f"{system} failed:\n{done.stderr}")
                        figures[system].append(json.loads(done.stdout.splitlines()[-1]))
                show(console, f"{given.queries:,} queries, {given.features} features, {leaves} leaves, {threads} threads,"
                     f" {given.rounds} rounds, median of {given.pairs}", figures)  # fmt: skip


def show(console: Console, title: str, figures: dict[str, list[dict[str, float]]]) -> None:
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left")
    headings = ("system", "construction s", "s/round", "rounds a second / ours", "growth MB", "test NDCG@10")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "system" else "right")
    ours = [run["round_s"] for run in next(iter(figures.values()))]
    for system, runs in figures.items():
        ratios = [mine / theirs["round_s"] for mine, theirs in zip(ours, runs, strict=True)]
        median = {key: float(np.median([run[key] for run in runs])) for key in runs[0]}
        table.add_row(
            system, f"{median['construct_s']:.2f}", f"{median['round_s']:.4f}",
            f"{np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            f"{median['growth_mb']:.0f}", f"{median['ndcg@10']:.4f}",
        )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    main()
