"""Slow, obvious twins of the kernels: they say what is right."""

from __future__ import annotations

import itertools
import math
import re
from decimal import Decimal

import numpy as np

# ---- pipeline: quantile bins -------------------------------------------------------------------------------------


def lightest_heaviest_bin(counts: list[int], max_bin: int) -> int:
    """Of every way to cut ``counts`` into at most ``max_bin`` bins: the least mass of the heaviest bin of many values.

    Tries every subset of the borders; a bin of one value does not count.
    """
    best = sum(counts)
    borders = range(1, len(counts))
    for n_cuts in range(min(max_bin, len(counts))):
        for cuts in itertools.combinations(borders, n_cuts):
            parts = [counts[a:b] for a, b in itertools.pairwise((0, *cuts, len(counts)))]
            best = min(best, max((sum(part) for part in parts if len(part) > 1), default=0))
    return best


def bin_of(x: float, edges: list[float]) -> int:
    """Bin 0 for NaN, else 1 + the number of edges below ``x``."""
    return 0 if math.isnan(x) else 1 + sum(edge < x for edge in edges)


# --- scorer/predict ---------------------------------------------------------------------------------------------------


def value_goes_left(forest, node, row):
    """Tell whether a row goes left at an inner node."""
    f, c = int(forest.node_feature[node]), int(forest.node_cut[node])
    x, cuts = row[f], forest.cuts[forest.cut_starts[f] : forest.cut_starts[f + 1]]
    if x != x:
        return bool(forest.node_missing_left[node])
    if forest.feature_names[f] in forest.categories:
        return any(x == cuts[k] for k in forest.set_members[forest.set_starts[c] : forest.set_starts[c + 1]])
    return bool(x <= cuts[c])


def leaf_value(forest, t, row):
    """Walk one row down tree ``t`` node by node, on the raw floats, and return what its leaf adds."""
    start = int(forest.tree_starts[t])
    node = start
    while forest.node_feature[node] != -1:
        node = start + int(forest.node_left[node] if value_goes_left(forest, node, row) else forest.node_right[node])
    return float(forest.tree_weights[t]) * float(forest.node_value[node])


def predict(forest, values, n_rounds=None):
    """Sum up the trees of every row of ``values``, for a forest of one output and one tree a round."""
    n_trees = forest.n_trees if n_rounds is None else n_rounds
    scores = []
    for row in values:
        score = forest.base_score
        for t in range(n_trees):
            score = score + leaf_value(forest, t, row)
        scores.append(score)
    return scores


# ---- scorer: ties (the metrics are in naive_metrics) ---------------------------------------------------------------------------------------------


def orders_of(scores):
    """Every order of the rows by descending score, rows of equal score in each of their orders."""
    levels = [[i for i, s in enumerate(scores) if s == level] for level in sorted(set(scores), reverse=True)]
    for parts in itertools.product(*(itertools.permutations(level) for level in levels)):
        yield [i for part in parts for i in part]


# ---------------------------------------------------------------------------------------------------- trainer


def histogram(bins, rows, packed):
    """Sum ``packed[i]`` by the bin of ``rows[i]`` for every feature of ``bins`` (n, F); (F, 256) integers."""
    out = [[0] * 256 for _ in range(bins.shape[1])]
    for row, value in zip(rows, packed, strict=True):
        for feature in range(bins.shape[1]):
            out[feature][bins[row, feature]] += int(value)
    return np.array(out, dtype=np.int64)


def split_gain(g, h, left, lambda_l2):
    """Gain of sending the rows of the mask ``left`` to one side: G_l^2/(H_l+lambda) + G_r^2/(H_r+lambda) - G^2/(H+lambda)."""

    def score(mask):
        denominator = h[mask].sum() + lambda_l2
        return g[mask].sum() ** 2 / denominator if denominator > 0 else 0.0

    return score(left) + score(~left) - score(np.ones(len(g), dtype=bool))


