"""What describe says of a small data set of which everything is known."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from rankmill.foundation.errors import InputError
from rankmill.foundation.records import as_json
from rankmill.pipeline.binning import bin_dataset
from rankmill.pipeline.cli import app
from rankmill.pipeline.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.pipeline.statistics.describe_dataset import describe

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


def test_commands_tell_the_same_in_words_and_in_json(dataset):
    run = CliRunner()
    told = run.invoke(app, ["describe", str(dataset.path), "--json"])
    content = json.loads(told.stdout)
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
    told = run.invoke(app, ["bin", str(dataset.path), "--max-bin", "20"]).stdout
    assert told == f"{dataset.path}: the bins {first['binspec'][:12]} already exist; training now uses them\n"
    assert Dataset.open(dataset.path).binspec().digest == first["binspec"]


def test_synth_command(tmp_path):
    run = CliRunner()
    arguments = ["synth", "-o", str(tmp_path / "a.txt"), "--queries", "9", "--docs-per-query", "3", "--features", "11"]
    told = json.loads(run.invoke(app, [*arguments, "--json"]).stdout)
    assert told["rows"] == len((tmp_path / "a.txt").read_text().splitlines()) == sum(told["grades"].values())
    assert told["parameters"]["features"] == 11
    assert isinstance(run.invoke(app, arguments).exception, InputError)
    told_again = run.invoke(app, [*arguments, "--overwrite"]).stdout
    assert f"{told['rows']} documents of 9 queries, 11 features" in told_again


def test_features_are_listed_in_the_order_of_the_dataset(tmp_path):
    names = ["z", "shop", "f10", "f2", "brand", "a"]
    lines = [f"q{i // 4},{i % 3},{i},s{i % 3},{i % 5},{i % 7},b{i % 2},{i % 4}" for i in range(40)]
    (tmp_path / "rows.csv").write_text("\n".join([",".join(["qid", "grade", *names]), *lines]))
    options = IngestOptions(read=ReadOptions(categorical=("shop", "brand")))
    ingest([tmp_path / "rows.csv"], tmp_path / "d", options=options)
    shown = describe(Dataset.open(tmp_path / "d")).render(width=160)
    assert [line.split()[0] for line in shown.splitlines() if line.strip() and line.split()[0] in names] == names
