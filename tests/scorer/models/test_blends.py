"""A blend scores as the weighted sum of its parts, however the rows come, and no damaged file makes one."""

import hashlib
import pickle

import numpy as np
import pytest

from rankmill.foundation.errors import InputError, ModelFormatError, NoTrees
from rankmill.foundation.options import spelled_for
from rankmill.pipeline.bins.categories import category_codes
from rankmill.scorer.forest.forest import Forest
from rankmill.scorer.forest.predict import predict
from rankmill.scorer.models import model_file
from rankmill.scorer.models.loading import Blend, forest_of, load_model_file, predictor_of, read_model
from tests import ROOT
from tests.refusals import refused
from tests.scorer.forests import TEXTS, random_forest
from tests.trainer.nets.net_case import planted_data, trained

GOLDEN = ROOT / "tests" / "scorer" / "golden"


def a_blend(**more):
    parts = (
        random_forest(1, names=("a", "b", "c", "d", "e")),
        random_forest(2, names=("d", "x", "b", "y", "z")),
        random_forest(3, names=("k", "c", "x", "w", "v"), categorical=1),
    )
    return Blend(**{"parts": parts, "weights": np.array([0.5, -2.0, 1.25]), "base_score": 0.75, **more})


def table(blend, n, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n, blend.n_features)).astype(np.float32)
    values[rng.random(values.shape) < 0.1] = np.nan
    values[:, blend.feature_names.index("k")] = rng.choice(category_codes(TEXTS), size=n)
    return values


def summed(blend, values):
    total = np.full(len(values), blend.base_score)
    for part, weight in zip(blend.parts, blend.weights.tolist(), strict=True):
        own = np.ascontiguousarray(values[:, [blend.feature_names.index(name) for name in part.feature_names]])
        total = total + weight * predict(part, own)
    return total


def test_the_score_is_the_weighted_sum_of_the_parts():
    blend = a_blend()
    values = table(blend, 3000)
    predictor = predictor_of(blend)
    scores = predictor.scores(values)
    assert scores.tobytes() == summed(blend, values).tobytes()
    assert predictor.scores(values, n_threads=2).tobytes() == scores.tobytes()
    assert np.concatenate([predictor.scores(row[None]) for row in values[:50]]).tobytes() == scores[:50].tobytes()
    assert set(predictor.feature_names) == {part.feature_names[f] for part in blend.parts for f in part.used_features}
    assert blend.n_trees == sum(part.n_trees for part in blend.parts)
    assert predictor.comparisons == sum(predictor_of(part).comparisons for part in blend.parts)


def test_columns_may_come_in_any_order_lack_or_one_at_a_time():
    blend = a_blend()
    values, predictor = table(blend, 1100), predictor_of(blend)
    places = [blend.feature_names.index(name) for name in predictor.feature_names]
    turned = np.ascontiguousarray(values[:, places[::-1]])
    columns = np.arange(len(places))[::-1]
    scores = predictor.scores(values)
    assert predictor.scores(turned, columns=columns).tobytes() == scores.tobytes()
    codes = predictor.codes_buffer(len(values))
    for slot, place in enumerate(places):
        for first in range(0, len(values), 700):
            predictor.take_column(codes, slot, first, values[first : first + 700, place])
    assert predictor.scores_of_codes(codes, len(values)).tobytes() == scores.tobytes()
    gone = values.copy()
    gone[:, places[0]] = 0.0
    without = predictor.scores(values[:, places], columns=[-1, *range(1, len(places))], absent=0.0)
    assert without.tobytes() == predictor.scores(gone).tobytes()


def test_bytes_round_trip_and_are_the_name_of_the_blend(tmp_path):
    blend = a_blend(parameters={"metric": "ndcg@10"}, info={"max_grade": 4})
    again = read_model(blend.to_bytes())
    assert again == blend
    assert again.sha256 == hashlib.sha256(blend.to_bytes()).hexdigest()
    assert isinstance(again, Blend)
    assert (again.parts, again.weights.tolist(), again.base_score) == (blend.parts, blend.weights.tolist(), 0.75)
    assert again.categories == {"k": sorted(blend.parts[2].categories["k"])}
    assert pickle.loads(pickle.dumps(blend)) == blend
    blend.save(tmp_path / "b.rankmill")
    assert load_model_file(tmp_path / "b.rankmill") == Blend.load(tmp_path / "b.rankmill") == blend
    assert a_blend(weights=np.array([0.5, -2.0, 1.5])) != blend


