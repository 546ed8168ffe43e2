"""Ordered target encoding: against its definition, what a row may not see, and the model that comes out of it."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from rankmill import Ranker
from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.pipeline.bins.binning import bin_dataset
from rankmill.pipeline.bins.categories import category_code
from rankmill.pipeline.bins.spec import apply_bins, matrix_bins
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.pipeline.ingest import ingest
from rankmill.pipeline.options import IngestOptions, ReadOptions
from rankmill.scorer.forest.predict import predict
from rankmill.trainer.candidates.train_on_dataset import train
from rankmill.trainer.data.rows import RankedRows, TrainingData
from rankmill.trainer.data.target_encoding import with_encoded_columns
from rankmill.trainer.rounds.boosting import boost
from rankmill.trainer.rounds.sampling import order_of_queries
from rankmill.trainer.training_options import StartingModel, TrainingOptions
from tests import naive
from tests.refusals import refused
from tests.trainer.fixed import FIXED, fixed

ENCODE = {"encode_above": 10, "early_stopping_rounds": 0}


def table(seed, n_queries, k=400):
    """Return (x, grades, starts): a number, and a category of ``k`` that decides; some are missing."""
    effect = np.random.default_rng(99).normal(size=k)
    rng = np.random.default_rng(seed)
    n = n_queries * 12
    shop = rng.integers(0, k, size=n)
    number = rng.normal(size=n)
    grades = np.digitize(effect[shop] + 0.5 * number + 0.3 * rng.normal(size=n), [0.3, 1.0, 1.7]).astype(np.int32)
    x = np.column_stack([number, np.where(rng.random(n) < 0.05, np.nan, shop)]).astype(np.float32)
    return x, grades, np.arange(0, n + 1, 12)


def rows_of(x, grades, starts, spec):
    return RankedRows(grades, starts, [apply_bins(x, spec)], codes={"shop": np.ascontiguousarray(x[:, 1])})


def training(seed=0, n_queries=60, order=None, k=400):
    """Return training data with an eval set whose categories are partly unseen, and its table."""
    x, grades, starts = table(seed, n_queries, k)
    if order is not None:
        within = np.concatenate([q * 12 + np.random.default_rng(order).permutation(12) for q in range(n_queries)])
        x, grades = x[within], grades[within]
    spec = matrix_bins(["number", "shop"], x, 40, categorical=["shop"])
    watched = table(seed + 1, 30, k)
    watched[0][::7, 1] += 1000  # unseen
    data = TrainingData(
        train=rows_of(x, grades, starts, spec),
        eval_sets=[("valid", rows_of(*watched, spec))],
        edges=[f.edges for f in spec.features], feature_names=["number", "shop"], max_grade=3,
        categories=spec.categories,
    )  # fmt: skip
    return data, (x, grades, starts), watched


@pytest.mark.parametrize(("seed", "smoothing"), [(0, 0.5), (1, 5.0)])
def test_values_are_those_of_the_definition(seed, smoothing):
    data, (x, grades, starts), _ = training(seed, n_queries=20)
    asked = fixed(**ENCODE, encoding_smoothing=smoothing)
    encoded, (column,) = with_encoded_columns(data, asked)
    values = naive.encoded_in_order(x[:, 1], grades, starts, order_of_queries(20, asked.seed), smoothing)
    bins = next(iter(encoded.train.bins))[:, 2]
    assert np.array_equal(bins, column.bins_of(values.astype(np.float32)))
    for code, value in zip(column.categories.tolist(), column.values.tolist(), strict=True):
        own = grades[x[:, 1] == code]
        assert value == pytest.approx((own.sum() + smoothing * grades.mean()) / (len(own) + smoothing), rel=1e-6)


@pytest.mark.parametrize("seed", range(2))
def test_no_row_sees_a_target_of_its_own_query_or_of_a_later_one(seed):
    data, (_, grades, starts), _ = training(seed, n_queries=20)
    asked = fixed(**ENCODE)
    order = order_of_queries(20, asked.seed).tolist()
    q = seed * 4
    changed = grades.copy()
    own = slice(starts[q], starts[q + 1])
    changed[own] = changed[own][::-1]  # the mean of all stays
    other = replace(data, train=replace(data.train, grades=changed))

    def encoded_bins(given):
        return next(iter(with_encoded_columns(given, asked)[0].train.bins))[:, 2]

    before, after = encoded_bins(data), encoded_bins(other)
    edges = [with_encoded_columns(given, asked)[1][0].edges.tolist() for given in (data, other)]
    earlier = np.isin(np.repeat(np.arange(20), 12), order[: order.index(q) + 1])
    if edges[0] == edges[1]:
        assert np.array_equal(before[earlier], after[earlier])
    assert not np.array_equal(changed, grades)


@pytest.mark.parametrize("grow_by", ["best_first", "oblivious"])
def test_the_model_scores_raw_values_as_training_measured_them(grow_by):
    data, _, (x, grades, _) = training()
    asked = fixed(n_rounds=12, grow=grow_by, learning_rate=0.3, objective="l2", **ENCODE)
    result = boost(data, asked, TrainingOptions(eval_metrics=("deviance",)))
    assert len(result.forest.info["encoded_splits"]["nodes"]) > 0
    scores = predict(result.forest, x)
    assert scores.tolist() == naive.predict(result.forest, x)
    measured = result.history[-1].metrics["valid"]["deviance"]
    assert measured == pytest.approx(np.mean((grades - scores) ** 2), rel=1e-12)


@pytest.mark.parametrize(
    ("grow_by", "other"), [("best_first", {"feature_fraction": 0.5, "members": 2}), ("oblivious", {})]
)
def test_same_bytes_for_threads_the_order_of_rows_and_resume(grow_by, other):
    given = {"grow": grow_by, "objective": "l2", **ENCODE, **other}
    whole = boost(training()[0], fixed(n_rounds=8, **given)).forest
    threaded = boost(training()[0], fixed(n_rounds=8, **given), TrainingOptions(n_threads=3)).forest
    assert threaded.sha256 == whole.sha256
    assert boost(training(order=4)[0], fixed(n_rounds=8, **given)).forest.sha256 == whole.sha256
    part = StartingModel(boost(training()[0], fixed(n_rounds=3, **given)).forest)
    again = boost(training()[0], fixed(n_rounds=8, **given), TrainingOptions(resume=part)).forest
    assert again.sha256 == whole.sha256
    cut = StartingModel(whole.truncated(5))
    again = boost(training()[0], fixed(n_rounds=8, **given), TrainingOptions(resume=cut)).forest
    assert again.sha256 == whole.sha256
    with refused(InvalidParameter, "resume", "shop"):
        other_data = training()[0]
        moved = replace(other_data, train=replace(other_data.train, grades=other_data.train.grades[::-1].copy()))
        boost(moved, fixed(n_rounds=8, **given), TrainingOptions(resume=part))


def test_more_categories_than_a_model_can_hold_are_refused_before_the_first_round():
    codes = np.arange(70_000, dtype=np.float32)
    x, y = np.stack([codes % 7, codes], axis=1), (codes % 3).astype(int)
    with refused(TrainingDataRejected, "70,000", "65,534", "encode_above"):
        Ranker(n_rounds=2, categorical=[1], verbose=0).fit(x, y, group=[100] * 700)


@pytest.mark.parametrize("k", [400, 100])
def test_many_categories_are_encoded_by_default_and_few_are_left_alone(k):
    x, y, starts = table(0, 400, k)
    test_x, test_y, test_starts = table(5, 100, k)

    def learnt(**given):
        ranker = Ranker(n_rounds=40, categorical=[1], verbose=0, **given).fit(x, y, group=np.diff(starts))
        return ranker.score(test_x, test_y, group=np.diff(test_starts)), ranker.forest_

    (ndcg, forest), (without, plain) = learnt(), learnt(encode_above=0)
    assert "encoded_splits" not in plain.info
    assert ("encoded_splits" in forest.info) == (k == 400)
    assert ndcg > without + 0.02 if k == 400 else ndcg == without


def test_the_model_names_all_categories_that_it_uses(tmp_path):
    x, y, _ = table(0, 300, k=500)
    shop = [None if np.isnan(code) else f"shop {code:g}" for code in x[:, 1]]
    qid = np.repeat(np.arange(300), 12)
    frame = pl.DataFrame({"qid": qid, "grade": y, "number": x[:, 0], "shop": pl.Series(shop, dtype=pl.String)})
    frame.write_parquet(tmp_path / "judged.parquet")
    ingest(
        [tmp_path / "judged.parquet"], tmp_path / "d", options=IngestOptions(read=ReadOptions(categorical=("shop",)))
    )
    bin_dataset(Dataset.open(tmp_path / "d"))
    asked = fixed(n_rounds=40, encode_above=200)
    of_arrays = Ranker(**FIXED, n_rounds=40, encode_above=200, verbose=0).fit(frame[["number", "shop"]], y, qid=qid)
    for forest in (train(Dataset.open(tmp_path / "d"), asked).forest, of_arrays.forest_):
        shops = forest.cuts[forest.cut_starts[forest.feature_names.index("shop")] :][:500]
        assert len(shops) > 254  # more than there are bins
        assert sorted(map(category_code, forest.categories["shop"])) == shops.tolist()
