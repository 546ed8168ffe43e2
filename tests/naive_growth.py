"""The slow, obvious twin of growing a tree: every split is the best one that its rules permit, against all others.

A node or, of an oblivious tree, a level is split so that the gain is greatest, of the splits that its rules permit.
Gains and values of nodes follow from the rows by the formulas of the options; which features may be used and which
thresholds are tried follows from the path, or from random numbers written out by their definition.  All splits that are
permitted are tried.
"""

import itertools

import numpy as np

from tests.naive_samples import bits_of, noisy, uniform_of

LEVEL, NODE, SPLIT = 1, 2, 3  # streams of a tree's draws
LEAST = 1e-6  # of a hessian that leaves out pairs


def goes_left(column, threshold, missing_left):
    """Return which rows of a column of bins go left."""
    return (column <= threshold) & ((column > 0) | bool(missing_left))


def members_of(tree, node):
    """Return the bins of the set that the node sends left."""
    return [b for b in range(256) if int(tree.sets[node, b // 64]) >> (b % 64) & 1]


def nodes_of(tree, bins):
    """Return the rows of every node of ``tree``, by walking down with each row of ``bins``."""
    of_node = [np.zeros(0, dtype=int) for _ in tree.feature]
    of_node[0] = np.arange(len(bins))
    for node in np.flatnonzero(tree.feature >= 0):  # a parent comes before its children
        rows = of_node[node]
        column = bins[rows, tree.feature[node]]
        left = goes_left(column, tree.threshold[node], tree.missing_left[node])
        if tree.threshold[node] == 0:
            left = np.isin(column, members_of(tree, node))
        of_node[tree.left[node]], of_node[tree.right[node]] = rows[left], rows[~left]
    return of_node


def split_gain(g, h, left, lambda_l2):
    """Gain of sending the rows of the mask ``left`` to one side: G_l^2/(H_l+lambda) + G_r^2/(H_r+lambda) -
    G^2/(H+lambda)."""

    def score(mask):
        denominator = h[mask].sum() + lambda_l2
        return g[mask].sum() ** 2 / denominator if denominator > 0 else 0.0

    return score(left) + score(~left) - score(np.ones(len(g), dtype=bool))


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
    """Yield the sets that LightGBM's documented search tries: prefixes and suffixes of the categories by G / (H +
    smoothing).

    Categories of fewer rows than ``smoothing`` are left out; sets have at most ``most`` categories, each ``group`` or
    more rows beyond the one tried before, and so many are not in it.
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


def wse_splits(bins, g, h):
    """Yield (error, rows on the left): weighted squared error as LogitBoost fits it (Xia et al., eqn 6-8).

    Responses r = -g/h with weights h.
    """
    for feature in range(bins.shape[1]):
        for threshold in range(1, int(bins[:, feature].max()) + 1):
            for missing_left in (False, True):
                left = goes_left(bins[:, feature], threshold, missing_left)
                if left.any() and not left.all():
                    response = -g / h
                    error = sum(
                        (h * (response - np.average(response[s], weights=h[s])) ** 2)[s].sum() for s in (left, ~left)
                    )
                    yield error, left


class Growth:
    """A tree that was grown from ``bins`` (n, F), g and h by ``rules``, and what it must be.

    ``noise`` is (strength, key) and ``tree_key`` the key of all other draws; ``weights`` take the place of h in the
    search of splits; ``pairs`` (first rows, second rows, their hessians) count in it only if a side has both, and so
    they do in leaves that are ``exact``; ``directions`` of features are those of the root alone.
    """

    def __init__(
        self, tree, bins, g, h, rules, n_bins, *, names, categorical=None, noise=(0.0, 0), tree_key=0, weights=None,
        pairs=None,
        exact=False, directions=None,
    ):  # fmt: skip
        self.tree, self.bins, self.g, self.h, self.rules, self.n_bins, self.names = (
            tree,
            bins,
            g,
            h,
            rules,
            n_bins,
            names,
        )
        self.categorical = np.zeros(bins.shape[1], dtype=bool) if categorical is None else categorical
        self.noise, self.tree_key, self.exact, self.directions = noise, tree_key, exact, directions
        self.searched, self.pairs = h if weights is None else weights, pairs
        self.own_search = weights is not None or pairs is not None
        self.rows, self.depth, self.path = nodes_of(tree, bins), {0: 0}, {0: frozenset()}
        for node in np.flatnonzero(tree.feature >= 0).tolist():
            for child in (int(tree.left[node]), int(tree.right[node])):
                self.depth[child] = self.depth[node] + 1
                self.path[child] = self.path[node] | {int(tree.feature[node])}

    def inside(self, rows, sides):
        """Return the hessian of all pairs in each of ``sides`` (ways, n) of these rows."""
        if self.pairs is None:
            return 0.0
        place = np.full(len(self.g), -1)
        place[rows] = np.arange(len(rows))
        a, b, c = self.pairs
        own = (place[a] >= 0) & (place[b] >= 0)
        return (sides[:, place[a[own]]] & sides[:, place[b[own]]]) @ c[own]

    def step(self, g, h, share, above):
        """Return the value of rows with these sums; ``share`` is their number over path_smooth, ``above`` the parent's
        value."""
        r = self.rules
        value = -np.sign(g) * np.maximum(abs(g) - r.lambda_l1, 0.0) / (h + r.lambda_l2)
        if r.max_delta_step:
            value = np.clip(value, -r.max_delta_step, r.max_delta_step)
        if r.path_smooth and above is not None:
            value = value * share / (share + 1) + above / (share + 1)  # as LightGBM
        return value

    def value(self, rows, above):
        """Return the value of a node, of one that is too small that of its parent, ``above``; None for the root."""
        r, h = self.rules, self.h[rows].sum()
        if above is not None and (len(rows) < max(1, r.min_rows_in_leaf) or h < r.min_hessian_in_leaf):
            return above
        if self.exact:
            h -= 2 * self.inside(rows, np.ones((1, len(rows)), dtype=bool))[0]
        return self.step(self.g[rows].sum(), h, len(rows) / (r.path_smooth or 1.0), above) if h > LEAST else 0.0

    def gains(self, rows, lefts, value, feature):
        """Return the gain of each way to send ``lefts`` (ways, n) of these rows, which have ``value``, left; 0: not
        permitted."""
        r, every = self.rules, np.ones((1, len(rows)), dtype=bool)

        def sums(sides):
            searched = sides @ self.searched[rows] - 2 * self.inside(rows, sides)
            return sides @ self.g[rows], searched, sides.sum(axis=1), sides @ self.h[rows]

        def loss(g, h, value):
            return 2.0 * np.sign(g) * np.maximum(abs(g) - r.lambda_l1, 0.0) * value + (h + r.lambda_l2) * value**2

        g, whole, _, _ = sums(every)
        if self.own_search:
            value = np.where(whole > LEAST, self.step(g, whole, 1.0, None), 0.0)
        gain, permitted, steps = loss(g, whole, value), True, []
        for side in (lefts, ~lefts):
            g, searched, n, h = sums(side)
            share = len(rows) * searched / whole / (r.path_smooth or 1.0)  # rows are estimated by the hessian
            steps.append(self.step(g, searched, share, value))
            gain = gain - loss(g, searched, steps[-1])
            permitted &= (n >= max(1, r.min_rows_in_leaf)) & (h >= r.min_hessian_in_leaf) & (searched > LEAST)
        if self.directions is not None:
            permitted &= self.directions[feature] * (steps[1] - steps[0]) >= 0
        return np.where(permitted, gain, 0.0)

    def features(self, node):
        """Return the features that a node may be split by."""
        found, r = list(range(self.bins.shape[1])), self.rules
        if r.interaction_constraints:
            groups = [{self.names.index(name) for name in group} for group in r.interaction_constraints]
            path = self.path[node]
            found = [f for f in found if path <= {f} or any(path | {f} <= group for group in groups)]
        for fraction, *stream in (
            (r.feature_fraction_by_level, LEVEL, self.depth[node]), (r.feature_fraction_by_node, NODE, node),
        ):  # fmt: skip
            if fraction < 1.0:
                found.sort(key=lambda f, stream=stream: bits_of(self.tree_key, *stream, f))
                found = sorted(found[: max(1, round(fraction * len(found)))])
        return found

    def ways(self, nodes, f):
        """Return the thresholds (ways,) and for each of ``nodes`` the rows on the left (ways, n) of the splits by f
        that are tried."""
        columns = [self.bins[self.rows[node], f] for node in nodes]
        if self.categorical[f]:
            rows = self.rows[nodes[0]]
            found = [left for _, left in sets_in_order(columns[0], self.n_bins[f], self.g[rows], self.h[rows])]
            return np.zeros(len(found), dtype=int), [np.array(found)]
        tried = range(1, self.n_bins[f])
        if self.rules.extra_trees:  # one, between the bins that the rows have
            column = np.concatenate(columns)
            present = column[column > 0]
            first, end = (int(present.min()), int(present.max()) + int((column == 0).any())) if len(present) else (0, 0)
            drawn = first + int(uniform_of(bits_of(self.tree_key, SPLIT, nodes[0], f)) * (end - first))
            tried = [min(drawn, end - 1)] if first < end else []
        both = [(threshold, missing_left) for threshold in tried for missing_left in (False, True)]
        lefts = [np.array([goes_left(column, *way) for way in both]) for column in columns]
        return np.array([threshold for threshold, _ in both], dtype=int), lefts

    def offered(self, nodes, values):
        """Return {feature: (thresholds, gains)} of all splits of ``nodes``, one or those of a level, that are tried."""
        found = {}
        for f in self.features(nodes[0]):
            thresholds, lefts = self.ways(nodes, f)
            if len(thresholds):
                parts = zip(nodes, lefts, strict=True)
                with np.errstate(all="ignore"):  # sides without rows
                    found[f] = thresholds, sum(self.gains(self.rows[n], left, values[n], f) for n, left in parts)
        return found

    def worth(self, nodes, f, gain):
        """Return what a feature's best split of ``nodes`` is compared by."""
        gain *= (self.rules.feature_weights or {}).get(self.names[f], 1.0)
        strength, key = self.noise
        if not strength:
            return gain
        owns = (self.rows[node] for node in nodes if len(self.rows[node]))
        score = sum(self.g[rows].sum() ** 2 / (self.h[rows].sum() + self.rules.lambda_l2) for rows in owns)
        return noisy(gain, score, strength * np.sqrt((self.g**2).sum() / self.h.sum()), key, nodes[0], f)

    def check(self):
        """Check all values, splits and their order; return how many splits are not those of the greatest gain."""
        tree, values, others = self.tree, {0: self.value(self.rows[0], None)}, 0
        splits = np.flatnonzero(tree.feature >= 0).tolist()
        for node in splits:
            for child in (int(tree.left[node]), int(tree.right[node])):
                values[child] = self.value(self.rows[child], values[node])
        for node, value in values.items():
            if not self.exact or tree.feature[node] < 0:
                assert abs(tree.value[node] - value) <= 1e-9 * abs(value) + 1e-12
        levels = [
            [node for node in values if self.depth[node] == depth] for depth in range(max(self.depth.values()) + 1)
        ]
        urgency = {}
        for nodes in levels if self.rules.grow == "oblivious" else [[node] for node in values]:
            offered = self.offered(nodes, values)
            best = {f: gains.max() for f, (_, gains) in offered.items()}
            chosen, found = int(tree.feature[nodes[0]]), tree.gain[nodes].sum()
            # where max_delta_step cuts both sides to one value, a gain of 0 may be rounded to one of 1e-15, and taken
            worths = {f: self.worth(nodes, f, gain) for f, gain in best.items() if gain > 1e-9 or f == chosen}
            deepest = self.rules.depth and self.depth[nodes[0]] >= self.rules.depth
            if chosen >= 0 or (worths and not deepest and max(worths.values()) > 1e-9):
                urgency[nodes[0]] = max(worths.values())
            if chosen < 0:
                continue
            thresholds, gains = offered[chosen]
            assert abs(found - best[chosen]) <= 1e-9 * best[chosen] + 1e-12  # the true one, whatever is compared
            assert worths[chosen] >= max(worths.values()) * (1 - 1e-9) - 1e-12
            threshold = 0 if self.categorical[chosen] else tree.threshold[nodes[0]]
            assert gains[thresholds == threshold].max() >= found * (1 - 1e-9) - 1e-12
            others += found < max(best.values()) * (1 - 1e-9)
        self.check_order(urgency, splits)
        return others

    def check_order(self, urgency, splits):
        """Check that the next node to be split is always the one of the greatest urgency, and that no leaf is left that
        could be."""
        if self.rules.grow == "oblivious":
            assert not [node for node in urgency if self.tree.feature[node] < 0]
            return
        policy = {"breadth_first": -1, "depth_first": 1}.get(self.rules.grow)
        if policy is not None:
            urgency = {node: policy * self.depth[node] for node in urgency}
        there = {0}
        for node in sorted(splits, key=lambda node: self.tree.left[node]):
            waiting = [(urgency[each], -each) for each in there if each in urgency]
            if policy is not None:
                assert (urgency[node], -node) == max(
                    waiting
                )  # of equals the one made first, a left child before a right one
            elif not self.noise[0]:
                assert urgency[node] >= max(waiting)[0] * (1 - 1e-9) - 1e-12
            there = there - {node} | {int(self.tree.left[node]), int(self.tree.right[node])}
        assert self.tree.n_leaves == self.rules.max_leaves or not there & urgency.keys()
