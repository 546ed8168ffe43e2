"""``rankmill train`` as a person types it."""

import inspect
import json
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.registry import Registry
from rankmill.scorer.forest.forest import Forest
from rankmill.trainer.candidates import version_facts
from rankmill.trainer.cli import train as command
from rankmill.trainer.growing.histogram import DEFAULT_POOL_BYTES
from rankmill.trainer.options import MachineOptions
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.training_facts import Circumstances
from tests.refusals import unnamed
from tests.trainer.small_dataset import small_dataset

MISTAKES = {
    "--monotone f1": "monotone: expected NAME:1 or NAME:-1, found 'f1'",
    "--monotone f1:1,f2:-1": "monotone: expected one NAME:1 or NAME:-1, found several in 'f1:1,f2:-1'; repeat --monotone",
    "--monotone f1:1 --monotone f1:-1": "monotone: the feature 'f1' is given twice",
    "--monotone f99:1": "monotone: unknown feature 'f99'",
    "--interaction-constraints f1,f99": "--interaction-constraints: unknown feature 'f99'",
    "--feature-weights f1": "--feature-weights: expected NAME:NUMBER, such as bm25:0.5, found 'f1'",
    "--feature-weights f1:1 --feature-weights f1:2": "--feature-weights: the feature 'f1' is given twice",
    "--feature-fraction-by-node 0.5 --grow oblivious": "--feature-fraction-by-level",
    "--grow best": "unknown value of --grow 'best'",
    "--eval-metric nddg": "unknown metric 'nddg'",
    "--histogram-memory much": "--histogram-memory: expected a size such as 2GB or 512MiB, found 'much'",
    "--resume none@1": "none",
    "--resume none.rankmill": "none.rankmill: no such model file",
    "--seeds 1,two": "seeds: expected whole numbers separated by commas, such as 1,2,3, found '1,two'",
    "--seeds 1,2 --choose mean": "unknown value of --choose 'mean'; known: best, average",
    "--seeds 1,2": "choose: the best of several seeds is chosen on the valid split",
    "--seeds 1,2 --choose average --resume web@latest": "resume: only one seed can be resumed",
    "--resume web@1 --sigma 2": "resume: sigma was 1.0 and is now 2.0",
    "--metric deviance": "set stop_metric to deviance",  # it is watched and not optimised
}
SMALL = "--n-rounds 3 --max-leaves 3 --n-threads 1"


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """A dataset without a split, and one with a valid split."""
    shares = {}, {"train": 0.6, "valid": 0.4}
    return [small_dataset(tmp_path_factory.mktemp("d"), each, n) for each, n in zip(shares, (30, 50), strict=True)]


