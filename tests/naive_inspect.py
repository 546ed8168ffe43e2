"""Slow, obvious twins of what looks into a model: from the definitions, over all subsets, documents and weights."""

import itertools
from math import factorial

from tests.naive import value_goes_left


def _ways(forest, node, root, x, known):
    """Yield (leaf, share) of the leaves that a document reaches of which only the features in ``known`` are known."""
    f = int(forest.node_feature[node])
    if f < 0:
        yield node, 1.0
        return
    left, right = root + int(forest.node_left[node]), root + int(forest.node_right[node])
    if f in known:
        goes_left = value_goes_left(forest, node, x)
        yield from _ways(forest, left if goes_left else right, root, x, known)
        return
    rows_left, rows_right = int(forest.node_rows[left]), int(forest.node_rows[right])
    total = rows_left + rows_right
    for child, rows in ((left, rows_left), (right, rows_right)):
        share = rows / total if total else 0.5
        for leaf, below in _ways(forest, child, root, x, known):
            yield leaf, share * below


def expected_output(forest, x, known, output=0):
    """What the trees expect of one output where only the features in ``known`` have their values in ``x``."""
    total = forest.base_score
    for t in range(output, forest.n_trees, forest.n_outputs):
        root = int(forest.tree_starts[t])
        for leaf, share in _ways(forest, root, root, x, known):
            total += float(forest.tree_weights[t]) * float(forest.node_value[leaf]) * share
    return total


def shapley(forest, x, output=0):
    """The mean contribution of each feature to an output over all orders."""
    return shapley_values(lambda known: expected_output(forest, x, known, output), forest.n_features)


def shapley_values(worth_of, n):
    """The Shapley values of ``n`` players by all subsets; ``worth_of`` takes a set of their numbers."""
    everything = range(n)
    worth = {frozenset(s): worth_of(set(s)) for k in range(n + 1) for s in itertools.combinations(everything, k)}
    out = []
    for j in everything:
        others = [f for f in everything if f != j]
        total = 0.0
        for k in range(n):
            weight = factorial(k) * factorial(n - k - 1) / factorial(n)
            for s in itertools.combinations(others, k):
                total += weight * (worth[frozenset((*s, j))] - worth[frozenset(s)])
        out.append(total)
    return out


def shapley_interactions(forest, x, output=0):
    """The interaction of each two features, by all subsets; the diagonal is what is left of the Shapley values."""
    n = forest.n_features

    def worth(*parts):
        return expected_output(forest, x, set().union(*parts), output)

    out = [[0.0] * n for _ in range(n)]
    for i, j in itertools.combinations(range(n), 2):
        others = [f for f in range(n) if f not in (i, j)]
        for k in range(n - 1):
            weight = factorial(k) * factorial(n - k - 2) / (2 * factorial(n - 1))
            for s in itertools.combinations(others, k):
                out[i][j] += weight * (worth(s, {i, j}) - worth(s, {i}) - worth(s, {j}) + worth(s))
        out[j][i] = out[i][j]
    for i, single in enumerate(shapley(forest, x, output)):
        out[i][i] = single - sum(out[i])
    return out


def dependence(forest, known, values, documents=None, output=0):
    """Partial dependence where the features ``known`` have ``values``: over the training rows, or over
    ``documents``."""
    if documents is None:
        x = [float("nan")] * forest.n_features
        for f, value in zip(known, values, strict=True):
            x[f] = value
        return expected_output(forest, x, set(known), output)
    total = 0.0
    for document in documents:
        x = list(document)
        for f, value in zip(known, values, strict=True):
            x[f] = value
        total += expected_output(forest, x, set(range(forest.n_features)), output)
    return total / len(documents)


def h_statistic(forest, features, points, documents=None, output=0):
    """Friedman's H of two features, or of one with all others, at ``points``."""
    everything = range(forest.n_features)
    parts = (
        [(f,) for f in features]
        if len(features) == 2
        else [features, tuple(f for f in everything if f not in features)]
    )
    whole = tuple(features) if len(features) == 2 else tuple(everything)

    def centred(known):
        found = [dependence(forest, known, [x[f] for f in known], documents, output) for x in points]
        return [value - sum(found) / len(found) for value in found]

    together = centred(whole)
    apart = [centred(part) for part in parts]
    above = sum((t - a - b) ** 2 for t, a, b in zip(together, *apart, strict=True))
    below = sum(t**2 for t in together)
    if above < 1e-25:  # rounding
        return 0.0, 0.0
    return (above / below) ** 0.5, (above / len(points)) ** 0.5
