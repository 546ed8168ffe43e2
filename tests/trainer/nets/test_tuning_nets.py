"""A search over options of nets: trials are the trainings that they say, the same for any workers and after any
kill."""

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.registry import Registry
from rankmill.scorer.metrics.per_query import mean_of
from rankmill.scorer.models.model_service import model_of
from rankmill.scorer.nets.net import Net
from rankmill.trainer.nets.cross_validating import cross_validate_net_on
from rankmill.trainer.nets.options import ModelOptions, NetOptions
from rankmill.trainer.options import MachineOptions, TuneOptions
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.tuning.search import plan_tuning, tune
from rankmill.trainer.tuning.space import default_space_of_nets, read_space, space_of
from tests.refusals import refused, unnamed
from tests.written import files_in

BASE = NetOptions(layers=(8,), epochs=4, batch_documents=100, learning_rate=0.02)
SPACE = space_of({"layers": "(),(8),(8,4)", "dropout": "0..0.5", "learning_rate": "0.005..0.1:log"}, "test", "net")
USUAL = TuneOptions(trials=2, repeat=1, best=1, workers=1)
ONE = MachineOptions(n_threads=1)


@pytest.fixture(scope="module")
def by_folds(dataset, tmp_path_factory):
    out = tmp_path_factory.mktemp("done") / "t"
    return out, tune(plan_tuning(dataset, BASE, SPACE, USUAL, folds=3), out)


def test_a_trial_is_the_cross_validation_that_it_says(dataset, by_folds):
    out, table = by_folds
    assert "3 folds of the train split" in plan_tuning(dataset, BASE, SPACE, USUAL, folds=3).render()
    for row in (table.rows[0], table.rows[-1]):
        for seed, outcome in {BASE.seed: row.outcome, **row.repeats}.items():
            found = cross_validate_net_on(dataset, replace(BASE, **row.values, seed=seed), 3, ONE, by_query=True)
            assert outcome.score == mean_of(found.by_query)
            assert (outcome.best_round, outcome.trained) == (found.best_round, len(found.histories[0]))
    section = tomllib.loads((out / "winner.toml").read_text())["train"]
    rounds = [each.best_round for each in table.winner.sound]
    assert section["epochs"] == round(np.mean(rounds))
    assert (section["model"], section["early_stopping_epochs"]) == ("net", 0)


@pytest.mark.slow
def test_the_folder_has_the_same_bytes_for_two_workers(dataset, by_folds, tmp_path):
    out, table = by_folds
    other = tune(plan_tuning(dataset, BASE, SPACE, replace(USUAL, workers=2), folds=3), tmp_path / "two")
    assert other.to_json() == table.to_json()
    assert files_in(tmp_path / "two") == files_in(out)


def test_the_space_of_a_net(tmp_path):
    (tmp_path / "space.toml").write_text(
        'layers = [[8], [16, 8], []]\ndropout = "0..0.5"\nbatch_norm = [true, false]\n'
    )
    line = {"layers": "(8),(16,8),()", "dropout": "0..0.5", "batch_norm": "true,false"}
    assert read_space(tmp_path / "space.toml", "net") == space_of(line, "--vary", "net")
    assert {space_of(line, "t", "net").draw(1, trial)["layers"] for trial in range(40)} == {(8,), (16, 8), ()}
    for trial in range(100):
        replace(NetOptions(), **default_space_of_nets(NetOptions()).draw(1, trial))
    assert "dropout" not in default_space_of_nets(NetOptions(activation="tanh", dropout=0)).parts
    assert "layers" not in default_space_of_nets(NetOptions(), ["layers"]).parts
    for given, named in (
        ({"max_leaves": "2..8"}, "trees"), ({"seed": "1,2"}, "lucky"), ({"folds": "3,4"}, "folds"),
        ({"dropuot": "0,1"}, "'dropout'"), ({"layers": "8..64"}, "widths"),
        ({"model": "net"}, "model"),
    ):  # fmt: skip
        with refused(InvalidParameter, named):
            space_of(given, "t", "net")
    with refused(InvalidParameter, "layers", "4096"):
        space_of({"layers": "(9999)"}, "t", "net").check(NetOptions())
    with refused(InvalidParameter, "learning_rate", "(0, 1]"):
        space_of({"learning_rate": "0.5..2"}, "t", "net").check(NetOptions())


def test_the_command_and_its_winner(dataset, tmp_path, typed):
    out, store = tmp_path / "t", tmp_path / "r"
    command = (
        f"tune {dataset.path} -o {out} --model net --trials 2 --repeat 0 --workers 1 --folds 2 --epochs 3"
        " --vary layers=(8),(4),() --batch-documents 100"
    )
    printed, err = typed(command)
    assert not unnamed(err, "2 random trials", "2 folds", "3 epochs at most")
    assert '[train]\nmodel = "net"' in printed
    assert typed.json(command) == json.loads((out / "table.json").read_text())
    section = tomllib.loads((out / "winner.toml").read_text())["train"]
    assert section.pop("model") == "net"
    typed(f"train {dataset.path} --name web --params {out}/winner.toml --registry {store} --seed 3")
    net = model_of(Registry(store).resolve("web@1", bare="latest"))
    assert isinstance(net, Net)
    assert {name: {**net.parameters}[name] for name in section} == section
    assert net.parameters["seed"] == 3
    kind, parameters = ModelOptions(params=out / "winner.toml").started(TrainParameters(), [])
    assert kind.net_options(parameters) == NetOptions(**section)
    for more, named in (
        ("--max-leaves 5", "--max-leaves is an option of trees"), ("--vary max_leaves=2..4", "trees"),
    ):  # fmt: skip
        assert named in typed.err(f"{command} {more} --fresh", code=2)
    wrong = typed.err(f"tune {dataset.path} -o {tmp_path}/x --layers 8", code=2)
    assert "--layers is an option of nets; add --model net" in wrong
