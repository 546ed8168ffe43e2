"""Given preference pairs in the form that losses use."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rankmill.foundation.errors import TrainingDataRejected
from rankmill.pipeline.pairs.stored_pairs import PreferencePairs
from rankmill.trainer.objectives.pairwise._kernels import NO_ROWS, NONE, GivenPairs
from rankmill.trainer.objectives.protocol import Floats
from rankmill.trainer.objectives.weights import relative_weights


def merged_pairs(given: PreferencePairs | None, starts: npt.NDArray[np.int64]) -> GivenPairs:
    """Merge pairs of the same two documents into one, with the sum of their weights and the mean of their targets.

    The logistic and the exponential loss are linear in the target, so the sum of losses stays the same.  Weights are
    relative to their mean; ``starts`` (n_queries + 1,) holds the rows of each query.

    Raises
    ------
    TrainingDataRejected
        Arrays do not fit together, a row is not one of the query or is paired with itself, a weight is negative or none
        is above 0, a probability is outside [0, 1].
    """
    if given is None:
        return GivenPairs(np.empty(0, dtype=np.int64), NO_ROWS, NO_ROWS, NONE, NONE)
    better, worse = np.asarray(given.better, np.int64), np.asarray(given.worse, np.int64)
    n, probability = len(better), np.asarray(given.probability, np.float64)
    if not len(worse) == len(given.weight) == len(probability) == n or len(given.starts) != len(starts):
        raise TrainingDataRejected(
            f"pairs: expected {n} rows, weights and probabilities and {len(starts)} starts, found {len(worse)}, "
            f"{len(given.weight)}, {len(probability)} and {len(given.starts)}"
        )
    query = np.repeat(np.arange(len(starts) - 1), np.diff(given.starts))
    if len(query) != n:
        raise TrainingDataRejected(f"pairs: their starts count {len(query)} pairs, there are {n}")
    lowest, highest = starts[query], starts[query + 1]
    _check("rows of the query", (np.minimum(better, worse) >= lowest) & (np.maximum(better, worse) < highest), given)
    _check("two different rows", better != worse, given)
    _check("a probability in [0, 1]", (probability >= 0.0) & (probability <= 1.0), given)
    weight = relative_weights(given.weight, n) if n else np.empty(0)
    above, below = np.minimum(better, worse), np.maximum(better, worse)
    target = np.where(better < worse, probability, 1.0 - probability)
    # a stable sort, and sums in its order: the same bits on every machine
    order = np.lexsort((below, above))
    new = np.ones(n, dtype=np.bool_)
    new[1:] = (np.diff(above[order]) != 0) | (np.diff(below[order]) != 0)
    number, kept = np.cumsum(new) - 1, order[new]
    total: Floats = np.bincount(number, weights=weight[order], minlength=len(kept)).astype(np.float64)
    target_sum = np.bincount(number, weights=(weight * target)[order], minlength=len(kept))
    mean = np.clip(target_sum / np.where(total > 0.0, total, 1.0), 0.0, 1.0)
    counts = np.bincount(query[kept], minlength=len(starts) - 1)
    return GivenPairs(
        np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        above[kept].astype(np.int32),
        below[kept].astype(np.int32),
        total,
        mean,
    )


def _check(expected: str, right: npt.NDArray[np.bool_], given: PreferencePairs) -> None:
    if not right.all():
        p = int(np.argmin(right))
        found = f"rows {given.better[p]} and {given.worse[p]}, probability {given.probability[p]}"
        raise TrainingDataRejected(f"pair {p}: expected {expected}, found {found}")
