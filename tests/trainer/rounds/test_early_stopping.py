"""How many rounds are kept: by the valid split, by queries kept held_out, by what is out of the bag, by
cross-validation."""

import json
from dataclasses import replace

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.pipeline.pairs.stored_pairs import PreferencePairs
from rankmill.scorer.forest.predict import predict
from rankmill.trainer.data.rows import RankedRows
from rankmill.trainer.objectives.registry import objective_of
from rankmill.trainer.rounds.early_stopping import EarlyStopping
from rankmill.trainer.rounds.sampling import Sampler, fold_of_queries, held_out_queries
from rankmill.trainer.rounds.train_on_rows import cross_validate_rows
from rankmill.trainer.rounds.train_on_rows import fit as fit_rounds
from rankmill.trainer.rounds.training_result import HOLDOUT, Curves
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.planted import boost_rows, fit, rows_of, small_data

NAMES = np.random.default_rng(5).permutation(100)


def fitted(rows=None, *, eval_sets=(), options=None, **parameters):
    """Train on the small data as users do."""
    given = fixed(**{"n_rounds": 30, "max_leaves": 8, **parameters})
    return boost_rows(
        rows_of(small_data()[0], small_data()[2]) if rows is None else rows, eval_sets, given,
        **{"run": fit_rounds, **(options or {})},
    )  # fmt: skip


def blocked(rows):
    return replace(rows, bins=rows.blocked(np.array([len(f.edges) + 2 for f in small_data()[2].features], np.int32)))


# folds and queries that are kept held_out


@pytest.mark.parametrize("folds", [2, 3, 7, 100])
def test_folds_part_the_queries_evenly_and_by_their_names(folds):
    fold = fold_of_queries(NAMES, folds, seed=7)
    sizes = np.bincount(fold, minlength=folds)
    assert len(sizes) == folds
    assert sizes.max() - sizes.min() <= 1
    order = np.random.default_rng(0).permutation(100)
    assert np.array_equal(fold_of_queries(NAMES[order], folds, seed=7), fold[order])
    assert not np.array_equal(fold_of_queries(NAMES, folds, seed=8), fold)


@pytest.mark.parametrize(
    ("fraction", "n", "expected"), [(0.25, 100, 25), (0.001, 100, 1), (0.999, 100, 99), (0.5, 2, 1), (0.5, 1, 0)]
)
def test_a_fraction_of_the_queries_is_held_out_but_never_all(fraction, n, expected):
    assert held_out_queries(NAMES[:n], fraction, seed=7).sum() == expected


def test_rows_of_queries_take_everything_along():
    rng = np.random.default_rng(2)
    (x, grades, starts), _, binspec = small_data()
    n, n_queries = len(grades), len(starts) - 1
    better = np.sort(rng.choice(n, size=50, replace=False)).astype(np.int32)
    query = np.searchsorted(starts, better, side="right") - 1
    pairs = PreferencePairs(
        better, starts[query].astype(np.int32), rng.uniform(size=50), rng.uniform(size=50),
        np.searchsorted(better, starts).astype(np.int64),
    )  # fmt: skip
    whole = rows_of((x, grades, starts), binspec)
    rows = replace(
        blocked(whole), weights=rng.uniform(size=n), labels=rng.normal(size=n), offsets=rng.normal(size=n),
        events=rng.integers(0, 2, size=n).astype(np.uint8), query_weights=rng.uniform(size=n_queries), pairs=pairs,
    )  # fmt: skip
    chosen = rng.random(n_queries) < 0.4
    of_row = np.repeat(chosen, np.diff(starts))
    part = rows.of_queries(chosen)
    watched = rows.of_queries(chosen, row_major=True)
    n_bins = np.array([len(f.edges) + 2 for f in binspec.features], np.int32)
    bins = np.concatenate(list(rows_of((x, grades, starts), binspec).bins))
    assert np.array_equal(watched.row_major(n_bins), bins[of_row])
    assert np.array_equal(part.bins.words, rows.bins.words[:, of_row])
    for found in (part, watched):
        for name in ("grades", "weights", "labels", "offsets", "events"):
            assert np.array_equal(getattr(found, name), getattr(rows, name)[of_row]), name
        assert np.array_equal(np.diff(found.starts), np.diff(starts)[chosen])
        assert np.array_equal(found.query_weights, rows.query_weights[chosen])
        back = np.flatnonzero(of_row)
        kept = np.isin(query, np.flatnonzero(chosen))
        assert np.array_equal(back[found.pairs.better], pairs.better[kept])
        assert np.array_equal(back[found.pairs.worse], pairs.worse[kept])
        assert np.array_equal(found.pairs.weight, pairs.weight[kept])
        assert np.array_equal(found.pairs.probability, pairs.probability[kept])
        assert np.array_equal(np.diff(found.pairs.starts), np.diff(pairs.starts)[chosen])


