"""Passes over documents that were shown at positions.  The objective checks the arguments.

``place`` numbers the positions that occur, 0 the first.
"""

from __future__ import annotations

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.elementary import log_positive, sigmoid


@kernel
def examined_clicks(scores, place, theta, targets, weights, first, last, gradients, hessians, examined):
    """Loss -w (y log(theta gamma) + (1 - y) log(1 - theta gamma)), gamma = 1 / (1 + e^-s), y in [0, 1].

    With r = y + (1 - y) gamma (1 - theta) / (1 - theta gamma), the probability of relevance given what happened:
    g = w (gamma - r), and as a surrogate h = w gamma (1 - gamma), which is that of the expected complete loss.
    examined = w (y + (1 - y) theta (1 - gamma) / (1 - theta gamma)).
    """
    weighted = weights.shape[0] > 0
    for row in range(first, last):
        w = weights[row] if weighted else 1.0
        y, t = targets[row], theta[place[row]]
        gamma, other = sigmoid(scores[row]), sigmoid(-scores[row])
        # 1 - theta gamma without cancellation
        skipped = other + gamma * (1.0 - t)
        relevant = y + (1.0 - y) * gamma * (1.0 - t) / skipped
        gradients[row] = w * (gamma - relevant)
        hessians[row] = w * gamma * other
        examined[row] = w * (y + (1.0 - y) * t * other / skipped)


@kernel
def examined_losses(scores, place, theta, targets, weights, out):
    """out[row] = the loss of :func:`examined_clicks`."""
    weighted = weights.shape[0] > 0
    for row in range(out.shape[0]):
        y, t = targets[row], theta[place[row]]
        gamma, other = sigmoid(scores[row]), sigmoid(-scores[row])
        loss = 0.0
        if y > 0.0:
            loss -= y * log_positive(t * gamma)
        if y < 1.0:
            loss -= (1.0 - y) * log_positive(other + gamma * (1.0 - t))
        out[row] = weights[row] * loss if weighted else loss
