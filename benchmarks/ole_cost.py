"""Cost of splits by the loss itself (ole) for LambdaMART, and how often fast approximations choose the exact split.

Each number of screened features and of sampled pairs per document has the seconds per round compared with se and rwse
(interleaved trainings).  At the nodes of exactly grown trees it has two shares: of nodes with the same split, and of
the best exact gain that the chosen split has.

Example: python benchmarks/ole_cost.py --queries 1000 --features 136 --leaves 31
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.folds import BinnedFold, binned, letor_folds
from benchmarks.ole import drawn
from benchmarks.report import render, surroundings, table
from rankmill.scorer.metrics import Policy
from rankmill.trainer.data.layout import BlockedBins
from rankmill.trainer.growing.grower import Grower
from rankmill.trainer.growing.histogram import total_of
from rankmill.trainer.growing.tree import Tree, add_tree
from rankmill.trainer.objectives.protocol import PairHessians
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.team import Team

ALL = 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--letor", type=Path, help="use the first fold of this folder instead of generated judgments")
    parser.add_argument("--queries", type=int, default=1000, help="generated, about 120 documents each")
    parser.add_argument("--leaves", type=int, default=31)
    parser.add_argument("--features", type=int, nargs="+", default=[1, 2, 4, 8, 16, ALL], help="screened; 0: all")
    parser.add_argument("--pairs", type=float, nargs="+", default=[0.25, 1.0, 4.0, ALL], help="a document; 0: all")
    parser.add_argument("--rounds", type=int, default=20, help="of which seconds are the median")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--compared", type=int, default=4, help="trees whose nodes are compared, spread over the rounds"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--leaf", choices=["newton", "exact"], default="newton", help="in the trainings that are timed")
    parser.add_argument("--objective", default="lambdamart")
    return parser.parse_args()


class Exact:
    """Exactly grown trees, and the choices of the fast variants at their nodes."""

    def __init__(self, fold: BinnedFold, parameters: TrainParameters) -> None:
        self.parameters = replace(parameters, ole_features=ALL, ole_pairs=ALL)
        self.rows, self.team = fold.train, Team(1)
        assert isinstance(fold.train.bins, BlockedBins)
        self.bins = fold.train.bins
        self.objective = objective_of(self.rows, self.parameters)
        n = self.rows.n_rows
        self.scores, self.g, self.h = np.zeros(n), np.empty(n), np.empty(n)
        self.grower = Grower(self.bins, self.parameters, self.team)
        self.columns = fold.columns

    def step(self, number: int) -> tuple[Tree, PairHessians]:
        self.objective.gradients(number, self.scores, self.g, self.h, self.team)
        pairs = self.objective.pair_hessians(number, self.scores, 0.0, self.team).copy()
        return self.grower.grow(self.g, self.h, self.scores.copy(), pairs=pairs), pairs

    def accept(self, tree: Tree) -> None:
        add_tree(tree, self.bins, np.arange(self.rows.n_rows, dtype=np.int32), self.scores, self.team)

    def nodes(self, tree: Tree) -> list[tuple[int, npt.NDArray[np.int32]]]:
        """Return the inner nodes and their rows."""
        found, waiting = [], [(0, np.arange(self.rows.n_rows, dtype=np.int32))]
        while waiting:
            node, rows = waiting.pop()
            if tree.feature[node] < 0:
                continue
            found.append((node, rows))
            left = self.goes_left(rows, tree.feature[node], tree.threshold[node], tree.missing_left[node])
            waiting += [(int(tree.left[node]), rows[left]), (int(tree.right[node]), rows[~left])]
        return found

    def goes_left(
        self, rows: npt.NDArray[np.int32], feature: int, threshold: int, missing_left: int
    ) -> npt.NDArray[np.bool_]:
        bins = self.columns[feature][rows]
        return np.where(bins == 0, bool(missing_left), bins <= threshold)

    def gain(self, rows: npt.NDArray[np.int32], left: npt.NDArray[np.bool_], pairs: PairHessians) -> float:
        """L'^2 / L'' of both sides, with all pairs."""
        side = np.full(self.rows.n_rows, -1, dtype=np.int8)
        side[rows] = left
        same = side[pairs.first] == side[pairs.second]
        total = 0.0
        for which, of_side in ((1, rows[left]), (0, rows[~left])):
            inside = pairs.hessian[same & (side[pairs.first] == which)].sum()
            total += self.g[of_side].sum() ** 2 / (self.h[of_side].sum() - 2 * inside)
        return total

    def compare(
        self, number: int, tree: Tree, pairs: PairHessians, ways: Sequence[tuple[int, float]]
    ) -> dict[tuple[int, float], list[tuple[bool, float]]]:
        """Return for every variant and node whether the split is the exact one, and its share of the best gain."""
        found: dict[tuple[int, float], list[tuple[bool, float]]] = {way: [] for way in ways}
        nodes = self.nodes(tree)
        drawn_pairs: dict[float, PairHessians] = {ALL: pairs}
        for per_row in {way[1] for way in ways} - {ALL}:
            least = 0.5 * total_of(self.h, self.team) / (per_row * len(self.h))
            drawn_pairs[per_row] = self.objective.pair_hessians(number, self.scores, least, self.team).copy()
        for way in ways:
            grower = Grower(self.bins, replace(self.parameters, ole_features=way[0], max_leaves=2), self.team)
            for node, rows in nodes:
                one = grower.grow(self.g, self.h, np.zeros(len(self.g)), rows=rows, pairs=drawn_pairs[way[1]])
                exact = self.goes_left(rows, tree.feature[node], tree.threshold[node], tree.missing_left[node])
                if one.feature[0] < 0:
                    found[way].append((False, 0.0))
                    continue
                left = self.goes_left(rows, one.feature[0], one.threshold[0], one.missing_left[0])
                whole = self.gain(rows, exact, pairs)
                found[way].append((bool(np.array_equal(left, exact)), self.gain(rows, left, pairs) / whole))
        return found