def test_by_test_is_training_on_the_first_part_and_watching_the_other():
    (x, grades, starts), valid, binspec = small_data()
    parameters = {"learning_rate": 0.5, "early_stopping_rounds": 5, "n_rounds": 60}
    found = fitted(rounds_by="test", holdout_fraction=0.3, **parameters)
    held_out = held_out_queries(np.arange(len(starts) - 1), 0.3, seed=7)
    of_row = np.repeat(held_out, np.diff(starts))
    parts = [
        (x[mask], grades[mask], np.concatenate(([0], np.cumsum(np.diff(starts)[queries]))).astype(np.int64))
        for mask, queries in ((~of_row, ~held_out), (of_row, held_out))
    ]
    plain = fit((parts[0], valid, binspec), eval_sets=[(HOLDOUT, parts[1])], **parameters)
    assert found.history == plain.history
    assert found.best_round == plain.best_round < len(found.history)
    assert np.array_equal(found.forest.node_value, plain.forest.node_value)
    watched = fitted(
        rounds_by="test", holdout_fraction=0.3, eval_sets=[("valid", rows_of(valid, binspec))], **parameters
    )
    assert list(watched.history[0].metrics) == ["train", HOLDOUT, "valid"]
    assert watched.best_round == found.best_round
    with refused(TrainingDataRejected, "two queries"):
        fitted(
            blocked(rows_of((x, grades, starts), binspec)).of_queries(np.arange(len(starts) - 1) == 3), rounds_by="test"
        )


# out of bag


@pytest.mark.parametrize(
    "parameters",
    [
        {"objective": "l2", "row_fraction": 0.5},
        {"objective": "l2", "query_fraction": 0.6},
        {"objective": "listnet", "query_fraction": 0.5},
    ],
    ids=str,
)
def test_out_of_bag_improvement_is_what_plain_recomputation_says(parameters):
    (x, grades, starts), _, binspec = small_data()
    found = fitted(rounds_by="oob", early_stopping_rounds=0, n_rounds=12, **parameters)
    p = fixed(**parameters)
    objective = objective_of(rows_of((x, grades, starts), binspec), p)
    sampler = Sampler(starts, x.shape[1], p)
    for record in found.history:
        n = record.round_number
        rows = sampler.draw(n).rows
        # units: single documents, or queries of which not one document is in the sample
        if objective.sums_over == "rows":
            outside = [i for i in range(len(grades)) if i not in set(rows.tolist())]
        else:
            outside = [q for q in range(len(starts) - 1) if not np.any((rows >= starts[q]) & (rows < starts[q + 1]))]
        if n > found.best_round:
            break
        before, after = (objective.losses(predict(found.forest.truncated(rounds), x)) for rounds in (n - 1, n))
        assert record.oob_improvement == pytest.approx(np.mean(before[outside] - after[outside]), rel=1e-9)
    assert n > 2


def test_by_oob_keeps_the_rounds_with_the_highest_sum():
    found = fitted(
        rounds_by="oob", objective="l2", row_fraction=0.5, learning_rate=1.0, n_rounds=40, early_stopping_rounds=0
    )
    sums = np.cumsum([record.oob_improvement for record in found.history])
    assert found.best_round == int(np.argmax(sums)) + 1 < 40
    assert found.forest.n_rounds == found.best_round
    stopped = fitted(
        rounds_by="oob", objective="l2", row_fraction=0.5, learning_rate=1.0, n_rounds=40, early_stopping_rounds=4
    )
    assert stopped.history == found.history[: len(stopped.history)]
    assert list(Curves.of(stopped.history).oob_improvement) == [r.oob_improvement for r in stopped.history]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"objective": "l2"}, ("rows", "row_fraction", "query_fraction")),
        ({"row_fraction": 0.5}, ("queries", "query_fraction")),
        ({"objective": "l2", "row_fraction": 0.9999}, ("sample", "all")),
    ],
    ids=str,
)
def test_nothing_out_of_the_bag_is_refused(parameters, message):
    with refused((InvalidParameter, TrainingDataRejected), message):
        fitted(rounds_by="oob", **parameters)


