"""RankNet before its forces were factored: the weights change after each pair (Burges 2010, eqn 2).

The time of a query grows with its pairs, not its documents.  It is kept to measure what factoring gains.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rankmill.foundation.kernels.dense import from_panels, in_panels
from rankmill.trainer.nets import _kernels
from rankmill.trainer.nets.batches import Epoch
from rankmill.trainer.nets.passes import Weights


def update_by_pairs(
    epoch: Epoch,
    numbers: npt.NDArray[np.float32],
    weights: Weights,
    rate: float,
    sigma: float,
    scores: npt.NDArray[np.float64],
) -> None:
    """Change ``weights`` pair by pair over all queries; ``scores`` (n_rows,) are those before each query."""
    starts, grades = epoch.rows.starts, epoch.rows.grades
    n_inputs, parts = weights.widths[0], weights.parts
    hidden, biases = np.zeros((n_inputs, 0)), np.zeros(0)
    if weights.n_layers:
        n_hidden = weights.widths[1]
        hidden = from_panels(parts["weights 1"], n_hidden).astype(np.float64)
        biases = parts["shifts 1"][:n_hidden].astype(np.float64)
    top, none = parts["top"].astype(np.float64), np.zeros(0)
    unused = np.zeros((0, 0))
    for q in range(epoch.rows.n_queries):
        first, last = int(starts[q]), int(starts[q + 1])
        x = numbers[epoch.places[first:last]].astype(np.float64)
        _kernels.scores_of_net(x, hidden, biases, top, scores[first:last])
        _kernels.pair_by_pair(x, grades[first:last], hidden, biases, top, sigma, unused, none, none, rate)
    if weights.n_layers:
        parts["weights 1"][:] = in_panels(hidden.astype(np.float32))
        parts["shifts 1"][: len(biases)] = biases
    parts["top"][:] = top
