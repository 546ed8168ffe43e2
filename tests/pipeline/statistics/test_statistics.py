"""What is counted of the columns while they are written, a shard at a time, and what describe says of it."""

import json
import os
import random
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from typer.testing import CliRunner

import rankmill.cli  # noqa: F401 - it adds `synth`, which simulates clicks, too, to the commands of data
from rankmill.foundation.errors import InputError
from rankmill.foundation.records import as_json
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.cli import app
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.statistics.dataset_drift import compare, compare_with
from rankmill.pipeline.statistics.describe_dataset import describe
from rankmill.pipeline.statistics.drift_reference import DriftReference
from rankmill.pipeline.statistics.feature_statistics import ColumnCollector, FeatureFacts, Statistics, query_counts
from rankmill.pipeline.statistics.psi import FeatureSample, Sums
from tests import naive_datasets

law = settings(deadline=None)
SOME = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, np.nan, np.inf, -np.inf, 1e-45]) | st.floats(width=32)
COLUMNS = hnp.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(0, 40)), elements=SOME)


@law
@given(COLUMNS, st.lists(st.integers(1, 6), min_size=40, max_size=40), st.lists(st.integers(0, 40), max_size=4))
def test_what_is_counted_is_what_is_there_in_any_pieces(columns, sizes, cuts):
    rows = columns.shape[1]
    queries = [f"q{number}" for number, size in enumerate(sizes) for _ in range(size)][:rows]
    starts = np.array([row for row in range(rows) if row == 0 or queries[row] != queries[row - 1]], dtype=np.int64)
    collector = ColumnCollector(len(columns), starts)
    for piece in np.split(columns, sorted(cut % (rows + 1) for cut in cuts), axis=1):
        collector.add(np.ascontiguousarray(piece))
    names = tuple(f"f{number}" for number in range(len(columns)))
    for name, column, found in zip(names, columns.tolist(), collector.table(names).to_pylist(), strict=True):
        assert found == {"feature": name, **naive_datasets.facts(column, queries)}
        assert str(found["minimum"]) != "-0.0"
    assert collector.missing == np.isnan(columns).sum()


@law
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=8))
def test_queries_that_teach_little(queries):
    grade = np.array([grade for query in queries for grade in query], dtype=np.int32)
    starts = np.cumsum([0, *map(len, queries)])[:-1].astype(np.int64)
    one_document, one_grade = query_counts(grade, starts)
    assert one_document == sum(len(query) == 1 for query in queries)
    assert one_grade == sum(len(query) > 1 and len(set(query)) == 1 for query in queries)


TEXT = """\
2 qid:a 1:1 2:1 3:7 4:5 6:-1 7:1 8:nan
0 qid:a 1:2 2:2 3:7 4:5 6:0 7:inf 8:3
0 qid:b 1:3 2:3 3:7 4:6 6:0 7:1
0 qid:b 1:3 2:3 3:7 4:6 6:-0 7:1
1 qid:c 1:4 2:4 3:7 4:8 6:nan 7:1
"""


def make(folder, text=TEXT, name="data", **options):
    (folder / f"{name}.txt").write_text(text)
    read = ReadOptions(absent="missing", n_features=8)
    ingest([folder / f"{name}.txt"], folder / name, options=IngestOptions(read=read, buckets=3, **options))
    return Dataset.open(folder / name)


def test_describe_needs_no_columns_where_there_are_too_many(tmp_path, monkeypatch):
    dataset = make(tmp_path)
    bin_dataset(dataset)
    whole = describe(Dataset.open(dataset.path))
    monkeypatch.setattr("rankmill.pipeline.statistics.describe_dataset._MOST_COUNTED", 10)
    monkeypatch.setattr(Dataset, "column_batches", lambda *_: pytest.fail("reads columns"))
    quick = describe(Dataset.open(dataset.path))
    assert [feature.distinct for feature in quick.features] == [None] * 8
    assert [feature.remarks for feature in quick.features] == [feature.remarks for feature in whole.features]
    assert [feature.bins for feature in quick.features] == [feature.bins for feature in whole.features]
    assert "-" in quick.render()


