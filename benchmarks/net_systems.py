"""Nets and blends as systems of `benchmarks.quality`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks import stopped
from benchmarks.letor import Parts, Split
from rankmill import Ranker
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.trainer.candidates.blending import weights_of
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.nets.options import NetOptions, as_published
from rankmill.trainer.nets.training import NetData, NetRows, train_net

PUBLISHED = "published"  # setting of a net: start from the options as first published
RATES = "learning_rates"  # setting of a net: train with each, and keep the one that is best on the valid part
METRIC, POLICY = parse_metric("ndcg@10"), Policy()


def net(parts: Parts, settings: Mapping[str, Any], seed: int) -> tuple[list[np.ndarray], int]:
    """Return the scores of a net on the train, valid and test part, and the number of epochs that were kept."""
    given = dict(settings)
    options = as_published if given.pop(PUBLISHED, False) else NetOptions
    rates = [{"learning_rate": rate} for rate in given.pop(RATES, ())] or [{}]
    names = [f"f{i}" for i in range(parts.train.x.shape[1])]
    data = NetData(
        train=_rows(parts.train), valid=_rows(parts.valid), feature_names=names,
        max_grade=int(parts.train.grades.max()), categories={names[f]: [] for f in parts.categorical},
    )  # fmt: skip
    results = [train_net(data, options(**{**given, **rate, "seed": seed}), n_threads=1) for rate in rates]
    result = max(results, key=lambda result: result.history[result.best_epoch - 1].metrics["valid"][str(METRIC)])
    return [result.net.predict(split.x) for split in (parts.train, parts.valid, parts.test)], result.best_epoch


def trees(parts: Parts, settings: Mapping[str, Any], seed: int) -> tuple[list[np.ndarray], int]:
    """Return the scores of trees that did not learn from the valid part on all three parts, and the rounds kept."""
    fixed = {"preset": "auto-1", "n_threads": 1, "verbose": 0, "refit": "none"}
    ranker = Ranker(**{**fixed, **settings}, seed=seed * 100)
    ranker.fit(
        parts.train.x, parts.train.grades, group=parts.train.sizes,
        eval_set=[(parts.valid.x, parts.valid.grades)], eval_group=[parts.valid.sizes],
    )  # fmt: skip
    return [ranker.predict(split.x) for split in (parts.train, parts.valid, parts.test)], ranker.best_round_


def only_net(parts: Parts, settings: Mapping[str, Any], seed: int) -> stopped.Scored:
    scores, epochs = net(parts, settings, seed)
    return stopped.Scored(scores[2], epochs)


def blend(parts: Parts, settings: Mapping[str, Any], seed: int) -> stopped.Scored:
    """Blend trees and a net with the weights that are best on the valid part."""
    of_trees, rounds = trees(parts, {}, seed)
    of_net, _ = net(parts, settings, seed)
    found = weights_of([of_trees[1], of_net[1]], parts.valid.grades, parts.valid.starts, METRIC, POLICY)
    return stopped.Scored(found.weights[0] * of_trees[2] + found.weights[1] * of_net[2], rounds)


def _rows(split: Split) -> NetRows:
    return NetRows(split.x, RankedRows(split.grades, split.starts, ()))