def splits(bins, g, h, *, lambda_l2=0.0, min_hessian=0.0, min_rows=1, hessians=None):
    """Yield (gain, feature, bin, missing_left) of every split that the bounds allow, in the order that breaks ties.

    ``min_hessian`` is for sums of ``hessians``, of h where they are left out.
    """
    hessians = h if hessians is None else hessians
    for feature in range(bins.shape[1]):
        column = bins[:, feature]
        missing = column == 0
        for threshold in range(1, int(column.max(initial=0)) + 1):
            present = (column >= 1) & (column <= threshold)
            for missing_left in (False, True) if missing.any() else (None,):
                left = present | missing if missing_left else present
                if min(left.sum(), (~left).sum()) < min_rows:
                    continue
                if min(hessians[left].sum(), hessians[~left].sum()) < min_hessian:
                    continue
                yield split_gain(g, h, left, lambda_l2), feature, threshold, missing_left


def goes_left(column, threshold, missing_left):
    """Tell which rows of a column of bins go left."""
    return (column <= threshold) & ((column > 0) | bool(missing_left))


def sets_of_categories(column, n_bins):
    """Yield every set of the categories, bins 1 .. ``n_bins`` - 2, that divides the rows of a column of bins.

    Missing values (bin 0) and all other categories (the last bin) are in none.
    """
    present = [b for b in range(1, n_bins - 1) if np.any(column == b)]
    for size in range(1, len(present) + 1):
        for chosen in itertools.combinations(present, size):
            left = np.isin(column, chosen)
            if not left.all():
                yield chosen, left


def sets_in_order(column, n_bins, g, h, *, smoothing=0.0, most=256, group=0):
    """Yield the sets that LightGBM's documented search tries: prefixes and suffixes of the categories by G / (H + smoothing).

    Categories of fewer rows than ``smoothing`` are left out; sets have at most ``most`` categories, each ``group`` or more rows
    beyond the one tried before, and so many are not in it.
    """
    rows = [int(np.sum(column == b)) for b in range(n_bins)]
    used = [b for b in range(1, n_bins - 1) if rows[b] and rows[b] >= smoothing]
    used.sort(key=lambda b: g[column == b].sum() / (h[column == b].sum() + smoothing))
    for order in (used, used[::-1]):
        since = 0
        for size in range(1, len(order) + 1):
            since += rows[order[size - 1]]
            left = np.isin(column, order[:size])
            if size <= most and since >= group and (~left).sum() >= max(1, group):
                yield frozenset(order[:size]), left
            if since >= group:
                since = 0


def encoded_in_order(codes, targets, starts, order, smoothing):
    """Return what each row's category is worth by the rows of earlier queries, with ``smoothing`` rows of the mean."""
    mean, values = float(np.mean(targets)), np.full(len(codes), float(np.mean(targets)))
    for at, q in enumerate(order):
        before = np.concatenate([np.arange(starts[e], starts[e + 1]) for e in order[:at]] or [np.zeros(0, dtype=int)])
        for row in range(starts[q], starts[q + 1]):
            if codes[row] == codes[row]:
                same = before[codes[before] == codes[row]]
                values[row] = (np.sum(targets[same]) + smoothing * mean) / (len(same) + smoothing)
    return values


def grow_by_node(bins, g, h, max_leaves, grow="best_first", **bounds):
    """Grow a tree by trying every split of every leaf; returns {leaf rows as a frozenset: Newton step}.

    Next comes the leaf of the greatest gain (``best_first``), the least depth (``breadth_first``) or the greatest
    (``depth_first``); of equals the one made first, a left child before the right one.
    """
    leaves = [(0, np.arange(len(g)))]
    while len(leaves) < max_leaves:
        waiting = []
        for i, (depth, rows) in enumerate(leaves):
            found = [s for s in splits(bins[rows], g[rows], h[rows], **bounds) if s[0] > 1e-12]
            if found:
                best = max(found, key=lambda s: s[0])  # the first of equals
                urgency = {"best_first": best[0], "breadth_first": -depth, "depth_first": depth}[grow]
                waiting.append((-urgency, i, best))
        if not waiting:
            break
        _, i, (_, feature, threshold, missing_left) = min(waiting, key=lambda w: w[:2])
        depth, rows = leaves.pop(i)
        left = goes_left(bins[rows, feature], threshold, missing_left)
        leaves += [(depth + 1, rows[left]), (depth + 1, rows[~left])]
    lambda_l2 = bounds.get("lambda_l2", 0.0)
    return {frozenset(rows.tolist()): -g[rows].sum() / (h[rows].sum() + lambda_l2) for _, rows in leaves}


