"""``rankmill models register``: a model file becomes a version, once, or is refused without a trace."""

import json

import numpy as np
import pytest

from rankmill.foundation.errors import InputError, ModelFormatError
from rankmill.foundation.records import as_json
from rankmill.pipeline.group.sketch import TRAIN_QUERIES
from rankmill.python.model_files import register_file
from rankmill.registry.model_registry import Registry
from rankmill.scorer.forest.forest import Forest
from rankmill.trainer.candidates.version_facts import attachments_of, dataset_facts
from tests import ROOT
from tests.rankmill.gate.gate_case import dataset_of, rows_of, trained
from tests.rankmill.python.small_ranker import planted_arrays, small
from tests.refusals import only_line, refused

GOLDEN = sorted((ROOT / "tests" / "scorer" / "golden").glob("*.rankmill"))


@pytest.fixture(scope="module")
def model():
    X, y, qid = planted_arrays()
    forest = small(n_rounds=2).fit(X, y, qid=qid).forest_
    assert isinstance(forest, Forest)
    return forest


@pytest.fixture
def file(model, tmp_path):
    model.save(tmp_path / "m.rankmill")
    return tmp_path / "m.rankmill"


@pytest.fixture
def registry(tmp_path):
    return Registry(tmp_path / "registry")


@pytest.fixture
def run(registry, typed):
    return lambda words, code=0: typed(f"models {words} --registry {registry.root}", code=code)


def test_the_manifest_says_what_the_file_says(registry, file, model):
    done = register_file(registry, file, "web", reason="from elsewhere")
    version = done.version
    assert (str(version), done.is_new) == ("web@1", True)
    assert version.read() == file.read_bytes()
    assert version.registered.reason == "from elsewhere"
    facts = version.manifest
    assert facts["features"] == list(model.feature_names)
    assert facts["dataset_digest"] == model.info["dataset_digest"]
    assert facts["binspec_digest"] == model.info["binspec_digest"]
    assert facts["parameters"] == model.parameters
    assert facts["metrics"] == {"train": model.info["train"]}
    assert facts["best_round"] == model.info["best_round"]


def test_every_golden_model_can_be_registered(registry):
    for number, path in enumerate(GOLDEN, start=1):
        done = register_file(registry, path, "web")
        assert Forest.from_bytes(registry.resolve(f"web@{number}", bare="latest").read()) == done.model
        assert (done.version.manifest.get("link", "identity")) == done.model.link


def test_twice_is_once(registry, file, tmp_path):
    first = register_file(registry, file, "web")
    again = register_file(registry, file, "web")
    assert (again.version.number, again.is_new) == (1, False)
    (tmp_path / "test.json").write_text('{"test": {"ndcg@10": 0.5}, "latency": 3}')
    for is_new in (True, False):
        reported = register_file(registry, file, "web", metrics=tmp_path / "test.json")
        assert (reported.version.number, reported.is_new) == (2, is_new)
    assert reported.version.manifest["metrics"] == {"test": {"ndcg@10": 0.5}, "latency": 3}
    assert register_file(registry, file, "shop").is_new
    assert len(registry.log("web")) == 2
    assert first.version.sha256 == reported.version.sha256


def test_a_version_that_knows_more_is_found(registry, file, model):
    """As after train: the file of the same model does not become a second version that says less."""
    facts = {"features": list(model.feature_names), "dataset_digest": None, "parameters": {}, "metrics": {"x": 1.0}}
    registry.register("web", file.read_bytes(), manifest=facts)
    assert not register_file(registry, file, "web").is_new


def test_the_dataset_may_be_given(registry, tmp_path):
    reported = "a" * 64
    done = register_file(registry, GOLDEN[0].parent / "by_hand.rankmill", "web", dataset=reported)
    assert done.version.manifest["dataset_digest"] == reported
    known = GOLDEN[0].parent / "best_first.rankmill"
    with refused(InputError, "best_first.rankmill", reported):
        register_file(registry, known, "web", dataset=reported)
    digest = Forest.load(known).info["dataset_digest"]
    assert register_file(registry, known, "web", dataset=str(digest)).version.manifest["dataset_digest"] == digest
    with refused(InputError, "folder", "digest"):
        register_file(registry, known, "web", dataset=str(tmp_path / "none"))


def test_metrics_that_are_none_are_named(registry, file, tmp_path):
    odd = '{"a": "b"}', '{"a": {"b": null}}', '{"a": {"b": {"c": 1}}}', '{"a": NaN}', '{"a": true}'
    for text in ("", "[]", "{}", "{", "3", *odd):
        (tmp_path / "test.json").write_text(text)
        with refused(InputError, "test.json", "JSON", "numbers"):
            register_file(registry, file, "web", metrics=tmp_path / "test.json")
    assert not registry.exists()


def test_damage_leaves_with_13_and_no_trace(run, registry, file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    for flaw in (bytes(data), data[:-1], b"", b"RANKMILL"):
        file.write_bytes(flaw)
        out, err = run(f"register {file} --name web", 13)
        assert out == ""
        assert only_line(err).startswith(f"{file}: ")
    assert not registry.root.exists()
    with pytest.raises(ModelFormatError):
        register_file(registry, file, "web")


def test_as_typed(run, registry, file, tmp_path):
    out, err = run(f"register {file} --name web --reason 'of May'")
    assert err == ""
    assert out.startswith(f"registered web@1 in {registry.root}: 2 trees of 4 features\nsha256 ")
    assert run(f"register {file} --name web")[0].startswith("the same as web@1 in ")
    reported = json.loads(run(f"register {file} --name web --json")[0])
    assert (reported["model"], reported["new"], reported["trees"], reported["features"]) == ("web@1", False, 2, 4)
    for wrong in (f"{tmp_path}/none.rankmill --name web", f"{tmp_path} --name web", f"{file} --name ../web"):
        run(f"register {wrong}", 2)
    assert np.isfinite(Forest.from_bytes(registry.resolve("web", bare="latest").read()).base_score)


def test_the_folder_of_a_dataset_gives_its_facts_and_the_queries_trained_on(registry, tmp_path):
    data = dataset_of(tmp_path, "web.dataset", *rows_of(1, queries=40))
    other = dataset_of(tmp_path, "other.dataset", *rows_of(2, queries=40))
    trained(data, n_rounds=2).model.save(tmp_path / "m.rankmill")
    version = register_file(registry, tmp_path / "m.rankmill", "web", dataset=str(data.path)).version
    assert version.manifest["dataset"] == as_json(dataset_facts(data))
    assert version.manifest["dataset_digest"] == data.digest
    assert version.attachment(TRAIN_QUERIES) == attachments_of(data)[TRAIN_QUERIES]
    with refused(InputError, data.digest, other.digest, "trained"):
        register_file(registry, tmp_path / "m.rankmill", "web", dataset=str(other.path))
