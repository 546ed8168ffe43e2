"""Small rows for the losses of single documents, and what every one of them must keep to."""

from __future__ import annotations

import numpy as np

from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.rows import RankedRows
from rankmill.trainer.workers import with_team
from tests.trainer.fixed import fixed


def rows_with(grades=None, labels=None, weights=None, offsets=None, events=None, sizes=None, query_weights=None):
    """Rows without bins: what a loss looks at."""
    n = len(grades if grades is not None else labels)
    starts = np.concatenate(([0], np.cumsum([n] if sizes is None else sizes))).astype(np.int64)
    return RankedRows(
        np.zeros(n, np.int32) if grades is None else np.asarray(grades, np.int32),
        starts,
        (),
        *(None if values is None else np.asarray(values, np.float64) for values in (weights, labels)),
        events=None if events is None else np.asarray(events, np.uint8),
        offsets=None if offsets is None else np.asarray(offsets, np.float64),
        query_weights=None if query_weights is None else np.asarray(query_weights, np.float64),
    )


def objective_on(written, rows, **parameters):
    return objective_of(rows, fixed(objective=written, **parameters))


def derivatives(objective, scores, team_size=1):
    g, h = np.full_like(scores, np.nan), np.full_like(scores, np.nan)
    with_team(team_size, lambda team: objective.gradients(1, scores, g, h, team))
    return g, h


def differences(function, scores, step=1e-4):
    """Central differences of a function of all scores, one score at a time; the values may be arrays."""
    out = []
    for i in np.ndindex(scores.shape):
        moved = np.zeros_like(scores)
        moved[i] = step
        out.append((function(scores + moved) - function(scores - moved)) / (2 * step))
    return np.array(out).reshape(*scores.shape, *np.shape(out[0]))


def gradient_error(objective, scores, smooth=slice(None)):
    """Largest error of g against differences of the losses, relative to the largest |g|; the gradients come first.

    ``smooth``: the scores away from kinks.
    """
    g, _ = derivatives(objective, scores)
    found = differences(lambda s: objective.losses(s).sum(), scores)
    return np.abs(found - g)[smooth].max() / np.abs(g).max()


def hessian_error(objective, scores):
    """Largest error of h against differences of g, each in its own score, relative to the largest h."""
    _, h = derivatives(objective, scores)
    found = differences(lambda s: derivatives(objective, s)[0], scores)
    own = np.array([found[i][i] for i in np.ndindex(scores.shape)]).reshape(scores.shape)
    return np.abs(own - h).max() / np.abs(h).max()


def steps_of(objective, scores, leaves, output=0, team_size=1):
    """Steps of leaves given as lists of rows; Newton's where the objective has no rule of its own."""
    rows = np.concatenate(leaves).astype(np.int32)
    starts = np.concatenate(([0], np.cumsum([len(leaf) for leaf in leaves]))).astype(np.int64)
    g, h = derivatives(objective, scores)
    steps = with_team(team_size, lambda team: objective.leaf_steps(output, scores, rows, starts, team))
    if steps is None:
        g, h = np.atleast_2d(g)[output], np.atleast_2d(h)[output]
        steps = np.array([-g[leaf].sum() / h[leaf].sum() for leaf in leaves])
    return steps
