"""What was written before the tree was restructured is still read, and says what it said then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from rankmill.pipeline.dataset import Dataset
from rankmill.registry.model_registry import Registry
from rankmill.scorer.forest import Forest
from rankmill.trainer.checkpoints import Checkpoint
from tests.pinned_story import run

GOLDEN = Path(__file__).parent / "golden" / "17"


def test_a_dataset_with_bins_pairs_weights_and_times() -> None:
    dataset = Dataset.open(GOLDEN / "csv")
    dataset.verify()
    assert dataset.digest == "b3aff8e232b907d488ae956bd9d2a485654ecf1230836e2d460082360cde4c0e"
    sizes = {name: (count.queries, count.rows) for name, count in dataset.manifest.splits.items()}
    assert sizes == {"test": (7, 85), "train": (35, 406), "valid": (8, 95)}
    first = dataset.rows("test", ["qid", "doc_id", "grade", "weight", "f12"]).slice(0, 1).to_pylist()
    assert first == [{"qid": "47", "doc_id": "D47-1", "grade": 2, "weight": 2.5, "f12": 771.0}]
    assert dataset.manifest.missing_values == 84
    pairs = dataset.pairs()
    assert pairs is not None
    assert len(pairs) == 302
    binspec = dataset.binspec()
    assert [feature.n_bins for feature in binspec.features][:4] == [32, 14, 32, 27]
    counted = np.concatenate([batch.ravel() for batch in dataset.bin_batches("train")])
    assert int(counted.astype(np.int64).sum()) == 50598


def test_it_is_trained_on(tmp_path: Path) -> None:
    told = run("train", GOLDEN / "csv", "--name", "again", "--registry", tmp_path / "r", "--objective", "ranknet",
               "--learn-from", "both", "--preset", "defaults-1", "--n-rounds", 3, "--max-leaves", 5, "--min-rows-in-leaf", 5, "--json")  # fmt: skip
    assert json.loads(told)["sha256"] == "1cfb6c8f1455892fb3cbcf6d054ea18ce513993430d3237378470880c6519d67"


def test_a_model_file_and_a_checkpoint() -> None:
    path = GOLDEN / "lambdamart.rankmill"
    forest = Forest.from_bytes(path.read_bytes(), str(path))
    assert forest.to_bytes() == path.read_bytes()
    assert (forest.n_rounds, forest.objective, len(forest.feature_names)) == (3, "lambdamart", 12)
    kept = Checkpoint(GOLDEN / "ranknet.checkpoint").read()
    assert kept is not None
    assert (kept.n_rounds, kept.objective) == (3, "ranknet")


def test_a_registry_and_a_bundle(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "registry", tmp_path / "r")
    registry = Registry(tmp_path / "r")
    assert registry.verify().ok
    first, second = registry.versions("lambdamart")
    assert (first.aliases, second.aliases, second.tags) == (("production",), (), {"quality": "good"})
    assert registry.resolve("lambdamart@1", bare="latest").read() == (GOLDEN / "lambdamart.rankmill").read_bytes()
    assert sorted(registry.names()) == sorted(
        ["lambdamart", "oblivious", "sampled", "ole", "ranknet", "quantile", "monotone", "listnet"]
    )
    registry.export("lambdamart@1", tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == (GOLDEN / "version.tar").read_bytes()
    registry.import_(GOLDEN / "version.tar", name="other", move_aliases=True)
    assert registry.versions("other")[0].sha256 == first.sha256


def test_a_ranked_folder() -> None:
    told = json.loads(run("evaluate", GOLDEN / "ranked", "--metric", "ndcg@5", "--metric", "map", "--json"))
    assert {name: round(metric["mean"], 12) for name, metric in told["metrics"].items()} == {
        "map": 0.687695894962,
        "ndcg@5": 0.770860754679,
    }


def test_a_search_and_its_table(tmp_path: Path) -> None:
    table = json.loads((GOLDEN / "tuning" / "table.json").read_text(encoding="utf-8"))
    assert [trial["trial"] for trial in table["trials"]] == [0, 2, 1]
    shutil.copytree(GOLDEN / "tuning", tmp_path / "tuning")
    with pytest.raises(AssertionError, match="contains a search with other data"):
        run("tune", GOLDEN / "csv", "-o", tmp_path / "tuning", "--trials", 1, "--workers", 1)
