"""A stored model file of each kind gives the same forest, the same bytes back and the same scores, whatever the code becomes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rankmill.scorer.forest import Forest
from rankmill.scorer.predict import ForestPredictor, predict
from tests import naive

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.rankmill"))


def told_of(path):
    told = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    rows = np.array([[float.fromhex(x) for x in row] for row in told["rows"]], dtype=np.float32)
    return told, rows


def test_there_is_one_of_each_kind_and_format_number():
    assert {path.stem for path in GOLDEN} >= {
        *("best_first", "depth_first", "oblivious", "weighted", "mcrank", "mcrank_gain", "ordinal"),
        *("several_trees_a_round", "by_hand", "no_trees", "sets_by_hand"),
    }
    assert {told_of(path)[0]["format"] for path in GOLDEN} == {1, 2, 3}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_golden_file_is_read_and_written_again(path):
    data, (told, _) = path.read_bytes(), told_of(path)
    forest = Forest.from_bytes(data)
    assert (data[8], forest.sha256) == (told["format"], told["sha256"])
    assert forest.to_bytes() == data


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_golden_file_gives_the_scores_that_it_gave(path):
    forest, (told, rows) = Forest.load(path), told_of(path)
    assert [float(score).hex() for score in predict(forest, rows)] == told["scores"]
    assert [float(ForestPredictor(forest).scores(row[None])[0]).hex() for row in rows] == told["scores"]
    if forest.link == "identity":
        assert [score.hex() for score in naive.predict(forest, rows)] == told["scores"]
