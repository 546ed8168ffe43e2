"""The peers, stopped early by NDCG@10 of the valid part: each trains on one fold and scores its test part.

With a patience of 0 the valid part is not used, and all rounds are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.letor import Parts, Split


@dataclass(frozen=True)
class Scored:
    scores: npt.NDArray[np.float64]  # of the test rows
    rounds: int  # that were kept


Peer = Callable[[Parts, Mapping[str, object], int, int], Scored]  # (parts, parameters, most rounds, patience)


def lightgbm(parts: Parts, parameters: Mapping[str, object], rounds: int, patience: int) -> Scored:
    import lightgbm as lgb

    rows = lgb.Dataset(
        parts.train.x, parts.train.grades, group=parts.train.sizes, categorical_feature=[*parts.categorical]
    )
    valid = lgb.Dataset(parts.valid.x, parts.valid.grades, group=parts.valid.sizes, reference=rows)
    booster = lgb.train(
        {"verbosity": -1, **parameters}, rows, rounds, [valid] if patience else None,
        callbacks=[lgb.early_stopping(patience, verbose=False)] if patience else None,
    )  # fmt: skip
    n_rounds = booster.best_iteration if patience else rounds
    return Scored(np.asarray(booster.predict(parts.test.x), dtype=np.float64), n_rounds)


def xgboost(parts: Parts, parameters: Mapping[str, object], rounds: int, patience: int) -> Scored:
    import xgboost as xgb

    def matrix(split: Split) -> xgb.DMatrix:
        kinds = ["c" if f in parts.categorical else "q" for f in range(split.x.shape[1])]
        found = xgb.DMatrix(split.x, split.grades, feature_types=kinds, enable_categorical=True)
        found.set_group(split.sizes)
        return found

    booster = xgb.train(
        {"verbosity": 0, **parameters}, matrix(parts.train), rounds, verbose_eval=False,
        **({"evals": [(matrix(parts.valid), "valid")], "early_stopping_rounds": patience} if patience else {}),
    )  # fmt: skip
    n_rounds = booster.best_iteration + 1 if patience else rounds
    scores = booster.predict(matrix(parts.test), iteration_range=(0, n_rounds))
    return Scored(np.asarray(scores, dtype=np.float64), n_rounds)


def hessboost(parts: Parts, parameters: Mapping[str, object], rounds: int, patience: int) -> Scored:
    import hessboost as hb

    def matrix(split: Split) -> hb.DMatrix:
        return hb.DMatrix(split.x, split.grades, group=split.sizes)

    booster = hb.train(
        {**parameters}, matrix(parts.train), rounds, verbose_eval=False,
        **({"evals": [(matrix(parts.valid), "valid")], "early_stopping_rounds": patience} if patience else {}),
    )  # fmt: skip
    n_rounds = booster.best_iteration + 1 if patience else rounds
    return Scored(np.asarray(booster.predict(matrix(parts.test), output_margin=True), dtype=np.float64), n_rounds)


def catboost(parts: Parts, parameters: Mapping[str, object], rounds: int, patience: int) -> Scored:
    """``seed`` in ``parameters`` is CatBoost's ``random_seed``."""
    import catboost as cb

    def pool(split: Split) -> cb.Pool:
        x: Any = split.x
        if parts.categorical:  # categories are text or whole numbers
            x = np.array(split.x, dtype=object)
            x[:, parts.categorical] = split.x[:, parts.categorical].astype(np.int64)
        queries = np.repeat(np.arange(len(split.sizes)), split.sizes)
        return cb.Pool(x, split.grades, group_id=queries, cat_features=[*parts.categorical])

    given = {"random_seed" if name == "seed" else name: value for name, value in parameters.items()}
    stop = {"od_type": "Iter", "od_wait": patience} if patience else {}
    model = cb.CatBoost(
        {**given, "iterations": rounds, **stop, "allow_writing_files": False, "logging_level": "Silent"}
    )
    model.fit(pool(parts.train), **({"eval_set": pool(parts.valid), "use_best_model": True} if patience else {}))
    return Scored(np.asarray(model.predict(pool(parts.test)), dtype=np.float64), model.tree_count_)


def refitted(peer: Peer) -> Peer:
    """Return ``peer`` trained again on the train and the valid part together, for the rounds that were found."""

    def train(parts: Parts, parameters: Mapping[str, object], rounds: int, patience: int) -> Scored:
        found = max(1, peer(parts, parameters, rounds, patience).rounds)
        return peer(replace(parts, train=parts.train.followed_by(parts.valid)), parameters, found, 0)

    return train
