"""Passes through a net over a batch, and steps of its weights.  The callers check the arguments.

Sums over rows are sums over blocks of ``BLOCK`` rows, added up in their order, whichever thread computes them: the bits
are the same for any number of threads.  Columns past the last of a layer are zeros everywhere.

``z`` holds the sums of a layer, ``h`` its outputs ``activation(z * factor + shift)``, ``d`` the derivative of the loss
by them.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.elementary import exp_negative, log2_positive, normal
from rankmill.foundation.kernels.randoms import random_bits
from rankmill.scorer.nets._kernels import LOG1P, tanh, transformed

BLOCK = 256
_PARTS = 4  # draws of 16 bits in one random number
_MASK, _SIXTEEN = np.uint64(0xFFFF), np.uint64(16)
_OF_NOISE = np.float32(np.sqrt(3.0) / 65536.0)  # the sum of four uniform numbers of 16 bits has the variance 4 / 12


@kernel
def add_noise(noise, key, first, last, n_columns, x):
    """Add noise of this standard deviation to the first columns of the rows first <= r < last.

    The noise is the sum of four uniform numbers, nearly normal.
    """
    for r in range(first, last):
        for k in range(n_columns):
            bits = random_bits(key, np.uint64(r) * np.uint64(n_columns) + np.uint64(k))
            total = np.float32(0.0)
            for _ in range(_PARTS):
                total += np.float32(np.int64(bits & _MASK))
                bits = bits >> _SIXTEEN
            x[r, k] += noise * ((total - np.float32(131070.0)) * _OF_NOISE)


@kernel
def sums_of_columns(z, first, last, sums, squares):
    """Add up each block's columns and their squares: ``sums`` and ``squares`` are (n_blocks, n_columns) float64."""
    for begin in range(first, last, BLOCK):
        block = begin // BLOCK
        for c in range(z.shape[1]):
            sums[block, c] = 0.0
            squares[block, c] = 0.0
        for r in range(begin, min(begin + BLOCK, last)):
            for c in range(z.shape[1]):
                value = np.float64(z[r, c])
                sums[block, c] += value
                squares[block, c] += value * value


