"""Random forests for tests: any shape that a trainer could grow, and some that it would not."""

import numpy as np

from rankmill.pipeline.bins.categories import category_codes
from rankmill.scorer.forest.forest import Forest, NodeSets, compact_splits, used_names

TEXTS = ["0", "1", "2", "3", "7", "31", "32", "200", "65536", "-3", "acme", "zeta", "été", "<b>", "01", "0.5"]
"""Categories: numbers that are their own codes, and texts."""


def random_forest(
    seed,
    n_features=5,
    n_trees=6,
    max_leaves=9,
    n_thresholds=7,
    names=None,
    categorical=0,
    texts=TEXTS,
    missing_right=False,
    **extra,
):
    """Grow trees by splitting random leaves at random thresholds; nodes are numbered in a random valid order.

    The first ``categorical`` features split by sets of ``texts`` instead, and as trained ones do if ``missing_right``.
    """
    rng = np.random.default_rng(seed)
    grid = np.sort(rng.normal(size=(n_features, n_thresholds)).astype(np.float32), axis=1)
    names = tuple(names or (f"f{i + 1}" for i in range(n_features)))
    codes = category_codes(texts)
    nodes, tree_starts = [], [0]
    for _ in range(n_trees):
        tree = [{"feature": -1, "threshold": np.float32(0), "missing": 0, "left": -1, "right": -1}]
        leaves = [0]
        for _ in range(int(rng.integers(0, max_leaves))):
            node = tree[leaves.pop(int(rng.integers(len(leaves))))]
            f = int(rng.integers(n_features))
            children = [len(tree), len(tree) + 1]
            rng.shuffle(children)
            node.update(
                feature=f,
                threshold=grid[f, rng.integers(n_thresholds)],
                missing=int(rng.integers(2)),
                left=children[0],
                right=children[1],
            )
            if f < categorical:
                size = int(rng.integers(1, max(len(codes) // 2, 2)))
                node.update(missing=node["missing"] * (not missing_right))
                node.update(set=np.sort(rng.choice(codes, size=size, replace=False)))
            leaves += children
            tree += [
                {"feature": -1, "threshold": np.float32(0), "missing": 0, "left": -1, "right": -1} for _ in range(2)
            ]
        nodes += tree
        tree_starts.append(len(nodes))
    feature = np.array([n["feature"] for n in nodes], dtype=np.int32)
    thresholds = np.array([n["threshold"] for n in nodes], dtype=np.float32)
    chosen = [n.get("set", codes[:0]) for n in nodes]
    sets = NodeSets(np.cumsum([0, *map(len, chosen)]), np.concatenate([codes[:0], *chosen]))
    splits = compact_splits(feature, thresholds, n_features, sets)
    return Forest(
        feature_names=names,
        categories=used_names(dict.fromkeys(names[:categorical], texts), names, splits),
        tree_starts=np.array(tree_starts, dtype=np.int32),
        node_feature=feature,
        **splits,
        node_missing_left=np.array([n["missing"] for n in nodes], dtype=np.uint8),
        node_left=np.array([n["left"] for n in nodes], dtype=np.int32),
        node_right=np.array([n["right"] for n in nodes], dtype=np.int32),
        node_value=rng.normal(size=len(nodes)),
        node_gain=np.where(feature >= 0, rng.random(len(nodes)), 0.0),
        node_rows=rng.integers(1, 100, size=len(nodes)),
        tree_weights=rng.random(n_trees) + 0.5,
        base_score=float(rng.normal()),
        objective="lambdarank",
        **extra,
    )


def by_hand(**given):
    """A forest of one feature and one tree, of what is given."""
    n = len(given["node_feature"])
    usual = {
        "feature_names": ("x",), "cut_starts": [0, len(given["cuts"])], "tree_starts": [0, n],
        "node_missing_left": np.zeros(n, np.uint8), "node_gain": np.zeros(n), "node_rows": np.ones(n, np.int64),
        "tree_weights": [1.0], "base_score": 0.0, "objective": "l2",
    }  # fmt: skip
    return Forest(**usual | given)
