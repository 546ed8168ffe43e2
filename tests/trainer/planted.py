"""Small data with a planted signal, and trainings on them, for the tests of this folder."""

from functools import cache

import numpy as np

from rankmill.pipeline.bins.spec import BinSpec, apply_bins, feature_bins
from rankmill.trainer.data.layout import BlockedBins
from rankmill.trainer.data.rows import RankedRows, TrainingData
from rankmill.trainer.rounds.boosting import boost
from rankmill.trainer.training_options import StartingModel, TrainingOptions
from tests.trainer.fixed import fixed


def planted(seed, n_queries=60, n_features=7):
    """Queries whose grades follow x0 + x1 x2 of each document; a tenth of the values are missing."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(5, 30, size=n_queries)
    n = int(sizes.sum())
    x = rng.normal(size=(n, n_features)).astype(np.float32)
    relevance = x[:, 0] + x[:, 1] * x[:, 2] + 0.3 * rng.normal(size=n)
    grades = np.digitize(relevance, [0.5, 1.2, 2.0, 3.0]).astype(np.int32)
    x[rng.random(x.shape) < 0.1] = np.nan
    starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    return x, grades, starts


@cache
def small_data():
    """(x, grades, starts) to learn from and to watch, and the bins of the first."""
    train, valid = planted(1), planted(2)
    names = [f"f{i}" for i in range(train[0].shape[1])]
    return train, valid, BinSpec(tuple(feature_bins(name, train[0][:, i].copy()) for i, name in enumerate(names)))


def rows_of(part, binspec, batch=10**6, weights=None, width=None):
    """In batches of so many rows, or in the trainer's own layout with so many lanes a block."""
    bins = apply_bins(part[0], binspec)
    if width is not None:
        return RankedRows(part[1], part[2], BlockedBins.from_batches([bins], len(bins), binspec.n_bins, width), weights)
    return RankedRows(part[1], part[2], [bins[i : i + batch] for i in range(0, len(bins), batch)], weights)


def data_of(train, eval_sets=(), binspec=None, max_grade=4, info=None):
    """Rows to learn from and (name, rows) to watch, by default with the bins of the small data."""
    binspec = binspec or small_data()[2]
    return TrainingData(
        train=train, eval_sets=list(eval_sets or ()), edges=[feature.edges for feature in binspec.features],
        feature_names=binspec.feature_names, max_grade=max_grade, info=info or {},
    )  # fmt: skip


def boost_rows(train, eval_sets, parameters, *, binspec=None, max_grade=4, info=None, run=boost, **options):
    """Train by ``run`` on rows; ``options`` are those of `TrainingOptions` (``resume`` a forest) and the keywords of
    ``run``."""
    own = {name: options.pop(name) for name in ("checkpoint", "checkpoints", "rounds") if name in options}
    if options.get("resume") is not None:
        options["resume"] = StartingModel(options["resume"])
    data = data_of(train, eval_sets, binspec, max_grade, info)
    return run(data, parameters, TrainingOptions(**{"n_threads": 1, **options}), **own)


def fit(data, *, batch=10**6, width=None, watch=True, weights=None, eval_sets=None, options=None, **parameters):
    """Train on ``data``; ``options`` are those of ``boost_rows``, the others are parameters of the training."""
    train, valid, binspec = data
    if eval_sets is None:
        eval_sets = [("valid", valid)] if watch else []
    return boost_rows(
        rows_of(train, binspec, batch, weights, width),
        [(name, rows_of(part, binspec, batch)) for name, part in eval_sets],
        fixed(**{"n_rounds": 30, "max_leaves": 8, **parameters}),
        **{"binspec": binspec, **(options or {})},
    )
