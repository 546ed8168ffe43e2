"""A model whose trees have no split is not made without a word: the note says why, and the option that it names helps."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from rankmill import Ranker
from rankmill.cli import app
from rankmill.trainer.training_result import note_without_splits
from rankmill.validating import cross_validate
from tests.scorer.forests import random_forest


def written(path, n_queries, size, constant=False):
    """Judgments in which feature b is the grade, or in which all features are constant."""
    lines = [
        f"q{q},d{q}_{d},{d % 3},{0 if constant else d % 2},{0 if constant else d % 3}\n"
        for q in range(n_queries)
        for d in range(size)
    ]
    path.write_text("qid,doc_id,grade,a,b\n" + "".join(lines))
    return path


def done(*arguments):
    found = CliRunner().invoke(app, list(map(str, arguments)))
    assert found.exception is None, found.output
    return found.output


@pytest.fixture(params=["tiny", "constant"])
def dataset(request, tmp_path):
    constant = request.param == "constant"
    source = written(tmp_path / "j.csv", 30 if constant else 5, 4, constant)
    done("data", "ingest", source, "-o", tmp_path / "d")
    done("data", "bin", tmp_path / "d")
    return request.param, tmp_path


@pytest.mark.parametrize("command", ["train", "train averaged", "cv", "tune"])
def test_a_command_says_that_all_documents_tie(dataset, command):
    case, folder = dataset
    common = [folder / "d", "--n-rounds", 3]
    commands = {
        "train": ["train", *common, "--name", "w", "--registry", folder / "r"],
        "train averaged": ["train", *common, "--name", "w", "--registry", folder / "r", "--seeds", "1,2", "--choose", "average"],
        "cv": ["cv", *common, "--folds", 2],
        "tune": ["tune", *common, "--folds", 2, "--trials", 1, "--repeat", 0, "--workers", 1, "--vary", "learning_rate=0.1,0.2", "-o", folder / "t"],
    }  # fmt: skip
    said = done(*commands[command])
    assert "no tree has a split, so all documents tie" in said
    assert "leaves need 20 rows" in said or "20 rows" in said
    assert "--min-rows-in-leaf" in said
    if command == "train":
        report = json.loads(done(*commands["train"], "--json").splitlines()[-1])
        assert "20 rows" in report["note"]
    if command == "train" and case == "tiny":  # the cure
        cured = done(*commands["train"], "--min-rows-in-leaf", 1)
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


def test_forests_with_splits_or_without_trees_have_no_note():
    forest = random_forest(1)
    assert not note_without_splits(forest)
    assert not note_without_splits(forest.truncated(0))
    leaf = random_forest(0, n_trees=3, max_leaves=1)
    assert "split" in note_without_splits(replace(leaf, parameters={"min_rows_in_leaf": 5}))