def seconds_a_round(
    fold: BinnedFold, ways: dict[str, TrainParameters], given: argparse.Namespace
) -> dict[str, list[float]]:
    """Return the median seconds per round of each variant; the variants take turns."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(given.turns + 1):
        for name, parameters in ways.items() if turn % 2 else reversed(list(ways.items())):
            marks: list[float] = []
            fold.boost(
                replace(parameters, n_rounds=given.rounds if turn else 3), n_threads=given.threads,
                on_round=lambda _, marks=marks: marks.append(time.perf_counter()),
            )  # fmt: skip
            if turn:  # the first turn loads the kernels
                found[name].append(float(np.median(np.diff(marks))))
    return found


def main() -> None:
    given = arguments()
    with tempfile.TemporaryDirectory() as work:
        if given.letor:
            fold = letor_folds(given.letor, Path(work), lambda top: Policy(max_grade=top), stopped=False)[0]
        else:
            fold = binned(drawn(given.queries, 1), None, drawn(100, 1001), Policy(max_grade=4))
    base = TrainParameters(
        preset="defaults-1",
        objective=given.objective,
        max_leaves=given.leaves,
        early_stopping_rounds=0,
        n_rounds=given.rounds,
        criterion="ole",
        leaf=given.leaf,
    )
    grid = [(k, pairs) for k in given.features for pairs in given.pairs]
    exact = Exact(fold, base)
    agreement: dict[tuple[int, float], list[tuple[bool, float]]] = {way: [] for way in grid}
    compared = set(np.unique(np.linspace(1, given.rounds, given.compared).astype(int)).tolist())
    n_pairs = 0
    for number in range(1, given.rounds + 1):
        tree, pairs = exact.step(number)
        n_pairs = len(pairs.first)
        if number in compared:
            for way, values in exact.compare(number, tree, pairs, grid).items():
                agreement[way] += values
        exact.accept(tree)
    ways = {name: replace(base, criterion=name) for name in ("se", "rwse")} | {
        str(way): replace(base, ole_features=way[0], ole_pairs=way[1]) for way in grid
    }
    seconds = seconds_a_round(fold, ways, given)
    print(render(surroundings()))
    n, f = fold.train.n_rows, len(fold.spec.features)
    print(
        f"{given.objective}: {n:,} documents x {f}, {n_pairs:,} pairs, {given.leaves} leaves, threads: "
        f"{given.threads}\n"
    )
    lines = []
    for name in ways:
        against = [np.median(np.array(seconds[name]) / np.array(seconds[other])) for other in ("se", "rwse")]
        cells = [f"{np.median(seconds[name]):.4f}", *(f"{ratio:.2f}" for ratio in against)]
        if name in {"se", "rwse"}:
            lines.append([name, "", "", *cells, "", "", ""])
            continue
        way = next(way for way in grid if str(way) == name)
        values = agreement[way]
        equal, share = np.mean([e for e, _ in values]), np.array([s for _, s in values])
        shown = [f"{way[0] or 'all'}", f"{way[1] or 'all'}"]
        lines.append(["ole", *shown, *cells, f"{equal:.1%}", f"{share.mean():.2%}", f"{np.mean(share >= 0.999):.1%}"])
    print(
        table(
            [
                "criterion",
                "features",
                "pairs a document",
                "s/round",
                "x se",
                "x rwse",
                "equal splits",
                "gain kept",
                "gain within .1 %",
            ],
            lines,
        )
    )
    print(f"\n{len(agreement[grid[0]])} nodes of {len(compared)} trees compared.")


if __name__ == "__main__":
    main()
