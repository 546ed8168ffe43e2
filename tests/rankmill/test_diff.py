"""Two models side by side, against their scores and plain walks through their trees."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankmill import diff as differing
from rankmill import diff_table
from rankmill.cli import execute
from rankmill.diff import ModelDifference, Side, changes
from rankmill.forest_likeness import depths_of, likeness_of, same_trees, shape_of
from rankmill.foundation.records import as_json, from_json
from rankmill.pipeline.options import SynthParameters
from rankmill.pipeline.synth import write_synthetic
from rankmill.scorer.forest import Forest, compact_splits, feature_importance
from rankmill.scorer.predict import ForestPredictor
from tests.scorer.forests import random_forest


def diff(old: Side, new: Side) -> dict[str, Any]:
    """What `models diff --json` prints."""
    return as_json(differing.diff(old, new))


def rows_of(report: dict[str, Any]) -> list[list[str]]:
    return diff_table.rows_of(from_json(ModelDifference, report, "report"))


def side(forest: Forest | None, name: str = "a", **facts: Any) -> Side:
    features = ["f1"] if forest is None else list(forest.feature_names)
    told = {"features": features, "parameters": {}, "metrics": {}, "dataset_digest": None} | facts
    return Side(name=name, sha256=name * 64, size=10, model=forest, facts=told)


def shuffled(forest: Forest, seed: int) -> Forest:
    """The same forest over features in another order."""
    order = np.random.default_rng(seed).permutation(forest.n_features)
    place = np.append(np.argsort(order), -1).astype(np.int32)
    feature = place[forest.node_feature]
    splits = compact_splits(feature, forest.thresholds, forest.n_features)
    names = tuple(forest.feature_names[f] for f in order)
    return replace(forest, feature_names=names, node_feature=feature, **splits)


def scores(forest: Forest, rows: np.ndarray) -> np.ndarray:
    """Scores of rows whose columns are f1, f2, .."""
    columns = np.array([int(name[1:]) - 1 for name in ForestPredictor(forest).feature_names])
    return ForestPredictor(forest).scores(rows, columns=columns)


@pytest.mark.parametrize("seed", range(6))
def test_forests_that_are_called_the_same_give_the_same_bits(seed: int) -> None:
    forest = random_forest(seed)
    other = shuffled(forest, seed)
    told_otherwise = replace(other, node_gain=forest.node_gain * 2, node_rows=forest.node_rows + 1, info={"a": 1})
    rows = np.random.default_rng(seed).normal(size=(500, 5)).astype(np.float32)
    rows[::7, 2] = np.nan
    assert likeness_of(forest, told_otherwise).same
    assert same_trees(forest, told_otherwise) == forest.n_trees
    assert scores(forest, rows).tobytes() == scores(told_otherwise, rows).tobytes()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_moves_a_score_is_seen_in_the_tree_where_it_is(seed: int) -> None:
    forest = random_forest(seed, n_trees=5)
    sizes = np.diff(forest.tree_starts)
    for node in np.flatnonzero(np.repeat(sizes, sizes) > 1):
        tree = int(np.searchsorted(forest.tree_starts, node, side="right")) - 1
        inner = forest.node_feature[node] >= 0
        value = forest.node_value.copy()
        value[node] += 1e-9
        moved = replace(forest, node_value=value)
        assert same_trees(forest, moved) == (forest.n_trees if inner else tree)
        if inner:
            side_of_missing = forest.node_missing_left.copy()
            side_of_missing[node] ^= 1
            assert same_trees(forest, replace(forest, node_missing_left=side_of_missing)) == tree
            thresholds = forest.thresholds
            thresholds[node] = np.nextafter(thresholds[node], np.float32(9))
            other = replace(forest, **compact_splits(forest.node_feature, thresholds, forest.n_features))
            assert same_trees(forest, other) == tree
    for tree in range(forest.n_trees):
        weights = forest.tree_weights.copy()
        weights[tree] *= 1.5
        assert same_trees(forest, replace(forest, tree_weights=weights)) == tree
    assert not likeness_of(forest, replace(forest, base_score=forest.base_score + 1)).same
    names = tuple(f"{name}x" for name in forest.feature_names)
    first_split = int(np.argmax(forest.node_feature >= 0))
    tree = int(np.searchsorted(forest.tree_starts, first_split, side="right")) - 1
    assert same_trees(forest, replace(forest, feature_names=names)) == tree


@pytest.mark.parametrize("seed", range(4))
def test_a_forest_begins_with_its_own_rounds(seed: int) -> None:
    forest = random_forest(seed)
    for n in range(forest.n_trees + 1):
        short = forest.truncated(n)
        assert same_trees(forest, short) == same_trees(short, forest) == n
        assert likeness_of(forest, short).same == (n == forest.n_trees)


@pytest.mark.parametrize("seed", range(4))
def test_the_shape_is_that_of_a_walk(seed: int) -> None:
    forest = random_forest(seed, n_trees=7)
    depths, leaves = [], []
    for start, end in zip(forest.tree_starts[:-1].tolist(), forest.tree_starts[1:].tolist(), strict=True):
        of_tree = [0] * (end - start)
        for node in range(end - start):
            for child in (forest.node_left[start + node], forest.node_right[start + node]):
                if child >= 0:
                    of_tree[child] = of_tree[node] + 1
        depths += of_tree
        leaves.append(sum(forest.node_feature[start:end] < 0))
    assert depths_of(forest).tolist() == depths
    shape = shape_of(forest)
    assert (shape.leaves, shape.most_leaves, shape.depth) == (sum(leaves), max(leaves), max(depths))
    assert shape_of(forest.truncated(0)).leaves == 0


def test_the_difference_of_one_is_none_and_of_two_turns_round() -> None:
    one, other = random_forest(1), random_forest(2, n_features=6)
    facts = {"metrics": {"valid": {"ndcg@10": 0.5, "map": 0.25}}, "intervals": {"valid": {"map": [0.2, 0.3]}}}
    a = side(one, "a", parameters={"x": 1, "y": 2}, dataset_digest="d" * 64, **facts)
    b = side(other, "b", parameters={"x": 1.5, "z": 3}, dataset_digest="e" * 64, metrics={"valid": {"map": 0.5}})
    same = diff(a, a)
    assert same["same_bytes"]
    assert same["scores"] == {"same": True, "same_start": True, "same_first_trees": one.n_trees}
    assert same["parameters"] == {}
    assert all(row["difference"] == 0 for row in same["influence"])
    there, back = diff(a, b), diff(b, a)
    assert there["parameters"] == {"x": {"old": 1, "new": 1.5}, "y": {"old": 2}, "z": {"new": 3}}
    assert there["features"]["added"] == back["features"]["removed"] == ["f6"]
    assert there["features"]["used_now"] == back["features"]["unused_now"]
    assert not there["features"]["reordered"]
    assert there["shape"] == {"old": back["shape"]["new"], "new": back["shape"]["old"]}
    assert there["metrics"]["same_data"] is False
    assert there["metrics"]["splits"] == {
        "valid": {
            "map": {"old": 0.25, "old_interval": [0.2, 0.3], "new": 0.5, "new_interval": None, "difference": 0.25}
        }
    }
    influence = dict(zip(other.feature_names, feature_importance(other).tolist(), strict=True))
    assert {row["feature"]: row["new"] for row in there["influence"]} == influence
    moves = [abs(row["difference"]) for row in there["influence"]]
    assert moves == sorted(moves, reverse=True)
    json.dumps(there, allow_nan=False)
    assert any("OTHER DATA" in row[3] for row in rows_of(there))


def test_files_added_and_removed_are_named_and_an_order_of_features_too() -> None:
    def data(*names: str) -> dict[str, Any]:
        return {"sources": {"files": len(names), "list": [{"name": n, "sha256": n} for n in names]}}

    forest = random_forest(3)
    report = diff(
        side(forest, dataset=data("mon", "tue")), side(shuffled(forest, 5), "b", dataset=data("tue", "wed", "thu"))
    )
    told = report["data"]["sources"]
    assert [[file["name"] for file in told[what]] for what in ("added", "removed")] == [["thu", "wed"], ["mon"]]
    assert report["features"]["reordered"]
    assert report["scores"]["same"]
    rows = {row[0]: row for row in rows_of(report)}
    assert rows["files"] == ["files", "2", "3", "added thu, wed; removed mon"]
    assert rows["features"][3] == "in another order"


def test_other_libraries_are_told() -> None:
    forest = random_forest(1)
    old, new = (
        replace(side(forest, name), circumstances={"libraries": {"numpy": numpy, "numba": "1"}, "machine": "arm64"})
        for name, numpy in (("a", "2.3"), ("b", "2.4"))
    )
    report = diff(old, new)
    assert report["made_with"] == {"numpy": {"old": "2.3", "new": "2.4"}}
    assert ["numpy", "2.3", "2.4", "another version"] in rows_of(report)
    assert diff(old, side(forest))["made_with"]["numpy"] == {"old": "2.3"}
    assert not [row for row in rows_of(diff(old, side(forest))) if row[0] == "numpy"]


def test_of_a_model_whose_bytes_are_gone_the_facts_are_compared() -> None:
    report = diff(side(None), side(random_forest(1), "b", features=["f2", "f1"]))
    assert report["scores"] is report["shape"] is report["influence"] is None
    assert report["features"] == {"old": 1, "new": 2, "added": ["f2"], "removed": [], "reordered": False}
    assert any("the file of a model was swept" in row[3] for row in rows_of(report))


@pytest.mark.parametrize(
    "facts",
    [
        {"dataset": "monday", "intervals": [1], "metrics": {"valid": {"map": "good"}}},
        {"dataset": {"rows": "many", "sources": 7, "splits": 1}, "metrics": {"valid": 0.5}, "code_digest": 3},
        {"dataset": {"sources": {"list": [1, {}], "files": None}}, "intervals": {"valid": {"map": "wide"}}},
        {"base_model": "x", "metrics": {"valid": {"map": 0.5}}, "intervals": {"valid": {"map": [1]}}},
    ],
)
def test_facts_of_any_shape_are_compared(facts: dict[str, Any]) -> None:
    forest = random_forest(1)
    plain = side(forest, "b", metrics={"valid": {"map": 0.25}}, dataset={"rows": 7, "sources": {"files": 2}})
    for pair in ((side(forest, **facts), plain), (plain, side(forest, **facts))):
        assert rows_of(json.loads(json.dumps(diff(*pair))))


def test_what_both_have_and_what_one_has() -> None:
    assert changes({}, {}) == {}
    assert changes({"a": None}, {}) == {"a": {"old": None}}


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_synthetic(Path("j.txt"), SynthParameters(queries=40, documents_per_query=8, features=10, seed=1))
    assert execute(["data", "ingest", "j.txt", "-o", "d", "--buckets", "2", "--split", "train=0.6,valid=0.4"]) == 0
    assert execute(["data", "bin", "d", "--max-bin", "31"]) == 0
    common = [
        "train",
        "d",
        "--name",
        "web",
        "--preset",
        "defaults-1",
        "--max-leaves",
        "4",
        "--early-stopping-rounds",
        "0",
    ]
    assert execute([*common, "--n-rounds", "3"]) == 0
    assert execute([*common, "--n-rounds", "3", "--learning-rate", "0.4"]) == 0
    capsys.readouterr()


@pytest.mark.usefixtures("two")
def test_the_command_compares_versions_and_files(capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> str:
        assert execute(["models", *words]) == 0
        return capsys.readouterr().out

    text = run("diff", "web@1", "web")
    assert "web@2" in text
    assert [line.split() for line in text.splitlines() if "learning_rate" in line] == [["learning_rate", "0.1", "0.4"]]
    found = json.loads(run("diff", "web@1", "web@2", "--json"))
    assert found["parameters"] == {"learning_rate": {"old": 0.1, "new": 0.4}}
    assert set(found["metrics"]["splits"]) == {"train", "valid"}
    assert found["metrics"]["same_data"]
    assert run("diff", "web@1", "web@2", "--json") == run("diff", "web@1", "web@latest", "--json")
    Path("one.rankmill").write_bytes(Path(json.loads(run("show", "web@1", "--json"))["model_path"]).read_bytes())
    found = json.loads(run("diff", "one.rankmill", "web@1", "--json"))
    assert found["same_bytes"]
    assert found["scores"]["same"]
    assert found["parameters"] == {}
    assert found["old"]["model"] == "one.rankmill"
    assert found["metrics"]["same_data"]


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(("words", "message"), [(["web@9", "web"], "no version 9"), (["web", "none.rankmill"], "none")])
def test_what_is_not_there_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["models", "diff", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
