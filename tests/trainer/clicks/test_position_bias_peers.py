"""Position bias beside LightGBM's ``position`` and XGBoost's ``lambdarank_unbiased``, on clicks simulated on LightGBM's
example data.

Known differences: LightGBM's gradients are float32 and its bins others, so biases agree closely, not to the bit.
XGBoost takes the order of rows for the position, and counts log(1 + exp(s_i - s_j)) for a pair in its ratios, where we
count log 2, that of equal scores; after the first round, where all scores are equal, the ratios are the same.
"""

import json

import numpy as np
import pytest

from rankmill import Ranker
from rankmill.trainer.clicks.position_bias import POSITION_BIAS
from tests.scorer.exchange.exchange_cases import peer

RANKS = 10


@pytest.fixture
def clicks(test_data):
    """Ten shows of each query of ``rank.train`` in an order that says a little: features, clicks, lists and positions,
    by position."""
    folder = test_data / "lightgbm-rank"
    lines = (folder / "rank.train").read_text().splitlines()
    x, grades = np.zeros((len(lines), 301), dtype=np.float32), np.zeros(len(lines))
    for row, line in enumerate(lines):
        grade, *cells = line.split()
        grades[row] = float(grade)
        for cell in cells:
            feature, value = cell.split(":")
            x[row, int(feature)] = float(value)
    sizes = np.loadtxt(folder / "rank.train.query", dtype=np.int64)
    rng, parts, lists = np.random.default_rng(5), [], 0
    gamma = 0.1 + 0.9 * (2.0**grades - 1.0) / 15.0
    for first, size in zip(np.concatenate(([0], np.cumsum(sizes)[:-1])), sizes, strict=True):
        for _ in range(10):
            order = np.argsort(-(grades[first : first + size] + 3.0 * rng.normal(size=size)))[:RANKS]
            rank = np.arange(1, len(order) + 1)
            clicked = rng.random(len(order)) < gamma[first + order] / rank
            parts.append((first + order, clicked, np.full(len(order), lists), rank))
            lists += 1
    rows, clicked, qid, rank = (np.concatenate(part) for part in zip(*parts, strict=True))
    return x[rows], clicked.astype(np.int32), qid, rank


def ranker_of(**parameters):
    usual = {"preset": "defaults-1", "early_stopping_rounds": 0, "verbose": 0, "n_threads": 1}
    return Ranker(**usual, **parameters)


@pytest.mark.parametrize("l2", [0.0, 0.05])
def test_additive_bias_is_lightgbm_s(clicks, l2):
    lightgbm = peer("lightgbm")
    x, clicked, qid, rank = clicks
    ours = ranker_of(n_rounds=20, position_bias="additive", position_bias_l2=l2).fit(x, clicked, qid=qid, position=rank)
    found = ours.forest_.info[POSITION_BIAS]
    said = []
    settings = {
        "objective": "lambdarank", "verbose": 2, "num_threads": 1, "lambdarank_position_bias_regularization": l2,
        "force_row_wise": True,
    }  # fmt: skip
    data = lightgbm.Dataset(x, clicked, group=np.bincount(qid), position=rank)

    class Listener:
        def info(self, text):
            said.append(text)

        warning = info

    lightgbm.register_logger(Listener())
    try:
        lightgbm.train(settings, data, 20)
    finally:
        lightgbm.register_logger(Quiet())
    table = [text.split() for text in "".join(said).replace("[LightGBM] [Debug]", "\n").splitlines()]
    theirs = {int(row[0]): float(row[1]) for row in table if len(row) == 2 and row[0].isdigit()}  # the last ones
    theirs = np.array([theirs[k] - theirs[1] for k in found["position"]])
    additive = np.array(found["additive"])
    assert theirs.min() < -0.5
    assert additive == pytest.approx(theirs, rel=0.05, abs=0.05)


class Quiet:
    def info(self, text):
        pass

    warning = info


def test_unbiased_ratios_are_xgboost_s(clicks):
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    x, clicked, qid, rank = clicks
    settings = {
        "objective": "rank:pairwise", "lambdarank_unbiased": True, "lambdarank_pair_method": "topk", "nthread": 1,
        "lambdarank_num_pair_per_sample": RANKS, "lambdarank_normalization": False,
        "lambdarank_score_normalization": False,
    }  # fmt: skip
    data = xgboost.DMatrix(x, clicked, qid=qid)
    for rounds, tolerance in ((1, 1e-6), (10, 0.1)):
        booster = xgboost.train(settings, data, rounds)
        theirs = json.loads(booster.save_config())["learner"]["objective"]
        ours = ranker_of(
            objective="ranknet", n_rounds=rounds, position_bias="unbiased", learning_rate=0.3, lambda_l2=1.0
        )
        found = ours.fit(x, clicked, qid=qid, position=rank).forest_.info[POSITION_BIAS]
        assert found["clicked"] == pytest.approx(list(theirs["ti+"])[:RANKS], abs=tolerance)
        assert found["not_clicked"] == pytest.approx(list(theirs["tj-"])[:RANKS], abs=tolerance)
