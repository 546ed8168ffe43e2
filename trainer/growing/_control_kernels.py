"""The features and thresholds that may split a node.

These are constraints on features of a path, samples of features, and random thresholds.

Also what a split is worth: its gain after the weight of its feature.

    path      f3 -- f7 -- this node        groups of f3 and f7: {f3, f7, f9}, {f3, f7}, ..
    usable    f3, f7, f9                   every feature that one of these groups has, of which a sample may be drawn

Random numbers depend on the tree, the node (or the depth) and the feature alone.  A column that is made from a feature
is drawn with it.
"""

from __future__ import annotations

import numpy as np

from rankmill.foundation.kernels.arrays import copy_to
from rankmill.foundation.kernels.compiling import kernel
from rankmill.foundation.kernels.inner import inner_kernel
from rankmill.foundation.kernels.randoms import random_bits, uniform

_OF_LEVEL, _OF_NODE, _OF_SPLIT = np.int64(1), np.int64(2), np.int64(3)  # disjoint random streams of a tree


@inner_kernel
def _keep_smallest(fraction, key, sources, usable, drawn):
    """Keep of the usable features the ``fraction``, at least one, whose random numbers are the smallest.

    ``drawn`` (n_features,) uint64 is scratch.  The bits of the highest number to keep are found one by one.
    """
    n_usable = 0
    for f in range(usable.shape[0]):
        drawn[f] = random_bits(key, np.int64(sources[f]))
        n_usable += np.int64(usable[f] != 0 and sources[f] == f)
    many, bound = max(1, np.int64(np.rint(fraction * n_usable))), np.uint64(0)
    for place in range(63, -1, -1):
        higher, below = bound | (np.uint64(1) << np.uint64(place)), 0
        for f in range(usable.shape[0]):
            below += np.int64(usable[f] != 0 and sources[f] == f and drawn[f] < higher)
        if below < many:
            bound = higher
    for f in range(usable.shape[0]):
        if drawn[f] > bound:
            usable[f] = 0


@kernel(inline="always")
def usable_features(crew, node, bins, rules, nodes, search, extras):
    """Return 1 for each feature by which ``node`` may be split; (n_features,) uint8.

    The same holds for a level that begins with the node.
    """
    if extras is None or not rules.restricted:
        return bins.enabled
    usable, drawn = search.usable[crew.worker], search.drawn[crew.worker]
    copy_to(usable, bins.enabled)
    if rules.by_level < 1.0:
        key = random_bits(random_bits(rules.tree_key, _OF_LEVEL), nodes.table[node].depth)
        _keep_smallest(rules.by_level, key, bins.sources, usable, drawn)
    if bins.groups.shape[1] > 0:
        for f in range(usable.shape[0]):
            shared = np.uint64(0)
            for word in range(bins.groups.shape[1]):
                shared |= bins.groups[f, word] & nodes.groups[node, word]
            if shared == 0:
                usable[f] = 0
    if rules.by_node < 1.0:
        key = random_bits(random_bits(rules.tree_key, _OF_NODE), node)
        _keep_smallest(rules.by_node, key, bins.sources, usable, drawn)
    return usable


@inner_kernel
def narrow_groups(node, child, f, bins, nodes):
    """Give ``child`` the groups of ``node`` that have feature ``f``, by which it is split."""
    for word in range(bins.groups.shape[1]):
        nodes.groups[child, word] = nodes.groups[node, word] & bins.groups[f, word]


@inner_kernel
def keep_drawn_split(f, node, first, end, rules, work):
    """Forbid all splits of feature ``f`` except after one random bin of first .. end - 1."""
    drawn = np.int64(-1)
    if first < end:
        bits = random_bits(random_bits(random_bits(rules.tree_key, _OF_SPLIT), node), f)
        drawn = first + min(np.int64(uniform(bits) * (end - first)), end - first - 1)
    for b in range(work.shape[1]):
        if b != drawn:
            work[1, b] = -np.inf
            work[2, b] = -np.inf


@inner_kernel
def worth_of(gain, f, bins, rules):
    """Return what the ``gain`` of the best split by feature ``f`` is worth; it rises with the gain."""
    return gain * bins.weights[f] if rules.weighed and gain > 0.0 else gain


@inner_kernel
def bins_in_use(histogram, last):
    """Return the first and the last bin below ``last`` that is not 0; (last, 0) if there is none."""
    first, final = np.int64(last), np.int64(0)
    for b in range(1, last):
        if histogram[b] != 0:
            first = min(first, b)
            final = b
    return first, final
