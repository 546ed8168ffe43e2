"""``rankmill train`` as a person types it."""

import inspect
import json
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from rankmill.cli import execute
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.options import SynthParameters
from rankmill.pipeline.synth import write_synthetic
from rankmill.scorer.forest.forest import Forest
from rankmill.trainer.cli import train as command
from rankmill.trainer.growing.histogram import DEFAULT_POOL_BYTES
from rankmill.trainer.options import MachineOptions
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.training_facts import Circumstances
from tests.refusals import unnamed

MISTAKES = [
    (["--monotone", "f1"], "monotone: expected NAME:1 or NAME:-1, found 'f1'"),
    (
        ["--monotone", "f1:1,f2:-1"],
        "monotone: expected one NAME:1 or NAME:-1, found several in 'f1:1,f2:-1'; repeat --monotone",
    ),
    (["--monotone", "f1:1", "--monotone", "f1:-1"], "monotone: the feature 'f1' is given twice"),
    (["--monotone", "f99:1"], "monotone: unknown feature 'f99'"),
    (["--interaction-constraints", "f1,f99"], "--interaction-constraints: unknown feature 'f99'"),
    (["--feature-weights", "f1"], "--feature-weights: expected NAME:NUMBER, such as bm25:0.5, found 'f1'"),
    (["--feature-weights", "f1:1", "--feature-weights", "f1:2"], "--feature-weights: the feature 'f1' is given twice"),
    (["--feature-fraction-by-node", "0.5", "--grow", "oblivious"], "--feature-fraction-by-level"),
    (["--grow", "best"], "unknown value of --grow 'best'"),
    (["--eval-metric", "nddg"], "unknown metric 'nddg'"),
    (["--histogram-memory", "much"], "--histogram-memory: expected a size such as 2GB or 512MiB, found 'much'"),
    (["--resume", "none@1"], "none"),
    (["--resume", "none.rankmill"], "none.rankmill: no such model file"),
]
SMALL = ["--n-rounds", "3", "--max-leaves", "3", "--n-threads", "1"]


def made(folder, queries, *split):
    text, path = str(folder / "j.txt"), str(folder / "d")
    write_synthetic(Path(text), SynthParameters(queries=queries, documents_per_query=8, features=10, seed=1))
    assert execute(["data", "ingest", text, "-o", path, "--buckets", "2", *split]) == 0
    assert execute(["data", "bin", path, "--max-bin", "31"]) == 0
    return folder / "d"


@pytest.fixture(scope="module")
def without_valid(tmp_path_factory):
    return made(tmp_path_factory.mktemp("alone"), 30)


@pytest.fixture(scope="module")
def with_valid(tmp_path_factory):
    return made(tmp_path_factory.mktemp("split"), 50, "--split", "train=0.6,valid=0.4")


