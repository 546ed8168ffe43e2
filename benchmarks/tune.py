"""Tuning in the same minutes: `rankmill tune` against Optuna (TPE) with LightGBM, and `auto-1` without tuning.

Each gets one thread and the same wall time for its search on a fold of a real set; then its model scores the test part.
The figure is the mean NDCG@10 with exponential gains; equal scores count as the mean over their orders, and queries
with nothing relevant are left out.  The seed is the number of the fold.  Ours trains the parameters of ``winner.toml``.
LightGBM stops each trial early by NDCG@10 of the valid part (50 rounds of patience, at most 1,000).  Two of its models
are evaluated: that of the best trial, and one trained again with the same parameters and rounds on the train and valid
parts.  Intervals are those of `benchmarks.quality`.  A result is a file in the cache; results that are there are not
made again.

Example: python -m benchmarks.tune --data FOLDER --cache work --minutes 2
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.intervals import Differences, paired_interval
from benchmarks.letor import Fold, Parts, Split, make_fold
from benchmarks.quality import NDCG, PATIENCE, POLICY, ROUNDS
from benchmarks.quality_sets import REAL
from benchmarks.report import render, surroundings, table
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.scorer.forest.predict import predict
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.trainer.candidates.train_on_dataset import train
from rankmill.trainer.options import TuneOptions
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.training_options import TrainingOptions
from rankmill.trainer.tuning.search import plan_tuning, tune
from rankmill.trainer.tuning.space import SMALL_TREES

Scores = npt.NDArray[np.float64]
Found = Mapping[str, tuple[Scores, int]]  # by system: scores of the test rows, trials
ONE = TrainingOptions(n_threads=1)
TUNED, AUTO, OPTUNA, REFITTED = "tune", "auto-1", "Optuna + LightGBM", "the same, refitted"


def auto(fold: Fold, seed: int, _: float) -> Found:
    return {AUTO: (_scores(fold, TrainParameters(seed=seed)), 0)}


def tuned(fold: Fold, seed: int, minutes: float) -> Found:
    with tempfile.TemporaryDirectory() as out:
        plan = plan_tuning(fold.dataset, TrainParameters(seed=seed), None, TuneOptions(minutes=minutes, workers=1), ONE)
        found = tune(plan, Path(out) / "t")
    print(found.render(most=5), file=sys.stderr)
    return {TUNED: (_scores(fold, TrainParameters(**found.section())), len(found.rows) - 1)}


def _scores(fold: Fold, parameters: TrainParameters) -> Scores:
    return predict(train(fold.dataset, parameters, ONE).forest, fold.test.x, n_threads=1)


def optuna_lightgbm(fold: Fold, seed: int, minutes: float) -> Found:
    import lightgbm as lgb
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    fixed = {"objective": "lambdarank", "metric": "ndcg", "eval_at": [10], "num_threads": 1, "verbosity": -1,
             "seed": seed, "bagging_freq": 1, "feature_pre_filter": False}  # fmt: skip
    rows = lgb.Dataset(fold.train.x, fold.train.grades, group=fold.train.sizes, free_raw_data=False)
    valid = lgb.Dataset(fold.valid.x, fold.valid.grades, group=fold.valid.sizes, reference=rows)
    best: tuple[float, Any, dict[str, Any]] = (-1.0, None, {})

    def objective(trial: optuna.Trial) -> float:
        nonlocal best
        given = {
            **fixed,
            "num_leaves": trial.suggest_int("num_leaves", 4, 128, log=True),
            "learning_rate": trial.suggest_float("learning_rate", 0.01, 0.3, log=True),
            "min_child_samples": trial.suggest_int("min_child_samples", 5, 100, log=True),
            "lambda_l2": trial.suggest_float("lambda_l2", 1e-3, 10.0, log=True),
            "feature_fraction": trial.suggest_float("feature_fraction", 0.4, 1.0),
            "bagging_fraction": trial.suggest_float("bagging_fraction", 0.4, 1.0),
        }
        stop = lgb.early_stopping(PATIENCE, verbose=False)
        booster = lgb.train(given, rows, ROUNDS, [valid], callbacks=[stop])
        score = float(booster.best_score["valid_0"]["ndcg@10"])
        if score > best[0]:
            best = score, booster, given
        return score

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, timeout=60.0 * minutes)
    _, booster, given = best
    both = _together(fold.train, fold.valid)
    again = lgb.train(given, lgb.Dataset(both.x, both.grades, group=both.sizes), booster.best_iteration)
    n = len(study.trials)
    return {OPTUNA: (booster.predict(fold.test.x), n), REFITTED: (again.predict(fold.test.x), n)}


def _together(one: Split, other: Split) -> Split:
    starts = np.concatenate([one.starts, one.starts[-1] + other.starts[1:]])
    return Split(np.concatenate([one.x, other.x]), np.concatenate([one.grades, other.grades]), starts)


SEARCHES: Mapping[str, Callable[[Fold, int, float], Found]] = {
    TUNED: tuned,
    AUTO: auto,
    OPTUNA: optuna_lightgbm,
}


@contextmanager
def opened(data: Path, name: str, number: int) -> Iterator[Fold]:
    with tempfile.TemporaryDirectory() as work:
        yield make_fold(data / name, number, Path(work), REAL[name])


def warm_up(dataset: Dataset) -> None:
    """Compile or load all kernels that a search uses."""
    for objective in SMALL_TREES["objective"].split(","):
        train(dataset, TrainParameters(objective=objective, n_rounds=2, random_strength=0.5, feature_fraction=0.5), ONE)


def measure(data: Path, cache: Path, minutes: float, names: list[str], folds: int) -> None:
    """Search where the cache has no result."""
    warm = False
    for number in range(folds):
        for name in names:
            for search, run in SEARCHES.items():
                path = cache / f"{name}-{number}-{minutes:g}-{search.split()[0]}.npz"
                if path.exists():
                    continue
                with opened(data, name, number) as fold:
                    if not warm:
                        warm_up(fold.dataset)
                        warm = True
                    begin = time.monotonic()
                    found = run(fold, number + 1, minutes)
                    seconds = time.monotonic() - begin
                    _write(path, fold, found, seconds)


def _write(path: Path, fold: Parts, found: Found, seconds: float) -> None:
    queries = PreparedQueries(fold.test.grades, fold.test.starts, POLICY)
    values = {}
    for system, (scores, trials) in found.items():
        ndcg = queries.evaluate([NDCG], np.asarray(scores, dtype=np.float64))[NDCG]
        values[system] = ndcg
        print(f"{path.stem} {system}: {np.nanmean(ndcg):.4f}, {trials} trials, {seconds:.0f} s", file=sys.stderr)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, seconds=seconds, trials=trials, **values)


def report(cache: Path, minutes: float, names: list[str], folds: int) -> str:
    """Return the table of what is in the cache."""
    rows = []
    reference: list[list[Scores]] = [[] for _ in names]
    for system in (OPTUNA, REFITTED, AUTO, TUNED):
        search = OPTUNA if system == REFITTED else system
        read = partial(_read, cache, minutes, search)
        loaded = [[read(name, number) for number in range(folds)] for name in names]
        values = [[one[system] for one in of_set] for of_set in loaded]
        means = [float(np.mean([np.nanmean(fold) for fold in of_set])) for of_set in values]
        if system == OPTUNA:
            reference = values
        apart = [
            Differences([(mine - theirs)[np.isfinite(mine - theirs)] for mine, theirs in zip(*pair, strict=True)])
            for pair in zip(values, reference, strict=True)
        ]
        plain = [one for of_set in loaded for one in of_set]
        rows.append(
            [
                system,
                *(f"{mean:.4f}" for mean in means),
                f"{np.mean(means):.4f}",
                "-" if system == OPTUNA else str(paired_interval(apart)),
                f"{np.mean([float(one['seconds']) for one in plain]):.0f}",
                f"{np.median([int(one['trials']) for one in plain]):.0f}",
            ]
        )
    heads = ["system", *names, "mean", f"minus {OPTUNA} (95 % interval)", "seconds", "trials (median)"]
    return table(heads, rows)


def _read(cache: Path, minutes: float, search: str, name: str, number: int) -> Mapping[str, Any]:
    with np.load(cache / f"{name}-{number}-{minutes:g}-{search.split()[0]}.npz") as stored:
        return dict(stored)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("RANKMILL_TEST_DATA", ".")),
                        help="folder of the real sets; default: RANKMILL_TEST_DATA")  # fmt: skip
    parser.add_argument("--cache", type=Path, required=True, help="folder of results; new ones are added")
    parser.add_argument("--minutes", type=float, default=2.0, help="of a search")
    parser.add_argument("--sets", nargs="+", choices=list(REAL), default=list(REAL), metavar="SET")
    parser.add_argument("--folds", type=int, default=3, help="how many of the five folds")
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core for everyone
    measure(given.data, given.cache, given.minutes, given.sets, given.folds)
    print(render(surroundings(["lightgbm", "optuna"])))
    print(report(given.cache, given.minutes, given.sets, given.folds))


if __name__ == "__main__":
    main()