def test_ingest_reports_queries_without_training_signal(tmp_path):
    (tmp_path / "in.txt").write_text(TEXT)
    arguments = ["ingest", os.fspath(tmp_path / "in.txt"), "--absent", "missing", "--n-features", "8"]
    reported = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "a")]).stdout
    assert "  remarks   all missing: f5; constant: f3; the same: f2 as f1; infinite values: f7\n" in reported
    assert "            queries: 1 of one document, 1 of one grade\n" in reported
    reported = json.loads(CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "b"), "--json"]).stdout)
    assert reported["remarks"][0].endswith("; infinite values: f7")
    assert reported["statistics"]["one_document"] == 1
    assert reported["statistics"]["features"][6]["maximum"] == "inf"
    assert reported["statistics"]["features"][1]["same_as"] == "f1"


def test_ingest_reports_that_nothing_can_be_trained_on(tmp_path):
    (tmp_path / "in.txt").write_text(TEXT)
    without = ingest([tmp_path / "in.txt"], tmp_path / "a", options=IngestOptions(split={"valid": 0.5, "test": 0.5}))
    assert without.remarks[-1] == "no query is in the train split: training needs one"
    assert without.to_json()["remarks"] == without.remarks
    assert without.remarks[-1] in without.render()
    whole = ingest([tmp_path / "in.txt"], tmp_path / "b")
    assert whole.remarks == without.remarks[:-1]