@kernel
def rectified(z, first, last, n_columns, factor, shift, key, dropped, scale, h):
    """Write h = max(z * factor + shift, 0).

    A share of ``dropped`` / 65536 is set to 0; the others are multiplied by ``scale``, which keeps the mean.
    """
    width = z.shape[1]
    limit = np.uint64(dropped)
    for r in range(first, last):
        for c in range(width):
            h[r, c] = max(z[r, c] * factor[c] + shift[c], np.float32(0.0)) * scale
        if dropped > 0:
            base = np.uint64(r) * np.uint64(width // _PARTS)
            for q in range(width // _PARTS):
                bits = random_bits(key, base + np.uint64(q))
                for part in range(_PARTS):
                    output = h[r, q * _PARTS + part]
                    h[r, q * _PARTS + part] = np.float32(0.0) if (bits & _MASK) < limit else output
                    bits = bits >> _SIXTEEN
        for c in range(n_columns, width):
            h[r, c] = 0.0


@kernel
def through_activation(d, h, z, mean, inverse, first, last, scale, sums, products):
    """Turn d from the derivative by outputs into that by ``z * factor + shift``, and sum its columns by block.

    ``scale`` is that of :func:`rectified`; None: d is the derivative already, of another activation.

    ``sums`` (n_blocks, n_columns) float32 gets the sums of d, ``products`` those of d times the normalised z.
    """
    width = d.shape[1]
    for begin in range(first, last, BLOCK):
        block = begin // BLOCK
        for c in range(width):
            sums[block, c] = 0.0
            products[block, c] = 0.0
        for r in range(begin, min(begin + BLOCK, last)):
            if scale is not None:
                for c in range(width):
                    d[r, c] = d[r, c] * scale if h[r, c] > np.float32(0.0) else np.float32(0.0)
            for c in range(width):
                sums[block, c] += d[r, c]
                products[block, c] += d[r, c] * ((z[r, c] - mean[c]) * inverse[c])


@kernel
def through_normalisation(d, z, mean, inverse, factor, sums, products, n_rows, first, last):
    """Turn d into the derivative by z: factor (d - mean of d - normalised z times the mean of their product)."""
    width = d.shape[1]
    share = np.float32(1.0 / n_rows)
    for r in range(first, last):
        for c in range(width):
            normalised = (z[r, c] - mean[c]) * inverse[c]
            d[r, c] = factor[c] * (d[r, c] - share * (sums[c] + normalised * products[c]))


@kernel
def slopes_of_weights(h, slopes, first, last, parts):
    """Sum ``slopes[r, 0] h[r]`` by block: the derivative by the weights of the score."""
    for begin in range(first, last, BLOCK):
        block = begin // BLOCK
        for c in range(parts.shape[1]):
            parts[block, c] = 0.0
        for r in range(begin, min(begin + BLOCK, last)):
            slope = slopes[r, 0]
            for c in range(parts.shape[1]):
                parts[block, c] += slope * h[r, c]


@kernel
def add_to_tables(categories, n_rows, first_feature, last_feature, slopes, offset, out):
    """Add the derivative by embeddings of these features to their rows of the tables, in the order of the rows."""
    width = out.shape[1]
    for j in range(first_feature, last_feature):
        for r in range(n_rows):
            row, place = categories[r, j], offset + j * width
            for k in range(width):
                out[row, k] += slopes[r, place + k]


@kernel
def adamw(weights, gradient, first_moment, second_moment, rate, decay, beta_1, beta_2, share_1, share_2, epsilon):
    """Make a step of AdamW (Loshchilov & Hutter 2019) of flat arrays; ``share_i`` is 1 - beta_i ** step."""
    one, keep = np.float32(1.0), np.float32(1.0 - rate * decay)
    b1, b2, rate = np.float32(beta_1), np.float32(beta_2), np.float32(rate / share_1)
    root, epsilon = np.float32(1.0 / np.sqrt(share_2)), np.float32(epsilon)
    for i in range(weights.shape[0]):
        g = gradient[i]
        m = b1 * first_moment[i] + (one - b1) * g
        v = b2 * second_moment[i] + (one - b2) * (g * g)
        first_moment[i], second_moment[i] = m, v
        weights[i] = weights[i] * keep - rate * m / (np.sqrt(v) * root + epsilon)


@kernel
def sgd(weights, gradient, rate, decay):
    """Make a step of gradient descent of flat arrays."""
    keep, rate = np.float32(1.0 - rate * decay), np.float32(rate)
    for i in range(weights.shape[0]):
        weights[i] = weights[i] * keep - rate * gradient[i]


@kernel
def net_of_one(x, hidden, biases, top, h):
    """Write the outputs of the hidden units (tanh) of one document; return its score.

    No hidden units: a linear score.
    """
    score = 0.0 * top[0]
    if hidden.shape[1] == 0:
        for k in range(x.shape[0]):
            score += x[k] * top[k]
        return score
    for c in range(hidden.shape[1]):
        z = biases[c]
        for k in range(x.shape[0]):
            z += x[k] * hidden[k, c]
        h[c] = tanh(z)
        score += h[c] * top[c]
    return score


@kernel
def add_backward(x, slope, hidden, top, h, to_hidden, to_biases, to_top, factor):
    """Add ``factor`` times the derivative of slope * score by each weight."""
    if hidden.shape[1] == 0:
        for k in range(x.shape[0]):
            to_top[k] += factor * slope * x[k]
        return
    for c in range(hidden.shape[1]):
        back = slope * top[c] * (1.0 - h[c] * h[c])
        for k in range(x.shape[0]):
            to_hidden[k, c] += factor * back * x[k]
        to_biases[c] += factor * back
        to_top[c] += factor * slope * h[c]


@kernel(allocates=True)
def pair_by_pair(x, grades, hidden, biases, top, sigma, to_hidden, to_biases, to_top, rate):
    """RankNet as it was first: for each pair, two passes forward and two backward.

    With a ``rate`` above 0 every pair changes the weights at once (Burges 2010, eqn 2); with 0 the gradient of the
    query is added to ``to_hidden``, ``to_biases`` and ``to_top``.  ``x`` (n, n_inputs), ``hidden`` (n_inputs,
    n_hidden), ``biases`` and ``top`` (n_hidden,); without hidden units ``top`` is (n_inputs,).  Returns the loss.
    """
    n = x.shape[0]
    above, below = np.empty(hidden.shape[1], dtype=x.dtype), np.empty(hidden.shape[1], dtype=x.dtype)
    d_hidden, d_biases, d_top = np.zeros_like(hidden), np.zeros_like(biases), np.zeros_like(top)
    loss = 0.0
    for i in range(n):
        for j in range(n):
            if grades[i] > grades[j]:
                s_i = net_of_one(x[i], hidden, biases, top, above)
                s_j = net_of_one(x[j], hidden, biases, top, below)
                gap = sigma * (s_i - s_j)
                e = exp_negative(-abs(gap))
                force = -sigma * (e if gap > 0.0 else 1.0) / (1.0 + e)
                loss += max(-gap, 0.0) + log2_positive(1.0 + e) * 0.6931471805599453
                if rate == 0.0:
                    add_backward(x[i], force, hidden, top, above, to_hidden, to_biases, to_top, 1.0)
                    add_backward(x[j], -force, hidden, top, below, to_hidden, to_biases, to_top, 1.0)
                else:
                    d_hidden[:] = 0.0
                    d_biases[:] = 0.0
                    d_top[:] = 0.0
                    add_backward(x[i], force, hidden, top, above, d_hidden, d_biases, d_top, 1.0)
                    add_backward(x[j], -force, hidden, top, below, d_hidden, d_biases, d_top, 1.0)
                    hidden -= rate * d_hidden
                    biases -= rate * d_biases
                    top -= rate * d_top
    return loss


@kernel
def normal_of(shares, out):
    """out[i] = the normal quantile of shares[i], in (0, 1)."""
    for i in range(shares.shape[0]):
        out[i] = normal(shares[i])


@kernel
def logarithms(values, out):
    """Set out[i] to the transform ``LOG1P`` of values[i], not NaN."""
    for i in range(values.shape[0]):
        out[i] = transformed(values[i], LOG1P)


@kernel(allocates=True)
def scores_of_net(x, hidden, biases, top, scores):
    """scores[i] = the score of document i: see :func:`net_of_one`."""
    h = np.empty(hidden.shape[1], dtype=x.dtype)
    for i in range(x.shape[0]):
        scores[i] = net_of_one(x[i], hidden, biases, top, h)
