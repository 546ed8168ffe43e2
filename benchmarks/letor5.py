"""Five-fold runs over a LETOR directory of parts S1..S5, in the official rotation.

Fold f trains on parts f, f+1, f+2, validates on f+3, tests on f+4 (cyclic).  Every system sees the same rows in the
same order, stops early on NDCG@10 of the same valid part, and is measured by the same metric code.

Example: python benchmarks/letor5.py ../shared/data/mq2008 --seeds 1 2 3 --peers
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.letor import PARTS, Fold, make_fold, missing_parts
from benchmarks.stopped import Peer, catboost, lightgbm, xgboost
from rankmill.foundation.records import as_json
from rankmill.scorer.forest.predict import predict
from rankmill.scorer.metrics import Metric, Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries, mean_of
from rankmill.trainer.candidates.train_on_dataset import train
from rankmill.trainer.parameters import TrainParameters

METRICS = tuple(parse_metric(name) for name in ("ndcg@1", "ndcg@3", "ndcg@10", "err@10", "map"))


Scores = npt.NDArray[np.float64]
System = Callable[[Fold, int], Scores]  # (fold, seed) -> scores of the test rows


def ours(parameters: TrainParameters) -> System:
    def run(fold: Fold, seed: int) -> Scores:
        return predict(train(fold.dataset, replace(parameters, seed=seed)).forest, fold.test.x)

    return run


def peer(train_and_score: Peer, parameters: dict[str, object], rounds: int, patience: int) -> System:
    return lambda fold, seed: train_and_score(fold, parameters | {"seed": seed}, rounds, patience).scores


def peers(leaves: int, rate: float, rounds: int, patience: int) -> dict[str, tuple[dict[str, object], System]]:
    light = {"num_leaves": leaves, "learning_rate": rate, "metric": "ndcg", "eval_at": [10]}
    extreme = {"max_depth": 4, "eta": rate, "tree_method": "hist", "eval_metric": "ndcg@10"}
    cat = {"depth": 4, "learning_rate": rate, "eval_metric": "NDCG:top=10;type=Exp"}
    named: dict[str, tuple[dict[str, object], Peer]] = {
        "LightGBM lambdarank": ({**light, "objective": "lambdarank"}, lightgbm),
        "LightGBM regression": ({**light, "objective": "regression"}, lightgbm),
        "XGBoost rank:ndcg": ({**extreme, "objective": "rank:ndcg"}, xgboost),
        "CatBoost YetiRank": ({**cat, "loss_function": "YetiRank"}, catboost),
    }
    return {name: (given, peer(make, given, rounds, patience)) for name, (given, make) in named.items()}


def row_order(fold: Fold, _: int) -> Scores:
    return -np.arange(len(fold.test.grades), dtype=np.float64)


def measure(
    folds: list[Fold], system: System, seeds: list[int], policy: Policy
) -> tuple[npt.NDArray[np.float64], float]:
    """Return ((seeds, folds, metrics) means, seconds), and per fold the mean over its queries."""
    values = np.empty((len(seeds), len(folds), len(METRICS)))
    begin = time.perf_counter()
    for s, seed in enumerate(seeds):
        for f, fold in enumerate(folds):
            scores = system(fold, seed)
            queries = PreparedQueries(fold.test.grades, fold.test.starts, policy)
            found = queries.evaluate(METRICS, scores)
            values[s, f] = [mean_of(found[metric]) for metric in METRICS]
    return values, time.perf_counter() - begin


def per_query(
    folds: list[Fold], system: System, seeds: list[int], policy: Policy, metric: Metric
) -> npt.NDArray[np.float64]:
    """Return the metric of every test query of all folds, averaged over seeds."""
    total: npt.NDArray[np.float64] | float = 0.0
    for seed in seeds:
        parts = []
        for fold in folds:
            queries = PreparedQueries(fold.test.grades, fold.test.starts, policy)
            parts.append(queries.evaluate([metric], system(fold, seed))[metric])
        total = total + np.concatenate(parts)
    return np.asarray(total) / len(seeds)


class Remembered:
    """Caches the scores of a system for each (fold, seed)."""

    def __init__(self, system: System) -> None:
        self._system, self._scores = system, dict[tuple[int, int], Scores]()

    def __call__(self, fold: Fold, seed: int) -> Scores:
        key = (id(fold), seed)
        if key not in self._scores:
            self._scores[key] = self._system(fold, seed)
        return self._scores[key]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds S1.txt .. S5.txt")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--max-leaves", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--n-rounds", type=int, default=1000)
    parser.add_argument("--early-stopping-rounds", type=int, default=100)
    parser.add_argument("--gain", choices=["exp", "linear"], default="exp")
    parser.add_argument("--nothing-relevant", choices=["skip", "zero", "one"], default="zero")
    parser.add_argument("--peers", action="store_true", help="add LightGBM, XGBoost and CatBoost (the bench extra)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if missing := missing_parts(given.folder):
        sys.exit(f"letor5: {given.folder} lacks {', '.join(missing)}")
    console = Console(stderr=given.json, width=120)
    with tempfile.TemporaryDirectory() as work:
        folds = [make_fold(given.folder, number, Path(work)) for number in range(PARTS)]
        max_grade = max(fold.dataset.max_grade for fold in folds)
        policy = Policy(gain=given.gain, nothing_relevant=given.nothing_relevant, max_grade=max_grade)
        parameters = TrainParameters(
            preset="defaults-1", max_leaves=given.max_leaves, learning_rate=given.learning_rate,
            n_rounds=given.n_rounds,
            early_stopping_rounds=given.early_stopping_rounds, gain=given.gain,
        )  # fmt: skip
        systems: dict[str, tuple[dict[str, object], System]] = {
            "rankmill lambdamart": ({k: v for k, v in asdict(parameters).items() if k != "seed"}, ours(parameters)),
        }
        if given.peers:
            systems |= peers(given.max_leaves, given.learning_rate, given.n_rounds, given.early_stopping_rounds)
        systems["row order"] = ({}, row_order)
        n_queries = sum(len(fold.test.sizes) for fold in folds)
        n_rows = sum(len(fold.test.grades) for fold in folds)
        console.print(f"{n_queries:,} test queries, {n_rows:,} documents over {PARTS} folds; seeds {given.seeds}")
        console.print(policy.describe(), highlight=False)
        for name, (values, _) in systems.items():
            console.print(f"  {name}: {json.dumps(values)}", highlight=False, soft_wrap=True)
        report = run(folds, systems, given.seeds, policy)
    print(json.dumps(report)) if given.json else show(console, report)


def run(
    folds: list[Fold], systems: dict[str, tuple[dict[str, object], System]], seeds: list[int], policy: Policy
) -> dict:
    """Measure every system; differences are paired by query with the first system as the reference."""
    ndcg = parse_metric("ndcg@10")
    rows, reference = [], None
    for name, (_, system) in systems.items():
        remembered = Remembered(system)
        values, seconds = measure(folds, remembered, seeds, policy)
        queries = per_query(folds, remembered, seeds, policy, ndcg)
        row = {
            "system": name,
            "means": dict(zip(map(str, METRICS), values.mean(axis=(0, 1)).tolist(), strict=True)),
            "by_seed": {str(ndcg): values.mean(axis=1)[:, METRICS.index(ndcg)].tolist()},
            "seconds": seconds,
        }
        if reference is None:
            reference = queries
        else:
            difference = (queries - reference)[np.isfinite(reference)]  # NaN for queries that the policy skips
            half = 1.96 * difference.std(ddof=1) / np.sqrt(len(difference))
            row["minus_ours"] = {"mean": difference.mean(), "half_width_95": half}
        rows.append(row)
    return {"policy": as_json(policy), "seeds": seeds, "systems": rows}


def show(console: Console, report: dict) -> None:
    table = Table(title="Mean test metrics over folds and seeds", box=SIMPLE_HEAD, title_justify="left")
    table.add_column("system")
    for metric in METRICS:
        table.add_column(str(metric), justify="right")
    table.add_column("seeds +-", justify="right")
    table.add_column("NDCG@10 minus ours (95 %)", justify="right")
    table.add_column("seconds", justify="right")
    for row in report["systems"]:
        seeds = np.array(row["by_seed"]["ndcg@10"])
        spread = f"{seeds.std(ddof=1):.4f}" if len(seeds) > 1 else "-"
        delta = row.get("minus_ours")
        difference = f"{delta['mean']:+.4f} +- {delta['half_width_95']:.4f}" if delta else ""
        cells = [f"{row['means'][str(metric)]:.4f}" for metric in METRICS]
        table.add_row(row["system"], *cells, spread, difference, f"{row['seconds']:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