def test_amounts_that_were_taken_for_grades_are_reported_and_not_all_of_them_listed(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{grade} qid:{grade % 7} 1:{grade}\n" for grade in range(31, -1, -1)))
    few = ingest([path], tmp_path / "few")
    assert few.remarks == []
    path.write_text(path.read_text() + "4986 qid:a 1:1\n31 qid:a 1:2\n")
    found = ingest([path], tmp_path / "many")
    assert found.remarks == [
        "grades up to 4,986: amounts are labels (a column label, columns={'label': NAME}; labels='real' for LETOR text)"
    ]
    listed = next(line for line in found.render().splitlines() if line.startswith("  grades"))
    assert listed.count("%") == 12
    assert "11: 1 (2.9%) and 21 more" in listed
    assert len(found.to_json()["grades"]) == 33
    described = describe(Dataset.open(tmp_path / "many"))
    rows = [line.split() for line in described.render().splitlines() if "grade" in line]
    assert [row[1] for row in rows if row[0] == "grade"] == [str(grade) for grade in range(12)]
    assert ["and", "21", "more", "grades", "22", "(64.7%)"] in rows
    assert set(described.splits[0].grades) == {*range(32), 4986}


def test_nothing_is_said_where_there_is_nothing_to_say():
    plain = FeatureFacts("a", 0.0, 1.0, 0, 3, 4, None)
    assert Statistics((plain,), 0, 0).remarks == []
    many = tuple(FeatureFacts(f"f{i}", 1.0, 1.0, 0, 0, 0, None if not i else "f0") for i in range(30))
    assert Statistics(many, 0, 2).remarks == ["constant: f0, f1, f2, f3, f4 and 25 more", "queries: 2 of one grade"]


# ---- what describe says of a small data set of which everything is known
# -----------------------------------------------

# f1 differs, f2 is f1, f3 is constant, f4 is constant in a query, f5 is never there, f6 is missing once, f7 is infinite
TRAIN = """\
2 qid:a 1:1 2:1 3:7 4:5 6:-1 7:1
0 qid:a 1:2 2:2 3:7 4:5 6:0 7:inf
0 qid:a 1:3 2:3 3:7 4:5 6:0 7:1
0 qid:b 1:3 2:3 3:7 4:6 6:0 7:1
0 qid:b 1:3 2:3 3:7 4:6 6:0 7:1
1 qid:c 1:4 2:4 3:7 4:8 6:nan 7:1
"""
TEST = """\
1 qid:d 1:5 2:5 3:7 4:9 5:nan 6:3 7:1
1 qid:d 1:1 2:1 3:7 4:9 5:nan 6:3 7:1
"""


@pytest.fixture
def dataset(tmp_path):
    for name, text in (("train.txt", TRAIN), ("test.txt", TEST)):
        (tmp_path / name).write_text(text)
    options = IngestOptions(read=ReadOptions(absent="missing", max_grade=3), buckets=3)
    ingest([tmp_path / "train.txt"], tmp_path / "data", test=[tmp_path / "test.txt"], options=options)
    return Dataset.open(tmp_path / "data")


def test_splits(dataset):
    train, test = describe(dataset).splits
    assert (train.name, train.queries, train.rows) == ("train", 3, 6)
    assert (train.documents_min, train.documents_median, train.documents_max) == (1, 2.0, 3)
    assert (train.nothing_relevant, train.one_grade, train.one_document) == (1, 1, 1)
    assert train.grades == {0: 4, 1: 1, 2: 1, 3: 0}
    assert (test.name, test.queries, test.rows, test.one_grade) == ("test", 1, 2, 1)
    assert test.grades == {0: 0, 1: 2, 2: 0, 3: 0}


def test_a_huge_grade_is_one_line_among_few(tmp_path):
    (tmp_path / "in.txt").write_text("2147483647 qid:a 1:1\n3 qid:a 1:2\n0 qid:b 1:2\n")
    ingest([tmp_path / "in.txt"], tmp_path / "data")
    found = describe(Dataset.open(tmp_path / "data"))
    assert list(found.splits[0].grades.items()) == [*((g, int(g in {0, 3})) for g in range(11)), (2147483647, 1)]
    assert json.loads(found.to_json())["splits"][0]["grades"]["2147483647"] == 1
    assert [line.split()[1] for line in found.render().splitlines() if line.startswith("  grade ")] == [
        *map(str, range(11)),
        "2147483647",
    ]


def test_features(dataset):
    features = {feature.name: feature for feature in describe(dataset).features}
    assert list(features) == [f"f{i}" for i in range(1, 8)]
    f1 = features["f1"]
    assert (f1.minimum, f1.maximum, f1.missing, f1.zeros, f1.distinct) == (1.0, 5.0, 0, 0, 5)
    assert (f1.same_as, f1.constant_in_query, f1.remarks, f1.bins) == (None, False, [], None)
    assert features["f2"].remarks == ["same as f1"]
    assert features["f3"].remarks == ["constant"]
    assert features["f4"].remarks == ["constant in each query"]
    assert features["f5"].remarks == ["all missing"]
    assert (features["f5"].minimum, features["f5"].missing, features["f5"].distinct) == (None, 8, 0)
    assert (features["f6"].missing, features["f6"].zeros, features["f6"].distinct) == (1, 4, 3)
    assert features["f7"].remarks == ["has infinite values"]


def test_totals_and_what_the_dataset_was_made_of(dataset):
    found = describe(dataset)
    assert (found.rows, found.queries, found.max_grade, found.missing_values) == (8, 4, 3, 9)
    assert found.digest == dataset.digest
    assert [source.name for source in found.sources] == ["test.txt", "train.txt"]
    assert as_json(found.meaning) == {"absent": "missing", "index_base": 1, "split": None, "max_grade": 3}
    assert not found.binned


def test_bins_show_once_they_are_there(dataset):
    spec = bin_dataset(dataset, 20)
    found = describe(Dataset.open(dataset.path))
    assert as_json(found.binned) == [{"binspec": spec.digest, "max_bin": 20}]
    assert [feature.bins for feature in found.features] == [4, 4, 1, 3, 1, 2, 2]


def test_a_person_can_read_it(dataset):
    lines = describe(dataset).render(100).splitlines()
    assert lines[0] == "8 documents, 4 queries, 7 features, grades 0 to 3"
    assert any(line.split() == ["grade", "0", "4", "(66.7%)", "0", "(0.0%)"] for line in lines)
    assert any(line.split() == ["f2", "1", "5", "0.0%", "0.0%", "5", "-", "same", "as", "f1"] for line in lines)
    assert all(len(line) <= 100 and line == line.rstrip() for line in lines)


def test_many_features_show_only_the_remarkable_ones(dataset, monkeypatch):
    monkeypatch.setattr("rankmill.pipeline.statistics.describe_dataset._MAX_FEATURES_SHOWN", 3)
    text = describe(dataset).render()
    assert "Features with a remark (5 of 7; --json lists all)" in text
    assert "\n  f1 " not in text
    assert "\n  f2 " in text


def test_names_are_shown_as_they_are(dataset):
    found = describe(dataset)
    named = replace(found, features=(replace(found.features[0], name="[red]:x: f"),))
    assert "\n  [red]:x: f " in named.render()


def test_commands_report_the_same_in_words_and_in_json(dataset):
    run = CliRunner()
    reported = run.invoke(app, ["describe", str(dataset.path), "--json"])
    content = json.loads(reported.stdout)
    assert content["splits"][0]["nothing_relevant"] == 1
    assert content["features"][6]["maximum"] == "inf"
    words = run.invoke(app, ["describe", str(dataset.path)], env={"COLUMNS": "200"}).stdout
    assert "constant in each query" in words
    first = json.loads(run.invoke(app, ["bin", str(dataset.path), "--max-bin", "20", "--json"]).stdout)
    again = json.loads(run.invoke(app, ["bin", str(dataset.path), "--max-bin", "20", "--json"]).stdout)
    assert first == {**again, "written": True}
    assert again["written"] is False
    assert again["bins"] == {"f1": 4, "f2": 4, "f3": 1, "f4": 3, "f5": 1, "f6": 2, "f7": 2}
    assert "nothing to do" in run.invoke(app, ["bin", str(dataset.path), "--max-bin", "20"]).stdout
    assert "7 features in 17 bins" in run.invoke(app, ["bin", str(dataset.path)]).stdout
    reported = run.invoke(app, ["bin", str(dataset.path), "--max-bin", "20"]).stdout
    assert reported == f"{dataset.path}: the bins {first['binspec'][:12]} already exist; training now uses them\n"
    assert Dataset.open(dataset.path).binspec().digest == first["binspec"]


def test_synth_command(tmp_path):
    run = CliRunner()
    arguments = ["synth", "-o", str(tmp_path / "a.txt"), "--queries", "9", "--docs-per-query", "3", "--features", "11"]
    reported = json.loads(run.invoke(app, [*arguments, "--json"]).stdout)
    assert reported["rows"] == len((tmp_path / "a.txt").read_text().splitlines()) == sum(reported["grades"].values())
    assert reported["parameters"]["features"] == 11
    assert isinstance(run.invoke(app, arguments).exception, InputError)
    printed_again = run.invoke(app, [*arguments, "--overwrite"]).stdout
    assert f"{reported['rows']} documents of 9 queries, 11 features" in printed_again


def test_features_are_listed_in_the_order_of_the_dataset(tmp_path):
    names = ["z", "shop", "f10", "f2", "brand", "a"]
    lines = [f"q{i // 4},{i % 3},{i},s{i % 3},{i % 5},{i % 7},b{i % 2},{i % 4}" for i in range(40)]
    (tmp_path / "rows.csv").write_text("\n".join([",".join(["qid", "grade", *names]), *lines]))
    options = IngestOptions(read=ReadOptions(categorical=("shop", "brand")))
    ingest([tmp_path / "rows.csv"], tmp_path / "d", options=options)
    shown = describe(Dataset.open(tmp_path / "d")).render(width=160)
    assert [line.split()[0] for line in shown.splitlines() if line.strip() and line.split()[0] in names] == names


# ---- of categorical features: counts of categories, and drift over cells of the most frequent ones -------------------


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
