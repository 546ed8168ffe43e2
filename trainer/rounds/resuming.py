"""Resume a training: convert the trees of its forest back to bins, so that later rounds are identical.

A round depends only on the scores of the trees before it, and on its own number.  Therefore a forest that was trained
on the same rows with the same parameters has all that the next round needs. Its thresholds are bin edges. Replaying its
trees in order gives exactly the same scores, and so the same metrics and state of early stopping.  A forest that was
cut at its best round resumes from there; later trees are grown again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import spelled
from rankmill.foundation.records import JSON
from rankmill.pipeline.bins.layout import BINS_A_FEATURE
from rankmill.scorer.exchange.conversion import CONVERTED_FROM
from rankmill.scorer.forest.forest import FIRST_ROUND, Forest
from rankmill.trainer.data.layout import EDGE
from rankmill.trainer.data.target_encoding import ENCODED, EncodedColumn
from rankmill.trainer.data.training_rows import LEARNT_FROM
from rankmill.trainer.growing.tree import Tree
from rankmill.trainer.objectives.protocol import Objective
from rankmill.trainer.parameters import TrainParameters, all_parameters
from rankmill.trainer.rounds.assembly import trees_a_round
from rankmill.trainer.rounds.tree_weights import weights_of_trees

MERGED = "merged"  # in a model: those that it sums, with their weights
MAY_DIFFER = ("n_rounds", "early_stopping_rounds", "keep_rounds")


def check_whole(forest: Forest) -> None:
    """Raise InvalidParameter if ``forest`` lacks its first rounds."""
    if FIRST_ROUND in forest.info:
        raise InvalidParameter(
            f"resume: the model is a part of another one, without its first {forest.info[FIRST_ROUND]} rounds; resume "
            "the whole"
        )


def check_resumable(
    forest: Forest,
    parameters: TrainParameters,
    feature_names: Sequence[str],
    info: Mapping[str, Any],
    objective: Objective | None = None,
) -> None:
    """Raise InvalidParameter, naming the first difference, unless training can resume from ``forest``.

    ``info`` has the facts that must equal those of the forest, such as digests of data and bins. The highest grade is
    excluded: no tree depends on it, and replayed rounds measure ERR again.  ``objective``, if already known, must be
    the forest's.
    """
    if CONVERTED_FROM in forest.info:
        raise InvalidParameter(
            f"resume: the model was trained by {forest.info[CONVERTED_FROM]}, and only models trained"
            f" by rankmill can be resumed; train on top of it with {spelled('base_model')}"
        )
    check_whole(forest)
    if MERGED in forest.info:
        raise InvalidParameter("resume: the model is a sum of several models and cannot be resumed; resume one of them")
    if "seeds" in forest.info:
        raise InvalidParameter(
            "resume: the model is an average of several seeds and cannot be resumed; resume the model of one seed"
        )
    if forest.feature_names != tuple(feature_names):
        missing = [name for name in forest.feature_names if name not in feature_names]
        detail = f"the data lack {missing[0]!r}" if missing else "the data have others, or in another order"
        raise InvalidParameter(f"resume: the model was trained on other features: {detail}")
    for name, value in info.items():
        if forest.info.get(name) != value and name != LEARNT_FROM:
            raise InvalidParameter(
                f"resume: the model was trained on other data: its {name} is {_short(forest.info.get(name))}, that of"
                f" the data {_short(value)}"
            )
    before, now = forest.info.get(LEARNT_FROM), info.get(LEARNT_FROM)
    if before != now:
        raise InvalidParameter(
            f"resume: the model was trained on {before}, but this training would use {now}; set learn_from to {before}"
        )
    expected: dict[str, JSON] = json.loads(json.dumps(parameters.as_dict()))
    began = all_parameters(forest.parameters)
    for name in ["preset", *sorted(expected.keys() | began.keys())]:  # the preset first, which explains the others
        if name not in {*MAY_DIFFER, "learn_from"} and began.get(name) != expected.get(name):
            raise InvalidParameter(
                f"resume: {name} was {began.get(name)!r} and is now {expected.get(name)!r}; a resumed"
                f" training must keep its parameters, only {', '.join(MAY_DIFFER)} may change"
            )
    if objective is not None:
        _check_fits_objective(objective, parameters, forest)
    if parameters.n_rounds < forest.n_rounds:
        raise InvalidParameter(
            f"resume: n_rounds counts all rounds and must be at least the {forest.n_rounds} of"
            f" the model, got {parameters.n_rounds}"
        )


def _check_fits_objective(objective: Objective, parameters: TrainParameters, forest: Forest) -> None:
    """Raise InvalidParameter unless training with the objective can give the start, weights and shape of the forest."""
    n, (_, of_start) = forest.n_rounds, objective.final_weights(forest.n_rounds)
    shape = (objective.link, objective.n_outputs, trees_a_round(objective, parameters))
    if (forest.link, forest.n_outputs, forest.trees_a_round) != shape:
        raise InvalidParameter("resume: the model was trained on other data, or its file was changed")
    if not np.array_equal(forest.tree_weights, weights_of_trees(objective, parameters, n)):
        raise InvalidParameter(
            f"resume: the trees of the model have other weights than after a training of {n} rounds: it was cut after "
            "training, or its file was changed; resume the whole model"
        )
    if forest.base_score != of_start * objective.starting_score:
        raise InvalidParameter(
            "resume: the model starts from another score than a training on these data: it was trained on other data, "
            "or its file was changed"
        )


def trees_of(
    forest: Forest, edges: Sequence[npt.NDArray[np.float32]], encoded: Sequence[EncodedColumn] = ()
) -> list[Tree]:
    """Return the trees of ``forest`` over bins: the reverse of :func:`rankmill.trainer.rounds.assembly.forest_of`.

    ``encoded`` are the columns that follow the features.

    Raises
    ------
    InvalidParameter
        A threshold is not one of the ``edges`` of its feature.
    """
    thresholds = forest.thresholds
    bins = np.zeros(len(thresholds), dtype=np.int32)
    for f in forest.used_features:
        if forest.feature_names[f] in forest.categories:
            continue
        of_feature = forest.node_feature == f
        bounds, expected = np.append(edges[f], EDGE(np.inf)), thresholds[of_feature]
        place = np.searchsorted(bounds, expected)
        if np.any(bounds[place] != expected):
            raise InvalidParameter(
                f"resume: the model splits {forest.feature_names[f]!r} at a value that is not a bin edge of the data"
            )
        bins[of_feature] = place + 1
    sets = bins_of_sets(forest, edges)
    feature, left, right = forest.node_feature.copy(), forest.node_left.copy(), forest.node_right.copy()
    _restore_encoded(forest, encoded, feature, bins, left, right, sets)
    arrays: dict[str, npt.NDArray[Any]] = {"feature": feature, "threshold": bins, "left": left, "right": right}
    arrays |= {"sets": sets} | {
        name: getattr(forest, f"node_{name}") for name in ("missing_left", "value", "gain", "rows")
    }
    # copies: arrays of a forest are read-only, which is another type to compiled kernels
    return [
        Tree(**{name: values[first:last].copy() for name, values in arrays.items()})
        for first, last in pairwise(forest.tree_starts.tolist())
    ]


def bins_of_sets(forest: Forest, edges: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.uint64]:
    """Return the set of bins of every node, (n_nodes, 4).

    It is the reverse of :func:`rankmill.trainer.rounds.assembly.sets_of`.

    Raises
    ------
    InvalidParameter
        A category has no bin of its own.
    """
    node_sets, (encoded, _) = forest.node_sets, _encoded_splits(forest)
    bits = np.zeros((len(forest.node_feature), BINS_A_FEATURE), dtype=np.uint8)
    for node in np.setdiff1d(np.flatnonzero(np.diff(node_sets.starts)), encoded).tolist():
        f, codes = forest.node_feature[node], node_sets.of_node(node)
        place = np.minimum(np.searchsorted(edges[f], codes), len(edges[f]) - 1)
        if not len(edges[f]) or np.any(edges[f][place] != codes):
            raise InvalidParameter(
                f"resume: the model splits {forest.feature_names[f]!r} by a category that is not among those of the "
                "data"
            )
        bits[node, place + 1] = 1
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint64)


def _encoded_splits(forest: Forest) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the nodes of ``forest`` that split an encoded column, and their bins."""
    found: Any = forest.info.get(ENCODED, {"nodes": [], "bins": []})
    nodes, bins = (np.array(found[key], dtype=np.int64) for key in ("nodes", "bins"))
    kept = nodes < len(forest.node_feature)  # of a truncated forest
    return nodes[kept], bins[kept]


