"""Compare splits by literal weighted squared error, with and without LogitBoost's guards, with the robust form.

Xia, Zhai & Wang fit responses r = -g/h with weights h (eqn 6-8), which in exact arithmetic chooses the splits of
``rwse`` (Li 2010).  As the model becomes certain about a document, h goes to 0 and r becomes unbounded; LogitBoost
clips r and raises h (Friedman, Hastie & Tibshirani 2000, section 10).  For some rounds of a training by ``rwse``, this
reports the ranges of h and r.  It also reports the share of nodes at which the literal form chooses the same split, and
the share of the best gain that its split has.

Example: python benchmarks/wse.py --letor MQ2008 --rounds 400
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.folds import BinnedFold, binned, letor_folds
from benchmarks.ole import drawn
from benchmarks.report import render, surroundings, table
from rankmill.scorer.metrics import Policy
from rankmill.trainer.data.layout import BlockedBins
from rankmill.trainer.growing.grower import Grower
from rankmill.trainer.growing.tree import Tree
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.team import Team

WIDEST, LEAST = 4.0, 1e-5  # LogitBoost's guards: of |r|, and of h over its mean
WAYS = ("double", "single", "double, guarded", "single, guarded")
Floats = npt.NDArray[np.float64]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--letor", type=Path, help="use the first fold of this folder instead of generated judgments")
    parser.add_argument("--queries", type=int, default=100, help="generated, about 120 documents each")
    parser.add_argument("--objective", default="bernoulli")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--compared", type=int, default=6, help="rounds whose trees are compared, in equal ratios")
    parser.add_argument("--leaves", type=int, default=16)
    parser.add_argument("--rate", type=float, default=0.2)
    return parser.parse_args()


def inner_nodes(tree: Tree, columns: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.intp]]:
    """Return the rows of each inner node."""
    found, waiting = [], [(0, np.arange(columns.shape[1]))]
    while waiting:
        node, rows = waiting.pop()
        if tree.feature[node] < 0:
            continue
        found.append(rows)
        bins = columns[tree.feature[node]][rows]
        left = np.where(bins == 0, bool(tree.missing_left[node]), bins <= tree.threshold[node])
        waiting += [(int(tree.left[node]), rows[left]), (int(tree.right[node]), rows[~left])]
    return found


def sums_of_sides(values: Floats, order: npt.NDArray[np.intp], ends: npt.NDArray[np.intp], kind: type) -> list[Floats]:
    """Return the sums left and right of every threshold, added row by row in the dtype ``kind``."""
    running: npt.NDArray[np.floating] = np.cumsum(values[order].astype(kind), dtype=kind)
    return [running[ends].astype(np.float64), (running[-1] - running[ends]).astype(np.float64)]


def compare(columns: npt.NDArray[np.uint8], g: Floats, h: Floats) -> list[tuple[bool, float]] | None:
    """Return for each of ``WAYS`` whether its split is the best one, and its share of the best gain; None: no split."""
    gains: list[Floats] = []
    errors: dict[str, list[Floats]] = {way: [] for way in WAYS}
    guarded = np.maximum(h, LEAST * h.mean())
    with np.errstate(divide="ignore", invalid="ignore"):
        plain = -g / h  # NaN or infinite if h is 0, and so are the sums
    forms = {
        "": (plain, h),
        ", guarded": (np.clip(-g / guarded, -WIDEST, WIDEST), guarded),
    }
    for bins in columns:
        order = np.argsort(bins, kind="stable")
        ends = np.flatnonzero(np.diff(bins[order]) > 0)
        if len(ends) == 0:
            continue
        slopes, bends = (sums_of_sides(values, order, ends, np.float64) for values in (g, h))
        allowed = np.minimum(*bends) > 0.0
        gains.append(over(slopes, bends, allowed, -np.inf))
        for way in WAYS:
            kind = np.float64 if way.startswith("double") else np.float32
            r, w = forms[way.removeprefix("double").removeprefix("single")]
            weights, firsts, seconds = (sums_of_sides(w * r**k, order, ends, kind) for k in range(3))
            explained = over(firsts, weights, allowed & (np.minimum(*weights) > 0.0), -np.inf)
            errors[way].append(np.nan_to_num(seconds[0] + seconds[1] - explained, nan=np.inf, posinf=np.inf))
    if not gains:
        return None
    gain = np.concatenate(gains)
    parent = g.sum() ** 2 / h.sum()
    best = gain.max() - parent
    if not best > 0.0:
        return None
    found = []
    for way in WAYS:
        error = np.concatenate(errors[way])
        at = int(error.argmin())
        kept = (gain[at] - parent) / best if error[at] < np.inf else 0.0  # no finite error: no split
        found.append((bool(kept >= 1.0 - 1e-12), float(kept)))
    return found


def over(above: list[Floats], below: list[Floats], allowed: npt.NDArray[np.bool_], otherwise: float) -> Floats:
    """Return the sum over both sides of above^2 / below, and ``otherwise`` where that is not allowed."""
    total = np.zeros(len(allowed))
    for a, b in zip(above, below, strict=True):
        total += a * a / np.where(allowed, b, 1.0)
    return np.where(allowed, total, otherwise)


def run(fold: BinnedFold, given: argparse.Namespace) -> list[list[str]]:
    parameters = TrainParameters(
        preset="defaults-1",
        objective=given.objective,
        max_leaves=given.leaves,
        learning_rate=given.rate,
        min_hessian_in_leaf=0.0,
    )
    assert isinstance(fold.train.bins, BlockedBins)
    team = Team(1)
    objective = objective_of(fold.train, parameters)
    grower = Grower(fold.train.bins, parameters, team)
    n = fold.train.n_rows
    scores, g, h = np.full(n, objective.start()), np.empty(n), np.empty(n)
    compared = set(np.unique(np.geomspace(1, given.rounds, given.compared).astype(int)).tolist())
    lines = []
    for number in range(1, given.rounds + 1):
        objective.gradients(number, scores, g, h, team)
        tree = grower.grow(g, h, scores)
        if number not in compared:
            continue
        nodes = [compare(fold.columns[:, rows], g[rows], h[rows]) for rows in inner_nodes(tree, fold.columns)]
        found = np.array([node for node in nodes if node is not None])
        cells = [f"{equal:.0%}, {kept:.1%}" for equal, kept in found.mean(axis=0)]
        widest = np.abs(g[h > 0.0] / h[h > 0.0]).max()
        lines.append([str(number), f"{h.min() / h.mean():.1e}", f"{widest:.3g}", *cells])
    return lines


def main() -> None:
    given = arguments()
    with tempfile.TemporaryDirectory() as work:
        if given.letor:
            fold = letor_folds(given.letor, Path(work), lambda top: Policy(max_grade=top), stopped=False)[0]
        else:
            fold = binned(drawn(given.queries, 1), None, drawn(10, 1001), Policy(max_grade=4))
    print(render(surroundings()))
    print(f"{given.objective}: {fold.train.n_rows:,} documents x {len(fold.spec.features)}, {given.leaves} leaves\n")
    print("Of the nodes: the share with the split of `rwse`, and the mean share of its gain.\n")
    print(table(["round", "least h / mean", "widest r", *WAYS], run(fold, given)))


if __name__ == "__main__":
    main()
