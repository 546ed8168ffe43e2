"""Effect of coarser packed gradients: NDCG@10 by the number of quantisation steps of the mean |gradient| of a row.

Gradient and hessian of a row share one 64-bit word, and sums over all rows fit 31 bits.  So for n rows the mean ``|g|``
has about ``2 ** 31 / n`` steps: 256 for 8 million rows, 16 for 134 million, 2 for a billion.  Here, fewer bits with
fewer rows give the same number of steps.

Example: python benchmarks/steps.py --queries 3000 --seeds 1 2 3
"""

from __future__ import annotations

import argparse
import tempfile
from math import floor, log2
from pathlib import Path

import numpy as np

from benchmarks.cases import CASES, Data, prepare
from benchmarks.report import render, surroundings, table
from rankmill.pipeline.bins.spec import apply_bins, matrix_bins
from rankmill.scorer.forest.predict import predict
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.trainer.data.rows import RankedRows, TrainingData
from rankmill.trainer.growing import packing
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rounds.boosting import boost

ALL_BITS = packing.HISTOGRAM_BITS


def ndcg(folder: Path, bits: int, rounds: int, seed: int) -> float:
    """Train on the part "train" with sums of ``bits`` bits and return NDCG@10 of the part "test"."""
    train, test = Data(folder, "train"), Data(folder, "test")
    names = [f"f{i}" for i in range(train.x.shape[1])]
    spec = matrix_bins(names, train.x)
    packing.HISTOGRAM_BITS = bits
    try:
        data = TrainingData(
            train=RankedRows(train.y, train.starts, [apply_bins(train.x, spec)]),
            edges=[feature.edges for feature in spec.features],
            feature_names=names,
            max_grade=4,
        )
        forest = boost(data, TrainParameters(preset="defaults-1", n_rounds=rounds, seed=seed)).forest
    finally:
        packing.HISTOGRAM_BITS = ALL_BITS
    metric = parse_metric("ndcg@10")
    return PreparedQueries(test.y, test.starts, Policy(max_grade=4)).means([metric], predict(forest, test.x))[metric]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=3000, help="of about 120 documents each")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, nargs="+", default=[256, 64, 16, 4, 2, 1])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of the judgments")
    given = parser.parse_args()
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as work:
        for seed in given.seeds:
            folder = prepare(CASES["mslr"].sized(given.queries, None), seed, Path(work))
            rows = int(np.load(folder / "train-sizes.npy").sum())
            bits = {"all that fit": ALL_BITS, **{str(s): floor(log2(s * rows)) + 1 for s in given.steps}}
            for name, of_steps in bits.items():
                found.setdefault(name, []).append(ndcg(folder, of_steps, given.rounds, seed))
    rows_of_table = [
        [name, f"{np.mean(values):.4f}", " ".join(f"{value:.4f}" for value in values)] for name, values in found.items()
    ]
    print(render(surroundings()))
    print(table(["steps", "test NDCG@10", "by seed"], rows_of_table))


if __name__ == "__main__":
    main()
