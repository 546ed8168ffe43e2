"""Features by what the metric loses without them: permutations against brute force, steps, and what is recommended."""

import json
from dataclasses import replace

import numpy as np
import pytest

import rankmill
from rankmill import Ranker
from rankmill.foundation.errors import InvalidParameter, TrainingDataRejected
from rankmill.pipeline.bins.spec import BinSpec, feature_bins
from rankmill.pipeline.dataset.dataset import Dataset
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.forest.predict import predict
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.trainer.candidates.feature_selection import (
    SelectionStep,
    least_useful,
    permutation_losses,
    select_features,
    select_features_of_rows,
    smallest_within,
    with_features,
)
from rankmill.trainer.options import SelectOptions
from rankmill.trainer.training_options import TrainingOptions
from tests.naive_samples import bits_of
from tests.refusals import refused
from tests.trainer.data.test_target_encoding import ENCODE, training
from tests.trainer.fixed import fixed
from tests.trainer.planted import data_of, fit, rows_of, small_data
from tests.trainer.small_dataset import small_dataset

WAYS = [
    {"objective": "mcrank"}, {"objective": "l2", "boosting": "dart", "skip_drop": 0.0, "drop_rate": 0.5},
    {"members": 2, "bootstrap": "bayesian"}, {"objective": "l2", "stop_metric": "deviance"},
]  # fmt: skip


def small(batch=10**6):
    train, valid, binspec = small_data()
    return data_of(rows_of(train, binspec, batch), [("valid", rows_of(valid, binspec, batch))])


def permuted(column, starts, seed, number):
    """Values in the order of random keys, query by query."""
    found = column.copy()
    for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        order = sorted(range(first, last), key=lambda row: bits_of(seed, 9, number, row))
        found[first:last] = column[order]
    return found


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_loss_is_that_of_the_metric_with_permuted_values(way):
    _, (x, grades, starts), _ = small_data()
    forest = fit(small_data(), n_rounds=6, **way).forest
    data, own = small(), fixed(**{"seed": 7, **way})
    losses = permutation_losses(forest, data, own, np.arange(7) + 3, 2)
    queries, metric = PreparedQueries(grades, starts, Policy()), parse_metric("ndcg@10")

    def measured(values):
        scores = predict(forest, values)
        if way.get("stop_metric") == "deviance":
            return -np.mean((scores - grades) ** 2) / 1.0
        return queries.means([metric], scores)[metric]

    for f in range(7):
        worse = []
        for repeat in range(2):
            other = x.copy()
            other[:, f] = permuted(x[:, f], starts, 7, (f + 3) * 2 + repeat)
            worse.append(measured(x) - measured(other))
        if way.get("stop_metric") == "deviance":  # whose factor is that of the objective
            assert np.sign(losses[f]) == np.sign(np.round(np.mean(worse), 12))
        else:
            assert losses[f] == pytest.approx(np.mean(worse), abs=1e-12)
    assert losses.argmax() == 0  # the planted one


def test_a_feature_that_no_tree_uses_loses_nothing():
    forest = fit(small_data(), n_rounds=1, max_leaves=2).forest
    losses = permutation_losses(forest, small(), fixed(), np.arange(7), 1)
    assert np.flatnonzero(losses).tolist() == list(forest.used_features)


@pytest.mark.parametrize("way", [{"objective": "mcrank"}, {"grow": "oblivious", "max_depth": 3}], ids=str)
def test_training_on_some_features_is_training_on_data_that_have_no_others(way):
    kept = np.array([0, 2, 5])
    (x, grades, starts), valid, spec = small_data()
    few = BinSpec(tuple(feature_bins(spec.feature_names[f], x[:, f].copy()) for f in kept))
    alone = fit(((x[:, kept], grades, starts), (valid[0][:, kept], *valid[1:]), few), n_rounds=5, **way)
    rules = SelectOptions(least_features=3)
    data = with_features(replace(small().blocked()), kept)
    found = select_features_of_rows(data, fixed(n_rounds=5, max_leaves=8, **way), rules, TrainingOptions(n_threads=1))
    assert found.forest.to_bytes() == alone.forest.to_bytes()
    assert found.steps[0].metric == alone.history[alone.best_round - 1].metrics["valid"]["ndcg@10"]


def test_steps_drop_what_matters_least_and_the_rest_is_kept():
    own = fixed(n_rounds=8, max_leaves=8)
    found = select_features_of_rows(small(), own, SelectOptions(drop_fraction=0.3, tolerance=0.01))
    sizes = [len(step.features) for step in found.steps]
    assert sizes == [7, 5, 4, 3, 2, 1]
    for step, after in zip(found.steps, found.steps[1:], strict=False):
        assert [name for name in step.features if name not in step.dropped] == list(after.features)
        assert max(step.losses[name] for name in step.dropped) <= min(step.losses[name] for name in after.features)
    assert found.steps[-1].features == ("f0",)
    assert set(found.features) == {"f0", "f1", "f2"}  # the grades follow x0 + x1 x2
    best = max(step.metric for step in found.steps)
    within = [number for number, step in enumerate(found.steps) if step.metric >= best - 0.01]
    assert found.recommended == within[-1]
    assert found.forest.sha256 == found.steps[found.recommended].sha256


def test_threads_and_batches_change_nothing():
    own = fixed(n_rounds=6, max_leaves=8, monotone={"f0": 1, "f6": 1}, feature_fraction=0.7)
    one = select_features_of_rows(small(), own, SelectOptions(), TrainingOptions(n_threads=1))
    other = select_features_of_rows(small(batch=11), own, SelectOptions(), TrainingOptions(n_threads=3))
    assert one.to_dict() == other.to_dict()