def grow_by_level(bins, g, h, depth, *, lambda_l2=0.0, min_rows=1):
    """Grow an oblivious tree by trying every split on all leaves at once; returns (conditions, value of every row).

    A leaf that a split leaves with too small a side adds no gain; where it is split all the same, the small side
    keeps the value of its parent.
    """

    def value(rows):
        return -g[rows].sum() / (h[rows].sum() + lambda_l2)

    leaves, conditions = [(np.arange(len(g)), value(np.arange(len(g))))], []
    for _ in range(depth):
        best = (1e-12, None)
        for feature in range(bins.shape[1]):
            column = bins[:, feature]
            for threshold in range(1, int(column.max(initial=0)) + 1):
                for missing_left in (False, True) if (column == 0).any() else (None,):
                    gain = 0.0
                    for rows, _ in leaves:
                        left = goes_left(column[rows], threshold, missing_left)
                        if min(left.sum(), (~left).sum()) >= max(1, min_rows):
                            gain += split_gain(g[rows], h[rows], left, lambda_l2)
                    if gain > best[0] + 1e-12:
                        best = (gain, (feature, threshold, missing_left))
        if best[1] is None:
            break
        conditions.append(best[1])
        feature, threshold, missing_left = best[1]
        children = []
        for rows, step in leaves:
            left = goes_left(bins[rows, feature], threshold, missing_left)
            children += [(rows[m], value(rows[m]) if m.sum() >= max(1, min_rows) else step) for m in (left, ~left)]
        leaves = children
    values = np.zeros(len(g))
    for rows, step in leaves:
        values[rows] = step
    return conditions, values


def dcg_in_order(grades, k):
    """DCG of grades in ranked order: exponential gain, 1/log2(rank + 1)."""
    return sum((2.0**y - 1.0) / math.log2(rank + 2) for rank, y in enumerate(grades[:k]))


def lambdas(scores, grades, *, k, sigma=1.0, truncation=10**9, normalise=False, kept_beyond_k=True, weights=None):
    """Gradient and hessian of LambdaMART on one query with distinct scores, pair by pair from the definition."""
    n = len(scores)
    order = sorted(range(n), key=lambda i: -scores[i])
    rank = {row: place for place, row in enumerate(order)}
    ideal = dcg_in_order(sorted(grades, reverse=True), k)
    g, h, total = np.zeros(n), np.zeros(n), 0.0
    for i in range(n):
        for j in range(n):
            if grades[i] <= grades[j] or min(rank[i], rank[j]) >= truncation:
                continue
            ranked = [grades[row] for row in order]
            swapped = list(ranked)
            swapped[rank[i]], swapped[rank[j]] = ranked[rank[j]], ranked[rank[i]]
            depth = n if kept_beyond_k else k
            delta = abs(dcg_in_order(swapped, depth) - dcg_in_order(ranked, depth)) / ideal
            if weights is not None:
                delta *= weights[i] * weights[j]
            if normalise:
                delta /= 0.01 + abs(scores[i] - scores[j])
            rho = 1.0 / (1.0 + math.exp(sigma * (scores[i] - scores[j])))
            g[i] -= sigma * delta * rho
            g[j] += sigma * delta * rho
            h[i] += sigma**2 * delta * rho * (1 - rho)
            h[j] += sigma**2 * delta * rho * (1 - rho)
            total += 2 * sigma * delta * rho
    if normalise and total > 0:
        scale = math.log2(1 + total) / total
        g, h = g * scale, h * scale
    return g, h


# ---- pipeline: generated judgments -------------------------------------------------------------------------------


def hidden_relevance(f: list[float]) -> float:
    """The planted signal, term by term as docs/synth.md has it; ``f[1]`` is f1."""
    topical = f[1] / (f[1] + 9)
    h = topical + 0.6 * f[5] / (f[5] + 0.5) + 1.2 * topical * f[2]
    h += f[9] * (1.6 * f[3] / (f[3] + 2.5) + 1.2 * f[4] / (f[4] + 4))
    h += (1 - f[9]) * topical * 30 / (30 + f[10])
    h += 0.3 * (f[8] - 1) / 5 * f[2]
    if f[7] > 0.6:
        h -= 0.8
    return h - 0.5 * abs(f[6] - 2) / 6


