"""Nets and blends in ONNX: onnxruntime scores them as they are scored here, within the bound."""

from __future__ import annotations

import numpy as np
import pytest

from rankmill.foundation.errors import ConversionRefused, InputError
from rankmill.scorer.exchange import onnx
from rankmill.scorer.exchange.categories import category_numbers
from rankmill.scorer.exchange.formats import WRITERS, write_as
from rankmill.scorer.models import Blend, predictor_of
from tests import naive_nets
from tests.refusals import refused
from tests.scorer.forests import random_forest
from tests.scorer.nets.test_net import NETS, drawn_net, drawn_values
from tests.trainer.nets.net_case import planted_data, trained

MORE = [{"transform": t, "activation": a} for t in ("linear", "log1p", "quantile") for a in ("relu", "tanh")]


def check(model, values):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    written = onnx.write(model, "web")
    session = runtime.InferenceSession(written.data, providers=["CPUExecutionProvider"])
    here, there = predictor_of(model).scores(values), values.copy()
    for f, known in category_numbers(model).items():
        there[:, f] = [x if np.isnan(x) else known.numbers.get(float(x), -1) for x in values[:, f]]
    bounds = onnx.bounds_of_documents(model, values)
    assert bounds.max() <= written.bound
    for part in (slice(None), slice(0, 1), slice(0, 0)):
        scores = session.run(["score"], {"features": there[part]})[0]
        assert scores.shape == (len(there[part]), 1)
        differences = np.abs(scores[:, 0].astype(np.float64) - here[part])
        assert np.all(differences <= np.minimum(bounds[part], 1e-5 * np.abs(here).max()))


@pytest.mark.parametrize("options", [*NETS, *MORE])
def test_onnxruntime_scores_nets_within_the_bound(options):
    check(drawn_net(**options), drawn_values(500))


def test_onnxruntime_scores_blends_within_the_bound():
    parts = (drawn_net(), random_forest(3, names=["g", "c", "a"], n_features=3), drawn_net("log1p", seed=4))
    values = np.concatenate([drawn_values(300), drawn_values(300, 9)[:, :1]], axis=1)
    check(Blend(parts=parts, weights=np.array([0.5, -2.0, 3.0]), base_score=0.25), values)


@pytest.mark.parametrize("transform", ["quantile", "log1p"])
def test_the_bound_of_documents_is_far_below_that_of_any_document(transform):
    """A trained net, and values as they are: no input is near the largest that the format allows."""
    data = planted_data(n_queries=60)
    net = trained(data, epochs=5, layers=(64, 32), transform=transform).net
    bounds = onnx.bounds_of_documents(net, data.train.values)
    assert bounds.max() <= onnx.write(net, "web").bound / (10 if transform == "quantile" else 100)
    assert bounds.max() <= 0.005 * net.predict(data.train.values).std()
    exact = naive_nets.score_of(data.train.values[0], net)
    assert abs(net.predict(data.train.values[:1])[0] - exact) <= bounds[0]


def test_equal_models_have_equal_bytes():
    assert onnx.write(drawn_net(), "web").data == onnx.write(drawn_net(), "web").data


@pytest.mark.parametrize("target", sorted(set(WRITERS) - {"onnx"}))
def test_formats_of_trees_refuse_nets(target):
    with refused(ConversionRefused, target, "a net of", "onnx"):
        write_as(target, drawn_net())


def test_options_of_trees_are_refused():
    with refused(InputError, "missing", "a net of"):
        write_as("onnx", drawn_net(), missing="zero")
