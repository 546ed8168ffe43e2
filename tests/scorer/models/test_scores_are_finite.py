"""Every model that can be made, read, registered or imported scores every document with a finite number, without a
warning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankmill.foundation.errors import ConversionRefused, InvalidParameter, ModelFormatError
from rankmill.scorer.exchange.formats import WRITERS, read_from, write_as
from rankmill.scorer.inspect.dependence import interactions
from rankmill.scorer.inspect.optimality import Moves, local_optimality
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.scorer.models import model_file
from rankmill.scorer.models.loading import HEADER, Blend, predictor_of, read_model
from rankmill.scorer.nets.net import ARRAYS, Net
from rankmill.scorer.nets.net import HEADER as NET_HEADER
from rankmill.trainer.candidates.blending import weights_of
from rankmill.trainer.candidates.combined_forests import merged
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.nets.test_net import drawn_net

HUGE = [0.0, 1.0, -1.0, 1e-300, 1e30, 1e150, 1e200, 1e299, 1.7e308]
weight = st.sampled_from([sign * size for size in HUGE for sign in (1.0, -1.0)])


def scaled(forest, factor, weights=1.0):
    """The forest with its leaves times ``factor`` and its trees times ``weights``."""
    with np.errstate(over="ignore"):
        return replace(
            forest, node_value=forest.node_value * factor, tree_weights=forest.tree_weights * weights, base_score=0.0
        )


def awful(n_columns):
    """Documents of the least and greatest values, in both widths."""
    far = [0.0, -0.0, 1.0, np.nan, np.inf, -np.inf, 3.4028235e38, -3.4028235e38, 1e-45]
    values = np.repeat(np.array(far)[:, None], n_columns, axis=1)
    return [values.astype(np.float32), np.concatenate([values, np.full((1, n_columns), 1e300)])]


def all_finite(model):
    """Whether every score of the model, also after a trip through its file, is finite and within its bound."""
    again = read_model(model.to_bytes())
    for values in awful(model.n_features):
        scores = predictor_of(again).scores(values)
        assert np.all(np.isfinite(scores))
        assert np.all(np.abs(scores) <= model.score_bound * (1 + 1e-5))
    return True


def blend_file(parts, weights, base_score=0.0):
    """The bytes of a blend that nobody checked."""
    files = [part.to_bytes() for part in parts]
    arrays = {
        "weights": np.array(weights, dtype=np.float64),
        "part_starts": np.cumsum([0, *map(len, files)]).astype(np.int64),
        "part_bytes": np.frombuffer(b"".join(files), dtype=np.uint8),
    }
    return model_file.encode(model_file.BLEND, {name: {} for name in HEADER} | {"base_score": base_score}, arrays)


@settings(max_examples=25)
@given(st.lists(weight, min_size=2, max_size=2), weight, st.lists(weight, min_size=2, max_size=2))
def test_a_blend_is_refused_or_finite_made_and_loaded(weights, base_score, leaves):
    names = tuple("abcde")
    parts = [drawn_net()]
    for seed, leaf in enumerate(leaves):
        try:
            parts.append(scaled(random_forest(seed, names=names, categorical=0), leaf))
        except (ValueError, InvalidParameter):
            return
    parts = parts[1:]
    try:
        blend = Blend(parts=parts, weights=np.array(weights), base_score=base_score)
    except InvalidParameter as error:
        assert "score" in str(error)  # noqa: PT017 - either way is right
        with pytest.raises(ModelFormatError):
            read_model(blend_file(parts, weights, base_score))
    else:
        assert all_finite(blend)
        assert read_model(blend_file(parts, weights, base_score)).to_bytes() == blend.to_bytes()


def test_the_bound_of_a_blend_counts_its_weights_its_base_and_grades_of_links():
    part = scaled(random_forest(1), 1e200)
    for weights, base in (([1e200], 0.0), ([1.0], 1.7e308), ([-1e200], 0.0)):
        with refused(InvalidParameter, "score", "1e+300"):
            Blend(parts=(part,), weights=np.array(weights), base_score=base)
        with refused(ModelFormatError, "b.rankmill", "score", "1e+300"):
            read_model(blend_file([part], weights, base), "b.rankmill")
    linked = random_forest(1, n_outputs=3, link="softmax_gain")
    with refused(InvalidParameter, "score"):
        Blend(parts=(scaled(linked, 1e-30),), weights=np.array([1e300]))
    assert all_finite(Blend(parts=(linked, scaled(random_forest(2), 1e250)), weights=np.array([1e280, 0.0])))


@pytest.mark.parametrize(("transform", "activation"), [("linear", "tanh"), ("log1p", "relu"), ("quantile", "identity")])
def test_a_net_is_refused_or_finite(transform, activation):
    net = drawn_net(transform, activation=activation)
    for centre, scale in [(1e308, 1e308), (0.0, 1e308), (-1e308, 1e-308), (0.0, 0.0), (1e308, -1e308), (1.0, 5e-324)]:
        assert all_finite(
            replace(net, inputs=replace(net.inputs, centres=np.full(3, centre), scales=np.full(3, scale)))
        )
    for factor in (1e10, 1e25, 1e30, 1e38, 1e300):
        layers = tuple(layer._replace(weights=layer.weights.astype(np.float64) * factor) for layer in net.layers)
        for changes in ({"top": net.top.astype(np.float64) * factor}, {"layers": layers}, {"start": float(2.0**90)}):
            try:
                changed = replace(net, **changes)
            except ValueError as error:
                assert "\n" not in str(error)  # noqa: PT017 - either way is right
            else:
                assert all_finite(changed)


def test_a_start_beyond_float32_in_the_file_of_a_net_is_one_line():
    _, header, arrays = model_file.decode(drawn_net().to_bytes(), "m", "a net", {model_file.NET: (NET_HEADER, ARRAYS)})
    for start in (1e300, -1e300, 3.5e38, 2.0**120):
        with refused(ModelFormatError, "n.rankmill"):
            Net.from_bytes(model_file.encode(model_file.NET, header | {"start": start}, arrays), "n.rankmill")


def test_weights_of_trees_times_leaves_and_values_of_inner_nodes_are_bounded():
    forest = random_forest(3)
    assert all_finite(scaled(forest, 1e-100, 1e300))
    for leaves, weights in ((1e200, 1e200), (1e299, 1e5), (1.0, 1e305)):
        with pytest.raises(ValueError, match=r"score|finite"):
            scaled(forest, leaves, weights)
    inner = np.where(forest.node_feature >= 0, 1e308, forest.node_value)
    with refused(InvalidParameter, "score"):
        replace(forest, node_value=inner)
    kept = replace(forest, node_value=np.where(forest.node_feature >= 0, 1e250, forest.node_value))
    for target in WRITERS:
        try:
            written = write_as(target, kept, missing="zero")
        except ConversionRefused:
            continue
        assert written.bound < 1.0  # leaves alone decide how exact a score is


def test_merging_is_refused_or_finite():
    one, two = scaled(random_forest(1), 1e200), random_forest(2)
    for weights in ([1e200, 1.0], [1e308, 1e308], [1.7e308, 1.0], [1.0, np.inf]):
        for mean in (True, False):
            try:
                forest = merged([one, two], weights, mean=mean)
            except InvalidParameter as error:
                assert "\n" not in str(error)  # noqa: PT017 - either way is right
            else:
                assert all_finite(forest)
    with refused(InvalidParameter, "score"):
        merged([one, two], [1e200, 1.0], mean=False)


def test_the_spread_of_scores_of_any_size_is_exact():
    rng = np.random.default_rng(0)
    starts = np.arange(0, 201, 10)
    scores, grades = rng.normal(size=(2, 200)), rng.integers(0, 3, 200).astype(np.int32)
    metric, policy = parse_metric("ndcg@10"), Policy(max_grade=3)
    plain = weights_of(list(scores), grades, starts, metric, policy)
    far = weights_of([np.ldexp(scores[0], 900), np.ldexp(scores[1], -900)], grades, starts, metric, policy)
    assert (far.shares, far.together) == (plain.shares, plain.together)
    assert far.spreads == (np.ldexp(plain.spreads[0], 900), np.ldexp(plain.spreads[1], -900))


def test_inspection_of_huge_scores_is_that_of_small_ones():
    forest = random_forest(5, n_features=3)
    far = replace(forest, node_value=np.ldexp(forest.node_value, 700), base_score=0.0)
    values = np.random.default_rng(1).normal(size=(60, 3)).astype(np.float32)
    found, same = (interactions(each, values, over="documents") for each in (far, forest))
    assert [(each.features, each.h) for each in found] == [(each.features, each.h) for each in same]
    queries = PreparedQueries(np.arange(60, dtype=np.int32) % 3, np.arange(0, 61, 6), Policy(max_grade=3))
    metric = parse_metric("ndcg@10")
    near = replace(forest, base_score=0.0)
    assert local_optimality(far, values, queries, metric, Moves(p0=0.3)) == local_optimality(
        near, values, queries, metric, Moves(p0=0.3)
    )


@pytest.mark.parametrize("written", ["1e300", "-1E300", "inf", "nan", "1e39"])
def test_a_base_score_beyond_float32_of_xgboost_is_one_line(written):
    import json

    model = json.loads(write_as("xgboost", random_forest(1)).data)
    model["learner"]["learner_model_param"]["base_score"] = written
    with refused(ModelFormatError, "m.json"):
        read_from("xgboost", json.dumps(model).encode(), "m.json")