@pytest.fixture
def dataset(datasets, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return datasets[0].path


@pytest.fixture
def split_dataset(datasets, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return datasets[1].path


def test_it_says_what_it_trains_on_and_what_is_new(dataset, typed):
    for word in ("registered web@1", "the same as web@1"):
        out, err = typed(f"train {dataset} --name web {SMALL}")
        assert out.startswith(word)
        assert "on 31 bins" in err or "31 bins (" in err
        assert not unnamed(err, "no valid split", "3 rounds")
        assert typed.json(f"train {dataset} --name web {SMALL}")["new"] is False


def test_the_values_that_a_preset_chose_are_printed(dataset, typed):
    for words in (
        "train {} --name web", "cv {} --folds 2", "tune {} -o t --trials 1 --folds 2 --repeat 0 --workers 1",
    ):  # fmt: skip
        err = typed.err(f"{words.format(dataset)} --n-rounds 2")
        (line,) = [line for line in err.splitlines() if "preset" in line]
        assert line.startswith("preset auto-2, trees alone (")
        assert not unnamed(line, "learning_rate")
        assert "n_rounds" not in line  # given
    assert "preset" not in typed.err(f"train {dataset} --name web {SMALL} --preset defaults-1")
    table = typed.out("models diff web@1 web@2")
    assert not unnamed(table, "preset", "auto-1", "defaults-1")
    assert "defaults@1" not in table


def test_few_queries_of_the_valid_split_are_noted(dataset, split_dataset, typed):
    few = len(Dataset.open(split_dataset).queries("valid"))
    for words in (
        f"train {split_dataset} --name web {SMALL}",
        f"tune {split_dataset} -o t --trials 1 --repeat 0 --vary max_leaves=3,4 --compare-by valid --workers 1 --n-rounds 3",
    ):
        assert not unnamed(typed.err(words), "valid split", f"{few} queries", "rankmill cv")
    assert "uncertain" not in typed.err(f"train {dataset} --name web {SMALL}")  # which has no valid split


def test_a_registry_that_cannot_be_is_refused_before_the_training(dataset, typed, monkeypatch):
    monkeypatch.setattr("rankmill.trainer.candidates.train_on_dataset.train", None)
    Path("foreign").mkdir()
    Path("foreign/precious.txt").write_text("mine")
    typed(f"train {dataset} --name web --registry foreign {SMALL}", code=2)
    assert Path("foreign/precious.txt").read_text() == "mine"


def test_the_model_knows_how_the_judgments_were_read(tmp_path, monkeypatch, typed):
    monkeypatch.chdir(tmp_path)
    lines = [f"{d % 3} qid:{q} 0:{d % 3} 1:{d}\n" for q in range(20) for d in range(6)]
    Path("zero.txt").write_text("".join(lines))
    typed("data ingest zero.txt -o d --index-base 0 --absent missing")
    typed("data bin d")
    typed(f"train d --name web {SMALL}")
    typed("rerank zero.txt --model web@latest -o ranked")


def test_every_training_parameter_is_an_option_with_the_same_default():
    options = {name: p.default for name, p in inspect.signature(command).parameters.items()}
    for field in fields(TrainParameters):
        expected = None if field.default is MISSING else field.default
        assert options[field.name] == expected, field.name
    assert MachineOptions().histogram_memory == DEFAULT_POOL_BYTES


def test_options_reach_the_model(dataset, typed):
    assert typed.json(
        f"train {dataset} --name web {SMALL} --grow depth_first --monotone f1:1 --monotone f2:-1 --feature-fraction 0.5"
        " --query-fraction 0.9 --row-fraction 0.8 --objective l2 --max-depth 4 --interaction-constraints f1,f2"
        " --interaction-constraints 'f2, f3' --feature-weights f1:0.5 --feature-weights f3:1e-2"
        " --feature-fraction-by-node 0.5 --extra-trees"
    )["new"]
    expected = {
        "grow": "depth_first", "monotone": {"f1": 1, "f2": -1}, "feature_fraction": 0.5, "max_depth": 4,
        "query_fraction": 0.9, "row_fraction": 0.8, "objective": "l2", "extra_trees": True,
        "feature_fraction_by_node": 0.5,
        "interaction_constraints": [["f1", "f2"], ["f2", "f3"]], "feature_weights": {"f1": 0.5, "f3": 0.01},
    }  # fmt: skip
    forest = Forest.load(Path(typed.json("models show web")["model_path"]))
    assert {name: forest.parameters[name] for name in expected} == expected


def test_mistakes_in_options_are_one_line(dataset, split_dataset, typed):
    typed(f"train {dataset} --name web {SMALL}")
    for options, message in MISTAKES.items():
        assert message in typed.refused(f"train {dataset} --name web {SMALL} {options}")
    said = typed.err(f"train {split_dataset} --name web {SMALL} --resume web@1", code=2)
    assert "resume: the model was trained on other data: its dataset_digest is" in said


def test_resuming_registers_the_model_of_one_go(split_dataset, typed):
    train = f"train {split_dataset} --max-leaves 4 --learning-rate 0.5 --early-stopping-rounds 4 --name web --n-rounds"
    half = typed.json(f"{train} 4 --n-threads 1")
    resumed = typed.json(f"{train} 9 --resume web@1 --n-threads 2")
    whole = typed.json(f"{train} 9")
    assert resumed["sha256"] == whole["sha256"]
    assert not whole["new"]
    assert resumed["rounds_resumed"] == half["rounds"]
    Path("half.rankmill").write_bytes(Path(typed.json("models show web@1")["model_path"]).read_bytes())
    assert typed.json(f"{train} 9 --resume half.rankmill")["sha256"] == whole["sha256"]
    assert f"({half['rounds']} of them before)" in typed.out(f"{train} 9 --resume web@1")


def test_more_metrics_and_less_memory_leave_the_model_as_it_is(split_dataset, typed):
    plain = typed.json(f"train {split_dataset} --name web {SMALL}")
    more = typed.json(
        f"train {split_dataset} --name other {SMALL} --eval-metric map --eval-metric err@5 --histogram-memory 1KB"
    )
    assert more["sha256"] == plain["sha256"]
    assert list(more["valid"]) == ["err@5", "map", "ndcg@10"]
    assert more["valid"]["ndcg@10"] == plain["valid"]["ndcg@10"]
    assert set(typed.json("models show other")["manifest"]["metrics"]["train"]) == set(more["train"])


def test_a_model_of_several_outputs_says_so(dataset, typed):
    out = typed.out(f"train {dataset} --name web --objective mcrank --members 1 {SMALL}")
    assert ": 15 trees, 3 rounds of 3 trained; " in out
    assert ": 3 trees of 3 trained; " in typed.out(f"train {dataset} --name plain --members 1 {SMALL}")
    web, plain = (typed.json(f"models show {name}")["manifest"] for name in ("web", "plain"))
    several = {"n_outputs": 5, "link": "softmax_grade", "trees_a_round": 5}
    assert {key: value for key, value in web.items() if key not in plain} == several
    assert "softmax_grade" in typed.out("models show web")


def test_what_does_not_decide_the_bytes_is_attached_and_makes_no_version(dataset, typed, monkeypatch):
    train = f"train {dataset} {SMALL} --name"
    assert typed.json(f"{train} web")["new"]
    monkeypatch.setattr(version_facts, "circumstances_now", lambda: Circumstances(libraries={"numpy": "99"}))
    assert [typed.json(f"{train} web {more}")["new"] for more in ("", "--resume web@1")] == [False, False]
    web = Registry("registry-data").resolve("web@1", bare="latest")
    reported = json.loads(web.attachment("circumstances") or b"")
    assert reported["libraries"]["numpy"] != "99"
    assert "resumed" not in reported
    on_top = typed.json(f"{train} more --base-model web@1")
    more = Registry("registry-data").resolve(on_top["model"], bare="latest")
    assert more.manifest["base_model"] == {"model": "web@1", "sha256": web.sha256}
    assert more.attachment("train_queries") == web.attachment("train_queries")


def test_several_seeds_are_trained_and_reported(split_dataset, typed):
    asked = f"train {split_dataset} --name web {SMALL} --query-fraction 0.5 --checkpoint ck --seeds"
    average = typed.json(f"{asked} 2,1,3 --choose average")
    assert [each["seed"] for each in average["seeds"]] == [1, 2, 3]
    assert average["rounds"] == sum(each["best_round"] for each in average["seeds"])
    assert average["chosen"] is None
    assert len(average["seeds"][0]["curves"]["metrics"]["valid"]["ndcg@10"]) == 3
    best = typed.json(f"{asked} 1,2,3")
    taken = next(each for each in best["seeds"] if each["seed"] == best["chosen"])
    assert (best["sha256"], best["valid"]) == (taken["sha256"], taken["metrics"]["valid"])
    assert best["noise_floor"] == average["noise_floor"]
    assert list(Path("ck").iterdir()) == []
    out = typed.out(f"{asked} 1,2,3")
    assert f"{best['trees']} trees" in out
    assert f"seed {best['chosen']}: " in out
    assert out.count("(taken)") == 1
    assert not unnamed(out, "noise floor", "ndcg@10")
    assert re.search(r"seeds\s+choose\s+average", typed.out("models show web@1"))


def test_a_refit_says_what_it_learnt_from_and_an_average_what_it_costs(split_dataset, typed):
    train, rows = f"train {split_dataset} {SMALL} --stop-window 3 --name", Dataset.open(split_dataset).manifest.rows
    reported, plain = typed.json(f"{train} web --refit all"), typed.json(f"{train} plain")
    assert reported["refit"] == {"rows": rows, "queries": 50, "rounds": reported["rounds"]}
    assert "refit" not in plain
    assert (reported["valid"], reported["curves"]) == (plain["valid"], plain["curves"])
    out, err = typed(f"{train} web --refit all --seeds 1,2 --choose average")
    assert not unnamed(out, "average of all 2", " 2 times")
    assert not unnamed(err, "then again with the valid split", f"{rows} documents")
    assert not unnamed(typed.out(f"{train} web --refit all"), "trained again", f"{rows} documents of 50 queries")
    seen = "".join(typed(f"evaluate {split_dataset} --model web@latest --split valid"))
    assert not unnamed(seen, "was trained on valid: SEEN IN TRAINING")


def test_parameters_of_a_file_train_as_options_do_and_give_way_to_them(dataset, typed):
    Path("p.toml").write_text('[train]\nn_rounds = 3\nmax_leaves = 4\nobjective = "l2"\npreset = "defaults-1"\n')
    versions = []
    for words in ("--params p.toml --max-leaves 3", "--n-rounds 3 --max-leaves 3 --objective l2 --preset defaults-1"):
        typed(f"train {dataset} --name filed {words}")
        versions.append(typed.json("models show filed@latest")["version"])
    assert versions[0] == versions[1]  # the same model is registered once


NO_PARAMETERS = [
    (None, ("p.toml", "file")),
    ("[train]\nmax_leaves = = 3", ("p.toml:2:",)),
    ("max_leaves = 3", ("p.toml", "[train]")),
    ("[train]\nmax_leafs = 3", ("p.toml", "'max_leafs'", "'max_leaves'")),
    ("[train]\nmax_leaves = 1", ("p.toml", "max-leaves", "2")),
    ('[train]\nname = "web"', ("p.toml", "'name'")),
]


def test_a_file_without_parameters_is_refused(dataset, typed):
    for content, facts in NO_PARAMETERS:
        if content is not None:
            Path("p.toml").write_text(content)
        assert not unnamed(typed.refused(f"train {dataset} --name never --params p.toml"), *facts)
    typed("models show never@latest", code=2)
