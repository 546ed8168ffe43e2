"""Whatever chooses by a metric of a split refuses one on which no query can differ, and says how many can where they are few."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from rankmill import Ranker
from rankmill.cli import app
from rankmill.foundation.errors import TrainingDataRejected
from rankmill.trainer.early_stopping import DEVIANCE, parse_measure
from rankmill.trainer.measured_queries import check_decides
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.rows import RankedRows
from tests.refusals import refused

CONSTANT = {"one document": (1, lambda q, _: 1 + q % 3), "one grade": (6, lambda q, _: 1 + q % 3)}
NOTHING_RELEVANT = (6, lambda _q, _a: 0)


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


@pytest.fixture(scope="module", params=[*CONSTANT, "nothing relevant", "few"])
def split(request, tmp_path_factory):
    """The name of a case, and a binned dataset with such a valid split."""
    folder = tmp_path_factory.mktemp("d")
    if request.param == "few":
        parts = [rows(1000, 100, 1, by_feature), rows(2000, 3, 8, by_feature)]
        valid = [np.concatenate(each) for each in zip(*parts, strict=True)]
    else:
        size, grade = CONSTANT.get(request.param, NOTHING_RELEVANT)
        valid = rows(1000, 60, size, grade, 1)
    train = write(folder / "train.csv", *rows(0, 60, 8, by_feature))
    test = write(folder / "test.csv", *rows(5000, 20, 8, by_feature, 2))
    ingested = done(
        "data", "ingest", train, "--valid", write(folder / "valid.csv", *valid), "--test", test, "-o", folder / "d"
    )
    assert ingested[0] is None, ingested
    assert done("data", "bin", folder / "d")[0] is None
    return request.param, folder / "d"


COMMANDS = {
    "train": ("train", "--name", "w", "--n-rounds", "3"),
    "nets": ("train", "--name", "n", "--model", "net", "--epochs", "2", "--layers", "4"),
    "seeds": (
        "train",
        "--name",
        "s",
        "--n-rounds",
        "2",
        "--seeds",
        "1,2",
        "--preset",
        "defaults-1",
        "--early-stopping-rounds",
        "0",
    ),
    "select": ("select-features", "--n-rounds", "2", "-o"),
    "select all rounds": ("select-features", "--n-rounds", "2", "--early-stopping-rounds", "0", "-o"),
    "tune": (
        "tune",
        "--trials",
        "1",
        "--repeat",
        "0",
        "--n-rounds",
        "2",
        "--compare-by",
        "valid",
        "--workers",
        "1",
        "-o",
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_refuses_a_split_on_which_all_rankings_are_as_good(split, name, tmp_path):
    case, dataset = split
    command, *options = COMMANDS[name]
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
@pytest.mark.parametrize("case", CONSTANT)
def test_fit_refuses_such_an_eval_set(case, model):
    x, y, qid = rows(0, 60, 8, by_feature)
    options = {"n_rounds": 3} if model == "trees" else {"model": "net", "epochs": 2, "layers": (4,)}
    size, grade = CONSTANT[case]
    with refused(TrainingDataRejected, "different grades", "ndcg@10"):
        Ranker(**options).fit(x, y, qid=qid, eval_set=rows(1000, 60, size, grade, 1))
    if model == "trees":  # the cure
        ranker = Ranker(**options, keep_rounds="all", early_stopping_rounds=0)
        assert ranker.fit(x, y, qid=qid, eval_set=rows(1000, 60, size, grade, 1)).predict(x).shape == (480,)


def test_folds_may_be_constant_but_not_all_of_them():
    _, y, _ = rows(0, 30, 8, by_feature)
    constant = rows(500, 30, 1, by_feature)
    grades = np.concatenate([y, constant[1]])
    data = RankedRows(grades.astype(np.int32), np.concatenate([np.arange(0, 241, 8), 240 + np.arange(1, 31)]), [])
    measure, parameters = parse_measure("ndcg@10"), TrainParameters()
    check_decides(data, measure, parameters, {"": 3}, "train")
    alone = RankedRows(constant[1].astype(np.int32), np.arange(31), [])
    with refused(TrainingDataRejected, "train split", "different grades"):
        check_decides(alone, measure, parameters, {"": 3}, "train")
    check_decides(alone, DEVIANCE, parameters, {"": 3}, "train")


def test_a_metric_decides_only_by_what_it_tells_apart():
    """Grades 1 and 2 differ by ndcg, but not by precision at the size of the list, and 0 and 1 not by map from grade 2 on."""
    data = RankedRows(np.tile(np.int32([1, 2]), 30), np.arange(0, 61, 2), [])
    for metric, differs in (
        ("ndcg@10", True),
        ("err", True),
        ("precision@2", False),
        ("map", False),
        ("concordance", True),
    ):
        try:
            check_decides(data, parse_measure(metric), TrainParameters(), {"": 2}, "valid")
        except TrainingDataRejected:
            assert not differs, metric
        else:
            assert differs, metric
