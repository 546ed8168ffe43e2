"""Slow, obvious twins of the losses of lists, each for one list from its definition."""

import itertools
import math


def softmax(scores):
    strengths = [math.exp(s - max(scores)) for s in scores]
    return [e / math.fsum(strengths) for e in strengths]


def cross_entropy(scores, targets):
    return -math.fsum(t * math.log(p) for t, p in zip(targets, softmax(scores), strict=True))


def shares(values):
    return [value / math.fsum(values) for value in values]


def log_likelihood(scores, order):
    """Log of the probability that Plackett and Luce's model draws ``order``, the best first."""
    total = 0.0
    for place in range(len(order)):
        total += math.log(softmax([scores[i] for i in order[place:]])[0])
    return total


def centred_squares(scores, labels, weights):
    residuals = [s - y for s, y in zip(scores, labels, strict=True)]
    mean = math.fsum(w * r for w, r in zip(weights, residuals, strict=True)) / math.fsum(weights)
    return math.fsum(w * (r - mean) ** 2 / 2 for w, r in zip(weights, residuals, strict=True))


def log_loss(scores, classes, weights):
    return math.fsum(w * math.log1p(math.exp(-s if y else s)) for s, y, w in zip(scores, classes, weights, strict=True))


def shifted_log_loss(scores, classes, weights):
    """Least log-loss over all shifts of the scores, by golden section; it is convex in the shift."""
    if len({y for y, w in zip(classes, weights, strict=True) if w > 0}) < 2:
        return 0.0

    def at(shift):
        return log_loss([s + shift for s in scores], classes, weights)

    low, high, ratio = -30.0, 30.0, (math.sqrt(5) - 1) / 2
    for _ in range(120):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, b) if at(a) < at(b) else (a, high)
    return at((low + high) / 2)


def xendcg_lambdas(scores, grades, draws):
    """LightGBM's ``RankXENDCG::GetGradientsForOneQuery`` line by line, without its float32."""
    n, rho = len(scores), softmax(scores)
    params = [2.0**y - u for y, u in zip(grades, draws, strict=True)]
    inverse = 1.0 / sum(params)
    first = [-params[i] * inverse + rho[i] for i in range(n)]
    lambdas = list(first)
    params = [first[i] / (1.0 - rho[i]) for i in range(n)]
    second = [rho[i] * (sum(params) - params[i]) for i in range(n)]
    lambdas = [a + b for a, b in zip(lambdas, second, strict=True)]
    params = [second[i] / (1.0 - rho[i]) for i in range(n)]
    lambdas = [lambdas[i] + rho[i] * (sum(params) - params[i]) for i in range(n)]
    return lambdas, [rho[i] * (1.0 - rho[i]) for i in range(n)]


def dcg(order, gains, k=None):
    return math.fsum(gains[i] / math.log2(place + 2) for place, i in enumerate(order[:k]))


def cascade(order, chances, k=None):
    """ERR@k: the reader stops at a document with its chance, which is worth 1/rank; MRR@k if the chances are 0 and
    1."""
    return math.fsum(
        chances[i] / (place + 1) * math.prod(1 - chances[above] for above in order[:place])
        for place, i in enumerate(order[:k])
    )


def smoothed_slopes(scores, noisy, noise, value):
    """Derivatives of E[value(order)] by each score for one draw ``noisy`` of the others, before the mean is taken off,
    and sizes.

    The score of i is integrated out: where it passes j, the value jumps from that of the order with j above i to that
    with i above j.
    """
    slopes, sizes = [], []
    for i in range(len(scores)):
        others = sorted((j for j in range(len(scores)) if j != i), key=lambda j: -noisy[j])
        terms = []
        for r, j in enumerate(others):
            above = value([*others[:r], i, *others[r:]]) - value([*others[: r + 1], i, *others[r + 1 :]])
            distance = (noisy[j] - scores[i]) / noise
            terms.append(above * math.exp(-(distance**2) / 2) / math.sqrt(2 * math.pi) / noise)
        slopes.append(math.fsum(terms))
        sizes.append(math.fsum(abs(term) for term in terms) / noise)
    return slopes, sizes


def expected_dcg(scores, gains, k=None):
    """Mean of DCG@k over all orders of the documents, each as likely as Plackett and Luce's model makes it."""
    orders = itertools.permutations(range(len(scores)))
    return math.fsum(math.exp(log_likelihood(scores, order)) * dcg(order, gains, k) for order in orders)


def expected_dcg_gradient(scores, gains, k=None):
    """Sum of P(order) DCG(order) d log P / d s_i, with d log P / d s_i = 1 - sum of p_i over the places up to that of
    i."""
    terms = [[] for _ in scores]
    for order in itertools.permutations(range(len(scores))):
        value = math.exp(log_likelihood(scores, order)) * dcg(order, gains, k)
        for place, i in enumerate(order):
            seen = math.fsum(softmax([scores[j] for j in order[p:]])[place - p] for p in range(place + 1))
            terms[i].append(value * (1.0 - seen))
    return [math.fsum(of_one) for of_one in terms]


def slope(function, scores, i, step=1e-3):
    """d function / d scores[i] by a central difference of fourth order."""

    def at(multiple):
        moved = list(scores)
        moved[i] += multiple * step
        return function(moved)

    return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * step)


def bend(function, scores, rows, step=1e-2):
    """Second derivative of ``function`` along the step of all ``rows`` together, by a difference of fourth order."""

    def at(multiple):
        return function([s + multiple * step * (i in rows) for i, s in enumerate(scores)])

    return (16 * (at(1) + at(-1)) - (at(2) + at(-2)) - 30 * at(0)) / (12 * step**2)
