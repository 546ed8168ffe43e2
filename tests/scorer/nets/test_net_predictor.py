"""A net scores tables of any columns as it scores its own, in any order, part or batch."""

from __future__ import annotations

import numpy as np
import pytest

from rankmill.scorer.models import Blend, predictor_of, read_model
from tests.scorer.forests import random_forest
from tests.trainer.nets.net_case import planted_data, trained


@pytest.fixture(scope="module")
def case():
    data = planted_data(n_queries=60, categories=4)
    return trained(data, epochs=1, layers=(8,)).net, data.train.values


def test_columns_in_any_order_or_one_at_a_time(case):
    net, values = case
    predictor = predictor_of(net)
    scores = predictor.scores(values)
    assert scores.tobytes() == net.predict(values).tobytes()
    assert predictor.scores(values, n_threads=2).tobytes() == scores.tobytes()
    places = list(predictor.features)
    turned = np.ascontiguousarray(values[:, places[::-1]])
    assert predictor.scores(turned, columns=np.arange(len(places))[::-1]).tobytes() == scores.tobytes()
    codes = predictor.codes_buffer(len(values))
    for slot, place in enumerate(places):
        for first in range(0, len(values), 100):
            predictor.take_column(codes, slot, first, values[first : first + 100, place])
    assert predictor.scores_of_codes(codes, len(values)).tobytes() == scores.tobytes()
    gone = values.copy()
    gone[:, places[0]] = 0.0
    lacking = predictor.scores(values[:, places], columns=[-1, *range(1, len(places))], absent=0.0)
    assert lacking.tobytes() == predictor.scores(gone).tobytes()
    with pytest.raises(ValueError, match="no room"):
        predictor.take_column(codes, 0, len(values), values[:1, 0])


def test_a_net_in_a_blend_scores_as_it_does_alone(case):
    net, values = case
    numeric = [name for name in net.feature_names if name not in net.categories]
    forest = random_forest(3, n_features=len(numeric), names=numeric)
    blend = read_model(Blend(parts=(net, forest), weights=np.array([2.0, 0.5])).to_bytes())
    own = np.ascontiguousarray(values[:, [net.feature_names.index(name) for name in numeric]])
    expected = 0.0 + 2.0 * net.predict(values) + 0.5 * predictor_of(forest).scores(own)
    assert predictor_of(blend).scores(values).tobytes() == expected.tobytes()
    assert blend.n_trees == forest.n_trees
