"""Slow, obvious twins of the losses of single documents: they say what is right."""

import math


def term(name, y, s, *, alpha=0.5, delta=1.0, sigma=1.0):
    """Loss of one document of weight 1 with target ``y`` and score ``s``; two-class losses take y in {0, 1}."""
    r = y - s
    if name == "l2":
        return r * r / 2
    if name == "laplace":
        return abs(r)
    if name == "quantile":
        return alpha * r if r > 0 else (1 - alpha) * -r
    if name == "huber":
        return r * r / 2 if abs(r) <= delta else delta * (abs(r) - delta / 2)
    if name == "bernoulli":
        return math.log1p(math.exp(s)) - y * s
    if name == "logistic2":
        return math.log1p(math.exp(-2 * (2 * y - 1) * sigma * s))
    if name == "adaboost":
        return math.exp(-(2 * y - 1) * s)
    if name in {"poisson", "consistent_kl"}:
        return math.exp(s) - y * s
    raise ValueError(name)


def quantile_range(values, weights, alpha):
    """Ends of the interval in which every point is a weighted alpha-quantile: mass below <= alpha <= mass up to it."""
    total = sum(weights)
    met = []
    for v in sorted(values):
        below = sum(w for x, w in zip(values, weights, strict=True) if x < v)
        upto = sum(w for x, w in zip(values, weights, strict=True) if x <= v)
        if below <= alpha * total * (1 + 1e-12) and upto >= alpha * total * (1 - 1e-12) and upto > below:
            met.append(v)
    return met[0], met[-1]


def least(f, low, high):
    """Point of [low, high] where the convex ``f`` is least, by ever finer thirds."""
    for _ in range(200):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, b) if f(a) <= f(b) else (a, high)
    return (low + high) / 2


def softmax(scores):
    """Probabilities of one document's outputs."""
    top = max(scores)
    e = [math.exp(s - top) for s in scores]
    return [x / sum(e) for x in e]


def cox_loss(scores, times, events, weights):
    """Negative partial log-likelihood, Breslow's for ties, from the definition: O(n^2)."""
    total = 0.0
    for i in range(len(scores)):
        if events[i] and weights[i] > 0:
            risk = sum(w * math.exp(s) for s, t, w in zip(scores, times, weights, strict=True) if t >= times[i])
            total -= weights[i] * (scores[i] - math.log(risk))
    return total


def cosine_loss(scores, targets):
    """Length of the targets minus the length of their projection on the scores."""
    dot = sum(s * t for s, t in zip(scores, targets, strict=True))
    return math.sqrt(sum(t * t for t in targets)) - dot / math.sqrt(sum(s * s for s in scores))
