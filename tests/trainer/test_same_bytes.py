"""No way to train depends on threads, batches, the layout or the memory of bins, kills, or on being resumed."""

from __future__ import annotations

import pytest

from rankmill.trainer.checkpoints import Checkpoint
from tests.trainer.planted import fit, small_data

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
    {"objective": "gbrank", "n_rounds": 12},
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
        "round_metrics._LEAST_WALKED", "growing.tree._LEAST_WALKED",
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
