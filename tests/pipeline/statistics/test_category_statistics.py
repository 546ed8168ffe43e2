"""Statistics of categorical features: counts of categories, and drift over cells of the most frequent ones."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter

import numpy as np
import pytest

from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.statistics.dataset_drift import compare, compare_with
from rankmill.pipeline.statistics.describe_dataset import describe
from rankmill.pipeline.statistics.drift_reference import DriftReference
from rankmill.pipeline.statistics.psi import FeatureSample, Sums


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Datasets with the feature ``brand``, whose categories have the weights ``brands``, each made once."""
    there = {}

    def dataset(brands, *, seed=1, missing=0.1):
        key = repr((brands, seed, missing))
        if key not in there:
            rng = random.Random(seed)
            lines = ["qid,doc_id,grade,x,brand"]
            for row in range(2000):
                brand = "" if rng.random() < missing else rng.choices(list(brands), list(brands.values()))[0]
                lines.append(f"q{row // 5},d{row},{row % 3},{rng.random():.4f},{brand}")
            folder = tmp_path_factory.mktemp("categories")
            (folder / "in.csv").write_text("\n".join(lines) + "\n")
            read = ReadOptions(categorical=("brand",))
            ingest([folder / "in.csv"], folder / "data", options=IngestOptions(read=read, buckets=3))
            there[key] = Dataset.open(folder / "data"), Counter(line.rsplit(",", 1)[1] for line in lines[1:])
        found, counts = there[key]
        return found, counts.copy()

    return dataset


MANY = {f"b{k}": 1 / (k + 1) for k in range(60)}
FEW = {"acme": 5.0, "late": 3.0, "17": 2.0}


def test_describe_counts_categories_and_has_no_mean_of_codes(made):
    dataset, counts = made(MANY)
    missing = counts.pop("")
    found = describe(dataset)
    number, brand = found.features
    assert number.categories is None
    assert brand.categories is not None
    assert (brand.minimum, brand.maximum, brand.missing) == (None, None, missing)
    assert brand.distinct == brand.categories.number == len(counts)
    listed = {each.text: each.rows for each in brand.categories.most_frequent}
    assert [*listed.values()] == sorted(counts.values(), reverse=True)[: len(listed)]
    assert all(counts[text] == rows for text, rows in listed.items())
    assert sum(listed.values()) + brand.categories.other_rows + missing == dataset.manifest.rows
    assert brand.remarks == []
    text = found.render(100)
    assert "b0 " in text
    assert "others" in text
    x, of_brand = json.loads(found.to_json())["features"]
    assert "categories" not in x
    assert of_brand["categories"]["number"] == len(counts)


def test_the_same_category_everywhere_is_constant_and_none_is_all_missing(made):
    dataset, _ = made({"acme": 1.0}, missing=0.0)
    assert describe(dataset).features[1].remarks == ["constant"]
    dataset, _ = made({"acme": 1.0}, missing=1.0)
    assert describe(dataset).features[1].remarks == ["all missing"]


@pytest.mark.parametrize("brands", [FEW, MANY])
def test_categories_that_do_not_change_raise_no_alarm(made, tmp_path, brands):
    old, new = (made(brands, seed=seed)[0] for seed in (1, 2))
    bin_dataset(Dataset.open(shutil.copytree(old.path, tmp_path / "binned")), 31)
    for former in (old, Dataset.open(tmp_path / "binned")):
        found = compare(new, former)
        assert not found.alarms
        assert found.features[1].beyond == 0.0
        assert compare(former, former).features[1].psi == pytest.approx(0.0, abs=1e-9)


def test_a_new_category_is_an_alarm_and_its_share_is_reported(made):
    old, _ = made(FEW)
    new, counts = made(FEW | {"new": 4.0}, seed=2)
    found = compare(new, old)
    assert found.alarms == ("brand",)
    assert found.features[1].beyond == pytest.approx(counts["new"] / sum(counts.values()))


def test_a_new_category_shows_up_among_many_rare_ones(made):
    old, _ = made(MANY)
    new, counts = made(MANY | {"new": 0.3}, seed=2)
    (_, drift) = compare(new, old).features
    assert drift.beyond == pytest.approx(counts["new"] / sum(counts.values()))
    assert drift.alarm
    gone = compare(old, new).features[1]
    assert gone.beyond == 0.0


def test_a_stored_reference_gives_what_the_dataset_gives(made, tmp_path):
    old, _ = made(MANY)
    new, _ = made(MANY | {"b1": 2.0}, seed=2)
    reference = DriftReference.of(old)
    reference.write(tmp_path / "reference.parquet")
    again = DriftReference.read(tmp_path / "reference.parquet")
    assert again.features[1].categorical
    assert not again.features[0].categorical
    found = compare(new, old)
    assert compare_with(new, again).to_json() == found.to_json()
    assert found.alarms == ("brand",)  # no category is new or gone


def test_cells_are_the_most_frequent_categories_counted_one_by_one(made):
    dataset, counts = made(MANY)
    values, starts = dataset.feature_column("brand"), dataset.queries().starts
    sample = FeatureSample.of("brand", values, starts, 8, categorical=True)
    missing = counts.pop("")
    best = sorted(counts.values(), reverse=True)[:7]
    assert sorted(sample.sums.counts[2:-2].tolist(), reverse=True) == best
    assert sample.sums.counts[[0, 1, -2, -1]].tolist() == [missing, 0, sum(counts.values()) - sum(best), 0]
    joined = sample.joined(4)
    direct = FeatureSample.of("brand", values, starts, 4, categorical=True)
    np.testing.assert_array_equal(joined.edges, direct.edges)
    for field in ("counts", "weighted", "products", "squares"):
        np.testing.assert_array_equal(getattr(joined.sums, field), getattr(direct.sums, field))
    assert isinstance(joined.placed(values, starts), Sums)
