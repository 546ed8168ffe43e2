"""Weights of a blend: never worse than each model alone, exact for two, found again when they are planted."""

from dataclasses import replace

import numpy as np
import pytest

from rankmill import Ranker
from rankmill.foundation.errors import InvalidParameter
from rankmill.registry import Registry
from rankmill.scorer.evaluate.train_test_overlap import TrainedModel, splits_trained_on
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.scorer.models.loading import Blend
from rankmill.scorer.models.model_service import model_of
from rankmill.trainer.candidates.blending import blended, weights_of
from rankmill.trainer.options import BlendOptions, SeedOptions
from rankmill.trainer.parameters import TrainParameters
from rankmill.trainer.training_options import TrainingOptions
from rankmill.trainer.training_service import train_and_register
from tests.refusals import refused

NDCG, POLICY = parse_metric("ndcg@10"), Policy(max_grade=3)


def rankers(seed, k=3, n_queries=60):
    """Return k noisy views of a signal, of different scales, with grades and offsets."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(3, 15, size=n_queries)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    signal = rng.normal(size=starts[-1])
    grades = np.digitize(signal, [-0.5, 0.5, 1.5]).astype(np.int32)
    scores = [10.0**j * (signal + rng.normal(size=len(signal))) + 7.0 for j in range(k)]
    return scores, grades, starts


@pytest.mark.parametrize("seed", range(2))
def test_a_blend_is_never_worse_than_its_best_part(seed):
    scores, grades, starts = rankers(seed)
    found = weights_of(scores, grades, starts, NDCG, POLICY)
    queries = PreparedQueries(grades, starts, POLICY)
    assert found.alone == pytest.approx([queries.means([NDCG], each)[NDCG] for each in scores], abs=1e-12)
    assert found.together >= max(found.alone)
    mixed = sum(w / s * each for w, s, each in zip(found.shares, found.spreads, scores, strict=True))
    assert queries.means([NDCG], mixed)[NDCG] == pytest.approx(found.together, abs=1e-12)
    assert sum(found.shares) == pytest.approx(1.0)
    assert found.together > max(found.alone) + 0.02  # three independent views of one signal


def test_no_grid_of_two_weights_is_better():
    scores, grades, starts = rankers(5, k=2)
    found = weights_of(scores, grades, starts, NDCG, POLICY)
    queries = PreparedQueries(grades, starts, POLICY)
    scaled = [each / spread for each, spread in zip(scores, found.spreads, strict=True)]
    grid = [queries.means([NDCG], (1 - a) * scaled[0] + a * scaled[1])[NDCG] for a in np.linspace(0, 1, 2001)]
    assert max(grid) <= found.together + 1e-12


def test_a_ranker_without_signal_or_with_equal_scores_gets_no_weight():
    scores, grades, starts = rankers(6, k=1, n_queries=200)
    found = weights_of([scores[0], np.full(len(grades), 0.1)], grades, starts, NDCG, POLICY)
    assert found.shares == (1.0, 0.0)
    assert found.spreads[1] == 1.0
    perfect = grades.astype(np.float64)
    assert weights_of([scores[0], perfect], grades, starts, NDCG, POLICY).together == pytest.approx(1.0)


def test_given_weights_are_measured_not_searched():
    scores, grades, starts = rankers(7, k=2)
    found = weights_of(scores, grades, starts, NDCG, POLICY, (3.0, 1.0))
    assert found.shares == (3.0, 1.0)
    same = weights_of(scores, grades, starts, NDCG, POLICY, (0.75, 0.25))
    assert same.together == pytest.approx(found.together)


@pytest.fixture(scope="module")
def registry(dataset, tmp_path_factory):
    """Where ``web@1`` and ``web@2`` are, which know the train split of the dataset alone."""
    found = Registry(tmp_path_factory.mktemp("blends") / "r")
    for objective in ("l2", "lambdamart"):
        given = TrainParameters(objective=objective, n_rounds=4, refit="none")
        train_and_register(dataset, "web", found, given, TrainingOptions(), SeedOptions())
    return found


def test_the_command_registers_a_blend_that_ranks_and_is_compared(dataset, registry, tmp_path, typed):
    at, on = f"--registry {registry.root}", dataset.path
    report = typed.json(f"models blend web@1 web@2 --on {on} --name both {at}")
    assert (report["model"], report["new"], report["split"]) == ("both@1", True, "valid")
    assert report["together"] >= max(part["alone"] for part in report["parts"])
    blend = model_of(registry.resolve("both@1", bare="latest"))
    assert isinstance(blend, Blend)
    assert blend.weights.tolist() == [part["weight"] for part in report["parts"]]
    again = typed.json(f"models blend web@1 web@2 --on {on} --name both {at}")
    assert (again["new"], again["sha256"]) == (False, report["sha256"])
    seen = typed.json(f"evaluate {on} --model both@1 --split valid --metric ndcg@10 {at}")
    assert seen["metrics"]["ndcg@10"]["mean"] == pytest.approx(report["together"])
    for command in (
        f"compare both@1 web@1 --on {on} --split valid", "models show both@1", "models diff web@1 both@1",
    ):  # fmt: skip
        typed(f"{command} {at}")


def test_a_blend_may_be_blended_again(dataset, registry, typed):
    at, on = f"--registry {registry.root}", dataset.path
    typed(f"models blend web@1 web@2 --on {on} --weights 1,1 --split test --name inner {at}")
    report = typed.json(f"models blend inner@1 web@1 --on {on} --weights 1,3 --name outer {at}")
    assert [(part["model"], part["share"]) for part in report["parts"]] == [("inner@1", 0.25), ("web@1", 0.75)]
    inner, outer, web = (model_of(registry.resolve(f"{name}@1", bare="latest")) for name in ("inner", "outer", "web"))
    assert list(outer.parts) == [*inner.parts, web]
    values = np.random.default_rng(0).normal(size=(50, outer.n_features)).astype(np.float32)
    expected = sum(
        part["weight"] * Ranker.from_model(model).predict(values)
        for part, model in zip(report["parts"], (inner, web), strict=True)
    )
    assert Ranker.from_model(outer).predict(values) == pytest.approx(expected, abs=1e-12)
    assert splits_trained_on(outer) == ("train", "test")  # on test the weights of the inner one were found
    shown = typed.out(f"models show outer@1 {at}")
    assert all(words in shown for words in ("inner@1", "share 0.25", "alone", f"{report['together']:.5f}"[:6]))


def test_a_split_that_a_model_or_its_base_learnt_from_is_refused_and_said(dataset, registry, typed):
    at, on = f"--registry {registry.root}", dataset.path
    blend = f"models blend --on {on} --name b {at}"
    assert "learnt from the train split" in typed.err(f"{blend} web@1 web@2 --split train", code=2)
    for more in ("--name base --refit all", "--name joined --refit none --base-model base@1"):
        typed(f"train {on} --n-rounds 3 {more} {at}")
    for model in ("base@1", "joined@1"):
        assert f"{model} learnt from the valid split" in typed.err(f"{blend} {model} web@1", code=2)
    said = ["".join(typed(f"evaluate {on} --model {model} --split valid {at}")) for model in ("joined@1", "web@1")]
    assert "joined@1 was trained on valid: SEEN IN TRAINING" in said[0]
    assert "web@1 was trained" not in said[1]


def test_weights_that_mix_nothing_are_refused(dataset, registry, typed):
    blend = f"models blend web@1 web@2 --on {dataset.path} --name b --registry {registry.root} --weights"
    for weights in ("0,0", "nan,1", "inf,1", "1e308,1e308"):
        assert "must be finite numbers, not all 0" in typed.err(f"{blend} {weights}", code=2)
    given = typed.json(f"{blend} 3,1")
    assert [part["share"] for part in given["parts"]] == [0.75, 0.25]
    assert given["remarks"][0] == "not seen in training"


def test_a_feature_of_two_kinds_is_refused_in_one_line(dataset, registry):
    forest = model_of(registry.resolve("web@1", bare="latest"))
    names = (*forest.feature_names, "unused")
    starts = np.append(forest.cut_starts, forest.cut_starts[-1])
    models = [replace(forest, feature_names=names, cut_starts=starts, categories=kind) for kind in ({}, {"unused": []})]
    with refused(InvalidParameter, "go together", "'unused'"):
        blended([(model, TrainedModel.of(model)) for model in models], dataset, BlendOptions())
