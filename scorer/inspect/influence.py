"""How much each feature has to do with the scores of a forest."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rankmill.scorer.forest import COVER, Forest


def relative_influence(forest: Forest) -> npt.NDArray[np.float64]:
    """Return the share of each feature (n_features,) in the gains of all splits; all 0 without a split.

    This is Friedman's relative influence (2001, section 8.1; gbm's guide 2.4).  A forest that came without gains is told by
    its splits, each counted by the training rows that it parted, and where these are not known either as one.
    """
    inner = forest.node_feature >= 0
    features = forest.node_feature[inner]
    rows = forest.node_rows[inner].astype(np.float64) * (COVER not in forest.info)  # cover has a unit of each tree
    for weights in (forest.node_gain[inner], rows, np.ones(len(features))):
        greatest = weights.max(initial=0.0)
        if greatest > 0.0:  # a gain below 0, which no training leaves, wins nothing; and no sum overflows
            shares = np.ldexp(np.maximum(weights, 0.0), -int(np.frexp(greatest)[1]))
            found = np.bincount(features, weights=shares, minlength=forest.n_features).astype(np.float64)
            influence: npt.NDArray[np.float64] = found / found.sum()
            return influence
    return np.zeros(forest.n_features)
