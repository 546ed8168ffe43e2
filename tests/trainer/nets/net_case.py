"""Small data and trainings of nets, for the tests of this folder."""

import numpy as np

from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.nets.training import NetData, NetRows, train_net
from tests.trainer.planted import planted

SMALL = {"layers": (40, 8), "batch_documents": 200, "epochs": 4, "early_stopping_epochs": 0, "transform": "log1p"}


def rows_of(part, **columns):
    x, grades, starts = part
    return NetRows(x, RankedRows(grades, starts, (), **columns))


def planted_data(seed=1, *, n_queries=60, valid=True, categories=0):
    """Planted queries; with ``categories`` the last feature is one of so many, and the better the higher its code."""
    parts = [planted(seed + k, n_queries=n_queries) for k in range(2)]
    names = [f"f{i}" for i in range(parts[0][0].shape[1])]
    if categories:
        rng = np.random.default_rng(seed)
        for k, (x, grades, starts) in enumerate(parts):
            code = rng.integers(0, categories, len(x))
            x[:, -1] = np.where(rng.random(len(x)) < 0.05, np.nan, code)
            parts[k] = (x, np.minimum(4, grades + code * 3 // categories).astype(np.int32), starts)
    train, watched = parts
    return NetData(
        train=rows_of(train),
        valid=rows_of(watched) if valid else None,
        feature_names=names,
        max_grade=4,
        categories={names[-1]: []} if categories else {},
    )


def trained(data=None, *, n_threads=1, on_epoch=None, resume=None, **options):
    return train_net(
        data or planted_data(),
        NetOptions(**{**SMALL, **options}),
        n_threads=n_threads,
        on_epoch=on_epoch,
        resume=resume,
    )
