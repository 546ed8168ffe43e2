"""Queries that a model was trained on are scored only where they are asked for, and are called so in every
rendering."""

import copy
import json
import shutil

import pytest

from rankmill.cli import execute
from rankmill.foundation.errors import InputError
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.group.sketch import QuerySketch
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, SynthParameters
from rankmill.pipeline.synth import write_synthetic
from rankmill.registry import Registry
from rankmill.scorer.evaluate.evaluate import evaluate
from rankmill.scorer.evaluate.train_test_overlap import TrainedModel, scope_of
from rankmill.scorer.forest.forest import Forest
from tests.rankmill.test_cli import commands
from tests.refusals import refused
from tests.trainer.small_dataset import SHARES, small_dataset

SEEN = "web@1 was trained on train: SEEN IN TRAINING"
FRESH = "not seen in training"
SMALL = "--preset defaults-1 --n-rounds 3 --max-leaves 4 --min-rows-in-leaf 5"


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A dataset, two versions that were trained on it, and one on another dataset with the same queries and more."""
    folder = tmp_path_factory.mktemp("seen")
    small_dataset(folder)
    for seed in (1, 2):
        train = f"train {folder}/d --name web --registry {folder}/r --seed {seed} {SMALL}"
        assert execute(train.split()) == 0
    return folder


@pytest.fixture
def call(work, monkeypatch, typed):
    monkeypatch.chdir(work)
    monkeypatch.setenv("RANKMILL_REGISTRY", "r")
    return lambda words, code=0: " ".join(typed(words, code=code)[bool(code)].split())


COMMANDS = {
    "evaluate": "d --model web@1",
    "compare": "web@1 web@2 --on d",
    "inspect influence": "web@1 --on d --permutations 1",
    "inspect dependence": "web@1 f1 --on d",
    "inspect interaction": "web@1 --on d --queries 5",
    "inspect shap": "web@1 --on d",
    "inspect leaves": "web@1 --on d -o leaves.parquet --overwrite",
    "inspect combine": "web@1 web@2 --on d",
    "inspect optimality": "web@1 --on d --queries 5 --p0 0.2",
    "inspect why": "web@1 --on d",
    "models gate": "web@1 --on d",
}
NOT_SCORED = {
    "data ingest",  # whose --split draws the splits
    "models blend",  # its split is valid unless given, and refused if a model learnt from it
    "report",  # its split is that of the gate, or one that was held out; the page says what was seen
    "clicks evaluate",  # measures on clicks; --on holds the features of the documents
}


def test_every_command_that_takes_a_dataset_and_a_split_is_looked_at():
    named = {" ".join(words): {param.name for param in command.params} for words, command in commands()}
    found = {name for name, params in named.items() if {"split", "on"} & params}
    assert found == COMMANDS.keys() | NOT_SCORED


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in {"inspect why", "models gate"}])
def test_only_queries_that_were_not_seen_are_scored_unless_asked(call, name):
    command = f"{name} {COMMANDS[name]}"
    text = call(command)
    assert "test; not seen in training" in text
    assert "SEEN IN" not in text
    facts = json.loads(call(f"{command} --split all --json"))
    assert facts["scope"]["seen_in_training"]["web@1"] == ["train"]
    if name in {"evaluate", "compare"}:
        facts = json.loads(call(f"{command} --json"))
        assert (facts["scope"]["splits"], facts["scope"]["seen_in_training"]) == (["test"], {})
        assert text == call(f"{command} --split test")
        assert SEEN in call(f"{command} --split train")
        assert f"{FRESH}; valid decided how many trees web@1 has" in call(f"{command} --split valid")
        assert "unknown split 'tets'; did you mean 'test'?" in call(f"{command} --split tets", 2)


def test_a_query_that_is_named_is_asked_for(call, work):
    data = Dataset.open(work / "d")
    fresh, seen = (data.queries(split).qid[0].as_py() for split in ("test", "train"))
    assert f"test; {FRESH}" in call(f"inspect why web@1 --on d --qid {fresh}")
    assert SEEN in call(f"inspect why web@1 --on d --qid {seen}")
    assert SEEN in call(f"inspect shap web@1 --on d --qid {seen} --qid {fresh}")


def test_the_gate_takes_the_test_split_and_refuses_what_was_trained_on(call):
    assert "on the split test of dataset" in call("models gate web@1 --on d")
    assert "web@1 was trained on these queries" in call("models gate web@1 --on d --split train", 2)


def test_a_model_file_knows_its_dataset_as_well(call, work):
    version = Registry(work / "r").resolve("web@1", bare="latest")
    (work / "m.rankmill").write_bytes(version.read())
    assert f"test; {FRESH}" in call("evaluate d --model m.rankmill")
    assert "m.rankmill was trained on train: SEEN IN TRAINING" in call("evaluate d --model m.rankmill --split all")
    found = evaluate(work / "d", model=work / "m.rankmill", metrics=["ndcg@10"], split="all")
    assert found.scope.seen_in_training == {"the model": ("train",)}
    assert evaluate(work / "d", model=work / "m.rankmill", metrics=["ndcg@10"]).scope.splits == ("test",)


def test_where_all_was_seen_it_has_to_be_asked_for(tmp_path, call):
    small_dataset(tmp_path, {"train": 1.0})
    call(f"train {tmp_path}/d --name whole {SMALL}")
    line = call(f"evaluate {tmp_path}/d --model whole@1", 2)
    assert "no split has queries that whole@1 has not seen in training" in line
    assert "use these queries anyway with --split all" in line
    text = call(f"evaluate {tmp_path}/d --model whole@1 --split all")
    assert "whole@1 was trained on train: SEEN IN TRAINING" in text


def test_a_dataset_that_no_model_was_trained_on_is_scored_whole(call, tmp_path):
    text = tmp_path / "other.txt"
    write_synthetic(text, SynthParameters(queries=40, documents_per_query=8, features=10, seed=9))
    text.write_text(text.read_text().replace("qid:", "qid:other-"))
    ingest([text], tmp_path / "other", options=IngestOptions(buckets=3, split=SHARES))
    for name in ("evaluate", "compare"):
        words = [f"{tmp_path}/other" if each == "d" else each for each in COMMANDS[name].split()]
        assert f"train, valid, test; {FRESH}" in call(f"{name} {' '.join(words)}")


def test_a_dataset_that_got_pairs_is_known_again(call, work, tmp_path):
    shutil.copytree(work / "d", tmp_path / "with-pairs")
    rows = Dataset.open(work / "d").rows("train", ("qid", "doc_id")).slice(0, 2).to_pylist()
    (tmp_path / "p.csv").write_text(f"qid,better,worse\n{rows[0]['qid']},{rows[0]['doc_id']},{rows[1]['doc_id']}\n")
    options = IngestOptions(buckets=3, split=SHARES, overwrite=True)
    ingest([work / "judgments.txt"], tmp_path / "with-pairs", pairs=[tmp_path / "p.csv"], options=options)
    assert SEEN in call(f"evaluate {tmp_path}/with-pairs --model web@1 --split train")


def test_the_data_of_a_base_model_were_seen_too(call, work, tmp_path):
    other = small_dataset(tmp_path, queries=60)
    call(f"train {tmp_path}/d --name joined --base-model web@1 {SMALL}")
    forest = Forest.from_bytes(Registry(work / "r").resolve("joined@1", bare="latest").read(), "joined@1")
    model = TrainedModel.of(forest, "joined")
    for data in (Dataset.open(work / "d"), other):
        assert scope_of(data, None, [model]).splits == ("test",)
        assert scope_of(data, "train", [model]).seen_in_training == {"joined": ("train",)}


def test_what_does_not_say_what_it_was_trained_on_is_called_so(work):
    data = Dataset.open(work / "d")
    found = scope_of(data, None, [TrainedModel(name="theirs", datasets=frozenset())])
    assert found.splits == ("test",)  # it may have seen the train split
    assert found.remarks == ("theirs does not say what it was trained on",)
    everything = QuerySketch.of([data.queries().qid])
    alike = TrainedModel(name="alike", datasets=frozenset({"0" * 64}), queries=everything)
    found = scope_of(data, None, [alike])  # all splits have such ids: no split is better than another
    assert found.splits == ("train", "valid", "test")
    assert found.remarks == ("alike was trained on 100 queries with the ids of these 100: SEEN IN TRAINING",)
    with refused(InputError, "split", "queries"):
        scope_of(data, None, [
            TrainedModel(name="a", datasets=frozenset({data.digest})),
            TrainedModel(name="b", datasets=frozenset({"0" * 64}),
                         queries=QuerySketch.of([data.queries("valid").qid, data.queries("test").qid])),
        ])  # fmt: skip


@pytest.mark.parametrize(
    ("split", "remark"),
    [("test", "(not seen in training)"), ("valid", "(not seen in training; valid decided how many trees web@1 has)")],
)
def test_the_report_says_what_the_model_has_seen_of_the_split(first_version, tmp_path, split, remark):
    shutil.copytree(first_version.path.parent, tmp_path, dirs_exist_ok=True)
    case = copy.copy(first_version)
    case.path, case.registry, case.store = tmp_path / "work", tmp_path / "registry", Registry(tmp_path / "registry")
    case.judge("web@1", split=split, margin=1.0, promote=False)
    assert case.report(tmp_path / "out").metrics.seen == remark[1:-1]
    for name in ("report.md", "index.html"):
        assert f"of the {split} split {remark}" in (tmp_path / "out" / name).read_text()
