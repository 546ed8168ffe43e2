"""Weights, labels, events, offsets and pairs beside the arrays: they follow their rows, and name what is wrong."""

import numpy as np
import pytest

from rankmill import Ranker
from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.python.array_rows import rows_of
from rankmill.python.given_rows import GivenRows
from tests.rankmill.python.small_ranker import planted_arrays, small
from tests.refusals import refused


def everything(seed=3, n=60, n_queries=9):
    """Rows in disorder, with all that may be given beside them."""
    rng = np.random.default_rng(seed)
    qid = rng.integers(0, n_queries, size=n)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j and qid[i] == qid[j] and rng.random() < 0.2]
    of_query = rng.uniform(0.5, 2.0, size=n_queries)
    given = {
        "sample_weight": rng.uniform(size=n),
        "query_weight": of_query[qid],
        "label": rng.normal(size=n),
        "event": rng.integers(0, 2, size=n),
        "offset": rng.normal(size=n),
        "pairs": np.array(pairs),
        "pair_weight": rng.uniform(size=len(pairs)),
        "pair_probability": rng.uniform(size=len(pairs)),
    }
    return x, rng.integers(0, 4, size=n), qid, given


def test_everything_follows_its_row():
    x, y, qid, given = everything()
    found = rows_of(x, y, qid, given)
    back, rows = [int(np.flatnonzero((x == row).all(axis=1))[0]) for row in found.values], found.rows
    of_row = np.repeat(np.arange(len(rows.starts) - 1), np.diff(rows.starts))
    for name, found in (
        ("sample_weight", rows.weights), ("label", rows.labels), ("event", rows.events), ("offset", rows.offsets),
        ("query_weight", rows.query_weights[of_row]),
    ):  # fmt: skip
        assert np.array_equal(np.asarray(given[name])[back], found), name
    assert np.array_equal(y[back], rows.grades)
    pairs = rows.pairs
    weights = zip(given["pair_weight"], given["pair_probability"], strict=True)
    ends = [(back[better], back[worse]) for better, worse in zip(pairs.better, pairs.worse, strict=True)]
    found = dict(zip(ends, zip(pairs.weight, pairs.probability, strict=True), strict=True))
    assert found == dict(zip(map(tuple, given["pairs"].tolist()), weights, strict=True))
    for query, (first, last) in enumerate(zip(pairs.starts[:-1], pairs.starts[1:], strict=True)):
        both = np.concatenate([pairs.better[first:last], pairs.worse[first:last]])
        assert np.all((both >= rows.starts[query]) & (both < rows.starts[query + 1]))
    assert pairs.starts[-1] == len(pairs.better)


def test_the_order_of_rows_and_pairs_has_no_effect():
    x, y, qid, given = everything()
    rng = np.random.default_rng(1)
    order = rng.permutation(len(x))
    place = np.argsort(order)
    among = rng.permutation(len(given["pairs"]))
    shuffled = {
        name: place[value][among] if name == "pairs" else value[among if name.startswith("pair") else order]
        for name, value in given.items()
    }
    digest = rows_of(x, y, qid, given).digest
    assert rows_of(x[order], y[order], qid[order], shuffled).digest == digest


def test_each_is_part_of_the_digest():
    x, y, qid, given = everything()
    digests = {rows_of(x, y, qid, given).digest}
    for name in given.keys() - {"pairs"}:
        value = np.array(given[name], dtype=np.float64)
        if name == "query_weight":
            value[qid == qid[0]] = 0.25
        else:
            value[0] = 1 - value[0] if name == "event" else value[0] / 2
        digests.add(rows_of(x, y, qid, {**given, name: value}).digest)
    assert len(digests) == len(given)


def test_arguments_without_effect_leave_no_trace():
    x, y, qid, _ = everything()
    silent = {
        "sample_weight": np.full(60, 2.0), "query_weight": np.full(60, 3.0), "event": np.ones(60),
        "offset": np.zeros(60)
    }  # fmt: skip
    assert rows_of(x, y, qid, silent).digest == rows_of(x, y, qid).digest


def test_weights_of_queries_come_by_row_by_query_and_by_id():
    x, y, qid, _ = everything()
    ids = list(dict.fromkeys(qid.tolist()))
    by_id = {one: 1.0 + one for one in ids}
    for given in (by_id, [by_id[one] for one in ids], [by_id[one] for one in qid.tolist()]):
        rows = rows_of(x, y, qid, {"query_weight": given}).rows
        assert rows.query_weights.tolist() == [by_id[one] for one in sorted(by_id)]


