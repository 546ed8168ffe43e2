"""What is watched while a model grows: several sets and metrics, callbacks; none of it changes the model."""

from dataclasses import replace

import numpy as np
import pytest

from rankmill.foundation.errors import InputError, TrainingDataRejected
from rankmill.scorer.forest.predict import predict
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.trainer import _kernels
from rankmill.trainer.growing.tree import Tree
from rankmill.trainer.rounds.cross_validation import folds_of
from rankmill.trainer.rounds.train_on_rows import train_fold
from rankmill.trainer.training_options import TrainingOptions
from tests.naive_growth import nodes_of
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.planted import boost_rows, data_of, fit, planted, rows_of, small_data


def test_every_set_has_every_metric_as_evaluation_finds_them():
    data, third = small_data(), planted(3)
    sets = [("valid", data[1]), ("other", third)]
    result = fit(data, n_rounds=6, early_stopping_rounds=0, eval_sets=sets, options={"eval_metrics": ["map", "err@5"]})
    record = result.history[result.best_round - 1]
    assert list(record.metrics) == ["train", "valid", "other"]
    metrics = [parse_metric(name) for name in ("ndcg@10", "map", "err@5")]
    for name, (x, grades, starts) in [("train", data[0]), *sets]:
        means = PreparedQueries(grades, starts, Policy(max_grade=4)).means(metrics, predict(result.forest, x))
        assert record.metrics[name] == {str(metric): mean for metric, mean in means.items()}


def test_held_out_queries_of_a_set_are_measured_under_its_name_too():
    data = data_of(rows_of(small_data()[0], small_data()[2])).blocked()
    fold, queries = folds_of(data.train.query_names, 3, 7)[0], np.arange(data.train.n_queries)
    sets = {"later": queries >= 40, "none": queries < 0}
    found = train_fold(data, fixed(n_rounds=2), TrainingOptions(n_threads=1), fold, None, None, measured=sets).by_query
    assert found.keys() == {"train", "holdout", "later"}
    held_out, later = (found[name]["ndcg@10"].values for name in ("holdout", "later"))
    assert later.tolist() == held_out[sets["later"][fold.held_out]].tolist()


@pytest.mark.parametrize("leaves", [1, 9, 400])  # one is swept, split by split, the other walked row by row
def test_a_tree_adds_the_value_of_the_leaf_that_each_row_reaches(leaves):
    rng, n, n_nodes = np.random.default_rng(leaves), 1300, 2 * leaves - 1
    bins = rng.integers(0, 30, size=(n, 7)).astype(np.uint8)
    tree = Tree(
        feature=np.full(n_nodes, -1, np.int32), threshold=rng.integers(0, 30, n_nodes).astype(np.int32),
        missing_left=rng.integers(0, 2, n_nodes).astype(np.uint8), left=np.full(n_nodes, -1, np.int32),
        right=np.full(n_nodes, -1, np.int32), value=rng.normal(size=n_nodes), gain=np.zeros(n_nodes),
        rows=np.zeros(n_nodes, np.int64), sets=rng.integers(0, 2**63, size=(n_nodes, 4)).astype(np.uint64),
    )  # fmt: skip
    open_nodes = [0]
    for first in range(1, n_nodes, 2):
        node = open_nodes.pop(int(rng.integers(len(open_nodes))))
        tree.feature[node], tree.left[node], tree.right[node] = rng.integers(7), first, first + 1
        open_nodes += [first, first + 1]
    expected = np.ones(n)
    for node, rows in enumerate(nodes_of(tree, bins)):
        if tree.feature[node] < 0:
            expected[rows] += tree.value[node]
    scores, columns = np.ones(n), np.ascontiguousarray(bins.T)
    for first, last in ((0, 700), (700, n)):
        _kernels.add_tree(
            columns, tree.feature, tree.threshold, tree.missing_left, tree.sets, tree.left, tree.right, tree.value,
            first, last, scores,
        )  # fmt: skip
    assert np.array_equal(scores, expected)


def test_what_is_only_watched_does_not_change_the_model():
    data = small_data()
    expected = fit(data).forest.to_bytes()
    more = fit(
        data,
        eval_sets=[("valid", data[1]), ("late", planted(5))],
        options={"eval_metrics": ["map", "mrr"], "histogram_memory": 1},
    )
    assert more.forest.to_bytes() == expected


def test_the_first_set_and_the_stop_metric_decide():
    data = small_data()
    other = planted(9, n_queries=20)
    result = fit(data, learning_rate=0.5, eval_sets=[("other", other), ("valid", data[1])], stop_metric="map")
    values = [record.metrics["other"]["map"] for record in result.history]
    assert result.best_round == 1 + int(np.argmax(values))
    assert result.forest.info["valid"] == {"map": max(values)}
    assert result.forest.info["train"] == {"map": result.history[result.best_round - 1].train["map"]}


def test_a_callback_ends_the_training():
    data = small_data()
    stopped = fit(data, watch=False, options={"on_round": lambda record: record.round_number == 5})
    assert stopped.best_round == stopped.forest.n_trees == 5
    assert np.array_equal(stopped.forest.node_value, fit(data, watch=False, n_rounds=5).forest.node_value)


def test_what_a_callback_raises_is_raised():
    def fail(record):
        raise ZeroDivisionError(record.round_number)

    with pytest.raises(ZeroDivisionError, match="1"):
        fit(small_data(), options={"on_round": fail, "n_threads": 2})


def test_unusable_sets_and_metrics_are_refused():
    data = small_data()
    x, grades, _ = data[1]
    with refused(TrainingDataRejected, "'b'"):
        fit(data, eval_sets=[("a", data[1]), ("b", (x[:0], grades[:0], np.zeros(1, np.int64)))])
    with refused(TrainingDataRejected, "a split", "relevant"):
        fit(data, eval_sets=[("a", (x, grades * 0, data[1][2]))])
    with refused(InputError, "'map'"):
        fit(data, options={"eval_metrics": ["mop"]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda bins: [bins[:-1]], ("eval set 'valid'", "bins", "rows")),
        (lambda bins: [bins, bins[:1]], ("eval set 'valid'", "bins", "shape")),
        (lambda bins: [bins[:, :-1]], ("eval set 'valid'", "bins", "shape")),
        (lambda bins: [bins[:5], np.hstack([bins[5:], bins[5:]])], ("eval set 'valid'", "bins", "row 5")),
        (lambda bins: [], ("eval set 'valid'", "bins", "rows", "0")),
        (lambda bins: [np.full_like(bins, 255)], ("eval set 'valid'", "feature 0", "bin")),
    ],
)  # fmt: skip
def test_bins_of_other_rows_or_features_are_refused(change, message):
    train, valid, binspec = small_data()
    rows = rows_of(valid, binspec)
    edges = [feature.edges[:200] for feature in binspec.features]
    thin = replace(binspec, features=tuple(replace(f, edges=e) for f, e in zip(binspec.features, edges, strict=True)))
    watched = replace(rows, bins=change(rows_of(valid, thin).bins[0]))
    with refused(TrainingDataRejected, message):
        boost_rows(rows_of(train, thin), [("valid", watched)], fixed(n_rounds=1), binspec=thin)
