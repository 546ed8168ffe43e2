"""The naive model is trained beside one that corrects clicks, shown, and changes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from rankmill.pipeline.binning import bin_dataset
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions
from rankmill.registry import Registry
from rankmill.registry.descriptions import VersionDetails
from rankmill.trainer.options import SeedOptions
from rankmill.trainer.train_on_dataset import train
from rankmill.trainer.training_options import TrainingOptions
from rankmill.trainer.training_service import train_and_register
from tests.trainer.fixed import fixed

PLAIN = {"n_rounds": 6, "max_leaves": 4, "min_rows_in_leaf": 5, "early_stopping_rounds": 0}
QUIET = TrainingOptions(n_threads=1, on_message=lambda _: None)


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    """A dataset of lists of six, clicked at random, less at lower positions."""
    folder, rng, n = tmp_path_factory.mktemp("clicks"), np.random.default_rng(1), 200
    position = np.tile(np.arange(1, 7), n)
    x = rng.normal(size=(6 * n, 2))
    frame = pl.DataFrame(
        {
            "qid": np.repeat([f"q{i}/s" for i in range(n)], 6),
            "doc_id": np.tile([f"d{i}" for i in range(6)], n),
            "grade": (rng.random(6 * n) < 0.9 / position / (1.0 + np.exp(-x[:, 0]))).astype(np.int64),
            "position": position,
            "f1": x[:, 0],
            "f2": x[:, 1],
        }
    )
    frame.write_parquet(folder / "impressions.parquet")
    return dataset_of(folder)


def dataset_of(folder):
    ingest([folder / "impressions.parquet"], folder / "d", options=IngestOptions(split={"train": 0.7, "valid": 0.3}))
    bin_dataset(Dataset.open(folder / "d"), 31)
    return Dataset.open(folder / "d")


@pytest.mark.parametrize(
    "way",
    [{"position_bias": "additive"}, {"position_bias": "unbiased"}, {"propensities": {"examination": [1.0, 0.5]}}],
    ids=str,
)
def test_a_corrected_model_shows_the_naive_one(clicks, tmp_path, way):
    registry = Registry(tmp_path / "registry")
    done = train_and_register(clicks, "w", registry, fixed(**PLAIN, **way), QUIET, SeedOptions())
    plain = train(clicks, fixed(**PLAIN), QUIET)
    found = done.candidate.facts.clicks
    assert found.naive.sha256 == plain.forest.sha256
    assert found.naive.metrics["valid"]["ndcg@10"] == plain.history[-1].metrics["valid"]["ndcg@10"]
    assert found.valid_has == "clicks"
    shown = done.report.valid["ndcg@10"]
    line = f"valid ndcg@10 (clicks): naive {found.naive.metrics['valid']['ndcg@10']:.4f}, corrected {shown:.4f}"
    assert line in done.report.render()
    assert line in [
        cell for row in VersionDetails(registry, done.version).rows() for cell in "\n".join(row).splitlines()
    ]
    learnt = done.report.to_dict()["clicks"].get("position_bias")
    assert (learnt is None) == ("propensities" in way)
    assert learnt is None or learnt["position"] == [1, 2, 3, 4, 5, 6]
    alone = train_and_register(
        clicks, "w", registry, fixed(**PLAIN, **way), replace(QUIET, naive_beside=False), SeedOptions()
    )
    assert alone.version.sha256 == done.version.sha256
    assert alone.candidate.facts.clicks.naive is None


def test_without_a_correction_nothing_is_trained_beside(clicks, tmp_path):
    done = train_and_register(clicks, "w", Registry(tmp_path / "registry"), fixed(**PLAIN), QUIET, SeedOptions())
    assert done.candidate.facts.clicks is None
    assert "clicks" not in done.report.to_dict()
