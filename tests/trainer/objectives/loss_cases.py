"""Small rows for the tests of losses, and what the losses and their derivatives are by definition."""

import math

import numpy as np

from rankmill.pipeline.pairs.stored_pairs import PreferencePairs
from rankmill.scorer.metrics import Metric, Policy, parse_metric
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.protocol import Leaves
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.team import Team, with_team
from tests import naive_pairs
from tests.trainer.fixed import fixed

OF_PAIRS = (5, 1, 9, 12, 2, 3)
SIZES = [1, 6, 9, 2, 4]
METRICS = [
    "ndcg@3",
    "dcg",
    "err",
    "err@4",
    "map",
    "map@3",
    "mrr@2",
    "precision@4",
    "recall@3",
    "wta",
    "rbp(0.8)",
    "concordance",
]
CASES = [
    *(("lambdamart", {"metric": metric, "lambda_normalisation": False}) for metric in METRICS),
    ("lambdamart", {"metric": "ndcg@3"}),
    ("lambdamart", {"metric": "err", "truncation": 3, "sigma": 2.0}),
    ("lambdamart(tail=false)", {"metric": "ndcg@3", "lambda_normalisation": False}),
    ("lambdamart(normalise=query)", {"metric": "map", "lambda_normalisation": False, "truncation": 4}),
    ("lambdaloss", {"metric": "ndcg@5", "sigma": 1.5}),
    ("lambdaloss(normalise=query)", {"truncation": 4}),
    ("ranknet", {"sigma": 1.5}),
    ("ranknet(normalise=query)", {}),
    ("ranknet(ties=true)", {}),
    ("ranknet(truncation=3)", {}),
    ("rankboost", {}),
    ("rankboost(normalise=query, truncation=4)", {}),
]


def build(rows, objective, **parameters):
    return objective_of(rows, fixed(objective=objective, **parameters))


def derivatives(objective, scores, *, step=1, team=None):
    """g and h at the scores, (n_rows,) or (n_outputs, n_rows)."""
    scores = np.asarray(scores, dtype=np.float64)
    g, h = np.full_like(scores, np.nan), np.full_like(scores, np.nan)
    objective.gradients(step, scores, g, h, team or Team(1))
    return g, h


# -- single documents ------------------------------------------------------------------------------------------------


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
    return build(rows, written, **parameters)


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


def steps_of(objective, scores, leaves, output=0):
    """Steps of leaves given as lists of rows; Newton's where the objective has no rule of its own."""
    rows = np.concatenate(leaves).astype(np.int32)
    starts = np.concatenate(([0], np.cumsum([len(leaf) for leaf in leaves]))).astype(np.int64)
    g, h = derivatives(objective, scores)
    steps = with_team(1, lambda team: objective.leaf_steps(output, scores, Leaves(rows, starts, team)))
    if steps is None:
        g, h = np.atleast_2d(g)[output], np.atleast_2d(h)[output]
        steps = np.array([-g[leaf].sum() / h[leaf].sum() for leaf in leaves])
    return steps


# -- lists -----------------------------------------------------------------------------------------------------------


def starts_of(sizes):
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def objective_for(objective, grades, sizes=None, *, weights=None, query_weights=None, labels=None, **parameters):
    grades = np.asarray(grades, dtype=np.int32)
    rows = RankedRows(
        grades, starts_of(sizes or [len(grades)]), (), weights, labels=labels, query_weights=query_weights
    )
    return objective_of(rows, fixed(objective=objective, **parameters))


def random_lists(seed, sizes=SIZES, spread=1.5):
    """(scores, grades) with two grades in every list of two documents or more."""
    rng = np.random.default_rng(seed)
    scores, grades = rng.normal(scale=spread, size=sum(sizes)), rng.integers(0, 4, size=sum(sizes))
    for first, n in zip(starts_of(sizes), sizes, strict=False):
        if n > 1:
            grades[first : first + 2] = (0, 3)
    return scores, grades


# -- pairs -----------------------------------------------------------------------------------------------------------


