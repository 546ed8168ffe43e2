"""The compared systems: settings, construction of the dataset, and training.

Every settings function returns all differences from the system's defaults; they are printed above the tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.cases import Data

RATE, MAX_BIN, MIN_ROWS = 0.1, 255, 20
BATCH_ROWS = 2**17  # rows binned at a time
DEPTH = 6  # of oblivious trees

Settings = dict[str, Any]
Scorer = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float64]]
Built = Callable[[], None]  # to be called once the dataset is constructed


@dataclass(frozen=True)
class Task:
    leaves: int
    threads: int
    rounds: int


class Clock:
    """Seconds of every round, by the clock and of the processor; the first one includes set-up.

    A callback after each round calls it, or it is called once after all ``rounds``.
    """

    def __init__(self) -> None:
        self._last, self._cpu = time.perf_counter(), time.process_time()
        self.seconds, self.cpu = list[float](), list[float]()

    def __call__(self, *_: object, rounds: int = 1) -> None:
        now, cpu = time.perf_counter(), time.process_time()
        self.seconds += [(now - self._last) / rounds] * rounds
        self.cpu += [(cpu - self._cpu) / rounds] * rounds
        self._last, self._cpu = now, cpu

    def clear(self) -> None:
        self.seconds.clear()
        self.cpu.clear()

    def after_iteration(self, *_: object) -> bool:
        """Callback of CatBoost; true continues the training."""
        self()
        return True


@dataclass(frozen=True)
class System:
    settings: Callable[[Task], Settings]
    run: Callable[[Data, Task, Settings, Built], tuple[Clock, Scorer]]
    package: str
    note: str = ""
    pointwise: bool = False  # predicts grades, so that the test RMSE is meaningful


def _rankmill(task: Task) -> Settings:
    return {"preset": "defaults-1", "n_rounds": task.rounds, "max_leaves": task.leaves}


def _rankmill_oblivious(task: Task) -> Settings:
    # CatBoost has no minimum rows or hessian for leaves of symmetric trees
    return {
        "preset": "defaults-1", "objective": "l2", "grow": "oblivious", "max_depth": DEPTH, "max_leaves": 2**DEPTH,
        "n_rounds": task.rounds, "min_rows_in_leaf": 1, "min_hessian_in_leaf": 0.0,
    }  # fmt: skip


def _run_rankmill(data: Data, task: Task, settings: Settings, built: Built) -> tuple[Clock, Scorer]:
    from rankmill.pipeline.bins.spec import apply_bins, matrix_bins
    from rankmill.scorer.forest.predict import predict
    from rankmill.trainer.data.rows import RankedRows, TrainingData
    from rankmill.trainer.parameters import TrainParameters
    from rankmill.trainer.rounds.boosting import boost
    from rankmill.trainer.training_options import TrainingOptions

    parameters = TrainParameters(**settings)  # raises before anything is built
    names = [f"f{i}" for i in range(data.x.shape[1])]
    categorical = [names[f] for f in data.categorical]
    spec = matrix_bins(names, data.x, MAX_BIN, n_threads=task.threads, categorical=categorical)
    clock = Clock()

    def batches() -> Iterator[npt.NDArray[np.uint8]]:
        for first in range(0, len(data.x), BATCH_ROWS):
            yield apply_bins(data.x[first : first + BATCH_ROWS], spec, n_threads=task.threads)
        built()  # called at the request for another batch: all batches are in the trainer's layout
        clock()
        clock.clear()  # rounds begin here

    rows = TrainingData(
        train=RankedRows(data.y, data.starts, batches()),
        edges=[feature.edges for feature in spec.features],
        categories=spec.categories,
        feature_names=names,
        max_grade=int(data.y.max()),
    )
    forest = boost(rows, parameters, TrainingOptions(n_threads=task.threads, on_round=clock)).forest
    return clock, lambda x: predict(forest, x)


def _lightgbm(task: Task, *, quantised: bool = False) -> Settings:
    given = {
        "objective": "lambdarank", "num_leaves": task.leaves, "learning_rate": RATE, "max_bin": MAX_BIN,
        "min_data_in_leaf": MIN_ROWS, "num_threads": task.threads, "verbosity": -1,
    }  # fmt: skip
    return given | ({"use_quantized_grad": True} if quantised else {})


def _run_lightgbm(data: Data, task: Task, settings: Settings, built: Built) -> tuple[Clock, Scorer]:
    import lightgbm as lgb

    rows = lgb.Dataset(
        data.x, data.y, group=data.sizes, params=settings, categorical_feature=data.categorical
    ).construct()
    built()
    clock = Clock()
    booster = lgb.train(settings, rows, task.rounds, callbacks=[clock])
    return clock, lambda x: np.asarray(booster.predict(x), dtype=np.float64)


def _xgboost(task: Task) -> Settings:
    return {
        "objective": "rank:ndcg", "max_leaves": task.leaves, "grow_policy": "lossguide", "max_depth": 0, "eta": RATE,
        "max_bin": MAX_BIN, "tree_method": "hist", "nthread": task.threads, "verbosity": 0,
    }  # fmt: skip


def _run_xgboost(data: Data, task: Task, settings: Settings, built: Built) -> tuple[Clock, Scorer]:
    import xgboost as xgb

    class Callback(xgb.callback.TrainingCallback):
        def after_iteration(self, *_: object) -> bool:
            clock()
            return False

    kinds = ["c" if f in data.categorical else "q" for f in range(data.x.shape[1])]
    rows = xgb.QuantileDMatrix(
        data.x, data.y, group=data.sizes, max_bin=MAX_BIN, nthread=task.threads, feature_types=kinds,
        enable_categorical=True,
    )  # fmt: skip
    built()
    clock = Clock()
    booster = xgb.train(settings, rows, task.rounds, callbacks=[Callback()])
    return clock, lambda x: np.asarray(booster.inplace_predict(x), dtype=np.float64)


def _catboost(task: Task) -> Settings:
    return {
        "loss_function": "LambdaMart:metric=NDCG;sigma=1", "grow_policy": "Lossguide", "max_leaves": task.leaves,
        "depth": 16, "min_data_in_leaf": MIN_ROWS, "learning_rate": RATE, "iterations": task.rounds,
        "thread_count": task.threads, "metric_period": task.rounds, "allow_writing_files": False,
        "logging_level": "Silent",
    }  # fmt: skip


def _catboost_oblivious(task: Task) -> Settings:
    from rankmill.trainer.parameters import OLDEST

    return {
        "loss_function": "RMSE", "grow_policy": "SymmetricTree", "depth": DEPTH, "learning_rate": RATE,
        "bootstrap_type": "No", "random_strength": 0, "rsm": 1, "boosting_type": "Plain",
        "leaf_estimation_method": "Newton", "leaf_estimation_iterations": 1, "leaf_estimation_backtracking": "No",
        "l2_leaf_reg": OLDEST.lambda_l2, "boost_from_average": True, "score_function": "L2",
        "iterations": task.rounds, "thread_count": task.threads, "metric_period": task.rounds,
        "allow_writing_files": False, "logging_level": "Silent",
    }  # fmt: skip


def _run_catboost(data: Data, task: Task, settings: Settings, built: Built) -> tuple[Clock, Scorer]:
    import catboost as cb

    queries = np.repeat(np.arange(len(data.sizes)), data.sizes)
    pool = cb.Pool(data.x, data.y, group_id=queries, thread_count=task.threads)
    pool.quantize(border_count=MAX_BIN - 1)
    built()
    clock = Clock()
    model = cb.CatBoost(settings)
    model.fit(pool, callbacks=[clock])
    return clock, lambda x: np.asarray(model.predict(x), dtype=np.float64)


def _hessboost(task: Task) -> Settings:
    return {
        "objective": "rank:ndcg", "max_leaves": task.leaves, "grow_policy": "lossguide", "max_depth": 0, "eta": RATE,
        "max_bin": MAX_BIN, "nthread": task.threads,
    }  # fmt: skip


def _run_hessboost(data: Data, task: Task, settings: Settings, built: Built) -> tuple[Clock, Scorer]:
    import hessboost as hb

    class Callback(hb.TrainingCallback):
        def after_iteration(self, *_: object) -> bool:
            clock()
            return False

    rows = hb.DMatrix(data.x, data.y, group=data.sizes)
    built()  # training makes the bins: they are a part of the first round
    clock = Clock()
    booster = hb.train(settings, rows, task.rounds, callbacks=[Callback()])
    return clock, lambda x: np.asarray(booster.predict(hb.DMatrix(x), output_margin=True), dtype=np.float64)


def _ydf(task: Task) -> Settings:
    return {
        "loss": "LAMBDA_MART_NDCG", "growing_strategy": "BEST_FIRST_GLOBAL", "max_num_nodes": task.leaves,
        "max_depth": -1, "shrinkage": RATE, "min_examples": MIN_ROWS, "num_trees": task.rounds, "validation_ratio": 0.0,
        "early_stopping": "NONE", "discretize_numerical_columns": True, "num_discretized_numerical_bins": MAX_BIN,
        "num_threads": task.threads,
    }  # fmt: skip


def _run_ydf(data: Data, task: Task, settings: Settings, built: Built) -> tuple[Clock, Scorer]:
    import ydf

    ydf.verbose(0)
    bins = {key: settings[key] for key in ("discretize_numerical_columns", "num_discretized_numerical_bins")}
    learner = ydf.GradientBoostedTreesLearner("y", ydf.Task.RANKING, ranking_group="q", **settings)
    columns = {f"f{i}": data.x[:, i] for i in range(data.x.shape[1])}
    columns |= {"y": data.y.astype(np.float32), "q": np.repeat(np.arange(len(data.sizes)), data.sizes).astype("S")}
    kinds = [("q", ydf.Semantic.HASH), ("y", ydf.Semantic.NUMERICAL)]
    rows = ydf.create_vertical_dataset(columns, columns=kinds, include_all_columns=True, **bins)
    built()
    clock = Clock()
    model = learner.train(rows)
    clock(rounds=task.rounds)
    return clock, lambda x: np.asarray(model.predict({f"f{i}": x[:, i] for i in range(x.shape[1])}), dtype=np.float64)


# seeds and row order have no effect in the oblivious settings: nothing is sampled with bootstrap_type No
_BORDERS = "finds borders on 200,000 sampled rows; its quantisation takes all cores, whatever thread_count says"

RANKING = {
    "rankmill": System(_rankmill, _run_rankmill, "", "evaluates its training metric every round; the others do not"),
    "lightgbm": System(_lightgbm, _run_lightgbm, "lightgbm", "finds bins on 200,000 sampled rows"),
    "lightgbm-quantised": System(lambda task: _lightgbm(task, quantised=True), _run_lightgbm, "lightgbm"),
    "xgboost": System(_xgboost, _run_xgboost, "xgboost"),
    "catboost": System(
        _catboost, _run_catboost, "catboost",
        "samples by default (bootstrap_type MVS at 0.8, random_strength 1); "
        f"trees at most 16 deep, its limit; {_BORDERS}",
    ),
    "hessboost": System(_hessboost, _run_hessboost, "hessboost", "its first round includes the bins"),
    "ydf": System(_ydf, _run_ydf, "ydf", "has no callback: rounds are the mean of a training"),
}  # fmt: skip
OBLIVIOUS = {
    "rankmill-oblivious": System(_rankmill_oblivious, _run_rankmill, "", "evaluates NDCG every round", pointwise=True),
    "catboost-oblivious": System(_catboost_oblivious, _run_catboost, "catboost", _BORDERS, pointwise=True),
}
SYSTEMS = RANKING | OBLIVIOUS