# cross-validation


def validated(rows=None, n_threads=1, on_round=None, eval_metrics=(), **parameters):
    options = {"n_threads": n_threads, "on_round": on_round, "eval_metrics": eval_metrics, "run": cross_validate_rows}
    return fitted(rows, options=options, **{"n_rounds": 20, "folds": 3, **parameters})


def test_a_fold_is_a_training_without_it():
    (x, grades, starts), valid, binspec = small_data()
    found = validated(early_stopping_rounds=0, eval_metrics=["map"])
    fold = fold_of_queries(np.arange(len(starts) - 1), 3, seed=7)
    for k in range(3):
        parts = []
        for queries in (fold != k, fold == k):
            mask = np.repeat(queries, np.diff(starts))
            parts.append(
                (x[mask], grades[mask], np.concatenate(([0], np.cumsum(np.diff(starts)[queries]))).astype(np.int64))
            )
        plain = fit(
            (parts[0], valid, binspec), eval_sets=[(HOLDOUT, parts[1])], early_stopping_rounds=0, n_rounds=20,
            options={"eval_metrics": ["map"]},
        )  # fmt: skip
        assert found.histories[k] == plain.history
    curve = np.mean([[r.metrics[HOLDOUT]["ndcg@10"] for r in history] for history in found.histories], axis=0)
    assert found.best_round == int(np.argmax(curve)) + 1
    assert found.mean("ndcg@10") == pytest.approx(curve.max())
    values = [history[found.best_round - 1].metrics[HOLDOUT]["map"] for history in found.histories]
    assert found.deviation("map") == pytest.approx(np.std(values, ddof=1))
    assert f"best after {found.best_round} of 20 rounds, by ndcg@10" in found.render()
    written = json.loads(json.dumps(found.to_dict()))
    assert written["curves"]["ndcg@10"]["mean"] == pytest.approx(curve.tolist())
    assert written["best"]["map"]["mean"] == pytest.approx(np.mean(values))


def test_the_direction_is_that_of_the_measure_and_a_gain_may_be_asked_for():
    found = validated(objective="l2", stop_metric="deviance", learning_rate=0.5, early_stopping_rounds=0)
    curve = np.mean([[r.metrics[HOLDOUT]["deviance"] for r in history] for history in found.histories], axis=0)
    assert found.best_round == int(np.argmin(curve)) + 1 < 20
    least = 0.05
    wanted, best = 0, np.inf
    for n, value in enumerate(curve, start=1):
        if wanted == 0 or best - value > least:
            wanted, best = n, value
    coarse = validated(
        objective="l2", stop_metric="deviance", learning_rate=0.5, early_stopping_rounds=0, min_improvement=least
    )
    assert coarse.best_round == wanted < found.best_round
    assert coarse.histories == found.histories


def test_folds_that_stop_early_are_trained_as_long_as_the_longest():
    parameters = {"learning_rate": 0.5, "n_rounds": 60}
    long = validated(early_stopping_rounds=0, **parameters)
    stops = []
    for history in long.histories:
        stopping = EarlyStopping(6)
        stops.append(
            next(
                (r.round_number for r in history if stopping.update(r.round_number, r.metrics[HOLDOUT]["ndcg@10"])), 60
            )
        )
    assert len(set(stops)) > 1  # else this tests nothing
    found = validated(early_stopping_rounds=6, **parameters)
    assert found.histories == tuple(history[: max(stops)] for history in long.histories)


