"""Grades such as 0, 10, 20, 30, whose exponential gains leave one grade to decide, get a remark wherever gains are
computed."""

import re
import warnings

import numpy as np
import polars as pl
import pytest

from rankmill import Ranker
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


@pytest.mark.slow
@pytest.mark.usefixtures("table")
def test_every_command_that_gains_says_it_and_the_cure_works(typed):
    def said(words):
        return " ".join("".join(typed(words)).split())

    ingest = "data ingest rows.csv --ignore score -o"
    reported = said(f"{ingest} steep.dataset")
    assert re.search(REMARK, reported)
    said("data bin steep.dataset")
    for number, command in enumerate((
        "train steep.dataset --name web --n-rounds 3",
        "cv steep.dataset --n-rounds 2 --folds 2",
        "cv steep.dataset --model net --epochs 1 --folds 2",
        "tune steep.dataset --trials 1 --n-rounds 2 --folds 2 -o t",
        "compare rows.csv rows.csv",
        "evaluate rows.csv --metric ndcg@10",
    )):  # fmt: skip
        assert re.search(REMARK, said(command)), command
        other = f"{command}{number}" if command.startswith("tune") else command
        assert "times as much" not in said(f"{other} --gain linear"), command
    assert "times as much" not in said("evaluate rows.csv --metric map")
    cure = re.search(CURE, reported)[1]
    assert "times as much" not in said(f"{ingest} mapped.dataset --grades {cure}")


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
