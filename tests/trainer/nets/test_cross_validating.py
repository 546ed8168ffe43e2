"""Cross-validation of nets: each fold is the net that its own training part gives, and all count for as many epochs."""

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.scorer.metrics.per_query import mean_of
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.nets.cross_validating import cross_validate_net, cross_validate_net_on
from rankmill.trainer.nets.options import NetOptions
from rankmill.trainer.nets.train_on_dataset import split_for_net
from rankmill.trainer.nets.training import NetData, NetRows, train_net
from rankmill.trainer.options import MachineOptions
from rankmill.trainer.rounds.sampling import fold_of_queries
from rankmill.trainer.rounds.training_result import HOLDOUT
from tests.refusals import refused, unnamed
from tests.trainer.nets.net_case import SMALL, planted_data

OPTIONS = NetOptions(
    **{**SMALL, "transform": "quantile", "epochs": 12, "early_stopping_epochs": 3, "learning_rate": 0.05}
)


def by_hand(data, apart, options):
    """The net of rows that are picked out one by one, measured on the others."""

    def rows_where(which):
        queries = np.flatnonzero(which)
        rows = data.train.rows
        of_query = [range(rows.starts[q], rows.starts[q + 1]) for q in queries]
        at = [row for each in of_query for row in each]
        starts = np.cumsum([0, *map(len, of_query)])
        part = RankedRows(rows.grades[at], starts, (), names=rows.query_names[queries])
        return NetRows(data.train.values[at], part)

    train, held_out = rows_where(~apart), rows_where(apart)
    return train_net(
        NetData(
            train=train, valid=held_out, valid_name=HOLDOUT, feature_names=data.feature_names, max_grade=4,
            categories=data.categories,
        ),
        options,
    )  # fmt: skip


def test_a_fold_is_the_net_of_the_other_rows():
    """Its inputs, quantiles and categories too, are fitted to these rows alone."""
    data = planted_data(2, n_queries=40, categories=5)
    found = cross_validate_net(data, OPTIONS, 3, by_query=True)
    fold_of = fold_of_queries(np.arange(40), 3, OPTIONS.seed)
    longest = len(found.histories[0])
    stopped = []
    for fold, history in enumerate(found.histories):
        alone = by_hand(data, fold_of == fold, OPTIONS)
        stopped.append(len(alone.history))
        assert history[: len(alone.history)] == alone.history
        assert history == by_hand(data, fold_of == fold, NetOptions(
            **{**SMALL, "transform": "quantile", "learning_rate": 0.05, "epochs": longest, "early_stopping_epochs": 0}
        )).history  # fmt: skip
    assert longest == max(stopped)
    assert min(stopped) < longest  # one went on from where it had stopped
    means = [found.mean("ndcg@10", epoch) for epoch in range(1, longest + 1)]
    assert means[found.best_round - 1] == max(means)
    of_folds = [mean_of(found.by_query[fold_of == fold]) for fold in range(3)]
    assert of_folds == pytest.approx(found.values("ndcg@10"), abs=1e-12)


def test_threads_change_nothing(dataset):
    one, two = (cross_validate_net_on(dataset, OPTIONS, 3, MachineOptions(n_threads=n), by_query=True) for n in (1, 2))
    assert (one, one.by_query.tobytes()) == (two, two.by_query.tobytes())
    data = split_for_net(dataset, "train", OPTIONS)
    assert one == cross_validate_net(data, OPTIONS, 3)


def test_a_falling_rate_has_no_shorter_training():
    options = NetOptions(**{**SMALL, "schedule": "cosine", "epochs": 5, "early_stopping_epochs": 1})
    found = cross_validate_net(planted_data(4, n_queries=20), options, 2)
    assert (found.best_round, len(found.histories[0])) == (5, 5)


def test_refusals():
    data = planted_data(4, n_queries=6)
    with refused(TrainingDataRejected, "7 folds", "6"):
        cross_validate_net(data, OPTIONS, 7)
    rows = data.train.rows
    one = np.where(np.arange(rows.n_rows) < rows.starts[1], rows.grades, 0).astype(np.int32)
    alone = NetData(
        train=NetRows(data.train.values, RankedRows(one, rows.starts, ())),
        feature_names=data.feature_names,
        max_grade=4,
    )
    with refused(TrainingDataRejected, "fold", "of 2"):
        cross_validate_net(alone, OPTIONS, 2)
    with refused(InvalidParameter, "coxph"):
        cross_validate_net(data, NetOptions(objective="coxph"), 2)


def test_the_command(dataset, typed):
    command = f"cv {dataset.path} --folds 3 --model net --layers 8 --epochs 2"
    out, err = typed(command)
    assert not unnamed(err, "cross-validating a net (8) in 3 folds")
    assert not unnamed(out, "of 2 epochs", "ndcg@10")
    reported = typed.json(command)
    assert (reported["folds"], reported["rounds_trained"]) == (3, 2)
    assert "--max-leaves is an option of trees" in typed.err(f"{command} --max-leaves 5", code=2)
    assert "--layers is an option of nets; add --model net" in typed.err(f"cv {dataset.path} --layers 8", code=2)
