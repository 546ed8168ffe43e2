"""What holds for every objective that is registered, whatever it is."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from rankmill.foundation.errors import InvalidParameter
from rankmill.foundation.options import spelled_for_a_command_line
from rankmill.pipeline.binspec import BinSpec, feature_bins
from rankmill.scorer.metrics import Policy, parse_metric
from rankmill.scorer.metrics.per_query import PreparedQueries
from rankmill.trainer.objectives.protocol import ROWS, Objective
from rankmill.trainer.objectives.registry import criterion_of, objective_class, objective_of
from rankmill.trainer.objectives.spelling import OBJECTIVES, canonical, class_named
from rankmill.trainer.objectives.weights import document_weights
from rankmill.trainer.workers import Team, with_team
from tests.refusals import refused
from tests.trainer.fixed import fixed
from tests.trainer.planted import fit, planted, rows_of, small_data

NAMES = list(dict.fromkeys({where: name for name, where in reversed(OBJECTIVES.items())}.values()))
NAMES.remove("user")  # has no function of its own: test_user_objectives.py
# what grades of documents do not teach: how to rank them
NOT_FOR_GRADES = {"coxph"}
# while it averages rounds, scores alone do not tell what its loss is
NO_DEVIANCE = {"gbrank"}


def made(name, weights=None, **parameters):
    rows = rows_of(small_data()[0], small_data()[2], weights=weights)
    return rows, objective_of(rows, fixed(objective=name, **parameters))


def shaped(objective, rows, seed=1):
    shape = (rows.n_rows,) if objective.n_outputs == 1 else (objective.n_outputs, rows.n_rows)
    return np.random.default_rng(seed).normal(size=shape)


def gradients(objective, scores, team=None, step=3):
    g, h = np.full_like(scores, np.nan), np.full_like(scores, np.nan)
    objective.gradients(step, scores, g, h, team or Team(1))
    return g, h


@pytest.mark.parametrize("name", NAMES)
def test_what_a_class_says_of_itself_fits_together(name):
    rows, objective = made(name)
    assert objective.name in OBJECTIVES
    assert objective.sums_over in {"rows", "queries"}
    assert set(objective.criteria) <= {"rwse", "se", "ole"}
    assert objective.criteria
    assert objective.link == "identity" or objective.n_outputs > 1 or objective.link.startswith("ordinal")
    scores = shaped(objective, rows)
    if name in NO_DEVIANCE:
        with refused(InvalidParameter, name, "deviance"):
            objective.deviance(scores)
        return
    parts = objective.losses(scores)
    assert parts.shape == ((rows.n_rows,) if objective.sums_over == "rows" else (rows.n_queries,))
    assert np.isfinite(parts).all()
    assert np.isfinite(objective.deviance(scores))
    assert np.isfinite(objective.start())
    assert type(objective).__doc__


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_the_same_bits_for_any_team_and_hessians_no_less_than_zero(name):
    rows, objective = made(name)
    scores = shaped(objective, rows)
    g, h = gradients(objective, scores)
    assert np.isfinite(g).all()
    assert (h >= 0.0).all()
    _, again = made(name)
    other = with_team(3, lambda team: gradients(again, scores, team))
    assert np.array_equal(other[0], g)
    assert np.array_equal(other[1], h)


@pytest.mark.parametrize("name", NAMES)
def test_only_ratios_of_weights_matter(name):
    weights = np.random.default_rng(5).integers(1, 5, size=small_data()[0][1].shape[0]).astype(np.float64)
    rows, one = made(name, weights)
    _, eight = made(name, 8.0 * weights)
    scores = shaped(one, rows)
    assert np.array_equal(gradients(one, scores)[0], gradients(eight, scores)[0])
    if name not in NO_DEVIANCE:
        assert one.deviance(scores) == eight.deviance(scores)


@pytest.mark.parametrize("name", NAMES)
def test_models_have_the_same_bytes_for_any_threads_and_after_a_resume(name):
    data = small_data()
    options = {"objective": name, "n_rounds": 6, "early_stopping_rounds": 0}
    watched = [] if name in NO_DEVIANCE else ["deviance"]
    whole = fit(data, **options, options={"eval_metrics": watched}).forest
    assert fit(data, **options, options={"n_threads": 3}).forest.to_bytes() == whole.to_bytes()
    half = fit(data, **{**options, "n_rounds": 3}, watch=False).forest
    resumed = fit(data, **options, watch=False, options={"resume": half}).forest
    assert resumed.to_bytes() == fit(data, **options, watch=False).forest.to_bytes()


# what two classes of grades, or averages of rounds, leave unlearnt in 100 rounds
FURTHER_OFF = {
    "bernoulli": 0.08,
    "position_based": 0.08,
    "logistic2": 0.08,
    "adaboost": 0.08,
    "logistrank": 0.1,
    "query_cross_entropy": 0.08,
    "gbrank": 0.12,
}


@cache
def larger_data():
    train, valid = planted(1, 200), planted(2, 200)
    features = tuple(feature_bins(f"f{i}", train[0][:, i].copy()) for i in range(train[0].shape[1]))
    x = np.nan_to_num(valid[0].astype(np.float64))
    signal = x[:, 0] + x[:, 1] * x[:, 2]
    metric = parse_metric("ndcg@10")
    known = PreparedQueries(valid[1], valid[2], Policy()).means([metric], signal)[metric]
    return (train, valid, BinSpec(features)), known


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_FOR_GRADES])
def test_a_hundred_trees_come_near_the_planted_signal(name):
    data, known = larger_data()
    result = fit(data, objective=name, n_rounds=100, max_leaves=12, early_stopping_rounds=0)
    found = result.history[-1].metrics["valid"]["ndcg@10"]
    assert found > known - FURTHER_OFF.get(name, 0.05)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("criterion", ["se", "rwse", "ole"])
def test_a_criterion_works_or_is_refused_with_a_reason(name, criterion):
    data = small_data()
    _, objective = made(name)
    parameters = fixed(objective=name, criterion=criterion)
    if criterion in objective.criteria:
        assert criterion_of(objective, parameters) in {criterion, "rwse"}
        forest = fit(data, objective=name, criterion=criterion, n_rounds=2, watch=False).forest
        assert np.isfinite(forest.node_value).all()
        assert (forest.node_gain >= 0.0).all()
    else:
        with refused(InvalidParameter, "criterion", f"'{criterion}'", objective.name):
            fit(data, objective=name, criterion=criterion, n_rounds=2)


@pytest.mark.parametrize("name", [name for name in NAMES if "ole" in objective_class(name).criteria])
def test_pair_hessians_add_up_to_the_change_of_the_gradient(name):
    """The sum over the pairs of a row is its h, since a common step of a query moves no loss of differences."""
    rows, objective = made(name)
    if objective.additive:
        return
    scores = shaped(objective, rows)
    _, h = gradients(objective, scores)
    pairs = objective.pair_hessians(3, scores, 0.0, Team(1)).copy()
    assert (pairs.first < pairs.second).all()
    summed = np.zeros(rows.n_rows)
    np.add.at(summed, pairs.first, pairs.hessian)
    np.add.at(summed, pairs.second, pairs.hessian)
    if objective.losses(scores + 0.25) == pytest.approx(objective.losses(scores), rel=1e-9):
        assert summed == pytest.approx(h, rel=1e-8, abs=1e-10)
    else:  # it also says how high the scores of a query are: its pairs explain a part of h
        assert (summed <= h * (1 + 1e-9)).all()
    together = with_team(3, lambda team: objective.pair_hessians(3, scores, 0.0, team).copy())
    assert np.array_equal(together.first, pairs.first)
    assert np.array_equal(together.hessian, pairs.hessian)
    leaf_of_row = np.random.default_rng(2).integers(-1, 4, size=rows.n_rows).astype(np.int32)
    inside = objective.hessian_inside(3, scores, leaf_of_row, 4, pairs.hessian.sum(), Team(1))
    same = leaf_of_row[pairs.first] == leaf_of_row[pairs.second]
    listed = [pairs.hessian[same & (leaf_of_row[pairs.first] == leaf)].sum() for leaf in range(4)]
    assert inside == pytest.approx(listed, rel=1e-9)
    of_three = with_team(3, lambda team: objective.hessian_inside(3, scores, leaf_of_row, 4, pairs.hessian.sum(), team))
    assert np.array_equal(of_three, inside)
    drawn = objective.pair_hessians(3, scores, float(np.median(pairs.hessian)), Team(1)).copy()
    assert len(drawn.first) < len(pairs.first)
    assert drawn.hessian.sum() == pytest.approx(pairs.hessian.sum(), rel=0.1)
    again = objective.pair_hessians(3, scores, float(np.median(pairs.hessian)), Team(1)).first
    assert np.array_equal(again, drawn.first)


def test_the_objective_of_the_guide_works(monkeypatch):
    guide = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code, line = re.search(r"```python\n(.*?)```.*?`(\"log_squared\": .*?),`", guide, flags=re.DOTALL).groups()
    name, where = (part.strip().strip('"') for part in line.split(": ", 1))
    module = ModuleType(where.partition(":")[0])
    module.__dict__.update(np=np, Objective=Objective, ROWS=ROWS, document_weights=document_weights)
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(OBJECTIVES, name, where)
    forest = fit(small_data(), objective=name, n_rounds=10).forest
    assert forest.objective == "log_squared"
    assert forest.n_trees > 3
    rows, objective = made(name)
    scores = shaped(objective, rows)
    above, below = (objective.losses(scores + step).sum() for step in (1e-4, -1e-4))
    assert gradients(objective, scores)[0].sum() == pytest.approx((above - below) / 2e-4, rel=1e-6)
    class_named.cache_clear()


def test_options_are_named_by_their_objective_and_not_as_flags():
    with spelled_for_a_command_line(), refused(InvalidParameter, "apxdcg(samples)", "2 .. 100000", "1"):
        canonical("apxdcg(samples=1)")
