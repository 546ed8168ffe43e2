"""Slow twins of the click simulator and the click models, in plain Python."""

from itertools import pairwise
from math import log

import numpy as np

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def random_bits(seed, number):
    """Element ``number`` of SplitMix64."""
    z = (seed + number * GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def uniform(bits):
    return ((bits >> 12) + 0.5) / 2**52


def shown_list(
    key,
    rankings,
    documents,
    length,
    randomised,
    swapped,
):
    """The documents that the session with this key sees; ``rankings`` are those of its query by each logger."""
    logger = int(uniform(random_bits(key, 3)) * len(rankings))
    kind = uniform(random_bits(key, 2))
    if kind < randomised:
        left, shuffle = list(documents), random_bits(key, 5)
        for k in range(length):
            other = k + int(uniform(random_bits(shuffle, k + 1)) * (len(left) - k))
            left[k], left[other] = left[other], left[k]
        return left[:length]
    shown = list(rankings[logger][:length])
    if kind < randomised + swapped and length > 1:
        above = int(uniform(random_bits(key, 4)) * (length - 1))
        shown[above], shown[above + 1] = shown[above + 1], shown[above]
    return shown


def clicks_of(key, relevance, chance, go_on):
    """Clicks on a list: ``chance(rank, last click, gamma)`` and ``go_on(rank)`` after a click, ranks from 1."""
    key = random_bits(key, 6)
    last, going, clicks = 0, True, []
    for rank, gamma in enumerate(relevance, start=1):
        click = going and uniform(random_bits(key, 2 * rank - 1)) < chance(rank, last, gamma)
        clicks.append(int(click))
        if click:
            last, going = rank, uniform(random_bits(key, 2 * rank)) < go_on(rank)
    return clicks


def counts_of(
    lists,
):
    """Shown and clicked by (document, rank, last click); a list is documents, ranks, clicks and how often it counts."""
    table = {}
    for documents, ranks, clicks, weight in lists:
        last = 0
        for document, rank, click in zip(documents, ranks, clicks, strict=True):
            shown, clicked = table.get((document, rank, last), (0, 0))
            table[document, rank, last] = shown + weight, clicked + weight * click
            last = rank if click else last
    return table


def expectation_maximisation(rows, free, steps):
    """Examination by cell, relevance by document, and the log-likelihood before each step; rows: document, cell, shown,
    clicked."""
    theta = [0.5 if each else 1.0 for each in free]
    gamma = [0.5] * (1 + max(document for document, *_ in rows))
    trace = []
    for _ in range(steps):
        seen, of_cell = [0.0] * len(theta), [0.0] * len(theta)
        relevant, of_document = [0.0] * len(gamma), [0.0] * len(gamma)
        total = 0.0
        for d, c, shown, clicked in rows:
            t, g, skipped = theta[c], gamma[d], shown - clicked
            total += clicked * log(t * g) if clicked else 0.0
            total += skipped * log(1 - t * g) if skipped else 0.0
            examined_skip = t * (1 - g) / (1 - t * g) if skipped else 0.0
            relevant_skip = g * (1 - t) / (1 - t * g) if skipped else 0.0
            seen[c] += clicked + skipped * examined_skip
            of_cell[c] += shown
            relevant[d] += clicked + skipped * relevant_skip
            of_document[d] += shown
        trace.append(total)
        theta = [s / n if n and f else t for s, n, f, t in zip(seen, of_cell, free, theta, strict=True)]
        gamma = [s / n if n else g for s, n, g in zip(relevant, of_document, gamma, strict=True)]
    return theta, gamma, trace


def pairs_of_ranks(table):
    """Agarwal et al. 2019: by (k, l), rates of clicks and of skips at k of documents shown at both; table by (document,
    rank)."""
    found = {}
    for (document, k), (shown, clicked) in table.items():
        for other, rank in table:
            if other == document and rank != k:
                clicks, skips = found.get((k, rank), (0.0, 0.0))
                found[k, rank] = clicks + clicked / shown, skips + 1 - clicked / shown
    return found


def predictions(
    ranks,
    clicks,
    gamma,
    examination,
    go_on,
):
    """P(click) at each place of a list given the clicks above, by summing over where the user left (0: has not)."""
    alive, left, last, found = 1.0, 0.0, 0, []  # joint probabilities of the state and the clicks so far
    for rank, click, relevance in zip(ranks, clicks, gamma, strict=True):
        chance = examination(rank, last) * relevance
        found.append(alive * chance / (alive + left) if alive else 0.0)
        if click:
            alive, left = alive * chance * go_on(rank), alive * chance * (1 - go_on(rank))
            last = rank
        else:
            alive *= 1 - chance
    return found


def result_lists(rows, alike):
    """The result lists of rows (dicts): {(values of the columns ``alike``): [(rank, document, clicked, ..), ..]}
    without contradictions.

    Rows of one list, rank and document are one impression: clicked if one of them is.
    """
    lists = {}
    for row in rows:
        lists.setdefault(tuple(row[name] for name in alike), []).append(row)
    found, left_out = {}, 0
    for key, of_list in lists.items():
        impressions = {}
        for row in of_list:
            impressions.setdefault((row["position"], row["doc_id"]), []).append(row)
        ranks, documents = zip(*impressions, strict=True)
        policies = {row.get("policy") or "" for row in of_list}
        if len(set(ranks)) < len(ranks) or len(set(documents)) < len(documents) or len(policies) > 1:
            left_out += 1
            continue
        shown = []
        for (rank, document), same in sorted(impressions.items()):
            shown.append((rank, document, max(row["clicked"] for row in same)))
        found[key] = (policies.pop(), tuple(shown))
    return found, left_out


def judged(
    lists,
    estimate,
    alpha,
    beta,
    clip,
    a,
):
    """Label and variance by document; a list is documents, ranks, values of clicks and its query."""
    rows = [(d, k, v, q) for docs, ranks, values, q in lists for d, k, v in zip(docs, ranks, values, strict=True)]
    whole = sum(v for _, _, v, _ in rows)
    ratio = sum(v * v for _, _, v, _ in rows) / whole
    by_rank = {k: [v for _, rank, v, _ in rows if rank == k] for _, k, _, _ in rows}
    found = {}
    for document in sorted({d for d, *_ in rows}):
        mine = [(k, v, q) for d, k, v, q in rows if d == document]
        n, value = len(mine), sum(v for _, v, _ in mine)

        def spread(mean):
            return max(mean * ratio - mean * mean, 0.01 * mean)

        if estimate == "dctr":
            m = whole / len(rows)
            label = (value + a * m) / (n + a)
            variance = spread((value + max(a, 1) * m) / (n + max(a, 1))) / (n + a + 1)
            found[document] = label, variance
            continue
        m = sum(v - beta(k) for _, k, v, _ in rows) / sum(alpha(k) for _, k, _, _ in rows)
        of_rank = {
            k: max(sum(values) - beta(k) * len(values), 0) / (alpha(k) * len(values)) for k, values in by_rank.items()
        }
        seen = sum(alpha(k) for k, _, _ in mine)
        usual = sum(alpha(k) * of_rank[k] for k, _, _ in mine) / seen
        relevant, b = value - sum(beta(k) for k, _, _ in mine), max(a, 1)
        y = max((relevant + a * usual) / (seen + a), 0)
        likely = max((relevant + b * usual) / (seen + b), 0)
        noise = [(k, spread(min(alpha(k) * likely + beta(k), 1))) for k, _, _ in mine]
        if estimate == "pbm":
            found[document] = y, (sum(each for _, each in noise) + a * a * spread(m) / (a + 1)) / (seen + a) ** 2
            continue
        weighted = [(v - beta(k)) / max(alpha(k), clip) for k, v, _ in mine]
        variance = sum(each / max(alpha(k), clip) ** 2 for k, each in noise) / n**2
        label = sum(weighted) / n
        if estimate == "snips":
            of_query = [(k, v) for _, k, v, q in rows if q == mine[0][2]]
            weights = sum((v - beta(k)) / max(alpha(k), clip) for k, v in of_query)
            clicks = sum(v - beta(k) for k, v in of_query)
            if not (weights > 0 and clicks > 0):
                weights = sum((v - beta(k)) / max(alpha(k), clip) for _, k, v, _ in rows)
                clicks = sum(v - beta(k) for _, k, v, _ in rows)
            label, variance = label * clicks / weights, variance * (clicks / weights) ** 2
        found[document] = label, variance
    return found


def preferences(lists, weight):
    """Summed weight by (clicked, not clicked)."""
    found = {}
    for docs, ranks, values, _ in lists:
        for i, k, v in zip(docs, ranks, values, strict=True):
            for j, u in zip(docs, values, strict=True):
                if v > 0 and u == 0:
                    found[i, j] = found.get((i, j), 0.0) + v * weight(k)
    return found


def value_of(
    lists,
    ranking,
    estimator,
    alpha,
    rank_weight,
    clip,
    regression,
):
    """Mean over the lists of the value of ``ranking``, documents by query in order; documents are numbers of all
    queries."""
    rows = [(d, k, v) for docs, ranks, values, _ in lists for d, k, v in zip(docs, ranks, values, strict=True)]

    def relevance(document):
        mine = [(k, v) for d, k, v in rows if d == document]
        if estimator == "dr":
            y = regression(document)
            return y + (sum((v - alpha(k) * y) / max(alpha(k), clip) for k, v in mine) / len(mine) if mine else 0.0)
        bound = clip if estimator == "clipped" else 0.0
        return sum(v / max(alpha(k), bound) for k, v in mine) / len(mine) if mine else 0.0

    total = below = 0.0
    for *_, query in lists:
        total += sum(rank_weight(r) * relevance(d) for r, d in enumerate(ranking[query], start=1))
        shown = sorted({d for docs, _, _, q in lists if q == query for d in docs})
        below += sum(relevance(d) for d in shown) if estimator == "snips" else 1.0
    return total / below


def team_drafts(one, two, length):
    """Probability of each list of (document, team 0 or 1) that team draft can make of two rankings."""
    found = {}

    def go_on(made, chance):
        picked = {document for document, _ in made}
        left = [[d for d in ranking if d not in picked] for ranking in (one, two)]
        if len(made) == length or not (left[0] or left[1]):
            found[made] = found.get(made, 0.0) + chance
            return
        teams = [sum(team == t for _, team in made) for t in (0, 1)]
        turns = [0, 1] if teams[0] == teams[1] else [0 if teams[0] < teams[1] else 1]
        turns = [turn for turn in turns if left[turn]] or [turn for turn in (0, 1) if left[turn]]
        for turn in turns:
            go_on((*made, (left[turn][0], turn)), chance / len(turns))

    go_on((), 1.0)
    return found


def affine_maximisation(rows, ranks, steps):
    """EM of P(click at k) = alpha_k gamma_d + beta_k: alpha and beta for relevance as large as possible, and the
    log-likelihood."""
    alpha, beta = [0.5] * ranks, [0.02] * ranks
    gamma = [0.5] * (1 + max(document for document, *_ in rows))
    total = 0.0
    for _ in range(steps):
        examined, trusted, shown_at = ([0.0] * ranks for _ in range(3))
        relevant, seen = [0.0] * len(gamma), [0.0] * len(gamma)
        total = 0.0
        for d, k, shown, clicked in rows:
            a, b, g = alpha[k], beta[k], gamma[d]
            chance = a * g + b
            total += (clicked * log(chance) if clicked else 0.0) + (shown - clicked) * log(1 - chance)
            found = clicked * a * g / chance
            looked = found + (shown - clicked) * a * (1 - g) / (1 - chance)
            examined[k] += looked
            trusted[k] += clicked - found
            shown_at[k] += shown
            relevant[d] += found
            seen[d] += looked
        alpha = [x / n for x, n in zip(examined, shown_at, strict=True)]
        beta = [x / n for x, n in zip(trusted, shown_at, strict=True)]
        gamma = [x / n if n else g for x, n, g in zip(relevant, seen, gamma, strict=True)]
    shift = min(b / a for a, b in zip(alpha, beta, strict=True))
    return [a / alpha[0] for a in alpha], [b - a * shift for a, b in zip(alpha, beta, strict=True)], total


def naive_additive_step(bias, positions, g, h, rate, l2):
    """The next additive bias by position (from 1): one Newton step a position."""
    found = bias.copy()
    for k in range(len(bias)):
        first = second = 0.0
        for position, slope, curve in zip(positions, g, h, strict=True):
            if position == k + 1:
                first += slope + l2 * bias[k]
                second += curve + l2
        found[k] -= rate * first / (second + 0.001)
    return found


def naive_unbiased_step(ratios, scores, clicked, starts, positions, weights, power):
    """Gradients of Unbiased LambdaMART with all pairs alike, and the next ratios (clicked, not clicked) by position."""
    plus, minus = ratios
    g, of_plus, of_minus = np.zeros(len(scores)), np.zeros(len(plus)), np.zeros(len(plus))
    for first, last in pairwise(starts):
        for i in range(first, last):
            for j in range(first, last):
                if clicked[i] and not clicked[j]:
                    at, other = positions[i] - 1, positions[j] - 1
                    weight = weights[i] * weights[j]
                    slope = weight / (plus[at] * minus[other]) / (1.0 + np.exp(scores[i] - scores[j]))
                    g[i] -= slope
                    g[j] += slope
                    loss = weight * np.log(2.0)  # of equal scores
                    of_plus[at] += loss / minus[other]
                    of_minus[other] += loss / plus[at]
    return g, ((of_plus / of_plus[0]) ** power, (of_minus / of_minus[0]) ** power)


def order_by_relevance(rows, theta, beta):
    """Correlation of relevance and position within queries; rows: query, document, rank, click."""
    both = position = relevance = 0.0
    for query in sorted({q for q, *_ in rows}):
        mine = [(d, k, c) for q, d, k, c in rows if q == query]
        total = sum(theta[k - 1] for _, k, _ in mine)
        mean = sum(c - beta[k - 1] for _, k, c in mine) / total
        middle = sum(theta[k - 1] * k for _, k, _ in mine) / total
        for document in {d for d, *_ in mine}:
            own = [(k, c) for d, k, c in mine if d == document]
            e = sum(theta[k - 1] for k, _ in own)
            gamma = sum(c - beta[k - 1] for k, c in own) / e
            depth = sum(theta[k - 1] * k for k, _ in own) / e
            chances = [min(max(theta[k - 1] * mean + beta[k - 1], 0.0), 1.0) for k, _ in own]
            both -= e * (gamma - mean) * (depth - middle)
            position += e * (depth - middle) ** 2
            relevance += e * ((gamma - mean) ** 2 - sum(p * (1 - p) for p in chances) / e**2)
    return both / (position * relevance) ** 0.5 if relevance > 0 else 0.0


def relevance_rises(rows, theta, beta, times):
    """Whether documents at a rank are ``times`` as relevant as those at one above, beyond two standard errors of
    each."""
    found = []
    for k in range(1, len(theta) + 1):
        at = [(d, c) for _, d, rank, c in rows if rank == k]
        rate = sum(c for _, c in at) / len(at)
        of_document = {}
        for d, c in at:
            of_document[d] = of_document.get(d, 0.0) + c - rate
        error = 2 * sum(far**2 for far in of_document.values()) ** 0.5 / len(at)
        relevance = max(rate - beta[k - 1], 0.0)
        found.append(((relevance - error) / theta[k - 1], (relevance + error) / theta[k - 1]))
    return any(low > times * high for k, (low, _) in enumerate(found) for _, high in found[: k + 1])
