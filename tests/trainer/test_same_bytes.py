"""No way to train depends on threads, batches, the layout or the memory of bins, shared lanes, kills, or on being
resumed."""

from functools import cache

import numpy as np
import pytest

from rankmill.pipeline.bins.spec import BinSpec, feature_bins
from rankmill.trainer.data import layout
from rankmill.trainer.growing.grower import Grower
from rankmill.trainer.rounds.checkpoints import Checkpoint
from rankmill.trainer.team import Team
from tests.trainer.fixed import fixed
from tests.trainer.planted import fit, planted, small_data

LEVELS = {"grow": "oblivious", "max_depth": 3}
DART = {"boosting": "dart", "skip_drop": 0.2, "drop_rate": 0.3, "n_rounds": 10, "early_stopping_rounds": 0}
FOREST = {"boosting": "rf", "query_fraction": 0.6, "feature_fraction": 0.7, "n_rounds": 9, "early_stopping_rounds": 0}
DRAWN = {"query_fraction": 0.7, "feature_fraction": 0.6, "bootstrap": "bayesian", "random_strength": 1.0}
MEMBERS = {**DRAWN, "members": 3, "n_rounds": 9, "early_stopping_rounds": 0}
WAYS = [
    {},
    {"grow": "breadth_first", "watch": False},
    {"grow": "depth_first"},
    {"watch": False, **LEVELS},
    {"watch": False, "monotone": {"f0": 1, "f2": -1}},
    {"interaction_constraints": [["f0", "f1"]], "watch": False},
    {"objective": "l2", "row_fraction": 0.5, "early_stopping_rounds": 0},
    {"objective": "gbrank(trees=3)", "n_rounds": 7},
    {"criterion": "ole"},
    {"query_fraction": 0.6, "row_fraction": 0.8, "feature_fraction": 0.5, "early_stopping_rounds": 0},
    {"early_stopping_rounds": 6, "learning_rate": 0.5, "n_rounds": 100},
    {"learning_rate": 0.5, "n_rounds": 60, "early_stopping_rounds": 6, "stop_window": 8},
    {"stop_metric": "err@5", "options": {"eval_metrics": ["map"]}},
    {"random_strength": 1.0, "min_rows_in_leaf": 30},
    {"random_strength": 1.0, "min_rows_in_leaf": 30, **LEVELS},
    {"bootstrap": "bayesian", "lambda_l2": 2.0, "l2_scale": "mean_hessian"},
    {"bootstrap": "bayesian", "bootstrap_by": "document", "leaf_rows": "all", "criterion": "se", "watch": False},
    {"bootstrap": "bayesian", "objective": "mcrank", "rounds_by": "oob", "row_fraction": 0.7, "n_rounds": 12},
    {"bootstrap": "mvs", "query_fraction": 0.5, "leaf_rows": "all", "step_search": "line", "watch": False},
    {"bootstrap": "mvs", "bootstrap_by": "document", "row_fraction": 0.5, "leaf_rows": "all"},
    {"bootstrap": "goss", "bootstrap_by": "document", "watch": False},
    {"bootstrap": "goss", "top_rate": 0.3, "other_rate": 0.3, **LEVELS},
    {"step_search": "line", "objective": "l2", "row_fraction": 0.7, "learning_rate": 0.05},
    DART,
    {**DART, "objective": "mcrank"},
    {**DART, "members": 2, "bootstrap": "bayesian"},
    {**DART, "xgboost_dart_mode": True, "uniform_drop": True, "max_drop": 2, "objective": "yetirank"},
    {**DART, "criterion": "ole"},
    FOREST,
    {**FOREST, "objective": "mcrank", "leaf_rows": "all"},
    {**FOREST, "rounds_by": "oob", "objective": "lambdamart", **LEVELS},
    MEMBERS,
    {**MEMBERS, "objective": "mcrank"},
    {**MEMBERS, "objective": "l2", "step_search": "line"},
    {**MEMBERS, **LEVELS},
    {**MEMBERS, "criterion": "se"},
    {**MEMBERS, "bootstrap": "mvs", "row_fraction": 1.0},
]


