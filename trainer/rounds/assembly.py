"""Convert trees over bins to a forest over feature values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.scorer.forest.forest import Forest, NodeSets, compact_splits, used_names
from rankmill.trainer.data.layout import EDGE
from rankmill.trainer.data.target_encoding import ENCODED, EncodedColumn
from rankmill.trainer.growing.tree import Tree
from rankmill.trainer.objectives.protocol import Objective
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rounds.tree_weights import weights_of_trees


def trees_a_round(objective: Objective, parameters: TrainParameters) -> int:
    """Return how many trees a round grows: one for each output, step after step, member after member."""
    return objective.n_outputs * objective.steps_a_round * parameters.members


def forest_of(
    trees: Sequence[Tree],
    edges: Sequence[npt.NDArray[np.float32]],
    feature_names: Sequence[str],
    categories: Mapping[str, Sequence[str]],
    objective: Objective,
    n_rounds: int,
    parameters: TrainParameters,
    info: Mapping[str, Any],
    encoded: Sequence[EncodedColumn] = (),
) -> Forest:
    """Return the forest of ``trees``: threshold b of feature f becomes ``edges[f][b - 1]``.

    A threshold at the last bin separates present values from missing ones: its cut is +inf.  ``categories`` has the
    names of the categories of every categorical feature.  Splits of the columns ``encoded``, which follow the features,
    become splits of the features that they come from by sets of categories.
    """
    of_nodes = {each.name: np.concatenate([getattr(tree, each.name) for tree in trees]) for each in fields(Tree)}
    feature, bins, left, right = (of_nodes[name] for name in ("feature", "threshold", "left", "right"))
    thresholds = np.zeros(len(feature), dtype=EDGE)
    for f in np.unique(feature[bins > 0]).tolist():
        of_feature = feature == f
        thresholds[of_feature] = np.append(edges[f], EDGE(np.inf))[bins[of_feature] - 1]
    sets = sets_of(of_nodes["sets"], feature, edges)
    at = np.flatnonzero(feature >= len(feature_names))
    if len(at):
        chosen = [
            (encoded[f - len(feature_names)], b) for f, b in zip(feature[at].tolist(), bins[at].tolist(), strict=True)
        ]
        sets = sets.with_sets(at, [column.set_of(b) for column, b in chosen])
        swapped = at[[column.swapped(b) for column, b in chosen]]
        left[swapped], right[swapped] = right[swapped], left[swapped]
        of_nodes["missing_left"][at] = 0
        feature[at] = [column.source for column, _ in chosen]
        info = {**info, ENCODED: {"nodes": at.tolist(), "bins": bins[at].tolist()}}
    splits = compact_splits(feature, thresholds, len(feature_names), sets)
    sizes = [len(tree.feature) for tree in trees]
    _, of_start = objective.final_weights(n_rounds)
    return Forest(
        feature_names=tuple(feature_names),
        **splits,
        categories=used_names(categories, feature_names, splits),
        tree_starts=np.concatenate(([0], np.cumsum(sizes))).astype(np.int32),
        node_feature=feature,
        node_missing_left=of_nodes["missing_left"],
        node_left=left,
        node_right=right,
        node_value=of_nodes["value"],
        node_gain=of_nodes["gain"],
        node_rows=of_nodes["rows"],
        tree_weights=weights_of_trees(objective, parameters, n_rounds),
        base_score=of_start * objective.starting_score,
        objective=objective.name,
        link=objective.link,
        n_outputs=objective.n_outputs,
        trees_a_round=trees_a_round(objective, parameters),
        parameters=parameters.stored(),
        info=dict(info),
    )


def sets_of(
    sets: npt.NDArray[np.uint64], feature: npt.NDArray[np.int32], edges: Sequence[npt.NDArray[np.float32]]
) -> NodeSets:
    """Return the categories in the sets of bins (n_nodes, 4) of each node; ``feature`` (n_nodes,) is what it splits."""
    by_set = np.flatnonzero(sets.any(axis=1))
    bits = np.unpackbits(sets[by_set].view(np.uint8), axis=1, bitorder="little")
    codes = [edges[feature[node]][np.flatnonzero(row) - 1] for node, row in zip(by_set.tolist(), bits, strict=True)]
    sizes = np.zeros(len(sets), dtype=np.int64)
    sizes[by_set] = [len(each) for each in codes]
    return NodeSets(np.concatenate(([0], np.cumsum(sizes))), np.concatenate([np.empty(0, dtype=EDGE), *codes]))
