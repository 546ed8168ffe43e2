"""Charts hold the numbers that the library gives for the same question; they are valid Vega-Lite (Altair checks that)."""

import json
import sys
from collections import defaultdict

import numpy as np
import polars as pl
import pytest

from rankmill import Ranker, evaluate
from rankmill.foundation.errors import InputError, MissingLibrary
from rankmill.plots import (
    MOST_POINTS,
    plot_dependence,
    plot_importance,
    plot_learning_curve,
    plot_metric_by_slice,
    plot_shap_summary,
)
from rankmill.scorer.inspect.dependence import partial_dependence
from rankmill.scorer.inspect.shap import shap_values
from tests.refusals import refused
from tests.scorer.forests import random_forest

ODD = "title.match[1]:x"  # characters that mean something to Vega-Lite


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 3))
    X[::7, 1] = np.nan
    return pl.DataFrame(X, schema=["bm25", "clicks", ODD]).with_columns(
        qid=np.repeat(np.arange(60), 10), grade=np.clip(np.round(X[:, 0] + np.abs(X[:, 2])), 0, 4).astype(int)
    )


@pytest.fixture(scope="module")
def ranker(rows):
    X, y = rows.drop("grade"), rows["grade"]
    fitted = Ranker(n_rounds=12, max_leaves=6)
    return fitted.fit(X[:400], y[:400], eval_set=(X[400:], y[400:]), eval_metrics=["map"])


def data_of(chart):
    """The rows of each data set of a chart, which is checked against the schema on the way."""
    altair = pytest.importorskip("altair")
    assert isinstance(chart, altair.TopLevelMixin)
    return list(chart.to_dict()["datasets"].values())


def test_the_learning_curve_is_the_history(ranker):
    for metric in (None, "map"):
        lines, kept = data_of(plot_learning_curve(ranker, metric))
        name = metric or "ndcg@10"
        for found, metrics in ranker.evals_result_.items():
            curve = [row[name] for row in lines if row["set"] == found]
            assert curve == metrics[name]
        assert kept == [{"round": ranker.best_round_}]
    with refused(InputError, "metric", "'mapp'", "'map'"):
        plot_learning_curve(ranker, "mapp")
    with refused(InputError, "history"):
        plot_learning_curve(Ranker.from_model(ranker.forest_))


def test_a_long_history_is_thinned_out(ranker):
    pytest.importorskip("altair")
    long = Ranker.from_model(ranker.forest_)
    long.history_ = ranker.history_[:1] * 4000
    lines, _ = data_of(plot_learning_curve(long))
    assert len(lines) <= MOST_POINTS
    assert {row["round"] for row in lines} >= {1, 4000}


def test_importance_is_that_of_the_ranker(ranker):
    (bars,) = data_of(plot_importance(ranker, top=2))
    shares = sorted(ranker.feature_importances_, reverse=True)[:2]
    assert [row["share"] for row in bars] == pytest.approx(shares)
    assert data_of(plot_importance(ranker.forest_, top=2)) == [bars]


def test_steps_of_the_dependence_lie_on_it(ranker, rows):
    X = rows.drop("grade", "qid")
    for given, values in ((None, None), (X, X.to_numpy().astype(np.float32))):
        steps, missing = data_of(plot_dependence(ranker, "bm25", X=given))
        inner = [row["value"] for row in steps[1:-1]]
        points = np.array([np.nan, *inner, steps[0]["value"], steps[-1]["value"]])
        found = partial_dependence(ranker.forest_, ["bm25"], points=[points], values=values).outputs[0]
        assert [row["score"] for row in missing] == pytest.approx([found[0]])
        assert [row["score"] for row in steps] == pytest.approx([found[-2], *found[1:-2], found[-1]])