def test_by_cv_keeps_as_many_rounds_of_everything_as_the_folds_say():
    parameters = {"learning_rate": 0.5, "early_stopping_rounds": 5, "n_rounds": 40, "folds": 3}
    found, alone = fitted(rounds_by="cv", **parameters), validated(**parameters)
    assert found.cross_validation == alone
    assert found.best_round == len(found.history) == found.forest.n_rounds == alone.best_round
    whole = fitted(n_rounds=alone.best_round)
    plain = fitted(**{**parameters, "n_rounds": alone.best_round})
    assert np.array_equal(found.forest.node_value, plain.forest.node_value)
    assert found.history == plain.history != whole.history


def test_threads_change_no_cross_validation_and_callbacks_see_every_round():
    seen = []
    one = validated(n_rounds=6)
    two = validated(n_rounds=6, n_threads=3, on_round=lambda record: seen.append((record.fold, record.round_number)))
    assert one == two
    assert seen == [(fold, n) for fold in (1, 2, 3) for n in range(1, 7)]


def test_too_few_queries_are_named():
    with refused(TrainingDataRejected, "61 folds", "60"):
        validated(folds=61)
    (x, _, starts), _, binspec = small_data()
    grades = np.zeros(len(x), dtype=np.int32)
    grades[0] = 1
    with pytest.raises(TrainingDataRejected, match=r"fold \d of 3: ") as caught:
        validated(RankedRows(grades, starts, rows_of((x, grades, starts), binspec).bins))
    assert "\n" not in str(caught.value)


# going on


@pytest.mark.parametrize(
    "parameters",
    [
        {"rounds_by": "test", "learning_rate": 0.5, "early_stopping_rounds": 6, "n_rounds": 60},
        {"rounds_by": "oob", "objective": "l2", "row_fraction": 0.5, "learning_rate": 0.2, "early_stopping_rounds": 6},
        {"rounds_by": "cv", "folds": 3, "learning_rate": 0.3, "early_stopping_rounds": 6},
        {
            "step_search": "line",
            "objective": "l2",
            "row_fraction": 0.5,
            "rounds_by": "oob",
            "grow": "oblivious",
            "max_depth": 3,
        },
    ],
    ids=str,
)
def test_two_halves_are_the_same_bytes_as_one_go(parameters):
    whole = fitted(**parameters)
    half = fitted(**{**parameters, "n_rounds": 7})
    resumed = fitted(options={"resume": half.forest}, **parameters)
    assert resumed.forest.to_bytes() == whole.forest.to_bytes()
    assert resumed.history == whole.history
    assert half.best_round < whole.best_round


# which rounds are kept


def test_without_early_stopping_all_rounds_are_kept():
    way = {"learning_rate": 1.0, "n_rounds": 60}
    whole = fit(small_data(), early_stopping_rounds=0, **way)
    assert len(whole.history) == whole.best_round == whole.forest.n_rounds == 60
    values = whole.by_query["valid"]["ndcg@10"].values
    assert np.nanmean(values) == pytest.approx(whole.history[-1].metrics["valid"]["ndcg@10"])  # of the last round

    best = fit(small_data(), early_stopping_rounds=0, keep_rounds="best", **way)
    assert best.history == whole.history
    curve = [record.metrics["valid"]["ndcg@10"] for record in best.history]
    assert best.best_round == best.forest.n_rounds == 1 + int(np.argmax(curve)) < 60

    stopped = fit(small_data(), early_stopping_rounds=5, keep_rounds="all", **way)
    cut = fit(small_data(), early_stopping_rounds=5, **way)
    assert stopped.history == cut.history
    assert stopped.forest.n_rounds == len(stopped.history) == cut.best_round + 5
    assert np.array_equal(stopped.forest.node_value[: len(cut.forest.node_value)], cut.forest.node_value)


@pytest.mark.parametrize("rounds_by", ["test", "oob", "cv"])
def test_keep_rounds_is_not_overruled(rounds_by):
    way = {"early_stopping_rounds": 0, "learning_rate": 1.0, "n_rounds": 60, "folds": 2, "row_fraction": 0.5}
    found = fitted(rounds_by=rounds_by, objective="l2", **way)
    assert found.forest.n_rounds == found.best_round < 60
    with refused(InvalidParameter, "keep_rounds 'all'", f"rounds_by '{rounds_by}'"):
        fixed(rounds_by=rounds_by, keep_rounds="all")
