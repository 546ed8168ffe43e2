"""Grades such as 0, 10, 20, 30, whose exponential gains leave one grade to decide, get a remark wherever gains are
computed."""

import re
import warnings

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from rankmill import Ranker
from rankmill.cli import app
from rankmill.pipeline.read.grades import note_on_gains
from rankmill.python.validating import cross_validate, select_features
from tests.rankmill.python.small_ranker import planted_arrays, small

REMARK = r"a document of grade 30 gains 1,024 times as much as one of grade 20 \(gain exp, 2\^grade - 1\)"
CURE = r"--grades (10=1,20=2,30=3) when"


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y, qid = planted_arrays()
    grades = 10 * np.minimum(y, 3).astype(int)
    frame = pl.DataFrame(X, schema=list("abcd")).with_columns(qid=qid, grade=grades, score=X[:, 0])
    frame.write_csv("rows.csv")
    return frame


def said(*arguments):
    reported = CliRunner().invoke(app, [*map(str, arguments)])
    assert reported.exit_code == 0, reported.output
    return " ".join(reported.output.split())


@pytest.mark.slow
@pytest.mark.usefixtures("table")
def test_every_command_that_gains_says_it_and_the_cure_works():
    ingest = ["data", "ingest", "rows.csv", "--ignore", "score", "-o"]
    reported = said(*ingest, "steep.dataset")
    assert re.search(REMARK, reported)
    said("data", "bin", "steep.dataset")
    train = ["train", "steep.dataset", "--name", "web", "--n-rounds", 3]
    assert re.search(REMARK, said(*train))
    assert "times as much" not in said(*train, "--gain", "linear")
    for command in (
        ["cv", "steep.dataset", "--n-rounds", 2, "--folds", 2],
        ["cv", "steep.dataset", "--model", "net", "--epochs", 1, "--folds", 2],
        ["tune", "steep.dataset", "-o", "t", "--trials", 1, "--n-rounds", 2, "--folds", 2],
        ["compare", "rows.csv", "rows.csv"],
    ):
        assert re.search(REMARK, said(*command)), command
        other = [*command[:3], "t2", *command[4:]] if command[0] == "tune" else command
        assert "times as much" not in said(*other, "--gain", "linear"), command
    evaluate = ["evaluate", "rows.csv", "--metric", "ndcg@10"]
    assert re.search(REMARK, said(*evaluate))
    for other in (["--gain", "linear"], ["--metric", "map"]):
        assert "times as much" not in said(*evaluate[: 4 if other[0] == "--gain" else 2], *other)
    cure = re.search(CURE, reported)[1]
    assert "times as much" not in said(*ingest, "mapped.dataset", "--grades", cure)


def test_the_ranker_warns_and_takes_linear_gain_without_a_word(table):
    X, y, qid = table.drop("qid", "grade", "score"), table["grade"], table["qid"]
    with pytest.warns(UserWarning, match=REMARK):
        small().fit(X, y, qid=qid)
    with pytest.warns(UserWarning, match=REMARK):
        cross_validate(small(folds=2), X, y, qid=qid)
    with pytest.warns(UserWarning, match=REMARK):
        cross_validate(Ranker(model="net", epochs=1, folds=2, verbose=0), X, y, qid=qid)
    with pytest.warns(UserWarning, match=REMARK):
        select_features(small(), X, y, qid=qid, eval_set=(X, y, qid))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small(gain="linear").fit(X, y, qid=qid)
        cross_validate(small(gain="linear", folds=2), X, y, qid=qid)
        small().fit(X, y // 10, qid=qid)


def test_scales_with_wide_steps_get_one_unless_gains_are_linear():
    for usual in ([0, 1, 2, 3, 4], range(32), [0, 10], [0], [], [0, 2, 4, 6], [-2, 0, 1]):
        assert note_on_gains(usual) == ""
    for steep in ([0, 10, 20, 30], [0, 5, 10], [1, 6], [20, 1, 0], [0, 1, 2, 31]):
        assert "times as much" in note_on_gains(steep)
        assert note_on_gains(steep, "linear") == note_on_gains(steep, "table(0,1,2)") == ""