def _restore_encoded(
    forest: Forest,
    encoded: Sequence[EncodedColumn],
    feature: npt.NDArray[np.int32],
    bins: npt.NDArray[np.int32],
    left: npt.NDArray[np.int32],
    right: npt.NDArray[np.int32],
    sets: npt.NDArray[np.uint64],
) -> None:
    """Write the splits of ``encoded`` columns as the trees over bins have them.

    InvalidParameter if they are other columns.
    """
    numbers = {column.source: number for number, column in enumerate(encoded)}
    node_sets = forest.node_sets
    for node, b in zip(*(each.tolist() for each in _encoded_splits(forest)), strict=True):
        number = numbers.get(int(feature[node]))
        column = None if number is None else encoded[number]
        known = column is not None and b <= len(column.edges)
        if column is None or not known or not np.array_equal(column.set_of(b), node_sets.of_node(node)):
            name = forest.feature_names[feature[node]]
            raise InvalidParameter(f"resume: the model encodes the categories of {name!r} in another way than the data")
        feature[node], bins[node] = forest.n_features + numbers[column.source], b
        if column.swapped(b):
            left[node], right[node] = right[node], left[node]
        sets[node] = 0


def _short(value: object) -> str:
    return value[:12] if isinstance(value, str) else repr(value)
