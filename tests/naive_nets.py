"""Slow, obvious twins of nets: inputs, scores and losses in float64, document by document."""

import bisect
import math

import numpy as np

from tests.naive_pairs import swap_delta


def input_of(x, transform, centre, scale, knots, heights):
    """The input of one numeric value: 0 if it is missing."""
    if math.isnan(x):
        return 0.0
    if transform == "log1p":
        t = math.copysign(math.log1p(abs(x)), x)
    elif transform == "quantile":
        t = float(np.interp(x, knots, heights))
    else:
        t = x
    return min(max(scale * (t - centre), -1000.0), 1000.0)


def inputs_of(row, inputs):
    """All inputs of one document."""
    out = []
    for j, feature in enumerate(inputs.numeric):
        first, last = inputs.knot_starts[j], inputs.knot_starts[j + 1]
        knots, heights = (a[first:last].astype(np.float64) for a in (inputs.knots, inputs.heights))
        x = float(np.clip(row[feature], -np.finfo(np.float32).max, np.finfo(np.float32).max))
        out.append(input_of(x, inputs.transform, inputs.centres[j], inputs.scales[j], knots, heights))
    out += [float(math.isnan(row[feature])) for feature in inputs.indicators]
    for j, feature in enumerate(inputs.categorical):
        codes = inputs.codes[inputs.code_starts[j] : inputs.code_starts[j + 1]].tolist()
        place = bisect.bisect_left(codes, row[feature])
        known = place < len(codes) and codes[place] == row[feature]
        number = 1 if math.isnan(row[feature]) else 2 + place if known else 0
        out += inputs.embeddings[inputs.code_starts[j] + 2 * j + number].tolist()
    return out


def score_of(row, net):
    """The score of one document."""
    h = np.array(inputs_of(row, net.inputs))
    for weights, biases in net.layers:
        z = biases + h @ weights.astype(np.float64)
        h = np.maximum(z, 0.0) if net.activation == "relu" else np.tanh(z)
    return net.start + float(h @ net.top.astype(np.float64))


def training_scores(x, layers, top, *, activation, batch_norm, masks=None, epsilon=1e-5):
    """Scores (n,) of a batch in training: ``layers`` are (weights, gains, shifts), ``masks`` what dropout multiplies
    by."""
    h = x
    for number, (weights, gains, shifts) in enumerate(layers):
        z = h @ weights
        if batch_norm:
            z = gains * (z - z.mean(axis=0)) / np.sqrt(z.var(axis=0) + epsilon)
        h = np.maximum(z + shifts, 0.0) if activation == "relu" else np.tanh(z + shifts)
        if masks is not None:
            h = h * masks[number]
    return h @ top


def central_difference(function, values, place, step=1e-6):
    """The derivative of ``function`` by one of ``values``, an array that it reads."""
    held = values[place]
    values[place] = held + step
    above = function()
    values[place] = held - step
    below = function()
    values[place] = held
    return (above - below) / (2 * step)


def random_number(seed, number):
    """Element ``number`` of the SplitMix64 sequence of ``seed``."""
    z = (seed + number * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def dropout_mask(shape, key, dropped):
    """What dropout multiplies outputs (n, columns, padded to a multiple of 32) by: four outputs share a random
    number."""
    width = -(-shape[1] // 32) * 32
    out = np.full(shape, 65536 / (65536 - dropped))
    for r in range(shape[0]):
        for c in range(shape[1]):
            bits = random_number(key, r * (width // 4) + c // 4) >> (16 * (c % 4))
            if bits % 65536 < dropped:
                out[r, c] = 0.0
    return out


def adamw(weight, gradients, rate, decay):
    """A weight after steps of AdamW along ``gradients``, as PyTorch's documentation writes it."""
    m = v = 0.0
    for step, g in enumerate(gradients, start=1):
        weight -= rate * decay * weight
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        weight -= rate * (m / (1 - 0.9**step)) / (math.sqrt(v / (1 - 0.999**step)) + 1e-8)
    return weight


def ranknet_gradient(x, grades, hidden, biases, top, sigma):
    """The gradient of RankNet's loss of a query by all weights, pair by pair, and the loss."""
    d_hidden, d_biases, d_top, loss = np.zeros_like(hidden), np.zeros_like(biases), np.zeros_like(top), 0.0

    def outputs(row):
        return np.tanh(row @ hidden + biases) if hidden.shape[1] else row

    for i in range(len(x)):
        for j in range(len(x)):
            if grades[i] > grades[j]:
                gap = sigma * float((outputs(x[i]) - outputs(x[j])) @ top)
                force = -sigma / (1.0 + math.exp(gap))
                loss += math.log1p(math.exp(-gap))
                for row, slope in ((x[i], force), (x[j], -force)):
                    h = outputs(row)
                    d_top += slope * h
                    if hidden.shape[1]:
                        back = slope * top * (1.0 - h * h)
                        d_biases += back
                        d_hidden += np.outer(row, back)
    return (d_hidden, d_biases, d_top), loss


def lambdarank_forces(scores, grades, metric, policy, sigma=1.0):
    """lambda_i of LambdaRank: RankNet's forces, each times the change of the metric when the two swap (Burges 2010,
    section 4)."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    forces = np.zeros(len(scores))
    for a, i in enumerate(order):
        for b, j in enumerate(order):
            if grades[i] > grades[j]:
                change = abs(swap_delta(metric, [grades[k] for k in order], min(a, b), max(a, b), policy))
                force = change * sigma / (1.0 + math.exp(sigma * (scores[i] - scores[j])))
                forces[i] -= force
                forces[j] += force
    return forces
