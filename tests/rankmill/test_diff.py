"""Two models side by side: what differs is shown, in both directions, and nothing else."""

import json
from pathlib import Path

import pytest

from rankmill.cli import execute
from rankmill.diff import Side, changes, diff
from rankmill.foundation.records import as_json
from rankmill.pipeline.options import SynthParameters
from rankmill.pipeline.synth import write_synthetic


def side(name, **facts):
    reported = {"features": ["f1", "f2"], "parameters": {}, "metrics": {}, "dataset_digest": None} | facts
    return Side(name=name, sha256=name * 64, facts=reported)


def test_the_difference_of_one_is_none_and_of_two_turns_round():
    metrics = {"valid": {"ndcg@10": 0.5, "map": 0.25}}
    a = side("a", parameters={"x": 1, "y": 2}, dataset_digest="d" * 64, metrics=metrics, dataset={"rows": 7})
    b = side(
        "b", parameters={"x": 1.5, "z": 3}, dataset_digest="e" * 64, metrics={"valid": {"map": 0.5}},
        features=["f2", "f3"], dataset={"rows": 9},
    )  # fmt: skip
    same = diff(a, a)
    assert same.same_bytes
    assert same.same_data
    assert same.parameters == same.data == {}
    there, back = as_json(diff(a, b)), as_json(diff(b, a))
    assert there["parameters"] == {"x": {"old": 1, "new": 1.5}, "y": {"old": 2}, "z": {"new": 3}}
    assert there["features"] == {"added": ["f3"], "removed": ["f1"]}
    assert back["features"] == {"added": ["f1"], "removed": ["f3"]}
    assert there["metrics"] == {"valid": {"map": {"old": 0.25, "new": 0.5}}}
    assert there["data"] == {"dataset_digest": {"old": "d" * 64, "new": "e" * 64}, "rows": {"old": 7, "new": 9}}
    assert there["same_data"] is False
    assert ["valid map", "0.2500", "0.5000", "OTHER DATA: not comparable"] in diff(a, b).rows()
    assert diff(a, side("c")).same_data is None


def test_facts_of_any_shape_are_compared():
    plain = side("b", metrics={"valid": {"map": 0.25}}, dataset={"rows": 7, "sources": {"files": 2}})
    for facts in (
        {"dataset": "monday", "metrics": {"valid": {"map": "good"}}},
        {"dataset": {"rows": "many", "sources": 7, "splits": 1}, "metrics": {"valid": 0.5}, "code_digest": 3},
        {"dataset": {"sources": {"list": [1, {}], "files": None}}, "metrics": 3},
        {"base_model": "x", "metrics": {"valid": {"map": 0.5}}},
    ):
        for pair in ((side("a", **facts), plain), (plain, side("a", **facts))):
            found = diff(*pair)
            json.dumps(as_json(found), allow_nan=False)
            assert all("\n" not in cell for row in found.rows() for cell in row)


def test_what_both_have_and_what_one_has():
    assert changes({}, {}) == {}
    assert changes({"a": None}, {}) == {"a": {"old": None}}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A folder with a registry of two versions that differ in their learning rate."""
    folder = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_synthetic(Path("j.txt"), SynthParameters(queries=40, documents_per_query=8, features=10, seed=1))
        train = "train d --name web --preset defaults-1 --max-leaves 4 --early-stopping-rounds 0 --n-rounds 3"
        for command in (
            "data ingest j.txt -o d --buckets 2 --split train=0.6,valid=0.4",
            "data bin d --max-bin 31",
            train,
            f"{train} --learning-rate 0.4",
        ):
            assert execute(command.split()) == 0
    return folder


def test_the_command_compares_versions_and_files(two, monkeypatch, typed):
    monkeypatch.chdir(two)
    text = typed.out("models diff web@1 web")
    assert "web@2" in text
    assert [line.split() for line in text.splitlines() if "learning_rate" in line] == [["learning_rate", "0.1", "0.4"]]
    found = typed.json("models diff web@1 web@2")
    assert found["parameters"] == {"learning_rate": {"old": 0.1, "new": 0.4}}
    assert set(found["metrics"]) == {"train", "valid"}
    assert found["same_data"]
    assert typed.json("models diff web@1 web@latest") == found
    Path("one.rankmill").write_bytes(Path(typed.json("models show web@1")["model_path"]).read_bytes())
    found = typed.json("models diff one.rankmill web@1")
    assert (found["same_bytes"], found["parameters"], found["old"]) == (True, {}, "one.rankmill")
    assert found["same_data"]
    for words, message in (("web@9 web", "no version 9"), ("web none.rankmill", "none")):
        assert message in typed.refused(f"models diff {words}")
