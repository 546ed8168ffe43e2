"""The experiment of Xia, Zhai & Wang, section 4: splits by squared error (se) against splits by the loss itself (ole).

McRank and LambdaMART have 10 and 20 leaves, learning rates .06, .10 and .12, and trees grown breadth first.  The number
of rounds is fixed (the paper: 1000 for LambdaMART, 2500 for McRank).  Every round reports NDCG@1, @3, @10 and ERR of
the test part.  Data are the five folds of a LETOR folder, each trained on three parts and tested on the fifth.  There
are also generated judgments in the shape of the Microsoft data (136 features, 120 documents per query), one sample per
seed.  Compare only the differences ole - se with the paper, which does not state its gain or its treatment of queries
without relevant documents.

Example: python benchmarks/ole.py ../shared/data/mq2008 --rounds 300 --generated-queries 200 --seeds 1 2 3
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.folds import BinnedFold, binned, letor_folds
from benchmarks.letor import Split, missing_parts
from benchmarks.report import render, surroundings, table
from rankmill.pipeline.bins.spec import apply_bins
from rankmill.pipeline.options import SynthParameters
from rankmill.pipeline.synth import generate
from rankmill.scorer.metrics import Policy
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rounds.boosting import boost
from rankmill.trainer.training_options import TrainingOptions

METRICS = ("ndcg@1", "ndcg@3", "ndcg@10", "err")
SYSTEMS = {"McRank": "mcrank", "LambdaMART": "lambdamart"}
IMPROVED = 0.001  # 0.1 point
PAPER = {"McRank": "46/48", "LambdaMART": "40/48"}  # counted in its tables 2 and 3
CURVE_POINTS = 10


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="holds S1.txt .. S5.txt; left out: generated data only")
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--leaves", type=int, nargs="+", default=[10, 20])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.06, 0.10, 0.12])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--mcrank-rounds", type=int, help="default: 2.5 times --rounds, as in the paper")
    parser.add_argument("--grow", default="breadth_first")
    parser.add_argument(
        "--leaf", choices=["newton", "exact"], default="exact", help="steps of LambdaMART's leaves under ole"
    )
    parser.add_argument("--ole-features", type=int, default=0, help="0: all thresholds of all features")
    parser.add_argument("--ole-pairs", type=float, default=0.0, help="a document; 0: all")
    parser.add_argument("--generated-queries", type=int, default=0, help="of each drawing; 0: none")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of the generated judgments")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append every training as a JSON object")
    parser.add_argument(
        "--from", dest="saved", type=Path, nargs="+", metavar="FILE", help="make the tables of such files again"
    )
    return parser.parse_args()


def curves(fold: BinnedFold, parameters: TrainParameters) -> dict[str, npt.NDArray[np.float64]]:
    """Train and return every metric of the test part, and the training loss, by round."""
    test = fold.test
    rows = RankedRows(test.grades, test.starts, [apply_bins(test.x, fold.spec)])
    options = TrainingOptions(eval_metrics=[*METRICS, "deviance"])
    history = boost(fold.data(("test", rows)), parameters, options).history
    found = {metric: np.array([record.metrics["test"][metric] for record in history]) for metric in METRICS}
    return found | {"loss": np.array([record.train["deviance"] for record in history])}


def data_sets(given: argparse.Namespace, work: Path) -> Iterator[tuple[str, list[BinnedFold]]]:
    if given.folder:
        yield given.folder.name, letor_folds(given.folder, work, lambda top: Policy(max_grade=top), stopped=False)
    if given.generated_queries:
        folds = []
        for seed in given.seeds:
            train, test = (
                drawn(queries, at)
                for queries, at in ((given.generated_queries, seed), (given.generated_queries, seed + 1000))
            )
            folds.append(binned(train, None, test, Policy(max_grade=4)))
        yield f"generated, {given.generated_queries} queries x 120 x 136", folds


def drawn(queries: int, seed: int) -> Split:
    blocks = list(generate(SynthParameters(queries=queries, documents_per_query=120, features=136, seed=seed)))
    sizes = np.concatenate([np.diff(block.starts) for block in blocks])
    return Split(
        np.ascontiguousarray(np.concatenate([block.values.T for block in blocks]), dtype=np.float32),
        np.concatenate([block.grades for block in blocks]).astype(np.int32),
        np.concatenate(([0], np.cumsum(sizes))).astype(np.int64),
    )


def measure(given: argparse.Namespace, data: str, folds: list[BinnedFold]) -> list[dict[str, Any]]:
    """Train every system at every setting with se and with ole."""
    found = []
    for system in given.systems:
        rounds = given.rounds if system == "LambdaMART" else given.mcrank_rounds or given.rounds * 5 // 2
        for leaves in given.leaves:
            for rate in given.rates:
                row: dict[str, Any] = {"data": data, "system": system, "leaves": leaves, "rate": rate, "rounds": rounds}
                for criterion in ("se", "ole"):
                    parameters = TrainParameters(
                        preset="defaults-1", objective=SYSTEMS[system], criterion=criterion,
                        ole_features=given.ole_features, ole_pairs=given.ole_pairs, grow=given.grow,
                        leaf=given.leaf if criterion == "ole" and system == "LambdaMART" else "",
                        max_leaves=leaves, learning_rate=rate, n_rounds=rounds, early_stopping_rounds=0,
                    )  # fmt: skip
                    begin = time.perf_counter()
                    of_folds = [curves(fold, parameters) for fold in folds]
                    row[criterion] = {
                        name: np.mean([of_fold[name] for of_fold in of_folds], axis=0).tolist() for name in of_folds[0]
                    } | {"seconds": time.perf_counter() - begin}
                found.append(row)
                print(
                    f"{data} {system} {leaves} {rate}: {difference(row, 'ndcg@10'):+.2f}", file=sys.stderr, flush=True
                )
                if given.json:
                    with given.json.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
    return found


def difference(row: dict[str, Any], metric: str, at: int = -1) -> float:
    """Return ole - se after a round, in points (hundredths)."""
    return 100.0 * float(row["ole"][metric][at] - row["se"][metric][at])


def best_of(row: dict[str, Any]) -> str:
    """NDCG@10 at the best round of either, chosen on the test part: the result of perfect early stopping."""
    found = [(100 * max(row[c]["ndcg@10"]), int(np.argmax(row[c]["ndcg@10"])) + 1) for c in ("se", "ole")]
    return " / ".join(f"{value:.2f} ({at})" for value, at in found)


def show(rows: list[dict[str, Any]]) -> None:
    data = rows[0]["data"]
    lines = []
    for row in rows:
        cells = [f"{100 * row['se'][m][-1]:.2f} / {100 * row['ole'][m][-1]:.2f}" for m in METRICS]
        loss = row["ole"]["loss"][-1] / row["se"]["loss"][-1] - 1.0
        times = row["ole"]["seconds"] / row["se"]["seconds"]
        lines.append(
            [
                row["system"],
                str(row["leaves"]),
                f"{row['rate']:.2f}",
                *cells,
                best_of(row),
                f"{100 * loss:+.2f} %",
                f"{times:.2f}",
            ]
        )
    print(
        f"**{data}**, se / ole in per cent after {' and '.join(map(str, sorted({row['rounds'] for row in rows})))} "
        "rounds\n"
    )
    print(
        table(["system", "leaves", "rate", *METRICS, "ndcg@10 at its best round", "training loss", "seconds x"], lines)
        + "\n"
    )
    for system in dict.fromkeys(row["system"] for row in rows):
        of = [row for row in rows if row["system"] == system]
        better = sum(difference(row, metric) > 100 * IMPROVED for row in of for metric in METRICS)
        worse = sum(difference(row, metric) < -100 * IMPROVED for row in of for metric in METRICS)
        losses = [row["ole"]["loss"][-1] / row["se"]["loss"][-1] - 1.0 for row in of]
        print(
            f"{system}: {better} of {len(of) * len(METRICS)} better by more than 0.1 point, {worse} worse by as much "
            "(the"
            f" paper's tables, two data sets: {PAPER[system]} better); training loss {100 * min(losses):+.2f} to"
            f" {100 * max(losses):+.2f} % (the paper: 0.32 to 1 % lower)\n"
        )
        places = np.unique(np.linspace(1, of[0]["rounds"], CURVE_POINTS + 1).astype(int)[1:])
        curve = [
            [str(place), *(f"{np.mean([difference(row, m, place - 1) for row in of]):+.2f}" for m in METRICS)]
            for place in places.tolist()
        ]
        print(f"ole - se of {system} by round, in points, mean over the settings:\n")
        print(table(["round", *METRICS], curve) + "\n", flush=True)


def main() -> None:
    given = arguments()
    if given.folder and (missing := missing_parts(given.folder)):
        sys.exit(f"ole: {given.folder} lacks {', '.join(missing)}")
    if given.saved:
        saved = [json.loads(line) for path in given.saved for line in path.read_text(encoding="utf-8").splitlines()]
        for data in dict.fromkeys(row["data"] for row in saved):
            show([row for row in saved if row["data"] == data])
        return
    print(render(surroundings()), flush=True)
    with tempfile.TemporaryDirectory() as work:
        for data, folds in data_sets(given, Path(work)):
            show(measure(given, data, folds))


if __name__ == "__main__":
    main()