@pytest.fixture
def dataset(without_valid, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return str(without_valid)


@pytest.fixture
def split_dataset(with_valid, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return str(with_valid)


def test_it_says_what_it_trains_on_and_what_is_new(dataset, capsys):
    capsys.readouterr()
    for new, word in ((True, "registered web@1"), (False, "the same as web@1")):
        assert execute(["train", dataset, "--name", "web", *SMALL]) == 0
        out, err = capsys.readouterr()
        assert out.startswith(word)
        assert "on 31 bins" in err or "31 bins (" in err
        assert not unnamed(err, "no valid split", "3 rounds")
        assert execute(["train", dataset, "--name", "web", *SMALL, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["new"] is False, new


def test_the_values_that_a_preset_chose_are_printed(dataset, capsys):
    capsys.readouterr()
    for words in (
        ["train", dataset, "--name", "web"],
        ["cv", dataset, "--folds", "2"],
        ["tune", dataset, "-o", "t", "--trials", "1", "--folds", "2", "--repeat", "0", "--workers", "1"],
    ):
        assert execute([*words, "--n-rounds", "2"]) == 0
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "preset" in line]
        assert line.startswith("preset auto-1: ")
        assert not unnamed(line, "learning_rate")
        assert "n_rounds" not in line  # given
    assert execute(["train", dataset, "--name", "web", *SMALL, "--preset", "defaults-1"]) == 0
    assert "preset" not in capsys.readouterr().err
    assert execute(["models", "diff", "web@1", "web@2"]) == 0
    table = capsys.readouterr().out
    assert not unnamed(table, "preset", "auto-1", "defaults-1")
    assert "defaults@1" not in table


def test_few_queries_of_the_valid_split_are_noted(dataset, split_dataset, capsys):
    few = len(Dataset.open(Path(split_dataset)).queries("valid"))
    search = ["--trials", "1", "--repeat", "0", "--vary", "max_leaves=3,4", "--compare-by", "valid", "--workers", "1"]
    for words in (
        ["train", split_dataset, "--name", "web", *SMALL],
        ["tune", split_dataset, "-o", "t", *search, *SMALL[:2]],
    ):
        capsys.readouterr()
        assert execute(words) == 0
        err = capsys.readouterr().err
        assert not unnamed(err, "valid split", f"{few} queries", "rankmill cv"), err
    assert execute(["train", dataset, "--name", "web", *SMALL]) == 0  # which has no valid split
    assert "uncertain" not in capsys.readouterr().err


def test_a_registry_that_cannot_be_is_refused_before_the_training(dataset, capsys, monkeypatch):
    def never(*_, **__):
        raise AssertionError("trained in vain")

    monkeypatch.setattr("rankmill.trainer.candidates.train_on_dataset.train", never)
    Path("foreign").mkdir()
    Path("foreign/precious.txt").write_text("mine")
    assert execute(["train", dataset, "--name", "web", "--registry", "foreign", *SMALL]) == 2
    assert Path("foreign/precious.txt").read_text() == "mine"


def test_the_model_knows_how_the_judgments_were_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = [f"{d % 3} qid:{q} 0:{d % 3} 1:{d}\n" for q in range(20) for d in range(6)]
    Path("zero.txt").write_text("".join(lines))
    assert execute(["data", "ingest", "zero.txt", "-o", "d", "--index-base", "0", "--absent", "missing"]) == 0
    assert execute(["data", "bin", "d"]) == 0
    assert execute(["train", "d", "--name", "web", *SMALL]) == 0
    assert execute(["rerank", "zero.txt", "--model", "web@latest", "-o", "ranked"]) == 0, capsys.readouterr().err


def facts(capsys, *arguments):
    capsys.readouterr()
    assert execute([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys, *arguments):
    capsys.readouterr()
    assert execute(["train", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rankmill: ")
    assert err.count("\n") == 1
    return err


def test_every_training_parameter_is_an_option_with_the_same_default():
    options = {name: p.default for name, p in inspect.signature(command).parameters.items()}
    for field in fields(TrainParameters):
        expected = None if field.default is MISSING else field.default
        assert options[field.name] == expected, field.name
    assert MachineOptions().histogram_memory == DEFAULT_POOL_BYTES


def test_options_reach_the_model(dataset, capsys):
    options = ["--grow", "depth_first", "--monotone", "f1:1", "--monotone", "f2:-1", "--feature-fraction", "0.5"]
    options += ["--query-fraction", "0.9", "--row-fraction", "0.8", "--objective", "l2", "--max-depth", "4"]
    options += [
        "--interaction-constraints",
        "f1,f2",
        "--interaction-constraints",
        "f2, f3",
        "--feature-weights",
        "f1:0.5",
    ]
    options += ["--feature-weights", "f3:1e-2", "--feature-fraction-by-node", "0.5", "--extra-trees"]
    assert facts(capsys, "train", dataset, "--name", "web", *SMALL, *options)["new"]
    forest = Forest.from_bytes(Path(facts(capsys, "models", "show", "web")["model_path"]).read_bytes())
    expected = {"grow": "depth_first", "monotone": {"f1": 1, "f2": -1}, "feature_fraction": 0.5, "max_depth": 4}
    expected |= {"query_fraction": 0.9, "row_fraction": 0.8, "objective": "l2"}
    expected |= {"interaction_constraints": [["f1", "f2"], ["f2", "f3"]], "feature_weights": {"f1": 0.5, "f3": 0.01}}
    expected |= {"feature_fraction_by_node": 0.5, "extra_trees": True}
    assert {name: forest.parameters[name] for name in expected} == expected


def test_mistakes_in_options_are_one_line(dataset, capsys):
    for options, message in MISTAKES:
        assert message in refusal(capsys, dataset, "--name", "web", *SMALL, *options)


def test_resuming_registers_the_model_of_one_go(split_dataset, capsys):
    options = ["train", split_dataset, "--max-leaves", "4", "--learning-rate", "0.5", "--early-stopping-rounds", "4"]
    half = facts(capsys, *options, "--name", "web", "--n-rounds", "4", "--n-threads", "1")
    resumed = facts(capsys, *options, "--name", "web", "--n-rounds", "9", "--resume", "web@1", "--n-threads", "2")
    whole = facts(capsys, *options, "--name", "web", "--n-rounds", "9")
    assert resumed["sha256"] == whole["sha256"]
    assert not whole["new"]
    assert resumed["rounds_resumed"] == half["rounds"]
    path = Path(facts(capsys, "models", "show", "web@1")["model_path"])
    Path("half.rankmill").write_bytes(path.read_bytes())
    from_file = facts(capsys, *options, "--name", "web", "--n-rounds", "9", "--resume", "half.rankmill")
    assert from_file["sha256"] == whole["sha256"]
    assert execute([*options, "--name", "web", "--n-rounds", "9", "--resume", "web@1"]) == 0
    assert f"({half['rounds']} of them before)" in capsys.readouterr().out


def test_resuming_with_other_options_or_data_is_refused(dataset, split_dataset, capsys):
    assert execute(["train", dataset, "--name", "web", *SMALL]) == 0
    message = refusal(capsys, dataset, "--name", "web", *SMALL, "--resume", "web@1", "--sigma", "2")
    assert "resume: sigma was 1.0 and is now 2.0" in message
    assert execute(["train", split_dataset, "--name", "web", *SMALL, "--resume", "web@1"]) == 2
    assert "resume: the model was trained on other data: its dataset_digest is" in capsys.readouterr().err


def test_more_metrics_and_less_memory_leave_the_model_as_it_is(split_dataset, capsys):
    plain = facts(capsys, "train", split_dataset, "--name", "web", *SMALL)
    options = ["--eval-metric", "map", "--eval-metric", "err@5", "--histogram-memory", "1KB"]
    more = facts(capsys, "train", split_dataset, "--name", "other", *SMALL, *options)
    assert more["sha256"] == plain["sha256"]
    assert list(more["valid"]) == ["err@5", "map", "ndcg@10"]
    assert more["valid"]["ndcg@10"] == plain["valid"]["ndcg@10"]
    assert set(facts(capsys, "models", "show", "other")["manifest"]["metrics"]["train"]) == set(more["train"])


def test_a_model_of_several_outputs_says_so(dataset, capsys):
    assert execute(["train", dataset, "--name", "web", "--objective", "mcrank", "--members", "1", *SMALL]) == 0
    out, _ = capsys.readouterr()
    assert ": 15 trees, 3 rounds of 3 trained; " in out
    assert execute(["train", dataset, "--name", "plain", "--members", "1", *SMALL]) == 0
    assert ": 3 trees of 3 trained; " in capsys.readouterr().out
    shown = {}
    for name in ("web", "plain"):
        assert execute(["models", "show", name, "--json"]) == 0
        shown[name] = json.loads(capsys.readouterr().out)["manifest"]
    several = {"n_outputs": 5, "link": "softmax_grade", "trees_a_round": 5}
    assert {key: value for key, value in shown["web"].items() if key not in shown["plain"]} == several
    assert execute(["models", "show", "web"]) == 0
    assert "softmax_grade" in capsys.readouterr().out


def test_what_does_not_decide_the_bytes_is_attached_and_makes_no_version(dataset, capsys, monkeypatch):
    from rankmill.registry import Registry
    from rankmill.trainer.candidates import version_facts

    assert facts(capsys, "train", dataset, "--name", "web", *SMALL)["new"]
    monkeypatch.setattr(version_facts, "circumstances_now", lambda: Circumstances(libraries={"numpy": "99"}))
    again = facts(capsys, "train", dataset, "--name", "web", *SMALL)
    resumed = facts(capsys, "train", dataset, "--name", "web", *SMALL, "--resume", "web@1")
    assert [each["new"] for each in (again, resumed)] == [False, False]
    web = Registry("registry-data").resolve("web@1", bare="latest")
    reported = json.loads(web.attachment("circumstances") or b"")
    assert reported["libraries"]["numpy"] != "99"
    assert "resumed" not in reported
    on_top = facts(capsys, "train", dataset, "--name", "more", *SMALL, "--base-model", "web@1")
    more = Registry("registry-data").resolve(on_top["model"], bare="latest")
    assert more.manifest["base_model"] == {"model": "web@1", "sha256": web.sha256}
    assert more.attachment("train_queries") == web.attachment("train_queries")


def test_several_seeds_are_trained_and_reported(split_dataset, capsys):
    asked = ["train", split_dataset, "--name", "web", *SMALL, "--query-fraction", "0.5", "--checkpoint", "ck"]
    average = facts(capsys, *asked, "--seeds", "2,1,3", "--choose", "average")
    assert [each["seed"] for each in average["seeds"]] == [1, 2, 3]
    assert average["rounds"] == sum(each["best_round"] for each in average["seeds"])
    assert average["chosen"] is None
    assert len(average["seeds"][0]["curves"]["metrics"]["valid"]["ndcg@10"]) == 3
    best = facts(capsys, *asked, "--seeds", "1,2,3")
    taken = next(each for each in best["seeds"] if each["seed"] == best["chosen"])
    assert (best["sha256"], best["valid"]) == (taken["sha256"], taken["metrics"]["valid"])
    assert best["noise_floor"] == average["noise_floor"]
    assert list(Path("ck").iterdir()) == []
    assert execute([*asked, "--seeds", "1,2,3"]) == 0
    out = capsys.readouterr().out
    assert f"{best['trees']} trees" in out
    assert f"seed {best['chosen']}: " in out
    assert out.count("(taken)") == 1
    assert not unnamed(out, "noise floor", "ndcg@10")
    assert execute(["models", "show", "web@1"]) == 0
    assert re.search(r"seeds\s+choose\s+average", capsys.readouterr().out)


BAD_SEEDS = [
    (["--seeds", "1,two"], "seeds: expected whole numbers separated by commas, such as 1,2,3, found '1,two'"),
    (["--seeds", "1,2", "--choose", "mean"], "unknown value of --choose 'mean'; known: best, average"),
    (["--seeds", "1,2"], "choose: the best of several seeds is chosen on the valid split"),
    (["--seeds", "1,2", "--choose", "average", "--resume", "web@latest"], "resume: only one seed can be resumed"),
]


def test_seeds_that_cannot_be_are_refused(dataset, capsys):
    assert execute(["train", dataset, "--name", "web", *SMALL]) == 0
    for asked, message in BAD_SEEDS:
        assert message in refusal(capsys, dataset, "--name", "web", *SMALL, *asked)


def test_a_refit_says_what_it_learnt_from_and_an_average_what_it_costs(split_dataset, capsys):
    own = [*SMALL, "--refit", "all", "--stop-window", "3"]
    reported = facts(capsys, "train", split_dataset, "--name", "web", *own)
    plain = facts(capsys, "train", split_dataset, "--name", "plain", *SMALL, "--stop-window", "3")
    assert reported["refit"] == {"rows": 446, "queries": 50, "rounds": reported["rounds"]}
    assert "refit" not in plain
    assert (reported["valid"], reported["curves"]) == (plain["valid"], plain["curves"])
    assert execute(["train", split_dataset, "--name", "web", *own, "--seeds", "1,2", "--choose", "average"]) == 0
    out, err = capsys.readouterr()
    assert not unnamed(out, "average of all 2", " 2 times")
    assert not unnamed(err, "then again with the valid split", "446 documents")
    assert execute(["train", split_dataset, "--name", "web", *own]) == 0
    assert not unnamed(capsys.readouterr().out, "trained again", "446 documents of 50 queries")
    assert execute(["evaluate", split_dataset, "--model", "web@latest", "--split", "valid"]) == 0
    assert not unnamed("".join(capsys.readouterr()), "was trained on valid: SEEN IN TRAINING")


def test_parameters_of_a_file_train_as_options_do_and_give_way_to_them(dataset, capsys):
    Path("p.toml").write_text('[train]\nn_rounds = 3\nmax_leaves = 4\nobjective = "l2"\npreset = "defaults-1"\n')
    models = []
    for words in (
        ["--params", "p.toml", "--max-leaves", "3"],
        ["--n-rounds", "3", "--max-leaves", "3", "--objective", "l2", "--preset", "defaults-1"],
    ):
        assert execute(["train", dataset, "--name", "filed", *words]) == 0
        capsys.readouterr()
        assert execute(["models", "show", "filed@latest", "--json"]) == 0
        models.append(json.loads(capsys.readouterr().out)["version"])
    assert models[0] == models[1]  # the same model is registered once


NO_PARAMETERS = [
    (None, ("p.toml", "file")),
    ("[train]\nmax_leaves = = 3", ("p.toml:2:",)),
    ("max_leaves = 3", ("p.toml", "[train]")),
    ("[train]\nmax_leafs = 3", ("p.toml", "'max_leafs'", "'max_leaves'")),
    ("[train]\nmax_leaves = 1", ("p.toml", "max-leaves", "2")),
    ('[train]\nname = "web"', ("p.toml", "'name'")),
]


def test_a_file_without_parameters_is_refused(dataset, capsys):
    for content, facts in NO_PARAMETERS:
        if content is not None:
            Path("p.toml").write_text(content)
        err = refusal(capsys, dataset, "--name", "never", "--params", "p.toml")
        assert not unnamed(err, *facts), err
    assert execute(["models", "show", "never@latest"]) != 0