class Killed(BaseException):
    """What ends a training here where a signal would."""


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_nothing_changes_a_byte(way, tmp_path, monkeypatch):
    for name in ("_LEAST_ROWS", "_LEAST_VISITS", "_SHARED_ROWS"):
        monkeypatch.setattr(f"rankmill.trainer.growing.grower.{name}", 1)  # let small work be shared out as well
    for name in (
        "objectives.pairwise.pair_loss._LEAST_WORK", "objectives.pointwise.document_loss.LEAST_ROWS",
        "rounds.round_metrics._LEAST_SWEPT", "rounds.round_metrics._LEAST_LINKED",
        "rounds.round_metrics._LEAST_RANKED", "growing.tree._LEAST_WALKED",
    ):  # fmt: skip
        monkeypatch.setattr(f"rankmill.trainer.{name}", 1)

    def trained(options=None, **how):
        return fit(
            small_data(), **how, **{"n_rounds": 10, **way, "options": {**way.get("options", {}), **(options or {})}}
        )

    def dies(record):
        if record.round_number == 5:
            raise Killed

    path = tmp_path / "a.checkpoint"
    with pytest.raises(Killed):
        trained({"checkpoint": Checkpoint(path, every=0.0), "on_round": dies})
    assert Checkpoint(path).read().n_rounds == 5
    short = fit(small_data(), **{**way, "n_rounds": 4})
    expected = trained()
    for found in (
        trained({"checkpoint": Checkpoint(path)}),
        trained({"resume": short.forest, "n_threads": 3}, batch=7),
        trained({"n_threads": 2, "histogram_memory": 1}, width=8),
    ):
        assert found.forest.to_bytes() == expected.forest.to_bytes() != short.forest.to_bytes()
        assert found.history == expected.history
        assert found.best_round == expected.best_round


# -- lanes ------------------------------------------------------------------------------------------------------------


def alone(n_bins):
    """Return a lane for every feature: see ``layout.lanes_of``."""
    ones, numbers = np.ones(len(n_bins), dtype=np.int32), np.arange(len(n_bins), dtype=np.int32)
    return np.stack([numbers, ones, n_bins], axis=1)


@cache
def data():
    """Two parts of 4 features that mean nothing, and 20 of up to 6 different values, a tenth of them missing; and the
    bins."""
    parts = []
    for seed in (1, 2):
        x, grades, starts = planted(seed)
        narrow = [np.round(x[:, i % 7] * (i % 3 + 1) / 2).clip(-1 - i % 2, 1 + i % 3) for i in range(20)]
        parts.append((np.column_stack([x[:, 3:], *narrow]).astype(np.float32), grades, starts))
    columns = enumerate(parts[0][0].T)
    return *parts, BinSpec(tuple(feature_bins(f"f{i}", column.copy()) for i, column in columns))


LANES = {
    "usual": {"objective": "ranknet"},
    "bounded": {"min_hessian_in_leaf": 5.0, "min_rows_in_leaf": 60, "monotone": {"f10": 1, "f11": -1}},
    "oblivious": {"grow": "oblivious", "max_depth": 4, "min_rows_in_leaf": 30, "criterion": "se", "objective": "l2"},
    "loss": {"criterion": "ole"},
    "random": {"extra_trees": True, "feature_fraction_by_node": 0.5, "row_fraction": 0.5, "boosting": "dart"},
}


@pytest.mark.parametrize("way", LANES.values(), ids=LANES)
def test_features_that_share_lanes_are_trained_with_as_those_alone(way, monkeypatch):
    given = {"n_rounds": 4, "options": {"n_threads": 3}} | way
    n_bins = data()[2].n_bins
    assert layout.n_lanes(layout.lanes_of(n_bins)) < len(n_bins) - 8
    shared = fit(data(), **given)
    monkeypatch.setattr(layout, "lanes_of", alone)
    assert fit(data(), **given).forest.to_bytes() == shared.forest.to_bytes()
    assert shared.forest.node_feature.max() >= 4  # narrow ones too


@pytest.mark.parametrize("grow", ["best_first", "oblivious"])
def test_categories_have_the_same_trees(grow, monkeypatch):
    rng = np.random.default_rng(0)
    n_bins = np.array([9, 7, 5, 12] * 6, dtype=np.int32)
    bins = np.stack([rng.integers(0, n, 900) for n in n_bins], axis=1).astype(np.uint8)
    effect = rng.normal(size=12)
    g = effect[bins[:, 0]] + effect[bins[:, 3]] * effect[bins[:, 5]] + rng.normal(size=900)
    shape = {"grow": grow, "max_depth": 3, "max_leaves": 8}

    def grown():
        whole = layout.BlockedBins.from_batches([bins], 900, n_bins)
        grower = Grower(whole, fixed(**shape), Team(1), categorical=np.arange(24) % 2 == 0)
        scores = np.zeros(900)
        return grower.grow(g, np.ones(900), scores), scores, whole.words.shape

    tree, scores, shape_of_words = grown()
    monkeypatch.setattr(layout, "lanes_of", alone)
    other, others, wider = grown()
    assert shape_of_words != wider
    assert scores.tolist() == others.tolist()
    for name in ("feature", "threshold", "sets", "gain", "rows"):
        assert getattr(tree, name).tolist() == getattr(other, name).tolist(), name
    assert (tree.threshold == 0).any()
