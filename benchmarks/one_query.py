"""Time Ranker.predict of the documents of one query, beside the trees alone and LightGBM's Booster.predict.

    python benchmarks/one_query.py [--calls 500] [--trees 500] [--leaves 64]

LightGBM trains the model (136 features), and rankmill reads it.  The documents are a float32 array and frames of three
libraries.  All calls take turns on one core. *trees* is `ForestPredictor.scores` of an array by a predictor that is
made once; *beyond* is the median of the calls less that of the trees.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.predict import lightgbm, made
from benchmarks.report import render, surroundings, table
from rankmill import Ranker
from rankmill.scorer.exchange.formats import read_from
from rankmill.scorer.forest.predict import ForestPredictor

SIZES = (1, 10, 100, 1000)


def calls_for(ranker: Ranker, model: Path, values: np.ndarray) -> dict[str, Callable[[], object]]:
    """Return the calls to time, by name: the trees first."""
    import lightgbm as lgb

    booster, predictor = lgb.Booster(model_file=model), ForestPredictor(ranker.forest_)
    frame = pl.DataFrame(values, schema=list(ranker.forest_.feature_names))
    pandas, arrow = pd.DataFrame(values, columns=frame.columns), frame.to_arrow()
    return {
        "trees": lambda: predictor.scores(values),
        "array": lambda: ranker.predict(values),
        "Polars": lambda: ranker.predict(frame),
        "pandas": lambda: ranker.predict(pandas),
        "Arrow": lambda: ranker.predict(arrow),
        "LightGBM, array": lambda: booster.predict(values, num_threads=1),
        "LightGBM, pandas": lambda: booster.predict(pandas, num_threads=1),
    }


def micros_of(calls: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Return the median microseconds of each call; the first turns are not counted."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + 5):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            if turn >= 5:
                taken[name].append(time.perf_counter() - begin)
    return {name: statistics.median(seconds) * 1e6 for name, seconds in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--trees", type=int, default=500)
    parser.add_argument("--leaves", type=int, default=64)
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    warnings.simplefilter("ignore", UserWarning)  # arrays have no names of columns
    train, label, values = made(max(SIZES))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.txt"
        lightgbm(options.trees, options.leaves, train, label, model, 0)
        ranker = Ranker.from_model(read_from("lightgbm", model.read_bytes(), str(model)).forest)
        ranker.set_params(n_threads=1)
        for documents in SIZES:
            micros = micros_of(calls_for(ranker, model, values[:documents].copy()), options.calls)
            rows += [
                [str(documents), name, f"{took:.0f}", f"{took - micros['trees']:.0f}", f"{took / micros['array']:.2f}"]
                for name, took in micros.items()
            ]
    print(render(surroundings(["lightgbm", "polars", "pandas", "pyarrow"])))
    print(table(["documents", "call", "us", "beyond the trees", "times the array"], rows))


if __name__ == "__main__":
    main()
