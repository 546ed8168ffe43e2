"""Data by which nothing can be chosen: trees without a split are noted, a split on which no query can differ is
refused; the cures help."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from rankmill import Ranker
from rankmill.cli import app
from rankmill.foundation.errors import TrainingDataRejected
from rankmill.python.validating import cross_validate
from rankmill.trainer.data.measured_queries import check_decides
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rounds.early_stopping import DEVIANCE, parse_measure
from rankmill.trainer.rounds.training_result import note_without_splits
from tests.refusals import refused
from tests.scorer.forests import random_forest

CONSTANT = {"one document": (1, lambda q, _: 1 + q % 3), "one grade": (6, lambda q, _: 1 + q % 3)}


def by_feature(_q, a):
    """The grade of a document follows its feature a."""
    return int(np.clip(np.round(a + 1), 0, 3))


def rows(first, n_queries, size, grade, seed=0):
    """Features, grades and ids of some queries."""
    x = np.random.default_rng(seed).normal(size=(n_queries * size, 3)).round(4)
    qid = np.repeat(np.arange(first, first + n_queries), size)
    return x, np.array([grade(q, a) for q, a in zip(qid.tolist(), x[:, 0].tolist(), strict=True)]), qid


def write(path, x, y, qid):
    lines = [
        f"q{q},d{i},{g},{','.join(map(str, row))}\n"
        for i, (q, g, row) in enumerate(zip(qid, y, x.tolist(), strict=True))
    ]
    path.write_text("qid,doc_id,grade,a,b,c\n" + "".join(lines))
    return str(path)


def done(*arguments):
    """The error of a command, if there is one, and all that it says."""
    found = CliRunner().invoke(app, list(map(str, arguments)))
    return found.exception, f"{found.output}{found.exception or ''}"


# -- trees without a split -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["tiny", "constant"])
def without_splits(request, tmp_path_factory):
    """A dataset in which feature c is the grade, or in which all features are constant."""
    constant, folder = request.param == "constant", tmp_path_factory.mktemp("none")
    n_queries = 30 if constant else 5
    grade = np.arange(4 * n_queries) % 3
    x = np.stack([grade % 2, grade * 0, grade], axis=1) * (not constant)
    source = write(folder / "j.csv", x, grade, np.repeat(np.arange(n_queries), 4))
    assert done("data", "ingest", source, "-o", folder / "d")[0] is None
    assert done("data", "bin", folder / "d")[0] is None
    return request.param, folder / "d"


@pytest.mark.parametrize("command", ["train", "train averaged", "cv", "tune"])
def test_a_command_says_that_all_documents_tie(without_splits, tmp_path, command):
    case, dataset = without_splits
    common, registered = [dataset, "--n-rounds", 3], ["--name", "w", "--registry", tmp_path / "r"]
    commands = {
        "train": ["train", *common, *registered],
        "train averaged": ["train", *common, *registered, "--seeds", "1,2", "--choose", "average"],
        "cv": ["cv", *common, "--folds", 2],
        "tune": ["tune", *common, "--folds", 2, "--trials", 1, "--repeat", 0, "--workers", 1, "--vary", "learning_rate=0.1,0.2", "-o", tmp_path / "t"],
    }  # fmt: skip
    error, said = done(*commands[command])
    assert error is None, said
    assert "no tree has a split, so all documents tie" in said
    assert "20 rows" in said
    assert "--min-rows-in-leaf" in said
    if command == "train":
        assert "20 rows" in json.loads(done(*commands["train"], "--json")[1].splitlines()[-1])["note"]
    if command == "train" and case == "tiny":  # the cure
        cured = done(*commands["train"], "--min-rows-in-leaf", 1)[1]
        assert "no tree has a split" not in cured
        assert "train ndcg@10 1.0000" in cured


def test_fit_warns_and_the_option_helps():
    x = np.stack([np.arange(20) % 2, np.arange(20) % 3], axis=1).astype(np.float64)
    y, qid = np.arange(20) % 3, np.arange(20) // 4
    with pytest.warns(UserWarning, match="no tree has a split.*leaves need 20 rows.*20; lower min_rows_in_leaf"):
        Ranker(n_rounds=3).fit(x, y, qid=qid)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Ranker(n_rounds=3, min_rows_in_leaf=1).fit(x, y, qid=qid)
    assert "no tree has a split" in cross_validate(Ranker(n_rounds=3, folds=2), x, y, qid=qid).note
    assert not cross_validate(Ranker(n_rounds=3, folds=2, min_rows_in_leaf=1), x, y, qid=qid).note
    forest = random_forest(1)
    assert not note_without_splits(forest)
    assert not note_without_splits(forest.truncated(0))
    leaf = random_forest(0, n_trees=3, max_leaves=1)
    assert "split" in note_without_splits(replace(leaf, parameters={"min_rows_in_leaf": 5}))


# -- queries that cannot differ --------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["one document", "nothing relevant", "few"])
def split(request, tmp_path_factory):
    """The name of a case, and a binned dataset with such a valid split."""
    folder = tmp_path_factory.mktemp("d")
    if request.param == "few":
        parts = [rows(1000, 100, 1, by_feature), rows(2000, 3, 8, by_feature)]
        valid = [np.concatenate(each) for each in zip(*parts, strict=True)]
    else:
        size, grade = CONSTANT.get(request.param, (6, lambda _q, _a: 0))
        valid = rows(1000, 60, size, grade, 1)
    train = write(folder / "train.csv", *rows(0, 60, 8, by_feature))
    test = write(folder / "test.csv", *rows(5000, 20, 8, by_feature, 2))
    valid = write(folder / "valid.csv", *valid)
    ingested = done("data", "ingest", train, "--valid", valid, "--test", test, "-o", folder / "d")
    assert ingested[0] is None, ingested
    assert done("data", "bin", folder / "d")[0] is None
    return request.param, folder / "d"


COMMANDS = {
    "train": "train --name w --n-rounds 3",
    "nets": "train --name n --model net --epochs 2 --layers 4",
    "seeds": "train --name s --n-rounds 2 --seeds 1,2 --preset defaults-1 --early-stopping-rounds 0",
    "select": "select-features --n-rounds 2 --early-stopping-rounds 0 -o",
    "tune": "tune --trials 1 --repeat 0 --n-rounds 2 --compare-by valid --workers 1 -o",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_refuses_a_split_on_which_all_rankings_are_as_good(split, name, tmp_path):
    case, dataset = split
    command, *options = COMMANDS[name].split()
    end = [tmp_path / "out"] if options[-1] == "-o" else ["--registry", tmp_path / "r"]
    error, said = done(command, dataset, *options, *end)
    if case == "few":
        assert error is None, said
        assert ("3 of 103 queries with documents of different grades" in said) or name == "seeds"
        return
    assert isinstance(error, TrainingDataRejected), said
    assert "no query of the valid split has" in said
    assert ("relevant document" if case == "nothing relevant" else "different grades") in said
    if name == "train":  # the cure
        cured = done(command, dataset, *options, *end, "--keep-rounds", "all", "--early-stopping-rounds", "0")
        assert cured[0] is None, cured
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("model", ["trees", "net"])
def test_fit_refuses_such_an_eval_set(model):
    x, y, qid = rows(0, 60, 8, by_feature)
    options = {"n_rounds": 3} if model == "trees" else {"model": "net", "epochs": 2, "layers": (4,)}
    for size, grade in CONSTANT.values():
        watched = rows(1000, 60, size, grade, 1)
        with refused(TrainingDataRejected, "different grades", "ndcg@10"):
            Ranker(**options).fit(x, y, qid=qid, eval_set=watched)
        if model == "trees":  # the cure
            ranker = Ranker(**options, keep_rounds="all", early_stopping_rounds=0)
            assert ranker.fit(x, y, qid=qid, eval_set=watched).predict(x).shape == (480,)


def test_folds_may_be_constant_but_not_all_and_a_metric_decides_by_what_it_distinguishes():
    """Grades 1 and 2 differ by ndcg, but not by precision at the size of the list, and 0 and 1 not by map from grade 2
    on."""
    _, y, _ = rows(0, 30, 8, by_feature)
    constant = rows(500, 30, 1, by_feature)[1]
    starts = np.concatenate([np.arange(0, 241, 8), 240 + np.arange(1, 31)])
    data = RankedRows(np.concatenate([y, constant]).astype(np.int32), starts, [])
    measure, parameters = parse_measure("ndcg@10"), TrainParameters()
    check_decides(data, measure, parameters, {"": 3}, "train")
    alone = RankedRows(constant.astype(np.int32), np.arange(31), [])
    with refused(TrainingDataRejected, "train split", "different grades"):
        check_decides(alone, measure, parameters, {"": 3}, "train")
    check_decides(alone, DEVIANCE, parameters, {"": 3}, "train")
    data = RankedRows(np.tile(np.int32([1, 2]), 30), np.arange(0, 61, 2), [])
    for metric in ("ndcg@10", "err", "concordance"):
        check_decides(data, parse_measure(metric), parameters, {"": 2}, "valid")
    for metric in ("precision@2", "map"):
        with refused(TrainingDataRejected, "valid split"):
            check_decides(data, parse_measure(metric), parameters, {"": 2}, "valid")
