"""Goals of rows in memory: given as arrays or as columns of a frame, at once or in pieces."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from rankmill import BinnedDataset, Ranker
from rankmill.foundation.errors import InputError, InvalidParameter, TrainingDataRejected
from tests.refusals import refused

NAMES = ["a", "b", "c"]
PARAMETERS = {"n_rounds": 6, "max_leaves": 4, "verbose": 0, "refit": "none", "n_threads": 1}


def rows(seed, n=300):
    """X, grades, queries and the grades of a goal."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    grade, bought = (np.clip(np.round(x[:, f] + 1), 0, top).astype(int) for f, top in ((0, 4), (1, 2)))
    return x, grade, np.arange(n) % 30, bought


def fitted(train, valid, metrics=("ndcg@5:bought", "err:bought"), **parameters):
    ranker = Ranker(**PARAMETERS, **{"stop_metric": "map:bought", **parameters})
    (x, y, qid, bought), (xv, yv, qv, bv) = train, valid
    return ranker.fit(
        x, y, qid=qid, goals={"bought": bought}, eval_set=[(xv, yv, {"qid": qv, "goals": {"bought": bv}})],
        eval_metrics=metrics
    )  # fmt: skip


@pytest.fixture(scope="module")
def ranker():
    return fitted(rows(1), rows(2))


def test_metrics_of_a_goal_are_those_of_its_grades(ranker):
    xv, yv, qv, bv = rows(2)
    last = ranker.history_[-1].metrics
    assert list(last["valid"]) == ["map:bought", "ndcg@5:bought", "err:bought"]
    assert ranker.score(xv, yv, qid=qv, goals={"bought": bv}) == max(
        record.metrics["valid"]["map:bought"] for record in ranker.history_
    )
    by_goal = Ranker(**PARAMETERS, stop_metric="map")
    by_goal.model_ = ranker.model_
    assert by_goal.score(xv, bv, qid=qv) == ranker.score(xv, yv, qid=qv, goals={"bought": bv})
    assert by_goal.score(xv, yv, qid=qv) != by_goal.score(xv, bv, qid=qv)


@pytest.mark.parametrize("kind", ["pandas", "arrow"])
def test_columns_of_a_frame_are_no_features(ranker, kind):
    def frame(seed):
        x, _, _, bought = rows(seed)
        columns = {name: x[:, f] for f, name in enumerate(NAMES)} | {"bought": bought}
        return {"pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.table}[kind](columns)

    (_, y, qid, _), (_, yv, qv, _) = rows(1), rows(2)
    found = Ranker(**PARAMETERS, stop_metric="map:bought").fit(
        frame(1), y, qid=qid, goals=["bought"], eval_set=[(frame(2), yv, qv)]
    )
    assert list(found.feature_names_in_) == NAMES
    assert [each.metrics["valid"]["map:bought"] for each in found.history_] == [
        each.metrics["valid"]["map:bought"] for each in ranker.history_
    ]
    assert found.score(frame(2), yv, qid=qv, goals=["bought"]) == ranker.score(
        rows(2)[0], yv, qid=qv, goals={"bought": rows(2)[3]}
    )


def test_binned_datasets_and_pieces_have_goals(ranker):
    (x, y, qid, bought), (xv, yv, qv, bv) = rows(1), rows(2)
    whole = BinnedDataset(x, y, qid=qid, goals={"bought": bought})
    pieces = [
        (x[part], y[part], {"qid": qid[part], "goals": {"bought": bought[part]}})
        for part in (slice(0, 100), slice(100, 300))
    ]
    parts = BinnedDataset.from_pieces(pieces)
    valid = BinnedDataset(xv, yv, qid=qv, goals={"bought": bv}, reference=whole)
    for train in (whole, parts):
        assert np.array_equal(train.binned.rows.goals["bought"], whole.binned.rows.goals["bought"])
        found = Ranker(**PARAMETERS, stop_metric="map:bought").fit(train, eval_set=[valid])
        assert [each.metrics["valid"]["map:bought"] for each in found.history_] == [
            each.metrics["valid"]["map:bought"] for each in ranker.history_
        ]
        assert found.forest_.sha256 == ranker.forest_.sha256


def test_the_order_of_rows_does_not_matter_and_goals_distinguish_equal_rows(ranker):
    x, y, qid, bought = rows(1)
    x[:150], y[:150] = x[0], y[0]
    order = np.random.default_rng(3).permutation(len(y))
    models = [
        Ranker(**PARAMETERS, goals={"bought": 0.5}).fit(x[o], y[o], qid=qid[o], goals={"bought": bought[o]})
        for o in (slice(None), order)
    ]
    assert models[0].forest_.sha256 == models[1].forest_.sha256
    other = Ranker(**PARAMETERS).fit(x, y, qid=qid)
    assert other.forest_.info["dataset_digest"] != models[0].forest_.info["dataset_digest"]
    # by the mean over goals where they are given, by the grade otherwise
    assert models[0].score(x, y, qid=qid, goals={"bought": bought}) != models[0].score(x, y, qid=qid)


def test_what_is_no_goal_is_refused():
    x, y, qid, bought = rows(1, 60)

    def fit(goals, **parameters):
        return Ranker(**PARAMETERS, **parameters).fit(x, y, qid=qid, goals=goals)

    with refused(TrainingDataRejected, "row 3", "bought", "0.5", "levels"):
        fit({"bought": np.where(np.arange(60) == 3, 0.5, 1.0)})
    with refused(TrainingDataRejected, "row 2", "bought", -1):
        fit({"bought": np.where(np.arange(60) == 2, -1, 1)})
    with refused(TrainingDataRejected, "bought", 60):
        fit({"bought": bought[:5]})
    with refused(InvalidParameter, "goals", "'a b'"):
        fit({"a b": bought})
    with refused(InvalidParameter, "goals", "'bought'", "no names"):
        fit(["bought"])
    with refused(InvalidParameter, "goals", "sold", "a"):
        Ranker(**PARAMETERS).fit(pd.DataFrame(x, columns=NAMES), y, qid=qid, goals=["sold"])
    with refused(InvalidParameter, "goals", "'bought'"):
        fit("bought")
    with refused(InputError, "map:sold", "bought"):
        fit({"bought": bought}, stop_metric="map:sold")
    with refused(InputError, "map:bought", "no goals"):
        fitted(rows(1), rows(2)).score(x, y, qid=qid)
