"""Forests and documents to look into."""

import numpy as np

from rankmill.scorer.nets.inputs import NetInputs
from rankmill.scorer.nets.net import Net
from tests.scorer.forests import random_forest


def random_values(seed, forest, n=40):
    """Values on, between and beyond the thresholds, some missing."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, forest.n_features)).astype(np.float32)
    for f in range(forest.n_features):
        cuts = forest.cuts[forest.cut_starts[f] : forest.cut_starts[f + 1]]
        if len(cuts):
            on = rng.random(n) < 0.4
            x[on, f] = rng.choice(cuts, size=int(on.sum()))
        if f in forest.categorical_features and len(cuts):
            x[:, f] = rng.choice([*cuts, 0.25, -7.0, np.inf], size=n)
    x[rng.random(x.shape) < 0.15] = np.nan
    return x


def several_outputs(seed, link="softmax_grade", n_outputs=3):
    return random_forest(seed, n_trees=2 * n_outputs, link=link, n_outputs=n_outputs)


def linear(weights, names=("a", "b")):
    """A net that scores two features by ``weights``."""
    inputs = NetInputs(
        transform="linear", numeric=np.array([0, 1]), centres=np.zeros(2), scales=np.ones(2), knot_starts=np.zeros(3),
        knots=np.zeros(0), heights=np.zeros(0), indicators=np.zeros(0), categorical=np.zeros(0),
        code_starts=np.zeros(1), codes=np.zeros(0), embeddings=np.zeros((0, 0)),
    )  # fmt: skip
    return Net(feature_names=names, inputs=inputs, layers=(), top=np.array(weights), start=0.0,
               activation="identity", objective="ranknet")  # fmt: skip