def step(n, metric):
    names = tuple(f"f{i}" for i in range(n))
    return SelectionStep(features=names, metric=metric, rounds=1, losses={}, dropped=(), sha256="")


def test_the_smallest_set_within_the_tolerance_is_recommended():
    steps = [step(5, 0.70), step(4, 0.72), step(3, 0.715), step(2, float("nan")), step(1, 0.6)]
    assert smallest_within(steps, 0.0, higher_is_better=True) == 1
    assert smallest_within(steps, 0.006, higher_is_better=True) == 2
    assert smallest_within(steps, 0.2, higher_is_better=True) == 4
    assert smallest_within(steps, 0.0, higher_is_better=False) == 4
    assert smallest_within(steps, 0.11, higher_is_better=False) == 4


def test_unused_features_go_first_and_enough_stay():
    losses, importance = np.array([0.5, 0.0, -0.1, 0.0, 0.2]), np.array([0.5, 0.0, 0.2, 0.0, 0.3])
    assert least_useful(losses, importance, SelectOptions(drop_fraction=0.1)) == [3, 1]
    assert least_useful(losses, importance, SelectOptions(drop_fraction=0.7)) == [3, 1, 2]
    assert least_useful(losses, importance, SelectOptions(drop_fraction=0.7, least_features=4)) == [3]


def test_without_an_eval_set_and_with_wrong_rules_it_is_refused(tmp_path):
    with refused(InvalidParameter, "eval set"):
        select_features_of_rows(replace(small(), eval_sets=[]), fixed())
    with refused(InvalidParameter, "drop_fraction", "1.0"):
        SelectOptions(drop_fraction=1.0)
    with refused(TrainingDataRejected, "valid split"):
        select_features(small_dataset(tmp_path, {"train": 0.7, "test": 0.3}), fixed())


def test_the_command_writes_names_curve_and_model(dataset, tmp_path, typed):
    out = tmp_path / "out"
    command = f"select-features {dataset.path} -o {out} --preset defaults-1 --n-rounds 4 --drop-fraction 0.5"
    record = typed.json(command)
    assert record == json.loads((out / "selection.json").read_bytes())
    names = (out / "features.txt").read_text(encoding="utf-8").split()
    assert names == record["features"] == record["steps"][record["recommended"]]["features"]
    forest = Forest.load(out / "model.rankmill")
    assert list(forest.feature_names) == names
    assert forest.sha256 == record["steps"][record["recommended"]]["sha256"]
    same = select_features(Dataset.open(dataset.path), fixed(n_rounds=4), SelectOptions(drop_fraction=0.5))
    assert same.to_dict() == record
    typed(command, code=2)
    assert "recommended" in typed.out(f"{command} --overwrite")
    typed(f"models register {out}/model.rankmill --name few --registry {tmp_path}/r")


def test_a_ranker_selects_as_rows_do():
    (x, grades, starts), (vx, vgrades, vstarts), _ = small_data()
    qid, vqid = (np.repeat(np.arange(len(s) - 1), np.diff(s)) for s in (starts, vstarts))
    ranker = Ranker(preset="defaults-1", n_rounds=6, max_leaves=8, verbose=0)
    found = rankmill.select_features(
        ranker, x, grades, qid=qid, eval_set=(vx, vgrades, vqid), rules=SelectOptions(drop_fraction=0.4)
    )
    model = Ranker(preset="defaults-1", n_rounds=6, max_leaves=8, verbose=0).fit(
        x, grades, qid=qid, eval_set=(vx, vgrades, vqid)
    )
    assert found.steps[0].sha256 == model.forest_.sha256
    assert found.features[0] == "f0"
    assert len(found.forest.feature_names) == len(found.features)
    with refused(InvalidParameter, "eval set"):
        rankmill.select_features(ranker, x, grades, qid=qid, eval_set=None)


def test_a_killed_selection_resumes(dataset, tmp_path):
    given = fixed(n_rounds=4), SelectOptions(drop_fraction=0.5)
    expected = select_features(dataset, *given)
    lines = []

    def dies(line):
        lines.append(line)
        if len(lines) == 2:
            raise KeyboardInterrupt

    kept = {"checkpoint": tmp_path / "kept", "checkpoint_every": 0.0}
    with pytest.raises(KeyboardInterrupt):
        select_features(dataset, *given, TrainingOptions(on_message=dies, **kept))
    assert len(list((tmp_path / "kept").iterdir())) == 2
    assert select_features(dataset, *given, TrainingOptions(**kept)).to_dict() == expected.to_dict()
    assert not list((tmp_path / "kept").iterdir())


def test_encoded_categories_are_permuted_with_their_feature():
    data, _, (x, grades, starts) = training()
    own = fixed(n_rounds=6, max_leaves=4, **ENCODE)
    blocked = replace(data.blocked(), eval_sets=[("valid", replace(data.eval_sets[0][1]))])
    found = select_features_of_rows(blocked, own, SelectOptions(repeats=1, drop_fraction=0.1))
    assert "encoded_splits" in found.forests[0].info
    queries, metric = PreparedQueries(grades, starts, Policy()), parse_metric("ndcg@10")
    for f, name in enumerate(("number", "shop")):
        other = x.copy()
        other[:, f] = permuted(x[:, f], starts, own.seed, f)
        base, worse = (queries.means([metric], predict(found.forests[0], values))[metric] for values in (x, other))
        assert found.steps[0].losses[name] == pytest.approx(base - worse, abs=1e-12)
