"""RankNet with its gradient factored (Burges 2010, section 2.1), flat, to be timed beside the update pair by pair."""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.elementary import exp_negative
from rankmill.trainer.nets._kernels import add_backward, net_of_one

_FAR = 600.0  # exp(-600) is far from the smallest double


@kernel
def ranknet_forces(scores, grades, sigma, exponentials, out):
    """Return lambda_i of RankNet (Burges 2010, eqn 4).

    It is the sum of lambda_ij over documents j below i, minus that of lambda_ji over those above.

    One exponential a document, relative to the best score, unless scores are so far apart that it would be 0.
    """
    n = scores.shape[0]
    best, worst = scores[0], scores[0]
    for i in range(n):
        best, worst = max(best, scores[i]), min(worst, scores[i])
        out[i] = 0.0
    for i in range(n):
        exponentials[i] = exp_negative(sigma * (scores[i] - best))
    far_apart = sigma * (best - worst) > _FAR
    for i in range(n):
        e_i, total = exponentials[i], 0.0
        for j in range(n):
            if grades[i] > grades[j]:
                if far_apart:
                    gap = sigma * (scores[i] - scores[j])
                    e = exp_negative(-abs(gap))
                    force = sigma * (e if gap > 0.0 else 1.0) / (1.0 + e)
                else:
                    force = sigma * exponentials[j] / (e_i + exponentials[j])
                total += force
                out[j] += force
        out[i] -= total


@kernel(allocates=True)
def factored_gradient(x, grades, hidden, biases, top, sigma, to_hidden, to_biases, to_top):
    """Add the gradient of RankNet's loss of one query (Burges 2010, 2.1).

    It takes one pass forward and one backward per document.

    ``x`` (n, n_inputs), ``hidden`` (n_inputs, n_hidden), ``biases`` and ``top`` (n_hidden,); without hidden units
    ``top`` is (n_inputs,).  Any float type.
    """
    n = x.shape[0]
    h = np.empty((n, hidden.shape[1]), dtype=x.dtype)
    scores, forces, exponentials = np.empty(n), np.empty(n), np.empty(n)
    for i in range(n):
        scores[i] = net_of_one(x[i], hidden, biases, top, h[i])
    ranknet_forces(scores, grades, sigma, exponentials, forces)
    for i in range(n):
        add_backward(x[i], forces[i], hidden, top, h[i], to_hidden, to_biases, to_top, 1.0)
