"""Trainings of nets: the same bytes however they are run, early stopping, resume, objectives and refusals."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from rankmill import Ranker
from rankmill.foundation.errors import InvalidParameter, ModelFormatError, TrainingDataRejected
from rankmill.pipeline.pairs.stored_pairs import PreferencePairs
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries, mean_of
from rankmill.scorer.metrics.swaps import SWAPPABLE
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.nets.batches import Epoch, most_rows
from rankmill.trainer.nets.options import NetOptions, as_published
from rankmill.trainer.nets.training import NetData, NetRows, train_net
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.team import Team
from tests.refusals import refused
from tests.trainer.nets.net_case import planted_data, rows_of, trained
from tests.trainer.planted import planted


def ndcg(net, split):
    metric = parse_metric("ndcg@10")
    queries = PreparedQueries(split.rows.grades, split.rows.starts, Policy())
    return mean_of(queries.evaluate([metric], net.predict(split.values))[metric])


@pytest.mark.parametrize(
    "options",
    [
        {"batch_documents": 2000, "dropout": 0.3, "input_noise": 0.1},
        {"batch_documents": 2000, "objective": "softmax", "batch_norm": False, "activation": "tanh", "dropout": 0},
    ],
)
def test_the_same_bytes_for_any_number_of_threads(options, monkeypatch):
    monkeypatch.setattr("rankmill.trainer.nets.training._LEAST_PRODUCTS", 1)
    data = planted_data(n_queries=250, categories=6)
    nets = [trained(data, n_threads=n, epochs=3, **options).net for n in (1, 2, 3)]
    assert len({net.sha256 for net in nets}) == 1


@pytest.mark.parametrize("options", [{}, {"optimiser": "sgd", "schedule": "follow_loss", "learning_rate": 0.5}])
def test_resuming_gives_the_same_bytes_as_one_go(options):
    data = planted_data(categories=4)
    whole = trained(data, epochs=5, early_stopping_epochs=3, **options)
    part = trained(data, epochs=2, early_stopping_epochs=3, **options)
    rest = trained(data, epochs=5, early_stopping_epochs=3, resume=part.checkpoint, **options)
    assert rest.net == replace_epochs(whole.net, rest.net)
    assert rest.history == whole.history
    taken = []
    trained(data, epochs=3, early_stopping_epochs=3, on_epoch=lambda _, state: taken.append(state()), **options)
    again = trained(data, epochs=5, early_stopping_epochs=3, resume=taken[0], **options)
    assert again.net == whole.net
    assert again.checkpoint == whole.checkpoint


def replace_epochs(net, other):
    """The net with the number of epochs that the options of the other name, where it was made before they were
    raised."""
    return replace(net, parameters={**net.parameters, "epochs": other.parameters["epochs"]})


def test_another_training_is_not_resumed():
    part = trained(epochs=1)
    with refused(InvalidParameter, "dropout", "0.3", "0.2"):
        trained(epochs=2, dropout=0.2, resume=part.checkpoint)
    with refused(InvalidParameter, "data"):
        trained(planted_data(5), epochs=2, resume=part.checkpoint)
    with refused(InvalidParameter, "epochs", 1):
        trained(epochs=1, resume=trained(epochs=2).checkpoint)
    with refused(ModelFormatError, "checkpoint"):
        trained(epochs=2, resume=part.net.to_bytes())
    for place in range(0, len(part.checkpoint), 2999):
        damaged = bytearray(part.checkpoint)
        damaged[place] ^= 1
        with refused(ModelFormatError, "checkpoint"):
            trained(epochs=2, resume=bytes(damaged))


def test_early_stopping_keeps_the_best_epoch():
    data = planted_data(n_queries=25)
    result = trained(data, epochs=60, early_stopping_epochs=4, learning_rate=0.05)
    values = [record.metrics["valid"]["ndcg@10"] for record in result.history]
    assert len(values) < 60
    assert values[result.best_epoch - 1] == max(values)
    assert len(values) == result.best_epoch + 4
    assert ndcg(result.net, data.valid) == max(values)  # what was measured is what the net predicts
    assert result.net.info["epochs"] == result.best_epoch


def test_a_caller_may_stop():
    assert len(trained(epochs=5, on_epoch=lambda record, _: record.round_number == 2).history) == 2


@pytest.mark.parametrize("objective", ["lambdamart", "softmax", "yetirank"])
def test_nets_learn_a_planted_signal(objective):
    data = planted_data(3, n_queries=150)
    net = trained(data, objective=objective, epochs=12, learning_rate=0.01).net
    assert ndcg(net, data.valid) > ndcg(trained(data, objective=objective, epochs=1).net, data.valid)
    assert ndcg(net, data.valid) > 0.8


@pytest.mark.parametrize("metric", SWAPPABLE)
def test_every_metric_with_swap_deltas_can_be_the_target(metric):
    metric = {"rbp": "rbp(p=0.8)", "precision": "precision@5", "recall": "recall@5"}.get(metric, metric)
    result = trained(metric=metric, epochs=1)
    assert 0.0 <= result.history[0].metrics["valid"][str(parse_metric(metric))] <= (100 if "dcg" in metric else 1)


def test_categories_are_learnt():
    data = planted_data(3, n_queries=150, categories=8)
    plain = replace(data, categories={})
    without = replace(
        plain,
        train=replace(plain.train, values=plain.train.values[:, :-1]),
        valid=replace(plain.valid, values=plain.valid.values[:, :-1]),
        feature_names=plain.feature_names[:-1],
    )
    options = {"epochs": 12, "learning_rate": 0.01}
    assert ndcg(trained(data, **options).net, data.valid) > 0.02 + ndcg(trained(without, **options).net, without.valid)


def test_offsets_are_part_of_scores_in_training_only():
    data = planted_data(3, n_queries=150)
    reported = data.train.values[:, 0].astype(np.float64)
    reported[np.isnan(reported)] = 0.0
    offset = replace(
        data, train=replace(data.train, rows=replace(data.train.rows, offsets=100.0 * reported)), valid=None
    )
    assert trained(offset).net != trained(replace(data, valid=None)).net
    assert trained(offset).history[0].train["ndcg@10"] > 0.7


@pytest.mark.parametrize("documents", [1, 40, 300, 10**6])
def test_batches_are_whole_queries_and_every_row_is_in_one(documents):
    _, grades, starts = planted(4)
    rows = rows_of(planted(4)).rows
    epoch = Epoch.of(rows, 7, 1)
    assert sorted(epoch.places.tolist()) == list(range(len(grades)))
    assert np.array_equal(epoch.rows.grades, grades[epoch.places])
    batches = list(epoch.batches(documents))
    assert [first for first, _ in batches] == [0, *(last for _, last in batches[:-1])]
    assert batches[-1][1] == rows.n_queries
    sizes = [int(epoch.rows.starts[last] - epoch.rows.starts[first]) for first, last in batches]
    assert max(sizes) <= most_rows(rows, documents)
    assert min(sizes) >= min(documents / 2, len(grades))
    if documents == 1:
        assert len(batches) == rows.n_queries
    assert not np.array_equal(epoch.places, Epoch.of(rows, 7, 2).places)
    assert np.array_equal(epoch.places, Epoch.of(rows, 7, 1).places)
    del starts


@pytest.mark.parametrize(
    ("objective", "metric"),
    [
        *(("lambdamart", metric) for metric in ("ndcg@10", "err@5", "concordance")),
        *(
            (name, "ndcg@10")
            for name in (
                "ranknet(ties=true)", "softmax", "lambdaloss", "listmle", "query_rmse", "consistent_cosine", "l2",
                "laplace",
                "quantile", "bernoulli", "adaboost", "poisson", "logistic2", "logistrank", "consistent_kl",
            )
        ),
    ],
)  # fmt: skip
def test_gradients_of_a_batch_are_those_of_all_queries(objective, metric):
    rows = rows_of(planted(4)).rows
    loss = objective_of(rows, NetOptions(objective=objective, metric=metric).losses())
    scores = np.random.default_rng(5).normal(size=rows.n_rows)
    whole, parts = np.zeros((2, rows.n_rows)), np.zeros((2, rows.n_rows))
    loss.gradients(3, scores, *whole, Team(1))
    for first, last in itertools.pairwise([0, 7, 8, 30, rows.n_queries]):
        before = parts.copy()
        loss.limit_to(first, last)
        loss.gradients(3, scores, *parts, Team(1))
        outside = np.ones(rows.n_rows, dtype=bool)
        outside[rows.starts[first] : rows.starts[last]] = False
        assert np.array_equal(parts[:, outside], before[:, outside])
    assert np.array_equal(parts, whole)


def test_the_rate_falls_when_the_loss_rises():
    rates = []

    def keep(_, state):
        from rankmill.trainer.nets.checkpoint import NetCheckpoint

        rates.append(NetCheckpoint.from_bytes(state())[0].rate)

    result = trained(
        epochs=12, optimiser="sgd", learning_rate=1.0, schedule="follow_loss", batch_documents=1, on_epoch=keep,
        batch_norm=False, dropout=0, activation="tanh",
    )  # fmt: skip
    losses = [record.train["deviance"] for record in result.history]
    expected, rate = [], 1.0
    for before, now in zip([np.inf, *losses[:-1]], losses, strict=True):
        rate *= 0.8 if now > before else 1.0
        expected.append(rate)
    assert rates == expected
    assert rates[-1] < 1.0


@pytest.mark.parametrize("objective", ["lambdamart", "softmax"])
def test_weights_that_grow_without_bound_are_an_error(objective):
    with refused(InvalidParameter, "learning_rate", "1", "epoch"):
        trained(objective=objective, optimiser="sgd", learning_rate=1, batch_norm=False, weight_decay=100, epochs=30)


@pytest.mark.parametrize("objective", ["coxph", "gbrank", "huber", "mcrank", "ordinal"])
def test_what_only_trees_learn_is_refused_with_the_reason(objective):
    with refused(InvalidParameter, objective, "nets", "lambdamart, softmax or l2"):
        trained(objective=objective)


@pytest.mark.parametrize("objective", ["l2", "laplace", "poisson"])
def test_nets_learn_labels_of_documents(objective):
    """The loss on unseen labels falls: that of l2, 1 / 2 for a constant, to that of a good fit."""
    rng = np.random.default_rng(8)
    splits = []
    for _ in range(2):
        x = rng.normal(size=(1200, 3)).astype(np.float32)
        y = np.clip(x[:, 0] + np.abs(x[:, 1]), 0, None).astype(np.float64)
        rows = RankedRows(np.zeros(1200, np.int32), np.arange(0, 1201, 12), (), labels=y / y.std())
        splits.append(NetRows(x, rows))
    data = NetData(train=splits[0], valid=splits[1], feature_names=["a", "b", "c"], max_grade=1)
    losses = [
        record.metrics["valid"]["deviance"]
        for record in trained(data, objective=objective, epochs=12, learning_rate=0.01, dropout=0).history
    ]
    assert min(losses) < 0.9 * losses[0]
    assert objective != "l2" or min(losses) < 0.05


def test_refusals():
    with refused(InvalidParameter, "learning_rate", "(0, 1]", "1.5"):
        NetOptions(learning_rate=1.5)  # as for trees, in Python, in files and on the command line
    with refused(InvalidParameter, "layers", "4096"):
        NetOptions(layers=(5000,))
    with refused(InvalidParameter, "dropout", "tanh"):
        NetOptions(activation="tanh")
    with refused(InvalidParameter, "updates", "tanh"):
        NetOptions(updates="pairs")
    with refused(InvalidParameter, "updates", "objective", "ranknet"):
        train_net(planted_data(), as_published(updates="pairs", objective="lambdamart"))
    with refused(InvalidParameter, "updates", "numeric"):
        published = as_published(updates="pairs", epochs=1)
        train_net(planted_data(categories=3), published)
    data = planted_data()
    with refused(TrainingDataRejected, "train", "shape"):
        trained(replace(data, feature_names=data.feature_names[:-1]))
    alike = replace(data.train, rows=replace(data.train.rows, grades=np.zeros(data.train.rows.n_rows, np.int32)))
    with refused(TrainingDataRejected, "grades"):
        trained(replace(data, train=alike))
    with refused(TrainingDataRejected, "valid", "ndcg@10", "none"):
        trained(replace(data, valid=replace(alike, values=data.train.values)))


def test_given_pairs_count_only_where_grades_order_nothing():
    data = planted_data()
    rows = data.train.rows
    first = rows.starts[:-1].astype(np.int32)
    pairs = PreferencePairs(first + 1, first, np.ones(len(first)), np.ones(len(first)), np.arange(len(first) + 1))
    with_pairs = replace(data, train=replace(data.train, rows=replace(rows, pairs=pairs)))
    plain, given = (trained(each, epochs=1, objective="ranknet").net for each in (data, with_pairs))
    assert np.array_equal(plain.predict(data.train.values), given.predict(data.train.values))
    level = replace(rows, pairs=pairs, grades=np.zeros_like(rows.grades))
    ungraded = replace(data, train=replace(data.train, rows=level))
    learnt = trained(ungraded, epochs=40, objective="ranknet", early_stopping_epochs=0).net.predict(data.train.values)
    assert np.mean(learnt[pairs.better] > learnt[pairs.worse]) > 0.75


@pytest.mark.parametrize("size", [1e31, 1e299])
def test_labels_beyond_the_scores_of_a_net_are_refused_in_one_line(size):
    rng = np.random.default_rng(0)
    x, qid = rng.normal(size=(60, 2)), np.repeat(np.arange(6), 10)
    ranker = Ranker(model="net", objective="l2", epochs=1, layers=(2,))
    with refused(TrainingDataRejected, "net", "1e+30", "labels"):
        ranker.fit(x, np.ones(60), qid=qid, label=np.abs(x[:, 0]) * size)