def test_the_dependence_on_two_features_is_a_grid(ranker):
    (cells,) = data_of(plot_dependence(ranker, "bm25", ODD))
    assert 4 < len(cells) <= MOST_POINTS
    some = cells[:: max(len(cells) // 5, 1)]
    for cell in some:
        points = [[cell["a"]], [cell["b"]]]
        found = partial_dependence(ranker.forest_, ["bm25", ODD], points=points)
        assert cell["score"] == pytest.approx(found.outputs[0, 0, 0])
    with refused(InputError, "feature", "bm52", "bm25"):
        plot_dependence(ranker, "bm52")


def test_categories_have_points_and_names():
    forest = random_forest(2, categorical=2, n_features=3, n_trees=20, max_leaves=20, names=["brand", "kind", "x"])
    points, missing = data_of(plot_dependence(forest, "brand"))
    found = partial_dependence(forest, ["brand"])
    scores = dict(zip(found.categories["brand"], found.outputs[0].tolist(), strict=True))
    assert {row["category"]: row["score"] for row in points} == pytest.approx(
        {k: v for k, v in scores.items() if k != "missing"}
    )
    assert [row["score"] for row in missing] == pytest.approx([scores["missing"]])
    for other in ("kind", "x"):
        (cells,) = data_of(plot_dependence(forest, "brand", other))
        assert {"acme", "other"} <= {cell["a"] for cell in cells}
    values = pl.DataFrame({"brand": ["acme", "7", None], "kind": ["never", "1", "<b>"], "x": [0.0, 1.0, 2.0]})
    (rows,) = data_of(plot_shap_summary(forest, values))
    assert [row["category"] for row in rows if row["feature"] == "brand"] == ["acme", "7", "missing"]
    assert [row["category"] for row in rows if row["feature"] == "kind"] == ["other", "1", "<b>"]


def test_the_summary_shows_shap_values_of_evenly_spread_documents(ranker, rows):
    X = rows.drop("grade", "qid")
    values = shap_values(ranker.forest_, X.to_numpy().astype(np.float32), qid=rows["qid"].to_numpy()).values[:, 0, :]
    (points,) = data_of(plot_shap_summary(ranker, X, qid=rows["qid"].to_numpy(), top=2))
    of_feature = defaultdict(list)
    for point in points:
        of_feature[point["feature"]].append(point["shap"])
    largest = np.argsort(-np.abs(values).mean(axis=0))[:2]
    assert list(of_feature) == [ranker.forest_.feature_names[f] for f in largest]
    for f in largest:
        assert of_feature[ranker.forest_.feature_names[f]] == pytest.approx(values[:, f].tolist(), rel=1e-4, abs=1e-9)
    many = pl.concat([X] * 10)
    charts = [plot_shap_summary(ranker, many) for _ in range(2)]
    assert len(data_of(charts[0])[0]) <= MOST_POINTS
    assert charts[0].to_json() == charts[1].to_json()


def test_every_document_has_a_point_whatever_its_value():
    rng = np.random.default_rng(3)
    frame = pl.DataFrame(
        {
            "brand": rng.choice(["acme", "bolt", "core"], 250),
            "price": np.where(rng.random(250) < 0.5, np.nan, rng.normal(size=250)),
            "ratio": np.where(rng.random(250) < 0.1, np.inf, rng.normal(size=250)),
            "one": np.ones(250),
        }
    )
    sums = 2 * (frame["brand"] == "acme").cast(pl.Float64) + frame["price"].fill_nan(1.0) + frame["ratio"].clip(-2, 2)
    ranker = Ranker(n_rounds=10, verbose=0)
    ranker.fit(frame, sums.round().clip(0, 4).cast(pl.Int32), qid=np.repeat(np.arange(25), 10))
    chart = plot_shap_summary(ranker, frame)
    (points,) = data_of(chart)
    json.dumps(points, allow_nan=False)  # infinities are no JSON
    described = chart.to_dict()
    assert described["mark"]["invalid"] is None  # else Vega-Lite leaves out what has no rank
    assert described["encoding"]["color"]["condition"] == {"test": "!isValid(datum.rank)", "value": "#888"}
    ranks = defaultdict(list)
    for point in points:
        ranks[point["feature"]].append(point["rank"])
    assert {name: len(found) for name, found in ranks.items()} == dict.fromkeys(frame.columns, 250)
    assert {*ranks["brand"]} == {None}
    assert [rank is None for rank in ranks["price"]] == frame["price"].is_nan().to_list()
    known = [rank for rank in ranks["price"] if rank is not None]
    assert (min(known), max(known)) == (0.0, 1.0)
    assert len({*ranks["one"]}) == 1


def test_no_documents_are_refused(ranker, rows):
    pytest.importorskip("altair")
    none = rows.drop("grade", "qid")[:0]
    for plot in (lambda: plot_shap_summary(ranker, none), lambda: plot_dependence(ranker, "bm25", X=none)):
        with refused(InputError, "X has no rows"):
            plot()


def test_slices_have_their_means_and_intervals(ranker, rows, tmp_path):
    rows.write_csv(tmp_path / "rows.csv")
    found = evaluate(tmp_path / "rows.csv", model=ranker.forest_, metrics=["ndcg@10", "map"], by=["bm25", "clicks"])
    slices, whole = data_of(plot_metric_by_slice(found, "clicks", "map"))
    metric = found.metrics[1]
    for row, each in zip(slices, found.slices[1].slices, strict=True):
        figure = each.metrics[metric]
        assert (row["slice"], row["mean"], (row["low"], row["high"])) == (each.name, figure.mean, figure.interval)
    assert whole == [{"mean": found.means[metric]}]
    with refused(InputError, "by", "click", "clicks"):
        plot_metric_by_slice(found, "click")
    with refused(InputError, "slices"):
        plot_metric_by_slice(evaluate(tmp_path / "rows.csv", model=ranker.forest_, metrics=["map"]))


def test_models_of_several_outputs_are_refused(rows):
    pytest.importorskip("altair")
    many = Ranker(objective="mcrank", n_rounds=2, max_leaves=3).fit(rows.drop("grade"), rows["grade"])
    for plot in (lambda: plot_dependence(many, "bm25"), lambda: plot_shap_summary(many, rows.drop("grade", "qid"))):
        with refused(InputError, "one output"):
            plot()


def test_without_altair_the_error_says_what_to_install(ranker, monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    with refused(MissingLibrary, "plot_importance", "Altair", "pip install 'rankmill[plots]'") as caught:
        plot_importance(ranker)
    assert isinstance(caught.value, ImportError)
