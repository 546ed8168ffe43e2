"""Writes the golden model files beside it, by the code of the day.  Run by hand when a kind of forest or a format
number is new.

``python -m tests.scorer.golden.write`` writes what is not there yet and never touches a file that is: what an old
version wrote must be read for ever.  Tests read these files and never run this.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from rankmill import Ranker
from rankmill.pipeline.bins.categories import category_codes
from rankmill.scorer.forest.forest import Forest, NodeSets, compact_splits, used_names
from rankmill.scorer.forest.predict import predict

FOLDER = Path(__file__).parent
FEATURES = ("length", "übereinstimmung", "clicks per day")
SMALL = {"max_leaves": 4, "n_rounds": 3, "min_rows_in_leaf": 5, "seed": 11}


def judgments(seed: int) -> tuple[pl.DataFrame, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Features with missing values, grades that depend on them (on what is missing, too), queries."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(120, 3)).astype(np.float32)
    values[:, 2] = rng.integers(0, 4, 120)
    values[rng.random((120, 3)) < 0.15] = np.nan
    reported = np.where(np.isnan(values), [0.4, 1.5, -1.0], values) @ [1.0, 0.5, 0.7] + 0.3 * rng.normal(size=120)
    grades = np.clip(np.floor(reported + 1), 0, 3).astype(np.int64)
    return pl.DataFrame(values, schema=list(FEATURES)), grades, np.repeat(np.arange(12), 10)


def trained(**parameters: Any) -> Forest:
    """A small forest, as the trainer grows it."""
    table, grades, queries = judgments(3)
    forest = Ranker(**(SMALL | parameters)).fit(table, grades, qid=queries).forest_
    assert isinstance(forest, Forest)
    return forest


def by_hand() -> Forest:
    """What no trainer writes and every reader must know: infinite cuts, a lone leaf, odd weights, extremes of a double."""
    return Forest(
        feature_names=FEATURES,
        cuts=np.float32([-np.inf, 1e-45, np.inf, -3.4028235e38]),
        cut_starts=[0, 3, 3, 4],
        tree_starts=[0, 1, 8],
        node_feature=[-1, 0, 2, 0, -1, -1, -1, -1],
        node_cut=[-1, 2, 0, 1, -1, -1, -1, -1],
        node_missing_left=np.uint8([0, 0, 1, 0, 0, 0, 0, 0]),
        node_left=[-1, 2, 3, 5, -1, -1, -1, -1],
        node_right=[-1, 1, 4, 6, -1, -1, -1, -1],
        node_value=[0.1, 0.0, -0.0, 1.5, 5e-324, -1e100, 2.2250738585072014e-308, 1 / 3],
        node_gain=[0.0, 2.0, 1.0, 0.5, 0.0, 0.0, 0.0, 0.0],
        node_rows=[2**40, 0, 1, 2, 3, 4, 5, 6],
        tree_weights=[-0.5, 3.0],
        base_score=-0.1,
        objective="by hand",
        parameters={"text": 'größer \u2265 "quoted"\n', "list": [1, None, True, 1e-7]},
        info={"nested": {"deep": [[], {}]}},
    )


def sets_by_hand() -> Forest:
    """Splits by sets of categories, numbers and texts: one set twice, two of a feature in a tree, one beside a
    threshold."""
    feature = np.int32([2, 0, 2, -1, -1, -1, -1, 2, -1, -1, 1, -1, 1, -1, -1])
    sets = [["0", "3"], [], ["acme", "1"], [], [], [], [], ["0", "3"], [], [], ["-1", "été"], [], [], [], []]
    codes = [np.sort(category_codes(texts)) for texts in sets]
    splits = compact_splits(
        feature, np.full(len(feature), 0.5, np.float32), 3, NodeSets(np.cumsum([0, *map(len, codes)]), np.concatenate(codes))
    )  # fmt: skip
    splits["node_cut"][12] = splits["node_cut"][10]  # a number of a set
    return Forest(
        feature_names=FEATURES,
        categories=used_names({FEATURES[1]: ["été"], FEATURES[2]: ["acme"]}, FEATURES, splits),
        tree_starts=[0, 7, 10, 15],
        node_feature=feature,
        **splits,
        node_missing_left=np.uint8([0, 1] + [0] * 13),
        node_left=[1, 3, 5, -1, -1, -1, -1, 2, -1, -1, 1, -1, 3, -1, -1],
        node_right=[2, 4, 6, -1, -1, -1, -1, 1, -1, -1, 2, -1, 4, -1, -1],
        node_value=np.linspace(-1, 1, 15) / 3,
        node_gain=np.where(feature >= 0, 1.0, 0.0),
        node_rows=np.arange(15) + 1,
        tree_weights=[1.0, 0.1, -2.0],
        base_score=0.25,
        objective="by hand",
    )


def no_trees() -> Forest:
    """A forest that has learnt nothing."""
    grown = trained()
    arrays = {field.name: getattr(grown, field.name) for field in fields(grown)}
    return Forest(**arrays).truncated(0)


KINDS = {
    "best_first": trained,
    "depth_first": lambda: trained(grow="depth_first", max_depth=2, monotone={"length": 1}),
    "oblivious": lambda: trained(grow="oblivious", max_depth=2),
    "weighted": lambda: trained(objective="gbrank(trees=2)"),
    "mcrank": lambda: trained(objective="mcrank", n_rounds=2, max_leaves=3),
    "mcrank_gain": lambda: trained(objective="mcrank(score=gain)", n_rounds=1, max_leaves=3),
    "ordinal": lambda: trained(objective="ordinal", n_rounds=2, max_leaves=3),
    "several_trees_a_round": lambda: replace(trained(n_rounds=4), trees_a_round=2),
    "by_hand": by_hand,
    "sets_by_hand": sets_by_hand,
    "no_trees": no_trees,
}


def rows() -> np.ndarray[Any, Any]:
    """Rows to score: ordinary ones, and every pair of awkward values and categories."""
    awkward = np.float32(
        [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -3.4028235e38, *category_codes(["1", "3", "-1", "acme", "été"])]
    )
    pairs = np.stack(np.meshgrid(awkward, awkward), axis=-1).reshape(-1, 2)
    third = awkward[np.arange(len(pairs)) % len(awkward)]
    return np.concatenate([judgments(5)[0].to_numpy()[:11], np.column_stack([pairs, third])]).astype(np.float32)


def write() -> None:
    """Write what is not there."""
    for kind, make in KINDS.items():
        path = FOLDER / f"{kind}.rankmill"
        if path.exists():
            continue
        forest = make()
        data = forest.to_bytes()
        scores = predict(forest, rows())
        reported = {
            "format": data[8],
            "sha256": forest.sha256,
            "rows": [[float(x).hex() for x in row] for row in rows()],
            "scores": [float(score).hex() for score in scores],
        }
        path.write_bytes(data)
        path.with_suffix(".json").write_text(json.dumps(reported, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