def test_regression_learns_real_numbers_and_ranking_refuses_them():
    X, y, qid = planted_arrays()
    real = X[:, 0] - 0.3
    by_y = small(objective="l2", n_rounds=40, learning_rate=0.3).fit(X, real, qid=qid, eval_metrics="ndcg@10")
    assert (
        by_y.history_[-1].train["deviance"] < 0.05 * real.var()
    )  # where nothing is graded the loss decides when to stop
    assert np.isnan(by_y.history_[-1].train["ndcg@10"])
    by_label = small(objective="l2", n_rounds=40, learning_rate=0.3).fit(X, y, label=real, qid=qid)
    assert by_label.history_[-1].train["ndcg@10"] > 0.5
    assert np.allclose(by_label.predict(X), by_y.predict(X))
    with refused(TrainingDataRejected, "grade", "0"):
        small().fit(X, real, qid=qid)
    with refused(InvalidParameter, "lambdamart", "grades"):
        small().fit(X, y, label=real, qid=qid)
    with refused(TrainingDataRejected, "row 7", "label"):
        small(objective="l2").fit(X, np.where(np.arange(400) == 7, np.nan, real), qid=qid)


def test_eval_sets_take_the_same_by_name():
    X, y, qid = planted_arrays()
    watched = (X, y, {"qid": qid, "offset": X[:, 0], "sample_weight": np.arange(400)})
    fitted = small(objective="l2", stop_metric="deviance").fit(X, y, qid=qid, eval_set=watched)
    weight = np.arange(400) / np.arange(400).mean()
    expected = [
        float(np.mean(weight * (y - X[:, 0] - fitted.predict(X, n_rounds=n)) ** 2))
        for n in range(1, fitted.best_round_ + 1)
    ]
    assert fitted.evals_result_["valid"]["deviance"][: len(expected)] == pytest.approx(expected)
    with refused(InvalidParameter, "eval set 'valid'", "column", "'ofset'", "'offset'"):
        Ranker().fit(X, y, qid=qid, eval_set=(X, y, {"qid": qid, "ofset": y}))


def test_what_is_wrong_is_named_as_the_user_wrote_it():
    x = np.zeros((3, 1), np.float32)
    for given, message in (
        ({"event": [0, 2, 1]}, ("row 1", "event", "2.0")),
        ({"offset": [0, 1]}, ("offset", "3 rows", "int64", "(2,)")),
        ({"offset": [0, np.inf, 0]}, ("row 1", "offset", "inf")),
        ({"query_weight": [1, 2, 3]}, ("row 1", "weight 1.0", "2.0")),
        ({"query_weight": {4: 1.0}}, ("query_weight", "query 5")),
        ({"query_weight": [1, -1]}, ("query 5", "weight", "-1.0")),
        ({"query_weight": [1, 2, 3, 4]}, ("3 rows", "2 queries")),
        ({"pairs": [[0, 2]]}, ("pair 0", "rows 0 and 2", "query")),
        ({"pairs": [[0, 1], [0, 3]]}, ("pair 1", "rows 0 and 3", "0 .. 2")),
        ({"pairs": [[0, 0]]}, "twice"),
        ({"pairs": [0, 1]}, ("pairs", "(p, 2)")),
        ({"pairs": [[0, 1]], "pair_weight": [-1]}, ("weight", "0")),
        ({"pairs": [[0, 1]], "pair_probability": [1.5]}, ("probability", "[0, 1]")),
        ({"pairs": [[0, 1]], "pair_weight": [1, 2]}, ("pair_weight", "1 pairs")),
        ({"pair_weight": [1]}, "pairs"),
        ({"init_score": [0, 1, 2]}, "offset"),
    ):
        with refused((InvalidParameter, TrainingDataRejected), message):
            GivenRows.of_arrays(x, [0, 1, 0], np.array([4, 4, 5]), None, given).rows(regression=False)


@pytest.mark.parametrize("name", ["query_weight", "event"])
def test_resuming_other_columns_is_refused(name):
    X, y, qid = planted_arrays()
    rng = np.random.default_rng(5)

    def column():
        of_row = rng.integers(0, 2, size=400) if name == "event" else rng.uniform(size=400)
        return of_row[qid] if name == "query_weight" else of_row

    own = {"objective": "l2", "n_rounds": 2}
    given = column()
    first = small(**own).fit(X, y, qid=qid, **{name: given})
    small(**{**own, "n_rounds": 3}).fit(X, y, qid=qid, resume=first, **{name: given})
    for other in ({name: column()}, {}):
        with refused(InvalidParameter, "dataset_digest"):
            small(**{**own, "n_rounds": 3}).fit(X, y, qid=qid, resume=first, **other)