def test_what_makes_no_blend_is_refused():
    blend, part = a_blend(), random_forest(1)
    with pytest.raises(ValueError, match="0 parts"):
        Blend(parts=(), weights=np.array([]))
    with pytest.raises(ValueError, match="weights of the shape"):
        Blend(parts=(part,), weights=np.array([1.0, 2.0]))
    with pytest.raises(ValueError, match="not finite"):
        Blend(parts=(part,), weights=np.array([np.inf]))
    with pytest.raises(ValueError, match="categorical in one part"):
        Blend(parts=(part, random_forest(2, categorical=1)), weights=np.array([1.0, 1.0]))
    with refused(ModelFormatError, "not that of a blend"):
        Blend.from_bytes(part.to_bytes())
    with refused(ModelFormatError, "not that of a forest"):
        Forest.from_bytes(blend.to_bytes())


def test_what_needs_trees_or_rounds_refuses_a_blend():
    for rounds in ({"n_rounds": 1}, {"start_round": 1}):
        with refused(InputError, next(iter(rounds)), "blend of 3 models"):
            predictor_of(a_blend(), **rounds)
    with refused(NoTrees, "inspect shap", "blend"):
        forest_of(a_blend(), "inspect shap")
    chosen = a_blend(parameters={"preset": "auto-2"})
    for where, cure in (("command line", "--budget fast"), ("Python", 'budget="fast"'), ("file", 'budget="fast"')):
        with spelled_for(where), refused(NoTrees, "trees alone", cure):
            forest_of(chosen, "resume")


def test_a_blend_in_a_blend_is_its_parts_with_weights_times_its_weight():
    inner, other = a_blend(), random_forest(4, names=("a", "x", "q", "r", "s"))
    blend = read_model(Blend(parts=(inner, other), weights=np.array([-0.5, 2.0]), base_score=0.25).to_bytes())
    assert list(blend.parts) == [*inner.parts, other]
    assert blend.weights.tolist() == [*(-0.5 * inner.weights).tolist(), 2.0]
    values = table(blend, 500)
    own = [[blend.feature_names.index(name) for name in part.feature_names] for part in (inner, other)]
    of_inner, of_other = (
        predictor_of(part).scores(np.ascontiguousarray(values[:, columns]))
        for part, columns in zip((inner, other), own, strict=True)
    )
    expected = 0.25 - 0.5 * of_inner + 2.0 * of_other
    assert predictor_of(blend).scores(values) == pytest.approx(expected, abs=1e-12)
    assert blend.score_bound >= np.abs(expected).max()


def test_blends_within_blends_are_refused_whatever_their_depth():
    data = a_blend().to_bytes()
    for _ in range(1500):
        part = np.frombuffer(data, dtype=np.uint8)
        arrays = {"weights": np.ones(1), "part_starts": np.array([0, len(part)]), "part_bytes": part}
        data = model_file.encode(model_file.BLEND, {"base_score": 0.0, "info": {}, "parameters": {}}, arrays)
    with refused(ModelFormatError, "itself a blend"):
        read_model(data)


# ---- A net scores tables of any columns as it scores its own, in any order, part or batch


@pytest.fixture(scope="module")
def case():
    data = planted_data(n_queries=60, categories=4)
    return trained(data, epochs=1, layers=(8,)).net, data.train.values


def test_a_net_in_a_blend_scores_as_it_does_alone(case):
    net, values = case
    numeric = [name for name in net.feature_names if name not in net.categories]
    forest = random_forest(3, n_features=len(numeric), names=numeric)
    blend = read_model(Blend(parts=(net, forest), weights=np.array([2.0, 0.5])).to_bytes())
    own = np.ascontiguousarray(values[:, [net.feature_names.index(name) for name in numeric]])
    expected = 0.0 + 2.0 * net.predict(values) + 0.5 * predictor_of(forest).scores(own)
    assert predictor_of(blend).scores(values).tobytes() == expected.tobytes()
    assert blend.n_trees == forest.n_trees
