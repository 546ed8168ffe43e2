"""Training on clicks with a correction of position bias, beside LightGBM and XGBoost, on simulated logs.

Logs are those of `benchmarks.click_corrections`.  A ranker trained on a share of the judgments shows lists of ten; two
neighbours are swapped in a tenth of the sessions; users click as a user model says.  Each list is a query with the
grade 1 for a click.  All systems train as many trees of as many leaves with the same learning rate; each has its
defaults for the rest.  Test queries have true grades.

    rankmill    lambdamart without a correction, and with each `position_bias`
    LightGBM    lambdarank, and with the field `position`
    XGBoost     rank:ndcg, and with `lambdarank_unbiased`; it takes the order of the rows for the position

Intervals are 95 % bootstrap intervals of the paired difference in NDCG@10; queries and seeds are drawn anew.  Figures
of a log are a small file in the cache, so that an interrupted run resumes.

Example: python -m benchmarks.click_position_bias --cache work
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.click_corrections import LOGGERS, NDCG, POLICY, TREES, USERS, Run, Setting
from benchmarks.intervals import Differences, paired_interval
from benchmarks.report import render, surroundings, table
from rankmill import Ranker
from rankmill.scorer.metrics.per_query import evaluate_queries

Floats = npt.NDArray[np.float64]
Scorer = Callable[..., Any]

OURS = ("none", "additive", "unbiased")
ROUNDS, LEAVES, RATE = TREES["n_rounds"], TREES["max_leaves"], TREES["learning_rate"]
PEERS = ("LightGBM", "LightGBM position", "XGBoost", "XGBoost unbiased")


class Impressions:
    """The lists of a log as queries; rows of a list in the order of positions."""

    def __init__(self, run: Run) -> None:
        lists = run.block.lists
        self.list = np.repeat(np.arange(len(lists.query)), np.diff(lists.start))
        order = np.lexsort((lists.rank, self.list))
        self.features = run.train.features[lists.document[order]]
        self.clicked = lists.clicked[order].astype(np.int32)
        self.position = lists.rank[order].astype(np.int64)
        self.sizes = np.diff(lists.start)


def systems(data: Impressions) -> Iterator[tuple[str, Scorer, Any]]:
    """Yield the name of each system, its model, and what it learnt about positions."""
    import lightgbm
    import xgboost

    for bias in OURS:
        ranker = Ranker(objective="lambdamart", position_bias=bias, **TREES)
        ranker.fit(data.features, data.clicked, qid=data.list, position=data.position)
        yield f"rankmill {bias}", ranker.predict, ranker.forest_.info.get("position_bias")
    settings = {
        "objective": "lambdarank", "num_leaves": LEAVES, "learning_rate": RATE, "num_threads": 1, "verbosity": -1
    }  # fmt: skip
    for name, position in (("LightGBM", None), ("LightGBM position", data.position)):
        rows = lightgbm.Dataset(data.features, data.clicked, group=data.sizes, position=position)
        yield name, lightgbm.train(settings, rows, ROUNDS).predict, None
    settings = {
        "objective": "rank:ndcg", "max_leaves": LEAVES, "grow_policy": "lossguide", "max_depth": 0, "eta": RATE,
        "nthread": 1
    }  # fmt: skip
    matrix = xgboost.DMatrix(data.features, data.clicked, qid=data.list)
    for name, unbiased in (("XGBoost", False), ("XGBoost unbiased", True)):
        booster = xgboost.train({**settings, "lambdarank_unbiased": unbiased}, matrix, ROUNDS)
        learnt = json.loads(booster.save_config())["learner"]["objective"]
        yield name, booster.inplace_predict, {key: learnt.get(key) for key in ("ti+", "tj-")} if unbiased else None


def measure(setting: Setting, cache: Path) -> dict[str, Any]:
    """Return NDCG@10 (queries,) by system, from the cache if it is there."""
    file = cache / f"bias-{setting.name}.json"
    if not file.exists():
        run = Run(setting)
        found: dict[str, Any] = {"ndcg": {}, "learnt": {}, "clicks": int(run.block.lists.clicked.sum())}
        for name, model, learnt in systems(Impressions(run)):
            scores = np.asarray(model(run.test.features), dtype=np.float64)
            by_query = evaluate_queries([NDCG], scores, run.test.grades, run.test.start, POLICY)[NDCG]
            found["ndcg"][name] = by_query.tolist()
            found["learnt"][name] = learnt
        staged = file.with_suffix(".part")
        staged.write_text(json.dumps(found))
        staged.replace(file)
    found = json.loads(file.read_text())
    print(setting.name, {name: round(float(np.mean(values)), 4) for name, values in found["ndcg"].items()}, flush=True)
    return found


def compared(results: dict[tuple[str, str, int], list[dict[str, Any]]]) -> str:
    """Return two tables: NDCG@10 by system, and the differences of ours from the peers."""
    names = [f"rankmill {bias}" for bias in OURS] + list(PEERS)
    pairs = [
        ("additive", "LightGBM position"),
        ("unbiased", "XGBoost unbiased"),
        ("none", "LightGBM"),
        ("none", "XGBoost"),
    ]
    means, differences = [], []
    for (user, logger, sessions), members in results.items():
        log = [user, logger, f"{sessions:,}"]
        means.append([*log, *(f"{np.mean([np.mean(one['ndcg'][name]) for one in members]):.4f}" for name in names)])
        differences.append([*log, *(str(_difference(members, f"rankmill {ours}", peer)) for ours, peer in pairs)])
    heads = ["users", "logger", "sessions"]
    minus = [f"{ours} minus {peer}" for ours, peer in pairs]
    return table([*heads, *names], means) + "\n\n" + table([*heads, *minus], differences)


def _difference(members: Sequence[dict[str, Any]], ours: str, peer: str) -> object:
    folds = [np.array(one["ndcg"][ours]) - np.array(one["ndcg"][peer]) for one in members]
    return paired_interval([Differences(folds, redraw_folds=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--users", nargs="+", default=["pbm-1", "trust"], choices=(*USERS, "pbm-0"))
    parser.add_argument("--loggers", nargs="+", default=["1 %"], choices=LOGGERS)
    parser.add_argument("--sessions", nargs="+", type=int, default=[30_000])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    given.cache.mkdir(parents=True, exist_ok=True)
    results = {
        log: [measure(Setting(*log, seed), given.cache) for seed in given.seeds]
        for log in product(given.users, given.loggers, given.sessions)
    }
    print(render(surroundings(["lightgbm", "xgboost"])))
    print(compared(results))


if __name__ == "__main__":
    main()