def case(seed, *, weighted=False, given=False, spread=1.0, sizes=OF_PAIRS):
    """Rows of a few queries, and distinct scores."""
    rng = np.random.default_rng(seed)
    n, starts = sum(sizes), np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    grades = rng.integers(0, 4, size=n).astype(np.int32)
    weights = rng.integers(1, 5, size=n) / 2.0 if weighted else None
    query_weights = rng.integers(1, 5, size=len(sizes)) / 4.0 if weighted else None
    pairs = None
    if given:
        found = []
        for first, size in zip(starts[:-1], sizes, strict=True):
            if size > 1:
                both = np.array([rng.choice(size, 2, replace=False) for _ in range(2 * size)])
                found.append(first + np.concatenate((both, both[:3, ::-1])))  # which contradict each other
            else:
                found.append(np.empty((0, 2), dtype=np.int64))
        rows = np.concatenate(found)
        pairs = PreferencePairs(
            rows[:, 0].astype(np.int32),
            rows[:, 1].astype(np.int32),
            rng.integers(1, 4, size=len(rows)).astype(np.float64),
            rng.choice([1.0, 0.75, 0.5, 0.0], size=len(rows)),
            np.concatenate(([0], np.cumsum([len(part) for part in found]))),
        )
    rows = RankedRows(grades, starts, [], weights, query_weights=query_weights, pairs=pairs)
    return rows, spread * rng.permutation(n) / 7.0


def expected(rows, scores, objective, parameters):
    """The frozen pairs of every query."""
    p = fixed(objective=objective, **parameters)
    name, _, options = p.objective.partition("(")
    metric = parse_metric(p.metric)
    of_metric = name in {"lambdamart", "lambdaloss"}
    truncation = p.truncation if of_metric else 10**9
    if "truncation=" in options:
        truncation = int(options.split("truncation=")[1].rstrip(")").split(",")[0])

    def delta(ranked, i, j):
        if name == "lambdaloss":
            ideal = naive_pairs.metric_of_list(Metric("dcg", metric.k), sorted(ranked, reverse=True), Policy())
            d = abs(i - j)
            gains = abs(2.0 ** ranked[i] - 2.0 ** ranked[j]) / ideal if ideal else 0.0
            return abs(1 / math.log2(1 + d) - 1 / math.log2(2 + d)) * gains
        tail = "tail=False" not in options
        return naive_pairs.swap_delta(metric, ranked, i, j, Policy(max_grade=int(rows.grades.max())), tail=tail)

    found = []
    for q in range(rows.n_queries):
        first, last = rows.starts[q], rows.starts[q + 1]
        given = None
        if rows.pairs is not None:
            pairs, mean = rows.pairs, rows.pairs.weight.mean()
            part = slice(pairs.starts[q], pairs.starts[q + 1])
            given = list(
                zip(
                    (pairs.better[part] - first).tolist(),
                    (pairs.worse[part] - first).tolist(),
                    (pairs.weight[part] / mean).tolist(),
                    pairs.probability[part].tolist(),
                    strict=True,
                )
            )
        found.append(
            naive_pairs.frozen_pairs(
                scores[first:last].tolist(),
                rows.grades[first:last].tolist(),
                first=int(first),
                delta=delta if of_metric else None,
                exponential=name == "rankboost",
                sigma=1.0 if name == "rankboost" else p.sigma,
                truncation=truncation,
                normalise=name == "lambdamart" and p.lambda_normalisation,
                per_pair="normalise=query" in options,
                ties="ties=True" in options,
                weights=None if rows.weights is None else rows.weights[first:last] / rows.weights.mean(),
                query_weight=1.0 if rows.query_weights is None else rows.query_weights[q] / rows.query_weights.mean(),
                given=given,
            )
        )
    return found


def merged(found, scores):
    g, h, c = np.zeros(len(scores)), np.zeros(len(scores)), {}
    for pairs in found:
        g_q, h_q, c_q = pairs.derivatives(scores.tolist())
        g, h, c = g + g_q, h + h_q, c | c_q
    return g, h, c
