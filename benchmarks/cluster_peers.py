"""LightGBM's and XGBoost's rankers on two local Dask workers, for `benchmarks.cluster_training`; prints a line of JSON.

Runs in an environment of its own: ``pip install lightgbm xgboost "dask[dataframe]" distributed scikit-learn``.
``--kill SECONDS`` kills a worker so long after the start of the training, and says what happens.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np


def ndcg(scores: np.ndarray, grades: np.ndarray, sizes: np.ndarray, k: int = 10) -> float:
    """Return the mean NDCG@k over queries with a relevant document, by exponential gains.

    Ties keep the order of the file.
    """
    found, start = [], 0
    discounts = 1.0 / np.log2(np.arange(2, k + 2))
    for size in sizes:
        own, gains = scores[start : start + size], 2.0 ** grades[start : start + size] - 1.0
        start += size
        ideal = np.sort(gains)[::-1][:k]
        if ideal.any():
            top = gains[np.argsort(-own, kind="stable")[:k]]
            found.append((top * discounts[: len(top)]).sum() / (ideal * discounts[: len(ideal)]).sum())
    return float(np.mean(found))


def parts(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tuple(np.load(folder / f"{name}-{what}.npy") for what in ("x", "y", "sizes"))  # type: ignore[return-value]


def train(system: str, client: Any, folder: Path, rounds: int, leaves: int, n_parts: int) -> tuple[float, Any]:
    """Train on two workers; return seconds and the model."""
    import dask.array as da

    x, y, sizes = parts(folder, "train")
    cuts = [
        0,
        *(int(np.searchsorted(np.cumsum(sizes), len(y) * k / n_parts)) + 1 for k in range(1, n_parts)),
        len(sizes),
    ]
    rows = np.concatenate(([0], np.cumsum(sizes)))[cuts]
    chunks = tuple(np.diff(rows).tolist())
    dx = da.from_array(x, chunks=(chunks, x.shape[1])).persist()
    dy = da.from_array(y, chunks=(chunks,)).persist()
    if system == "lightgbm":
        import lightgbm

        groups = da.from_array(sizes, chunks=(tuple(np.diff(cuts).tolist()),)).persist()
        model = lightgbm.DaskLGBMRanker(
            client=client, n_estimators=rounds, num_leaves=leaves, learning_rate=0.1, min_child_samples=20, n_jobs=1,
            tree_learner="data", verbosity=-1,
        )  # fmt: skip
        began = time.perf_counter()
        model.fit(dx, dy, group=groups)
        return time.perf_counter() - began, model.to_local()
    import xgboost.dask as xgb

    qid = da.from_array(np.repeat(np.arange(len(sizes)), sizes), chunks=(chunks,)).persist()
    model = xgb.DaskXGBRanker(
        n_estimators=rounds, max_leaves=leaves, max_depth=0, grow_policy="lossguide", learning_rate=0.1, max_bin=255,
        tree_method="hist",
        objective="rank:ndcg", lambdarank_pair_method="topk", lambdarank_num_pair_per_sample=30, n_jobs=1,
        allow_group_split=True,  # chunks end with queries
    )  # fmt: skip
    model.client = client
    began = time.perf_counter()
    model.fit(dx, dy, qid=qid)
    return time.perf_counter() - began, model.get_booster()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=["lightgbm", "xgboost"])
    parser.add_argument("folder", type=Path, help="of arrays, see benchmarks.cases")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--leaves", type=int, default=31)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill", type=float)
    given = parser.parse_args()
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=given.workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            memory_limit=0,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        if given.kill is not None:
            victim = next(iter(client.run(os.getpid).values()))
            threading.Timer(given.kill, os.kill, [victim, signal.SIGKILL]).start()
        began = time.perf_counter()
        try:
            seconds, model = train(given.system, client, given.folder, given.rounds, given.leaves, given.workers)
        except Exception as error:
            words = " ".join(f"{type(error).__name__}: {error}".split())
            print(json.dumps({"failed": words[:300], "after": round(time.perf_counter() - began, 1)}), flush=True)
            os._exit(0)  # closing may hang, too
        x, y, sizes = parts(given.folder, "test")
        if given.system == "lightgbm":
            scores = model.predict(x)
        else:
            import xgboost

            scores = model.predict(xgboost.DMatrix(x))
        print(json.dumps({"seconds": seconds, "ndcg@10": ndcg(scores, y, sizes)}), flush=True)


if __name__ == "__main__":
    main()
