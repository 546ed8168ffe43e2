"""The average of several forests as one forest: all their trees, each with its share of the weight.

With k forests ``score(x) = mean of the k scores``: base scores and tree weights are divided by k, and the trees of one forest
stand after those of another.  Each tree's term is rounded once more and terms are added in one chain instead of k, so the
score and the mean differ by at most ``(T + k + 3) * 2^-52 * (sum of |terms|) / k``, T trees in all; some 1e-13 in practice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum, gcd
from typing import Any

import numpy as np

from rankmill.foundation.errors import InvalidParameter
from rankmill.scorer.forest import JSON, Forest, compact_cuts

OF_ONE = ("best_round", "rounds_trained", "train", "valid")  # what a forest knows of its own training


def average(forests: Sequence[Forest], info: Mapping[str, JSON] | None = None) -> Forest:
    """Return the forest whose scores are the means of those of ``forests``.

    Parameters
    ----------
    forests
        Of one output each, over the same features; parameters and objective are those of the first.
    info
        Facts to keep besides those that all have in common.

    Raises
    ------
    InvalidParameter
        There is none, one has a link (a mean of what it makes probabilities of means nothing), or features differ.
    """
    if not forests:
        raise InvalidParameter("an average needs a forest at least")
    first, k = forests[0], len(forests)
    for forest in forests:
        if forest.link != "identity" or forest.n_outputs != 1:
            raise InvalidParameter(f"only sums of trees can be averaged; a forest has the link {forest.link}")
        if forest.feature_names != first.feature_names:
            raise InvalidParameter("forests of different features cannot be averaged")
    feature = np.concatenate([forest.node_feature for forest in forests])
    thresholds = np.concatenate([forest.thresholds for forest in forests])
    cuts, cut_starts, node_cut = compact_cuts(feature, thresholds, first.n_features)
    sizes = np.concatenate([np.diff(forest.tree_starts) for forest in forests])
    nodes: dict[str, Any] = {
        name: np.concatenate([getattr(forest, name) for forest in forests])
        for name in ("node_missing_left", "node_left", "node_right", "node_value", "node_gain", "node_rows")
    }
    alike = {
        name: value
        for name, value in first.info.items()
        if name not in OF_ONE and all(forest.info.get(name) == value for forest in forests)
    }
    return replace(
        first,
        cuts=cuts,
        cut_starts=cut_starts,
        tree_starts=np.concatenate(([0], np.cumsum(sizes))).astype(np.int32),
        node_feature=feature,
        node_cut=node_cut,
        tree_weights=np.concatenate([forest.tree_weights for forest in forests]) / k,
        base_score=fsum(forest.base_score for forest in forests) / k,
        trees_a_round=gcd(*(forest.trees_a_round for forest in forests)),
        info={**alike, **(info or {})},
        **nodes,
    )