def letor_line(grade: int, query: int, document: int, grid: list[int], decimals: list[int]) -> str:
    """One line of LETOR text of the values ``grid / 10 ** decimals``."""
    values = [Decimal(k).scaleb(-places) for k, places in zip(grid, decimals, strict=True)]
    features = " ".join(f"{i}:{value:f}" for i, value in enumerate(values, start=1))
    return f"{grade} qid:{query} {features} #docid = D{query}-{document}"


# ---- pipeline: LETOR text ----------------------------------------------------------------------------------------


_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:inf|infinity)", re.ASCII | re.IGNORECASE)
_MISSING = re.compile(r"[+-]?nan|null|[+-]null", re.IGNORECASE)


def number_of(token: str) -> np.float32 | None:
    """Value of a token: NaN where it says that it is missing, None where it is no number."""
    if _MISSING.fullmatch(token):
        return np.float32(np.nan)
    if not _NUMBER.fullmatch(token):
        return None
    with np.errstate(over="ignore"):
        return np.float32(float(token))


def comment_of(line: str) -> tuple[str, str]:
    """The fields of a line of LETOR text, and its comment: a word that begins with ``#``, and what follows."""
    mark = re.search(r"(?:^|[ \t])#", line)
    return (line, "") if mark is None else (line[: mark.end() - 1], line[mark.end() :])


def parse_letor(text: str) -> list[tuple[int, str, str | None, dict[int, np.float32]]]:
    """Grade, query, document and features by written index of every line; ValueError for a bad one."""
    rows = []
    for line in text.removeprefix("\ufeff").split("\n"):
        if "\r" in line.removesuffix("\r"):
            raise ValueError(line)
        fields, comment = comment_of(line.removesuffix("\r"))
        words = [word for word in re.split("[ \t]+", fields) if word]
        if not words:
            continue
        grade = re.fullmatch(r"(\+?\d+|-0+)(\.0*)?", words[0], re.ASCII)
        if grade is None or len(words) < 2 or not words[1].startswith("qid:") or words[1] == "qid:":
            raise ValueError(line)
        features = {}
        for word in words[2:]:
            pair = re.fullmatch(r"(\d+):(.+)", word, re.ASCII)
            value = number_of(pair[2]) if pair else None
            if pair is None or value is None or int(pair[1]) in features:
                raise ValueError(line)
            features[int(pair[1])] = value
        named = re.match(r"[ \t]*docid[ \t]*=[ \t]*([^ \t]+)", comment, re.IGNORECASE)
        rows.append((int(grade[1]), words[1][4:], named[1] if named else None, features))
    return rows


def query_numbers(sizes: str, rows: int) -> list[int]:
    """Number of the query, from 1, of each of ``rows`` rows, by a text of sizes; ValueError where they do not fit."""
    numbers = [number for number, size in enumerate(map(int, sizes.split()), start=1) for _ in range(size)]
    if len(numbers) != rows:
        raise ValueError(f"{len(numbers)} != {rows}")
    return numbers


def mixed(h: int) -> int:
    """Finaliser of splitmix64."""
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    h = (h ^ h >> 27) * 0x94D049BB133111EB % 2**64
    return h ^ h >> 31


def hash_of_id(name: str, salt: int = 0) -> int:
    """FNV-1a of the bytes, xored with the salt, mixed."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return mixed(h ^ salt)


def part_of_folds(name: str, folds: int) -> int:
    """Which of ``folds`` equal parts a query falls into: the upper 32 bits of a hash of its own, as a fraction."""
    return (hash_of_id(name, 0x14057B7EF767814F) >> 32) * folds // 2**32


def digest_of_row(grade: int, bits: list[int]) -> tuple[int, int]:
    """Two words that name a row: its grade and the bits of its float32 values, two values at a time."""
    a = 0x9E3779B97F4A7C15 ^ grade
    b = (0xC2B2AE3D27D4EB4F + grade) % 2**64
    words = [bits[i] << 32 | bits[i + 1] for i in range(0, len(bits) - 1, 2)] + bits[len(bits) // 2 * 2 :]
    for word in words:
        word = (word ^ word >> 32) * 0x9E3779B97F4A7C15 % 2**64
        word ^= word >> 29
        a = (a ^ word) * 0xBF58476D1CE4E5B9 % 2**64
        a ^= a >> 32
        b = (b + word) * 0x94D049BB133111EB % 2**64
        b ^= b >> 29
    return mixed(a), mixed(b)
