"""Every objective and criterion on the five folds of a LETOR folder, with the same settings.

Each trains on the same bins, stops early on NDCG@10 of the same valid part, and is measured by the same metric code.
Criteria with identical trees run once: ole equals rwse if each term of the loss has one score.  The baselines are the
order of the rows and a constant score (the mean over all orders).

Example: python benchmarks/objectives.py ../shared/data/mq2008 --seeds 1 2 3
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.folds import METRICS, BinnedFold, letor_folds, mean_over
from benchmarks.letor import missing_parts
from benchmarks.report import render, surroundings, table
from rankmill.scorer.metrics import Policy
from rankmill.trainer.objectives.registry import objective_class
from rankmill.trainer.objectives.spelling import OBJECTIVES
from rankmill.trainer.parameters import TrainParameters

# Not trainable from grades, or covered by another line
LEFT_OUT = {
    "coxph": "learns from times and events, which judgments do not have",
    "user": "is a function that a user writes",
    "softmax": "is listnet under another name",
}
# Variants with their own line
VARIANTS = (
    *(f"lambdamart:{metric}" for metric in ("ndcg", "dcg@10", "err@10", "map", "mrr", "precision@10")),
    "lambdamart:wta",
    "lambdamart:concordance",
    "logistic2(balanced=True)",
    "mcrank(score=gain)",
)  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds S1.txt .. S5.txt")
    parser.add_argument("--objectives", nargs="+", help="NAME, NAME(OPTION=VALUE) or lambdamart:METRIC; default: all")
    parser.add_argument("--criteria", nargs="+", choices=["se", "rwse", "ole"], help="default: all that differ")
    parser.add_argument("--leaf", choices=["", "newton", "exact"], default="", help="left out: exact for ole")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--max-leaves", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--n-rounds", type=int, default=1000)
    parser.add_argument("--early-stopping-rounds", type=int, default=100)
    parser.add_argument("--json", type=Path, metavar="FILE", help="append every line as a JSON object")
    return parser.parse_args()


def systems(given: argparse.Namespace) -> list[tuple[str, TrainParameters]]:
    """Return the systems: labels and parameters."""
    base = TrainParameters(
        preset="defaults-1", max_leaves=given.max_leaves, learning_rate=given.learning_rate, n_rounds=given.n_rounds,
        early_stopping_rounds=given.early_stopping_rounds, stop_metric="ndcg@10", leaf=given.leaf,
    )  # fmt: skip
    names = given.objectives or [*(name for name in first_names() if name not in LEFT_OUT), *VARIANTS]
    found = []
    for name in names:
        objective, _, metric = name.partition(":")
        kind = objective_class(objective.partition("(")[0])
        criteria = [c for c in kind.splits.criteria if not (c == "ole" and kind.splits.additive)]
        for criterion in criteria:
            if given.criteria is None or criterion in given.criteria:
                of = replace(base, objective=objective, criterion=criterion)
                found.append((f"{name} {criterion}", replace(of, metric=metric) if metric else of))
    return found


def first_names() -> list[str]:
    """Return the objectives, each under its first name."""
    seen: dict[str, str] = {}
    for name, where in OBJECTIVES.items():
        seen.setdefault(where, name)
    return list(seen.values())


def measure(folds: list[BinnedFold], parameters: TrainParameters, seeds: list[int]) -> dict[str, Any]:
    """Return the means over folds and seeds, rounds kept, and seconds of training."""
    values, rounds, seconds = [], [], 0.0
    for seed in seeds:
        for fold in folds:
            begin = time.perf_counter()
            result = fold.boost(replace(parameters, seed=seed))
            seconds += time.perf_counter() - begin
            rounds.append(result.best_round)
            values.append(fold.evaluate(fold.predict(result)))
    means = dict(zip(map(str, METRICS), np.mean(values, axis=0).tolist(), strict=True))
    return {"means": means, "rounds": float(np.mean(rounds)), "seconds": seconds}


def main() -> None:
    given = arguments()
    if missing := missing_parts(given.folder):
        sys.exit(f"objectives: {given.folder} lacks {', '.join(missing)}")
    print(render(surroundings()), flush=True)
    lines: list[list[str]] = []
    with tempfile.TemporaryDirectory() as work:
        folds = letor_folds(given.folder, Path(work), lambda top: Policy(nothing_relevant="zero", max_grade=top))
        for name, parameters in systems(given):
            folds[0].boost(replace(parameters, n_rounds=2))  # compile kernels before the clock starts
            row = {"system": name, **measure(folds, parameters, given.seeds)}
            lines.append(line_of(row))
            print("  ".join(lines[-1]), file=sys.stderr, flush=True)
            if given.json:
                with given.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        for name, system in (
            ("row order", lambda fold: -np.arange(len(fold.test.grades), dtype=np.float64)),
            ("constant score", lambda fold: np.zeros(len(fold.test.grades))),
        ):
            means = dict(zip(map(str, METRICS), mean_over(folds, system).tolist(), strict=True))
            lines.append(line_of({"system": name, "means": means, "rounds": 0.0, "seconds": 0.0}))
        print(f"{folds[0].queries.policy.describe()}; seeds {given.seeds}\n")
    print(table(["objective and criterion", *map(str, METRICS), "rounds", "seconds"], lines))
    if not given.objectives:
        print("\n" + "\n".join(f"Left out: {name}, which {why}." for name, why in LEFT_OUT.items()))


def line_of(row: dict[str, Any]) -> list[str]:
    means = [f"{row['means'][str(metric)]:.4f}" for metric in METRICS]
    return [row["system"], *means, f"{row['rounds']:.0f}", f"{row['seconds']:.1f}"]


if __name__ == "__main__":
    main()
