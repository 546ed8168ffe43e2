"""Splits by what a step of all rows of a side together does to the loss, tried one by one."""

from __future__ import annotations


def exact_hessian(members, h, pairs):
    """L'' of one step of all ``members``: h of each, less both entries of every pair inside (METHODS 1)."""
    inside = sum(c for a, b, c in pairs if a in members and b in members)
    return sum(h[i] for i in members) - 2 * inside


def sides(bins, rows, feature, threshold, missing_left):
    left = {i for i in rows if (bins[i, feature] <= threshold if bins[i, feature] else missing_left)}
    return left, set(rows) - left


def splits(bins, g, h, pairs, rows=None, *, lambda_l2=0.0, min_rows=1, least=1e-6):
    """Yield (gain, feature, threshold, missing_left) of every split that parts the rows; sides with L'' below ``least`` are none."""
    rows = range(len(g)) if rows is None else rows
    whole = exact_hessian(set(rows), h, pairs)
    total = sum(g[i] for i in rows)
    parent = total**2 / (whole + lambda_l2) if whole > least else 0.0
    for feature in range(bins.shape[1]):
        for threshold in range(1, int(bins[:, feature].max()) + 1):
            for missing_left in (False, True):
                both = sides(bins, rows, feature, threshold, missing_left)
                if min(map(len, both)) < min_rows:
                    continue
                hessians = [exact_hessian(side, h, pairs) for side in both]
                if min(hessians) < least:
                    continue
                gains = [sum(g[i] for i in side) ** 2 / (c + lambda_l2) for side, c in zip(both, hessians, strict=True)]
                yield sum(gains) - parent, feature, threshold, missing_left


def wse_splits(bins, g, h, *, widest=float("inf"), least=0.0):
    """Yield (error, feature, threshold, missing_left): weighted squared error as LogitBoost fits it (Xia et al., eqn 6-8).

    Responses r = -g/h with weights h.  Its guards clip r to ``widest`` in size and raise h to ``least`` at least
    (Friedman, Hastie & Tibshirani 2000, section 10).
    """
    weight = [max(hessian, least) for hessian in h]
    response = [max(-widest, min(widest, -slope / w)) for slope, w in zip(g, weight, strict=True)]

    def error(side):
        whole = sum(weight[i] for i in side)
        mean = sum(weight[i] * response[i] for i in side) / whole
        return sum(weight[i] * (response[i] - mean) ** 2 for i in side)

    for feature in range(bins.shape[1]):
        for threshold in range(1, int(bins[:, feature].max()) + 1):
            for missing_left in (False, True):
                both = sides(bins, range(len(g)), feature, threshold, missing_left)
                if min(map(len, both)) > 0:
                    yield sum(map(error, both)), feature, threshold, missing_left
