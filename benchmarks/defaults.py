"""Compare `lambdamart` with its defaults to LightGBM's lambdarank with its own, switching one difference at a time.

Every line trains on the same generated sets and is measured on the same test queries, so differences are paired.  The
floor is LightGBM against itself with the documents of every query in another order: only ties at the start can differ.

Example: python -m benchmarks.defaults --sets 100
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt

from benchmarks.judgments import Part, judgments, reordered
from benchmarks.report import render, surroundings, table
from rankmill import Ranker
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.team import with_team

Floats = npt.NDArray[np.float64]
TEST_QUERIES, TEST_SEED = 1000, 1_000_000
ROUNDS = 100


def ours(train: Part, test: Part, **parameters: Any) -> Floats:
    x, grades, starts = train
    ranker = Ranker(preset="defaults-1", n_rounds=ROUNDS, n_threads=1, **parameters)
    return ranker.fit(x, grades, group=np.diff(starts)).predict(test[0])


def theirs(train: Part, test: Part, order: int = 0, lambdas: str = "", **parameters: Any) -> Floats:
    """Train LightGBM; ``lambdas``: train on our lambdas for this metric."""
    x, grades, starts = reordered(train, order) if order else train
    objective = _learning(grades, starts, lambdas) if lambdas else "lambdarank"
    data = lightgbm.Dataset(x, grades, group=np.diff(starts), params={"verbose": -1})
    settings = {"objective": objective, "num_threads": 1, "deterministic": True, "verbose": -1, **parameters}
    return np.asarray(lightgbm.train(settings, data, ROUNDS).predict(test[0], raw_score=True))


def _learning(
    grades: npt.NDArray[np.int32], starts: npt.NDArray[np.int64], metric: str
) -> Callable[[Floats, object], tuple[Floats, Floats]]:
    objective = objective_of(RankedRows(grades, starts, []), TrainParameters(preset="defaults-1", metric=metric))
    rounds = iter(range(1, ROUNDS + 1))

    def derivatives(scores: Floats, _: object) -> tuple[Floats, Floats]:
        g, h = np.empty((2, len(scores)))
        step, scores = next(rounds), np.array(scores, dtype=np.float64)
        with_team(1, lambda team: objective.gradients(step, scores, g, h, team))
        return g, h

    return derivatives


SYSTEMS: dict[str, Callable[[Part, Part], Floats]] = {
    "LightGBM": theirs,
    **{f"LightGBM, order {order}": partial(theirs, order=order) for order in (1, 2)},
    **{f"ours, seed {seed}": partial(ours, seed=seed) for seed in (7, 8, 9, 10)},
    "ours, metric ndcg@30": partial(ours, metric="ndcg@30"),
    "LightGBM's trees, our lambdas": partial(theirs, lambdas="ndcg@10"),
    "LightGBM's trees, our lambdas of ndcg@30": partial(theirs, lambdas="ndcg@30"),
    "LightGBM, 1 row in a leaf": partial(theirs, min_data_in_leaf=1),
    "ours, 1 row in a leaf": partial(ours, min_rows_in_leaf=1),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--queries", type=int, default=150)
    parser.add_argument("--documents", type=int, default=20)
    parser.add_argument("--features", type=int, default=15)
    return parser.parse_args()


def main() -> None:
    given, metric = arguments(), parse_metric("ndcg@10")
    found: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    for seed in range(given.first_seed, given.first_seed + given.sets):
        train = judgments(seed, given.queries, given.documents, given.features)
        test = judgments(TEST_SEED + seed, TEST_QUERIES, given.documents, given.features)
        queries = PreparedQueries(test[1], test[2], Policy())
        for name, scores in SYSTEMS.items():
            found[name].append(queries.means([metric], scores(train, test))[metric])
        print(f"set {seed}: " + ", ".join(f"{values[-1]:.4f}" for values in found.values()), file=sys.stderr)
    base = np.array(found["LightGBM"])
    lines = []
    for name, values in found.items():
        apart = np.array(values) - base
        error = apart.std(ddof=1) / np.sqrt(len(apart))
        lines.append(
            [name, f"{np.mean(values):.4f}", f"{apart.mean():+.4f}", f"{error:.4f}", f"{apart.std(ddof=1):.4f}"]
        )
    print(render(surroundings(["lightgbm"])))
    print(table(["what", "NDCG@10", "minus LightGBM", "standard error", "standard deviation of a set"], lines))


if __name__ == "__main__":
    main()
