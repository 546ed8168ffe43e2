"""A ranker and arrays that are small enough to train on in every test."""

import numpy as np

from rankmill import Ranker


def planted_arrays():
    """(X, y, qid): 40 queries of ten documents whose grades follow two of four features."""
    rng = np.random.default_rng(8)
    X = rng.normal(size=(400, 4)).astype(np.float32)
    qid = np.repeat(np.arange(40), 10)
    y = np.clip(np.round(X[:, 0] + X[:, 1] ** 2), 0, 4)
    return X, y, qid


def small(**parameters):
    return Ranker(**{"preset": "defaults-1", "n_rounds": 8, "max_leaves": 5, "n_threads": 1, **parameters})
